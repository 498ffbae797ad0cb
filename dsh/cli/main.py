"""The edge of the program: from an argument vector to an exit code.

Only here do failures become one line on standard error and a number (HD-14); nothing prints a traceback unless
DSH_DEBUG=1. `--version` answers before anything is imported. A reader that has seen enough (`dsh search a | head -1`)
is no failure: the program ends quietly with 0, also when the pipe breaks only as the last buffer is flushed.
"""

from __future__ import annotations

import sys

from dsh import __version__

TYPE_CHECKING = False  # a type checker takes it for true; importing `typing` would be a third of `--version`
if TYPE_CHECKING:
    from typing import NoReturn

# Start-up makes some 60,000 objects that all live on. With the usual threshold of 700 the collector walks them over
# and over, which is a twentieth of a short run; a long one still has its cycles collected.
_GC_THRESHOLD = 100_000


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code. Does not raise, and leaves standard output flushed."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        if sys.stdout is None:
            return _fail("standard output is closed", 1)
        if arguments[:1] in (["--version"], ["-V"]):
            sys.stdout.write(f"dsh {__version__}\n")
            code = 0
        else:
            code = _command(arguments)
        sys.stdout.flush()
        return code
    except BaseException as error:  # noqa: BLE001 - the one place where every failure ends
        return _exit_code(error)


def run() -> NoReturn:
    """The `dsh` command."""
    import gc

    gc.set_threshold(_GC_THRESHOLD)
    _leave(main())


def _leave(code: int) -> NoReturn:
    """End the process without taking the interpreter apart, which would be a fifth of a short run.

    Everything is closed and flushed by now. Exit handlers still run, and where a plugin left a thread that the
    interpreter would wait for, the interpreter ends in its own way.
    """
    import atexit
    import os

    threading = sys.modules.get("threading")
    if threading is not None and any(not t.daemon for t in threading.enumerate() if t is not threading.main_thread()):
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(code)


def _command(arguments: list[str]) -> int:
    from dsh.core import lean

    lean.load_click()
    from dsh.cli import group, output

    output.prepare_streams()
    return group.invoke(arguments)


def _exit_code(error: BaseException) -> int:
    """Report a failure and name its exit code."""
    if _debug() and not isinstance(error, (SystemExit, BrokenPipeError)):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, SystemExit):
        _flush_or_drop()
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt):
        _flush_or_drop()
        return 130
    if isinstance(error, BrokenPipeError):
        _drop_output()
        return 0
    if isinstance(error, OSError):
        what = f"{error.filename}: " if error.filename is not None else "the output cannot be written: "
        _drop_output()
        return _fail(f"{what}{error.strerror or error}", 1)
    _flush_or_drop()
    from dsh.cli.failures import describe

    message, hint, code = describe(error)
    return _fail(message, code, hint)


def _fail(message: str, code: int, hint: str | None = None) -> int:
    """One line on standard error, and one more with the way on."""
    from dsh.cli.output import one_line

    for line in (message, hint):
        if line and sys.stderr is not None:
            try:
                sys.stderr.write(f"dsh: {one_line(line)}\n")
                sys.stderr.flush()
            except (OSError, ValueError):
                break
    return code


def _flush_or_drop() -> None:
    """What was already answered goes out before the failure is told; if it cannot, the failure still is."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        _drop_output()


def _drop_output() -> None:
    from dsh.cli.output import drop

    drop()


def _debug() -> bool:
    import os

    return os.environ.get("DSH_DEBUG") == "1"
