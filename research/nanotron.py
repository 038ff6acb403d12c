"""Nanotron's published sweep on H100s, predicted as ordinary questions: errors, choices, memory.

Runs of one stage that reach a quarter of the peak are among the rows that figures are fitted to; the others are not.
Each is asked as a user would: `h100-sxm`, `nvlink-4`, `8 x 400 Gbit/s`, `order` and `overlap_data` as by default,
sequence parallel above tensor degree 1 (`tp_mode: REDUCE_SCATTER`), tensor-parallel communication beside products
(`tp_linear_async_communication`), nothing recomputed. The latency is that of the Elastic Fabric Adapter, chosen since
without it the error falls with the data degree. Layers are cut as nanotron cuts them, by FLOP with the head counted, so
that the last stages may hold no layer; heads are those of its benchmark script. What ``nanotron`` is stands in its
source: PyTorch's own calls, with what torchtitan's libraries reach; gradients in two bytes beside their sums in four,
sent in DDP's buckets of 25 MB.

Writes a part of ``docs/accuracy_transformers.md``; equal data give equal bytes.

    python -m research.nanotron --data PATH --write
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median

import planner
from planner.data.fits import transformer_rates
from planner.families.hybrid.configuration import HybridConfiguration, PipelineStage
from planner.families.hybrid.prediction import predict
from planner.problem import Problem
from research import ROOT, page_with
from research.nanotron_runs import (
    DEVICES_PER_MACHINE,
    FILE,
    GLOBAL_BATCH,
    HEALTHY,
    LATENCY_S,
    NETWORKS,
    SEQUENCE_LENGTH,
    Run,
    read_runs,
)
from research.transformer_fit import fit, mixed
from research.transformer_fit.rows import read_rows

__all__ = ["PROGRAMS", "Choice", "choices", "layers_by_stage", "main", "predicted", "section"]

PROGRAMS = ("nanotron", "megatron-core")
_PAGE = ROOT / "docs" / "accuracy_transformers.md"
_STEADY = 16  # machines up to which repeats agree so that a choice means something
_FULL_BYTES = 70e9  # of 80 GB, as measured
_FEWEST = 3  # layouts of a group that a rank is asked of


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Of a run: seconds of a step, and bytes of the fullest device with its limit."""

    run: Run
    iteration_s: float
    memory_bytes: float
    limit_bytes: float

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        assert self.run.iteration_s is not None
        return self.iteration_s / self.run.iteration_s - 1

    @property
    def is_refused(self) -> bool:
        """Whether it does not fit by the model."""
        return self.memory_bytes > self.limit_bytes


# -- predictions -------------------------------------------------------------------------------------------------------


@cache
def _question(model: str, nodes: int, program: str) -> Problem:
    """Return the question of a network on so many machines, as a user would ask it."""
    links = {"inside": "nvlink-4", "network": "8 x 400 Gbit/s", "latency": f"{LATENCY_S * 1e6:g} us"}
    machine = {"count": nodes, "device": "h100-sxm", "devices": DEVICES_PER_MACHINE, **links}
    sizes = {**NETWORKS[model], "sequence_length": SEQUENCE_LENGTH}
    return planner.load(
        {
            "dnn": {"transformer": sizes, "global_batch": GLOBAL_BATCH, "dtype": "bf16"},
            "cluster": {"machines": [machine]},
            "calibration": {"program": program},
            "objective": "iteration_time",
        }
    )


def layers_by_stage(model: str, stages: int) -> tuple[int, ...]:
    """Return how nanotron cuts layers: a stage ends with the block with which the FLOP pass its part of all.

    The head counts, so that the last stages may hold no layer.

    >>> layers_by_stage("8B", 4), layers_by_stage("1B", 4)
    ((9, 9, 8, 6), (6, 5, 5, 0))
    """
    keys = ("layers", "hidden", "feed_forward", "vocabulary")
    layers, hidden, feed_forward, words = (NETWORKS[model][key] for key in keys)
    layer, head = (4 * hidden + 3 * feed_forward) * hidden, words * hidden
    found, stage = [0] * stages, 0
    for index in range(layers):
        found[stage] += 1
        if (index + 1) * layer * stages > (layers * layer + head) * (stage + 1):
            stage += 1
    return tuple(found)


