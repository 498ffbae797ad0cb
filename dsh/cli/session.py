"""`dsh session`: what can be done with a session besides talking in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from dsh import query
from dsh.cli import output
from dsh.cli.common import db_flag, history, load_config, somebody_to_ask
from dsh.cli.group import db_option
from dsh.core.errors import UsageError
from dsh.core.lossless import dumps
from dsh.query.naming import find_session
from dsh.store import writes
from dsh.store.database import Database


@click.group("session", short_help="Rename, pin, hide, repair or delete sessions.")
@db_option
def command() -> None:
    """Rename, pin, hide, repair or delete sessions; show what is known about one.

    ID may be the beginning of an id; - or last is the newest session.
    """


def _found(db: Database, typed: Sequence[str]) -> list[str]:
    """The sessions that were named, each once."""
    return list(dict.fromkeys(find_session(db, each) for each in typed))


@command.command("show", short_help="Print what is known about a session.")
@click.argument("session", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@db_option
@click.pass_context
def show(ctx: click.Context, session: str, as_json: bool) -> int:
    """Print what is known about a session: its header, its state, who drives it, what was forked from it.

    In a pipe each fact is one line: name and value, separated by a tab.
    """
    with history(db_flag(ctx)) as db, db.snapshot():
        facts = _facts(db, find_session(db, session))
    if as_json:
        output.json_line(facts)
        return 0
    rows = [
        [name, output.one_line(_text(name, value))] for name, value in facts.items() if value not in (None, [], False)
    ]
    output.table(["FACT", "VALUE"], rows)
    return 0


def _facts(db: Database, id_: str) -> dict[str, Any]:
    from dsh.cli.sessions import session_object

    row = query.row(db, "session_list", cwd=None, depth=2**31, hidden=1, ids=dumps([id_]), limit=1)
    state = query.row(db, "session_state", session=id_)
    lease = query.row(db, "lease", session=id_)
    assert row is not None
    assert state is not None
    children = query.rows(db, "children_named", parent=id_)
    return {
        **session_object(row),
        "version": state[1],
        "replacements": state[10],
        "openTurn": state[13],
        "openStep": state[14],
        "process": lease[1] if lease is not None and writes.is_driven(*lease[1:]) else None,
        "forks": [sharer for sharer, _ in query.rows(db, "sharers", session=id_) if sharer != id_],
        "subagents": [child for child, depth in children if depth],
    }


def _text(name: str, value: Any) -> str:
    if name in ("createdAt", "updatedAt"):
        return output.utc(value)
    if isinstance(value, list):
        return " ".join(value)
    return "yes" if value is True else str(value)


@command.command("rename")
@click.argument("session", metavar="ID")
@click.argument("title", metavar="TITLE")
@db_option
@click.pass_context
def rename(ctx: click.Context, session: str, title: str) -> int:
    """Give a session a title, as dsh title --set does.

    It is kept in the session's log; a session that works just now cannot be renamed.
    """
    from dsh.cli.title import give

    with history(db_flag(ctx), read_only=False) as db:
        id_ = find_session(db, session)
        given = give(db, id_, title)
    output.remark(f"session {id_} is now called {given.title!r}")
    return 0


@command.command("repair")
@click.argument("session", metavar="ID")
@db_option
@click.pass_context
def repair(ctx: click.Context, session: str) -> int:
    """Close the turn that a crash left open, as the next run of the session would do it.

    Prints the events that were added, one JSON object per line: a result for each tool call that has none, the ends of
    the step and the turn. Nothing that was logged is changed; a session in order stays as it is.
    """
    with history(db_flag(ctx), read_only=False) as db:
        id_ = find_session(db, session)
        from dsh.core import lean

        lean.load_trio()
        from dsh.kernel.host import Host
        from dsh.session.sessions import Sessions

        state = query.row(db, "session_state", session=id_)
        assert state is not None
        stored = Sessions(Host(load_config(db)), db).prepare_stored(id_)  # which repairs it (PE-30)
        added = stored.events(state[9])
        stored.release()
        db.sync()
    for event in added:
        output.json_line({"sessionId": id_, **event})
    if not added:
        output.remark(f"session {id_} is in order")
    return 0


def _mark(
    ctx: click.Context, sessions: Sequence[str], write: Callable[[Database, str, int | None], None], at: int | None
) -> int:
    with history(db_flag(ctx), read_only=False) as db, db.transaction():
        for id_ in _found(db, sessions):
            write(db, id_, at)
    return 0


@command.command("pin")
@click.argument("sessions", metavar="ID...", nargs=-1, required=True)
@db_option
@click.pass_context
def pin(ctx: click.Context, sessions: Sequence[str]) -> int:
    """List sessions before all others, however old they are."""
    return _mark(ctx, sessions, writes.pin_session, writes.now_ms())


@command.command("unpin")
@click.argument("sessions", metavar="ID...", nargs=-1, required=True)
@db_option
@click.pass_context
def unpin(ctx: click.Context, sessions: Sequence[str]) -> int:
    """List sessions by their last activity again."""
    return _mark(ctx, sessions, writes.pin_session, None)


@command.command("hide")
@click.argument("sessions", metavar="ID...", nargs=-1, required=True)
@db_option
@click.pass_context
def hide(ctx: click.Context, sessions: Sequence[str]) -> int:
    """Leave sessions out of lists and searches. What a fork shares is still found there.

    A hidden session can be shown, resumed and forked by its id as ever; dsh sessions --hidden lists it.
    """
    return _mark(ctx, sessions, writes.hide_session, writes.now_ms())


@command.command("unhide")
@click.argument("sessions", metavar="ID...", nargs=-1, required=True)
@db_option
@click.pass_context
def unhide(ctx: click.Context, sessions: Sequence[str]) -> int:
    """Take hidden sessions into lists and searches again."""
    return _mark(ctx, sessions, writes.hide_session, None)


@command.command("delete", short_help="Delete sessions for good.")
@click.argument("sessions", metavar="ID...", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask; needed where nobody can answer.")
@click.option("--with-forks", is_flag=True, help="Delete the forks that show a session's events, too.")
@click.option("--hide", "hide_instead", is_flag=True, help="Hide a session that has such forks instead of deleting it.")
@db_option
@click.pass_context
def delete(ctx: click.Context, sessions: Sequence[str], yes: bool, with_forks: bool, hide_instead: bool) -> int:
    """Delete sessions for good: their events, and what search found in them. Their ids can be used again.

    A fork shows events of the session it was made from. A session that has forks is therefore deleted only together
    with them (--with-forks), or it is hidden instead (--hide). A session at work is not deleted. If anything is
    refused, nothing is deleted.

    At a terminal you are asked first; the exit code is 1 if you say no.
    """
    from dsh.session import forks

    if with_forks and hide_instead:
        raise UsageError("--with-forks and --hide exclude each other")
    with history(db_flag(ctx), read_only=False) as db:
        ids = _found(db, sessions)
        if not yes and not _agreed(db, ids, with_forks):
            output.note("nothing was deleted")
            return 1
        deleted, hidden = forks.delete(db, ids, with_forks=with_forks, hide=hide_instead)
        left = [child for id_ in deleted for child, _ in query.rows(db, "children_named", parent=id_)]
    for id_ in hidden:
        output.note(f"session {id_} is hidden, not deleted: forks show its events")
    if left:
        output.note(f"sessions that came from what was deleted stay: {', '.join(left[:10])}{' …' if left[10:] else ''}")
    output.remark(f"deleted: {', '.join(deleted) or 'nothing'}")
    return 0


def _agreed(db: Database, ids: Sequence[str], with_forks: bool) -> bool:
    """What a person at the terminal says to the deletion; UsageError if there is none."""
    somebody_to_ask("nobody can be asked whether to delete; --yes deletes without asking")
    doomed = dict.fromkeys(ids)
    if with_forks:
        doomed.update((sharer, None) for id_ in ids for sharer, _ in query.rows(db, "sharers", session=id_))
    for id_ in doomed:
        found = query.row(db, "session_title", session=id_)
        output.note(f"{id_} {output.title(found[0] if found else None)}")
    return click.confirm(f"dsh: delete {len(doomed)} session{'s' if len(doomed) > 1 else ''} for good?", err=True)
