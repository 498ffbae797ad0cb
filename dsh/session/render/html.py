"""A session as one page of HTML that needs nothing else: no network, no script, no font.

Whatever a model or a tool wrote is escaped, and a content security policy allows the page its own style sheet and
nothing more, should anything have slipped through. Tools are folded, each event has an anchor (#s12), the prompts are
listed beside the text; it is readable in light and dark and on paper.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator

from dsh.session.render.entries import Entry
from dsh.session.render.facts import Facts, one_line, utc
from dsh.session.render.markdown import pretty, summary
from dsh.session.render.prose import code, prose

_LISTED_CHARS = 100

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --faint: #5c6670; --line: #d5dbe1; --page: #fff; --field: #f5f7f9;
  --own: #e9f1fb; --mark: #1456a8; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --text: #e2e6ea; --faint: #98a3ae; --line: #363d45; --page: #14171a;
  --field: #1d2126; --own: #1a2736; --mark: #82b4f2; --bad: #f28b82; } }
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; }
body { margin: 0 auto; padding: 1.5rem; max-width: 76rem; background: var(--page); color: var(--text);
  font: 16px/1.55 system-ui, sans-serif; overflow-wrap: anywhere; }
body > header { border-bottom: 1px solid var(--line); margin-bottom: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1rem; color: var(--faint); margin: 2rem 0 .75rem; border-top: 1px solid var(--line);
  padding-top: .75rem; }
h3 { font-size: .875rem; color: var(--faint); margin: 0 0 .25rem; }
h4, h5, h6 { font-size: 1.05rem; margin: 1rem 0 .4rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: 0 0 1rem; font-size: .875rem; }
dt { color: var(--faint); }
dd { margin: 0; }
a { color: var(--mark); }
.at { float: right; margin-left: 1rem; font-size: .75rem; font-weight: normal; }
.at a { color: var(--faint); text-decoration: none; }
hr { border: 0; border-top: 1px solid var(--line); margin: 1rem 0; }
.columns { display: flex; flex-direction: column; gap: 1.5rem; }
main { min-width: 0; }
main > h2:first-child { margin-top: 0; border: 0; padding: 0; }
article, details { margin: .75rem 0; }
article > div, p, li { unicode-bidi: plaintext; }
.prompt { background: var(--own); border-radius: .5rem; padding: .75rem 1rem; }
.plain { white-space: pre-wrap; }
.note { border-left: 3px solid var(--line); padding-left: 1rem; color: var(--faint); }
.failed > summary, .failed h3 { color: var(--bad); }
p { white-space: pre-line; margin: .5rem 0; }
pre { background: var(--field); border: 1px solid var(--line); border-radius: .375rem; padding: .6rem .8rem;
  margin: .5rem 0; overflow-x: auto; white-space: pre-wrap; font: .8125rem/1.45 ui-monospace, monospace; }
details pre { max-height: 32rem; overflow-y: auto; }
code { font-family: ui-monospace, monospace; font-size: .875em; background: var(--field); border-radius: .25rem; }
:not(pre) > code { padding: .1em .3em; }
pre code { font-size: inherit; background: none; }
details { border: 1px solid var(--line); border-radius: .375rem; padding: .35rem .75rem; font-size: .9375rem; }
summary { cursor: pointer; color: var(--faint); }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: .5rem 0; }
th, td { border: 1px solid var(--line); padding: .25rem .6rem; text-align: start; }
blockquote { margin: .5rem 0; padding-left: 1rem; border-left: 3px solid var(--line); color: var(--faint); }
:target { outline: 2px solid var(--mark); outline-offset: 2px; }
nav { order: -1; font-size: .875rem; max-height: 14rem; overflow-y: auto; }
nav h2 { margin-top: 0; border: 0; padding: 0; }
nav ol { padding-left: 1.75rem; margin: 0; }
nav li { margin: .25rem 0; }
nav a { text-decoration: none; }
@media (min-width: 62rem) {
  .columns { display: grid; grid-template-columns: minmax(0, 1fr) 17rem; gap: 2.5rem; align-items: start; }
  nav { order: 0; position: sticky; top: 1rem; max-height: calc(100vh - 2rem); }
}
@media print {
  :root { color-scheme: light; --text: #000; --faint: #444; --line: #bbb; --page: #fff; --field: #f6f6f6;
    --own: #f0f0f0; --mark: #000; --bad: #000; }
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  .columns { display: block; }
  nav { position: static; max-height: none; }
  details pre { max-height: none; }
  h1, h2, h3, h4, h5, h6, summary { break-after: avoid; }
  .prompt { border: 1px solid var(--line); }
  details::details-content { display: block; content-visibility: visible; block-size: auto; }
}
"""


def document(facts: Facts, entries: Iterable[Entry]) -> Iterator[str]:
    """The pieces of the page, in order. Only the list of prompts is kept until the end."""
    title = html.escape(facts.heading)
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
    )
    known = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>\n" for name, value in facts.known)
    yield f'<header>\n<h1 dir="auto">{title}</h1>\n<dl>\n{known}</dl>\n</header>\n<div class="columns">\n<main>\n'
    prompts: list[str] = []
    last = -1
    for entry in entries:
        if entry.kind == "prompt" and entry.label.startswith("you"):
            shown = one_line(entry.text[: 10 * _LISTED_CHARS])
            shown = shown if len(shown) <= _LISTED_CHARS else shown[:_LISTED_CHARS] + "…"
            prompts.append(f'<li><a dir="auto" href="#s{entry.seq}">{_text(shown) or "…"}</a></li>\n')
        yield _entry(entry, anchor=entry.seq != last)
        last = entry.seq
    listed = f"<nav>\n<h2>Prompts</h2>\n<ol>\n{''.join(prompts)}</ol>\n</nav>\n" if prompts else ""
    yield f"</main>\n{listed}</div>\n</body>\n</html>\n"


def _policy() -> str:
    """Only this very style sheet; nothing is loaded, run or sent."""
    import base64
    import hashlib

    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _entry(entry: Entry, *, anchor: bool) -> str:
    place = f' id="s{entry.seq}"' if anchor else ""
    stamp = utc(entry.time)
    failed = " failed" if entry.failed else ""
    said = stamp if entry.kind == "turn" else stamp[11:]
    at = f'<span class="at"><a href="#s{entry.seq}"><time datetime="{stamp}">{said}</time> · {entry.seq}</a></span>'
    if entry.kind == "turn":
        return f"<h2{place}>{at}{_text(entry.label.capitalize())}</h2>\n"
    if entry.kind in ("prompt", "answer", "note"):
        name = f"<h3>{at}{_text(one_line(entry.label).capitalize())}</h3>"
        body = (
            prose(_visible(entry.text)) if entry.kind == "answer" else f'<div class="plain">{_text(entry.text)}</div>\n'
        )
        return f'<article class="{entry.kind}{failed}"{place} dir="auto">\n{name}\n{body}</article>\n'
    text = pretty(entry.text) if entry.kind in ("call", "other") else entry.text
    return (
        f'<details class="{entry.kind}{failed}"{place}>\n<summary>{at}{_text(summary(entry))}</summary>\n'
        f"{code(_visible(text))}</details>\n"
    )


def _text(text: str) -> str:
    return html.escape(_visible(text))


def _visible(text: str) -> str:
    """Text without characters that no page may hold: control characters become visible signs."""
    return re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f]", _sign, text.replace("\r\n", "\n"))


def _sign(found: re.Match[str]) -> str:
    number = ord(found[0])
    return chr(0x2400 + number) if number < 0x20 else "\u2421" if number == 0x7F else "\ufffd"
