# What the scripts share: sourced, not run. Sets `root` (the checkout) and enters it.
# shellcheck shell=bash
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
fail() { say "$*"; exit 1; }

# Prints the comment at the top of the running script, without its first line.
usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }

# The user that a sandbox started by root drops to.
guest=65534
as_guest() { setpriv --reuid=$guest --regid=$guest --clear-groups -- "$@"; }

# The directory for what a sandboxed kernel must reach: the checkout, unless root has it where
# an unprivileged user cannot go.
shared_place() {
    if [ "$(id -u)" -ne 0 ] || as_guest test -x "$root" 2>/dev/null; then
        printf '%s\n' "$root"
        return
    fi
    local place
    place=/var/tmp/ipybox-$(printf '%s' "$root" | cksum | cut -d' ' -f1)
    [ -d "$place" ] || mkdir -m 0755 "$place"
    [ "$(stat -c %u "$place")" -eq 0 ] || fail "$place belongs to another user: remove it"
    printf '%s\n' "$place"
}

# The interpreter for kernels, by its real path: a sandbox sees no links into the checkout.
kernel_python() { printf '%s/bin/python\n' "$(readlink -f .venv)"; }

# The oldest supported clang++ of this machine; clang++, and failure, without one.
clang_versions='16 17 18 19'
clangxx() {
    local version
    for version in $clang_versions; do
        if command -v "clang++-$version"; then return; fi
    done
    echo clang++
    return 1
}

# The version that meson.build has.
project_version() { sed -n "s/^  version: '\([0-9.]*\)',$/\1/p" meson.build; }

# The version of Boost's headers here, such as 1.83; nothing without any.
boost_version() {
    sed -n 's/^#define BOOST_LIB_VERSION "\([0-9]*\)_\([0-9]*\).*/\1.\2/p' \
        /usr/include/boost/version.hpp 2>/dev/null || true
}

# The files of the project: what git would take, or all but what .gitignore names.
project_files() {
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files --cached --others --exclude-standard -- "$@" | while read -r name; do
            [ ! -f "$name" ] || printf '%s\n' "$name"
        done
    else
        local name
        for name in "$@"; do
            find . -path './build*' -prune -o -path './dist' -prune -o -path './.venv*' -prune -o -path './subprojects/*/*' -prune \
                -o -path './node_modules' -prune -o -type f -name "${name##*/}" -printf '%P\n'
        done
    fi
}

# ninja, and again when not the code but the compiler failed: g++ 12 crashes now and then.
run_ninja() {
    local log status=1 attempt
    log=$(mktemp)
    for attempt in 1 2 3; do
        if ninja "$@" 2>&1 | tee "$log"; then status=0; break; fi
        grep --quiet 'internal compiler error' "$log" || break
        say "the compiler crashed (attempt $attempt of 3)"
    done
    rm --force "$log"
    return $status
}

# Objects compiled in one build directory serve in the others.
export CCACHE_NOHASHDIR=1
