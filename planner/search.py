"""What bounds a search: its time, an interruption, how many runners-up, and when an answer is good enough.

One :class:`Search` belongs to one question; everything that searches asks it, and gives back the best so far with a
bound when it is over.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from planner.crew import Crew
from planner.errors import NoAnswerError, StoppedError

__all__ = ["Search"]


@dataclass(slots=True, kw_only=True)
class Search:
    """The limits of one search.

    Attributes
    ----------
    time_limit_s
        Wall-clock limit from now on; a guard, since where it strikes is not repeatable.
    num_alternatives
        How many runners-up to rank.
    good_enough
        A search may end with the first answer whose objective is no more than this: ``inf`` asks whether there is any
        answer, a deadline whether one meets it. The bound it returns still holds.
    cutoff
        Plans above this do not matter, since a better one is known elsewhere: a search that has some answer may end as
        soon as its bound is no less. The bound it returns still holds.
    has_frontier
        Whether to look for the layouts of less memory, too, each as fast as can be; one family has these.
    seed
        For whatever draws lots.
    told
        Called with bound and incumbent (``inf``: none yet) of this search whenever a family says how far it is; not by
        every one, and never for more than to show it.
    questions_left
        How often :attr:`is_over` may be asked before the search is over, too: unlike time, that is the same on every
        machine. A part of this search counts for itself.
    crew
        Who helps with large searches; None: nobody. The answer is the same.
    """

    time_limit_s: float = float("inf")
    num_alternatives: int = 0
    good_enough: float = float("-inf")
    cutoff: float = float("inf")
    has_frontier: bool = False
    seed: int = 0
    questions_left: int | None = None
    told: Callable[[float, float], None] | None = None
    crew: Crew | None = None
    _end_s: float = field(init=False, repr=False)
    _interrupted: threading.Event = field(init=False, repr=False, default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._end_s = time.monotonic() + self.time_limit_s

    @property
    def left_s(self) -> float:
        """Seconds left, at least 0."""
        return 0.0 if self._interrupted.is_set() else max(0.0, self._end_s - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether to stop with the best so far."""
        if self.questions_left is not None:
            self.questions_left -= 1
        return self.is_counted_out or self._interrupted.is_set() or time.monotonic() >= self._end_s

    @property
    def is_counted_out(self) -> bool:
        """Whether its questions ended it."""
        return self.questions_left is not None and self.questions_left < 0

    @property
    def was_interrupted(self) -> bool:
        """Whether the user stopped it."""
        return self._interrupted.is_set()

    def tell(self, bound: float, incumbent: float) -> None:
        """Say how far the search is: what nothing left beats, and the best so far."""
        if self.told is not None:
            self.told(bound, incumbent)

    def interrupt(self) -> None:
        """Stop at the next chance, with the best so far."""
        self._interrupted.set()

    def part(
        self,
        time_limit_s: float,
        *,
        good_enough: float | None = None,
        num_alternatives: int | None = None,
        cutoff: float | None = None,
        questions_left: int | None = None,
        told: Callable[[float, float], None] | None = None,
    ) -> "Search":
        """Return a search within this one: it ends no later, and is interrupted with it.

        It tells nobody how far it is unless ``told`` is given: its bound may be of a part of the question.
        """
        inner = Search(
            time_limit_s=min(self.left_s, time_limit_s),
            num_alternatives=self.num_alternatives if num_alternatives is None else num_alternatives,
            good_enough=self.good_enough if good_enough is None else good_enough,
            cutoff=self.cutoff if cutoff is None else cutoff,
            has_frontier=self.has_frontier,
            seed=self.seed,
            questions_left=questions_left,
            told=told,
            crew=self.crew,
        )
        inner._interrupted = self._interrupted
        return inner

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let the first Ctrl-C end the search with the best so far; the second one breaks off as ever.

        Only the main thread may listen to signals; elsewhere nothing changes.

        Raises
        ------
        StoppedError
            Instead of NoAnswerError, if the search was interrupted.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)

        def stop(number: int, frame: FrameType | None) -> None:
            self.interrupt()
            signal.signal(signal.SIGINT, before)

        signal.signal(signal.SIGINT, stop)
        try:
            yield
        except NoAnswerError as error:
            raise StoppedError(str(error)) if self.was_interrupted else error from None
        finally:
            signal.signal(signal.SIGINT, before)
