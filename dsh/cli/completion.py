"""`dsh completion`: what makes a shell complete dsh's command lines, and the answers to what it asks.

The script of a shell asks with the words of the line so far. They are read with the same declarations that click reads
them with, but nothing is run, no command is imported but the one that is named, and nobody is asked over the network:
each TAB is a start of the program. What a value is called in a help text (ID, DIR, MODEL) tells what it can be.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from dsh.cli import output
from dsh.cli.group import COMMANDS
from dsh.core.errors import DshError

if TYPE_CHECKING:
    from dsh.query.shelf import Saved

SHELLS = ("bash", "zsh", "fish")
SNIPPETS = Path(__file__).parent / "shell"

_SESSIONS = 100  # of those that begin so, the newest


class Offer(NamedTuple):
    """A word that may stand there, and what to know about it."""

    value: str
    about: str = ""


class Place(NamedTuple):
    """Where in a command line a word is typed: the command there, the option or argument whose value it is (None for a
    name of a command or an option), the arguments given before, the database that the line names."""

    command: click.Command
    parameter: click.Parameter | None
    names_option: bool
    given: Sequence[str]
    db: str | None


FILES, FOLDERS = Offer("", "files"), Offer("", "folders")  # let the shell complete them, it does that better


@click.command("completion", short_help="Print what makes a shell complete commands.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.argument("words", nargs=-1, metavar="")
@click.pass_context
def command(ctx: click.Context, shell: str, words: Sequence[str]) -> int:
    """Print the script that completes dsh's commands, options and values in a shell.

    \b
    bash   eval "$(dsh completion bash)"      in ~/.bashrc
    zsh    eval "$(dsh completion zsh)"       in ~/.zshrc
    fish   dsh completion fish | source       in ~/.config/fish/config.fish
    """
    if not words:
        output.write((SNIPPETS / f"completion.{shell}").read_text("utf-8"))
        return 0
    typed = list(words)
    if shell == "bash":  # a line
        typed = split(words[0])
    elif shell == "fish":  # words, the last as it is typed, with its quotes
        typed[-1] = split(f"dsh {words[-1]}")[-1]
    for offer in offers(typed):
        output.line(f"{offer.value}\t{offer.about}" if shell != "bash" or not offer.value else offer.value)
    return 0


def split(line: str) -> list[str]:
    """The words of a line without the program's name, the last of which is not finished (perhaps not begun)."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        for word in lexer:
            words.append(word)  # noqa: PERF402 - what was read before an open quote counts
    except ValueError:
        return [*words, lexer.token][1:]
    return words[1:] if line[-1:].strip() and len(words) > 1 else [*words[1:], ""]


def offers(words: Sequence[str]) -> list[Offer]:
    """What may take the place of the last word; nothing where that cannot be known."""
    place = find(words)
    if place is None:
        return []
    typed = words[-1]
    head = ""
    if place.names_option:
        return list(_beginning([*_options(place.command), *_parameters(place)], typed))
    if place.parameter is None:
        return list(_beginning(_commands(place.command), typed))
    if isinstance(place.parameter, click.Option) and typed.startswith("--"):
        name, equals, typed = typed.partition("=")
        head = name + equals
    found: Iterable[Offer] = ()
    with suppress(DshError, OSError):  # a database that cannot be read has nothing to offer
        found = list(_values(place, typed))
    return [
        each if each in (FILES, FOLDERS) else each._replace(value=head + each.value)
        for each in _beginning(found, typed)
    ]


def _beginning(found: Iterable[Offer], typed: str) -> Iterator[Offer]:
    for each in found:
        if each in (FILES, FOLDERS) or (each.value.startswith(typed) and each.value.isprintable()):
            yield each


