#!/bin/sh
# Makes .venv and installs lattice into it. POSIX sh; called by the Makefile.
#
#   venv.sh extra      print the extra that fits this machine (empty on macOS)
#   venv.sh run|dev    make .venv when missing, install lattice (dev: and the tools of tests and checks)
#
# PYTHON overrides the interpreter, EXTRA the extra, VENV the folder.
set -eu

venv=${VENV:-.venv}

fail() {
    printf 'error: %s\n\nhint: %s\n' "$1" "$2" >&2
    exit 3
}

# The extra names the back end: mlx on Linux is only the Python layer without one.
choose_extra() {
    [ "$(uname -s)" = Linux ] || return 0
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 | cut -d. -f1) || driver=
    case $driver in
        '' | *[!0-9]*) echo cpu ;;
        *) if [ "$driver" -ge 580 ]; then echo cuda13; elif [ "$driver" -ge 550 ]; then echo cuda12; else echo cpu; fi ;;
    esac
}

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

choose_python() {
    if [ -n "${PYTHON:-}" ]; then
        new_enough "$PYTHON" || fail "\`$PYTHON\` is no Python 3.11 or newer" "make PYTHON=/path/to/python3.13 ..."
        return 0
    fi
    for PYTHON in python3 python3.13 python3.12 python3.11; do
        new_enough "$PYTHON" && return 0
    done
    found=$(python3 -V 2>/dev/null) || found='no python3'
    fail "lattice needs Python 3.11 or newer, and here is $found" \
        "install one (Debian, Ubuntu: \`sudo apt install python3 python3-venv\`; macOS: \`brew install python\`) or \`make PYTHON=/path/to/python3.13 ...\`"
}

check_python() {
    "$PYTHON" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
        fail "$("$PYTHON" -V) cannot make virtual environments: its \`venv\` module is missing" \
            "\`sudo apt install python3-venv\` (Debian, Ubuntu), or \`make PYTHON=/path/to/python3.13 ...\`"
    if [ "$(sysctl -n hw.optional.arm64 2>/dev/null)" = 1 ] &&
        [ "$("$PYTHON" -c 'import platform; print(platform.machine())')" = x86_64 ]; then
        fail "\`$PYTHON\` is an Intel Python on an Apple-silicon Mac, and MLX has no package for it" \
            "install an arm64 Python (\`arch -arm64 brew install python\`) and \`make clean\`"
    fi
}

# Whether $venv runs and holds no other extra than $1: two back ends in one environment break each other.
usable() {
    "$venv/bin/python" -c '' 2>/dev/null || return 1
    for stamp in "$venv"/.run-*; do
        [ ! -e "$stamp" ] || [ "$stamp" = "$venv/.run-$1" ] || return 1
    done
}

install() {
    extra=${EXTRA-$(choose_extra)}
    wanted=$(printf '%s' "$extra,$1" | sed 's/run$//; s/^,//; s/,$//')
    usable "$extra" || {
        choose_python
        check_python
        echo "making $venv with $("$PYTHON" -V)${extra:+ and the extra \`$extra\`}; this downloads some hundred megabytes, once" >&2
        "$PYTHON" -m venv --clear "$venv"
    }
    quiet=-q
    [ -t 2 ] && quiet=
    "$venv/bin/python" -m pip install $quiet --disable-pip-version-check -e ".${wanted:+[$wanted]}" >&2
    touch "$venv/.run-$extra"
    [ "$1" = run ] || touch "$venv/.dev-$extra"
}

case ${1:-} in
    extra) choose_extra ;;
    run | dev) install "$1" ;;
    *) fail "usage: venv.sh extra|run|dev" "see the Makefile" ;;
esac
