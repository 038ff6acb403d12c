"""The family ``parameter_server``: what a given configuration costs, and what an answer shows of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.cluster import Cluster
from planner.families.parameter_server.configuration import (
    NAME,
    ParameterServerConfiguration,
    configuration_of,
    left_out,
    machines,
)
from planner.families.parameter_server.cost import NOT_MODELLED, ParameterServerCost, explain
from planner.families.parameter_server.timeline import timeline
from planner.plan import Plan, Prediction
from planner.problem import Problem
from planner.search import Search
from planner.sections import Bars, Cell, FamilyView, Placement, Role, Table, replicas_on
from planner.words import few, many, short, size_words, thinned

__all__ = [
    "FITTED",
    "NAME",
    "NOT_MODELLED",
    "WORDS",
    "configuration_of",
    "domain",
    "explain",
    "left_out",
    "machines",
    "predict",
    "search",
    "timeline",
    "view",
]

WORDS = "data parallelism with parameter servers"  # how it trains
FITTED = ("utilisation", "bandwidth_efficiency", "overhead")
_MOST_SERVERS = 40  # each a row of the plot


def predict(problem: Problem, configuration: ParameterServerConfiguration) -> Prediction:
    """Return what a configuration costs."""
    return ParameterServerCost(problem, configuration).predict()


def view(cluster: Cluster, block: Mapping[str, object], prediction: Prediction) -> FamilyView:
    """Return workers and servers on their machines, and what each server holds."""
    stored: Sequence[float] = prediction.details.get("server_bytes") or ()
    placement = block["placement"]
    held: dict[int, list[str]] = {}
    for tensor, server in placement.items() if isinstance(placement, Mapping) else ():
        held.setdefault(int(server), []).append(str(tensor))
    return FamilyView(
        placement=lambda: _places(cluster, block, stored, held),
        blocks=lambda: _servers(stored, held, placement) if stored else (),
    )


def _places(
    cluster: Cluster, block: Mapping[str, Any], stored: Sequence[float], held: Mapping[int, Sequence[str]]
) -> Placement:
    """Return workers on the first machines of their groups, and servers on the first of theirs, or behind them."""
    counts: Mapping[str, int] = block["workers"]
    groups = {group.name: group for group in cluster.machine_groups}
    shares = block.get("batch_shares", {})
    machines = {
        name: (count, groups[name].devices_per_machine, f"worker, {_samples(shares.get(name))} a device")
        for name, count in counts.items()
    }
    workers = replicas_on(cluster, machines, Role(label="R", words="a worker's replica of the whole network", colour=0))
    first = 0 if block["co_located"] else counts.get(block["servers"], 0)
    servers = {}
    for index in range(block["num_parameter_servers"]):
        parts = [size_words(stored[index])] if index < len(stored) else []
        parts += [many(len(held.get(index, ())), "tensor")] if isinstance(block["placement"], Mapping) else []
        words = f"server {index}{': ' if parts else ''}{', '.join(parts)}"
        servers[first + index] = [Cell(label=f"PS {index}", words=words, colour=1)]
    role = Role(label="PS", words="a parameter server; it holds its share of the parameters", colour=1)
    return Placement(
        devices=workers.devices,
        roles=(*workers.roles, role),
        servers={block["servers"]: servers},
        per_machine=workers.per_machine,
    )


def _samples(number: int | None) -> str:
    """Return the samples of a device, where a block says them."""
    return "? samples" if number is None else many(number, "sample")


def _servers(stored: Sequence[float], held: Mapping[int, Sequence[str]], placement: object) -> list[Bars | Table]:
    """Return what each parameter server holds: its tensors, or the rule of the placement."""
    shown = thinned(list(enumerate(stored)), _MOST_SERVERS)
    rule = f"by the rule {placement}" if isinstance(placement, str) else "none"
    chart = Bars(
        caption="Parameters by server",
        alt=f"Bars of the parameters on {many(len(shown), 'server')}, from {size_words(min(stored))} to "
        f"{size_words(max(stored))}.",
        rows=[(f"server {index}", value, size_words(value)) for index, value in shown],
        title="parameters",
        unit="B",
        note=few(len(stored), len(shown), "servers", "--json has all of them"),
    )
    table = Table(
        caption="Parameter servers and their tensors",
        columns=("server", "parameters", "tensors", "which"),
        rows=[
            (
                f"server {index}",
                size_words(value),
                str(len(held[index])) if index in held else "",
                short(", ".join(held[index]), 300) if index in held else rule,
            )
            for index, value in shown
        ],
        numbers=(1, 2),
    )
    return [chart, table]


# --- Its search, imported when it is asked for: what costs a given plan needs no solver


def search(problem: Problem, search: Search) -> Plan:
    """Return the best plan of the family; see :class:`planner.families.Family`."""
    from planner.families.parameter_server.search import plan  # noqa: PLC0415

    return plan(problem, search)


def domain() -> str:
    """Return what the search covers, where ``predict`` accepts more."""
    return (
        "the servers are machines of one group; a tensor is whole, or sliced over all servers; sums "
        "wait behind a barrier, unless calibration.max_overlap, fix.overlap or fix.barrier say otherwise: then they go "
        "by priority or not, whole or, where tensors are cut, in pieces of 4.1 or 1 MB or as pinned, by overlaps that "
        "send them early"
    )
