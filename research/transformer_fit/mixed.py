"""Predictions of measured steps on machines of several kinds, and on machines that nothing is fitted to.

``python -m research.transformer_fit.mixed --help`` says how they are printed, and written into the page.

Nothing is fitted to a step on several kinds, nor to the rows of Sailor. Three figures that no other row tells are
fitted, each time anew, to the rows of ``amp-homogeneous``, which ran AMP's program on T4s alone: the T4's share of
products (:data:`FITTED`), what its devices reach by way of the host, and the program's launch floor. All else is as
fitted devices tell (:func:`planner.models.compute.device_shares`); the GH200 has the H100's chip, and its shares.

- ``amp-homogeneous``, ``amp-het_cluster`` (D. Li et al., NeurIPS 2022; GPT-2 of 24 blocks, batch 32): four machines of
  4 T4s; and three of 4 V100s with, last in the order of ranks, one of 4 T4s. No recomputation, no ZeRO. The published
  program (DachengLi1/AMP: Megatron-LM 1.1.5 and DeepSpeed, both changed) numbers ranks by pipeline, data, tensor from
  the outside inwards, and cuts 30 pieces (embedding, an empty one, 24 blocks, four more). What it does otherwise than
  the program that ships under its name, as its code has it (:data:`READING`):

  - gradients are all-reduced in fp32 (``fp32_allreduce``), but the tied embedding's in fp16
    (``allreduce_tied_weight_gradients`` takes ``weight.grad`` as it is);
  - no fusion is asked for: scores move 17 and 25 bytes where fused kernels move 11 and 19, a number of the stream 74
    bytes forward where fused ones move 46.

  Besides, every device of a tensor group sends the whole error back, and an attention mask in fp16 goes on with every
  micro-batch. That is left out: counted, it changed the mean error of the mixed rows by a tenth of a per cent.

  Rows that ran out of memory have no time, and are left out.
- ``sailor-gh200`` (Sailor, SOSP 2025): OPT-350M and GPT-Neo 2.7B on machines of four GH200, joined by NVLink and by
  four cards of 200 Gbit/s (Slingshot 11). A row is left out whose pieces are those of the other network, and whose time
  is that of its own all-reduce.
- ``sailor-het``: OPT-350M on consumer cards in three mixes. Which card a replica stands on is not told: replicas are
  taken to fill the cards of the row in its order, a tensor group of one kind; cards exchange by way of the host, as
  T4s do. The network is named slow and not told: 1 Gbit/s is taken.

Sailor cuts embedding, blocks and head; its program is Megatron-DeepSpeed as it ships.

Left out: ``amp-het_model`` (20 rows, 6 with a time): a TransGAN, whose blocks differ in width and in tokens, and of
which the rows tell neither.
"""

import argparse
import csv
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from planner.cluster import Device
from planner.cost import Floats
from planner.data.devices import device
from planner.data.fits import links_reached, transformer_rates
from planner.models.compute import SCORE_BACKWARD, Constants, DeviceRates, Software, device_shares
from planner.models.layouts import Layouts
from planner.models.tiers import Tier
from planner.models.transformer_step import DeviceGroup, ReplicaClass, Step, group_seconds
from planner.transformer import Transformer
from research import ROOT, page_with

__all__ = [
    "FITTED",
    "READING",
    "MixedRow",
    "Reading",
    "fitted_figures",
    "predicted_s",
    "product_lines",
    "rank_correlation",
    "read_mixed_rows",
]

_PAGE = ROOT / "docs" / "accuracy_transformers.md"
_PART = "research/transformer_fit/mixed.py"
_RATES = ROOT / "planner" / "data" / "transformer_rates.yaml"
_MODULE = "python -m research.transformer_fit.mixed --write"


@dataclass(frozen=True, slots=True)
class _Machine:
    """A kind of machine: its device, links in bytes/s of one direction, and network cards.

    Without a link of its own (0) a device reaches others inside by way of the host.
    """

    device: str
    inside_bytes_per_s: float
    card_bytes_per_s: float
    num_cards: int = 1


