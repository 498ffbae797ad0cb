"""How a checkout and the one-file program start: dsh/_boot.py has put the folder above on the path and calls `main`.

Python's own `site` start-up costs 4 ms and reads files that belong to the user's other Pythons, so it is
left out (-I -S) and the folders that matter are put on the path here. Where this file lies tells which of
the two it is: a checkout has `scripts/dsh` beside the package and its packages in `.venv`; the one-file
program has everything in one site-packages folder. The program reads which it is from the environment:
DSH_CHECKOUT is the checkout's root, DSH_APP_ROOT the unpacked folder (with `pip.whl`); at most one is set.
"""

from __future__ import annotations

import os
import sys

FLAGS = ("-I", "-S", "-X", "utf8")
_PACKAGE = os.path.dirname(os.path.realpath(__file__))
_PARENT = os.path.dirname(_PACKAGE)
_LAUNCHER = os.path.join(_PARENT, "scripts", "dsh")


def command() -> list[str]:
    """The words that start this very program again, for child processes of our own; arguments follow."""
    if os.path.exists(_LAUNCHER):
        return [_LAUNCHER]
    if os.environ.get("DSH_APP_ROOT") == sys.prefix:
        return [sys.executable, *FLAGS, "-B", os.path.join(_PACKAGE, "_boot.py")]
    return [sys.executable, "-P", "-m", "dsh"]  # nothing is imported from the folder that we work in


def _same(one: str, other: str) -> bool:
    """Whether two files have the same bytes; a missing one is different."""
    try:
        with open(one, "rb") as a, open(other, "rb") as b:
            return a.read() == b.read()
    except OSError:
        return False


def _prepare_checkout() -> None:
    """Put the `.venv` of the checkout on the path, too; let the launcher renew a `.venv` that does not fit.

    The launcher knows only that there was a complete one. It does not fit when the lock file has changed
    since, or when the Python it was made for was replaced by a newer one under the same name.
    """
    environment = os.path.join(_PARENT, ".venv")
    major, minor = sys.version_info[:2]
    packages = os.path.join(environment, "lib", f"python{major}.{minor}", "site-packages")
    lock = "requirements.lock"
    fits = _same(os.path.join(_PARENT, lock), os.path.join(environment, lock)) and os.path.isdir(packages)
    if not fits and not os.environ.get("DSH_ENV_STALE"):
        os.environ["DSH_ENV_STALE"] = "1"
        os.execv("/bin/sh", ["/bin/sh", _LAUNCHER, *sys.argv[1:]])
    os.environ.pop("DSH_ENV_STALE", None)
    sys.path.append(packages)
    os.environ["DSH_CHECKOUT"] = _PARENT
    os.environ.pop("DSH_APP_ROOT", None)


def _prepare_app() -> None:
    """The packages are where dsh is."""
    os.environ["DSH_APP_ROOT"] = sys.prefix
    os.environ.pop("DSH_CHECKOUT", None)
    # set by the header where /proc is missing; not for child processes
    os.environ.pop("LD_ORIGIN_PATH", None)


def main() -> None:
    """Prepare the path and run the program; does not return."""
    if os.path.exists(_LAUNCHER):
        _prepare_checkout()
    else:
        _prepare_app()
    from dsh.cli.main import run

    run()
