"""Checks on the tree as a whole, for `scripts/lint`: lengths of files, and words that must not be in any.

A finding is one line on stdout, `file:line: what`; the exit code is 1 when there is one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LONGEST = 600

# A host that a file names ties the project to it, above all a package registry's: an index belongs to the user's
# configuration. So only providers that dsh knows by name, this machine, and names made for examples may stand in a URL.
HOSTS = re.compile(r"https?://(?:[^\s/@\"'`]*@)?([A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)")
KNOWN_HOSTS = re.compile(
    r"127\.0\.0\.1|example\.org|.*\.(?:example|invalid)"
    r"|api\.deepseek\.com|api\.openai\.com|openrouter\.ai|api\.perplexity\.ai|api\.exa\.ai"
)
# Paths of a developer's machine work nowhere else. (Spelt so that this file does not hold the words itself.)
PATHS = re.compile(r"(?<![\w.*)}\]/-])/(?:work|root)(?=[/\s\"'`]|$)|py" r"env\b(?!-)")


def tracked(root: Path) -> list[Path]:
    """What git tracks or would add; without git (an unpacked archive) every file outside dot folders."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        everything = (path for path in root.rglob("*") if path.is_file())
        return sorted(p for p in everything if not any(s.startswith(".") for s in p.relative_to(root).parts))
    return sorted(root / name for name in listing.split("\0") if name and (root / name).is_file())


def findings(path: Path, name: str) -> Iterator[str]:
    """What is wrong with one file; `name` is its path below the root."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return  # not text
    if path.suffix == ".py" and name.startswith(("dsh/", "tests/")) and len(lines) > LONGEST:
        yield f"{name}:{LONGEST}: {len(lines)} lines, more than {LONGEST}"
    for number, line in enumerate(lines, 1):
        for host in HOSTS.findall(line):
            if not KNOWN_HOSTS.fullmatch(host):
                yield f"{name}:{number}: names a host: {host}"
        if found := PATHS.search(line):
            yield f"{name}:{number}: names a path of one machine: {found.group()}"


def main(root: Path) -> int:
    """Print every finding below `root`."""
    found = [text for path in tracked(root) for text in findings(path, path.relative_to(root).as_posix())]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT))
