"""A page of HTML read with the parser of the standard library: is it well formed, and what is in it."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset({"meta", "hr", "br"})
# Everything that the exporter writes. Whatever else appears came out of a text.
_TAGS = """html head meta title style body header main article details summary nav h1 h2 h3 h4 h5 h6 dl dt dd ol ul li
  a div span p pre code table thead tbody tr th td blockquote strong em time hr"""
TAGS = frozenset(_TAGS.split())
_ATTRIBUTES = "lang charset http-equiv content name class id dir href title rel datetime start"
ATTRIBUTES = frozenset(_ATTRIBUTES.split())


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class Page:
    elements: list[Element] = field(default_factory=list)
    text: str = ""

    def all(self, tag: str, class_: str | None = None) -> list[Element]:
        return [
            e
            for e in self.elements
            if e.tag == tag and (class_ is None or class_ in e.attributes.get("class", "").split())
        ]

    @property
    def ids(self) -> list[str]:
        return [e.attributes["id"] for e in self.elements if "id" in e.attributes]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()
        self.open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        assert tag in TAGS, f"<{tag}> is nothing that we write"
        assert set(attributes) <= ATTRIBUTES, f"<{tag}> has {attributes}"
        assert len(attributes) == len(attrs)
        if "href" in attributes:
            assert re.match(r"#s\d+$|https?://", attributes["href"]), attributes
        element = Element(tag, attributes)
        self.page.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data
        self.page.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data!r}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"an instruction: {data!r}")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f"a declaration: {data!r}")


def read_html(text: str) -> Page:
    """What is in a piece of HTML; the test fails if it is not well formed or has anything in it that we never write."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open, f"never closed: {[e.tag for e in reader.open]}"
    return reader.page


def read_page(text: str) -> Page:
    """The same for a whole page, whose policy allows its own style sheet and nothing else."""
    assert text.startswith("<!doctype html>\n")
    page = read_html(text)
    assert len(set(page.ids)) == len(page.ids)
    for link in page.all("a"):
        target = link.attributes["href"]
        assert target.startswith("http") or target[1:] in page.ids, target
    [policy] = [
        e.attributes["content"] for e in page.all("meta") if e.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    [style] = page.all("style")
    digest = base64.b64encode(hashlib.sha256(style.text.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert "url(" not in style.text
    assert "@import" not in style.text
    return page
