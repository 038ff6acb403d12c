"""How gradients are fused: the optimum, the rules of frameworks and papers, and groups that a user lists.

Solvers are imported where a rule is asked for: a configuration with listed groups is judged without any.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.channel import Ends, schedule
from planner.cost import Affine, Floats, TransferCost, Wait
from planner.families.all_reduce.configuration import NAME, AllReduceConfiguration, FusionGroup
from planner.families.all_reduce.cost import AllReduceCost
from planner.families.parsing import wrong
from planner.models.communication import cheapest_of
from planner.models.data_parallel import Gradients

_MIB = 2**20
_FEW = 2048  # gradients that are grouped in a tenth of a second


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchange:
    """Gradients in ready order, what a transfer costs, and how a full buffer waits."""

    ready_s: Floats
    size_bytes: Floats
    transfer: TransferCost
    wait: Wait
    timeout_s: float

    def finish_s(self, ends: Ends) -> float:
        """Return when the last of the groups that end at ``ends`` has been sent."""
        seconds = schedule(ends, self.ready_s, self.size_bytes, self.transfer, wait=self.wait, timeout_s=self.timeout_s)
        return seconds.finish_s


def exchange_of(cost: AllReduceCost, configuration: AllReduceConfiguration) -> Exchange | None:
    """Return what the devices of a configuration send; None where there is nothing to send."""
    if configuration.num_devices == 1 or not cost.gradients.names:
        return None
    return Exchange(
        ready_s=cost.ready_s(configuration),
        size_bytes=cost.gradients.size_bytes * configuration.kept,
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
    found += [fusion.constant_buffer(sizes, each * _MIB, ready_s, timeout_s) for each in (25, 64)]
    for form in getattr(exchange.transfer, "costs", ()):
        if isinstance(form, Affine):
            best = fusion.optimal_groups(ready_s, sizes, form, wait=wait, timeout_s=timeout_s).value
            found += [] if best is None else [best]
    return min(found, key=exchange.finish_s)


def fusion_rules(exchange: Exchange, is_late: Callable[[], bool] = lambda: False) -> dict[str, Ends]:
    """Return the groups of every rule that a framework or a paper uses, by its name; fewer where it is late."""
    from planner.solvers import fusion as rules  # noqa: PLC0415  # see the head of the module

    ready_s, sizes, transfer, timeout_s = exchange.ready_s, exchange.size_bytes, exchange.transfer, exchange.timeout_s
    startup_s = transfer.startup_s if isinstance(transfer, Affine) else _one_transfer_s(transfer, 1.0)
    found: dict[str, Callable[[], Ends]] = {
        "no fusion": lambda: rules.unfused(len(sizes)),
        "buffer of 25 MiB (PyTorch DDP's default)": lambda: rules.constant_buffer(sizes, 25 * _MIB, ready_s, timeout_s),
        "buffer of 64 MiB (Horovod's default)": lambda: rules.constant_buffer(sizes, 64 * _MIB, ready_s, timeout_s),
        "one buffer": lambda: rules.one_group(len(sizes)),
        "MG-WFBP": lambda: rules.mg_wfbp(ready_s, sizes, transfer, startup_s),
        "adaFusion": lambda: rules.ada_fusion(ready_s, sizes, transfer, rules.AdaFusion.LITERAL),
        "adaFusion, idle waiting only": lambda: rules.ada_fusion(ready_s, sizes, transfer, rules.AdaFusion.IDLE),
    }
    is_large = len(sizes) > _FEW
    return {name: rule() for name, rule in found.items() if not (is_large and is_late())}


def ends_of_rule(exchange: Exchange | None, rule: str | Mapping[str, float]) -> Ends:
    """Return the groups of a named rule or a constant buffer; none where there is nothing to exchange."""
    if exchange is None:
        return ()
    if isinstance(rule, Mapping):
        from planner.solvers.fusion import constant_buffer  # noqa: PLC0415  # see the head of the module

        return constant_buffer(exchange.size_bytes, rule["buffer"], exchange.ready_s, exchange.timeout_s)
    if rule == "optimal":
        return best_ends(exchange)
    names = {"none": "no fusion", "one": "one buffer", "mg_wfbp": "MG-WFBP", "ada_fusion": "adaFusion"}
    names["ada_fusion_idle"] = "adaFusion, idle waiting only"
    return fusion_rules(exchange)[names[rule]]


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
