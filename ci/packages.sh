# shellcheck shell=bash
# Sourced by ci/release: one tree of files, and from it a Debian package, an rpm and an apk. Uses $work, $version, $plugins,
# $licence, $SOURCE_DATE_EPOCH and publish.
# shellcheck disable=SC2154  # set by ci/release

package=cni0-plugins
summary='CNI plugins, small and fast'
maintainer='cni0 authors <cni0@example.org>' # of a domain that is reserved for examples: there is no address
describe() { # the description in all packages
    cat <<END
Small static programs that connect containers to the network. They replace
the programs of the same names in containernetworking-plugins.
$(printf '%s, ' "${plugins[@]}" | sed 's/^/Plugins: /; s/, $//' | fold -sw 76 | sed 's/ *$//')
END
}

# The names of an architecture in each kind of package. Those of the image and of the tarballs are the reference's.
declare -A deb_arch=([amd64]=amd64 [arm64]=arm64 [arm]=armhf [riscv64]=riscv64)
declare -A rpm_arch=([amd64]=x86_64 [arm64]=aarch64 [arm]=armv7hl [riscv64]=riscv64)
declare -A apk_arch=([amd64]=x86_64 [arm64]=aarch64 [arm]=armv7 [riscv64]=riscv64)

# generate PROGRAMS: writes the files that cnitool prints into $work/generated: the manual page, the completion of shells and
# the schemas. PROGRAMS are those for this machine. A command that cnitool does not have is left out.
generate() {
    local out=$work/generated shell
    mkdir -p "$out"
    optional() { # optional FILE ARGUMENT...
        if ! "$generator" "${@:2}" >"$out/$1" 2>/dev/null || [ ! -s "$out/$1" ]; then
            rm "$out/$1"
            say "cnitool has no command ${*:2}: the packages do not have $1"
        fi
    }
    generator=$1/cnitool
    optional cnitool.1 man
    optional conflist.json schema
    optional conf.json schema --single
    for shell in bash zsh fish; do optional "cnitool.$shell" completion $shell; done
}

