# Sourced by the scripts. find_python sets $python to a Python >= 3.11 that can make environments, or exits with 3.

# 0: it fits; 2: it does, but was built without profile-guided optimisation, as version managers do unless told, and dsh
# starts a fifth more slowly under it; anything else: it does not. Distributions optimise without a word in CONFIG_ARGS.
python_fits() {
    command -v "$1" >/dev/null 2>&1 || return 1
    "$1" -I -c '
import sys, sysconfig, venv, ensurepip
optimised = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "--enable-optimizations")
sys.exit(1 if sys.version_info < (3, 11) else 0 if optimised or sys.base_prefix == "/usr" else 2)' >/dev/null 2>&1
}

find_python() {
    slow=
    for python in python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do
        # the system's own may stand behind another python3, but only where PATH lets it be found at all
        case $python in /*) case ":$PATH:" in *":${python%/*}:"*) ;; *) continue ;; esac ;; esac
        fits=0
        python_fits "$python" || fits=$?  # whoever sources this may end at the first failure
        case $fits in
            0) return ;;
            2) slow=${slow:-$python} ;;
        esac
    done
    if [ -n "$slow" ]; then
        python=$slow
        return
    fi
    # Debian ships the venv module apart; a fresh machine of continuous integration may lack it
    if [ "${CI-}" = true ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        { apt-get -q update && apt-get -q -y install --no-install-recommends python3-venv; } </dev/null >&2
        python=python3
        python_fits "$python" && return
    fi
    echo "dsh: needs Python 3.11 or newer with its venv module on PATH (on Debian: apt-get install python3-venv)" >&2
    exit 3
}
