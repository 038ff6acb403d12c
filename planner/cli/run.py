"""Running the command line: exit codes, errors as text or as one JSON document, no traceback."""

import errno
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any, TextIO

import typer

from planner.errors import (
    Fault,
    InfeasibleError,
    NoAnswerError,
    PlannerError,
    SolverError,
    SpecError,
    StoppedError,
    is_due_to,
)
from planner.memory import OUT_OF_MEMORY, ceiling_kept

INTERRUPTED = 130  # 128 and the signal's number, as shells have it
_LIMIT = (NoAnswerError, SolverError)
_OF_WRITING = (errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EBADF)  # without a name: files of ours have one


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code: 0, 1, 2 or 3 as the errors' tree says, 70 for a bug of ours.

    130 after Ctrl-C, whenever it comes, but for a search that has an answer: the first one ends it with that.
    """
    is_json = "--json" in arguments
    _prepare(sys.stdout, is_json=is_json)
    try:
        with ceiling_kept():
            code = _run(arguments, is_json=is_json)
    except KeyboardInterrupt:
        _say("interrupted", sys.stderr)
        code = INTERRUPTED
    for stream in (sys.stdout, sys.stderr):
        _end(stream)
    return code


def _run(arguments: Sequence[str], *, is_json: bool) -> int:
    """Run one command; a Ctrl-C leaves as it came."""
    import typer

    usage_error = _usage_error(typer.BadParameter)
    try:
        if os.environ.get("_PLANNER_COMPLETE") == "source_zsh":
            from planner.cli.completion import ZSH

            print(ZSH, flush=True)
            return 0
        app = program([one for one in arguments[:1] if one in _COMMANDS] or _COMMANDS)
        code = app(args=list(arguments), prog_name="planner", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # typer leaves in silence after Ctrl-C
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except typer.Exit as leaving:
        return leaving.exit_code
    except PlannerError as error:
        return _fail(error, is_json=is_json)
    except usage_error as error:
        return _usage(error, is_json=is_json)
    except typer.Abort:  # what click makes of Ctrl-C at its own questions
        raise KeyboardInterrupt from None
    except BrokenPipeError:  # the reader went away: `planner show devices | head`
        return 0
    except SystemExit as leaving:  # what click makes of the same
        if isinstance(leaving.__context__, BrokenPipeError):
            return 0
        raise
    except Exception as error:
        return _unforeseen(error, is_json=is_json)


def _unforeseen(error: Exception, *, is_json: bool) -> int:
    """Report what is no error of a command's own, and return its exit code; a wrapped Ctrl-C leaves as it came."""
    if is_due_to(error, KeyboardInterrupt):
        raise KeyboardInterrupt from error
    if os.environ.get("PLANNER_DEBUG"):
        raise error
    if isinstance(error, OSError):
        return _fail(_refused(error), is_json=is_json)
    if isinstance(error, MemoryError):
        return _fail(NoAnswerError(OUT_OF_MEMORY), is_json=is_json)
    return _bug(error, is_json=is_json)


def _prepare(stream: Any, *, is_json: bool) -> None:
    """Let a stream take every letter: what its encoding lacks is written as an escape; JSON is UTF-8 everywhere."""
    if not hasattr(stream, "reconfigure"):  # not a stream of text of Python's own
        return
    if is_json:
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    elif stream.errors == "strict":
        stream.reconfigure(errors="backslashreplace")


def _say(text: str, stream: TextIO) -> None:
    """Print; where nobody can be told, the exit code must do."""
    with suppress(OSError):
        print(text, file=stream, flush=True)


def _end(stream: TextIO) -> None:
    """Send on what was printed; let go what cannot be, or the interpreter would complain of it as it ends."""
    try:
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _refused(error: OSError) -> SpecError:
    """Return the error of what the system refused: a full disk, no more files, a folder that is gone."""
    named = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    where = named[0] if named else "stdout" if error.errno in _OF_WRITING else "system"
    mend = "Look at the disk, at permissions and at the limits of this process, and give the same command again."
    return SpecError.one(f"the system refuses this: {error.strerror or error}.", mend, file=where)


