"""What frameworks make of a plan's fusion groups: tensors, not layers, one constant size, and one algorithm.

The optimum fuses unequal groups. A framework's bucket has one size (:mod:`planner.families.all_reduce.fusion`); the
best of all sizes is found by the same cost model as the plan's, so that what the constant loses is known. Nor do all
groups take one algorithm: ``NCCL_ALGO`` (NVIDIA's "NCCL User Guide", Environment Variables, 2.27) names those among
which the library may choose, for the whole program.
"""

import numpy as np

from planner.channel import Ends
from planner.cost import Floats
from planner.exporters.scripts import COLLNET
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.all_reduce.cost import AllReduceCost
from planner.families.all_reduce.fusion import Buckets, best_cap, by_tensor, exchange_of, round_mib
from planner.problem import Problem

_SAME = 5e-5  # shares of an iteration below this are not told apart
_NCCL_NAMES = {"ring": "Ring", "tree": "Tree"}
_NCCL_UNNAMED = {  # NCCL_ALGO has no one name for them: what it does of itself
    "two_level": "its trees exchange so, too",
    "in_network": "it does so where it finds switches that can, NVLink's or, with the plug-in for SHARP, the network's",
}


class GradientTensors:
    """The gradients of a data-parallel plan as single tensors, in the order in which they get ready.

    Within a layer that is the reverse of the order in which the network lists them; the plan's groups end at layers, so
    that they do not depend on it.
    """

    def __init__(self, problem: Problem, configuration: AllReduceConfiguration) -> None:
        self.configuration = configuration
        self._cost = cost = by_tensor(AllReduceCost.of(problem, configuration), configuration)
        self.gradients = cost.gradients
        self.gradient_bytes = cost.precision.gradient_bytes
        self.exchange = exchange_of(cost, configuration)

    @property
    def size_bytes(self) -> Floats:
        """Bytes of every tensor, uncompressed."""
        return self.gradients.size_bytes

    def finish_s(self, ends: Ends, ready_s: Floats | None = None) -> float:
        """Return when the last group has been sent, from the start of the last backward pass.

        Parameters
        ----------
        ends
            The last tensor of every group.
        ready_s
            Of every tensor, in place of the plan's.
        """
        assert self.exchange is not None  # asked for one device
        return self.exchange.finish_s(ends, ready_s)

    @property
    def best_cap(self) -> Buckets:
        """The buckets of the best constant cap of DDP."""
        assert self.exchange is not None  # asked for one device
        return best_cap(self.exchange)

    def mib_of(self, buckets: Buckets) -> float:
        """Return a size in MiB that makes such buckets."""
        return round_mib(buckets, float(self.size_bytes.sum()))

    def iteration_time_s(self, ends: Ends) -> float:
        """Return the seconds of an iteration with such groups."""
        return self._cost.predict(self._cost.fused(self.configuration, ends)).iteration_time_s

    def group_bytes(self, ends: Ends) -> tuple[int, ...]:
        """Return the bytes of groups."""
        starts = [0, *(end + 1 for end in ends[:-1])]
        return tuple(int(size) for size in np.add.reduceat(self.size_bytes, starts))

    @property
    def planned_ends(self) -> Ends:
        """The last tensor of each of the plan's groups."""
        until = np.cumsum([group.size_bytes for group in self.configuration.fusion_groups])
        ends = np.searchsorted(np.cumsum(self.size_bytes), until - 0.5)
        return tuple(int(end) for end in ends)


def loss_words(lost: float) -> str:
    """Return how an iteration compares with the plan's: longer by a share, or as long.

    A constant size may even gain a little: it cuts between the tensors of a layer, where the plan keeps them together.

    >>> loss_words(0.0123), loss_words(-0.001), loss_words(1e-6)
    ('1.23% slower than the plan', '0.10% faster than the plan, which cuts between layers only', 'as fast as the plan')
    """
    if abs(lost) < _SAME:
        return "as fast as the plan"
    return (
        f"{lost:.2%} slower than the plan"
        if lost > 0
        else f"{-lost:.2%} faster than the plan, which cuts between layers only"
    )


def algorithms_of(fused: AllReduceConfiguration | None) -> list[str]:
    """Return the algorithms of a plan's groups, each once."""
    return [] if fused is None else list(dict.fromkeys(group.algorithm for group in fused.fusion_groups))


def nccl_lines(kind: str, fused: AllReduceConfiguration | None) -> tuple[str, ...]:
    """Return the line that asks for the plan's algorithm, where it is the same for all groups and NCCL has it."""
    algorithms = algorithms_of(fused)
    if kind == "gpu" and len(algorithms) == 1 and algorithms[0] in _NCCL_NAMES:
        return (f'export NCCL_ALGO="${{NCCL_ALGO:-{_NCCL_NAMES[algorithms[0]]}}}"',)
    if kind == "gpu" and "in_network" in algorithms:
        return (COLLNET,)
    return ()


def nccl_notes(kind: str, fused: AllReduceConfiguration | None) -> tuple[str, ...]:
    """Return what NCCL cannot be told; CPUs exchange by gloo, which cannot be told anything."""
    algorithms = algorithms_of(fused)
    if kind == "cpu":
        words = f"algorithms: the plan takes {', '.join(algorithms)}; gloo, by which CPUs exchange, chooses by itself"
        return (words,) if algorithms else ()
    named = [name for name in algorithms if name in (*_NCCL_NAMES, *_NCCL_UNNAMED)]
    if len(algorithms) > 1 and named:
        return (
            f"algorithms: the plan takes {', '.join(algorithms)} by group; NCCL_ALGO holds for all of them, so NCCL is "
            f"left to choose by size, as it does by itself",
        )
    return tuple(
        f"algorithm: {name} has no name in NCCL, which chooses by itself; {_NCCL_UNNAMED[name]}"
        for name in named
        if name in _NCCL_UNNAMED
    )