def find(words: Sequence[str]) -> Place | None:
    """Where the last word stands; None after a command that there is not."""
    from dsh.cli.group import dsh

    at: click.Command = dsh
    given: list[str] = []
    waiting: click.Option | None = None  # whose value comes next
    only_arguments = False
    db: str | None = None
    for word in words[:-1]:
        if waiting is not None:
            db = word if waiting.name == "db" else db
            waiting = None
        elif word == "--" and not only_arguments:
            only_arguments = True
        elif word.startswith("-") and len(word) > 1 and not only_arguments:
            waiting = _waiting(at, word)
        elif isinstance(at, click.Group):
            inner = at.get_command(click.Context(at), word)
            if inner is None:
                return None
            at, given = inner, []
        else:
            given.append(word)
    typed = words[-1]
    if waiting is not None:
        return Place(at, waiting, False, given, db)
    if typed.startswith("-") and not only_arguments:
        named = _option(at, typed.partition("=")[0]) if typed.startswith("--") and "=" in typed else None
        return Place(at, named, named is None, given, db)
    if isinstance(at, click.Group):
        return Place(at, None, False, given, db)
    arguments = [p for p in at.params if isinstance(p, click.Argument)]
    for index, argument in enumerate(arguments):
        if argument.nargs < 0 or index == len(given):
            return Place(at, argument, False, given, db)
    return None


def _option(at: click.Command, name: str) -> click.Option | None:
    return next((p for p in at.params if isinstance(p, click.Option) and name in (*p.opts, *p.secondary_opts)), None)


def _waiting(at: click.Command, word: str) -> click.Option | None:
    """The option of a word that takes the next one for its value."""
    if word.startswith("--"):
        option = None if "=" in word else _option(at, word)
        return option if option is not None and not option.is_flag else None
    for index, letter in enumerate(word[1:], 1):
        option = _option(at, f"-{letter}")
        if option is None:
            return None
        if not option.is_flag:
            return option if index == len(word) - 1 else None
    return None


def _options(at: click.Command) -> Iterator[Offer]:
    for parameter in at.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            about = (parameter.help or "").partition(". ")[0].removesuffix(".")
            for name in sorted((*parameter.opts, *parameter.secondary_opts), key=len, reverse=True):
                yield Offer(name, about)
    yield Offer("--help", "Show this message and exit")


def _commands(at: click.Command) -> Iterator[Offer]:
    """From the table, or those of a group below it."""
    if isinstance(at, click.Group):
        if at.commands:
            for name, inner in at.commands.items():
                yield Offer(name, inner.get_short_help_str(60).removesuffix("."))
        else:
            for name, (_, about) in COMMANDS.items():
                yield Offer(name, about.removesuffix("."))


# ---------------------------------------------------------------------------------------------------------- values


def _values(place: Place, typed: str) -> Iterable[Offer]:
    """What an option or argument takes, of what is known."""
    parameter = place.parameter
    assert parameter is not None
    if isinstance(parameter.type, click.Choice):
        return [Offer(str(choice)) for choice in parameter.type.choices]
    if isinstance(parameter.type, click.Path):
        return [FILES if parameter.type.file_okay else FOLDERS]
    command, name = place.command.name or "", parameter.name or ""
    reader = _BY_NAME.get((command, name)) or _BY_NAME.get(("", name)) or _BY_WORD.get(_word(parameter))
    return reader(place, typed) if reader is not None else ()


def _word(parameter: click.Parameter) -> str:
    """How help calls a value: ID, DIR, FILE, …"""
    return (parameter.metavar or "").strip("[].").removesuffix("[:SEQ")


def _sessions(place: Place, typed: str) -> Iterator[Offer]:
    from dsh import query
    from dsh.cli.common import reading

    with reading(place.db) as db:
        for id_, title, time in query.rows(db, "sessions_begun", prefix=typed, limit=_SESSIONS):
            yield Offer(id_, f"{output.fit(output.one_line(title) or '(no title)', 60)}, {output.age(time)}")


def _models(place: Place, typed: str) -> Iterator[Offer]:
    from dsh import query
    from dsh.cli.common import NoHistory, reading
    from dsh.kernel import config
    from dsh.llm.catalogue import DEEPSEEK

    known = dict.fromkeys([str(config.load()["model"]), *(model.id for model in DEEPSEEK)])
    with suppress(NoHistory), reading(place.db) as db:
        known = {**dict.fromkeys(row[0] for row in query.rows(db, "models_used", sessions=_SESSIONS)), **known}
    return (Offer(model) for model in known if model)


