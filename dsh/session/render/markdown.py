"""A session as Markdown: headings for turns and who speaks, everything that tools said folded away.

What people and models wrote is Markdown already and stays so, but for what would reach beyond it: a fence left open, a
tag. What tools said is code, behind a fence that no line of it can end.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator

from dsh.core.lossless import loads
from dsh.session.render.entries import Entry, call_line
from dsh.session.render.facts import Facts, one_line

FENCE = r"^ {0,3}(`{3,}|~{3,})(.*)$"
_CODE_SPAN = r"(?<!`)(`{1,8})(?!`)[^\n]{1,2000}?(?<!`)\1(?!`)"
_TAG = r"<(?=[A-Za-z/!?])(?!https?://[^\s<>]{1,2000}>)"  # what begins one; an address in angle brackets is a link
_SUMMARY_CHARS = 120


def document(facts: Facts, entries: Iterable[Entry]) -> Iterator[str]:
    """The pieces of a Markdown document, in order."""
    yield head(facts)
    for entry in entries:
        yield markdown(entry)


def head(facts: Facts) -> str:
    """What stands above the entries: the title and what is known about the session."""
    listed = "".join(f"- {name}: {code_span(value)}\n" for name, value in facts.known)
    return f"# {escaped(facts.heading)}\n\n{listed}\n"


def markdown(entry: Entry) -> str:
    """An entry as Markdown that ends in a blank line."""
    if entry.kind == "turn":
        return f"## {entry.label.capitalize()}\n\n"
    if entry.kind in ("prompt", "answer"):
        return f"### {escaped(one_line(entry.label)).capitalize()}\n\n{closed(entry.text)}\n\n"
    name, text = summary(entry), entry.text
    if not text:
        return f"*{escaped(name)}*\n\n"
    if entry.kind == "note":
        return f"*{escaped(name)}*\n\n{fenced(text)}\n\n"
    block = fenced(pretty(text), "json") if entry.kind in ("call", "other") else fenced(text)
    return f"<details>\n<summary>{html.escape(name, quote=False)}</summary>\n\n{block}\n\n</details>\n\n"


def summary(entry: Entry) -> str:
    """One line that says what an entry holds."""
    label = one_line(entry.label)
    if entry.kind == "call":
        shown = call_line(entry.text)
        return f"{label}: {shown[:_SUMMARY_CHARS]}{'…' if len(shown) > _SUMMARY_CHARS else ''}"
    if entry.kind == "result":
        lines = entry.text.rstrip("\n").count("\n") + 1
        return f"{label} {'failed' if entry.failed else 'result'}{f' ({lines} lines)' if lines > 1 else ''}"
    return label


def fenced(text: str, language: str = "") -> str:
    """A code block that no line of the text can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip(chr(10))}\n{fence}"


def code_span(text: str) -> str:
    """A line as code, whatever backticks are in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    mark = "`" * (longest + 1)
    blank = " " if text[:1] == "`" or text[-1:] == "`" else ""
    return f"{mark}{blank}{text}{blank}{mark}"


def closed(text: str) -> str:
    """Markdown of somebody else's that does not reach beyond its end: a fence that it leaves open is closed, and a tag
    that is not inside code is text."""
    opened: str | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        found = re.match(FENCE, line)
        if found is None:
            lines.append(line if opened is not None else escaped(line))
            continue
        mark, rest = found[1], found[2]
        lines.append(line)
        if opened is None:
            if mark[0] == "`" and "`" in rest:
                lines[-1] = escaped(line)
            else:
                opened = mark
        elif mark[0] == opened[0] and len(mark) >= len(opened) and not rest.strip():
            opened = None
    body = "\n".join(lines).rstrip("\n")
    return body if opened is None else f"{body}\n{opened}"


def escaped(line: str) -> str:
    """A line of Markdown in which no tag begins."""
    if "<" not in line or line.startswith(("    ", "\t")):
        return line
    parts, at = [], 0
    for code in re.finditer(_CODE_SPAN, line):
        parts += [re.sub(_TAG, "&lt;", line[at : code.start()]), code[0]]
        at = code.end()
    return "".join(parts) + re.sub(_TAG, "&lt;", line[at:])


def pretty(arguments: str) -> str:
    """JSON set for reading; what is no JSON as it is."""
    import json

    try:
        return json.dumps(loads(arguments), ensure_ascii=False, indent=2)
    except ValueError:
        return arguments
