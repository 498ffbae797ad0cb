"""Make or renew the checkout's own environments: `env.py runtime` (.venv) or `env.py dev` (.venv-dev).

Each holds what its lock file names, installed with hashes. A copy of the lock file is written into the
environment as the very last step, so an environment without one is unfinished and is made anew. A file lock
that the installing child processes share serialises concurrent first uses: when this process is killed, the
lock lasts until its pip is gone too. Runs on any Python >= 3.11 with the standard library only; writes to
stderr only.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
KINDS = {
    "runtime": (ROOT / ".venv", ROOT / "requirements.lock"),
    "dev": (ROOT / ".venv-dev", ROOT / "requirements-dev.lock"),
}
EXIT_NOT_CONFIGURED = 3


def say(text: str) -> None:
    """One progress line."""
    print(f"dsh: {text}", file=sys.stderr, flush=True)


class Environment:
    """One environment folder and the lock file that it follows."""

    def __init__(self, folder: Path, lock: Path) -> None:
        self.folder = folder
        self.lock = lock
        self.python = folder / "bin" / "python"
        self.marker = folder / lock.name

    def complete(self) -> bool:
        """Whether it was finished once and its interpreter is still the one it was made for."""
        if not self.marker.exists() or not os.access(self.python, os.X_OK):
            return False
        ask = "import sys; print(f'python{sys.version_info[0]}.{sys.version_info[1]}')"
        answer = subprocess.run([self.python, "-I", "-S", "-c", ask], capture_output=True, text=True, check=False)
        name = answer.stdout.strip()
        return answer.returncode == 0 and (self.folder / "lib" / name / "site-packages").is_dir()

    def fits(self) -> bool:
        """Whether it is complete and follows the lock file as it is now."""
        return self.complete() and self.marker.read_bytes() == self.lock.read_bytes()

    def make(self, shared: int) -> None:
        """Create it from nothing. `shared` is the lock's descriptor."""
        say(f"first use: making {self.folder.name} with Python {sys.version.split()[0]}")
        shutil.rmtree(self.folder, ignore_errors=True)
        subprocess.run([sys.executable, "-I", "-m", "venv", self.folder], check=True, pass_fds=[shared])
        self.install(shared)

    def install(self, shared: int) -> None:
        """Bring its packages to what the lock file says, then mark it finished."""
        wanted = self.lock.read_bytes()
        self.marker.unlink(missing_ok=True)
        say(f"installing the packages of {self.lock.name}")
        pip = [str(self.python), "-I", "-m", "pip", "-qq", "--disable-pip-version-check", "--no-input"]
        if not Path(os.environ.get("HOME") or "/nonexistent").is_dir():
            pip.append("--no-cache-dir")
        # the lock is complete: nothing is left to resolve
        job = ["install", "--require-hashes", "--no-deps", "--no-warn-script-location", "-r", str(self.lock)]
        subprocess.run([*pip, *job], check=True, pass_fds=[shared])
        unfinished = self.marker.with_suffix(".new")
        unfinished.write_bytes(wanted)
        unfinished.replace(self.marker)

    def bring_up(self) -> None:
        """Make it fit; waits while another process is at it."""
        with self.folder.with_name(self.folder.name + ".lock").open("w") as shared:
            try:
                fcntl.flock(shared, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"waiting for another process that prepares {self.folder.name}")
                fcntl.flock(shared, fcntl.LOCK_EX)
            if self.fits():
                return
            if self.complete():
                try:
                    self.install(shared.fileno())
                except subprocess.CalledProcessError:
                    say("that failed; trying from scratch")
                else:
                    return
            self.make(shared.fileno())


def main(arguments: list[str]) -> int:
    """Exit code 0 when the environment fits, 3 when it cannot be made, 130 when interrupted."""
    environment = Environment(*KINDS[arguments[0]])
    try:
        environment.bring_up()
    except subprocess.CalledProcessError as error:
        say(f"could not make {environment.folder} ({' '.join(map(str, error.cmd[:4]))} failed); see above")
        return EXIT_NOT_CONFIGURED
    except OSError as error:
        say(f"could not make {environment.folder}: {error}")
        return EXIT_NOT_CONFIGURED
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