_SLOW = 1e9 / 8
_PCIE_BYTES_PER_S = 15.75e9  # 3.0 x16, as it is sold
_MACHINES = {  # by the name in a row
    "V100": _Machine("v100-sxm2-16g", 150e9, 10e9 / 8),  # NVLink; p3.8xlarge: 10 Gbit/s
    "T4": _Machine("t4", 0.0, 50e9 / 8),  # g4dn.12xlarge: 50 Gbit/s
    "GH200-96GB": _Machine("gh200-96gb", 450e9, 25e9, 4),
    "RTX-2080": _Machine("rtx-2080-ti", 0.0, _SLOW),
    "RTX-3090": _Machine("rtx-3090", 0.0, _SLOW),
    "Titan-RTX": _Machine("titan-rtx", 0.0, _SLOW),
}
_NO_ROW = "titan-rtx"  # a card that devices.csv lacks; its peak is with fp32 accumulation (NVIDIA's paper on Turing)
_TITAN = Device(
    name=_NO_ROW,
    peak_flop_per_s={"fp16": 130.5e12},
    memory_bandwidth_bytes_per_s=672e9,
    num_multiprocessors=72,
    power_w=280.0,
)
_LATENCY_S = 2e-5  # of a hop of TCP between machines
_SOFTWARE = "megatron-deepspeed"
_TOLD_BY = "amp-homogeneous"
_FAMILIES: Mapping[str, str] = {  # in the words of the page
    _TOLD_BY: "16 T4, told to the fit",
    "amp-het_cluster": "12 V100 and 4 T4",
    "sailor-gh200": "4 to 128 GH200",
    "sailor-het": "consumer cards in three mixes",
}
_SCALE = 0.05  # error from which on a row counts less than quadratically
# With the share of a B200's chip both steps of DeepSeek-V3 in bf16 that are printed of it (published.csv) are told 41
# and 57 % too slow, with what products alone reach 4 and 15 %; one of Nemotron 3 Super, looked at later, 32 and 0 %.
# A GB300 reaches what a GB200 does with the same chip and less power: with the share of steps on GB200, 0.62, those of
# GPT-OSS are told 5 % too slow (3 too fast else), and a B300 would be quicker than it.
_AS_ALONE = {"b300-sxm": "b300-sxm", "gb300": "gb200"}
# Where each figure starts, and its least and most: T4 shares of its peak down to what 70 W sustain; PCIe 3.0 by way of
# the host; a layer's kernels of PyTorch 1, of 5 to 20 us each.
FITTED: Mapping[str, tuple[float, float, float]] = {
    "product_efficiency": (0.4, 0.1, 0.9),
    "inside_bytes_per_s": (6e9, 2e9, _PCIE_BYTES_PER_S),
    "launch_s": (8e-4, 2e-4, 6e-3),
}
_MEMORY = {"memory_efficiency": (0.7, 0.2, 0.95)}
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How rows of some families are read otherwise than those of the program that ships, and what is fitted."""

    families: str = "amp-"  # what the families' names begin with
    # software, constants: fields of :class:`planner.models.compute.Software` and
    # :class:`planner.models.compute.Constants`
    software: Mapping[str, float | bool] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    # as :data:`FITTED` has them
    fitted: Mapping[str, tuple[float, float, float]] = field(default_factory=lambda: FITTED)
    machines: Mapping[str, _Machine] = field(default_factory=dict)  # by their names, in place of those that are known


READING = Reading(
    software={"gradient_bytes": 4.0, "tied_gradient_bytes": 2.0, "element_passes": 74 / 46},
    constants={"score_bytes": (17 + 25) / (1 + SCORE_BACKWARD)},
)
# One assumption at a time.
_TRIED: Mapping[str, Reading] = {
    "the tied embedding's gradient in four bytes, as others": replace(
        READING, software={**READING.software, "tied_gradient_bytes": 4.0}
    ),
    "fused kernels": replace(READING, software={**READING.software, "element_passes": 1.0}, constants={}),
    "the T4's share of its memory's bandwidth fitted, too": replace(READING, fitted={**FITTED, **_MEMORY}),
    "machines reach 0.89 of the network, as TCP does elsewhere (`links_reached.yaml`)": replace(
        READING, constants={**READING.constants, "outside_efficiency": 0.89}
    ),
    "V100s by the 4 of 6 links that join four of them": replace(
        READING, machines={"V100": replace(_MACHINES["V100"], inside_bytes_per_s=100e9)}
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRow:
    """A measured step: kinds of the machines in the order of ranks, degrees, layers of the stages, and its seconds.

    ``gradients_s``: of them, what the row says that summing up gradients took; 0 where it says nothing.
    """

    family: str
    transformer: Transformer
    machines: tuple[str, ...]
    devices_per_machine: int
    tensor: int
    pipeline: int
    data: int
    microbatch: int
    num_microbatches: int
    layers: tuple[int, ...]
    iteration_s: float
    gradients_s: float


def read_mixed_rows(folder: Path) -> list[MixedRow]:
    """Return the rows of all families that have a time, in the order of the file."""
    with (folder / "llm" / "open.csv").open(encoding="utf-8", newline="") as file:
        rows = [cells for cells in csv.DictReader(file) if cells["iteration_s"]]
    return [row for cells in rows for row in _row_of(cells)]


def _row_of(cells: Mapping[str, str]) -> Iterator[MixedRow]:
    """Yield a row, where it is of one of the families."""
    match = re.match(r"family=([^;]+)", cells["note"])
    family = match.group(1) if match else ""
    if family not in _FAMILIES:
        return
    data, microbatch, num_layers = int(cells["dp"]), int(cells["microbatch"]), int(cells["layers"])
    layers = _layers(cells["note"], num_layers)
    if sum(layers) != num_layers:
        return
    noted = re.search(r"grad_allreduce_s=([\d.]+)", cells["note"])
    size = int(cells["tp"]) if family == "sailor-het" else 4
    machines = _machines(cells["gpu_type"], int(cells["gpus"]), size)
    yield MixedRow(
        family=family,
        transformer=Transformer(
            num_layers=num_layers,
            hidden_size=int(cells["hidden"]),
            num_heads=int(cells["heads"]),
            num_kv_heads=int(cells["kv_heads"]),
            feed_forward_size=int(cells["ffn"]),
            vocabulary_size=int(cells["vocab"]),
            sequence_length=int(cells["seq_len"]),
        ),
        machines=machines,
        devices_per_machine=size,
        tensor=int(cells["tp"]),
        pipeline=int(cells["pp"]),
        data=data,
        microbatch=microbatch,
        num_microbatches=int(cells["global_batch"]) // (data * microbatch),
        layers=layers,
        iteration_s=float(cells["iteration_s"]),
        gradients_s=float(noted.group(1)) if noted else 0.0,
    )


def _machines(text: str, number: int, size: int) -> tuple[str, ...]:
    """Return the kind of every machine of so many devices, from ``12xV100+4xT4 (...)`` or from ``T4 (...)``."""
    names = text.split("(", maxsplit=1)[0]
    found: list[str] = []
    for count, name in re.findall(r"(\d+)x([A-Za-z0-9-]+)", names) or [(number, names.strip())]:
        found += [name] * (int(count) // size)
    return tuple(found)


def _layers(note: str, layers: int) -> tuple[int, ...]:
    """Return the blocks of every stage: of AMP's cuts those of the pieces 2 to 25, of Sailor's counts all but ends."""
    if match := re.search(r"layer_partition=\[([\d ]+)\]", note):
        cuts = [min(max(int(one) - 2, 0), layers) for one in match.group(1).split()]
        return tuple(np.diff(cuts).tolist())
    match = re.search(r"layers_per_stage=\[([\d, ]+)\]", note)
    counts = [int(one) for one in match.group(1).split(",")] if match else [layers + 2]
    counts[0] -= 1
    counts[-1] -= 1
    return tuple(counts)


# -- predictions -------------------------------------------------------------------------------------------------------


def fitted_figures(rows: Sequence[MixedRow], reading: Reading = READING) -> dict[str, float]:
    """Return the figures :data:`FITTED` that come nearest to the rows on T4s alone.

    Minimised is the sum of a robust loss of ``log(predicted / measured)``; deterministic.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415  # late: only a report pays for it

    own = [row for row in rows if row.family == _TOLD_BY]
    names = tuple(reading.fitted)
    start, low, high = np.log(np.array(list(reading.fitted.values()))).T

    def errors(logarithms: Floats) -> Floats:
        figures = dict(zip(names, np.exp(logarithms).tolist(), strict=True))
        return np.array([np.log(predicted_s(row, figures, reading) / row.iteration_s) for row in own])

    found = least_squares(
        errors, start, bounds=(low, high), diff_step=[1e-3] * len(start), loss="soft_l1", f_scale=_SCALE
    )
    return dict(zip(names, np.exp(found.x).tolist(), strict=True))


