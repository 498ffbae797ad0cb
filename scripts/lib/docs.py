"""Makes docs/cli.md and docs/schema.md from the commands, the schema and the settings, or checks that they are so.

Everything in them comes from where it is defined: help texts from the commands, exit codes from rule HD-14, views and
columns from a database made with the schema, what is said of them from dsh/query/views.toml, codes from its
triggers. The prose around them is in schema.md beside this file.
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
from dsh.query import catalog
from dsh.store import database, migrations
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
        "thing in a pipe and has `--json` for JSON Lines; field order and tabs of both stay as they are. (`dsh sql` "
        "and `dsh query` have `--jsonl` for them; their `--json` is one array.) [json.md](json.md) names keys. "
        "Colours only go to a terminal, and not if `NO_COLOR` is set.",
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
    """The text of docs/schema.md: schema.md beside this file, with what is made put in for its {names}."""
    text = (Path(__file__).parent / "schema.md").read_text("utf-8").rstrip()
    made = {
        "made": MADE,
        "views": "\n\n".join(_views()),
        "codes": _codes(migrations.schema_text()),
        "settings": _settings(),
    }
    for name, part in made.items():
        text = text.replace(f"{{{name}}}", part)
    return text + "\n"


def _views() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        db = Database.open(Path(folder) / "docs.db")
        for view in catalog.views(db):
            rows = [f"| `{c.name}` | {c.type} | {c.comment} |" for c in view.columns]
            columns = "\n".join(["| column | type | |", "|---|---|---|", *rows])
            yield f"### {view.name}\n\n{view.about}\n\n{columns}\n\n```sql\n{view.example};\n```"
        db.close()


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
