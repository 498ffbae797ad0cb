"""The one-file program: its header against hostile places and moments, and the real file on a bare system."""

from __future__ import annotations

import ast
import hashlib
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.lib import onefile
from tests.shell.onefile_files import ROOT, OneFile, build, debootstrap, make_tiny, missing, mounted, once

pytestmark = pytest.mark.slow  # each test starts programs, some many times

as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root")


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[OneFile]:
    """A small program behind the real header."""
    (tmp_path / "file").mkdir()
    program = make_tiny(tmp_path / "file")
    yield program
    program.forget()


@pytest.fixture
def real(tmp_path_factory: pytest.TempPathFactory) -> OneFile:
    """The program itself."""
    return OneFile(once(tmp_path_factory, "onefile", build) / "dsh")


@pytest.fixture
def minimal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Debian with nothing but the essential packages."""
    if os.getuid() != 0:
        pytest.skip("needs root")
    try:
        return once(tmp_path_factory, "minimal", debootstrap)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        missing(f"no minimal Debian: {error}")
        raise


def leftovers(cache: Path) -> list[str]:
    """What lies beside unpacked folders."""
    return sorted(path.name for path in (cache / "dsh/app").glob("*.*"))


# The header: what passes through


def test_arguments_folder_and_output_pass_through(tiny: OneFile, tmp_path: Path) -> None:
    arguments = ["", "two words", "*", "$HOME", "new\nline", "--version", "-"]
    for _ in ("first start", "warm start"):
        done = tiny.run(*arguments, env={"XDG_CACHE_HOME": str(tmp_path / "cache")}, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert ast.literal_eval(done.stdout) == (str(tmp_path), arguments)


def test_stdin_passes_through_byte_for_byte(tiny: OneFile, tmp_path: Path) -> None:
    data = bytes(range(256)) * 1000
    for _ in ("first start", "warm start"):
        done = subprocess.run(
            [tiny.path, "cat"],
            input=data,
            env={"XDG_CACHE_HOME": str(tmp_path / "cache")},
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, data, b"")


@pytest.mark.parametrize("code", [0, 1, 6, 130, 255])
def test_exit_codes_pass_through(tiny: OneFile, tmp_path: Path, code: int) -> None:
    for _ in ("first start", "warm start"):
        assert tiny.run("exit", str(code), env={"XDG_CACHE_HOME": str(tmp_path)}).returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_program_takes_the_place_of_the_shell(tiny: OneFile, tmp_path: Path, number: signal.Signals) -> None:
    for _ in ("first start", "warm start"):
        process = tiny.start("wait", env={"XDG_CACHE_HOME": str(tmp_path)})
        assert process.stdout
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(number)
        process.communicate(timeout=20)
        assert process.returncode == -number


def test_started_by_every_kind_of_name(tiny: OneFile, tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/linked").symlink_to("../one")
    (tmp_path / "one").symlink_to("file/dsh")
    names = ["linked", "./one", "file/../one", f"{tmp_path}/bin/linked", "sh file/dsh", "cd file; sh dsh"]
    for command in (f"{name} x" for name in names):
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        assert "['x']" in done.stdout


# The header: where it unpacks


def test_home_unset_or_missing_goes_to_the_shared_folder(tiny: OneFile, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    folder = tiny.folder(Path(f"/var/tmp/dsh-{os.getuid()}"))
    for env in ({}, {"HOME": ""}, {"HOME": str(nowhere)}, {"XDG_CACHE_HOME": "relative"}):
        tiny.forget()
        for _ in ("first start", "warm start"):
            done = tiny.run(env=env, cwd="/")
            assert (done.returncode, done.stderr) == (0, ""), env
            assert (folder / "whole").exists()
    assert not nowhere.exists()
    assert not Path("/relative").exists()


def test_a_relative_cache_setting_is_ignored(tiny: OneFile, tmp_path: Path) -> None:
    # whatever the current folder holds
    tiny.run(env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    (tiny.folder(tmp_path / "cache") / "probe.py").unlink()
    for env in ({"XDG_CACHE_HOME": "cache"}, {"HOME": ".", "XDG_CACHE_HOME": "./cache"}):
        done = tiny.run(env=env, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / ".cache").exists()


def test_the_shared_folder_is_closed_to_others(tiny: OneFile) -> None:
    tiny.run()
    assert Path(f"/var/tmp/dsh-{os.getuid()}").stat().st_mode & 0o777 == 0o700


def test_a_home_is_used_when_there_is_no_cache_setting(tiny: OneFile, tmp_path: Path) -> None:
    assert tiny.run(env={"HOME": str(tmp_path)}).returncode == 0
    assert (tiny.folder(tmp_path / ".cache") / "whole").exists()


@as_root
def test_a_cache_of_somebody_else_is_not_used(tiny: OneFile, tmp_path: Path) -> None:
    # what root sees with the HOME of the user who called sudo
    cache, home = tmp_path / "cache", tmp_path / "person"
    env = {"XDG_CACHE_HOME": str(cache), "HOME": str(home)}
    home.mkdir()
    (cache / "dsh/app").mkdir(parents=True)
    os.chown(cache / "dsh/app", 12345, 12345)
    assert tiny.run(env=env).returncode == 0
    assert list((cache / "dsh/app").iterdir()) == [], "unpacked into it"
    # a ready one that would fail if it was started
    tiny.folder(home / ".cache").rename(tiny.folder(cache))
    (tiny.folder(cache) / "probe.py").unlink()
    os.chown(tiny.folder(cache), 12345, 12345)
    done = tiny.run(env=env)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_read_only_cache_is_passed_over(tiny: OneFile, tmp_path: Path) -> None:
    home = tmp_path / "person"
    home.mkdir()
    with mounted(tmp_path / "cache", "ro"):
        for _ in ("first start", "warm start"):
            done = tiny.run(env={"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(home)})
            assert (done.returncode, done.stderr) == (0, "")
    assert (tiny.folder(home / ".cache") / "whole").exists()


def test_a_cache_that_cannot_be_made_is_passed_over(tiny: OneFile, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    for _ in ("first start", "warm start"):
        done = tiny.run(env={"XDG_CACHE_HOME": str(tmp_path / "taken"), "HOME": str(tmp_path)})
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("place", ["home", "shared"])
def test_a_noexec_cache_is_passed_over_and_left_empty(tiny: OneFile, tmp_path: Path, place: str) -> None:
    cache = tmp_path / "cache"
    env = {"XDG_CACHE_HOME": str(cache), "HOME": str(tmp_path) if place == "home" else ""}
    with mounted(cache, "noexec"):
        for _ in ("first start", "warm start"):
            done = tiny.run(env=env)
            assert (done.returncode, done.stderr) == (0, "")
            assert not tiny.folder(cache).exists()
            assert leftovers(cache) == []
        changed = (cache / "dsh/app").stat().st_mtime_ns
        tiny.run(env=env)
        assert (cache / "dsh/app").stat().st_mtime_ns == changed, "a warm start tried to unpack"


def test_a_full_cache_is_passed_over_in_words_and_left_empty(tiny: OneFile, tmp_path: Path) -> None:
    cache, home = tmp_path / "cache", tmp_path / "person"
    home.mkdir()
    with mounted(cache, "nr_inodes=8"):
        done = tiny.run(env={"XDG_CACHE_HOME": str(cache), "HOME": str(home)})
        assert done.returncode == 0
        assert f"could not unpack into {cache}" in done.stderr
        assert leftovers(cache) == []
        assert tiny.run(env={"XDG_CACHE_HOME": str(cache), "HOME": str(home)}).stderr == ""


def in_private_tmp(tiny: OneFile, before: str) -> subprocess.CompletedProcess[str]:
    """Run it twice in an empty environment, /tmp and /var/tmp being empty but for what `before` does."""
    script = f"""
        mount -t tmpfs tmpfs /srv && mount -t tmpfs tmpfs /var/tmp && chmod 1777 /var/tmp || exit 99
        cp {shlex.quote(str(tiny.path))} /var/tmp/dsh || exit 99
        mount -t tmpfs tmpfs /tmp && chmod 1777 /tmp || exit 99
        cd /; {before}
        env -i /var/tmp/dsh one; env -i /var/tmp/dsh two
        code=$?; find /tmp /var/tmp -name whole; exit $code"""
    command = ["unshare", "-m", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.stderr.startswith("unshare:"):
        pytest.skip("no private mounts here (a container?)")
    return done


@as_root
@pytest.mark.parametrize(
    "before",
    [
        pytest.param("mkdir -m 777 /var/tmp/dsh-0; chown 12345 /var/tmp/dsh-0", id="belongs to somebody else"),
        pytest.param("mkdir -p /srv/mine; ln -s /srv/mine /var/tmp/dsh-0", id="link to a folder of ours"),
        pytest.param("ln -s /nowhere /var/tmp/dsh-0", id="dangling link"),
        pytest.param("touch /var/tmp/dsh-0", id="a file"),
    ],
)
def test_a_planted_shared_folder_is_not_used(tiny: OneFile, before: str) -> None:
    done = in_private_tmp(tiny, before)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "('/', ['one'])",
        "('/', ['two'])",
        f"/tmp/dsh-0/dsh/app/{tiny.hash}/whole",
    ]


@as_root
def test_a_ready_folder_behind_a_planted_link_is_not_started(tiny: OneFile) -> None:
    # everything in it is ours and complete, only the way to it is somebody else's
    before = """XDG_CACHE_HOME=/srv/c /var/tmp/dsh zero; rm /srv/c/dsh/app/*/probe.py
        ln -s /srv/c /var/tmp/dsh-0"""
    done = in_private_tmp(tiny, before)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"/tmp/dsh-0/dsh/app/{tiny.hash}/whole"


@as_root
def test_nowhere_to_unpack_is_said_in_one_line(tiny: OneFile) -> None:
    done = in_private_tmp(tiny, "mount -o remount,noexec /tmp; for d in /var/tmp; do touch $d/dsh-0; done")
    assert done.returncode == 3
    line = "dsh: found no folder that can be written and may run programs; set XDG_CACHE_HOME to one\n"
    assert done.stderr == line * 2
    assert done.stdout == ""


# The header: moments


def test_a_folder_that_a_cleaner_took_files_from_is_made_anew(tiny: OneFile, tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    tiny.run(env=env)
    folder = tiny.folder(tmp_path)
    (folder / "whole").unlink()
    (folder / "probe.py").unlink()
    done = tiny.run(env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "probe.py").exists()
    assert leftovers(tmp_path) == []


def test_the_mark_is_never_younger_than_any_other_file(tiny: OneFile, tmp_path: Path) -> None:
    # so a cleaner that removes by age takes the mark before or with the first file that is missed
    for _ in range(3):
        tiny.run(env={"XDG_CACHE_HOME": str(tmp_path)})
    folder = tiny.folder(tmp_path)
    mark = (folder / "whole").stat()
    for path in folder.rglob("*"):
        other = path.stat()
        assert mark.st_ctime_ns <= other.st_ctime_ns
        assert mark.st_mtime_ns <= other.st_mtime_ns
        assert mark.st_atime_ns <= other.st_atime_ns or path.is_dir()


def test_what_a_kill_left_is_removed_by_the_next_unpacking(tiny: OneFile, tmp_path: Path) -> None:
    left = tmp_path / "dsh/app" / f"{tiny.hash}.a1B2c3"
    left.mkdir(parents=True)
    (left / "whole").touch()
    assert tiny.run(env={"XDG_CACHE_HOME": str(tmp_path)}).returncode == 0
    assert leftovers(tmp_path) == []


def test_versions_that_nobody_starts_any_more_are_removed(tiny: OneFile, tmp_path: Path) -> None:
    long_ago = time.time() - 62 * 86400
    for name, when in (("0" * 20, long_ago), ("1" * 20, time.time())):
        python = tmp_path / "dsh/app" / name / "bin/python3.11"
        python.parent.mkdir(parents=True)
        python.touch()
        os.utime(python, (when, long_ago))
    tiny.run(env={"XDG_CACHE_HOME": str(tmp_path)})
    assert not (tmp_path / "dsh/app" / ("0" * 20)).exists()
    assert (tmp_path / "dsh/app" / ("1" * 20)).exists()


def test_two_versions_side_by_side(tiny: OneFile, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = make_tiny(tmp_path / "other")
    assert other.hash != tiny.hash
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    for program in (tiny, other, tiny, other):
        assert program.run(env=env).returncode == 0
    assert tiny.folder(tmp_path / "cache").exists()
    assert other.folder(tmp_path / "cache").exists()


def test_a_damaged_file_is_told_and_leaves_nothing(tiny: OneFile, tmp_path: Path) -> None:
    tiny.path.write_bytes(tiny.path.read_bytes()[:-100])
    done = tiny.run(env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert done.returncode == 3
    assert "this file is damaged" in done.stderr
    assert leftovers(tmp_path / "cache") == []
    assert not tiny.folder(tmp_path / "cache").exists()


@pytest.mark.parametrize("lock", ["flock", "no flock"])
def test_eight_first_starts_at_once(tiny: OneFile, tmp_path: Path, lock: str) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    names = ["chmod", "find", "gzip", "id", "mkdir", "mktemp", "mv", "rm", "sleep", "sync", "tail"]
    for name in [*names, "flock"] if lock == "flock" else names:
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    # a slow tar that counts
    (tools / "tar").write_text(f'#!/bin/sh\necho >>"{tmp_path}/count"\nsleep 0.2\nexec {shutil.which("tar")} "$@"\n')
    (tools / "tar").chmod(0o755)
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": str(tools)}
    running = [tiny.start(str(number), env=env) for number in range(8)]
    for number, process in enumerate(running):
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        assert f"['{number}']" in out
    assert leftovers(tmp_path / "cache") == []
    if lock == "flock":
        assert (tmp_path / "count").read_text() == "\n"
    # a broken folder heals on this way too
    (tiny.folder(tmp_path / "cache") / "whole").unlink()
    assert tiny.run(env=env).returncode == 0
    assert leftovers(tmp_path / "cache") == []


def test_the_same_inputs_give_the_same_archive(tmp_path: Path) -> None:
    for name, order in (("a", 1), ("b", -1)):
        for path in ("whole", "lib/x.py", "lib/y.py", "bin/python")[::order]:
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(path)
            os.utime(tmp_path / name / path, (order * 1000, 10**6 + order))
        (tmp_path / name / "lib/x.py").chmod(0o600 if order == 1 else 0o664)
    assert onefile.archive(tmp_path / "a") == onefile.archive(tmp_path / "b")


# The real file


@pytest.mark.slow
def test_real_version_without_any_environment(real: OneFile) -> None:
    from dsh import __version__

    real.forget()
    for _ in ("first start", "warm start"):
        done = real.run("--version")
        assert (done.returncode, done.stderr) == (0, "")
        assert __version__ in done.stdout
    # the only test that lets the real one go to the shared folder
    real.forget()


@pytest.mark.slow
def test_real_size(real: OneFile) -> None:
    assert real.path.stat().st_size <= 20_000_000


@pytest.mark.slow
def test_real_wrong_usage_and_help(real: OneFile, tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    assert real.run("--help", env=env).returncode == 0
    wrong = real.run("--no-such-option", env=env)
    assert (wrong.returncode, wrong.stdout) == (2, "")


@pytest.mark.slow
def test_real_start_costs_little_more_than_its_folder(real: OneFile, tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    real.run("--version", env=env)
    folder = real.folder(tmp_path)
    (python,) = (folder / "bin").iterdir()
    boot = next(folder.glob("lib*/python3*/site-packages/dsh/_boot.py"))
    ways = {
        "file": [str(real.path), "--version"],
        "folder": [str(python), *onefile.FLAGS.split(), str(boot), "--version"],
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(20):
        for name, command in ways.items():
            before = time.perf_counter()
            subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)
            times[name].append((time.perf_counter() - before) * 1000)
    file, bare = statistics.median(times["file"]), statistics.median(times["folder"])
    print(f"warm start: file {file:.1f} ms, folder {bare:.1f} ms")
    assert file - bare < 50


