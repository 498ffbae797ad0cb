"""What a failure is called at the command line: a line, a hint, an exit code (HD-14)."""

from __future__ import annotations

from click.exceptions import ClickException, NoArgsIsHelpError, NoSuchOption, UsageError

from dsh.core.errors import DshError, blamed, exit_code, render_chain


def describe(error: BaseException) -> tuple[str, str | None, int]:
    """Message, hint and exit code; never raises."""
    if isinstance(error, UsageError):
        return _usage(error), _help_hint(error), 2
    if isinstance(error, ClickException):
        return _sentence(error.format_message()), None, error.exit_code
    if isinstance(error, DshError):
        return error.message, error.hint, exit_code(error.code)
    if isinstance(error, UnicodeEncodeError):
        return "an argument is not valid UTF-8", None, 2
    if blamed(error) is not None:
        return render_chain(error), None, 1
    return f"internal error: {type(error).__name__}: {render_chain(error)} (DSH_DEBUG=1 shows the traceback)", None, 1


def _usage(error: UsageError) -> str:
    if isinstance(error, NoArgsIsHelpError):  # its message would be the whole help
        return f"{error.ctx.command_path} needs a command"
    if isinstance(error, NoSuchOption):
        near = f" (did you mean {' or '.join(error.possibilities[:2])}?)" if error.possibilities else ""
        return f"no such option: {error.option_name}{near}"
    return _sentence(error.format_message())


def _sentence(text: str) -> str:
    text = " ".join(text.split()).removesuffix(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _help_hint(error: UsageError) -> str | None:
    hint = getattr(error, "hint", None)
    if isinstance(hint, str):
        return hint
    if error.ctx is None:
        return None
    path = error.ctx.command_path
    dashed = isinstance(error, NoSuchOption) and not error.possibilities
    if dashed and any(p.param_type_name == "argument" for p in error.ctx.command.params):  # "- a list", "-5 + 3"
        return f"see {path} --help; what begins with a dash and is no option goes behind two: {path} -- TEXT"
    return f"see {path} --help"
