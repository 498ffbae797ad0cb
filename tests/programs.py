"""Programs of others that tests drive and that pip has: installed once, as the developer configured pip.

They lie in `${XDG_CACHE_HOME:-~/.cache}/dsh-tests/NAME`, so only the first run downloads them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local_model import REAL_ENVIRONMENT

_CACHE = Path(REAL_ENVIRONMENT["XDG_CACHE_HOME"] or Path.home() / ".cache") / "dsh-tests"


def installed(name: str, wanted: str) -> Path:
    """The program NAME of the package that `wanted` asks for. Where it cannot be installed the test skips, in CI it
    fails."""
    folder = _CACHE / name
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "venv" / "bin" / name
    done = folder / "done"
    stamp = f"{wanted} {sys.version}"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists() and done.read_text() == stamp and program.exists():
            return program
        shutil.rmtree(folder / "venv", ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        pip = [str(folder / "venv" / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check", "install"]
        made = subprocess.run(
            [*pip, wanted], env=_real_environment(), capture_output=True, text=True, check=False, timeout=600
        )
        if made.returncode != 0:
            if os.environ.get("CI"):
                pytest.fail(made.stderr)
            pytest.skip(f"{name} cannot be installed here")
        done.write_text(stamp)
    return program


def _real_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in REAL_ENVIRONMENT}
    return kept | {name: value for name, value in REAL_ENVIRONMENT.items() if value is not None}
