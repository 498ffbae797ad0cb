"""What the tests of the one-file program share: the real file, a tiny one, a minimal Debian.

The tiny file has the real header in front of an archive that holds a few lines of Python (run by the Python
of the tests) instead of the 900 files, so that what the header does can be tried in milliseconds. The real
file and the minimal Debian are made once per test run, also with several workers.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.lib import onefile

ROOT = Path(__file__).resolve().parent.parent.parent
# every test has a home of its own; what pip has fetched before is kept all the same
PIP_CACHE = {"PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR") or str(Path.home() / ".cache/pip")}
IN_CI = os.environ.get("CI") == "true"

# Says what it was given; commands: cat (stdin to stdout), exit N, wait (until a signal comes).
PROBE = """
import os, signal, sys
arguments = sys.argv[1:]
if arguments[:1] == ["cat"]:
    sys.stdout.buffer.write(sys.stdin.buffer.read())
elif arguments[:1] == ["exit"]:
    sys.exit(int(arguments[1]))
elif arguments[:1] == ["wait"]:
    print(os.getpid(), flush=True)
    signal.pause()
else:
    print(repr((os.getcwd(), arguments)))
"""


def missing(what: str) -> None:
    """Skip, or fail where everything has to be there."""
    if IN_CI:
        pytest.fail(what)
    pytest.skip(what)


class OneFile:
    """A one-file program and where it unpacks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_bytes()[:8000].decode("utf-8", "replace")
        found = re.search(r"dsh/app/([0-9a-f]{20})", text)
        assert found
        self.hash = found.group(1)

    def folder(self, cache: Path) -> Path:
        """The unpacked folder in a cache folder."""
        return cache / "dsh/app" / self.hash

    def run(self, *arguments: str, env: dict[str, str] | None = None, **more) -> subprocess.CompletedProcess[str]:
        """Run it with nothing but `env` in the environment."""
        return subprocess.run(
            [self.path, *arguments],
            env=env or {},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **more,
        )

    def start(self, *arguments: str, env: dict[str, str] | None = None, **more) -> subprocess.Popen[str]:
        """Start it with pipes."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([self.path, *arguments], env=env or {}, text=True, **{**pipes, **more})

    def forget(self) -> None:
        """Remove it from the folders that are not the test's own."""
        for shared in ("/var/tmp", "/tmp"):
            for path in Path(f"{shared}/dsh-{os.getuid()}/dsh/app").glob(f"{self.hash}*"):
                shutil.rmtree(path)


def make_tiny(folder: Path) -> OneFile:
    """A one-file program in `folder` whose contents differ from every other one's."""
    stage = folder / "stage"
    (stage / "bin").mkdir(parents=True)
    (stage / "whole").touch()
    (stage / "id").write_text(str(folder))
    (stage / "probe.py").write_text(PROBE)
    python = onefile.Interpreter(sys.executable)
    # the words before the arguments are the interpreter's options and the boot file
    skip = len(onefile.FLAGS.split()) + 1
    launcher = stage / "bin" / python.name
    launcher.write_text(
        f'#!/bin/sh\nshift {skip}\nexec "{Path(sys.executable).resolve()}" -I -S "${{0%/bin/*}}/probe.py" "$@"\n'
    )
    launcher.chmod(0o755)
    payload = onefile.archive(stage)
    shutil.rmtree(stage)
    path = folder / "dsh"
    path.write_bytes(onefile.header(payload, python) + payload)
    path.chmod(0o755)
    return OneFile(path)


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that the first worker to ask makes and all workers of this run use."""
    base = factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        base = base.parent
    folder, done = base / name, base / f"{name}.done"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


def build(folder: Path) -> None:
    """Build the real one as `folder/dsh`; `folder/started` tells when."""
    (folder / "started").touch()
    subprocess.run([ROOT / "scripts/build", "-o", folder / "dsh"], check=True, env={**os.environ, **PIP_CACHE})


def debootstrap(folder: Path) -> None:
    """A minimal Debian of this machine's release, from where this machine's packages come."""
    where = ["apt-get", "indextargets", "--format", "$(SITE)"]
    site = subprocess.run(where, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    release = dict(re.findall(r"^(\w+)=\"?(.*?)\"?$", Path("/etc/os-release").read_text(), re.MULTILINE))
    command = ["debootstrap", "--variant=minbase", release["VERSION_CODENAME"], str(folder), site]
    environment = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
    with tempfile.TemporaryFile("w+") as log:
        if subprocess.run(command, stdout=log, stderr=log, env=environment, check=False).returncode:
            log.seek(0)
            raise RuntimeError("debootstrap failed: " + log.read()[-2000:])


@contextmanager
def mounted(where: Path, options: str) -> Iterator[None]:
    """A small memory file system at `where`; skips for people who may not mount."""
    where.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size=100m,{options}", "tmpfs", str(where)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root may mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", where], check=True)
