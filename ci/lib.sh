# shellcheck shell=bash
# Functions shared by the commands in ci/. Sourced, not run.
set -euo pipefail
# shellcheck disable=SC2034  # used by the scripts that source this
here=$PWD self=$(realpath "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The names of all plugins.
# shellcheck disable=SC2034
mapfile -t plugins < <(sed -n 's/\.path = .*//p' crates/cni0/Cargo.toml)
# shellcheck disable=SC2034
tools=(cnitool cni0-install cni0-netavark) # programs that are not plugins of CNI, built and released beside them
PATH=$PATH:/usr/sbin:/sbin # not in the PATH of ordinary users; contains ip and sysctl
if [ -n "${CARGO_TARGET_DIR:-}" ]; then CARGO_TARGET_DIR=$(cd "$here" && realpath -m "$CARGO_TARGET_DIR"); fi

bold='' plain=''
if [ -t 2 ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '%s==> %s%s\n' "$bold" "$*" "$plain" >&2; }
die() { printf '%s: %s\n' "ci/$(basename "$0")" "$*" >&2; exit 1; }

# help: prints the comment at the top of the command's file.
help() { sed -n '2,/^$/s/^# \{0,1\}//p' "$self"; }

# need PACKAGE=COMMAND ...: installs the Debian packages whose command (a name or a path) is missing.
need() {
    local pair missing=()
    for pair; do
        command -v "${pair#*=}" >/dev/null || [ -e "${pair#*=}" ] || missing+=("${pair%%=*}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        die "missing: ${missing[*]} (on Debian, as root: apt-get install ${missing[*]})"
    fi
    say "installing ${missing[*]}"
    apt-get -q update >/dev/null
    install_packages "${missing[@]}" || die "apt-get could not install ${missing[*]}"
}

# install_packages PACKAGE ...: only the programs are needed. No service is started, neither now (apt-get starts none if it
# cannot see systemd, or if policy-rc.d forbids it) nor at the next boot: firewalld and bird would change the network of this
# machine.
install_packages() (
    apt=(apt-get) policy=/usr/sbin/policy-rc.d
    # shellcheck disable=SC2016  # expanded by that sh
    [ ! -d /run/systemd/system ] || apt=(unshare --mount -- sh -c 'mount -t tmpfs tmpfs /run/systemd && exec apt-get "$@"' -)
    if [ ! -e $policy ]; then # an existing one is the administrator's
        trap 'rm -f $policy' EXIT
        trap 'exit 1' INT TERM
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
    fi
    DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes \
        "${apt[@]}" -qy install --no-install-recommends "$@" >/dev/null || exit 1
    local package
    for package in firewalld bird2; do
        [[ " $* " != *" $package "* ]] || ! command -v systemctl >/dev/null || systemctl --quiet disable "${package%2}.service" || true
    done
)

# can_install PACKAGE: checks that this user can install the package and that Debian has it.
can_install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get -q update >/dev/null &&
        [ -n "$(apt-cache madison "$1" 2>/dev/null)" ]
}

# netavark_cache: prints the directory where ci/runtimes keeps netavark, which it builds once.
netavark_cache() { echo "${XDG_CACHE_HOME:-/var/cache}/cni0-netavark"; }

# need_rust: makes sure that there are cargo, of at least the workspace's rust-version, and a linker.
need_rust() {
    local wanted have
    # A compiler cannot link without the files of the C library; apt-get can install gcc without them.
    need gcc=cc libc6-dev="$(cc -print-file-name=crti.o 2>/dev/null || echo crti.o)"
    wanted=$(sed -n 's/^rust-version = "\([0-9.]*\)".*/\1/p' Cargo.toml)
    PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    # rustup installs a proxy called cargo, which fails as long as there is no toolchain.
    if ! cargo --version >/dev/null 2>&1; then
        can_install rustup && need rustup=rustup ca-certificates=/etc/ssl/certs/ca-certificates.crt
        command -v rustup >/dev/null ||
            die "Rust $wanted or newer is missing; install it with rustup (Debian has it since 13: apt-get install rustup)"
        say "installing Rust with rustup"
        rustup default stable >&2 || die "rustup could not install Rust (rustup default stable)"
    fi
    have=$(rust_version)
    not_newer "$wanted" "$have" || die "Rust $wanted or newer is needed, this is $have (rustup update stable)"
}
rust_version() { cargo --version | sed 's/^cargo \([0-9.]*\).*/\1/'; }

# not_newer VERSION OTHER: checks that VERSION is older than OTHER, or equal.
not_newer() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

# has_target TRIPLE: checks that this toolchain can build for the target; tries to add it with rustup.
has_target() {
    [ -d "$(rustc --print target-libdir --target "$1" 2>/dev/null)" ] && return
    command -v rustup >/dev/null && rustup -q target add "$1" >&2 &&
        [ -d "$(rustc --print target-libdir --target "$1" 2>/dev/null)" ]
}

# libcni_runtime: prints the path of a runtime on libcni, the library that most runtimes use. Builds it if it is missing,
# which needs apt-get.
libcni_runtime() {
    local runtime log
    runtime=$(realpath -m "${CARGO_TARGET_DIR:-target}/libcni/runtime")
    if [ ! "$runtime" -nt testdata/cache/peer.go ]; then
        say "building a runtime on libcni"
        log=$(testdata/cache/capture --runtime "$(dirname "$runtime")" 2>&1) || { echo "$log" >&2; return 1; }
    fi
    echo "$runtime"
}

# as_root COMMAND ...: runs it as root in new namespaces: no network, private mounts.
as_root() {
    local map=()
    [ "$(id -u)" = 0 ] || map=(--map-root-user)
    unshare "${map[@]}" --net --mount -- true 2>/dev/null ||
        die "cannot create namespaces: run as root, or allow user namespaces (sysctl user.max_user_namespaces)"
    [ $# = 0 ] || unshare "${map[@]}" --net --mount -- "$@"
}

# place DIR FILE...: copies the files to DIR. Each copy is on disk before it gets its name, so that neither a reader, nor a crash,
# nor a full disk can see or leave a partial file.
place() (
    dir=$1
    shift
    new=$(mktemp -d "$dir/.new.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    for file; do
        name=${file##*/}
        cp --reflink=auto "$file" "$new/$name"
        chmod "$([ -x "$file" ] && echo 755 || echo 644)" "$new/$name"
        sync "$new/$name"
    done
    for file; do mv -fT "$new/${file##*/}" "$dir/${file##*/}"; done
    sync "$dir"
)

# write_image PROGRAMS FILE: writes an image with the programs of this machine, for tests; ci/release writes the real one.
write_image() {
    local arch=amd64
    [ "$(uname -m)" != aarch64 ] || arch=arm64
    SOURCE_DATE_EPOCH=0 VERSION=0 REVISION='' LICENCE=Apache-2.0 ci/image.py "$2" "$arch=$1"
}

# where_installed PREFIX: sets the directories that ci/install and ci/uninstall use.
# shellcheck disable=SC2034
where_installed() {
    dir=$(cd "$here" && realpath -m "${DESTDIR:+$DESTDIR/}$1")
    net_d=$(cd "$here" && realpath -m "${DESTDIR:-}/etc/cni/net.d")
    # A link for PATH, which must not have the directory of plugins. Only for the default directory.
    link='' tool=/opt/cni/bin/cnitool
    [ "$1" != "${tool%/*}" ] || link=$(cd "$here" && realpath -m "${DESTDIR:-}/usr/local/bin")/cnitool
}
