"""`dsh sync` as a person uses it: folders, databases, another machine's dsh behind a shell, and what goes wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dsh.cli.main import main
from dsh.query.check import check
from dsh.session.jsonl import header_line
from dsh.session.sync.here import Here
from dsh.session.sync.model import key_of
from dsh.store import writes
from dsh.store.database import Database
from tests.cli.conftest import DSH, ROOT, Run
from tests.history import History, call, text


@pytest.fixture
def talk(history: History) -> History:
    """Three sessions, one of them a fork."""
    history.session("talk", cwd="/w")
    history.turn("talk", 1, "look", text("well"), call("c", "bash", "{}"), results={"c": "out"})
    history.fork("child", "talk")
    history.turn("child", 2, "go on", text("yes"))
    history.say("a/b 修改", "hi")
    return history


def sync(capsys: pytest.CaptureFixture[str], *arguments: str, db: Path | None = None) -> tuple[int, list[str], str]:
    code = main([*([] if db is None else ["--db", str(db)]), "sync", *arguments])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err


def logs(path: Path) -> dict[str, list[Any]]:
    """Every log, and the database is sound."""
    db = Database.open(path, create=False)
    try:
        names = [str(name) for (name,) in db.rows("SELECT id FROM session")]
        assert [violation for name in names for violation in check(db, name)] == []
        columns = "seq, type, time, data, source_event_seqs, surface_op"
        return {n: db.rows(f"SELECT {columns} FROM event WHERE session_id = ? ORDER BY seq", (n,)) for n in names}
    finally:
        db.close()


# ------------------------------------------------------------------------------------------------------------ targets


@pytest.mark.rule("PE-88", "PE-91")
def test_a_folder(talk: History, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    share, other = tmp_path / "share", tmp_path / "other.db"
    assert sync(capsys, "push", str(share), "--dry-run")[2] == "dsh: would have pushed 3 (3 new)\n"
    assert not share.exists()
    code, out, err = sync(capsys, "push", str(share))
    assert (code, err) == (0, "dsh: pushed 3 (3 new)\n")
    assert sorted(out) == ["pushed\tnew\ta/b 修改\t8", "pushed\tnew\tchild\t18", "pushed\tnew\ttalk\t10"]
    files = [path for path in share.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == {"talk", "child", key_of("a/b 修改")}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    code, out, err = sync(capsys, str(share), db=other)
    assert (code, len(out), err) == (0, 3, "dsh: pulled 3 (3 new); pushed 0, 3 there already\n")
    assert logs(other) == logs(talk.path)
    talk.turn("child", 3, "more", text("yes"))
    code, out, err = sync(capsys, str(share))
    assert (out, err) == (
        ["pushed\tgrown\tchild\t26"], "dsh: pulled 0, 3 there already; pushed 1 (1 grown), 2 there already\n",
    )  # fmt: skip
    assert [path.name.split("-")[0] for path in (share / "child").iterdir()] == ["26"]
    code, out, err = sync(capsys, "pull", str(share), "--json", db=other)
    assert [json.loads(line) for line in out] == [
        {"way": "pulled", "kind": "grown", "id": "child", "events": 8},
        {
            "total": True, "dryRun": False, "pulled": {"new": 0, "grown": 1, "diverged": 0, "sent": 0, "known": 2,
            "deleted": 0, "failed": 0},
        },
    ]  # fmt: skip
    assert logs(other) == logs(talk.path)


def test_another_database(talk: History, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    assert sync(capsys, "push", str(other), "--dry-run")[2] == "dsh: would have pushed 3 (3 new)\n"
    assert not other.exists()
    assert sync(capsys, str(other))[2] == "dsh: pulled 0; pushed 3 (3 new)\n"
    assert logs(other) == logs(talk.path)
    db = Database.open(other)
    assert db.rows("SELECT count(*) FROM search WHERE search MATCH 'look'") == [(1,)]  # it is indexed there
    db.close()
    other.chmod(0o400)
    talk.say("new", "hi")
    assert sync(capsys, "pull", str(other))[2] == "dsh: pulled 0, 3 there already\n"


def test_what_diverged_is_told(talk: History, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = History(tmp_path / "other.db")
    try:
        assert sync(capsys, "push", str(other.path))[0] == 0
        other._seq["talk"] = talk._seq["talk"]
        other.turn("talk", 2, "there", text("yes"))
        talk.turn("talk", 2, "here", text("yes"))
        code, out, err = sync(capsys, str(other.path))
        assert code == 0
        [pulled, pushed] = [line.split("\t") for line in out]
        assert pulled[:2] == ["pulled", "diverged"]
        assert pushed[:2] == ["pushed", "diverged"]
        assert err.splitlines()[:2] == [
            f"dsh: talk went on in two places; the other log is now {pulled[2]}",
            f"dsh: talk went on in two places; the other log is now {pushed[2]}",
        ]
        assert sync(capsys, str(other.path))[1] == []
    finally:
        other.db.close()
    mine, theirs = logs(talk.path), logs(other.path)
    assert mine["talk"] == theirs[pushed[2]]
    assert theirs["talk"] == mine[pulled[2]]
    assert "SELECT" not in err


@pytest.mark.rule("PE-92")
def test_what_was_deleted_there_is_not_asked_for(talk: History, tmp_path: Path, capsys: Any) -> None:
    """--deleted is about this database, not about the one that is given to."""
    other = tmp_path / "other.db"
    sync(capsys, "push", str(other))
    db = Database.open(other)
    writes.delete_session(db, "child")
    db.close()
    assert sync(capsys, "push", str(other), "--deleted")[2] == "dsh: pushed 0, 2 there already, 1 deleted there\n"
    assert set(logs(other)) == {"talk", "a/b 修改"}


@pytest.mark.rule("PE-92")
def test_what_was_deleted_here(talk: History, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    share = str(tmp_path / "share")
    sync(capsys, "push", share)
    writes.delete_session(talk.db, "child")
    assert sync(capsys, share)[2] == "dsh: pulled 0, 2 there already, 1 deleted here; pushed 0, 2 there already\n"
    assert sync(capsys, share, "--deleted")[1] == ["pulled\tnew\tchild\t18"]
    assert talk.db.rows("SELECT owner_id FROM lineage WHERE session_id = 'child' ORDER BY 1") == [("child",), ("talk",)]


SSH = """#!/bin/sh
# stands for ssh: runs the command of its last argument here, on another database
[ "$1" = -T ] && [ "$2" = machine ] || exit 255
echo "Welcome to machine"
echo "a notice" >&2
exec sh -c "$3"
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command `ssh`, and a command `dsh` that only it finds; returns the other machine's database."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(SSH)
    (folder / "dsh").write_text(f'#!/bin/sh\ncd / && PYTHONPATH={ROOT} exec {sys.executable} -m dsh "$@"\n')
    for name in ("ssh", "dsh"):
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "it's there.db"


