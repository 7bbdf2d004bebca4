# shellcheck shell=bash
# What the commands in ci/ share. Sourced, not run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck disable=SC2034  # for those who source this
plugins=(bridge host-local loopback)

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
[ -t 2 ] || say() { printf '==> %s\n' "$*" >&2; }
die() { printf '%s: %s\n' "ci/$(basename "$0")" "$*" >&2; exit 1; }

# need PACKAGE=COMMAND ...: installs the Debian packages whose command (a name or a path) is missing.
need() {
    local pair missing=()
    for pair; do
        command -v "${pair#*=}" >/dev/null || [ -e "${pair#*=}" ] || missing+=("${pair%%=*}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        die "missing: ${missing[*]} (on Debian: apt-get install ${missing[*]})"
    fi
    say "installing ${missing[*]}"
    apt-get -q update >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends "${missing[@]}" >/dev/null
}

# need_rust: cargo of at least the workspace's rust-version, and a linker.
need_rust() {
    local wanted have
    need gcc=cc
    if ! command -v cargo >/dev/null && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
    fi
    wanted=$(sed -n 's/^rust-version = "\([0-9.]*\)".*/\1/p' Cargo.toml)
    if ! command -v cargo >/dev/null; then
        need rustup=rustup # Debian 13 has it
        rustup default stable >&2
    fi
    have=$(cargo --version | sed 's/^cargo \([0-9.]*\).*/\1/')
    [ "$(printf '%s\n' "$wanted" "$have" | sort -V | head -n 1)" = "$wanted" ] ||
        die "Rust $wanted is needed, this is $have (rustup update stable)"
}

# has_target TRIPLE: can this toolchain build for it? rustup is asked to add what is missing.
has_target() {
    [ -d "$(rustc --print target-libdir --target "$1" 2>/dev/null)" ] && return
    command -v rustup >/dev/null && rustup target add "$1" >&2 2>/dev/null &&
        [ -d "$(rustc --print target-libdir --target "$1" 2>/dev/null)" ]
}

# as_root COMMAND ...: runs it as root of namespaces of its own: no network, private mounts.
as_root() {
    local map=()
    [ "$(id -u)" = 0 ] || map=(--map-root-user)
    unshare "${map[@]}" --net --mount -- "$@"
}
