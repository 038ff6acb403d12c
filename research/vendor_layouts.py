"""Vendors' layouts against our own: how many that were tuned by hand are within a tenth of the best one found here.

For each distinct layout of the tables of low precision (:mod:`research.transformer_fit.low_rows`) and of the recipes in
bf16 (``llm/recipes_bf16_open.csv``) two questions with the same machines, batch, network and numbers: the best layout
of all, and the best one with the vendor's degrees, micro-batch, virtual stages and ZeRO, whose recomputation and
overlaps, which most rows do not tell, are open. Both are priced by the model alone; steps that were measured play no
part. A layout that fits with no recomputation at all counts as refused. Machines are those that the device's reference
machine has; searches end after some seconds each, ours with the best found so far, which can only make the ratio
smaller.

    python -m research.vendor_layouts --data PATH
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import planner
from planner.errors import PlannerError
from planner.models.programs import MEGATRON_CORE
from planner.plan import Plan
from planner.question.dnn import transformer_block
from research.transformer_fit.low_rows import read_low_rows
from research.transformer_fit.rows import Row, read_rows

__all__ = ["Compared", "compared", "main", "questions"]

_TRAYS = {"gb200": 4, "gb300": 4}
_MACHINE = 8
_PINS = {
    "tensor_parallel_size": "tensor",
    "context_parallel_size": "context",
    "pipeline_parallel_size": "pipeline",
    "data_parallel_size": "data",
    "expert_parallel_size": "expert",
    "expert_tensor_parallel_size": "expert_tensor",
    "chunks_per_device": "interleave",
    "microbatch_size": "microbatch",
    "zero_stage": "zero",
}
_NEAR = 1.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A vendor's layout beside ours.

    Attributes
    ----------
    name, layout
        Of the question, and what the vendor chose.
    vendor_s, ours_s
        Predicted steps; the vendor's infinite where its layout does not fit.
    ours
        The layout found.
    has_experts
        Of the network.
    """

    name: str
    layout: str
    vendor_s: float
    ours_s: float
    ours: str
    has_experts: bool

    @property
    def ratio(self) -> float:
        """The vendor's step over ours."""
        return self.vendor_s / self.ours_s