def _bug(error: Exception, *, is_json: bool) -> int:
    """Report what should not have happened, and return its exit code."""
    from planner.plugins import blamed, loaded

    plugin = blamed(error)
    others = "".join(f", or of the {one.words}" for one in loaded())  # what one returned may be what failed
    whose = f"a bug of ours{others}" if plugin is None else f"the {plugin.words} failed"
    told = "please report it" if plugin is None else "report it to its authors"
    message = f"planner: {whose}: {type(error).__name__}: {error}"
    _say(f"{message}\nSet PLANNER_DEBUG=1 for the traceback, and {told}.", sys.stderr)
    if is_json:
        from planner.answer.documents import dump, error_document

        _say(dump(error_document(PlannerError(message), kind="bug")), sys.stdout)
    return 70


def _usage_error(known: type[Exception]) -> type[Exception]:
    """Return the root of all errors of a command line: typer makes only this descendant of it public."""
    named = [kind for kind in known.__mro__ if kind.__name__ == "ClickException" and issubclass(kind, Exception)]
    return named[0] if named else known


_OF_LIBRARY = (  # pydantic's words for what typer refuses, and the field's
    (": Value error, ", ": "),
    ("Input should be a valid integer, .*", "it must be a whole number, in digits alone, e.g. 1024"),
    ("Input should be a valid number, .*", "it must be a number, e.g. 1.5"),
    (r"Input should be greater than or equal to (\S+)", r"it must be \1 or more"),
    (r"Input should be less than or equal to (\S+)", r"it must be \1 or less"),
)


def _usage(error: BaseException, *, is_json: bool) -> int:
    """Report a wrong command line."""
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if not message or type(error).__name__ == "NoArgsIsHelpError":  # its message is the help, or that was printed
        _say(message, sys.stderr)
        return 2
    for theirs, ours in _OF_LIBRARY:
        message = re.sub(theirs, ours, message)
    ended = message if message.endswith((".", "?")) else f"{message}."
    fault = Fault(file="command line", problem=ended, mend="Try --help.")
    return _fail(SpecError.of([fault]), is_json=is_json)


def _fail(error: PlannerError, *, is_json: bool) -> int:
    """Print an error, as text to stderr or as a document to stdout, and return its exit code."""
    kind, code = "input", 2
    if isinstance(error, InfeasibleError):
        kind, code = "infeasible", 1
    elif isinstance(error, _LIMIT):
        kind, code = "limit", INTERRUPTED if isinstance(error, StoppedError) else 3
    if is_json:
        from planner.answer.documents import dump, error_document

        try:
            print(dump(error_document(error, kind=kind)), flush=True)
        except OSError:  # stdout itself is full: somebody may still read the other stream
            _say(str(error), sys.stderr)
    else:
        _say(str(error), sys.stderr)
    return code


# --- All commands, put together

_COMMANDS = {  # the module of each, and its name there where that is another
    **dict.fromkeys(("plan", "predict", "procure"), "plan"),
    "sweep": "sweep",
    **dict.fromkeys(("explain", "compare", "check"), "answers"),
    **dict.fromkeys(("init", "show", "schema"), "show"),
    "case": "case",
    "calibrate": "calibrate",
    "export": "answers",
    "serve": "serve",
    "import": "import_network:import_network",
    "prices": "prices",
}


def _version(is_asked: bool) -> None:
    """Print the version and stop, if that was asked."""
    if is_asked:
        from planner.plugins import planner_version

        print(f"planner {planner_version()}")
        raise typer.Exit


def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Find the provably fastest way to train a deep neural network on given machines."""


def program(names: Iterable[str] = tuple(_COMMANDS)) -> typer.Typer:
    """Return the command line with some of its commands, whose modules alone are imported."""
    app = typer.Typer(
        name="planner",
        help="Find the provably fastest way to train a deep neural network on given machines.",
        epilog="Exit codes: 0 answered; 1 no plan exists, a check fails or a case is off; 2 the input is wrong; "
        "3 a limit came first.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(main)
    for name in names:
        module, _, other = _COMMANDS[name].partition(":")
        found = getattr(import_module(f"planner.cli.{module}"), other or name)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name=name)(found)
    return app