@pytest.mark.slow
def test_real_eight_first_starts_at_once(real: OneFile, tmp_path: Path) -> None:
    running = [real.start("--version", env={"XDG_CACHE_HOME": str(tmp_path)}) for _ in range(8)]
    for process in running:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")
        assert out
    assert leftovers(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["shell", "all"])
def test_real_first_start_killed_at_any_moment(real: OneFile, tmp_path: Path, whom: str) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    for delay in (0.002, 0.01, 0.05, 0.1, 0.2, 0.4):
        shutil.rmtree(real.folder(tmp_path), ignore_errors=True)
        process = real.start("--version", env=env, start_new_session=True)
        time.sleep(delay)
        if whom == "all":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.communicate()
        done = real.run("--version", env=env)
        assert (done.returncode, done.stderr) == (0, ""), delay
        assert done.stdout
    shutil.rmtree(real.folder(tmp_path))
    real.run("--version", env=env)
    assert leftovers(tmp_path) == []


@pytest.mark.slow
def test_real_first_start_terminated_leaves_nothing(real: OneFile, tmp_path: Path) -> None:
    process = real.start("--version", env={"XDG_CACHE_HOME": str(tmp_path)})
    while not list(tmp_path.glob("dsh/app/*.*/lib")):
        time.sleep(0.002)
    process.terminate()
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert leftovers(tmp_path) == []
    assert not real.folder(tmp_path).exists()