def questions(folder: Path, *, as_bf16: bool = False) -> Iterator[tuple[str, dict[str, Any], dict[str, Any], bool]]:
    """Yield the name, the question and the vendor's decisions of each distinct layout, and whether it has experts.

    Parameters
    ----------
    folder
        Of the measured data.
    as_bf16
        Whether all count as bf16.
    """
    rows: list[tuple[Row, str, tuple[str, str] | None, int, str]] = [
        (one.row, one.model, one.low, one.wide_layers, one.graphs)
        for one in read_low_rows(folder)
        if not (one.is_lora or one.is_reference) and one.row.software == MEGATRON_CORE
    ]
    recipes = [row for row in read_rows(folder) if row.family.startswith("recipes-")]
    rows += [(row, row.group[1], None, 0, "") for row in recipes]
    seen = set()
    for row, model, given, wide, graphs in rows:
        low = None if as_bf16 else given
        pins = [pin for pin, name in _PINS.items() if row.transformer.experts or not name.startswith("expert")]
        layout = {pin: int(getattr(row.layouts(), _PINS[pin])[0]) for pin in pins}
        batch = layout["data_parallel_size"] * int(row.layout["microbatch"]) * int(row.layout["num_microbatches"])
        devices = 1
        for degree in ("tensor", "context", "pipeline", "data"):
            devices *= int(row.layout.get(degree, 1))
        key = (row.transformer, row.device, low, devices, batch, tuple(layout.items()))
        if key in seen:
            continue
        seen.add(key)
        each = _TRAYS.get(row.device, _MACHINE)
        dnn: dict[str, Any] = {**transformer_block(row.transformer), "global_batch": batch}
        if low is not None:
            dnn["dtype"] = low[0]
            if low[0] == "fp8":
                dnn["fp8_recipe"] = low[1]
            if wide:
                dnn["bf16_layers"] = wide
        question = {
            "dnn": dnn,
            "cluster": {"machines": [{"count": devices // each, "device": row.device, "devices": each}]},
            "families": ["hybrid"],
            "calibration": {
                "program": MEGATRON_CORE,
                "cuda_graphs": graphs == "whole",
                **({"gradients": "bf16"} if row.has_bf16_gradients else {}),
            },
        }
        name = f"{model}, {' '.join(dict.fromkeys(low or ('bf16',)))}, {devices} x {row.device}, batch {batch}"
        yield name, question, {**layout, "overlap_data": True}, row.transformer.experts is not None


def compared(folder: Path, *, seconds: float, as_bf16: bool = False, only: str = "") -> Iterator[Compared]:
    """Yield every vendor's layout beside the best one of the same question.

    Parameters
    ----------
    folder, as_bf16
        As for :func:`questions`.
    seconds
        That each search may take.
    only
        Of questions whose names hold this.
    """
    best: dict[str, Plan | None] = {}
    for name, question, pins, has_experts in questions(folder, as_bf16=as_bf16):
        if only not in name:
            continue
        if name not in best:
            best[name] = _planned(question, {}, seconds)
        ours, vendor = best[name], _planned(question, pins, seconds)
        yield Compared(
            name=name,
            layout=_short(pins),
            vendor_s=float("inf") if vendor is None else vendor.prediction.iteration_time_s,
            ours_s=float("nan") if ours is None else ours.prediction.iteration_time_s,
            ours="-" if ours is None else _short(_chosen(ours)),
            has_experts=has_experts,
        )


def _planned(question: Mapping[str, Any], pins: Mapping[str, Any], seconds: float) -> Plan | None:
    """Return the best plan with some decisions pinned; None where there is none."""
    asked = {**question, "fix": dict(pins)} if pins else dict(question)
    try:
        return planner.plan(planner.load(asked), time_limit_s=seconds)
    except PlannerError as error:
        print(f"# {str(error).splitlines()[0][:200]}", file=sys.stderr)
        return None


def _chosen(plan: Plan) -> dict[str, Any]:
    """Return the decisions of a plan, as they are pinned."""
    block = plan.configuration.to_document()
    found = {pin: block.get(name, 1) for pin, name in _PINS.items()}
    kept = {
        key: block[key] for key in ("recompute", "recompute_modules", "overlap_expert", "schedule") if block.get(key)
    }
    return {**found, **kept}


def _short(layout: Mapping[str, Any]) -> str:
    """Return a layout in a few letters."""
    letters = {"chunks_per_device": "v", "expert_tensor_parallel_size": "et", "microbatch_size": "b", "zero_stage": "z"}
    words = []
    for pin in _PINS:
        if pin in layout and (layout[pin] != 1 or pin in ("data_parallel_size", "microbatch_size", "zero_stage")):
            words.append(f"{letters.get(pin, pin[0])}{layout[pin]}")
    words += [str(layout[key]) for key in ("recompute", "recompute_modules", "schedule") if key in layout]
    words += ["overlap"] if layout.get("overlap_expert") else []
    return " ".join(word for word in words if word not in ("none", "1f1b"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.vendor_layouts", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("PLANNER_DATA"), help="folder of measured data")
    parser.add_argument("--seconds", type=float, default=15.0, help="that each search may take")
    parser.add_argument("--bf16", action="store_true", help="count every layout as bf16")
    parser.add_argument("--only", default="", help="of questions whose names hold this")
    given = parser.parse_args(arguments)
    if given.data is None or not (given.data / "llm" / "open.csv").is_file():
        print("no measured data: name their folder by --data or PLANNER_DATA.", file=sys.stderr)
        return 2
    print("| question | vendor's layout | step | our layout | step | vendor's / ours |")
    print("|---|---|---|---|---|---|")
    found = []
    for one in compared(given.data, seconds=given.seconds, as_bf16=given.bf16, only=given.only):
        found.append(one)
        cells = (one.name, one.layout, f"{one.vendor_s:.4g} s", one.ours, f"{one.ours_s:.4g} s", f"{one.ratio:.3f}")
        print(f"| {' | '.join(cells)} |", flush=True)
    print()
    kinds = {"all": found, "dense": [one for one in found if not one.has_experts]}
    kinds["experts"] = [one for one in found if one.has_experts]
    for kind, some in kinds.items():
        accepted = [one for one in some if one.vendor_s < float("inf")]
        known = [one for one in accepted if one.ours_s < float("inf")]  # not a number where no search ended
        near = [one for one in known if one.ratio <= _NEAR]
        if known:
            print(
                f"{kind}: {len(some)} layouts, accepted {len(accepted)} ({len(accepted) / len(some):.0%}); "
                f"of {len(known)} whose best was found within 10 % of it {len(near)} ({len(near) / len(known):.0%})"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
