"""How gradients are fused: the optimum, the rules of frameworks and papers, and groups that a user lists.

Solvers are imported where a rule is asked for: a configuration with listed groups is judged without any. Frameworks
fuse tensors, whatever the question's own groups end at: they close a bucket by its size, tensor by tensor, in the order
in which gradients get ready.

**DistributedDataParallel** takes tensors into a bucket until it holds as much as its limit: the tensor that fills it is
the last one in it. ``compute_bucket_assignment_by_size`` (``torch/csrc/distributed/c10d/reducer.cpp``), called when the
first iteration has told the order of gradients. The limits are of ``_BucketCapacityConfig``
(``torch/nn/parallel/distributed.py``), both of PyTorch 2.13:

====================================  =========================================
the program says                      limits, one bucket after the other
====================================  =========================================
nothing                               1 MiB, then 25 MiB for all that follow
``bucket_cap_mb=x``, 25 included      ``int(x * 2**20)`` bytes for every bucket, the first too
``bucket_cap_mb_list=[x, y, ...]``    each its own, the last for all that follow
====================================  =========================================

Gradients of several types or devices have buckets of their own, which a plan of one type does not meet. Left out:
``find_unused_parameters``, with which the buckets stay those of the order of parameters, and the environment variable
``DDP_SET_LAST_BUCKET_CAP``, which takes them from the other end.

**Horovod** wakes once a cycle and fuses what got ready since the last one, up to a threshold: a tensor that would pass
it is the first of the next buffer. ``TensorFusionThresholdBytes`` and the cycle of ``horovod/common/operations.cc``,
``FuseResponses`` of ``controller.cc``, Horovod 0.28.1: 128 MiB (older versions: 64 MiB) and 1 ms by default. Left out:
that it looks further ahead for a smaller tensor which still fits, the 16 bytes to which GPUs pad each tensor, the wait
for a cycle's end, and cycles that become longer while a transfer that does not return at once (MPI's, gloo's) goes on.
Its response cache spares the ranks their talk, and leaves sizes as they are.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from math import ceil, floor, inf
from typing import Any

import numpy as np

from planner.channel import Ends, prefix_sums, schedule, transfer_s
from planner.cost import Affine, CheapestOf, Floats, TransferCost, Wait
from planner.families.all_reduce.configuration import NAME, AllReduceConfiguration, FusionGroup
from planner.families.all_reduce.cost import AllReduceCost, cut_by
from planner.families.parsing import wrong
from planner.frozen import frozen
from planner.models.communication import cheapest_of
from planner.models.data_parallel import Gradients
from planner.solution import SAME

_FEW = 2048  # gradients that are grouped in a tenth of a second, and of which all caps of a bucket are tried
_SEEDS = 24  # caps that tell how good the best is at least
_STEP = 1.001  # of more gradients caps closer than this are not told apart
MIB = 2**20
DDP_FIRST_BYTES, DDP_CAP_BYTES = MIB, 25 * MIB
HOROVOD_THRESHOLD_BYTES, HOROVOD_CYCLE_S = 128 * MIB, 1e-3


@frozen
class Buckets:
    """What a rule makes of a size: the last tensor of each bucket, and the sizes that make the same of it.

    These are all above ``low_bytes`` up to ``high_bytes``, which is infinite where larger ones change nothing.
    """

    ends: Ends
    low_bytes: float
    high_bytes: float


def ddp_buckets(size_bytes: Floats, limits_bytes: Iterable[float]) -> Buckets:
    """Return the buckets that close as soon as they hold as much as their limit.

    Parameters
    ----------
    size_bytes
        Of every tensor, in the order in which they get ready; at least one.
    limits_bytes
        Of the buckets one after the other; the last one holds for all that follow. PyTorch counts whole bytes:
        fractions of them are cut off.

    Notes
    -----
    ``low_bytes`` and ``high_bytes`` are those of the last limit, with the others as they are.

    >>> ddp_buckets(np.array([3.0, 3, 3, 9, 1]), [5]).ends
    (1, 3, 4)
    >>> ddp_buckets(np.array([3.0, 3, 3, 9, 1]), [3, 6, 9]).ends
    (0, 2, 3, 4)
    """
    return _closed(np.cumsum(size_bytes).tolist(), size_bytes.tolist(), limits_bytes)


def _closed(until: Sequence[float], sizes: Sequence[float], limits_bytes: Iterable[float]) -> Buckets:
    """Return what :func:`ddp_buckets` does of sizes and their running sums."""
    limits = [floor(limit) if limit < inf else limit for limit in limits_bytes]
    ends: list[int] = []
    low, high, sent, first, last = 0.0, inf, 0.0, 0, len(sizes) - 1
    for number, limit in enumerate(chain(limits, repeat(limits[-1])), 1 - len(limits)):
        # The index of the first sum that reaches the limit; searched for, since networks have thousands of tensors.
        end = bisect_left(until, sent + limit, first)
        if end >= last:
            break
        held = until[end] - sent
        if number >= 0:
            low = held - sizes[end] if held - sizes[end] > low else low  # faster than max(), some million times
            high = held if held < high else high
        ends.append(end)
        sent, first = until[end], end + 1
    low = max(low, until[last] - sent - sizes[last]) if number >= 0 else low
    ends.append(last)
    return Buckets(ends=tuple(ends), low_bytes=low, high_bytes=high)


def horovod_buckets(size_bytes: Floats, tick: Floats, threshold_bytes: float) -> Buckets:
    """Return the groups of tensors that are fused: ready by the same tick, and together no more than a threshold.

    Parameters
    ----------
    size_bytes
        Of every tensor, in the order in which they get ready; at least one.
    tick
        Of every tensor, the tick after it got ready; nondecreasing.
    threshold_bytes
        A tensor above it goes alone.

    >>> horovod_buckets(np.array([4.0, 4, 4, 9, 1]), np.array([1, 1, 1, 2, 2]), 8).ends
    (1, 2, 3, 4)
    """
    ends: list[int] = []
    low, high, held, count = 0.0, inf, 0.0, 0
    sizes, ticks = size_bytes.tolist(), tick.tolist()
    for index, size in enumerate(sizes):
        is_late = index > 0 and ticks[index] != ticks[index - 1]
        if count and (is_late or held + size > threshold_bytes):
            ends.append(index - 1)
            high = high if is_late else min(high, held + size - 1)
            held, count = 0.0, 0
        held, count = held + size, count + 1
        low = max(low, held - 1) if count > 1 else low
    return Buckets(ends=(*ends, len(sizes) - 1), low_bytes=low, high_bytes=high)


def ticks_of(ready_s: Floats, cycle_s: float, phase: float = 0.0) -> Floats:
    """Return the tick of a cycle after which each tensor is ready.

    Parameters
    ----------
    ready_s
        From the start of the backward pass.
    cycle_s
        Seconds of a cycle; > 0.
    phase
        Of a cycle, at which the backward pass begins: nothing ties one to the other.
    """
    ticks: Floats = np.ceil(ready_s / cycle_s - phase)
    return ticks


def best_size(
    size_bytes: Floats,
    judge: Callable[[float], tuple[float, Buckets]],
    *,
    step: float = 1.0,
    least_bytes: float = 1.0,
    is_late: Callable[[], bool] = lambda: False,
) -> tuple[float, Buckets]:
    """Return the best size of a bucket: the seconds that it gives, and what it makes.

    A size alters nothing until it passes ``high_bytes``. Hence every size at which a rule makes something else is
    tried, from one tensor each to one bucket: of whole bytes, the best of all there are. Networks of 100 to 700 tensors
    have 500 to 4,000 of them. Of equally good ones the largest.

    Parameters
    ----------
    size_bytes
        Of every tensor; at least one.
    judge
        Of a size in bytes: the seconds to be minimised, and what is made of it.
    step
        Sizes closer than this to the last one are not told apart; 1 tells all apart.
    least_bytes
        No smaller size is tried, but for those that make the same.
    is_late
        Asked from size to size; then it ends with the best so far.
    """
    size, total = max(float(size_bytes.min()), 1.0, least_bytes), float(size_bytes.sum())
    best: tuple[float, Buckets] | None = None
    while best is None or (size <= total and not is_late()):  # larger ones hold everything
        found = judge(size)
        if best is None or found[0] <= best[0]:
            best = found
        size = max(found[1].high_bytes + 1, size * step)
    return best


def round_mib(buckets: Buckets, total_bytes: float) -> float:
    """Return a size in MiB that makes such buckets, with as few digits as possible, and near the upper end.

    Parameters
    ----------
    buckets
        With the sizes between which nothing alters.
    total_bytes
        Of all tensors.

    >>> round_mib(Buckets(ends=(0,), low_bytes=25.2 * MIB, high_bytes=27.35 * MIB), 100 * MIB)
    27.0
    """
    high = min(buckets.high_bytes, max(buckets.low_bytes + 1, total_bytes)) / MIB
    low = (buckets.low_bytes + 1) / MIB
    for digits in range(7):
        rounded = int(high * 10**digits) / 10**digits
        if rounded >= low:
            return float(rounded)
    return high if high >= low else float(ceil(low))


@frozen(eq=False)
class Exchange:
    """Gradients in ready order, what a transfer costs, and how a full buffer waits."""

    ready_s: Floats  # of every gradient, from the start of the last backward pass
    size_bytes: Floats  # what is sent of every gradient
    whole_bytes: Floats  # of every gradient before it is compressed: what a bucket holds
    transfer: TransferCost
    wait: Wait
    timeout_s: float

    def finish_s(self, ends: Ends, ready_s: Floats | None = None) -> float:
        """Return when the last of the groups that end at ``ends`` has been sent.

        Parameters
        ----------
        ends
            The last gradient of every group.
        ready_s
            Of every gradient, in the place of its own.
        """
        ready = self.ready_s if ready_s is None else ready_s
        return schedule(ends, ready, self.size_bytes, self.transfer, wait=self.wait, timeout_s=self.timeout_s).finish_s


def exchange_of(cost: AllReduceCost, configuration: AllReduceConfiguration) -> Exchange | None:
    """Return what the devices of a configuration send; None where there is nothing to send."""
    if configuration.num_devices == 1 or not cost.gradients.names:
        return None
    return Exchange(
        ready_s=cost.ready_s(configuration),
        size_bytes=cost.gradients.size_bytes * configuration.kept,
        whole_bytes=cost.gradients.size_bytes,
        transfer=cheapest_of(list(cost.transfer_costs_of(configuration).values())),
        wait=cost.problem.calibration.wait,
        timeout_s=cost.problem.calibration.timeout_s,
    )


def best_ends(exchange: Exchange | None) -> Ends:
    """Return the best contiguous groups; none where there is nothing to exchange."""
    return ends_in_time(exchange, lambda: False)[0]


def ends_in_time(exchange: Exchange | None, is_late: Callable[[], bool]) -> tuple[Ends, bool]:
    """Return the best contiguous groups and True; or, where it is late, good ones and False."""
    if exchange is None:
        return (), True
    from planner.solvers.fusion import optimal_groups  # noqa: PLC0415  # see the head of the module

    solution = optimal_groups(
        exchange.ready_s,
        exchange.size_bytes,
        exchange.transfer,
        wait=exchange.wait,
        timeout_s=exchange.timeout_s,
        is_late=is_late if len(exchange.size_bytes) > _FEW else lambda: False,
    )
    return (quick_ends(exchange), False) if solution.value is None else (solution.value, True)


def quick_ends(exchange: Exchange | None) -> Ends:
    """Return good contiguous groups, found at once however many gradients there are; none where there are none.

    The best of one buffer, those of frameworks, and those that would be best if the cost were one affine form of it.
    """
    if exchange is None:
        return ()
    from planner.solvers import fusion  # noqa: PLC0415  # see the head of the module

    ready_s, sizes, wait, timeout_s = exchange.ready_s, exchange.size_bytes, exchange.wait, exchange.timeout_s
    found = [fusion.one_group(len(sizes))]
    found += [fusion.constant_buffer(sizes, each * MIB, ready_s, timeout_s) for each in (25, 64)]
    for form in getattr(exchange.transfer, "costs", ()):
        if isinstance(form, Affine):
            best = fusion.optimal_groups(ready_s, sizes, form, wait=wait, timeout_s=timeout_s).value
            found += [] if best is None else [best]
    return min(found, key=exchange.finish_s)


def fusion_rules(exchange: Exchange, is_late: Callable[[], bool] = lambda: False) -> dict[str, Ends]:
    """Return the groups of every rule of a paper, by its name; fewer where it is late."""
    from planner.solvers import fusion as rules  # noqa: PLC0415  # see the head of the module

    ready_s, sizes, transfer = exchange.ready_s, exchange.size_bytes, exchange.transfer
    startup_s = transfer.startup_s if isinstance(transfer, Affine) else _one_transfer_s(transfer, 1.0)
    found: dict[str, Callable[[], Ends]] = {
        "no fusion": lambda: rules.unfused(len(sizes)),
        "one buffer": lambda: rules.one_group(len(sizes)),
        "MG-WFBP": lambda: rules.mg_wfbp(ready_s, sizes, transfer, startup_s),
        "adaFusion": lambda: rules.ada_fusion(ready_s, sizes, transfer, rules.AdaFusion.LITERAL),
        "adaFusion, idle waiting only": lambda: rules.ada_fusion(ready_s, sizes, transfer, rules.AdaFusion.IDLE),
    }
    is_large = len(sizes) > _FEW
    return {name: rule() for name, rule in found.items() if not (is_large and is_late())}


# -- as frameworks do ------------------------------------------------------------------------------------------------

_BY_TENSOR = ("ddp", "horovod", "best_bucket_cap")  # named rules that cut between tensors


def by_tensor(cost: AllReduceCost, configuration: AllReduceConfiguration) -> AllReduceCost:
    """Return the cost of a configuration's devices whose groups may end at any tensor."""
    return AllReduceCost.of(cut_by(cost.problem, "tensor"), replace(configuration, fusion_groups=()))


