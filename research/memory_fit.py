"""How much of a device's memory training takes: the model against steps that fitted, and larger ones that did not.

Each row of ``training_steps/timm_rtx3090_open.csv`` is a network that was trained on one device of 24 GB, in automatic
mixed precision, with the largest of a sequence of batches that did not run out of memory: so that batch fits, and the
next larger one does not (unless it is the largest of all). What a network keeps is in ``memory_kept.csv``, which
``--networks`` writes from the networks that ``python -m research.timm_networks`` reads. Equal data give equal bytes.

    python -m research.memory_fit --data PATH --write
"""

import argparse
import csv
import os
import pickle
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.dnn import Dnn
from planner.models.activations import data_parallel_memory
from planner.models.memory import MemoryUse, Precision
from research import ROOT
from research.timm_networks import STEPS, read_steps

__all__ = ["BATCHES", "DEVICE_BYTES", "TABLE", "Run", "fitted_reserve_bytes", "main", "page", "read_kept", "read_runs"]

BATCHES = (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
DEVICE_BYTES = 24 * 2**30
TABLE = ROOT / "research" / "memory_kept.csv"
_PAGE = ROOT / "docs" / "accuracy_memory.md"
_COMMAND = "python -m research.memory_fit --write"
_STEP_BYTES = 2**30 // 10
_PRECISION = Precision.of("fp16", "momentum")
_OUTPUTS, _KEPT = "outputs", "kept"
_SHIPPED = _KEPT
_FIELDS = ("network", "image_size", "parameters", "statistics", "output_elements", "beside_bytes", "kept_mixed_bytes")
_FAR = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What one network keeps: bytes of one sample by both models, and what is there whatever the batch."""

    fixed_bytes: float
    outputs_bytes: float
    kept_bytes: float

    def use(self, model: str, reserve_bytes: float) -> MemoryUse:
        """Return the bytes on a device by a model: ``outputs`` in two bytes, or what is ``kept`` by kind."""
        per_sample = self.outputs_bytes if model == _OUTPUTS else self.kept_bytes
        return MemoryUse(
            weights_bytes=round(self.fixed_bytes),
            gradients_bytes=0,
            optimizer_bytes=0,
            activations_per_sample_bytes=round(per_sample),
            reserve_bytes=reserve_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A network that was trained with ``batch_size`` samples, and not with ``next_size``; None: it is the largest."""

    network: str
    batch_size: int
    next_size: int | None
    kept: Kept

    @property
    def family(self) -> str:
        """The networks that it is related to, by its name."""
        name = re.sub(r"^(tf|gluon|ssl|swsl|ig|legacy|ecare|ese|eca|gc|se|sk|cs)_?(?=[a-z])", "", self.network)
        return (re.match(r"[a-z]+", name) or [name])[0]

    def most_samples(self, model: str, reserve_bytes: float) -> int:
        """Return how many samples fit by a model."""
        return self.kept.use(model, reserve_bytes).most_samples(DEVICE_BYTES)


def read_kept() -> dict[tuple[str, str], Kept]:
    """Return what networks keep, by name and size of image."""
    per_parameter: float = _PRECISION.weight_bytes + _PRECISION.gradient_bytes + _PRECISION.master_bytes
    per_parameter += _PRECISION.optimizer_bytes
    with TABLE.open(newline="", encoding="utf-8") as file:
        return {
            (row["network"], row["image_size"]): Kept(
                fixed_bytes=int(row["parameters"]) * per_parameter + 4 * int(row["statistics"]),
                outputs_bytes=int(row["output_elements"]) * _PRECISION.activation_bytes,
                kept_bytes=int(row["kept_mixed_bytes"]),
            )
            for row in csv.DictReader(file)
        }


def table_rows(networks: Path) -> list[tuple[str | int, ...]]:
    """Return the rows of the table, from the networks in a folder."""
    rows: list[tuple[str | int, ...]] = []
    for path in sorted(networks.glob("*.pickle")):
        name, _, size = path.stem.partition("@")
        dnn: Dnn = pickle.loads(path.read_bytes())  # written by research.timm_networks
        beside = sum(layer.kept_beside_bytes for layer in dnn.layers)
        use = data_parallel_memory(dnn, _PRECISION)
        counts = (dnn.num_trainable, dnn.num_moving, dnn.num_stored_elements, beside)
        rows.append((name, int(size), *counts, use.activations_per_sample_bytes))
    return rows


def read_runs(folder: Path, kept: Mapping[tuple[str, str], Kept]) -> list[Run]:
    """Return the steps of the networks that are known."""
    runs = []
    for row in read_steps(folder):
        key, size = (row["model"], row["image_size"]), int(row["batch_size"])
        if key in kept:
            larger = BATCHES[BATCHES.index(size) - 1] if size != BATCHES[0] else None
            runs.append(Run(network=key[0], batch_size=size, next_size=larger, kept=kept[key]))
    return runs


def refused(runs: Iterable[Run], model: str, reserve_bytes: float) -> list[Run]:
    """Return the runs that ran and that a model says do not fit."""
    return [run for run in runs if run.most_samples(model, reserve_bytes) < run.batch_size]


def accepted(runs: Iterable[Run], model: str, reserve_bytes: float) -> list[Run]:
    """Return the runs whose next larger batch did not run, and that a model says does fit."""
    return [run for run in runs if run.next_size and run.most_samples(model, reserve_bytes) >= run.next_size]


def fitted_reserve_bytes(runs: Sequence[Run]) -> int:
    """Return the largest reserve, in tenths of a GiB, with which none of the runs is refused."""
    reserve = 0
    while reserve < DEVICE_BYTES and not refused(runs, _SHIPPED, reserve + _STEP_BYTES):
        reserve += _STEP_BYTES
    return reserve


# -- what is written ---------------------------------------------------------------------------------------------------

_HEAD = f"""\
# Accuracy: memory of networks that are no transformers

Written by `{_COMMAND}`; a test fails when it is stale.

Does a batch fit? {{num_runs}} training steps of {{num_networks}} networks of timm on one RTX 3090 (24 GiB), PyTorch
1.12, eager, automatic mixed precision, SGD with momentum (`{STEPS}` in the folder that `PLANNER_DATA` names).
The batch fell through {", ".join(map(str, BATCHES[:-1]))} and {BATCHES[-1]} until it fitted. So each row says of
one batch that it fits and, of all but those that stopped at {BATCHES[0]}, of the next larger one that it does not:
{{num_bounded}} rows.

**Refused**: ran, but the model says that it needs more than the device has. **Accepted**: the next larger batch did not
run, but the model says that it fits. *Outputs*: two bytes for every output that is kept, as it was before. *By kind*:
what is shipped (`models/activations.py`): in mixed precision norms and softmax keep fp32, products copies in the short
type of what is fp32, and layers what they read beside outputs. The reserve (`calibration.memory_reserve`, 0 unless it
is given) stands for the device's context, workspaces, and gradients of activations on their way.

| reserve | outputs: refused | outputs: accepted | by kind: refused | by kind: accepted |
| --- | --- | --- | --- | --- |
"""


_OUT = """\
What it leaves out: the gradient of an activation, and of branches that wait, while backward runs; workspaces that
convolutions ask for; pieces of the allocator; weights and gradients in fp32 where frameworks keep them so (14 bytes a
parameter with momentum instead of 12, automatic mixed precision of PyTorch). It says that a batch fits which does not
rather than the other way round. A memory failure may also be one of a library: a convolution that found no algorithm.
Passed over: networks that need InplaceABN (TResNet, `densenet264d_iabn`), and one that timm 0.6.13 has no longer.
"""


def page(runs: Sequence[Run]) -> str:
    """Return ``docs/accuracy_memory.md``."""
    bounded = sum(run.next_size is not None for run in runs)
    reserve = fitted_reserve_bytes(runs)
    numbers = {"num_runs": len(runs), "num_networks": len({(run.network, run.kept) for run in runs})}
    lines = [_HEAD.format(**numbers, num_bounded=bounded)]
    for tenths in sorted({0, 5, 10, 15, 20, reserve // _STEP_BYTES}):
        cells = [f"{tenths / 10:.1f} GiB"]
        for model in (_OUTPUTS, _KEPT):
            wrong = accepted(runs, model, tenths * _STEP_BYTES)
            cells.append(str(len(refused(runs, model, tenths * _STEP_BYTES))))
            cells.append(f"{len(wrong)} ({len(wrong) / bounded:.0%})")
        lines.append(f"| {' | '.join(cells)} |\n")
    lines += [
        "\nThe largest reserve with which nothing is refused, in tenths of a GiB: "
        f"{reserve / _STEP_BYTES / 10:.1f} GiB. ",
        _left_out_text(runs),
        _closeness_text(runs, reserve),
    ]
    return "".join(lines) + _tail(runs, reserve)


def _left_out_text(runs: Sequence[Run]) -> str:
    """Say what a reserve refuses that was fitted without the network's family."""
    families = sorted({run.family for run in runs})
    count = 0
    ends = set()
    for family in families:
        others = fitted_reserve_bytes([run for run in runs if run.family != family])
        ends.add(others)
        count += len(refused((run for run in runs if run.family == family), _SHIPPED, others))
    least, most = (f"{end / _STEP_BYTES / 10:.1f}" for end in (min(ends), max(ends)))
    return (
        f"Fitted\nwithout the family of the network ({len(families)} families by name) it is {least} to {most} GiB, "
        f"and refuses {count} of\nthe {len(runs)} runs.\n"
    )


def _closeness_text(runs: Sequence[Run], reserve: float) -> str:
    """Say how many steps of the sequence the largest batch is off."""
    counts: dict[int, int] = {}
    for run in runs:
        if run.next_size is not None:
            most = run.most_samples(_SHIPPED, reserve)
            best = next((at for at, batch in enumerate(BATCHES) if batch <= most), len(BATCHES))
            off = BATCHES.index(run.batch_size) - best
            counts[off] = counts.get(off, 0) + 1
    total = sum(counts.values())
    rows = "".join(f"| {off:+d} | {number} | {number / total:.0%} |\n" for off, number in sorted(counts.items()))
    return (
        f"\n## The largest batch\n\nBy kind, with that reserve: steps of the sequence by which the largest batch that "
        f"fits is off.\n\n| steps | runs | share |\n| --- | --- | --- |\n{rows}"
    )


def _tail(runs: Sequence[Run], reserve: float) -> str:
    """Say where the model is far off, and what it leaves out."""
    far: dict[str, float] = {}
    for run in accepted(runs, _SHIPPED, reserve):
        ratio = run.most_samples(_SHIPPED, reserve) / (run.next_size or 1)
        far[run.network] = max(far.get(run.network, 0.0), ratio)
    rows = sorted(((ratio, name) for name, ratio in far.items() if ratio > _FAR), reverse=True)
    listed = "\n".join(f"- `{name}`: {ratio:.2f}" for ratio, name in rows)
    return (
        f"\nFar too many samples, by that reserve ({_FAR:g} times a batch that did not run, or more):\n\n{listed}\n\n"
        + _OUT
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.memory_fit", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("PLANNER_DATA"), help="folder of measured data")
    parser.add_argument("--networks", type=Path, help=f"folder of networks: write {TABLE.name} anew from them")
    parser.add_argument("--write", action="store_true", help=f"write {_PAGE.name} anew")
    given = parser.parse_args(arguments)
    if given.networks is not None:
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([_FIELDS, *table_rows(given.networks)])
    if given.data is None or not (given.data / STEPS).is_file():
        print("no measured data: name their folder by --data or PLANNER_DATA.", file=sys.stderr)
        return 2
    text = page(read_runs(given.data, read_kept()))
    print(text)
    if given.write:
        _PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
