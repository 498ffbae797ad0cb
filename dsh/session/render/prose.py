"""The Markdown of answers as HTML: headings, lists, tables, quotes, code, links, emphasis.

All text is escaped, none of it becomes a tag by itself, and each tag that is opened is closed again. What is not
understood stands there as it was written. The work grows with the length of a text, whatever is in it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable

from dsh.session.render.markdown import FENCE

_DEPTH = 8  # of lists and quotes inside one another; deeper ones are text
_HEADING = r" {0,3}(#{1,6})(?:[ \t]+(.*))?$"
_RULE = r" {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$"
_ITEM = r"[ \t]*([-*+]|\d{1,9}[.)])(?:[ \t]+|$)"
_QUOTE = r" {0,3}> ?"
_UNDER_HEAD = r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$"
_INLINE = (
    r"(?<!`)(?P<ticks>`{1,8})(?!`)(?P<code>.{1,1000}?)(?<!`)(?P=ticks)(?!`)"
    r"|\[(?P<label>[^\[\]]{1,300})\]\((?P<href>https?://[^\s()<>\"']{1,2000})\)"
    r"|(?P<url>https?://[^\s<>\"'`|)\]*]{1,2000})"
    r"|\*\*(?=\S)(?P<strong>.{1,400}?)(?<=\S)\*\*"
    r"|(?<![\w*])\*(?=[^\s*])(?P<em>[^*]{1,400})(?<=\S)\*(?![\w*])"
)


def prose(text: str) -> str:
    """A Markdown text as HTML."""
    return "".join(_blocks(text.split("\n"), 0))


def code(text: str, language: str = "") -> str:
    """A block of code, which is read from left to right whatever is written around it."""
    named = f' title="{html.escape(language)}"' if language else ""
    return f'<pre dir="ltr"{named}><code>{html.escape(text)}</code></pre>\n'


def _blocks(lines: list[str], depth: int) -> list[str]:
    parts: list[str] = []
    at = 0
    while at < len(lines):
        line, start = lines[at], at
        if not line.strip():
            at += 1
        elif mark := _fence(line):
            at = _first(lines, at + 1, lambda each, mark=mark: _ends(each, mark))  # type: ignore[misc]
            language = re.sub("^ *[`~]+", "", line).strip()
            parts.append(code("\n".join(lines[start + 1 : at]), language))
            at += 1
        elif heading := re.match(_HEADING, line):
            level = min(6, 3 + len(heading[1]))
            parts.append(f"<h{level}>{inline((heading[2] or '').strip().rstrip('#'))}</h{level}>\n")
            at += 1
        elif re.match(_RULE, line):
            parts.append("<hr>\n")
            at += 1
        elif "|" in line and at + 1 < len(lines) and re.match(_UNDER_HEAD, lines[at + 1]):
            at = _first(lines, at + 2, lambda each: "|" not in each)
            parts.append(_table(line, lines[start + 2 : at]))
        elif depth < _DEPTH and re.match(_QUOTE, line):
            at = _first(lines, at, lambda each: not re.match(_QUOTE, each))
            inner = _blocks([re.sub(f"^{_QUOTE}", "", each) for each in lines[start:at]], depth + 1)
            parts += "<blockquote>\n", *inner, "</blockquote>\n"
        elif depth < _DEPTH and re.match(_ITEM, line):
            items, at = _items(lines, at)
            parts += _list(line, items, depth + 1)
        else:
            at = _first(lines, at + 1, _begins)
            parts.append(f"<p>{inline(chr(10).join(lines[start:at]))}</p>\n")
    return parts


def _first(lines: list[str], at: int, wanted: Callable[[str], bool]) -> int:
    """The place of the first line from `at` on that is wanted, or the end."""
    while at < len(lines) and not wanted(lines[at]):
        at += 1
    return at


def _fence(line: str) -> str | None:
    """The mark of a fence that a line opens."""
    found = re.match(FENCE, line)
    return found[1] if found and not (found[1][0] == "`" and "`" in found[2]) else None


def _ends(line: str, mark: str) -> bool:
    found = re.match(FENCE, line)
    return bool(found and found[1][0] == mark[0] and len(found[1]) >= len(mark) and not found[2].strip())


def _begins(line: str) -> bool:
    """Whether a line ends the paragraph before it."""
    return not line.strip() or any(re.match(begin, line) for begin in (FENCE, _HEADING, _RULE, _ITEM, _QUOTE))


def _table(head: str, rows: list[str]) -> str:
    def cells(line: str, tag: str) -> str:
        parts = [part.strip() for part in line.strip().strip("|").split("|")]
        return "<tr>" + "".join(f"<{tag}>{inline(part)}</{tag}>" for part in parts) + "</tr>"

    body = "\n".join(cells(row, "td") for row in rows)
    return f"<table>\n<thead>{cells(head, 'th')}</thead>\n<tbody>\n{body}\n</tbody>\n</table>\n"


def _items(lines: list[str], at: int) -> tuple[list[list[str]], int]:
    """The items of the list that begins at a line, each as lines of its own, and the place behind the list."""
    items: list[list[str]] = []
    indent, ordered = _indent(lines[at]), _is_ordered(lines[at])
    while at < len(lines):
        found = re.match(_ITEM, lines[at])
        if found is None or _indent(lines[at]) > indent or _is_ordered(lines[at]) != ordered:
            break
        inside = _indent(lines[at]) + len(found[1]) + 1
        item = [lines[at][found.end() :]]
        at += 1
        while at < len(lines):
            line = lines[at]
            after = _first(lines, at, lambda each: bool(each.strip()))
            if after > at:  # blank lines are inside if what follows them is
                if after == len(lines) or _indent(lines[after]) <= indent:
                    break
                item.append("")
                at = after
            elif _indent(line) > indent:
                item.append(_dedented(line, inside))
                at += 1
            elif item[-1] and not _begins(line):
                item.append(line)
                at += 1
            else:
                break
        items.append(item)
        after = _first(lines, at, lambda each: bool(each.strip()))
        if after < len(lines) and re.match(_ITEM, lines[after]):
            at = after
    return items, at


def _list(first: str, items: list[list[str]], depth: int) -> list[str]:
    tag = "ol" if _is_ordered(first) else "ul"
    number = re.sub(r"\D", "", first.split()[0]) if tag == "ol" else ""
    parts = [f"<{tag}>\n" if number in ("", "1") else f'<{tag} start="{int(number)}">\n']
    for item in items:
        own = _first(item, 1, _begins)
        own = own if not _begins(item[0]) else 0
        parts += "<li>", inline("\n".join(item[:own])), *_blocks(item[own:], depth), "</li>\n"
    return [*parts, f"</{tag}>\n"]


def _is_ordered(item: str) -> bool:
    return item.lstrip()[:1].isdigit()


def _indent(line: str) -> int:
    """Columns before a line's text."""
    blank = line[: len(line) - len(line.lstrip(" \t"))]
    return len(blank) + 3 * blank.count("\t")


