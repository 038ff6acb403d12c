"""Push and pull of whole gradients through parameter servers, by workers, servers, network and network of layers.

A gradient is one tensor and lies on one server, so that more servers have nothing to share. What one worker alone takes
(adding up on its own devices and handing out again) is measured, and what push and pull add is predicted by
:mod:`planner.models.servers`. Evaluations: see :func:`measure`.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from planner import zoo
from planner.data.fits import links_reached
from planner.models.servers import Links, iteration_time_s, place_round_robin, pull_time_s, push_end_s
from planner.question.values import Model, Name, Rate
from research.measured import Folds, Measured, MeasuredRow, Parameters, fit_logs, left_out_each, share_of

__all__ = ["Inputs", "Run", "measure"]

_ELEMENT_BYTES = 4
_US = 1e-6


class NetworkInput(Model):
    """What the files call a network, and its rate."""

    name: Name
    bandwidth: Rate
    transport: Literal["tcp", "rdma"]


class Inputs(Model):
    """Files in the folder, and what their names mean: network of layers -> zoo, network -> rate."""

    phases: Name
    stages: Name
    dnns: Annotated[dict[str, Name], Field(min_length=1)]
    inside: Rate
    networks: Annotated[dict[str, NetworkInput], Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Mean seconds of all workers; ``alone_s``: of one worker without others."""

    dnn: str
    network: str
    num_workers: int
    num_servers: int
    transport: str
    measured_s: float
    alone_s: float = 0.0

    @property
    def setting(self) -> str:
        """What is given."""
        return f"{self.dnn}, {self.network}, {self.num_workers} workers"

    @property
    def choice(self) -> str:
        """What somebody has to decide."""
        return f"{self.num_servers} servers"


def measure(inputs: Inputs, path: Path) -> Measured:
    """Return the rows of six evaluations, of communication and update, and of single stages.

    alone
        What one worker takes: a guess without any model of the network.
    nominal
        The rate by which the network is sold: nothing is fitted.
    defaults
        At the rates that links are taken to reach (:func:`planner.data.fits.links_reached`), fitted to these rows, too.
    other networks
        One share of the rate, fitted to the other network.
    other DNNs
        One share for each network, fitted to the other DNN.
    stages
        As nominal: push and pull on their own.
    """
    runs = _read_phases(inputs, path / inputs.phases)
    in_common, each = partial(_fit, inputs, num_shares=1), partial(_fit, inputs, num_shares=len(inputs.networks))
    folds: Folds[Run] = {
        "other networks": (lambda run: run.network, in_common),
        "other DNNs": (lambda run: run.dnn, each),
    }
    rows = [_row("alone", run.network, run, run.alone_s) for run in runs]
    rows += [_row("nominal", run.network, run, _update_time_s(inputs, run, (1.0,))) for run in runs]
    for run in runs:
        rows.append(_row("defaults", run.network, run, _update_time_s(inputs, run, (_usual_share(inputs, run),))))
    for name, group, run, found in left_out_each(runs, folds):
        rows.append(_row(name, group, run, _update_time_s(inputs, run, found)))
    rows += [_stage_row(inputs, stage, run) for stage, run in _read_stages(inputs, path / inputs.stages)]
    names = (f"share of {network.name}" for network in inputs.networks.values())
    return Measured(rows=tuple(rows), fitted=dict(zip(names, each(runs), strict=True)))


# -- predictions -----------------------------------------------------------------------------------------------------


def _usual_share(inputs: Inputs, run: Run) -> float:
    """Return the share of its rate that a network is taken to reach."""
    (nominal,) = (network.bandwidth for network in inputs.networks.values() if network.name == run.network)
    reached = links_reached(run.transport)
    return min(
        reached.network_share, reached.most_bytes_per_card / nominal, inputs.inside * reached.host_share / nominal
    )


def _update_time_s(inputs: Inputs, run: Run, shares: Parameters) -> float:
    """Return what one worker takes alone, then push and pull."""
    links, placed = _links(inputs, run, shares), _placed(inputs, run)
    ready = np.full((run.num_workers, 1), run.alone_s)
    return iteration_time_s(ready, placed, links)


