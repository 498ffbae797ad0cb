"""`scripts/rules`: the numbered rules of docs/spec that no test names, per file, and how many are proved.

A rule is a list item that opens with its number (`- SE-10 ...` or `- **SE-10** ...`). A test names it with
`@pytest.mark.rule("SE-10", ...)` on a function or class, in a module's `pytestmark` or in a parameter's
marks. Test files are only parsed, never imported. Exit code 0, or 2 for an unknown spec file.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RULE = re.compile(r"^\s*[-*] (?:\*\*)?([A-Z]{2,4}-\d+[a-z]?)\b")


def rules_of(text: str) -> list[str]:
    """The rule numbers that a spec file defines, in the order of the file."""
    found = (RULE.match(line) for line in text.splitlines())
    return list(dict.fromkeys(match.group(1) for match in found if match))


def named_in(source: str) -> set[str]:
    """The rule numbers that a test file names in a `...mark.rule(...)` call."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "rule"
            and isinstance(node.func.value, ast.Attribute)
            and node.func.value.attr == "mark"
        ):
            names |= {a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return names


def main(root: Path, wanted: list[str]) -> int:
    """Print the rules without a test, the table, and last the rules that tests name but no spec file has."""
    specs = {path.stem: rules_of(path.read_text("utf-8")) for path in sorted((root / "docs/spec").glob("*.md"))}
    specs = {name: rules for name, rules in specs.items() if rules}
    if unknown := [name for name in wanted if name not in specs]:
        print(f"rules: no such spec file: {', '.join(unknown)}", file=sys.stderr)
        return 2
    named: set[str] = set()
    for path in sorted((root / "tests").rglob("*.py")):
        named |= named_in(path.read_text("utf-8"))

    shown = {name: specs[name] for name in wanted or specs}
    for name, rules in shown.items():
        if missing := [rule for rule in rules if rule not in named]:
            print(f"{name}: {' '.join(missing)}")
    print()
    width = max(map(len, [*shown, "total"]))
    for name, rules in shown.items():
        print(f"{name:{width}}  {sum(rule in named for rule in rules):4}/{len(rules)}")
    everything = [rule for rules in shown.values() for rule in rules]
    print(f"{'total':{width}}  {sum(rule in named for rule in everything):4}/{len(everything)}")
    if strangers := named - {rule for rules in specs.values() for rule in rules}:
        print(f"\nnamed by tests, in no spec file: {' '.join(sorted(strangers))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(ROOT, sys.argv[1:]))