def _dedented(line: str, columns: int) -> str:
    """A line without so many of the columns before its text."""
    while columns > 0 and line[:1] in (" ", "\t"):
        columns -= 4 if line[0] == "\t" else 1
        line = line[1:]
    return line


def inline(text: str, depth: int = 0) -> str:
    """Text inside a block, with its code, links and emphasis."""
    parts: list[str] = []
    at = 0
    for found in re.finditer(_INLINE, text) if depth < 3 else ():
        parts.append(html.escape(text[at : found.start()]))
        at = found.end()
        if found["code"] is not None:
            parts.append(f"<code>{html.escape(found['code'])}</code>")
        elif found["label"] is not None:
            parts.append(_link(found["href"], inline(found["label"], 3)))
        elif found["url"] is not None:
            url = found["url"].rstrip(".,;:!?")
            at = found.start() + len(url)
            parts.append(_link(url, html.escape(url)))
        elif found["strong"] is not None:
            parts.append(f"<strong>{inline(found['strong'], depth + 1)}</strong>")
        else:
            parts.append(f"<em>{inline(found['em'], depth + 1)}</em>")
    return "".join(parts) + html.escape(text[at:])


def _link(target: str, shown: str) -> str:
    target = html.escape(target)
    return f'<a href="{target}" title="{target}" rel="noopener noreferrer">{shown}</a>'
