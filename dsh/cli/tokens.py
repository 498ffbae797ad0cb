"""`dsh tokens`: about how many tokens the next request of a session would use, and what uses them."""

from __future__ import annotations

from typing import Any

import click

from dsh import query
from dsh.cli import output
from dsh.cli.common import db_flag, history, load_config
from dsh.cli.group import db_option
from dsh.core.lossless import loads
from dsh.kernel.config import Config
from dsh.query.naming import find_session
from dsh.session.meter import Measurement, Meter
from dsh.store.database import Database

_WORDS = 80


@click.command("tokens", short_help="Show how full a session's context is.")
@click.argument("session", metavar="ID")
@click.option("--nodes", "with_nodes", is_flag=True, help="List what the model sees: seq, tokens, type, first words.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; with --nodes it holds them too.")
@db_option
@click.pass_context
def command(ctx: click.Context, session: str, with_nodes: bool, as_json: bool) -> int:
    """Show how full a session's context is.

    ID may be the beginning of an id; - or last is the newest session. The total is what the provider reported for the
    last answer (baseline usage) or an estimate of 4 characters a token (baseline estimated), and what changed since.
    """
    with history(db_flag(ctx)) as db, db.snapshot():
        id_ = find_session(db, session)
        measured = Meter(db).measure(id_)
        window = _window(db, load_config(db), id_)
        nodes = _nodes(db, id_, measured) if with_nodes else None
    if as_json:
        output.json_line(_object(id_, measured, window, nodes))
    elif nodes is not None:
        person = output.is_terminal()
        rows = [
            [str(n["seq"]), f"{n['tokens']:,}" if person else str(n["tokens"]), output.one_line(n["type"]), n["text"]]
            for n in nodes
        ]
        output.table(["SEQ", "TOKENS", "TYPE", "TEXT"], rows, right=[0, 1])
    else:
        _table(measured, window)
    return 0


def _object(id_: str, measured: Measurement, window: int | None, nodes: list[dict[str, Any]] | None) -> dict[str, Any]:
    baseline: dict[str, Any] = {"kind": measured.baseline.kind, "tokens": measured.baseline.tokens}
    if measured.baseline.usage is not None:
        baseline["usage"] = measured.baseline.usage
    found: dict[str, Any] = {
        "sessionId": id_,
        "logRevision": measured.log_revision,
        "totalTokens": measured.total_tokens,
        "baseline": baseline,
        "surfaceDeltaTokens": measured.surface_delta_tokens,
        "surfaceTokens": measured.surface_tokens,
        "contextWindow": window,
    }
    return found if nodes is None else {**found, "nodes": nodes}


def _table(measured: Measurement, window: int | None) -> None:
    rows = [
        ["total", measured.total_tokens],
        [f"baseline {measured.baseline.kind}", measured.baseline.tokens],
        ["changed since", measured.surface_delta_tokens],
        ["surface", measured.surface_tokens],
    ]
    if window is not None:
        rows.append(["context window", window])
    person = output.is_terminal()
    shown = [[str(name), f"{tokens:,}" if person else str(tokens)] for name, tokens in rows]
    if window is not None:
        shown.append(["share", f"{measured.total_tokens / window:.1%}"])
    output.table(["WHAT", "TOKENS"], shown, right=[1])


def _window(db: Database, config: Config, id_: str) -> int | None:
    """The context window of the model that the session asked last, as far as it is known without asking anybody."""
    header = query.row(db, "header_in_force", session=id_)
    if header is None:
        return None
    asked = loads(header[1])["config"]
    table = config.providers.get(asked["provider"], {})
    if "context_window" in table:
        return int(table["context_window"])
    if asked["provider"] == "local":
        from dsh.llm.local import CONTEXT_WINDOW

        return CONTEXT_WINDOW
    if "deepseek" in (asked["provider"], table.get("kind")):
        from dsh.llm.catalogue import BY_ID

        known = BY_ID.get(asked["model"])
        return known.context_window if known is not None else None
    return None


def _nodes(db: Database, id_: str, measured: Measurement) -> list[dict[str, Any]]:
    tokens = dict(measured.nodes)
    rows = query.rows(db, "meter_surface", session=id_)
    return [
        {"seq": seq, "type": type_, "tokens": tokens[seq], "text": output.title(_first_words(loads(data)["content"]))}
        for seq, type_, data in rows
    ]


def _first_words(content: Any) -> str:
    """How a node begins: its first text, or the call it makes."""
    for block in content:
        if not isinstance(block, dict):
            continue
        if isinstance(text := block.get("text"), str) and text.strip():
            return text.strip()[:_WORDS]
        if block.get("type") == "tool-call":
            return f"{block.get('name')} {block.get('arguments')}"[:_WORDS]
    return ""