def _has_idle_stage(run: Run) -> bool:
    """Return whether a stage has nothing: each of those after the layers takes the head, a cast or the loss."""
    return layers_by_stage(run.model, run.pipeline).count(0) > len(("head", "cast", "loss"))


def predicted(runs: Iterable[Run], program: str) -> list[Prediction]:
    """Return what the cost model of a plan says of runs; a stage without layers, which no question may ask for, too."""
    found = []
    for run in runs:
        stages = layers_by_stage(run.model, run.pipeline) if run.pipeline > 1 else ()
        chosen = HybridConfiguration(
            global_batch_size=GLOBAL_BATCH,
            tensor=run.tensor,
            context=1,
            pipeline=run.pipeline,
            data=run.data,
            expert=1,
            interleave=1,
            microbatch=run.microbatch,
            zero=run.zero,
            recompute="none",
            schedule="1f1b",
            sequence_parallel=run.tensor > 1,
            overlap_data=True,
            overlap_tensor=run.tensor > 1,
            offload_optimizer=False,
            order="tensor-context-data-pipeline",
            stages=tuple(PipelineStage(layers=one) for one in stages),
        )
        one = predict(_question(run.model, run.nodes, program), chosen)
        held = one.memory_bytes
        found.append(
            Prediction(run=run, iteration_s=one.iteration_time_s, memory_bytes=held["total"], limit_bytes=held["limit"])
        )
    return found


# -- choices -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Layouts of one network on one cluster: how they are ranked, and how much slower the one ranked first is."""

    num_layouts: int
    rank: float
    regret: float


def choice_of(pairs: Sequence[tuple[float, float]]) -> Choice:
    """Return the choice among layouts of so many predicted and measured seconds.

    >>> choice_of([(1.0, 2.2), (2.0, 2.0), (3.0, 4.0)]).regret
    0.1
    """
    from scipy.stats import spearmanr  # noqa: PLC0415  # late: only a report pays for it

    ahead, measured = zip(*pairs, strict=True)
    return Choice(
        num_layouts=len(pairs),
        rank=float(spearmanr(ahead, measured).statistic),
        regret=round(measured[ahead.index(min(ahead))] / min(measured) - 1, 9),
    )


def choices(found: Iterable[Prediction]) -> Iterator[tuple[tuple[str, int], Choice]]:
    """Yield network, machines and choice, of groups of layouts that ran; repeats count once, with their mean."""
    layouts: dict[tuple[str | int, ...], list[Prediction]] = {}
    for one in found:
        if one.run.iteration_s is not None:
            layouts.setdefault(one.run.layout, []).append(one)
    groups: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for same in layouts.values():
        pair = (same[0].iteration_s, fmean(one.run.iteration_s or 0.0 for one in same))
        groups.setdefault((same[0].run.model, same[0].run.nodes), []).append(pair)
    for name, pairs in groups.items():
        if len(pairs) >= _FEWEST:
            yield name, choice_of(pairs)


def _other_choices(folder: Path) -> Iterator[tuple[str, list[Choice]]]:
    """Yield the choices of other sweeps by name, with the figures that ship."""
    shipped = transformer_rates()
    figures: Mapping[str, Mapping[str, float]] = {
        "constants": shipped["constants"],
        "machines": shipped["machines"],
        **{f"devices.{name}": shares for name, shares in shipped["devices"].items()},
        **{f"software.{name}": program for name, program in shipped["software"].items()},
    }
    parameters = {prior: figures[prior.rpartition(".")[0]][prior.rpartition(".")[2]] for prior in fit.PRIORS}
    rows = [row for row in read_rows(folder) if row.family == "bigscience-176b-sweep"]
    errors = fit.predict(fit.Table(rows), parameters).tolist()
    groups: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for row, error in zip(rows, errors, strict=True):
        groups.setdefault(row.group, []).append((row.iteration_s * (1 + error), row.iteration_s))
    yield "bigscience-176b-sweep, 352 and 384 A100", [choice_of(one) for one in groups.values() if len(one) >= _FEWEST]
    cut = mixed.read_mixed_rows(folder)
    fitted = mixed.fitted_figures(cut)
    for family, words in (("amp-homogeneous", "16 T4, told to the fit"), ("amp-het_cluster", "12 V100 and 4 T4")):
        own = [row for row in cut if row.family == family]
        yield f"{family}, {words}", [choice_of([(mixed.predicted_s(row, fitted), row.iteration_s) for row in own])]


