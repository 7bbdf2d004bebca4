# shellcheck shell=bash
# What the commands in ci/ share. Sourced, not run.
set -euo pipefail
# shellcheck disable=SC2034  # for those who source this
here=$PWD self=$(realpath "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck disable=SC2034
plugins=(bridge host-local loopback)
# shellcheck disable=SC2034
tools=(cnitool) # programs for people, a file each: built, installed and released beside the plugins
PATH=$PATH:/usr/sbin:/sbin # where ordinary users do not look, and ip and sysctl are
if [ -n "${CARGO_TARGET_DIR:-}" ]; then CARGO_TARGET_DIR=$(cd "$here" && realpath -m "$CARGO_TARGET_DIR"); fi

bold='' plain=''
if [ -t 2 ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '%s==> %s%s\n' "$bold" "$*" "$plain" >&2; }
die() { printf '%s: %s\n' "ci/$(basename "$0")" "$*" >&2; exit 1; }

# help: prints the comment at the head of the command.
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
    # Programs are wanted, not services: what cannot see systemd does not ask it to start any.
    local apt=(apt-get)
    # shellcheck disable=SC2016  # expanded by that sh
    [ ! -d /run/systemd/system ] || apt=(unshare --mount -- sh -c 'mount -t tmpfs tmpfs /run/systemd && exec apt-get "$@"' -)
    DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes \
        "${apt[@]}" -qy install --no-install-recommends "${missing[@]}" >/dev/null ||
        die "apt-get could not install ${missing[*]}"
}

# can_install PACKAGE: may this user install it, and does Debian have it?
can_install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get -q update >/dev/null &&
        [ -n "$(apt-cache madison "$1" 2>/dev/null)" ]
}

# need_rust: cargo of at least the workspace's rust-version, and a linker.
need_rust() {
    local wanted have
    # Without the C library's own files a compiler cannot link; apt-get brings gcc without them.
    need gcc=cc libc6-dev="$(cc -print-file-name=crti.o 2>/dev/null || echo crti.o)"
    wanted=$(sed -n 's/^rust-version = "\([0-9.]*\)".*/\1/p' Cargo.toml)
    PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    # rustup has the name of cargo, and fails under it until there is a toolchain.
    if ! cargo --version >/dev/null 2>&1; then
        can_install rustup && need rustup=rustup ca-certificates=/etc/ssl/certs/ca-certificates.crt
        command -v rustup >/dev/null ||
            die "Rust $wanted or newer is missing; install it with rustup (Debian has it since 13: apt-get install rustup)"
        say "installing Rust by rustup"
        rustup default stable >&2 || die "rustup could not install Rust (rustup default stable)"
    fi
    have=$(rust_version)
    not_newer "$wanted" "$have" || die "Rust $wanted or newer is needed, this is $have (rustup update stable)"
}
rust_version() { cargo --version | sed 's/^cargo \([0-9.]*\).*/\1/'; }

# not_newer VERSION OTHER: is VERSION the older one, or the same?
not_newer() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

# has_target TRIPLE: can this toolchain build for it? rustup is asked to add what is missing.
has_target() {
    [ -d "$(rustc --print target-libdir --target "$1" 2>/dev/null)" ] && return
    command -v rustup >/dev/null && rustup -q target add "$1" >&2 &&
        [ -d "$(rustc --print target-libdir --target "$1" 2>/dev/null)" ]
}

# as_root COMMAND ...: runs it as root of namespaces of its own: no network, private mounts.
as_root() {
    local map=()
    [ "$(id -u)" = 0 ] || map=(--map-root-user)
    unshare "${map[@]}" --net --mount -- true 2>/dev/null ||
        die "cannot make namespaces: run it as root, or allow user namespaces (sysctl user.max_user_namespaces)"
    [ $# = 0 ] || unshare "${map[@]}" --net --mount -- "$@"
}

# place DIR FILE NAME ...: copies FILE to each NAME in DIR. The copies are separate files: an installer that writes into one
# of them, as "cp -f" does, leaves the others alone. All of them are on disk before the first one gets its name, so that a
# reader never sees half a file, nor does a crash or a full disk leave one.
place() (
    dir=$1 file=$2
    shift 2
    new=$(mktemp -d "$dir/.new.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    for name; do
        cp --reflink=auto "$file" "$new/$name"
        chmod "$([ -x "$file" ] && echo 755 || echo 644)" "$new/$name"
        sync "$new/$name"
    done
    for name; do mv -fT "$new/$name" "$dir/$name"; done
    sync "$dir"
)

# where_installed PREFIX: sets where ci/install puts things and ci/uninstall finds them.
# shellcheck disable=SC2034
where_installed() {
    dir=$(cd "$here" && realpath -m "${DESTDIR:+$DESTDIR/}$1")
    net_d=$(cd "$here" && realpath -m "${DESTDIR:-}/etc/cni/net.d") conflist=10-cni0.conflist
    record=$dir/.cni0 # files: sums and names of what is ours; made: directories; before/: what had our names
}

# sum_of FILE [CONTENT]: the line of FILE in the record, with what it or CONTENT holds.
sum_of() { printf '%s  %s\n' "$(sha256sum <"${2:-$1}" | cut -c -64)" "$1"; }

# is_ours FILE: is it as ci/install left it?
is_ours() { [ -f "$1" ] && [ ! -L "$1" ] && grep -qxF "$(sum_of "$1")" "$record/files" 2>/dev/null; }