def best_cap(exchange: Exchange, is_late: Callable[[], bool] = lambda: False) -> Buckets:
    """Return the buckets of the best constant ``bucket_cap_mb`` of DDP, by the end of the last transfer.

    Every cap that makes other buckets and can be best is tried (:func:`best_size`), until it is late; of more than
    2,048 gradients those that are 0.1 % apart.
    """
    held, sizes = np.cumsum(exchange.whole_bytes).tolist(), exchange.whole_bytes.tolist()
    ready_s, until = exchange.ready_s, prefix_sums(exchange.size_bytes)
    least, total = max(float(exchange.whole_bytes.min()), 1.0), max(float(exchange.whole_bytes.sum()), 1.0)
    seeds = np.minimum(np.geomspace(least, total, _SEEDS), total).tolist()
    seeded = min((_closed(held, sizes, [one]) for one in seeds), key=lambda one: exchange.finish_s(one.ends))
    seeded_s = exchange.finish_s(seeded.ends)

    # The last bucket goes when all gradients are there: when it is done, by its first gradient.
    last_s = (ready_s[-1] + transfer_s(exchange.transfer, until[-1] - until[:-1])).tolist()

    def judge(cap_bytes: float) -> tuple[float, Buckets]:
        """Return the end of the last transfer, which orders iterations, and the buckets; inf where a cap is worse."""
        found = _closed(held, sizes, [cap_bytes])
        if last_s[found.ends[-2] + 1 if len(found.ends) > 1 else 0] > seeded_s * (1 + SAME):
            return inf, found
        last = np.asarray(found.ends)
        # The channel carries all from the first bucket on.
        seconds = transfer_s(exchange.transfer, np.diff(until[np.concatenate(([0], last + 1))]))
        least_s = float(ready_s[last[0]] + seconds.sum())
        return (inf if least_s > seeded_s * (1 + SAME) else exchange.finish_s(found.ends)), found

    step = _STEP if len(exchange.whole_bytes) > _FEW else 1.0
    least = _least_cap_bytes(exchange, seeded_s * (1 + SAME))
    best_s, best = best_size(exchange.whole_bytes, judge, step=step, least_bytes=least, is_late=is_late)
    return best if best_s <= seeded_s else seeded


