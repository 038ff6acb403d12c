"""Running the command line: exit codes, errors as text or as one JSON document, no traceback."""

import os
import sys
from collections.abc import Sequence

from planner.errors import Fault, InfeasibleError, NoAnswerError, PlannerError, SolverError, SpecError

__all__ = ["run"]

_INTERRUPTED = 130  # 128 and the signal's number, as shells have it
_LIMIT = (NoAnswerError, SolverError)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code: 0, 1, 2 or 3 as the errors' tree says, 70 for a bug of ours.

    130 after Ctrl-C, whenever it comes, but for a search, which the first one ends with the best so far.
    """
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED


def _run(arguments: Sequence[str]) -> int:
    """Run one command; a Ctrl-C leaves as it came."""
    import typer

    from planner.cli.app import app

    is_json = "--json" in arguments
    usage_error = _usage_error(typer.BadParameter)
    try:
        code = app(args=list(arguments), prog_name="planner", standalone_mode=False)
        sys.stdout.flush()
        if code == _INTERRUPTED:  # typer leaves in silence after Ctrl-C
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("PLANNER_DEBUG"):
            raise
        message = f"planner: a bug of ours: {type(error).__name__}: {error}"
        print(message, "Set PLANNER_DEBUG=1 for the traceback, and please report it.", sep="\n", file=sys.stderr)
        if is_json:
            from planner.documents import dump, error_document

            print(dump(error_document(PlannerError(message), kind="bug")))
        return 70


def _usage_error(known: type[Exception]) -> type[Exception]:
    """Return the root of all errors of a command line: typer makes only this descendant of it public."""
    named = [kind for kind in known.__mro__ if kind.__name__ == "ClickException" and issubclass(kind, Exception)]
    return named[0] if named else known


def _usage(error: BaseException, *, is_json: bool) -> int:
    """Report a wrong command line."""
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if not message:  # no arguments at all: the help was printed
        return 2
    fault = Fault(file="command line", problem=message, mend="Try --help.")
    return _fail(SpecError.of([fault]), is_json=is_json)


def _fail(error: PlannerError, *, is_json: bool) -> int:
    """Print an error, as text to stderr or as a document to stdout, and return its exit code."""
    kind, code = "input", 2
    if isinstance(error, InfeasibleError):
        kind, code = "infeasible", 1
    elif isinstance(error, _LIMIT):
        kind, code = "limit", 3
    if is_json:
        from planner.documents import dump, error_document

        print(dump(error_document(error, kind=kind)))
    else:
        print(error, file=sys.stderr)
    return code