def test_another_machine_gets_everything(talk: History, ssh: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sync", f"machine:{ssh}"]) == 0
    out, err = capfd.readouterr()
    assert sorted(line.split("\t")[1] for line in out.splitlines()) == ["new"] * 3
    assert err.endswith("dsh: pulled 0; pushed 3 (3 new)\n")
    assert logs(ssh) == logs(talk.path)


@pytest.mark.slow
def test_another_machine(talk: History, ssh: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = f"machine:{ssh}"
    assert main(["sync", "push", target, "--dry-run"]) == 0
    assert "would have pushed 3 (3 sent)" in capfd.readouterr().err
    assert main(["sync", target]) == 0
    out, err = capfd.readouterr()
    assert sorted(line.split("\t")[1] for line in out.splitlines()) == ["new"] * 3
    assert err.endswith("dsh: pulled 0; pushed 3 (3 new)\n")
    assert "Welcome" not in out
    assert logs(ssh) == logs(talk.path)
    db = Database.open(ssh)
    assert db.rows("SELECT count(*) FROM search WHERE search MATCH 'look'") == [(1,)]
    db.rows("DELETE FROM session WHERE id = 'child'")
    db.close()
    talk.turn("talk", 2, "more", text("yes" * 1_000_000))
    assert main(["sync", "push", target]) == 0
    assert capfd.readouterr().out == "pushed\tgrown\ttalk\t8\n"
    there = History(ssh)
    there._seq["talk"] = 18
    there.turn("talk", 3, "and there", text("yes" * 500_000))
    there.db.close()
    assert main(["sync", f"ssh:{target}"]) == 0
    out, err = capfd.readouterr()
    assert out == "pulled\tgrown\ttalk\t8\n"
    assert "1 deleted there" in err
    mine = logs(talk.path)
    assert {name: log for name, log in mine.items() if name != "child"} == logs(ssh)


SERVER = """
import json, sys
print('{"dsh-sync":1}', flush=True)
offer = None
for line in sys.stdin:
    said = json.loads(line)
    if said.get("op") == "close":
        break
    elif said.get("op") == "list":
        print('{"end":true}', flush=True)
    elif said.get("id"):
        offer = said
        if said.get("op") == "put":
            print('{"ok":true}', flush=True)
            while int(json.loads(sys.stdin.buffer.readline())["bytes"]):
                pass
    elif "end" in said:
        print(json.dumps({**offer, **EXTRA}))
        print('{"end":true}', flush=True)
"""


def test_a_machine_that_asks_for_what_was_not_offered_gets_nothing(
    talk: History, ssh: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for extra in ('{"id":"x"}', '{"length":1000}', '{"key":"other"}'):
        (ssh.parent / "serve.py").write_text(SERVER.replace("EXTRA", extra))
        assert main(["sync", "push", "machine:", "--dsh", f"{sys.executable} '{ssh.parent}/serve.py';"]) == 1
        out, err = capfd.readouterr()
        assert out == ""  # nothing was sent
        assert "dsh: the connection ended\n" in err
        assert "internal error" not in err


@pytest.mark.slow
def test_a_real_ssh_server(talk: History, ssh: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where an ssh server is installed, and may be started."""
    places = os.pathsep.join([os.environ["PATH"].split(os.pathsep, 1)[1], "/usr/sbin", "/usr/local/sbin"])
    server, client, keygen = (shutil.which(name, path=places) for name in ("sshd", "ssh", "ssh-keygen"))
    if server is None or client is None or keygen is None:
        pytest.skip("no ssh server here")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path / "ssh"
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        f"PidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\n"
        f"SetEnv PATH={ssh.parent}/bin:/usr/bin:/bin\n"
    )
    (folder / "config").write_text(
        f"Host machine\n HostName 127.0.0.1\n Port {port}\n IdentityFile {folder}/user\n"
        f" UserKnownHostsFile {folder}/known\n StrictHostKeyChecking accept-new\n LogLevel ERROR\n BatchMode yes\n"
    )
    (ssh.parent / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {client} -F {folder}/config "$@"\n')
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with subprocess.Popen([server, "-D", "-e", "-f", folder / "sshd_config"], stderr=subprocess.PIPE) as daemon:
        try:
            for _ in range(100):
                with socket.socket() as probe:
                    if daemon.poll() is not None or probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            if daemon.poll() is not None:
                pytest.skip(f"sshd does not start here: {daemon.stderr.read().decode() if daemon.stderr else ''}")
            assert main(["sync", f"machine:{ssh}"]) == 0, capfd.readouterr()
            there = History(ssh)
            there._seq["talk"] = talk._seq["talk"]
            there.turn("talk", 2, "there", text("yes" * 500_000))
            there.db.close()
            assert main(["sync", f"ssh:machine:{ssh}"]) == 0, capfd.readouterr()
            assert logs(ssh) == logs(talk.path)
            assert main(["sync", "machine:", "--dsh", "nosuch"]) == 1
        finally:
            daemon.terminate()
    assert "pulled\tgrown\ttalk\t8\n" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "no dsh answers: ssh -T machine dsh sync serve"),
        (("--dsh", "echo hello;"), "no dsh answers: ssh -T machine echo hello; sync serve"),
        (("--dsh", """echo '{"dsh-sync":99}';"""), "the other dsh speaks version 99 of the protocol, this one 1"),
        (("--dsh", """echo '{"dsh-sync":1}';"""), "the connection"),
        (("--dsh", """echo '{"dsh-sync":1}'; cat;"""), "what came over the connection is no session"),
        (("--dsh", """echo '{"dsh-sync":1}{}';"""), "no dsh answers"),
        (("--dsh", """echo '{"dsh-sync":1}'; echo '[]';"""), "what came over the connection is no message"),
        (("--dsh", """echo '{"dsh-sync":1}'; yes;"""), "what came over the connection is no message"),
        (("--dsh", """echo '{"dsh-sync":1}'; echo '{"error":"no room","code":"DB_FULL"}';"""), "the other side says"),
    ],
)
def test_a_machine_that_does_not_answer_well(
    talk: History, ssh: Path, capfd: pytest.CaptureFixture[str], options: tuple[str, ...], says: str
) -> None:
    if not options:
        (ssh.parent / "bin" / "dsh").unlink()
    code = main(["sync", "machine:", *options])
    out, err = capfd.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("dsh: ")]
    assert (code, out) == (8 if "error" in "".join(options) else 1, ""), err
    assert lines[0].startswith(f"dsh: {says}")
    assert "Traceback" not in err


def test_the_other_end_says_no_more_than_it_must(history: History) -> None:
    """`sync serve` ends with its standard input, and what is no message is refused."""
    served = subprocess.run(
        [*DSH, "sync", "serve"], input=b"nonsense\n", capture_output=True, cwd=ROOT, check=False, timeout=60
    )
    assert served.returncode == 1
    assert served.stdout == b'{"dsh-sync":1}\n'
    assert served.stderr == b"dsh: what came over the connection is no message\n"
    done = subprocess.run([*DSH, "sync", "serve"], input=b"", capture_output=True, cwd=ROOT, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *DSH, "sync", "serve"], capture_output=True, cwd=ROOT, check=False
    )
    assert (closed.returncode, closed.stdout) == (2, b"")
    assert closed.stderr.startswith(b"dsh: standard input is closed\n")


# -------------------------------------------------------------------------------------------------------- wrong usage


@pytest.mark.rule("HD-14")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["push"], "name one target"),
        ([""], "the target is empty"),
        (["push", ""], "the target is empty"),
        (["a", "b"], "unexpected 'b'"),
        (["push", "a", "b"], "unexpected 'b'"),
        (["pull", "{tmp}/nosuch"], "there is no folder {tmp}/nosuch"),
        (["push", "{tmp}/no/such"], "there is no folder {tmp}/no/such"),
        (["pull", "{tmp}/nosuch.db"], "there is no database {tmp}/nosuch.db"),
        (["push", "{tmp}/no/such.db"], "there is no database {tmp}/no/such.db"),
        (["{tmp}/dsh.db"], "{tmp}/dsh.db is the database that is synced"),
        (["{tmp}/link.db"], "{tmp}/link.db is the database that is synced"),
        (["pull", "{tmp}/a:b"], "there is no folder {tmp}/a:b"),
        (["pull", "./a:b"], "there is no folder"),
        (["ssh:-oProxyCommand=x"], "'-oProxyCommand=x' is no host"),
        (["ssh:-oProxyCommand=x:/db"], "'-oProxyCommand=x' is no host"),
        (["-oProxyCommand=x:"], "no such option: -o"),
        (["--", "-oProxyCommand=x:"], "'-oProxyCommand=x' is no host"),
    ],
)
def test_refusals(
    talk: History, capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], says: str
) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "dsh.db")
    before = sorted(tmp_path.iterdir())
    code, out, err = sync(capsys, *(each.format(tmp=tmp_path) for each in arguments))
    assert (code, out) == (2, [])
    assert err.startswith(f"dsh: {says.format(tmp=tmp_path)}")
    assert sorted(tmp_path.iterdir()) == before


def test_nothing_to_push(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = sync(capsys, "push", str(tmp_path / "share"))
    assert (code, out) == (1, [])
    assert err.startswith("dsh: no history yet, so there is nothing to push\n")
    (tmp_path / "plain.db").write_text("no database")
    assert sync(capsys, "pull", str(tmp_path / "plain.db"))[0] == 8


# --------------------------------------------------------------------------------------------- foreign and torn files


@pytest.mark.rule("PE-91")
def test_whatever_lies_in_a_folder(talk: History, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Only whole logs are taken; the rest is passed over or named, and nothing of it gets into the database."""
    share, other = tmp_path / "share", tmp_path / "other.db"
    sync(capsys, "push", str(share))
    [good] = (share / "talk").iterdir()
    whole = good.read_bytes()
    name = good.name
    zeros = f"9-{'0' * 16}-{'0' * 16}.jsonl.zstd"
    for place in ("cut", "flipped", "empty", "foreign", "last", "link", "fifo", "folder"):
        (share / place).mkdir()
    (share / "cut" / name).write_bytes(whole[:-40])
    (share / "flipped" / name).write_bytes(whole[:-40] + bytes([whole[-40] ^ 255]) + whole[-39:])
    (share / "empty" / name).write_bytes(b"")
    (share / "foreign" / zeros).write_bytes(os.urandom(1000))
    header = header_line({"version": 0, "id": "last", "createdAt": 1}).encode()
    event = b'{"type":"x","seq":0,"time":1,"data":1}\n' * 9
    pack = zstandard.ZstdCompressor(write_checksum=True).compress
    (share / "last" / zeros).write_bytes(pack(header) + pack(event))
    (share / "link" / zeros).symlink_to("/etc/passwd")
    os.mkfifo(share / "fifo" / zeros)
    (share / "folder" / zeros).mkdir()
    (share / "evil\x1b[2J\n").mkdir()
    (share / "evil\x1b[2J\n" / zeros).write_bytes(b"{")
    (share / "talk" / f"{'9' * 30}-{'0' * 16}-{'0' * 16}.jsonl.zstd").write_bytes(whole)
    (share / "talk" / "notes.txt").write_text("mine")
    (share / "talk" / (name + " (conflicted copy)")).write_bytes(whole)
    (share / "loop").symlink_to(share)
    (share / "README").write_text("hello")
    code, out, err = sync(capsys, "pull", str(share), db=other)
    assert code == 1
    assert sorted(line.split("\t")[2] for line in out) == ["a/b 修改", "child", "talk"]
    lines = err.splitlines()
    assert lines[-1] == "dsh: pulled 3 (3 new), 5 could not be taken"
    assert sorted(re.split("[/:]", line[5:])[0] for line in lines[:-1]) == [
        "cut", "evil␛[2J ", "flipped", "foreign", "last",
    ]  # fmt: skip
    assert "\x1b" not in err
    assert logs(other) == logs(talk.path)
    before = {path: path.is_file() and not path.is_symlink() and path.read_bytes() for path in share.rglob("*")}
    code, out, err = sync(capsys, "push", str(share), db=other)
    assert (code, out) == (0, [])
    assert before == {p: p.is_file() and not p.is_symlink() and p.read_bytes() for p in share.rglob("*")}


@pytest.mark.rule("PE-91", "PE-90")
def test_a_file_that_is_still_being_copied_comes_the_next_time(
    talk: History, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    share, other = tmp_path / "share", tmp_path / "other.db"
    sync(capsys, "push", str(share))
    [file] = (share / "talk").iterdir()
    whole = file.read_bytes()
    for kept, says in ((len(whole) - 3, "it has "), (len(whole) // 2, "it has "), (3, "")):
        file.write_bytes(whole[:kept])
        code, out, err = sync(capsys, "pull", str(share), db=other)
        assert (code, "pulled\tnew\ttalk\t10" in out) == (1, False)
        assert f"talk: {says}" in err or f"{file.name[:30]}" in err
    file.write_bytes(whole)
    assert sync(capsys, "pull", str(share), db=other)[:2] == (0, ["pulled\tnew\ttalk\t10"])
    assert logs(other) == logs(talk.path)


@pytest.mark.rule("PE-88")
def test_a_log_that_breaks_a_rule_is_named_and_the_others_come(
    talk: History, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    share, other = tmp_path / "share", tmp_path / "other.db"
    sync(capsys, "push", str(share))
    [good] = (share / "talk").iterdir()
    unpacked = zstandard.ZstdDecompressor().stream_reader(good.read_bytes(), read_across_frames=True).read()
    first, rest = unpacked.split(b"\n", 1)
    pack = zstandard.ZstdCompressor(write_checksum=True).compress
    good.write_bytes(pack(first + b"\n") + pack(rest.replace(b'"turn":1', b'"turn":7', 1)))
    code, _, err = sync(capsys, "pull", str(share), db=other)
    assert code == 1
    assert err.splitlines()[0].startswith("dsh: talk: event 0 (line 2): the event is out of place")
    assert set(logs(other)) == {"child", "a/b 修改"}  # the fork came with its parent's events


def test_a_share_that_cannot_be_written(talk: History, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    share = tmp_path / "share"
    share.mkdir()
    (share / "talk").write_text("a file where a folder belongs")
    code, _, err = sync(capsys, "push", str(share))
    assert code == 1
    assert err.splitlines()[0] == f"dsh: talk: {share / 'talk'}: File exists"
    assert err.splitlines()[-1] == "dsh: pushed 2 (2 new), 1 could not be taken"


# ----------------------------------------------------------------------------------------------------- interruptions


def started(*arguments: str, db: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*DSH, "--db", str(db), "sync", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
    )


@pytest.mark.slow
@pytest.mark.parametrize("way", ["push", "pull"])
@pytest.mark.parametrize("kind", ["folder", "database"])
def test_killed_at_any_moment(talk: History, tmp_path: Path, way: str, kind: str) -> None:
    for n in range(60):
        talk.say(f"s{n}", "word " * 200, "answer " * 200)
    talk.db.rows("UPDATE store SET search_indexed = last_event")
    share = tmp_path / ("share" if kind == "folder" else "share.db")
    other = tmp_path / "other.db"
    if way == "pull":
        assert started("push", str(share), db=talk.path).wait(60) == 0
    source, target = (talk.path, share) if way == "push" else (other, other)
    began = time.monotonic()
    assert started(way, str(share), db=source if way == "push" else other).wait(60) == 0
    whole = time.monotonic() - began
    kills = 4
    for n in range(kills):
        for path in (target, Path(f"{target}-wal"), Path(f"{target}-shm")):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        process = started(way, str(share), db=talk.path if way == "push" else other)
        time.sleep(whole * (n + 2) / (kills + 2))
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        if target.suffix == ".db" and target.exists():
            partly = logs(target)
            assert all(log == logs(talk.path)[name] for name, log in partly.items())
        assert started(way, str(share), db=talk.path if way == "push" else other).wait(60) == 0
        if kind == "folder":
            assert not list(share.rglob(".*"))  # what was left half-written is gone
            assert len([p for p in share.rglob("*") if p.is_file()]) == 63
            fresh = tmp_path / f"fresh{n}.db"
            assert started("pull", str(share), db=fresh).wait(60) == 0
            assert logs(fresh) == logs(talk.path)
        else:
            assert logs(target) == logs(talk.path)


@pytest.mark.slow
def test_two_at_once(talk: History, tmp_path: Path) -> None:
    """Pushes and pulls of several machines through one folder and at one time."""
    share = tmp_path / "share"
    machines = [talk.path]
    for n in range(3):
        made = History(tmp_path / f"m{n}.db")
        for each in range(20):
            made.say(f"m{n}-{each}", f"prompt {n} {each}")
        made.db.close()
        machines.append(made.path)
    for _ in range(2):
        running = [started(str(share), db=path) for path in machines for _ in range(2)]
        assert [process.wait(120) in (0, 1) for process in running] == [True] * len(running)
    for path in machines:
        assert started(str(share), db=path).wait(60) == 0
    for path in machines:
        assert started(str(share), db=path).wait(60) == 0
    everything = [logs(path) for path in machines]
    assert len(everything[0]) == 63
    assert all(each == everything[0] for each in everything)
    assert not list(share.rglob(".*"))


@pytest.mark.slow
def test_an_unchanged_history_is_not_read(history: History, dsh: Run, tmp_path: Path) -> None:
    """A second run transfers nothing, however much there is; what it asks of each session is a few rows."""
    for n in range(300):
        history.say(f"s{n}", "word " * 50)
    share = str(tmp_path / "share")
    assert dsh("sync", share).returncode == 0
    for file in Path(share).rglob("*.zstd"):
        file.write_bytes(b"x")  # whoever reads one fails
    done = dsh("sync", share)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "dsh: pulled 0, 300 there already; pushed 0, 300 there already\n"


def test_progress_on_a_terminal(talk: History, terminal: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    code, shown = terminal("sync", "push", str(tmp_path / "share"), NO_COLOR="1")
    assert code == 0
    assert "comparing" in shown
    assert shown.splitlines()[-1].endswith("dsh: pushed 3 (3 new)")


def test_the_offers_of_a_database_name_its_parents(talk: History) -> None:
    offers = {offer.id: offer for offer in Here(talk.db).offers()}
    assert (offers["child"].parent, offers["talk"].length) == ("talk", 10)
