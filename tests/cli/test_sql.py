"""`dsh sql`: statements, parameters, forms of output, the schema browser."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.cli import output, tabular
from dsh.cli.main import main
from dsh.core.errors import UsageError
from dsh.query import catalog, statement
from tests.cli.conftest import DSH, ROOT, Run
from tests.history import History, call, text

pytestmark = pytest.mark.slow  # each test starts the program, some many times

Terminal = Callable[..., tuple[int, str]]
COLOURS = re.compile("\x1b\\[[0-9;]*m")


def test_sql_forms(dsh: Run, history: History) -> None:
    history.say("s", "hi")
    query = "select id, turns, 1.5 as x, null as y, 'a\tb\nc' as z, x'0aff' as b from session"
    assert dsh("sql", query).stdout == "s\t1\t1.5\t\ta\\tb\\nc\t0aff\n"
    assert json.loads(dsh("sql", "--jsonl", query).stdout) == {
        "id": "s",
        "turns": 1,
        "x": 1.5,
        "y": None,
        "z": "a\tb\nc",
        "b": "0aff",
    }
    rows = list(csv.reader(io.StringIO(dsh("sql", "--csv", query).stdout)))
    assert rows == [["id", "turns", "x", "y", "z", "b"], ["s", "1", "1.5", "", "a\tb\nc", "0aff"]]
    assert dsh("sql", "-", stdin=None, input="select 7;\n-- done\n").stdout == "7\n"
    assert dsh("sql", "--jsonl", "select 9e999 as big").stdout == '{"big":null}\n'
    done = dsh("sql", "select 1 where false")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_sql_on_a_terminal(history: History, terminal: Terminal) -> None:
    history.say("session-one", "hi")
    code, shown = terminal("sql", "select id, turns, 'x\x1b[2J' as z from session")
    assert code == 0
    lines = shown.splitlines()
    assert re.sub("\x1b\\[[0-9;]*m", "", lines[0]).split() == ["id", "turns", "z"]
    assert lines[1].split() == ["session-one", "1", "x␛[2J"]


@pytest.mark.rule("HD-14")
@pytest.mark.parametrize(
    ("query", "says", "hint"),
    [
        ("select * from _event", "only the views can be queried", "views: session, "),
        ("select * from nosuch", "no such table: nosuch", "views: session, "),
        ("selec 1", 'near "selec": syntax error', "lists views and columns"),
        ("select nope from session", "no such column: nope", "lists views and columns"),
        ("delete from session", "dsh sql only reads", "dsh config"),
        ("with x as (select 1) insert into setting values ('a', '1')", "dsh sql only reads", "dsh config"),
        ("pragma query_only = 0", "only the views can be queried", "views: "),
        ("pragma journal_mode = delete", "only the views can be queried", "views: "),
        ("attach ':memory:' as x", "only the views can be queried", "views: "),
        ("create table x(a)", "only the views can be queried", "views: "),
        ("select 1; select 2", "more than one statement", None),
        ("select 1;;select 2", "more than one statement", None),
        ("/* nothing */ ;", "the query is empty", None),
        ("select 'x", 'unrecognized token: "\'x"', "lists views"),
    ],
)
def test_sql_refusals(
    history: History, capsys: pytest.CaptureFixture[str], query: str, says: str, hint: str | None
) -> None:
    history.say("s", "hi")
    assert main(["sql", query]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0].startswith(f"dsh: {says}")
    assert len(lines) == (1 if hint is None else 2)
    assert hint is None or hint in lines[1]
    assert history.db.rows("select count(*) from session") == [(1,)]


def test_sql_semicolons_that_are_no_ends(dsh: Run, history: History) -> None:
    assert dsh("sql", "select ';' as \"a;b\" /* ; */ -- ; x\n;").stdout == ";\n"


def test_sql_lists_views(dsh: Run, history: History) -> None:
    lines = dsh("sql").stdout.splitlines()
    assert "session(id, version, created_at, cwd" in lines[0]
    assert any(line.startswith("search_document(id, session_id, seq, type, time, text)") for line in lines)
    assert not any(line.startswith("_") for line in lines)


PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.slow
def test_sql_holds_no_million_rows(history: History) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    peaks = []
    for rows in (1, 1_000_000):
        numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {rows})"
        command = [sys.executable, "-c", PEAK, *DSH, "sql", f"{numbers} SELECT i, hex(zeroblob(100)) FROM n"]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, env=env, check=True).stdout))
    assert peaks[1] - peaks[0] < 10_000 * (1 if sys.platform == "linux" else 1024)


def test_rows_come_as_they_are_found(history: History) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    began = time.monotonic()
    with subprocess.Popen([*DSH, "sql", endless], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(timeout=20) == 0
    assert time.monotonic() - began < 20


# ------------------------------------------------------------------------------------------------- statements, values


def test_a_statement_from_a_file(dsh: Run, history: History, tmp_path: Path) -> None:
    file = tmp_path / "q.sql"
    file.write_text("-- what is there\nSELECT count(*) FROM session;\n")
    assert dsh("sql", f"@{file}").stdout == "0\n"
    done = dsh("sql", f"@{tmp_path}/none.sql")
    assert (done.returncode, done.stdout) == (1, "")
    assert "none.sql: No such file" in done.stderr
    file.write_bytes(b"select '\xff'")
    done = dsh("sql", f"@{file}")
    assert (done.returncode, done.stderr) == (2, f"dsh: {file} is not text\n")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    assert (code, err) == (0, ""), err
    return out


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("5", '{"v":5,"t":"integer"}'),
        ("-5", '{"v":-5,"t":"integer"}'),
        ("007", '{"v":"007","t":"text"}'),
        ("1.5", '{"v":1.5,"t":"real"}'),
        ("1e3", '{"v":1000.0,"t":"real"}'),
        ("99999999999999999999", '{"v":"99999999999999999999","t":"text"}'),
        ("null", '{"v":null,"t":"null"}'),
        ("'5'", '{"v":"5","t":"text"}'),
        ("'it''s'", '{"v":"it\'s","t":"text"}'),
        ("it's", '{"v":"it\'s","t":"text"}'),
        ("a=b", '{"v":"a=b","t":"text"}'),
        ("", '{"v":"","t":"text"}'),
    ],
)
def test_parameters(history: History, capsys: pytest.CaptureFixture[str], value: str, shown: str) -> None:
    query = "select :v as v, typeof($v) as t"
    assert printed(capsys, "sql", "--jsonl", query, "-p", f"v={value}") == f"{shown}\n"
    assert printed(capsys, "sql", "--jsonl", query, "-p", f":v={value}") == f"{shown}\n"


def test_parameters_that_mean_what_options_mean(
    history: History, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    history.say("session-one", "hi")
    monkeypatch.chdir("/")
    assert (
        printed(capsys, "sql", "select :session, :cwd", "-p", "session=ses", "-p", "cwd=tmp") == "session-one\t/tmp\n"
    )
    out = printed(capsys, "sql", "select :since, :until", "-p", "since=2026-01-31T00:00Z", "-p", "until=17")
    assert out == "1769817600000\t17\n"
    day = printed(capsys, "sql", "select :until - :since", "-p", "since=2026-01-31", "-p", "until=2026-01-31")
    assert day == "86399999\n"


@pytest.mark.rule("HD-14")
@pytest.mark.parametrize(
    ("arguments", "says", "hint"),
    [
        (["select :a"], "the parameter 'a' has no value", "-p a=VALUE"),
        (["select 1 limit :a", "-p", "a=x"], "a number of rows is not a whole number", None),
        (["select :a", "-p", "a=1", "-p", "b=2"], "the query has no parameter 'b'", "its parameters: a"),
        (["select ':a'", "-p", "a=1"], "the query has no parameter 'a'", "it has no parameters"),
        (["select :a", "-p", "a=1", "-p", ":a=2"], "the parameter a is given twice", None),
        (["select :a", "-p", "a"], "-p 'a' is not NAME=VALUE", None),
        (["select ?"], "a parameter without a name", ":NAME"),
        (["select ?1"], "a parameter without a name", ":NAME"),
        (["select :since", "-p", "since=someday"], "'someday' is not a point in time", "2h"),
        (["select :session", "-p", "session=none"], "there is no session 'none'", "dsh sessions"),
        (["--schema", "nosuch"], "there is no view 'nosuch'", "views: session"),
        (["--schema", "-p", "a=1"], "--schema takes no parameters", None),
        (["--csv"], "there is no query", None),
    ],
)
def test_refusals(
    history: History, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str, hint: str | None
) -> None:
    assert main(["sql", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == f"dsh: {says}"
    assert len(lines) == (1 if hint is None else 2)
    assert hint is None or hint in lines[1]


@given(
    st.lists(st.sampled_from(["'", '"', "`", "[", "]", "--", "/*", "*/", "\n", ";", ":a", "@b", "?", "x", " ", "''"]))
)
@settings(deadline=None)
def test_any_text_is_one_statement_or_is_refused(pieces: list[str]) -> None:
    """What is taken for one statement is one to SQLite too: it never runs a second one."""
    import apsw

    sql = "select 1 " + "".join(pieces)
    try:
        statement.check_single(sql)
        names = statement.parameters(sql)
    except UsageError:
        return
    ran: list[str] = []
    db = apsw.Connection(":memory:")
    cursor = db.cursor()

    def trace(at: apsw.Cursor, each: str, _: object) -> bool:
        if at.get_description():  # there are none where only a comment is left
            ran.append(each)
        return True

    cursor.exec_trace = trace
    try:
        cursor.execute(sql, dict.fromkeys(names)).fetchall()
    except apsw.SQLError:
        pass
    finally:
        db.close()
    assert len(ran) <= 1


# ------------------------------------------------------------------------------------------------------------- forms

VALUES = "values (1, null, 'a,\"b', ''), (22, x'0aff', 'x' || char(27) || '[2J' || char(10) || 'y', 9e999)"


def test_forms(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "sql", VALUES) == '1\t\ta,"b\t\n22\t0aff\tx\x1b[2J\\ny\tinf\n'
    assert json.loads(printed(capsys, "sql", "--json", VALUES)) == [
        {"column1": 1, "column2": None, "column3": 'a,"b', "column4": ""},
        {"column1": 22, "column2": "0aff", "column3": "x\x1b[2J\ny", "column4": None},
    ]
    lines = printed(capsys, "sql", "--jsonl", VALUES).splitlines()
    assert [json.loads(line)["column1"] for line in lines] == [1, 22]
    table = printed(capsys, "sql", "--table", VALUES)
    assert table == (
        "column1  column2  column3  column4\n"
        '      1  ∅        a,"b\n'
        "     22  0aff     x␛[2J y  inf\n"
    )  # fmt: skip
    assert printed(capsys, "sql", "--table", "--no-header", "values (1, 'a')") == "1  a\n"


def test_csv_tells_null_from_empty_text(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "sql", "--csv", VALUES)
    assert out == 'column1,column2,column3,column4\r\n1,,"a,""b",""\r\n22,0aff,"x\x1b[2J\ny",inf\r\n'
    assert list(csv.reader(io.StringIO(out)))[1] == ["1", "", 'a,"b', ""]
    assert printed(capsys, "sql", "--csv", "--no-header", "select 7") == "7\r\n"


def test_nothing_found_has_a_header_still(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    query = "select id, turns from session"
    assert printed(capsys, "sql", "--json", query) == "[]\n"
    assert printed(capsys, "sql", "--jsonl", query) == ""
    assert printed(capsys, "sql", "--csv", query) == "id,turns\r\n"
    assert printed(capsys, "sql", "--table", query) == "id  turns\n"


def test_two_columns_of_one_name(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "sql", "--json", "select 1 as a, 2 as a, 3 as a") == '[{"a":1,"a:1":2,"a:2":3}]\n'


@given(st.lists(st.lists(st.none() | st.integers() | st.text() | st.binary(), min_size=3, max_size=3), max_size=8))
@settings(deadline=None)
def test_csv_and_json_hold_the_values(rows: list[list[object]]) -> None:
    texts = [["" if v is None else v.hex() if isinstance(v, bytes) else str(v) for v in row] for row in rows]
    written = ["".join(",".join(map(tabular._csv, row)) + "\r\n" for row in rows)]
    assert list(csv.reader(io.StringIO(written[0], newline=""), strict=True)) == texts
    found = [list(item.values()) for item in tabular._objects(("a", "b", "c"), [tuple(row) for row in rows])]
    assert found == [[v.hex() if isinstance(v, bytes) else v for v in row] for row in rows]


def lines_of(shown: str) -> list[str]:
    return [COLOURS.sub("", line) for line in shown.splitlines()]


def test_a_table_fits_the_terminal(history: History, terminal: Terminal) -> None:
    query = "values ('修改文件' , 'ab', 1, '{}'), ('🎉', 'é' || char(769), 222, 'short'), (null, 'x', null, 'c')"
    code, shown = terminal("sql", query.format("wide 宽 " * 40))
    assert code == 0
    lines = lines_of(shown)
    assert all(output.width_of(line) <= 80 for line in lines)
    assert lines[1].endswith("…")
    # each cell begins in the column of its title, or ends there if it is a number
    for line in lines[1:]:
        assert output.width_of(line[: line.index({1: "ab", 2: "é", 3: "x"}[lines.index(line)])]) == 10
    assert lines[3].startswith("∅")
    assert [output.width_of(line.split("  ab  ")[0]) for line in lines[1:2]] == [8]


def test_more_columns_than_fit_are_shown_one_a_line(history: History, terminal: Terminal) -> None:
    history.say("s1", "hi")
    history.say("s2", "hi")
    code, shown = terminal("sql", "select *, 'x\x1b[2J' as evil from session order by id")
    assert code == 0
    lines = lines_of(shown)
    assert "id                  s1" in lines
    assert "evil                x␛[2J" in lines
    assert "pinned              ∅" in lines
    assert lines.count("") == 1


@pytest.mark.parametrize("form", ["--table", "--csv", "--json", "--jsonl"])
def test_no_form_drives_a_terminal(history: History, terminal: Terminal, form: str) -> None:
    code, shown = terminal(
        "sql", form, "select 'x' || char(27) || ']0;evil' || char(7) || char(8238) as z", NO_COLOR="1"
    )
    assert code == 0
    assert not set("\x1b\x07\u202e") & set(shown)
    assert "]0;evil" in shown


def test_a_later_row_is_cut_to_the_columns_of_the_first(history: History, terminal: Terminal) -> None:
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 300)"
    code, shown = terminal("sql", f"{numbers} SELECT i, iif(i = 250, hex(zeroblob(200)), 'a') AS b FROM n")
    assert code == 0
    lines = lines_of(shown)
    assert len(lines) == 301
    assert all(len(line) <= 80 for line in lines)
    assert lines[250] == "250  …"


# ------------------------------------------------------------------------------------------------------------ schema


def test_every_view_and_column_is_described(history: History) -> None:
    """The words of views.toml and the schema agree: nothing is missing, and nothing is told of what is not there."""
    views = {view.name: view for view in catalog.views(history.db)}
    told = catalog.described()
    assert list(told) == [name for name in views if name in told], "views in the order of schema.sql"
    assert set(told) == set(views)
    for name, view in views.items():
        assert view.about.endswith("."), name
        assert [column.name for column in view.columns] == list(told[name]["columns"]), name
        assert all(column.comment.endswith((".", "...")) for column in view.columns), name


def test_every_example_answers(history: History) -> None:
    history.say("parent", "the test", cwd="/w")
    history.session("s", cwd="/w")
    history.turn("s", 1, "look", text("ok"), call("c1", "bash", "{}"), results={"c1": "x"})
    history.fork("child", "parent")
    for view in catalog.views(history.db):
        statement.check_single(view.example)
        rows = history.db.rows(view.example)
        assert re.search(rf"\b{view.name}\b", view.example), view.name
        if view.name in ("session", "fork", "event", "message", "turn", "step", "tool_call", "title", "lineage"):
            assert rows, view.name


def test_the_schema_is_listed(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "sql", "--schema").splitlines()
    views = catalog.views(history.db)
    assert [line.split("\t") for line in lines] == [[view.name, view.about] for view in views]
    assert json.loads(printed(capsys, "sql", "--schema", "--json"))[0]["view"] == "session"


def test_a_view_is_described(history: History, capsys: pytest.CaptureFixture[str], terminal: Terminal) -> None:
    lines = printed(capsys, "sql", "--schema", "TURN").splitlines()
    assert lines[0] == "session_id\tTEXT\tSession in whose log it is shown."
    assert len(lines) == len(catalog.view(history.db, "turn").columns)
    told = json.loads(printed(capsys, "sql", "--schema", "turn", "--json"))
    assert told["view"] == "turn"
    assert told["columns"][2] == {"name": "start_seq", "type": "INTEGER", "comment": "Seq of its turn/start."}
    assert history.db.rows(told["example"]) == []
    assert printed(capsys, "sql", "--schema", "turn", "--csv").startswith("name,type,comment\r\n")
    code, shown = terminal("sql", "--schema", "turn")
    assert code == 0
    assert all(len(line) <= 80 for line in lines_of(shown)[:-1])
    for word in re.findall(r"\w+", "".join(comment for _, _, comment in catalog.view(history.db, "turn").columns)):
        assert word in shown  # nothing is cut
