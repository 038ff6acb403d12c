"""Many workers of a sweep: those of :mod:`planner.workers.cluster`, which are asked questions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from planner.sweep.answers import Answer, Task, answer_all, failed
from planner.workers.cluster import DaskWorkers as AnyWorkers

__all__ = ["DaskWorkers"]


@dataclass(slots=True, kw_only=True)
class DaskWorkers(AnyWorkers[Task, Answer]):
    """The workers of a Dask client, who answer questions."""

    ask: Callable[[list[Task], str], list[Answer]] = answer_all
    fail: Callable[[str, str], Answer] = failed

    @classmethod
    def of(cls, *, client: Any, local: Any, num_workers: int) -> Self:
        """Return the workers of a client."""
        return cls(client=client, local=local, num_workers=num_workers)