def _least_cap_bytes(exchange: Exchange, latest_s: float) -> float:
    """Return a cap of DDP's buckets below which the last transfer ends after a time.

    A bucket holds less than its cap and the largest gradient together, and all but the last have something to send: a
    cap makes at least so many transfers, each with the least start-up, that none begins before the first gradient is
    there. Of other costs than affine ones nothing is known.
    """
    parts = exchange.transfer.costs if isinstance(exchange.transfer, CheapestOf) else (exchange.transfer,)
    affine = [part for part in parts if isinstance(part, Affine)]
    startup_s = min((part.startup_s for part in affine), default=0.0)
    if len(affine) < len(parts) or not startup_s or not exchange.size_bytes.any():
        return 1.0
    bytes_s = min(part.per_byte_s for part in affine) * float(exchange.size_bytes.sum())
    most = max(0.0, latest_s - float(exchange.ready_s[0]) - bytes_s) / startup_s + 1  # transfers, and an empty one
    return float(exchange.whole_bytes.sum()) / most * (1 - SAME) - float(exchange.whole_bytes.max())


def bucket_rules(exchange: Exchange, is_late: Callable[[], bool] = lambda: False) -> dict[str, Ends]:
    """Return the buckets of every framework's default and, unless it is late, of DDP's best constant cap, by name.

    Parameters
    ----------
    exchange
        Of single tensors.
    is_late
        Asked from cap to cap.
    """
    ddp, horovod = DDP_CAP_BYTES // MIB, HOROVOD_THRESHOLD_BYTES // MIB
    found = {
        f"buckets of {ddp} MiB (PyTorch DDP's default)": _ends_as_named(exchange, "ddp"),
        f"buffer of {horovod} MiB (Horovod's default)": _ends_as_named(exchange, "horovod"),
    }
    best = best_cap(exchange, is_late)
    cap_mib = round_mib(best, float(exchange.whole_bytes.sum()))
    return found if is_late() else found | {f"best constant bucket cap (DDP), {cap_mib:g} MiB": best.ends}