def _links(inputs: Inputs, run: Run, shares: Parameters) -> Links:
    """Return links of one rate for all workers and servers."""
    networks = {network.name: network.bandwidth for network in inputs.networks.values()}
    rate = share_of(run.network, networks, shares) * networks[run.network]
    return Links(server_bytes_per_s=(rate,) * run.num_servers, worker_bytes_per_s=(rate,) * run.num_workers)


def _placed(inputs: Inputs, run: Run) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the whole gradient as one tensor, on the first server."""
    return place_round_robin([_gradient_bytes(inputs.dnns[run.dnn])], num_servers=run.num_servers)


@cache
def _gradient_bytes(name: str) -> float:
    return float(zoo.build(name).num_trainable * _ELEMENT_BYTES)


def _fit(inputs: Inputs, runs: Sequence[Run], *, num_shares: int) -> Parameters:
    """Return one share of all networks' rates, or one of each."""
    return fit_logs(runs, partial(_update_time_s, inputs), start=(0.5,) * num_shares, most=(1.0,) * num_shares)


def _row(evaluation: str, group: str, run: Run, predicted_s: float) -> MeasuredRow:
    return MeasuredRow(
        evaluation=evaluation,
        quantity=f"{evaluation}: {run.setting}, {run.choice}",
        group=group,
        unit="s",
        measured=run.measured_s,
        predicted=predicted_s,
        setting=run.setting,
        choice=run.choice,
        transport=run.transport,
    )


def _stage_row(inputs: Inputs, stage: str, run: Run) -> MeasuredRow:
    """Return one stage of one run, at the nominal rate."""
    links, placed = _links(inputs, run, (1.0,)), _placed(inputs, run)
    pushed_s = float(push_end_s(np.zeros((run.num_workers, 1)), placed, links).max())
    return MeasuredRow(
        evaluation="stages",
        quantity=f"stages: {stage}, {run.setting}, {run.choice}",
        group=f"{stage}, {run.network}",
        unit="s",
        measured=run.measured_s,
        predicted=pushed_s if stage == "push" else pull_time_s(placed, links),
    )


# -- files -----------------------------------------------------------------------------------------------------------


def _read(inputs: Inputs, path: Path, wanted: Callable[[dict[str, str]], float | None]) -> list[Run]:
    """Return the mean over workers of a number in each row; None leaves the row out, as are marked variants."""
    found: dict[tuple[str, str, str, int, int], list[float]] = {}
    with path.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            value = wanted(row)
            if value is not None and not row["variant"] and row["model"] in inputs.dnns:
                network = inputs.networks[row["network"]]
                key = (row["model"], network.name, network.transport, int(row["workers"]), int(row["servers"]))
                found.setdefault(key, []).append(value)
    return [
        Run(
            dnn=dnn,
            network=network,
            transport=transport,
            num_workers=workers,
            num_servers=servers,
            measured_s=fmean(values),
        )
        for (dnn, network, transport, workers, servers), values in found.items()
    ]


def _read_phases(inputs: Inputs, path: Path) -> list[Run]:
    """Return communication and update of several workers, each with what one takes alone."""
    runs = _read(inputs, path, lambda row: float(row["comm_update_s"]))
    alone = {(run.dnn, run.network): run.measured_s for run in runs if run.num_workers == 1}
    return [replace(run, alone_s=alone[run.dnn, run.network]) for run in runs if run.num_workers > 1]


def _read_stages(inputs: Inputs, path: Path) -> list[tuple[str, Run]]:
    """Return the medians of push and pull."""
    found = []
    for stage in ("PUSH", "PULL"):

        def seconds(row: dict[str, str], stage: str = stage) -> float | None:
            return float(row["median_us"]) * _US if row["stage"] == stage else None

        found += [(stage.lower(), run) for run in _read(inputs, path, seconds)]
    return found
