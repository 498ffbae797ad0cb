"""glob and grep over the real ripgrep."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from dsh.capabilities.fs_search import _render_grep
from tests.tools.kit import Bench, code, make_agent, text

SEARCH = ("dsh.tools.policies", "dsh.capabilities.fs_search")
needs_rg = pytest.mark.skipif(shutil.which("rg") is None, reason="ripgrep is not installed")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def _touch(path: Path, age: int, content: str = "x\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    os.utime(path, ns=(age, age))


@pytest.mark.rule("TC-20")
def test_without_rg_there_are_no_tools_and_one_notice(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(work))
    bench = Bench(work, SEARCH)
    assert bench.tools.visible(None) == {}
    assert len(bench.host.reports) == 1


@needs_rg
@pytest.mark.rule("TC-7", "TC-6")
def test_the_tools_have_a_budget_and_run_alone(work: Path) -> None:
    bench = Bench(work, SEARCH)
    for name in ("glob", "grep"):
        assert bench.tools.visible(None)[name].timeout_ms == 30000
        assert bench.tools.mode(None, name, {"pattern": "x"}) == "exclusive"


@needs_rg
@pytest.mark.rule("TC-21", "TC-24")
async def test_glob_lists_oldest_first_with_hidden_and_ignored_but_without_vcs(work: Path) -> None:
    _touch(work / "sub" / "new.py", 3000)
    _touch(work / "old.py", 1000)
    _touch(work / ".hidden" / "mid.py", 2000)
    _touch(work / ".gitignore", 1, "*.py\n")
    for name in (".git", ".svn", ".hg", ".bzr", ".jj", ".sl"):
        _touch(work / "sub" / name / "x.py", 1)
    bench = Bench(work, SEARCH)
    result = await bench.call("glob", pattern="*.py")
    assert result.value == {"paths": ["old.py", ".hidden/mid.py", "sub/new.py"]}
    assert text(result) == "old.py\n.hidden/mid.py\nsub/new.py"
    below = await bench.call("glob", pattern="*", path=str(work / "sub"))
    assert below.value["paths"] == ["sub/new.py"]
    assert text(await bench.call("glob", pattern="*", path="sub/.git")) == "No files found"


@needs_rg
@pytest.mark.rule("TC-24")
async def test_paths_outside_stay_absolute_and_a_linked_cwd_is_made_real(work: Path, tmp_path: Path) -> None:
    _touch(tmp_path / "other" / "f.txt", 1, "word\n")
    _touch(work / "f.txt", 2, "word\n")
    (tmp_path / "link").symlink_to(work)
    bench = Bench(work, SEARCH)
    outside = await bench.call("glob", pattern="*.txt", path=str(tmp_path / "other"))
    assert outside.value["paths"] == [str(tmp_path / "other" / "f.txt")]
    inside = await bench.call("grep", agent=make_agent(tmp_path / "link"), pattern="word", path=str(work))
    assert inside.value["matches"] == [{"path": "f.txt", "lineNumber": 1, "line": "word"}]


@needs_rg
@pytest.mark.rule("TC-21", "TC-25", "TC-26")
async def test_grep_groups_matches_by_file_and_honours_ignore_files(work: Path) -> None:
    (work / ".git").mkdir()
    _touch(work / "b.txt", 1, "one word\r\nnothing\nword two\n")
    _touch(work / "a.txt", 2, "a word")
    _touch(work / "skip.log", 3, "word\n")
    _touch(work / ".ignore", 4, "*.log\n")
    (work / "raw.txt").write_bytes(b"word \xff\n")
    bench = Bench(work, SEARCH)
    result = await bench.call("grep", pattern="word", include="*.txt")
    assert text(result) == (
        "Found 4 matches\n\na.txt\nLine 1: a word\n\nb.txt\nLine 1: one word\nLine 3: word two\n\n"
        "raw.txt\nLine 1: (line is not valid UTF-8)"
    )
    assert text(await bench.call("grep", pattern="a word")) == "Found 1 match\n\na.txt\nLine 1: a word"
    assert text(await bench.call("grep", pattern="nowhere")) == "No matches found"
    assert text(await bench.call("grep", pattern=" two", include="*.{txt,md}")).startswith("Found 1 match")


@needs_rg
@pytest.mark.rule("TC-20", "TC-22")
async def test_model_values_are_never_options_or_shell_words(work: Path) -> None:
    _touch(work / "-v", 1, "--files $(touch hacked); `x`\n")
    bench = Bench(work, SEARCH)
    hit = await bench.call("grep", pattern=r"--files \$\(touch hacked\); `x`", path="-v")
    assert text(hit).startswith("Found 1 match")
    assert text(await bench.call("glob", pattern="-v")) == "-v"
    assert not (work / "hacked").exists()


@needs_rg
@pytest.mark.rule("TC-22")
@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("glob", {"pattern": " "}),
        ("glob", {"pattern": "*", "path": ""}),
        ("grep", {"pattern": ""}),
        ("grep", {"pattern": "x", "path": " "}),
        ("grep", {"pattern": "x", "include": ""}),
        ("grep", {"pattern": "x", "include": "!*.py"}),
        ("grep", {"pattern": "x", "include": "*.py,*.md"}),
    ],
)
async def test_what_is_refused(work: Path, tool: str, args: Any) -> None:
    assert code(await Bench(work, SEARCH).call(tool, **args)) is None


@needs_rg
@pytest.mark.rule("TC-22")
async def test_spaces_alone_are_a_pattern(work: Path) -> None:
    _touch(work / "f", 1, "a  b\n")
    assert not (await Bench(work, SEARCH).call("grep", pattern="  ")).is_error


@needs_rg
@pytest.mark.rule("TC-23")
async def test_errors_of_a_search_are_coded(work: Path) -> None:
    _touch(work / "f", 1, "word " * 1000 + "\n")
    bench = Bench(work, SEARCH)
    for tool, pattern in (("grep", "("), ("glob", "[")):
        assert code(await bench.call(tool, pattern=pattern)) == "SEARCH_INVALID_PATTERN"
    assert code(await bench.call("grep", pattern="x", path="gone")) == "SEARCH_FAILED"
    assert code(await bench.call("grep", pattern="x\0")) == "SEARCH_FAILED"
    small = Bench(work, SEARCH, search_tools__raw_output_max_bytes=200)
    assert code(await small.call("grep", pattern="word")) == "SEARCH_RAW_OUTPUT_OVERFLOW"


@pytest.mark.rule("TC-23", "TC-25")
@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("echo '{oops'", "SEARCH_FAILED"),
        ('echo \'{"type":"match","data":{}}\'', "SEARCH_FAILED"),
        ("kill -9 $$", "SEARCH_FAILED"),
        ("echo strange >&2; exit 2", "SEARCH_FAILED"),
        ("echo 'x: Permission denied (os error 13)' >&2; exit 2", None),
        ("sleep 30", "TOOL_TIMEOUT"),
    ],
)
async def test_a_ripgrep_that_misbehaves(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, wanted: str | None
) -> None:
    program = tmp_path / "bin" / "rg"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    result = await Bench(work, SEARCH, search_tools__timeout_ms=300).call("grep", pattern="x")
    if wanted is None:
        assert text(result) == "No matches found"
    else:
        assert code(result) == wanted


@needs_rg
@pytest.mark.rule("TC-26", "TC-27")
async def test_long_results_are_cut_for_the_model_only(work: Path) -> None:
    for n in range(5):
        _touch(work / f"{n}.txt", n + 1, "hit\nhit\n")
    bench = Bench(work, SEARCH, search_tools__glob_max_results=2, search_tools__grep_max_matches=3)
    paths = await bench.call("glob", pattern="*.txt")
    assert len(paths.value["paths"]) == 5
    assert text(paths).startswith("0.txt\n1.txt\n\n(Showing 2 of 5 paths. ")
    matches = await bench.call("grep", pattern="hit")
    assert len(matches.value["matches"]) == 10
    assert text(matches).startswith(
        "Found 3 of 10 matches\n\n0.txt\nLine 1: hit\nLine 2: hit\n\n1.txt\nLine 1: hit\n\n("
    )


@pytest.mark.rule("TC-25", "TC-9")
def test_a_long_line_is_cut_at_a_character() -> None:
    value = {"matches": [{"path": "f", "lineNumber": 1, "line": "é" * 10}]}
    assert _render_grep(5, 5, {}, value).endswith("Line 1: éé (line truncated)")
    assert _render_grep(5, 20, {}, value).endswith("é" * 10)


@needs_rg
@pytest.mark.skipif(sys.platform != "linux", reason="needs a file system that takes any bytes")
async def test_odd_names_stay_one_path_each(work: Path) -> None:
    _touch(work / "a\nb.txt", 1, "word\n")
    odd = Path(os.fsdecode(os.fsencode(work) + b"/\xff.txt"))
    _touch(odd, 2, "word\n")
    bench = Bench(work, SEARCH)
    result = await bench.call("glob", pattern="*.txt")
    assert result.value["paths"] == ["a\nb.txt", "\ufffd.txt"]
    assert text(result) == "a\\nb.txt\n\ufffd.txt"
    assert text(await bench.call("grep", pattern="word")).count("Line 1: word") == 2


@needs_rg
async def test_a_configuration_of_ripgrep_does_not_interfere(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rc").write_text("--invert-match\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(tmp_path / "rc"))
    _touch(work / "f", 1, "word\nother\n")
    assert "Line 1: word" in text(await Bench(work, SEARCH).call("grep", pattern="word"))