def _ends_as_named(exchange: Exchange, name: str) -> Ends:
    """Return the buckets of a named rule of :data:`_BY_TENSOR`."""
    if name == "best_bucket_cap":
        return best_cap(exchange).ends
    if name == "horovod":
        return ends_by_size(exchange, {"fusion_threshold": HOROVOD_THRESHOLD_BYTES, "cycle": HOROVOD_CYCLE_S})
    return ends_by_size(exchange, {"bucket_cap": DDP_CAP_BYTES, "first": DDP_FIRST_BYTES})


def ends_by_size(exchange: Exchange, rule: Mapping[str, float | None]) -> Ends:
    """Return the buckets of DDP's caps, or of Horovod's threshold and cycle.

    Parameters
    ----------
    exchange
        Of single tensors.
    rule
        ``bucket_cap`` and ``first`` in bytes, or ``fusion_threshold`` in bytes and ``cycle`` in seconds.
    """
    if (cap := rule.get("bucket_cap")) is not None:
        first = rule.get("first")
        return ddp_buckets(exchange.whole_bytes, [cap] if first is None else [first, cap]).ends
    ticks = ticks_of(exchange.ready_s, rule["cycle"] or HOROVOD_CYCLE_S)
    return horovod_buckets(exchange.size_bytes, ticks, rule["fusion_threshold"] or HOROVOD_THRESHOLD_BYTES).ends


