"""Vendors' layouts against our own: how many that were tuned by hand are within a tenth of the best one found here.

For each distinct layout of the tables of low precision (:mod:`research.transformer_fit.low_rows`) and of the recipes in
bf16 (``llm/recipes_bf16_open.csv``) two questions with the same machines, batch, network and numbers: the best layout
of all, and the best one with the vendor's degrees, micro-batch, virtual stages and ZeRO, whose recomputation and
overlaps, which most rows do not tell, are open. Both are priced by the model alone; steps that were measured play no
part. A layout that fits with no recomputation at all counts as refused. Machines are those that the device's reference
machine has; searches end after some seconds each, ours with the best found so far, which can only make the ratio
smaller.

A layout that is more than a tenth behind has a cause beside it: it is one of a network cut to a few layers, which
nobody tuned; or its vendor measured another one of the same question to be faster; or else the part of the step that
ours saves most of.

    python -m research.vendor_layouts --data PATH
"""

import argparse
import os
import re
import sys
from collections import Counter
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

__all__ = ["Asked", "Compared", "compared", "main", "questions"]

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
_QUICKER = 0.95  # of a step, of another that its vendor measured
_WHOLE = {"405B": 126, "Grok": 64}  # layers of networks that recipes cut
_SAVED = {
    "launch": "launching kernels",
    "expert": "exchange of experts",
    "data": "gradients and weights of replicas",
    "tensor": "tensor-parallel exchange",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A vendor's layout as a question."""

    # name, question: what is asked, in words and as a document
    name: str
    question: dict[str, Any]
    pins: dict[str, Any]  # the vendor's decisions
    has_experts: bool  # of the network
    # the step of the quickest other layout of the same question that was measured, over its own; 1 where none was
    quickest: float

    @property
    def untuned(self) -> str:
        """Why nobody tuned the layout by hand to the end; nothing where somebody did."""
        cut = re.match(r"(\w+)\((\d+) layers\)", self.name)
        if cut and int(cut[2]) < _WHOLE[cut[1]]:
            return "cut to a few layers: nobody tuned it"
        if self.quickest < _QUICKER:
            return f"replaced: its vendor measured another at {self.quickest:.2f} of its step"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A vendor's layout beside ours."""

    # name, layout: of the question, and what the vendor chose
    name: str
    layout: str
    # vendor_s, ours_s: predicted steps; the vendor's infinite where its layout does not fit
    vendor_s: float
    ours_s: float
    ours: str  # the layout found
    # has_experts, is_tuned: of the network; of the vendor's layout
    has_experts: bool
    is_tuned: bool
    cause: str = ""  # why the vendor's is more than a tenth behind; nothing where it is not

    @property
    def ratio(self) -> float:
        """The vendor's step over ours."""
        return self.vendor_s / self.ours_s


def questions(folder: Path, *, as_bf16: bool = False) -> Iterator[Asked]:
    """Yield each distinct layout as a question.

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
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    steps: dict[tuple[Any, ...], dict[tuple[Any, ...], float]] = {}
    for row, model, given, wide, graphs in rows:
        low = None if as_bf16 else given
        pins = [pin for pin, name in _PINS.items() if row.transformer.experts or not name.startswith("expert")]
        layout = {pin: int(getattr(row.layouts(), _PINS[pin])[0]) for pin in pins}
        batch = layout["data_parallel_size"] * int(row.layout["microbatch"]) * int(row.layout["num_microbatches"])
        devices = 1
        for degree in ("tensor", "context", "pipeline", "data"):
            devices *= int(row.layout.get(degree, 1))
        own = tuple(layout.items())
        same = (row.transformer, row.device, low, devices, batch)
        quickest = steps.setdefault(same, {})
        quickest[own] = min(row.iteration_s, quickest.get(own, row.iteration_s))
        if (*same, own) in found:
            continue
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
        words = (model, " ".join(dict.fromkeys(low or ("bf16",))), f"{devices} x {row.device}", f"batch {batch}")
        name = f"{', '.join(words)} of {row.transformer.sequence_length}{', captured' * (graphs == 'whole')}"
        has_experts = row.transformer.experts is not None
        pinned = {**layout, "overlap_data": True}
        found[(*same, own)] = {"name": name, "question": question, "pins": pinned, "has_experts": has_experts}
    for (*asked, own), fields in found.items():
        quickest = steps[tuple(asked)]
        yield Asked(**fields, quickest=min(quickest.values()) / quickest[own])


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
    for one in questions(folder, as_bf16=as_bf16):
        if only not in one.name:
            continue
        if one.name not in best:
            best[one.name] = _planned(one.question, {}, seconds)
        ours, vendor = best[one.name], _planned(one.question, one.pins, seconds)
        yield Compared(
            name=one.name,
            layout=_short(one.pins),
            vendor_s=float("inf") if vendor is None else vendor.prediction.iteration_time_s,
            ours_s=float("nan") if ours is None else ours.prediction.iteration_time_s,
            ours="-" if ours is None else _short(_chosen(ours)),
            has_experts=one.has_experts,
            is_tuned=not one.untuned,
            cause=_cause(one, vendor, ours),
        )


def _cause(asked: Asked, vendor: Plan | None, ours: Plan | None) -> str:
    """Return why a vendor's layout is more than a tenth behind ours; nothing where it is not."""
    if vendor is None or ours is None:
        return ""
    behind_s = vendor.prediction.iteration_time_s - ours.prediction.iteration_time_s
    if behind_s <= (_NEAR - 1) * ours.prediction.iteration_time_s:
        return ""
    if asked.untuned:
        return asked.untuned
    ahead = ours.prediction.breakdown_s
    saved = {name: seconds - ahead.get(name, 0.0) for name, seconds in vendor.prediction.breakdown_s.items()}
    most = max(saved, key=lambda name: saved[name])
    return f"{_SAVED.get(most, most)}: {saved[most] / behind_s:.0%} of what ours saves"


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
    print("| question | vendor's layout | step | our layout | step | vendor's / ours | cause |")
    print("|---|---|---|---|---|---|---|")
    found = []
    for one in compared(given.data, seconds=given.seconds, as_bf16=given.bf16, only=given.only):
        found.append(one)
        steps = (one.layout, f"{one.vendor_s:.4g} s", one.ours, f"{one.ours_s:.4g} s", f"{one.ratio:.3f}")
        print(f"| {' | '.join((one.name, *steps, one.cause))} |", flush=True)
    print("", *_counted(found), sep="\n")
    return 0


def _counted(found: Sequence[Compared]) -> Iterator[str]:
    """Yield how many layouts are accepted and near, of all, with experts and without, and of those tuned by hand."""
    kinds = {"all": found, "dense": [one for one in found if not one.has_experts]}
    kinds["experts"] = [one for one in found if one.has_experts]
    tuned = {f"{kind}, tuned by hand": [one for one in some if one.is_tuned] for kind, some in kinds.items()}
    for kind, some in {**kinds, **tuned}.items():
        accepted = [one for one in some if one.vendor_s < float("inf")]
        known = [one for one in accepted if one.ours_s < float("inf")]  # not a number where no search ended
        near = [one for one in known if one.ratio <= _NEAR]
        if known:
            yield (
                f"{kind}: {len(some)} layouts, accepted {len(accepted)} ({len(accepted) / len(some):.0%}); "
                f"of {len(known)} whose best was found within 10 % of it {len(near)} ({len(near) / len(known):.0%})"
            )
            causes = Counter(one.cause.split(":")[0] for one in known if one.cause)
            yield from (f"  {number} {cause}" for cause, number in causes.most_common())


if __name__ == "__main__":
    sys.exit(main())