@pytest.mark.slow
def test_real_packages_work_and_no_start_writes_or_compiles(real: OneFile, tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    real.run("--version", env=env)
    folder = real.folder(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    compiled = [path for path in before if path.suffix == ".pyc"]
    assert len(compiled) > 300
    for path in compiled:
        with path.open("rb") as file:
            assert file.read(8)[4:] == b"\1\0\0\0", "checked against a source at every start"

    (python,) = (folder / "bin").iterdir()
    packages = next(folder.glob("lib*/python3*/site-packages"))
    program = f"""import sys; sys.path.append({str(packages)!r})
import bz2, ctypes, decimal, hashlib, json, lzma, ssl, uuid, zoneinfo
import apsw, apsw.ext, certifi, click, httpx, platformdirs, trio, zstandard
assert len(ssl.create_default_context(cafile=certifi.where()).get_ca_certs()) > 50
assert zstandard.decompress(zstandard.compress(b"x" * 999)) == b"x" * 999
db = apsw.Connection(":memory:"); db.execute("create virtual table t using fts5(x)").fetchall()
async def main(): return (await trio.run_process(["true"])).returncode
assert trio.run(main) == 0
with httpx.Client(): pass
print("ok")"""
    done = subprocess.run(
        [python, *onefile.FLAGS.split(), "-c", program], env={}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.slow
def test_real_names_the_command_that_starts_it_again(real: OneFile, tmp_path: Path) -> None:
    real.run("--version", env={"XDG_CACHE_HOME": str(tmp_path)})
    folder = real.folder(tmp_path)
    (python,) = (folder / "bin").iterdir()
    packages = next(folder.glob("lib*/python3*/site-packages"))
    # what the program does when it starts a child that is dsh again
    program = f"""import os, sys; sys.path.append({str(packages)!r}); os.environ["DSH_APP_ROOT"] = sys.prefix
from dsh._boot import command
os.execv(command()[0], [*command(), "--version"])"""
    done = subprocess.run(
        [python, *onefile.FLAGS.split(), "-c", program], env={}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, real.run("--version", env={"XDG_CACHE_HOME": str(tmp_path)}).stdout)


@pytest.mark.slow
def test_real_carries_a_working_pip(real: OneFile, tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    real.run("--version", env=env)
    folder = real.folder(tmp_path)
    (python,) = (folder / "bin").iterdir()
    # from a folder on this machine, so that no network is needed
    with zipfile.ZipFile(tmp_path / "thing-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
        wheel.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("thing-1.0.dist-info/RECORD", "")
    pip = [str(python), "-I", "-S", str(folder / "pip.whl/pip")]
    options = ["--no-index", "--find-links", str(tmp_path), "--dest", str(tmp_path / "got")]
    subprocess.run([*pip, "download", "-q", *options, "thing"], env=env, check=True)
    assert [path.name for path in (tmp_path / "got").iterdir()] == ["thing-1.0-py3-none-any.whl"]


@pytest.mark.slow
def test_real_on_a_minimal_debian_without_python(real: OneFile, minimal: Path) -> None:
    assert not list(minimal.glob("usr/bin/python*"))
    assert not list((minimal / "proc").iterdir()), "this is to work without /proc, too"
    place = minimal / "opt/a b"
    place.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(real.path, place / "dsh")
    (place / "dsh").chmod(0o755)
    for _ in ("first start", "warm start"):
        done = subprocess.run(
            ["/usr/sbin/chroot", minimal, "/opt/a b/dsh", "--version"],
            env={},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout
    shutil.rmtree(minimal / "var/tmp/dsh-0")


@pytest.mark.slow
def test_real_built_twice_is_the_same_file(real: OneFile, tmp_path: Path) -> None:
    build(tmp_path)
    started = real.path.with_name("started").stat().st_mtime
    if any(
        path.stat().st_mtime > started
        for path in (ROOT / "dsh").rglob("*.*")
        if path.is_file() and path.suffix != ".pyc"
    ):
        pytest.skip("dsh was edited between the two builds")
    first, second = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (real.path, tmp_path / "dsh"))
    assert first == second
