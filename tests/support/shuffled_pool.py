"""A worker pool within this process, whose parts come back in an order drawn by lot: cheap, and the same for every seed."""

import random
from collections.abc import Callable, Container, Sequence
from typing import Any

from planner.worker_pool import FailedTask, Origin, packed, unpacked

__all__ = ["ShuffledPool"]


class ShuffledPool:
    """Works on parts when it is asked for them; what it was given and gives back went through bytes.

    ``num_workers`` parts may be at work. ``lost``: numbers of parts that never come back. ``gone_after``: how many parts
    come back before nobody is left.
    """

    def __init__(
        self, seed: int = 0, num_workers: int = 2, lost: Sequence[int] = (), gone_after: int | None = None
    ) -> None:
        self.notes: list[str] = []
        self.num_parts = 0
        self.num_back = 0
        self._lots = random.Random(seed)
        self._most = 2 * num_workers
        self._lost = set(lost)
        self._gone_after = gone_after
        self._at_work: dict[int, tuple[Origin, bytes]] = {}
        self._made: dict[str, Any] = {}

    @property
    def _is_gone(self) -> bool:
        return self._gone_after is not None and self.num_back >= self._gone_after

    def room(self) -> int:
        """Return how many more parts may be at work."""
        return 0 if self._is_gone else self._most - len(self._at_work)

    def submit(self, function: Callable[..., Any], origin: Origin, arguments: Sequence[Any]) -> int:
        self.num_parts += 1
        self._at_work[self.num_parts] = (origin, packed((function, tuple(arguments))))
        return self.num_parts

    alone_s = share_s = least_s = 0.0

    def is_worth(self, left_s: float) -> bool:
        """Whether workers are wanted, which may depend on what is left."""
        return left_s >= self.least_s

    def poll(self, wait_s: float, wanted: Container[int]) -> list[tuple[int, Any]]:
        """Return some of the parts that are wanted, in any order."""
        numbers = [number for number in self._at_work if number in wanted]
        self._lots.shuffle(numbers)
        back = [self._done(number) for number in numbers[: self._lots.randint(0, len(numbers))]]
        self.num_back += len(back)
        if self._is_gone:
            back += [
                (number, FailedTask("nobody is left", is_gone=True)) for number in self._at_work if number in wanted
            ]
            self._at_work = {key: one for key, one in self._at_work.items() if key not in wanted}
        return back

    def tell(self, note: str) -> None:
        self.notes.append(note)

    def _done(self, number: int) -> tuple[int, Any]:
        origin, call = self._at_work.pop(number)
        if number in self._lost:
            return number, FailedTask("its worker died")
        if origin.digest not in self._made:
            self._made[origin.digest] = origin.made()
        function, arguments = unpacked(call)
        return number, unpacked(packed(function(self._made[origin.digest], *arguments)))
