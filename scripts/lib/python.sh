# Sourced by the scripts. find_python sets $python to a Python >= 3.11 that can make environments, or exits with 3.

python_fits() {
    command -v "$1" >/dev/null 2>&1 || return
    "$1" -I -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for python in python3 python3.14 python3.13 python3.12 python3.11; do
        python_fits "$python" && return
    done
    # Debian ships the venv module apart; a fresh machine of continuous integration may lack it
    if [ "${CI-}" = true ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        { apt-get -q update && apt-get -q -y install --no-install-recommends python3-venv; } </dev/null >&2
        python=python3
        python_fits "$python" && return
    fi
    echo "dsh: needs Python 3.11 or newer with its venv module on PATH (on Debian: apt-get install python3-venv)" >&2
    exit 3
}