def predicted_s(row: MixedRow, figures: Figures, reading: Reading = READING) -> float:
    """Return the seconds of a row's step, with the figures :data:`FITTED`."""
    names, given = tuple(dict.fromkeys(row.machines)), transformer_rates()
    program, constants = given["software"][_SOFTWARE], given["constants"]
    if row.family.startswith(reading.families):
        program, constants = {**program, **reading.software}, {**constants, **reading.constants}
    if row.family.startswith(READING.families):
        program = {**program, "launch_s": figures["launch_s"]}
    layouts = Layouts.one(
        tensor=row.tensor,
        pipeline=row.pipeline,
        data=row.data,
        microbatch=row.microbatch,
        num_microbatches=row.num_microbatches,
    )
    shared: dict[str, Any] = {"software": Software(name=_SOFTWARE, **program), "constants": Constants(**constants)}
    machines = {name: reading.machines.get(name, _MACHINES[name]) for name in names}
    networks = [one.card_bytes_per_s * one.num_cards for one in machines.values()]
    slowest = min(networks) if len(names) > 1 else float("inf")
    kinds = [
        group_seconds(row.transformer, layouts, layouts, _kind(one, row, slowest, figures), **shared)
        for one in machines.values()
    ]
    step = Step(layouts=layouts, layers=np.array(row.layers)[:, None], groups=kinds, classes=list(_classes(row, names)))
    return float(step.total_s[0])