# -- text --------------------------------------------------------------------------------------------------------------

_HEAD = """\
## Nanotron's sweep on H100s

{num} runs of four networks ({models}: Llama's blocks, 4,096 tokens, 131,072 words,
256 sequences a step) on 8 to 512 H100, eight a machine; {ran} have a time. The {fitted} of one stage that reach
{share:.0f} % of the peak are among the rows that figures are fitted to, as three families; all others are not. Each is
predicted as an ordinary question; the network is not published, and a latency of {latency_us:.0f} us is taken.
`{second}` is what a user gets who names no program. How runs are read: `research/nanotron.py`, which prints this.

Errors of the {healthy} runs that reach {share:.0f} % of the peak or more; all {ran} runs are {all_error:.0f} % off in
the mean, {all_bias:+.0f} % on average. Choosing runs by what they measured flatters a prediction.

"""
_CHOICES = """\

Choices: layouts of one network on so many devices, ranked by the prediction among those that ran. Regret is how much
longer the first one takes than the best one measured. Rank (Spearman) and regret are means of groups of {fewest}
layouts or more, repeats counting once. On more than {steady} machines one layout repeated took up to {spread:.1f}
times as long as before ({calm:.1f} times on fewer), so that regret there says little of a model.

"""
_REASONS = """\

What seems to stand behind the largest errors:

- *A device all but full.* {full} runs on up to four machines measured {full_gb:.0f} GB or more of 80 GB; they take
  {slow_low:.1f} to {slow_high:.1f} times as long as predicted, as an allocator does that frees and asks again. No term
  of the model holds this: leave memory free.
- *Small micro-batches on several stages or on tensor degrees beyond a machine* are below {share:.0f} % of the peak and
  up to {slowest:.0f} times as slow as predicted on four machines. Nanotron sends each tensor between stages with
  messages about it, on the host's time.

"""
_MEMORY = """\
Memory of runs without a result ({failed}; why is not published). {again} of these layouts ran another time, and {idle}
leave a stage without any block ({idle_ran} such layout ran). Of the other {rest} the model refuses {refused}
({refused_share:.0f} %) as too large; of the {ran} that ran it refuses {wrong}. It counts less than was measured: the
median is {median:+.0f} %, without the reserve of 3 GiB; what is printed is what the allocator has reserved.
"""


def section(folder: Path) -> str:
    """Return the part of the page, in Markdown."""
    runs = read_runs(folder)
    ran = [run for run in runs if run.iteration_s is not None]
    by_program = {name: predicted(ran, name) for name in PROGRAMS}
    first = by_program[PROGRAMS[0]]
    healthy = {name: [one for one in found if one.run.is_healthy] for name, found in by_program.items()}
    fitted = sum(run.is_healthy and run.pipeline == 1 for run in runs)
    told = {"first": PROGRAMS[0], "second": PROGRAMS[1], "ran": len(ran), "share": 100 * HEALTHY}
    head = _HEAD.format(
        **told,
        num=f"{len(runs):,}",
        models=", ".join(NETWORKS),
        fitted=fitted,
        latency_us=LATENCY_S * 1e6,
        healthy=len(healthy[PROGRAMS[0]]),
        all_error=100 * fmean(abs(one.error) for one in first),
        all_bias=100 * fmean(one.error for one in first),
    )
    calm, wild = (_repeats(run for run in ran if (run.nodes > _STEADY) is is_wild) for is_wild in (False, True))
    ranked = _CHOICES.format(fewest=_FEWEST, steady=_STEADY, spread=wild, calm=calm)
    full = [one for one in first if one.run.memory_bytes >= _FULL_BYTES and one.run.nodes <= 4]
    times = [1 / (1 + one.error) for one in full]
    reasons = _REASONS.format(
        **told,
        full=len(full),
        full_gb=_FULL_BYTES / 1e9,
        slow_low=min(times),
        slow_high=max(times),
        slowest=max(1 / (1 + one.error) for one in first if one.run.nodes <= 4),
    )
    parts = [head, _error_table(healthy), ranked, _choice_table(by_program, folder), reasons]
    return "".join([*parts, _memory_text(runs, by_program[PROGRAMS[0]])])