def _providers(place: Place, typed: str) -> Iterator[Offer]:
    from dsh.kernel import config
    from dsh.llm.routes import BUILT_IN, LOCAL

    about = {name: built_in.title for name, built_in in BUILT_IN.items()}
    names = dict.fromkeys([*BUILT_IN, *config.load().providers, LOCAL])
    return (Offer(name, about.get(name, "")) for name in names)


def _settings(place: Place, typed: str) -> Iterator[Offer]:
    from dsh.kernel.config import SETTINGS

    return (Offer(setting.key, setting.help) for setting in SETTINGS.values())


def _setting_value(place: Place, typed: str) -> Iterator[Offer]:
    from dsh.kernel.config import SETTINGS

    setting = SETTINGS.get(place.given[0]) if place.given else None
    if setting is not None and setting.key in ("model", "provider"):
        return (_models if setting.key == "model" else _providers)(place, typed)
    return map(Offer, ("true", "false") if setting is not None and setting.type is bool else ())


def _types(place: Place, typed: str) -> Iterator[Offer]:
    from dsh.query.search_filters import TYPES

    return (Offer(name, "" if name in types else ", ".join(types)) for name, types in TYPES.items())


def _shelf(place: Place) -> Mapping[str, Saved]:
    from dsh.cli.common import NoHistory, reading
    from dsh.query import shelf

    try:
        with reading(place.db) as db:
            return shelf.every(db)
    except NoHistory:
        return shelf.every(None)


def _queries(place: Place, typed: str) -> Iterator[Offer]:
    for saved in _shelf(place).values() if not place.given else ():
        yield Offer(saved.name, output.one_line(saved.about))


def _parameters(place: Place) -> Iterator[Offer]:
    """The options that a saved query has besides those of `dsh query`."""
    if place.command.name == "query" and place.given:
        with suppress(DshError, OSError):
            saved = _shelf(place).get(place.given[0])
            for parameter in saved.parameters if saved is not None else ():
                yield Offer(f"--{parameter.name}", output.one_line(parameter.about))


def _own_queries(place: Place, typed: str) -> Iterator[Offer]:
    from dsh import query
    from dsh.cli.common import reading

    with reading(place.db) as db:
        for name, _, about, _ in query.rows(db, "saved_queries"):
            yield Offer(name, output.one_line(about))


def _sources(place: Place, typed: str) -> Iterator[Offer]:
    from dsh.importing.registry import TOOLS

    return (Offer(name, about) for name, about in {"dsh": "", **TOOLS}.items())


def _imported(place: Place, typed: str) -> Iterable[Offer]:
    """A tool, and where its histories are."""
    return _first(place, typed, _sources(place, typed)) or (FILES,)


def _synced(place: Place, typed: str) -> Iterable[Offer]:
    return _first(place, typed, map(Offer, ("push", "pull"))) or (FOLDERS,)


def _first(place: Place, typed: str, found: Iterable[Offer]) -> Sequence[Offer]:
    """What may stand in the first of several places, if this is it and it begins so."""
    return [] if place.given else list(_beginning(found, typed))


Reader = Callable[[Place, str], Iterable[Offer]]

# By what the help calls the value.
_BY_WORD: Mapping[str, Reader] = {
    "ID": _sessions,
    "MODEL": _models,
    "P/M": _models,
    "DIR": lambda place, typed: (FOLDERS,),
    "FILE": lambda place, typed: (FILES,),
    "PATH": lambda place, typed: (FILES,),
}
# By command ("" for any) and parameter, where that says more.
_BY_NAME: Mapping[tuple[str, str], Reader] = {
    ("", "provider"): _providers,
    ("search", "models"): _models,
    ("search", "sources"): _sources,
    ("", "key"): _settings,
    ("run", "session"): _sessions,
    ("search", "types"): _types,
    ("set", "value"): _setting_value,
    ("backup", "file"): lambda place, typed: (FILES,),
    ("import", "words"): _imported,
    ("sync", "words"): _synced,
    ("query", "words"): _queries,
    ("query", "show"): _queries,
    ("query", "delete"): _own_queries,
}
