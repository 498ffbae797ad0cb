"""Makes docs/cli.md and docs/schema.md from the commands, the schema and the settings, or checks that they are so.

Everything in them comes from where it is defined: help texts from the commands, exit codes from rule HD-14, views and
their comments from dsh/schema.sql, columns from a database made with it, codes from its triggers.
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from dsh.cli.group import COMMANDS, dsh
from dsh.kernel.config import SETTINGS
from dsh.store import database
from dsh.store.database import Database

ROOT = Path(__file__).resolve().parent.parent.parent
MADE = "<!-- Made by scripts/docs; do not edit. -->"
WIDTH = 100


def cli() -> str:
    """The text of docs/cli.md."""
    parts = [
        "# Command line",
        MADE,
        "Answers go to standard output, everything else to standard error. Whatever lists things prints one line per "
        "thing in a pipe and has `--json` for JSON Lines; field order and tabs of both stay as they are. Colours only "
        "go to a terminal, and not if `NO_COLOR` is set.",
        _help(dsh, ["dsh"]),
    ]
    for name in COMMANDS:
        command = importlib.import_module(COMMANDS[name][0]).command
        parts.append(f"## dsh {name}")
        parts.append(_help(command, ["dsh", name]))
        if isinstance(command, click.Group):
            parts += [_help(sub, ["dsh", name, key]) for key, sub in command.commands.items()]
    parts += ["## Exit codes", _exit_codes()]
    return "\n\n".join(parts) + "\n"


def _help(command: click.Command, path: list[str]) -> str:
    context: click.Context | None = None
    for name in path[:-1]:
        context = click.Context(click.Group(name), info_name=name, parent=context)
    last = click.Context(
        command, info_name=path[-1], parent=context, help_option_names=["-h", "--help"], terminal_width=WIDTH
    )
    text = command.get_help(last)
    return f"```\n{text.rstrip()}\n```"


def _exit_codes() -> str:
    """The table of rule HD-14."""
    spec = (ROOT / "docs" / "spec" / "hooks-mcp-config.md").read_text("utf-8")
    rule = spec[spec.index("- **HD-14**") :]
    return "\n".join(line for line in rule[: rule.index("- **HD-15**")].splitlines() if line.startswith("|"))


def schema() -> str:
    """The text of docs/schema.md."""
    sql = (ROOT / "dsh" / "schema.sql").read_text("utf-8")
    parts = [
        "# Database",
        MADE,
        "One SQLite file holds everything. `dsh config path` tells where it is, `dsh sql` queries it, and so does any "
        "other SQLite client. The views below are what may be relied on; tables are private. Times are milliseconds "
        "since 1970, JSON is text. The whole definition is in `dsh/schema.sql`.",
        "## Views",
        "\n\n".join(_views(sql)),
        "## Writing",
        "Appending is an INSERT into `event`, a new session an INSERT into `session`, also from a stock `sqlite3` "
        "shell. What breaks a rule is refused with one of these codes as the error message:",
        _codes(sql),
        "## Settings",
        "Kept in the view `setting` by `dsh config set`; a DSH_* variable and the personal file come first.",
        _settings(),
    ]
    return "\n\n".join(parts) + "\n"


def _views(sql: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        db = Database.open(Path(folder) / "docs.db")
        names = [r[0] for r in db.rows("SELECT name FROM sqlite_schema WHERE type = 'view' ORDER BY rowid")]
        for name in names:
            if name.startswith("_"):
                continue
            columns = [r[1] for r in db.rows(f"PRAGMA table_info({name})")]
            told = _comment(sql, name)
            yield f"### {name}\n\n{told}{', '.join(f'`{c}`' for c in columns)}"
        db.close()


def _comment(sql: str, view: str) -> str:
    """What the schema says about a view: the comment behind its AS, or at the end of its first line."""
    found = re.search(
        rf"CREATE VIEW {view}\b\([^)]*\) AS[^\n]*?(?:-- ([^\n]*))?\n(?:  SELECT[^\n]*?-- ([^\n]*)\n)?", sql
    )
    text = (found[1] or found[2]) if found else None
    if not text:
        return ""
    if re.fullmatch(r"[A-Z]{2}-\d+(, [A-Z]{2}-\d+)*", text):
        return f"Rules {text}.\n\n"
    return f"{text[0].upper()}{text[1:]}.\n\n"


_RAISE = re.compile(r"RAISE\(ABORT, '([A-Z_]+)'\)")
_RULES = re.compile(r"--.*?\b([A-Z]{2}-\d+(?:(?:, | to )(?:[A-Z]{2}-)?\d+)*)")


def _codes(sql: str) -> str:
    rules: dict[str, set[str]] = {}
    trigger: re.Match[str] | None = None
    for line in sql.splitlines():
        named = _RULES.search(line)
        if line.startswith("CREATE TRIGGER"):
            trigger = named
        for code in _RAISE.findall(line):
            told = named or trigger
            rules.setdefault(code, set()).update([told[1]] if told else [])
    rows = [f"| `{c}` | {database._REFUSALS.get(c, '')} | {', '.join(sorted(rules[c]))} |" for c in sorted(rules)]
    return "\n".join(["| code | meaning | rules |", "|---|---|---|", *rows])


def _settings() -> str:
    rows = []
    for setting in SETTINGS.values():
        default = ", ".join(setting.default) if isinstance(setting.default, list) else setting.default
        shown = f"`{str(default).lower() if isinstance(default, bool) else default}`" if default != "" else ""
        rows.append(f"| `{setting.key}` | {setting.type.__name__} | {shown} | {setting.help} |")
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])


def main(arguments: list[str]) -> int:
    """Write the files, or with --check name those that differ."""
    if arguments not in ([], ["--check"]):
        print("usage: scripts/docs [--check]", file=sys.stderr)
        return 2
    stale = []
    for name, make in (("cli.md", cli), ("schema.md", schema)):
        path = ROOT / "docs" / name
        text = make()
        if path.exists() and path.read_text("utf-8") == text:
            continue
        stale.append(f"docs/{name}")
        if not arguments:
            path.write_text(text, "utf-8")
    if arguments and stale:
        print("\n".join(stale))
        print("scripts/docs writes them anew", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
