"""What bounds a search: its time, its memory, an interruption, how many runners-up, and when an answer is good enough.

One :class:`Search` belongs to one question; everything that searches asks it, and gives back the best so far with a
bound when it is over.

Three things keep the limits. Whatever enumerates, counts or fills tables asks :attr:`Search.is_over` every few
milliseconds of work. Whatever makes an array whose size the question decides asks for its bytes first, by
:meth:`Search.fits` or :meth:`Search.reserve`. And where both fail, :meth:`Search.ended` breaks off what has not ended
a moment after its time, with what :meth:`Search.keep` was given.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from planner.errors import NoAnswerError, StoppedError, is_due_to
from planner.memory import OUT_OF_MEMORY, default_limit_bytes, resident_bytes
from planner.units import Dimension, format_human
from planner.worker_pool import WorkerPool

if TYPE_CHECKING:
    from planner.plan import Plan

T = TypeVar("T")

GRACE_S = 1.0  # after its end, what never asks is broken off
_LEAST_S = 0.25  # for what is begun when the time is over already
_AGAIN_S = 1.0  # where breaking off was lost, in a destructor or a back end's callback
_LONGEST_S = 1e8  # that a timer of the system takes
_LOOK_S = 0.02  # between two looks at the memory: a processor fills some 40 MB in this time
_USABLE = 7 / 8  # of the memory: the rest is for the answer that is made of the best so far


_system_s = time.monotonic


def monotonic_s() -> float:
    """Return the seconds of the clock that never goes back."""
    return time.monotonic()


class MemoryLimitError(NoAnswerError):
    """A table would not fit into the memory that the search may use."""


class LateError(BaseException):
    """A search was broken off since it had not ended by itself; no Exception, so that nothing takes it for one."""


@dataclass(slots=True)
class _Ends:
    """What ends a search together with all its parts; ``is_armed``: what runs is broken off if it does not end.

    ``end_s``: of the whole search; a part that overruns takes the time of the others. ``aside``: called once at
    ``aside_s``, with what makes the best so far, the last that any part kept.
    """

    end_s: float = float("inf")
    interrupted: threading.Event = field(default_factory=threading.Event)
    interrupted_s: float = float("inf")
    is_armed: bool = False
    handler: Any = None  # of the alarm, before it was ours
    aside_s: float = float("inf")
    aside: "Callable[[Callable[[], Plan]], None]" = lambda kept: None
    kept: "Callable[[], Plan] | None" = None
    is_asked: bool = False  # for the best so far alone: as at the end, without what takes time
    is_felt: bool = False  # whether any part was told that it is over

    def best(self) -> "Plan":
        """Return the best so far as it is at the end of the search."""
        assert self.kept is not None
        self.is_asked = True
        try:
            return self.kept()
        finally:
            self.is_asked = False


@dataclass(slots=True, kw_only=True)
class Search:
    """The limits of one search.

    Attributes
    ----------
    time_limit_s
        Wall-clock limit from now on; a guard, since where it strikes is not repeatable.
    memory_limit_bytes
        What this process may hold, with all that it holds already; a guard, too. None: a share of what is left.
    num_alternatives
        How many runners-up to rank.
    good_enough
        A search may end with the first answer whose objective is no more than this: ``inf`` asks whether there is any
        answer, a deadline whether one meets it. The bound it returns still holds.
    cutoff
        Plans above this do not matter, since a better one is known elsewhere: a search that has some answer may end as
        soon as its bound is no less. The bound it returns still holds.
    is_strict
        Whether plans above the cutoff are not wanted at all: a family may end with none, though there are such.
    has_frontier
        Whether to look for the layouts of less memory, too, each as fast as can be; one family has these.
    is_brief
        Whether the best answer alone is wanted: no reasons, nothing beside it, and none why there is no answer.
    has_reasons
        Whether an answer tells what lies near it, what would use idle devices, how many there are and what was not
        searched, or why there is none. The answer itself is the same without.
    skipped
        Kinds of answers that are not wanted, by a family's own names of them. The bound it returns is of the others.
    seed
        For whatever draws lots.
    on_progress
        Called with bound and incumbent (``inf``: none yet) of this search whenever a family says how far it is; not by
        every one, and never for more than to show it.
    questions_left
        How often :attr:`is_over` may be asked, of this search and all its parts together, before it is over, too:
        unlike time, that is the same on every machine.
    pool
        Who helps with large searches; None: nobody. The answer is the same.
    clock, resident
        Where seconds and the bytes that this process holds are read.
    """

    time_limit_s: float = float("inf")
    memory_limit_bytes: float | None = None
    num_alternatives: int = 0
    good_enough: float = float("-inf")
    cutoff: float = float("inf")
    is_strict: bool = False
    has_frontier: bool = False
    is_brief: bool = False
    has_reasons: bool = True
    skipped: frozenset[str] = frozenset()
    seed: int = 0
    questions_left: int | None = None
    on_progress: Callable[[float, float], None] | None = None
    pool: WorkerPool | None = None
    clock: Callable[[], float] = monotonic_s
    resident: Callable[[], int] = resident_bytes
    kept: "Callable[[], Plan] | None" = field(init=False, repr=False, default=None)
    _end_s: float = field(init=False, repr=False)
    _look_s: float = field(init=False, repr=False, default=float("-inf"))
    _is_full: bool = field(init=False, repr=False, default=False)
    _ends: _Ends = field(init=False, repr=False, default_factory=_Ends)
    _whole: "Search | None" = field(init=False, repr=False, default=None)  # what it is a part of

    def __post_init__(self) -> None:
        self._end_s = self._ends.end_s = self.clock() + self.time_limit_s

    @property
    def left_s(self) -> float:
        """Seconds left, at least 0."""
        return 0.0 if self._ends.interrupted.is_set() or self._ends.is_asked else max(0.0, self._end_s - self.clock())

    @property
    def is_over(self) -> bool:
        """Whether to stop with the best so far."""
        for one in self._wholes():
            if one.questions_left is not None:
                one.questions_left -= 1
        return self.is_late

    @property
    def is_late(self) -> bool:
        """Whether the search is over, asked without counting: as often as one likes, where the work is."""
        is_late = self._is_late()
        self._ends.is_felt |= is_late
        return is_late

    def _is_late(self) -> bool:
        """Whether the search is over."""
        if self.is_counted_out or self._is_full or self._ends.interrupted.is_set() or self._ends.is_asked:
            return True
        now_s = self.clock()
        if now_s >= self._ends.aside_s and self._ends.kept is not None:
            self._ends.aside_s = float("inf")
            self._ends.aside(self._ends.best)
            now_s = self.clock()
        if now_s >= self._look_s:
            self._look_s = now_s + _LOOK_S
            self._is_full = not self.fits(0)
        return self._is_full or now_s >= self._end_s

    @property
    def was_cut_short(self) -> bool:
        """Whether it, or any part of the search that it is a part of, was told that it is over."""
        return self._ends.is_felt

    @property
    def is_counted_out(self) -> bool:
        """Whether its questions ended it, or those of what it is a part of."""
        return any(number < 0 for one in self._wholes() if (number := one.questions_left) is not None)

    def _wholes(self) -> "Iterator[Search]":
        """Yield it, and all that it is a part of."""
        one: Search | None = self
        while one is not None:
            yield one
            one = one._whole

    @property
    def is_out_of_time(self) -> bool:
        """Whether its time is over: a limit that strikes elsewhere on another machine."""
        return not self.left_s

    @property
    def was_interrupted(self) -> bool:
        """Whether the user stopped it."""
        return self._ends.interrupted.is_set()

    def watch(self, values: Iterable[T], *, every: int = 64) -> Iterator[T]:
        """Yield values until the search is over, which is asked before every so many of them, without counting.

        Afterwards :attr:`is_late` tells whether any may be missing.
        """
        for number, value in enumerate(values):
            if not number % every and self.is_late:
                return
            yield value

    def fits(self, num_bytes: float) -> bool:
        """Whether so many bytes may be taken on top of what this process holds."""
        if self.memory_limit_bytes is None:
            self.memory_limit_bytes = default_limit_bytes()
        return self.resident() + num_bytes <= _USABLE * self.memory_limit_bytes

    def reserve(self, num_bytes: float, what: str) -> None:
        """Ask for the bytes of tables before they are made; where they do not fit, this search is over.

        Parameters
        ----------
        what
            What is made, for the message: "a table of 50,000 layers x 1,024 servers".

        Raises
        ------
        MemoryLimitError
            Whoever has an incumbent answers with it, or gave it to :meth:`keep`.
        """
        if self.fits(num_bytes):
            return
        self._is_full = True
        assert self.memory_limit_bytes is not None
        needed, limit = (format_human(one, Dimension.DATA, 3) for one in (num_bytes, self.memory_limit_bytes))
        message = f"{what} would take {needed}, which does not fit into the memory limit of {limit}."
        raise MemoryLimitError(f"{message} Raise --memory-limit, or ask a smaller question.")

    def keep(self, plan: "Callable[[], Plan]") -> None:
        """Name the best so far, made only if this search is broken off; call it again with every better one."""
        self.kept = self._ends.kept = plan

    @contextmanager
    def aside(self, after_s: float, call: "Callable[[Callable[[], Plan]], None]") -> Iterator[None]:
        """Have something called once, in the midst of the block, where that still searches after so many seconds.

        With what makes the best so far, as soon as there is any; what is called takes of the time of the search.
        """
        self._ends.aside_s, self._ends.aside, self._ends.kept = self.clock() + after_s, call, None
        try:
            yield
        finally:
            self._ends.aside_s, self._ends.kept = float("inf"), None

    def report(self, bound: float, incumbent: float) -> None:
        """Say how far the search is: what nothing left beats, and the best so far."""
        if self.on_progress is not None:
            self.on_progress(bound, incumbent)

    def interrupt(self) -> None:
        """Stop at the next chance, with the best so far."""
        self._ends.interrupted_s = min(self._ends.interrupted_s, self.clock())
        self._ends.interrupted.set()
        if self._ends.is_armed:
            self._arm()

    def part(
        self,
        time_limit_s: float,
        *,
        good_enough: float | None = None,
        num_alternatives: int | None = None,
        cutoff: float | None = None,
        is_strict: bool | None = None,
        questions_left: int | None = None,
        is_brief: bool | None = None,
        has_reasons: bool | None = None,
        skipped: frozenset[str] | None = None,
        on_progress: Callable[[float, float], None] | None = None,
    ) -> "Search":
        """Return a search within this one: it ends no later, and is interrupted with it.

        It tells nobody how far it is unless ``on_progress`` is given: its bound may be of a part of the question.
        One with ``questions_left`` works alone: what it answers is the same on every machine, as long as there is time.
        """
        inner = Search(
            time_limit_s=min(self.left_s, time_limit_s),
            memory_limit_bytes=self.memory_limit_bytes,
            num_alternatives=self.num_alternatives if num_alternatives is None else num_alternatives,
            good_enough=self.good_enough if good_enough is None else good_enough,
            cutoff=self.cutoff if cutoff is None else cutoff,
            is_strict=self.is_strict if is_strict is None else is_strict,
            has_frontier=self.has_frontier,
            is_brief=self.is_brief if is_brief is None else is_brief,
            has_reasons=self.has_reasons if has_reasons is None else has_reasons,
            skipped=self.skipped if skipped is None else skipped,
            seed=self.seed,
            questions_left=questions_left,
            on_progress=on_progress,
            pool=None if questions_left is not None else self.pool,
            clock=self.clock,
            resident=self.resident,
        )
        inner._ends = self._ends
        inner._whole = self
        return inner

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let the first Ctrl-C end the search with the best so far; the second one breaks off as ever.

        Only the main thread may listen to signals; elsewhere nothing changes.

        Raises
        ------
        StoppedError
            Instead of NoAnswerError, if the search was interrupted.
        NoAnswerError
            Instead of MemoryError, where nothing further inside had an answer to give.
        """
        is_heard = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGINT) if is_heard else None

        def stop(number: int, frame: FrameType | None) -> None:
            self.interrupt()
            signal.signal(signal.SIGINT, before)

        if is_heard:
            signal.signal(signal.SIGINT, stop)
        try:
            yield
        except NoAnswerError as error:
            raise (
                StoppedError("it was stopped before any answer was found.") if self.was_interrupted else error
            ) from None
        except MemoryError:
            raise NoAnswerError(OUT_OF_MEMORY) from None
        finally:
            if is_heard:
                signal.signal(signal.SIGINT, before)

    @contextmanager
    def ended(self) -> Iterator[None]:
        """Break off the block if it runs on for a moment after the end of the whole search, or after an interruption.

        In the main thread alone, by the system's clock, and where nobody else uses its timer; elsewhere nothing
        changes.

        Raises
        ------
        LateError
            Wherever the block is.
        """
        is_able = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
        is_system = self.clock is monotonic_s and time.monotonic is _system_s
        if not is_able or not is_system or signal.getitimer(signal.ITIMER_REAL)[0]:
            yield
            return

        def break_off(number: int, frame: FrameType | None) -> None:
            if self._ends.is_armed:
                raise LateError

        self._ends.handler = signal.signal(signal.SIGALRM, break_off)
        self._ends.is_armed = True
        try:
            self._arm()
            yield
        except RuntimeError as error:
            if is_due_to(error, LateError):
                raise LateError from error
            raise
        finally:
            self.disarm()

    def bounded(self, make: Callable[[], T], instead: T) -> T:
        """Return what is made, or ``instead`` where that has to be broken off; see :meth:`ended`."""
        try:
            with self.ended():
                return make()
        except LateError:
            self.disarm()
            return instead

    def disarm(self) -> None:
        """Break off nothing any more; whoever catches :class:`LateError` says so first.

        It may have been raised a second time while the first one was on its way out, in the midst of this method.
        """
        if self._ends.is_armed:
            self._ends.is_armed = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, self._ends.handler)

    def _arm(self) -> None:
        """Break off in a moment after the end, and again and again, until it is heard."""
        left_s = min(self._ends.end_s, self._ends.interrupted_s) + GRACE_S - self.clock()
        if left_s < _LONGEST_S:
            signal.setitimer(signal.ITIMER_REAL, max(left_s, _LEAST_S), _AGAIN_S)
