"""Sessions whose title has the words of a query: `in:title`."""

from __future__ import annotations

from dsh import query
from dsh.core.secrets import mask
from dsh.query.folding import finder, fold
from dsh.query.search import Hit
from dsh.query.search_filters import Filters
from dsh.query.snippet import snippet
from dsh.query.words import Near, Query, Term
from dsh.store.database import Database
from dsh.store.functions import HERE


def title_hits(db: Database, wanted: Query, filters: Filters, limit: int, snippet_chars: int) -> list[Hit]:
    """The sessions whose titles match, those with the latest activity first. Their time is that of the activity."""
    allowed = None
    if filters.models:
        rows = [query.rows(db, "search_model_sessions", part=part) for part in filters.models]
        allowed = {row[0] for found in rows for row in found}
    hits: list[Hit] = []
    for id_, title, time, cwd, source, hidden in query.rows(db, "search_titles"):
        if title is None or not filters.admits(time) or (allowed is not None and id_ not in allowed):
            continue
        if id_ != filters.session if filters.session is not None else hidden is not None:
            continue
        if filters.sources and (source or HERE) not in filters.sources:
            continue
        if filters.cwd is not None and not _is_below(cwd, filters.cwd, filters.exact_cwd):
            continue
        shown = mask(title)
        if not _matches(wanted, fold(shown)):
            continue
        cut = snippet(shown, wanted.terms, snippet_chars)
        row = query.row(db, "search_title_place", session=id_)
        hits.append(Hit(id_, row[0] if row else 0, "session/title", time, shown, cwd, cut.text, cut.matches))
        if len(hits) == limit:
            break
    return hits


def _is_below(cwd: str | None, folder: str, exact: bool) -> bool:
    return cwd == folder or (cwd is not None and not exact and cwd.startswith(folder.rstrip("/") + "/"))


def _matches(wanted: Query, folded: str) -> bool:
    return all(any(_has(folded, item) for item in group) for group in wanted.groups) and not any(
        _stands(folded, term) for term in wanted.excluded
    )


def _has(folded: str, item: Term | Near) -> bool:
    if isinstance(item, Near):
        return all(_has(folded, term) for term in item.terms)
    return finder(item.tokens, item.prefix).first(folded) is not None


def _stands(folded: str, term: Term) -> bool:
    return any(whole for whole, _ in finder(term.tokens, term.prefix).spans(folded))