# stage ROOT PROGRAMS ZSH: writes the files that all packages have: cnitool, documents, and what cnitool prints. ZSH is the
# directory in which the distribution's zsh looks for the completion of packages.
stage() {
    local root=$1 from=$work/generated doc=$1/usr/share/doc/$package
    install -D "$2/cnitool" "$root/usr/bin/cnitool"
    mkdir -p "$doc/examples"
    cp -r README.md CHANGELOG.md docs "$doc"
    gzip -9n "$doc/CHANGELOG.md"
    cp docs/example.conflist "$doc/examples/10-cni0.conflist"
    put() { [ ! -e "$from/$1" ] || install -D -m 644 "$from/$1" "$root/$2"; } # put FILE PLACE
    put cnitool.1 usr/share/man/man1/cnitool.1
    [ ! -e "$root/usr/share/man" ] || gzip -9n "$root/usr/share/man/man1/cnitool.1"
    put conflist.json usr/share/cni0/schemas/conflist.json
    put conf.json usr/share/cni0/schemas/conf.json
    put cnitool.bash usr/share/bash-completion/completions/cnitool
    put cnitool.zsh "usr/share/zsh/$3/_cnitool"
    put cnitool.fish usr/share/fish/vendor_completions.d/cnitool.fish
}
stage_units() { # stage_units ROOT DIR PLUGINS: the directory of the units, and that of the plugins
    install -D -m 644 -t "$1/$2" deploy/packages/*.service deploy/packages/*.socket deploy/packages/*.timer
    sed -i "s,/opt/cni/bin/,/$3/," "$1/$2/cni-dhcp.service"
}
# Prints a command that disables the units, for the scripts that run before the files are removed: systemd would keep links
# to missing units. Where systemd is not running, it cannot stop them.
disable_units() {
    # shellcheck disable=SC2016  # expanded by the script of the package
    printf '! command -v systemctl >/dev/null || systemctl --quiet disable $([ ! -d /run/systemd/system ] || echo --now) %s || :\n' \
        "$(basename -a deploy/packages/*.timer deploy/packages/cni-dhcp.* | xargs)"
}
same_times() { find "$1" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +; }

# ---- Debian ----------------------------------------------------------------------------------------------------

# Each plugin's name is taken from containernetworking-plugins by a diversion. The diverted file is first a second link,
# so that the name always has a program: dpkg renames ours over it. Packages installed later are diverted as well.
script() { # script: prints the head of a maintainer script
    printf '#!/bin/sh\nset -e\nplugins="%s"\ncni=/usr/lib/cni\n' "${plugins[*]}"
}
preinst() {
    script
    cat <<'END'
case $1 in install|upgrade) ;; *) exit 0 ;; esac
for plugin in $plugins; do
    [ "$(dpkg-divert --listpackage $cni/$plugin)" != cni0-plugins ] || continue
    [ ! -e $cni/$plugin ] || ln -f $cni/$plugin $cni/$plugin.distrib
    dpkg-divert --package cni0-plugins --add --no-rename --divert $cni/$plugin.distrib $cni/$plugin
done
END
}
prerm() {
    script
    sed '/^#/d' ci/left-rules.sh
    cat <<'END'
[ "$1" = remove ] || exit 0
warn_of_left_rules $cni/bridge.distrib
warn_of_left_ports
warn_of_left_acceptance
warn_of_left_isolation
warn_of_left_checks
warn_of_left_guards
END
    disable_units
}
postrm() {
    script
    cat <<'END'
case $1 in remove|abort-install|disappear) ;; *) exit 0 ;; esac
for plugin in $plugins; do
    # After an aborted installation, the name still has its old program, which is the diverted one.
    [ ! $cni/$plugin -ef $cni/$plugin.distrib ] || rm -f $cni/$plugin
    dpkg-divert --package cni0-plugins --remove --rename --divert $cni/$plugin.distrib $cni/$plugin
done
END
}
debian_changelog() {
    printf '%s (%s) unstable; urgency=medium\n\n  * Version %s. CHANGELOG.md lists the changes.\n\n -- %s  %s\n' \
        $package "$version" "$version" "$maintainer" "$(LC_ALL=C date -uRd "@$SOURCE_DATE_EPOCH")"
}
package_deb() { # package_deb ARCH PROGRAMS
    local root=$work/deb-$1 arch=${deb_arch[$1]} doc file
    file=$work/${package}_${version}_$arch.deb doc=$root/usr/share/doc/$package
    mkdir -p "$root/DEBIAN" "$root/usr/lib/cni"
    stage "$root" "$2" vendor-completions
    stage_units "$root" usr/lib/systemd/system usr/lib/cni
    cp "${plugins[@]/#/$2/}" "$root/usr/lib/cni"
    install -D "$2/cni0-netavark" "$root/usr/libexec/netavark/cni0"
    cp deploy/packages/copyright "$2/THIRD-PARTY-LICENSES" "$doc"
    debian_changelog | gzip -9n >"$doc/changelog.gz"
    # The programs are static and position independent on purpose: they must work in any namespace.
    mkdir -p "$root/usr/share/lintian/overrides"
    printf "$package: %s\n" statically-linked-binary shared-library-lacks-prerequisites >"$root/usr/share/lintian/overrides/$package"
    preinst >"$root/DEBIAN/preinst"
    prerm >"$root/DEBIAN/prerm"
    postrm >"$root/DEBIAN/postrm"
    chmod 755 "$root"/DEBIAN/*
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    cat >"$root/DEBIAN/control" <<END
Package: $package
Version: $version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $((($(find "$root/usr" -type f -print0 | du -cb --files0-from=- | tail -n 1 | cut -f 1) + 1023) / 1024))
Section: net
Priority: optional
Enhances: containernetworking-plugins
Description: $summary
$(describe | sed 's/^/ /')
 .
 containernetworking-plugins can stay installed. It gets its names back when
 this package is removed.
END
    # The output of xz depends on the number of threads. Times in the package are at most SOURCE_DATE_EPOCH.
    same_times "$root"
    DPKG_DEB_THREADS_MAX=1 dpkg-deb --root-owner-group -Zxz --build "$root" "$file" >&2
    publish "$file"
}

# ---- rpm and apk -----------------------------------------------------------------------------------------------

# Neither has diversions, and both distributions install other plugins of the same names in /usr/libexec/cni. So these packages
# have their own directory, and cni0-install replaces plugins from there on request.
stage_own_directory() { # stage_own_directory ROOT PROGRAMS
    local own=$1/usr/libexec/cni0
    mkdir -p "$own"
    cp "${plugins[@]/#/$2/}" "${tools[@]/#/$2/}" "$own"
    stage "$1" "$2" site-functions
    ln -sf ../libexec/cni0/cnitool "$1/usr/bin/cnitool"
    ln -s ../libexec/cni0/cni0-install "$1/usr/bin/cni0-install"
    mkdir -p "$1/usr/libexec/netavark"
    ln -s ../cni0/cni0-netavark "$1/usr/libexec/netavark/cni0"
    install -D -m 644 -t "$1/usr/share/licenses/$package" LICENSE "$2/THIRD-PARTY-LICENSES"
}

package_rpm() { # package_rpm ARCH PROGRAMS
    local root=$work/rpm-$1 arch=${rpm_arch[$1]} spec=$work/$1.spec top=$work/rpmbuild-$1
    stage_own_directory "$root" "$2"
    stage_units "$root" usr/lib/systemd/system usr/libexec/cni0
    same_times "$root"
    # Everything that depends on this machine is set or turned off: time, host, digests of the build, stripping.
    cat >"$spec" <<END
%global _buildhost localhost
%global use_source_date_epoch_as_buildtime 1
%global clamp_mtime_to_source_date_epoch 1
%global source_date_epoch_from_changelog 0
%global _binary_payload w9.xzdio
%global _build_id_links none
%global debug_package %{nil}
%global __os_install_post %{nil}
Name: $package
Version: $version
Release: 1
Summary: $summary
License: $licence
Packager: $maintainer
AutoReqProv: no
%description
$(describe)
The package installs them in /usr/libexec/cni0. To use them:
cni0-install install --prefix /usr/libexec/cni (or /opt/cni/bin).
%install
cp -a "$root/." "%{buildroot}"
%preun
if [ "\$1" = 0 ]; then
    $(disable_units)
    for dir in /usr/libexec/cni /opt/cni/bin; do
        [ ! -e "\$dir/.cni0" ] || echo "$package: the plugins stay in \$dir. To remove them: \$dir/.cni0/cni0-install uninstall --prefix \$dir" >&2
    done
fi
%files
$(cd "$root" && find . ! -type d | sed 's/^\.//; s,^/usr/share/licenses/,%license &,' | sort)
$(cd "$root" && find . -type d '(' -path '*/cni0*' -o -name netavark ')' | sed 's/^\./%dir /' | sort)
%changelog
* $(LC_ALL=C date -ud "@$SOURCE_DATE_EPOCH" '+%a %b %d %Y') $maintainer - $version-1
- Version $version. CHANGELOG.md lists the changes.
END
    rpmbuild -bb --quiet --target "$arch-linux" --define "_topdir $top" --define "_rpmdir $top" \
        --define "_rpmfilename $package-$version-1.$arch.rpm" "$spec" >&2
    publish "$top/$package-$version-1.$arch.rpm"
}

package_apk() { # package_apk ARCH PROGRAMS
    local root=$work/apk-$1 arch=${apk_arch[$1]} file
    file=$work/$package-$version-r0.$arch.apk
    stage_own_directory "$root" "$2"
    ci/apk.py "$file" "$root" "pkgname=$package" "pkgver=$version-r0" "pkgdesc=$summary" "arch=$arch" "license=$licence" \
        "maintainer=$maintainer"
    publish "$file"
}