def _repeats(runs: Iterable[Run]) -> float:
    """Return the longest time of one layout over its shortest, the largest such ratio."""
    times: dict[tuple[str | int, ...], list[float]] = {}
    for run in runs:
        times.setdefault(run.layout, []).append(run.iteration_s or 0.0)
    return max(max(same) / min(same) for same in times.values())


def _error_table(healthy: Mapping[str, Sequence[Prediction]]) -> str:
    """Return mean error and bias by stages and tensor degree, a line for each value."""
    lines = [f"| runs | number | {' | '.join(f'`{name}`: mean | bias' for name in PROGRAMS)} |\n"]
    lines.append(f"|---|---|{'---|---|' * len(PROGRAMS)}\n")
    keys: Mapping[str, Callable[[Run], int]] = {
        "all": lambda _: 0,
        "stages": lambda run: run.pipeline,
        "tensor degree": lambda run: run.tensor,
    }
    for words, key in keys.items():
        for value in sorted({key(one.run) for one in healthy[PROGRAMS[0]]}):
            own = [[one.error for one in found if key(one.run) == value] for found in healthy.values()]
            cells = [f"{100 * fmean(map(abs, errors)):.1f} % | {100 * fmean(errors):+.1f} %" for errors in own]
            lines.append(f"| {words}{f' {value}' * (value > 0)} | {len(own[0])} | {' | '.join(cells)} |\n")
    return "".join(lines)


def _choice_table(by_program: Mapping[str, Sequence[Prediction]], folder: Path) -> str:
    """Return rank and regret, of this sweep and of others."""
    lines = [
        "| sweep | with | groups | layouts | rank | regret | median | worst |\n",
        "|---|---|---|---|---|---|---|---|\n",
    ]

    def add(words: str, program: str, found: Sequence[Choice]) -> None:
        total = sum(one.num_layouts for one in found)
        regrets = [100 * one.regret for one in found]
        losses = " | ".join(f"{take(regrets):.1f} %" for take in (fmean, median, max))
        figures = f"{fmean(one.rank for one in found):.2f} | {losses}"
        lines.append(f"| {words} | {program} | {len(found)} | {total} | {figures} |\n")

    for program, found in by_program.items():
        grouped = list(choices(found))
        add(
            f"nanotron, up to {_STEADY} machines",
            f"`{program}`",
            [one for (_, nodes), one in grouped if nodes <= _STEADY],
        )
        healthy = choices(one for one in found if one.run.is_healthy)
        add(f"nanotron, runs that reach {100 * HEALTHY:.0f} %", f"`{program}`", [one for _, one in healthy])
    for name, known in _other_choices(folder):
        add(name, "shipped figures", known)
    return "".join(lines)


def _memory_text(runs: Sequence[Run], ran: Sequence[Prediction]) -> str:
    """Return which runs the memory model refuses."""
    failed = [run for run in runs if run.iteration_s is None]
    known = {one.run.layout for one in ran}
    again = [run for run in failed if run.layout in known]
    idle = [run for run in failed if run.layout not in known and _has_idle_stage(run)]
    rest = predicted((run for run in failed if run.layout not in known and not _has_idle_stage(run)), PROGRAMS[0])
    refused = sum(one.is_refused for one in rest)
    reserve = _question("1B", 1, PROGRAMS[0]).calibration.transformer_reserve_of(rest[0].limit_bytes, has_experts=False)
    ratios = [(one.memory_bytes - reserve) / one.run.memory_bytes - 1 for one in ran]
    return _MEMORY.format(
        failed=len(failed),
        again=len(again),
        idle=len(idle),
        rest=len(rest),
        refused=refused,
        refused_share=100 * refused / len(rest),
        ran=len(ran),
        wrong=sum(one.is_refused for one in ran),
        median=100 * median(ratios),
        idle_ran=sum(_has_idle_stage(one.run) for one in ran),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.nanotron", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("PLANNER_DATA"), help="folder of measured data")
    parser.add_argument("--write", action="store_true", help=f"write its part of {_PAGE.name} anew")
    given = parser.parse_args(arguments)
    if given.data is None or not (given.data / FILE).is_file():
        print("no measured data: name their folder by --data or PLANNER_DATA.", file=sys.stderr)
        return 2
    text = section(given.data)
    print(text)
    if given.write:
        _PAGE.write_text(page_with(_PAGE.read_text(encoding="utf-8"), "research/nanotron.py", text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
