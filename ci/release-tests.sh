# shellcheck shell=bash
# Sourced by ci/test: what ci/release builds is reproducible, complete, signed, and can be installed and removed. Uses $work,
# $version, $plugins, $tools, are_ours, and the functions that leave rules behind.
# shellcheck disable=SC2154  # set by ci/test and ci/lib.sh

# Another umask and time zone give the same release, and another directory the same programs. The programs work.
release() {
    local arch=amd64 other=aarch64 cross elsewhere=$work/another/tree file root dir
    [ "$(uname -m)" != aarch64 ] || arch=arm64 other=x86_64
    minisign -G -W -p "$work/cni0.pub" -s "$work/cni0.key" >/dev/null # without a password
    dir=$(ci/release --arch $arch --sign "$work/cni0.key" "$work/release" | tail -n 1) || return 1
    # Five files for the architecture, the image, the list of crates and the provenance; the sums and their signature.
    [ "$(find "$dir" -type f | wc -l) $(wc -l <"$dir/SHA256SUMS")" = "10 8" ] || { find "$dir"; return 1; }
    ci/sbom.py --check "$dir/cni0-plugins-v$version.spdx.json" || return 1
    signature "$dir" || return 1
    (
        umask 077
        export TZ=Asia/Tokyo LC_ALL=C
        ci/release --arch $arch --sign "$work/cni0.key" "$work/again"
    ) && diff -r "$dir" "$work/again" || return 1
    # The compiler makes most of a release. One program, for an architecture that this machine only emulates, shows whether
    # it depends on a directory; all programs would take as long as all other checks.
    mkdir -p "$elsewhere"
    git ls-files -z --cached --others --exclude-standard | tar --null -T - -c | tar -C "$elsewhere" -x
    cross=(ci/build --only host-local --target "$other-unknown-linux-musl")
    "${cross[@]}" "$work/here" || return 1
    (
        umask 077
        unset CARGO_TARGET_DIR
        "$elsewhere/${cross[0]}" "${cross[@]:1}" "$work/there"
    ) && cmp "$work/here/host-local" "$work/there/host-local" || return 1
    CNI_COMMAND=VERSION "qemu-$other-static" "$work/there/host-local" </dev/null | grep -qF '"1.1.0"]' ||
        { echo "host-local for $other does not answer"; return 1; }
    rm -rf "$elsewhere"
    file=$dir/cni0-plugins-linux-$arch-v$version.tar.xz root=$work/unpacked
    tar -tf "$file" | sort | diff - <(printf './%s\n' '' LICENSE README.md THIRD-PARTY-LICENSES "${plugins[@]}" "${tools[@]}" | sort) || return 1
    mkdir "$root" && tar -C "$root" -xf "$file" && are_ours "$root" "${plugins[@]}" || return 1
    same_texts "$dir" $arch "$root/THIRD-PARTY-LICENSES" || return 1
    lintian --allow-root --fail-on error "$dir"/cni0-plugins_*_$arch.deb || return 1
    rpmlint --rpmlintrc deploy/packages/rpmlintrc "$dir"/*."$(uname -m)".rpm || return 1
    repository "$dir"/cni0-plugins_*_$arch.deb $arch || return 1
    own_directory "$dir"/*."$(uname -m)".rpm "$dir"/*."$(uname -m)".apk || return 1
    # shellcheck disable=SC2016  # expanded by that bash
    [ "$(id -u)" != 0 ] || as_root bash -ec 'package_beside "$1"' - "$dir"/cni0-plugins_*_$arch.deb
}
# same_texts DIR ARCH FILE: each package and the image have this file with the licences, and a component without one is refused.
same_texts() {
    local blob
    [ "$(grep -cE '^(serde_json|rust-std|musl) .* \(text [0-9, ]+\)$' "$3")" = 3 ] || { head -n 40 "$3"; return 1; }
    dpkg-deb --fsys-tarfile "$1"/cni0-plugins_*_"$2".deb | tar -xO ./usr/share/doc/cni0-plugins/THIRD-PARTY-LICENSES | cmp - "$3" || return 1
    rpm2cpio "$1"/*."$(uname -m)".rpm | cpio --quiet -i --to-stdout '*/licenses/*/THIRD-PARTY-LICENSES' | cmp - "$3" || return 1
    tar --warning=no-unknown-keyword -xzOf "$1"/*."$(uname -m)".apk usr/share/licenses/cni0-plugins/THIRD-PARTY-LICENSES | cmp - "$3" || return 1
    mkdir "$work/image" && tar -C "$work/image" -xf "$1"/*.oci.tar || return 1
    for blob in "$work"/image/blobs/sha256/*; do tar -xzOf "$blob" cni0/THIRD-PARTY-LICENSES 2>/dev/null || true; done | cmp - "$3" || return 1
    if PYTHONPATH=ci python3 -c 'import licences, pathlib
licences.Component("crate", "1.0.0", "MIT", licences.texts_in(pathlib.Path("docs")))' 2>"$work/refusal"; then return 1; fi
    grep -F 'crate 1.0.0: no text of the licence MIT' "$work/refusal"
}
# signature DIR: the sums and their signature fit, as docs/releases.md checks them, and a changed file is refused.
signature() (
    cd "$1" || return 1
    verify() { minisign -Vm SHA256SUMS -p "$work/cni0.pub" && sha256sum -c --quiet SHA256SUMS; }
    verify && provenance --check . || return 1
    file=$(ls ./*.deb) && cp "$file" "$work/kept" && printf x >>"$file" || return 1
    if verify || provenance --check .; then echo "a changed file is accepted"; return 1; fi
    cp "$work/kept" "$file" && cp SHA256SUMS "$work/kept" && sha256sum "$file" >>SHA256SUMS || return 1
    ! verify || { echo "changed sums are accepted"; return 1; }
    cp "$work/kept" SHA256SUMS && verify
)
provenance() { "$OLDPWD/ci/provenance.py" "$@" ./*.provenance.json; }
# repository DEB ARCH: apt-get gets the package from a repository made and signed as docs/releases.md says.
repository() (
    home=$work/apt
    export GNUPGHOME=$home/keys
    trap 'gpgconf --kill all' EXIT
    mkdir -p "$home"/{keys,repository/conf,state/lists,cache/archives,etc/apt/{apt.conf.d,preferences.d}}
    chmod 700 "$GNUPGHOME"
    gpg --batch --quiet --passphrase '' --quick-generate-key 'cni0 <cni0@example.org>' ed25519 sign never &&
        gpg --export >"$home/cni0.gpg" || return 1
    sed -n '/^Codename: /,/^$/{/^[A-Z]/p}' docs/releases.md >"$home/repository/conf/distributions"
    reprepro --silent -b "$home/repository" includedeb stable "$1" || return 1
    echo "deb [arch=$2 signed-by=$home/cni0.gpg] file:$home/repository stable main" >"$home/etc/apt/sources.list"
    : >"$home/status"
    get() {
        apt-get -q -o Dir::Etc="$home/etc/apt" -o Dir::State="$home/state" -o Dir::State::status="$home/status" \
            -o Dir::Cache="$home/cache" -o APT::Architecture="$2" -o APT::Sandbox::User=root "$1" "${@:3}"
    }
    get update "$2" --error-on=any && cd "$home" && get download "$2" cni0-plugins && cmp ./*.deb "$1" || return 1
    printf x >>"$(find "$home/repository/pool" -name '*.deb')" && rm ./*.deb || return 1
    ! get download "$2" cni0-plugins || { echo "apt-get accepts a package that is not the signed one"; return 1; }
)
# own_directory RPM APK: both packages have the same programs, which cni0-install installs from their own directory.
own_directory() {
    local root=$work/own-rpm apk=$work/own-apk file
    mkdir "$root" "$apk"
    rpm2cpio "$1" | (cd "$root" && cpio -idm --quiet) || return 1
    tar -C "$apk" --warning=no-unknown-keyword -xzf "$2" || return 1
    # The second part of the file starts where the checksum in the first one says.
    grep -qxF "datahash = $(python3 -c 'import sys; d = open(sys.argv[1], "rb").read(); sys.stdout.buffer.write(d[d.index(b"\x1f\x8b", 2):])' "$2" |
        sha256sum | cut -c -64)" "$apk/.PKGINFO" || { cat "$apk/.PKGINFO"; return 1; }
    diff -r "$root/usr/libexec" "$apk/usr/libexec" || return 1
    [ -s "$root/usr/share/zsh/site-functions/_cnitool" ] || { echo "the completion for zsh is missing"; return 1; }
    # rpm removes the directories that the package lists.
    [ -z "$(comm -23 <(cd "$root" && find . -type d '(' -path '*/cni0*' -o -name netavark ')' | cut -c 2- | sort) <(rpm -qpl "$1" | sort))" ] ||
        { echo "the rpm does not list its directories"; return 1; }
    while read -r file; do
        [ -s "$root$file" ] || { echo "the documents name $file, which the packages do not have"; return 1; }
    done < <(grep -oh '/usr/share/cni0/[a-z/.]*' docs/*.md)
    "$root/usr/bin/cnitool" --version && "$root/usr/bin/cni0-install" install --prefix "$work/own" || return 1
    are_ours "$work/own" "${plugins[@]}" && "$work/own/.cni0/cni0-install" uninstall --prefix "$work/own" && [ ! -e "$work/own" ]
}
# Installs our package beside Debian's, upgrades and removes it, in private mounts, on copies of the directories that
# dpkg writes to. It must stop at the first failure: without the copies it would change the machine itself.
package_beside() {
    local path cni=/usr/lib/cni
    version() { CNI_COMMAND=VERSION $cni/bridge </dev/null; }
    mount -t tmpfs tmpfs /mnt
    mount -t tmpfs tmpfs /usr/share
    mkdir /mnt/upper /mnt/work
    mount -t overlay overlay -o lowerdir=/usr/bin,upperdir=/mnt/upper,workdir=/mnt/work /usr/bin
    for path in /var/lib/dpkg "$cni" /usr/lib/systemd/system; do
        [ -e "$path" ] || continue
        cp -a "$path" /mnt
        mount --bind "/mnt/${path##*/}" "$path"
    done
    dpkg() { command dpkg --log=/mnt/log "$@"; }
    sha256sum $cni/* >/mnt/before
    dpkg -i "$1" && dpkg -i "$1" || return 1
    ! command -v systemd-analyze || systemd-analyze verify --man=no /usr/lib/systemd/system/cni0-* /usr/lib/systemd/system/cni-dhcp.*
    if command -v systemctl; then
        export SYSTEMD_OFFLINE=1 # it changes files, and does not call the manager
        mount -t tmpfs tmpfs /etc/systemd/system
        systemctl enable cni0-prune.timer cni0-metrics.timer cni-dhcp.socket && [ -L /etc/systemd/system/timers.target.wants/cni0-prune.timer ] || return 1
    fi
    version | grep -F '"1.1.0"]' || return 1
    [ "$(CNI_COMMAND=VERSION $cni/bridge.distrib </dev/null)" != "$(version)" ] || { echo "the reference is lost"; return 1; }
    dpkg -s containernetworking-plugins | grep -qxF 'Status: install ok installed' || return 1
    masquerade_two
    publish_two
    accept_two
    isolate_two
    check_two
    dpkg -r cni0-plugins 2>/mnt/warning || return 1
    grep 'warning: attachments masqueraded .*: 2\.' /mnt/warning && grep 'warning: attachments with published ports .*: 2\.' /mnt/warning || return 1
    grep 'warning: attachments whose traffic is accepted .*: 2\.' /mnt/warning && grep 'warning: attachments isolated .*: 2\.' /mnt/warning || return 1
    grep 'warning: attachments with a spoof check .*: 2\.' /mnt/warning || return 1
    [ -z "$(find /etc/systemd/system -name 'cni*-*')" ] || { echo "units of the package are still enabled"; return 1; }
    sha256sum $cni/* | diff /mnt/before - && [ -z "$(dpkg-divert --list '/usr/lib/cni/*')" ]
}
export -f package_beside
