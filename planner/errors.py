"""Everything this project raises on purpose.

::

    PlannerError
     ├─ SpecError        the input is wrong                       exit code 2
     ├─ ModelError       a cost model was asked beyond its range  exit code 2
     ├─ InfeasibleError  the question has no answer               exit code 1
     ├─ NoAnswerError    a limit came before any answer           exit code 3
     │   └─ StoppedError   that limit was Ctrl-C, or a signal     exit code 128 and its number
     └─ SolverError      a back end misbehaved                    exit code 3

Each takes one finished message, because an exception with another signature does not survive
the trip home from a worker process. A message says where, what, and how to mend it.
"""

from collections.abc import Iterable
from math import inf
from os import PathLike
from typing import Self

from planner.frozen import frozen
from planner.letters import visible

_MOST_TOLD = 50  # faults in one message
_MOST_LETTERS = 30_000  # of them together
_MOST_OF_PART = 4000  # letters of a field, of a problem, of a mend: names in it may be of any length


def _shown(text: str) -> str:
    """Return text without letters that a terminal would obey, or not show, and cut where it is very long."""
    if len(text) > _MOST_OF_PART:
        text = f"{text[: _MOST_OF_PART // 2]} ... {text[-_MOST_OF_PART // 4 :]}"
    return visible(text, keep="\n")


@frozen
class Fault:
    """One thing that is wrong with the input: where, what, and how to mend it."""

    problem: str
    mend: str = ""
    field: str = ""
    value: str = ""
    file: str = ""
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        """Return ``file:line:column: field: problem. mend``, less what is not known, in letters that can be printed."""
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part not in ("", None))
        text = ": ".join(_shown(part) for part in (place, self.field, self.problem) if part)
        return f"{text} {_shown(self.mend)}".rstrip() if self.mend else text


@frozen
class Relaxation:
    """How far one constraint would have to give.

    Attributes
    ----------
    field, given
        Its path in the spec, and its value there.
    values
        Any one of them does, the nearest first; empty where only leaving the constraint out does.
    is_exact
        Whether it is proven that nothing nearer does.
    is_enough
        Whether this gives a plan, with all else as asked, but for the changes made before it; else another conflict
        remains, or it is not known in time.
    change
        Of the nearest value, as a share of the given one; None where that cannot be compared.
    note
        What to know about it.
    """

    field: str
    given: str
    values: tuple[str, ...]
    is_exact: bool
    is_enough: bool = True
    change: float | None = None
    note: str = ""


@frozen
class Conflict:
    """Constraints that leave no answer together; ``is_minimal``: there is one without any one of them, proven."""

    relaxations: tuple[Relaxation, ...]
    is_minimal: bool


class PlannerError(Exception):
    """Root of all errors that a user can cause or mend."""


class SpecError(PlannerError):
    """The input is wrong. ``faults`` lists every fault that was found in one pass."""

    faults: tuple[Fault, ...] = ()

    @classmethod
    def of(cls, faults: Iterable[Fault]) -> Self:
        """Return one error that has all ``faults``; its message tells the first fifty, a line each."""
        found = tuple(faults)
        lines = [str(fault) for fault in found[:_MOST_TOLD]]
        while len(lines) > 1 and sum(map(len, lines)) > _MOST_LETTERS:
            lines.pop()
        more = [f"... and {len(found) - len(lines)} more faults."] if len(found) > len(lines) else []
        error = cls("\n".join([*lines, *more]))
        error.faults = found
        return error

    @classmethod
    def one(
        cls,
        problem: str,
        mend: str = "",
        *,
        field: str = "",
        value: str = "",
        file: str | PathLike[str] = "",
        line: int | None = None,
        column: int | None = None,
    ) -> Self:
        """Return the error of one :class:`Fault`."""
        place = Fault(problem=problem, mend=mend, field=field, value=value, file=str(file), line=line, column=column)
        return cls.of([place])

    @classmethod
    def of_option(cls, option: str, problem: str, mend: str = "", *, value: str = "") -> Self:
        """Return the error of an option of the command line."""
        return cls.one(problem, mend, file="command line", field=option, value=value)


class ModelError(PlannerError):
    """A cost model was asked beyond its range."""


class InfeasibleError(PlannerError):
    """The question has no answer; the message says which constraints conflict and by how much.

    ``conflicts`` lists sets of constraints that leave no answer: the first one of the question as asked, each further
    one of the question with the first change made that was not enough in those before it. It is empty where none of the
    user's constraints is the reason. ``enough_bytes``: memory of a device with which a family found that something
    fits, all else as asked; ``inf`` where none did.
    """

    conflicts: tuple[Conflict, ...] = ()
    enough_bytes: float = inf

    @classmethod
    def of(cls, message: str, conflicts: Iterable[Conflict] = (), *, enough_bytes: float = inf) -> "InfeasibleError":
        """Return the error with what conflicts, and with how much memory would do."""
        error = cls(message)
        error.conflicts, error.enough_bytes = tuple(conflicts), enough_bytes
        return error


class NoAnswerError(PlannerError):
    """A limit stopped the search before any answer was found."""


class StoppedError(NoAnswerError):
    """The user stopped the search before any answer was found."""


class SolverError(PlannerError):
    """A solver's back end failed or contradicted itself."""


def is_due_to(error: BaseException, kind: type[BaseException]) -> bool:
    """Return whether an error is of a kind, or came of one: Python 3.11 wraps what is raised while a class is made.

    pydantic's core, which builds a schema then, keeps what was raised in it as text alone.

    >>> wrapped = RuntimeError("Error calling __set_name__")
    >>> wrapped.__cause__ = KeyboardInterrupt()
    >>> is_due_to(wrapped, KeyboardInterrupt), is_due_to(RuntimeError(), KeyboardInterrupt)
    (True, False)
    >>> is_due_to(type("SchemaError", (Exception,), {})("building a validator: KeyboardInterrupt: "), KeyboardInterrupt)
    True
    """
    seen: list[BaseException] = []
    while not isinstance(error, kind) and not (type(error).__name__ == "SchemaError" and kind.__name__ in str(error)):
        seen.append(error)
        origin = error.__cause__ or error.__context__
        if origin is None or origin in seen:
            return False
        error = origin
    return True