def _kind(machine: _Machine, row: MixedRow, slowest: float, figures: Figures) -> DeviceGroup:
    """Return machines of one kind; between two kinds the slower link counts."""
    inside = machine.inside_bytes_per_s or figures["inside_bytes_per_s"]
    tiers = (
        Tier(size=row.devices_per_machine, bandwidth_bytes_per_s=inside),
        Tier(
            size=len(row.machines),
            bandwidth_bytes_per_s=machine.card_bytes_per_s,
            latency_s=_LATENCY_S,
            num_rails=machine.num_cards,
        ),
    )
    rates = _rates(machine.device, figures)
    return DeviceGroup(tiers=tiers, rates=rates, between_bytes_per_s=slowest, between_latency_s=_LATENCY_S)


def _rates(name: str, figures: Figures) -> DeviceRates:
    """Return a device's published figures, with the shares that fitted devices tell, or of the T4 its own."""
    known = _TITAN if name == _NO_ROW else device(name)
    shares = device_shares(known, "fp16", transformer_rates())
    if name == "t4":
        shares |= {key: figures[key] for key in shares if key in figures}
    return DeviceRates.of(known, "fp16", shares)


def _classes(row: MixedRow, names: Sequence[str]) -> Iterator[ReplicaClass]:
    """Yield the replicas that lie on the same kinds, once each: ranks are pipeline, data, tensor inwards."""
    columns = {}
    for data in range(row.data):
        ranks = [(stage * row.data + data) * row.tensor for stage in range(row.pipeline)]
        columns[tuple(names.index(row.machines[rank // row.devices_per_machine]) for rank in ranks)] = True
    for column in columns:
        yield ReplicaClass(groups=np.array(column)[:, None], num_microbatches=np.array([row.num_microbatches]))


def rank_correlation(rows: Sequence[MixedRow], figures: Figures) -> float:
    """Return Spearman's correlation of predicted and measured seconds."""
    return _spearman([predicted_s(row, figures) for row in rows], [row.iteration_s for row in rows])


def _spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's correlation."""
    from scipy.stats import spearmanr  # noqa: PLC0415  # late: only a report pays for it

    return float(spearmanr(one, other).statistic)


def _left_out_s(rows: Sequence[MixedRow]) -> list[float]:
    """Return the seconds of the rows that the fit is told, each by a fit that saw no row of its degrees."""
    figures = {
        degrees: fitted_figures([row for row in rows if _degrees(row) != degrees])
        for degrees in dict.fromkeys(map(_degrees, rows))
    }
    return [predicted_s(row, figures[_degrees(row)]) for row in rows]


def _degrees(row: MixedRow) -> tuple[int, int, int]:
    """Return tensor, pipeline and data degree."""
    return row.tensor, row.pipeline, row.data


# -- what would have to be true of Sailor's machines -------------------------------------------------------------------

_GH200 = "GH200-96GB"
_INSIDE_TRIED = np.geomspace(5e9, 450e9, 91).tolist()
# Scores that softmax takes in fp32, between casts and behind a mask of its own, move 38 bytes forward and 46 backward.
_CAST = {"score_bytes": (38 + 46) / (1 + SCORE_BACKWARD)}
_NETWORKS = {24: "OPT-350M", 32: "GPT-Neo 2.7B"}  # by layers


def _told_inside(rows: Sequence[MixedRow], figures: Figures) -> Iterator[Sequence[str]]:
    """Yield what GH200s would reach of each other, told by the steps of one network, and both networks' errors."""

    def errors(some: Sequence[MixedRow], inside: float, constants: Mapping[str, float]) -> Floats:
        machine = replace(_MACHINES[_GH200], inside_bytes_per_s=inside)
        reading = Reading(families="sailor-gh200", constants=constants, machines={_GH200: machine})
        return np.array([predicted_s(row, figures, reading) / row.iteration_s - 1 for row in some])

    for words, constants in (("Megatron-LM's kernels do", {}), ("a softmax in fp32 does", _CAST)):
        for layers, name in _NETWORKS.items():
            own = [row for row in rows if row.transformer.num_layers == layers]
            others = [row for row in rows if row.transformer.num_layers != layers]
            best = min(_INSIDE_TRIED, key=lambda one: float(np.abs(np.log1p(errors(own, one, constants))).sum()))
            shown = (f"{100 * np.abs(errors(some, best, constants)).mean():.0f} %" for some in (own, others))
            yield (words, name, f"{best / 1e9:.0f} GB/s", *shown)


def _implied_bytes_per_s(row: MixedRow) -> float:
    """Return what a machine would send in a second, had it summed up gradients of two bytes as long as the row says."""
    last = row.layers[-1] * row.transformer.block_parameters("dense")
    held = (last + row.transformer.embedding_parameters) / row.tensor
    sent = 2 * (row.data - 1) / row.data * 2.0 * held * row.devices_per_machine
    return sent / row.gradients_s


def _told_network_s(row: MixedRow, figures: Figures) -> float:
    """Return the seconds of a row whose machines send as fast as its own record of gradients implies."""
    card_bytes_per_s = _implied_bytes_per_s(row) / transformer_rates()["constants"]["outside_efficiency"]
    machines = {name: replace(_MACHINES[name], card_bytes_per_s=card_bytes_per_s) for name in row.machines}
    return predicted_s(row, figures, Reading(families=row.family, machines=machines))


# -- text --------------------------------------------------------------------------------------------------------------

_HEAD = """\
## Mixed machines, and machines that nothing is fitted to

Steps on several kinds of machines, and on kinds without rows of their own. Three figures are fitted to the rows of
`amp-homogeneous` ({told}), whose own errors are of fits that saw no row of the
same degrees; nothing is fitted to any other row here. `python -m research.transformer_fit.mixed` prints every row.

| family | machines | rows | rank | mean error | bias | aim |
|---|---|---|---|---|---|---|
"""
_AIMS = {"amp-het_cluster": "rank 0.9, 10 %", "sailor-gh200": "10 %", "sailor-het": "15 %"}
_SHIPPED = """
AMP's rows as an ordinary question has them, with no figure fitted:

| figures | T4s alone: mean error | mixed: rank | mean error | bias |
|---|---|---|---|---|
"""
_REASONS = """
What is left of AMP's rows: layouts without tensor parallelism and micro-batches of one sample are predicted too slow.

`sailor-gh200` misses its aim: all steps but those of one sample a micro-batch take more than twice as long as
predicted, as if all-reduces of tensor groups reached a tenth of NVLink. No source tells it, so it is not used.

`sailor-het` misses its aim, for its network is not told: 1 Gbit/s (125 MB/s) a machine is taken. In the time that the
rows say gradients took, one machine would have sent {implied} MB/s. Told these rates, one for each
row, the rows would be off by {told}.
"""
_STUDIES = """
Every row:

| family | machines | tensor | stages | data | micro-batch | layers | measured s | predicted s | error |
|---|---|---|---|---|---|---|---|---|---|
{rows}
AMP's rows with one assumption changed at a time, the figures fitted anew:

| assumed | T4s alone: mean error | mixed: rank | mean error | bias |
|---|---|---|---|---|
{tried}
What GH200s would reach of each other, told by the steps of one network:

| scores move bytes as | told by | reached inside | its own mean error | the other network's |
|---|---|---|---|---|
{told}"""


def _table(rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _errors(rows: Sequence[MixedRow], predicted: Sequence[float]) -> tuple[str, str, str]:
    """Return the cells of rank correlation, mean error and bias."""
    measured = [row.iteration_s for row in rows]
    ratios = np.array(predicted) / np.array(measured) - 1
    return (
        f"{_spearman(predicted, measured):.2f}",
        f"{100 * np.abs(ratios).mean():.1f} %",
        f"{100 * ratios.mean():+.1f} %",
    )


def _by_family(rows: Sequence[MixedRow]) -> dict[str, list[MixedRow]]:
    return {family: [row for row in rows if row.family == family] for family in _FAMILIES}


def report(rows: Sequence[MixedRow]) -> str:
    """Return the section of the page: errors by family, and what is missed."""
    figures, of = fitted_figures(rows), _by_family(rows)
    found = {family: [predicted_s(row, figures) for row in own] for family, own in of.items()}
    text = _HEAD.format(told=", ".join(f"`{name}` {value:.3g}" for name, value in figures.items()))
    honest = {**found, _TOLD_BY: _left_out_s(of[_TOLD_BY])}
    text += _table(
        (f"`{family}`", words, str(len(of[family])), *_errors(of[family], honest[family]), _AIMS.get(family, ""))
        for family, words in _FAMILIES.items()
    )
    text += _SHIPPED + _table(_untold(of))
    mixes = of["sailor-het"]
    implied = _words(f"{_implied_bytes_per_s(row) / 1e6:.0f}" for row in mixes)
    told = _words(f"{100 * (_told_network_s(row, figures) / row.iteration_s - 1):+.0f} %" for row in mixes)
    return text + _REASONS.format(implied=implied, told=told)


def _studies(rows: Sequence[MixedRow]) -> str:
    """Return every row, and what was tried."""
    figures, of = fitted_figures(rows), _by_family(rows)
    return _STUDIES.format(
        rows=_table(_cells(row, predicted_s(row, figures)) for own in of.values() for row in own),
        tried=_table(_tried(of, {"as the table above": READING, **_TRIED})),
        told=_table(_told_inside(of["sailor-gh200"], figures)),
    )


def _words(one: Iterable[str]) -> str:
    *first, last = one
    return f"{', '.join(first)} and {last}"


def _cells(row: MixedRow, seconds: float) -> Sequence[str]:
    counts = Counter(row.machines)
    machines = " ".join(f"{count * row.devices_per_machine} {name}" for name, count in counts.items())
    degrees = map(str, (row.tensor, row.pipeline, row.data, row.microbatch))
    error = f"{100 * (seconds / row.iteration_s - 1):+.0f} %"
    listed = " ".join(map(str, row.layers))
    return (row.family, machines, *degrees, listed, f"{row.iteration_s:.2f}", f"{seconds:.2f}", error)


def _tried(of: Mapping[str, Sequence[MixedRow]], readings: Mapping[str, Reading]) -> Iterator[Sequence[str]]:
    """Yield the cells of every reading of AMP's rows."""
    for words, reading in readings.items():
        figures = fitted_figures(of[_TOLD_BY], reading)
        told, mixed = (
            _errors(own, [predicted_s(row, figures, reading) for row in own])
            for own in (of[_TOLD_BY], of["amp-het_cluster"])
        )
        yield (words, told[1], *mixed)


def _untold(of: Mapping[str, Sequence[MixedRow]]) -> Iterator[Sequence[str]]:
    """Yield the cells of AMP's rows as an ordinary question has them, with and without the T4's share of products."""
    given, known = transformer_rates(), device("t4")
    reached = links_reached("tcp").pcie_share / given["constants"]["inside_efficiency"]
    inside = {"inside_bytes_per_s": _PCIE_BYTES_PER_S * reached, "launch_s": given["software"][_SOFTWARE]["launch_s"]}
    unmeasured = {**given, "products": {}}
    for words, rates in (("as it ships", given), ("the same, the T4 as one that nobody measured", unmeasured)):
        figures = {**device_shares(known, "fp16", rates), **inside}
        told, mixed = (
            _errors(own, [predicted_s(row, figures, Reading()) for row in own])
            for own in (of[_TOLD_BY], of["amp-het_cluster"])
        )
        yield (words, told[1], *mixed)


def alone(name: str) -> float:
    """Return what products alone reach of a device's peak, as they were measured."""
    known = device(name)
    assert known.matmul_flop_per_s is not None, "it was measured"
    return known.matmul_flop_per_s / known.peak_flop_per_s["bf16"]


def product_lines(shares: Mapping[str, float]) -> list[str]:
    """Return the section ``products`` of the file of rates, as lines."""
    told = ", ".join(f"{name}: {share:.3g}" for name, share in shares.items())
    return [f"# Shares of products that few steps tell (written by: {_MODULE}).", f"products: {{{told}}}"]


def rates_with(text: str, shares: Mapping[str, float]) -> str:
    """Return the file of rates with other shares in its section ``products``."""
    kept = [line for line in text.splitlines() if _MODULE not in line and not line.startswith("products:")]
    at = kept.index("software:")
    return "\n".join([*kept[:at], *product_lines(shares), *kept[at:], ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report, and write it where that is asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.transformer_fit.mixed", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("PLANNER_DATA"), help="folder of measured data")
    parser.add_argument("--write", action="store_true", help=f"write its parts of {_PAGE.name} and {_RATES.name}")
    given = parser.parse_args(arguments)
    if given.data is None or not (given.data / "llm" / "open.csv").is_file():
        print("no measured data: name their folder by --data or PLANNER_DATA.", file=sys.stderr)
        return 2
    rows = read_mixed_rows(given.data)
    text = report(rows)
    if given.write:
        told = {"t4": fitted_figures(rows)["product_efficiency"]} | {name: alone(of) for name, of in _AS_ALONE.items()}
        _RATES.write_text(rates_with(_RATES.read_text(encoding="utf-8"), told), encoding="utf-8")
        _PAGE.write_text(page_with(_PAGE.read_text(encoding="utf-8"), _PART, text), encoding="utf-8")
    else:
        print(text, _studies(rows), sep="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
