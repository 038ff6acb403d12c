"""How far gradients are compressed on devices of one type: the share kept that ends an iteration first, with a proof.

Compressing to a share ``x`` takes ``k / x**2`` seconds, which nothing hides (see `AllReduceCost.predict`), and lets
every transfer carry x of its bytes. The end of the last transfer under the best groups never falls as x grows: with
fixed groups each transfer takes longer and starts no earlier, and the least over all groupings of functions that never
fall never falls. Hence :func:`planner.solvers.scalar.minimise` minimises the sum of both. Not compressing at all costs
no k.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from planner.cost import Affine
from planner.families.all_reduce.configuration import AllReduceConfiguration, Setting
from planner.families.all_reduce.cost import AllReduceCost
from planner.families.all_reduce.fusion import exchange_of
from planner.models.compression import Compression
from planner.problem import Problem
from planner.search import Search
from planner.solvers.fusion import optimal_groups
from planner.solvers.scalar import minimise
from planner.units import Dimension, format_human

__all__ = ["best_compressed", "compression_line", "compression_warnings", "kept_intervals"]

_ROUGH, _FINE = 1e-3, 1e-6  # relative gaps: to tell whether compression can pay, and of the answer
_NUM_INTERVALS = 32
_MOST_KEPT = 6_000  # shares kept that are tried for one setting


def kept_intervals(problem: Problem) -> Iterator[tuple[float, float]]:
    """Yield intervals of the share kept, each as its least share and the least seconds of compressing within it.

    The first is that of no compression: all is kept, and nothing takes time.
    """
    yield 1.0, 0.0
    option = problem.compression
    if option is None:
        return
    edges = np.geomspace(1 - option.most_removed, 1.0, _NUM_INTERVALS + 1).tolist()
    edges[0] = min(edges[0], 1 - option.most_removed)
    for low, high in pairwise(edges):
        yield low, option.scale_s / max(high, 1e-300) ** 2


def best_compressed(
    cost: AllReduceCost, setting: Setting, search: Search, *, limit_s: float, least_s: float
) -> tuple[Setting | None, float]:
    """Return a setting with the best share kept, or None where compressing cannot end an iteration before ``limit_s``.

    A share that is proven to end none before ``least_s``, as a better plan is known, is only roughly the best one: that
    it loses is decided by its bound, not by how long there is time to refine it. The second number is a bound on the
    seconds of an iteration of all compressed plans of the setting; ``inf`` where there are none, or none below the
    limit.
    """
    option, exchange = cost.problem.compression, exchange_of(cost, setting)
    costs = cost.transfer_costs(setting).values() if exchange is not None else ()
    if option is None or exchange is None or not all(isinstance(one, Affine) for one in costs):
        return None, float("inf")
    step = cost.step(setting)
    rest_s = step.computation_s - step.last_backward_s + step.update_s
    fitted, low = cost.problem.calibration, 1 - option.most_removed

    def rising(kept: float) -> float:
        """Return the seconds of an iteration but for compressing."""
        sizes = exchange.size_bytes * kept
        found = optimal_groups(exchange.ready_s, sizes, exchange.transfer, wait=fitted.wait, timeout_s=fitted.timeout_s)
        return rest_s + max(step.last_backward_s, found.objective)

    def falling(kept: float) -> float:
        """Return the seconds of compressing."""
        return option.scale_s / kept**2

    own = search.part(float("inf"), good_enough=float("-inf"))  # which counts more than one iteration's seconds
    rough = minimise(rising, falling, low, 1.0, tolerance=_ROUGH, search=own, most_evaluations=_MOST_KEPT)
    if rough.bound >= limit_s:
        return None, float("inf")
    fine = rough
    if rough.bound < least_s:
        fine = minimise(rising, falling, low, 1.0, tolerance=_FINE, search=own, most_evaluations=_MOST_KEPT)
    bound_s = max(fine.bound, rough.bound)
    if fine.value is None:
        return None, bound_s
    compression = Compression(removed=1 - fine.value, scale_s=option.scale_s)
    return _with(setting, compression), bound_s


def _with(setting: Setting, compression: Compression) -> Setting:
    """Return a setting with compression."""
    return Setting(
        num_machines=setting.num_machines,
        devices_per_machine=setting.devices_per_machine,
        global_batch_size=setting.global_batch_size,
        num_microbatches=setting.num_microbatches,
        compression=compression,
    )


def compression_line(chosen: Setting | AllReduceConfiguration) -> str:
    """Return how far gradients are compressed, in words."""
    assert chosen.compression is not None
    time = format_human(float(chosen.compression.time_s), Dimension.TIME)
    return f"{float(chosen.compression.removed):.1%} of every gradient is left out, which takes {time} an iteration"


def compression_warnings(problem: Problem, *, is_used: bool) -> list[str]:
    """Return what makes a plan with, or for want of, compression doubtful."""
    lines = []
    if is_used:
        lines.append("gradients lose a part of themselves: what that costs in accuracy is not modelled")
    if problem.compression is not None and problem.calibration.all_reduce_curves:
        lines.append("compression was not weighed: a measured curve need not rise with the size")
    return lines
