"""What frameworks make of fusion groups: tensors, not layers, one constant size of a buffer, and one algorithm.

The optimum fuses unequal groups. A framework's buffer has one size; here the best of all sizes is found, by the same
cost model as the plan's, so that what the constant loses is known. Nor do all groups take one algorithm: ``NCCL_ALGO``
(NVIDIA's "NCCL User Guide", Environment Variables, 2.27) names those among which the library may choose, for the whole
program.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from planner.channel import Ends, schedule
from planner.cost import Floats
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.all_reduce.cost import AllReduceCost
from planner.families.all_reduce.fusion import exchange_of
from planner.problem import Problem

__all__ = ["MIB", "Fused", "GradientTensors", "algorithms_of", "best_buffer", "best_size", "full_buckets", "loss_words"]
__all__ += ["nccl_lines", "nccl_notes", "round_size"]

MIB = 2**20
_SAME = 5e-5  # shares of an iteration below this are not told apart
_LEAST_STEP = 1.001  # sizes closer than this are not told apart, so that thousands of tensors stay a matter of seconds
_NCCL_NAMES = {"ring": "Ring", "tree": "Tree"}
_NCCL_UNNAMED = {  # NCCL_ALGO has no one name for them: what it does of itself
    "two_level": "its trees exchange so, too",
    "in_network": "it does so where it finds switches that can, NVLink's or, with the plug-in for SHARP, the network's",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """What a rule makes of a size: the last tensor of each group, and every size above ``low_bytes`` up to ``high``.

    ``high_bytes`` is infinite where larger buffers change nothing.
    """

    ends: Ends
    low_bytes: float
    high_bytes: float


class GradientTensors:
    """The gradients of a data-parallel plan as single tensors, in the order in which they get ready.

    Within a layer that is the reverse of the order in which the network lists them; the plan's groups end at layers, so
    that they do not depend on it.
    """

    def __init__(self, problem: Problem, configuration: AllReduceConfiguration) -> None:
        self.configuration = configuration
        self.problem = replace(problem, calibration=replace(problem.calibration, fusion_unit="tensor"))
        cost = AllReduceCost.of(self.problem, configuration)
        self._cost, self.gradients = cost, cost.gradients
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
        ready_s
            Of every tensor, in place of the plan's.
        """
        assert self.exchange is not None  # asked for one device
        one = self.exchange
        ready = one.ready_s if ready_s is None else ready_s
        return schedule(ends, ready, one.size_bytes, one.transfer, wait=one.wait, timeout_s=one.timeout_s).finish_s

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


def full_buckets(size_bytes: Floats, limits_bytes: Iterable[float]) -> Fused:
    """Return the buckets that close as soon as they hold as much as their limit: those of PyTorch's DDP.

    Parameters
    ----------
    limits_bytes
        Of the buckets one after the other; the last one holds for all that follow.

    Notes
    -----
    ``compute_bucket_assignment_by_size`` of PyTorch 2.13 (``torch/csrc/distributed/c10d/reducer.cpp``), called with the
    order in which gradients arrived in the first iteration: a tensor that fills its bucket is the last one in it.
    ``low_bytes`` and ``high_bytes`` are those of the last limit, with the others as they are.

    >>> full_buckets(np.array([3.0, 3, 3, 9, 1]), [5]).ends
    (1, 3, 4)
    >>> full_buckets(np.array([3.0, 3, 3, 9, 1]), [3, 6, 9]).ends
    (0, 2, 3, 4)
    """
    limits = list(limits_bytes)
    until = np.cumsum(size_bytes)
    ends: list[int] = []
    low, high, sent = 0.0, float("inf"), 0.0
    while not ends or ends[-1] < len(size_bytes) - 1:
        limit = limits[min(len(ends), len(limits) - 1)]
        # The index of the first sum that reaches the limit; searched for, since networks have thousands of tensors.
        end = min(int(np.searchsorted(until, sent + limit)), len(size_bytes) - 1)
        held = float(until[end]) - sent
        if len(ends) >= len(limits) - 1:
            low = max(low, held - float(size_bytes[end]))
            high = min(high, held) if end < len(size_bytes) - 1 else high
        ends.append(end)
        sent = float(until[end])
    return Fused(ends=tuple(ends), low_bytes=low, high_bytes=high)


def best_buffer(exchange: GradientTensors, rule: Callable[[float], Fused]) -> tuple[float, Fused]:
    """Return the best size of a buffer by the end of the last transfer, and what it fuses by a rule; see best_size."""

    def judge(size_bytes: float) -> tuple[float, Fused]:
        """Return the end of the last transfer, which orders iterations, and the groups."""
        fused = rule(size_bytes)
        return exchange.finish_s(fused.ends), fused

    return best_size(exchange, judge)


def best_size(
    exchange: GradientTensors, judge: Callable[[float], tuple[float, Fused]], *, step: float = _LEAST_STEP
) -> tuple[float, Fused]:
    """Return the best size of a buffer: the seconds that it gives, and what it fuses.

    Tries every size at which a rule fuses otherwise, but for those closer to the last one than ``step``, from one
    tensor each to one buffer; of equally good ones the largest.

    Parameters
    ----------
    judge
        Of a size in bytes: the seconds to be minimised, and what is fused.
    """
    size, total = float(exchange.size_bytes.min()), float(exchange.size_bytes.sum())
    best: tuple[float, Fused] | None = None
    while best is None or size <= total:  # larger ones hold everything
        found = judge(size)
        if best is None or found[0] <= best[0]:
            best = found
        size = max(found[1].high_bytes + 1, size * step)
    return best


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


def round_size(fused: Fused, total_bytes: float) -> float:
    """Return a size in MiB that fuses so, with as few digits as possible, and near the upper end.

    >>> round_size(Fused(ends=(0,), low_bytes=25.2 * MIB, high_bytes=27.35 * MIB), 100 * MIB)
    27.0
    """
    high = min(fused.high_bytes, max(fused.low_bytes + 1, total_bytes)) / MIB
    low = (fused.low_bytes + 1) / MIB
    for digits in range(7):
        rounded = int(high * 10**digits) / 10**digits
        if rounded >= low:
            return float(rounded)
    return high if high >= low else float(ceil(low))


def algorithms_of(fused: AllReduceConfiguration | None) -> list[str]:
    """Return the algorithms of a plan's groups, each once."""
    return [] if fused is None else list(dict.fromkeys(group.algorithm for group in fused.fusion_groups))


def nccl_lines(kind: str, fused: AllReduceConfiguration | None) -> tuple[str, ...]:
    """Return the line that asks for the plan's algorithm, where it is the same for all groups and NCCL has it."""
    algorithms = algorithms_of(fused)
    if kind == "gpu" and len(algorithms) == 1 and algorithms[0] in _NCCL_NAMES:
        return (f'export NCCL_ALGO="${{NCCL_ALGO:-{_NCCL_NAMES[algorithms[0]]}}}"',)
    if kind == "gpu" and "in_network" in algorithms:
        return ('export NCCL_COLLNET_ENABLE="${NCCL_COLLNET_ENABLE:-1}"',)
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
