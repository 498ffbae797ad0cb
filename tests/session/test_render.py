"""Sessions as documents: nothing of a text gets out of its place, in HTML and in Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.session.masking import Masker
from dsh.session.render import rendered
from dsh.session.render.markdown import closed, code_span
from dsh.session.render.prose import prose
from tests.core.test_secrets import chance
from tests.history import History, call, text
from tests.session.page import Page, read_html, read_page

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>\"'><svg onload=alert(1)><!-- <![CDATA[ <?x "
    "</pre></details></article></main></body></html><style>*{display:none}</style> &lt;b&gt; \x00\x1b[31m\x9b "
    "javascript:alert(1) "
    '[x](javascript:alert(1)) [y](https://example.org/"onmouseover=alert(1)) `</code><script>` ```\n</pre>\n'
)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path / "dsh.db")
    yield made
    made.db.close()


def document(history: History, form: str, session: str = "s", masker: Masker | None = None) -> str:
    with history.db.snapshot():
        return "".join(rendered(history.db, session, form, masker))


def page_of(history: History, session: str = "s") -> Page:
    return read_page(document(history, "html", session))


@pytest.fixture
def talk(history: History) -> History:
    history.session("s", cwd="/w")
    thinking = {"type": "reasoning", "text": "let me look"}
    calls = [call("c1", "bash", '{"command": "ls <a>"}'), call("c2", "read", "not JSON")]
    history.turn(
        "s",
        1,
        "first question\nwith two lines",
        thinking,
        text("**Answer** one"),
        *calls,
        results={"c1": "a\nb\n", "c2": ""},
    )
    history.turn(
        "s",
        2,
        "second",
        text("```py\nx < 1\n```"),
        end={"kind": "error", "step": 1, "message": "it <broke>", "code": "SERVER"},
    )
    return history


# ---------------------------------------------------------------------------------------------------------------- HTML


def test_a_page_has_everything_at_its_place(talk: History) -> None:
    page = page_of(talk)
    assert page.all("title")[0].text == page.all("h1")[0].text == "first question with two lines"
    facts = dict(zip([e.text for e in page.all("dt")], [e.text for e in page.all("dd")], strict=True))
    assert (facts["session"], facts["folder"], facts["model"]) == ("s", "/w", "deepseek/deepseek-chat")
    [listed] = page.all("nav")
    links = [
        e for e in page.all("a") if e.text in ("first question with two lines", "second") and e.text in listed.text
    ]
    assert [e.attributes["href"] for e in links] == ["#s1", "#s13"]
    assert [e.attributes["id"] for e in page.all("article", "prompt")] == ["s1", "s13"]
    assert "first question\nwith two lines" in page.all("article", "prompt")[0].text
    answers = page.all("article", "answer")
    assert [e.text for e in page.all("strong")] == ["Answer"]
    assert "x < 1" in answers[1].text
    [bash, read] = page.all("details", "call")
    assert "bash: ls <a>" in bash.text
    assert '"command": "ls <a>"' in bash.text
    assert "not JSON" in read.text
    assert [e.attributes["id"] for e in page.all("details", "result")] == ["s7", "s9"]
    [thought] = page.all("details", "thinking")
    assert (thought.attributes["id"], "let me look" in thought.text) == ("s5", True)  # the first of its event
    [ended] = page.all("article", "failed")
    assert "SERVER: it <broke>" in ended.text


def test_hostile_text_stays_text_wherever_it_stands(history: History) -> None:
    id_ = history.session("'\"><script>alert(1)</script>", cwd="/" + HOSTILE.replace("\0", ""))
    blocks = [
        {"type": "reasoning", "text": HOSTILE},
        text(HOSTILE),
        call("c", HOSTILE, HOSTILE),
        {"type": HOSTILE, "x": HOSTILE},
    ]
    history.turn(id_, 1, HOSTILE, *blocks, results={"c": HOSTILE}, end={"kind": HOSTILE, "message": HOSTILE})
    history.event(id_, "turn/start", {"turn": 2, "trigger": {"kind": "message", "source": {"kind": "user"}}})
    history.event(id_, "session/title", {"title": HOSTILE})
    history.event(
        id_, "user/message", {"content": [text("x")], "source": {"kind": HOSTILE, "plugin": HOSTILE}}, "append"
    )
    page = page_of(history, id_)
    assert page.text.count("alert(1)") > 20
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", document(history, "html", id_))
    for link in page.all("a"):
        assert "javascript" not in link.attributes["href"]


MARKS = [
    "*",
    "**",
    "`",
    "```",
    "~~~",
    "#",
    "- ",
    "1. ",
    "> ",
    "|",
    "|--|",
    "\n",
    "\n\n",
    "    ",
    "\t",
    "_",
    "---",
    "***",
]
OTHERS = [
    "[a](https://example.org/x)",
    "https://example.org/",
    ")",
    "<b>",
    "</p>",
    "&amp;",
    "a",
    "b c",
    '"',
    "\\",
    "é",
    "[",
    "](",
    "!",
]
WORDS = st.sampled_from(MARKS + OTHERS)


@given(st.lists(WORDS, max_size=40).map("".join))
def test_any_markdown_becomes_well_formed_html_that_says_the_same(written: str) -> None:
    said = read_html(prose(written)).text
    words = re.sub(r"(?m)^.*(```|~~~).*$", "", written)  # what stands beside a fence names a language
    for word in ("b c", "é", "<b>", "&amp;"):
        assert said.count(word) >= words.count(word)


URL = "https://example.org/"
TABLE = ["table:", "thead:ab", "tr:ab", "th:a", "th:b", "tbody:", "tr:12", "td:1", "td:2", "code:2", "p:x"]
PROSE: list[tuple[str, list[str]]] = [
    ("# One\ntext", ["h4:One", "p:text"]),
    ("a\nb\n\nc", ["p:a\nb", "p:c"]),
    ("```py\n<a>\n\nb\n```\nx", ["pre:<a>\n\nb", "code:<a>\n\nb", "p:x"]),
    ("~~~\n```\n~~~", ["pre:```", "code:```"]),
    ("```\nopen", ["pre:open", "code:open"]),
    ("- a\n- b\n  - c\n\nd", ["ul:a\nb c\n\n", "li:a", "li:b c\n", "ul:c\n", "li:c", "p:d"]),
    ("3. a\n4. b", ["ol:a\nb\n", "li:a", "li:b"]),
    ("- a\n\n  ```\n  x\n    y\n  ```\n- b", ["ul:", "li:", "pre:x\n  y", "code:x\n  y", "li:b"]),
    ("> a\n> > b", ["blockquote:", "p:a", "blockquote:", "p:b"]),
    ("| a | b |\n|---|:-:|\n| 1 | `2` |\n\nx", TABLE),
    ("a\n---\n***", ["p:a", "hr:", "hr:"]),
    ("**a *b* c** `**x**` snake_case *not this*ok 2*3*4", ["p:", "strong:a b c", "em:b", "code:**x**"]),
    (f"see {URL}a_b?c=1&d=2. and [t]({URL}(x)", ["p:", f"a:{URL}a_b?c=1&d=2", f"a:{URL}(x"]),
]  # fmt: skip


@pytest.mark.parametrize(("written", "expected"), PROSE)
def test_the_markdown_of_answers(written: str, expected: list[str]) -> None:
    found = read_html(prose(written)).elements
    assert [e.tag for e in found] == [each.split(":")[0] for each in expected]
    for element, each in zip(found, expected, strict=True):
        words = each.split(":", 1)[1].strip()
        assert not words or element.text.split() == words.split(), element


# ------------------------------------------------------------------------------------------------------------ Markdown


def test_markdown_folds_what_tools_said(talk: History) -> None:
    written = document(talk, "markdown")
    assert written.startswith("# first question with two lines\n\n- session: `s`\n- folder: `/w`\n")
    assert "## Turn 1\n\n### You\n\nfirst question\nwith two lines\n\n" in written
    assert (
        '<details>\n<summary>bash: ls &lt;a&gt;</summary>\n\n```json\n{\n  "command": "ls <a>"\n}\n```\n\n</details>'
        in written
    )
    assert "<summary>bash result (2 lines)</summary>\n\n```\na\nb\n```" in written
    assert "*read result*\n" in written
    assert "*turn ended: error*\n\n```\nSERVER: it <broke>\n```" in written


def outside(written: str) -> str:
    """Markdown without its code: what could become a tag or a heading."""
    lines: list[str] = []
    fence: str | None = None
    for line in written.split("\n"):
        found = re.match(r"^ {0,3}(`{3,}|~{3,})(.*)$", line)
        if fence is None and found and not (found[1][0] == "`" and "`" in found[2]):
            fence = found[1]
        elif fence is not None:
            if found and found[1].startswith(fence) and not found[2].strip():
                fence = None
        else:
            lines.append(line)
    assert fence is None
    return "\n".join(lines)


def test_hostile_text_stays_inside_its_fence(history: History) -> None:
    history.session("s")
    blocks = [{"type": "reasoning", "text": HOSTILE}, text(HOSTILE), call("c", HOSTILE, HOSTILE)]
    history.turn("s", 1, HOSTILE, *blocks, results={"c": HOSTILE})
    left = re.sub(r"</?details>|</?summary>", "", outside(document(history, "markdown")))
    left = re.sub(r"(`+)[^\n]*?\1", "", left)
    assert "<" not in left
    assert "alert(1)" in left
    assert left.count("## Turn") == 1


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("a <b> c", "a &lt;b> c"),
        ("`<b>` <b>", "`<b>` &lt;b>"),
        ("``a ` <b>`` <!-- x", "``a ` <b>`` &lt;!-- x"),
        ("x < 3 <3 a<b", "x < 3 <3 a&lt;b"),
        ("<https://example.org/>", "<https://example.org/>"),
        ("```\n<b>\n```\n<b>", "```\n<b>\n```\n&lt;b>"),
        ("    <b>", "    <b>"),
        ("<details><summary>", "&lt;details>&lt;summary>"),
    ],
)
def test_tags_outside_code_are_text(body: str, shown: str) -> None:
    assert closed(body) == shown


@pytest.mark.parametrize("line", ["a", "`", "a`b", "``a`", "a``"])
def test_a_line_with_backticks_is_one_code_span(line: str) -> None:
    found = re.fullmatch(r"(`+)( ?)(.*?)\2\1", code_span(line))
    assert found
    assert found[3] == line
    assert found[1] not in line


# ---------------------------------------------------------------------------------------------------------------- JSON


@pytest.mark.rule("SE-20")
def test_json_is_one_document_with_the_messages_that_the_model_sees(talk: History) -> None:
    found = json.loads(document(talk, "json"))
    assert list(found) == ["session", "title", "usage", "messages"]
    assert found["session"]["id"] == "s"
    assert found["title"] == "first question\nwith two lines"
    rows = talk.db.rows("SELECT seq, role, content, provenance FROM message WHERE session_id = 's' ORDER BY position")
    expected = [
        {"seq": seq, "role": role, "content": json.loads(content), **({"provenance": json.loads(p)} if p else {})}
        for seq, role, content, p in rows
    ]
    assert found["messages"] == expected
    talk.session("empty")
    talk.event("empty", "turn/start", {"turn": 1, "trigger": {"kind": "message", "source": {"kind": "user"}}})
    assert json.loads(document(talk, "json", "empty"))["messages"] == []


def test_json_tells_what_was_used(history: History) -> None:
    history.session("s")
    for turn, model in enumerate(("a", "b", "a"), 1):
        history.event("s", "turn/start", {"turn": turn, "trigger": {"kind": "message", "source": {"kind": "user"}}})
        at = {"turn": turn, "step": 1}
        history.event("s", "step/start", at)
        history.event(
            "s", "request/header", {"header": {"config": {"provider": "p", "model": model}}, "reason": "change"}
        )
        usage: Any = {"inputTokens": 10, "outputTokens": turn, "cacheReadTokens": 5}
        history.event("s", "assistant/chunk", {**at, "chunk": {"type": "usage", "usage": usage}})
        history.event("s", "step/end", at)
        history.event("s", "turn/end", {"turn": turn, "reason": {"kind": "completed"}})
    found = json.loads(document(history, "json"))["usage"]
    none = {"cacheWriteTokens": 0, "reasoningTokens": 0}
    assert found == [
        {
            "provider": "p",
            "model": "a",
            "requests": 2,
            "inputTokens": 20,
            "outputTokens": 4,
            "cacheReadTokens": 10,
            **none,
        },
        {
            "provider": "p",
            "model": "b",
            "requests": 1,
            "inputTokens": 10,
            "outputTokens": 2,
            "cacheReadTokens": 5,
            **none,
        },
    ]
    assert "45 read, 6 written" in document(history, "html")


# ------------------------------------------------------------------------------------------------------------- secrets


@pytest.mark.parametrize("form", ["markdown", "html", "json"])
def test_documents_are_masked(history: History, form: str) -> None:
    key = "sk-ant-api03-" + chance(90)
    history.session("s")
    history.turn("s", 1, f"use {key}", text(f"I use {key}"), call("c", "bash", f'{{"k":"{key}"}}'), results={"c": key})
    assert key in document(history, form)
    masker = Masker()
    shown = document(history, form, masker=masker)
    assert key[13:] not in shown
    assert shown.count("[redacted:anthropic]") >= 4
    assert set(masker.counts) == {"anthropic"}