def is_by_tensor(rule: str | Mapping[str, object]) -> bool:
    """Whether a rule cuts between tensors, as frameworks do, rather than where the question's groups end."""
    return rule in _BY_TENSOR if isinstance(rule, str) else rule.get("buffer") is None


def ends_of_rule(exchange: Exchange | None, rule: str | Mapping[str, float | None]) -> Ends:
    """Return the groups of a named rule, or of a size; none where there is nothing to exchange."""
    if exchange is None:
        return ()
    if not isinstance(rule, str):
        if (buffer_bytes := rule.get("buffer")) is None:
            return ends_by_size(exchange, rule)
        from planner.solvers.fusion import constant_buffer  # noqa: PLC0415  # see the head of the module

        return constant_buffer(exchange.size_bytes, buffer_bytes, exchange.ready_s, exchange.timeout_s)
    if rule == "optimal":
        return best_ends(exchange)
    if rule in _BY_TENSOR:
        return _ends_as_named(exchange, rule)
    names = {"none": "no fusion", "one": "one buffer", "mg_wfbp": "MG-WFBP", "ada_fusion": "adaFusion"}
    names["ada_fusion_idle"] = "adaFusion, idle waiting only"
    return fusion_rules(exchange)[names[rule]]


# -- as a user lists them --------------------------------------------------------------------------------------------


def listed_groups(
    gradients: Gradients, costs: Mapping[str, TransferCost], rows: Sequence[Mapping[str, Any]], kept: float
) -> tuple[FusionGroup, ...]:
    """Return listed groups, checked to be all gradients in ready order."""
    names = [name for row in rows for name in row["tensors"]]
    known = list(gradients.names)
    if names != known:
        stranger = next((name for name in names if name not in known), None)
        missing = next((name for name in known if name not in names), None)
        what = (
            f"{stranger!r} is no gradient of this network"
            if stranger
            else f"{missing!r} is in no group"
            if missing
            else ""
        )
        what = what or "they are not in ready order, or one stands twice"
        raise wrong(
            NAME,
            "fusion_groups",
            len(rows),
            f"the groups are not the network's {len(known)} gradients, last layer first: {what}.",
        )
    sizes = dict(zip(known, gradients.size_bytes.tolist(), strict=True))
    groups = []
    for row in rows:
        size = sum(sizes[name] for name in row["tensors"])
        cheapest = min(costs, key=lambda name: _one_transfer_s(costs[name], size * kept))  # used at once
        groups.append(
            FusionGroup(tensors=tuple(row["tensors"]), algorithm=row["algorithm"] or cheapest, size_bytes=size)
        )
    return tuple(groups)


def _one_transfer_s(cost: TransferCost, size_bytes: float) -> float:
    """Return the seconds of one transfer."""
    return float(cost(np.array([size_bytes]))[0])
