"""Which few measurements would sharpen a decision most: those on which the ranking of the best plans depends.

Each figure that a plan rests on is known within a range: narrow where it was measured, wide where it was looked up. The
question is asked again at both ends of each range, and answered anew. Where another plan wins there, the plan in hand
would be regretted by so much, and somewhere in between lies the value at which the two are equal: measuring which side
of it the truth lies on settles the decision. Where none wins, measuring that figure changes the prediction alone.

One figure at a time is moved. Ranges of figures that were not measured are assumed; see :data:`ASSUMED`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from planner import perturb
from planner.checks import carried
from planner.constraints import more_memory
from planner.errors import Fault, InfeasibleError, NoAnswerError, SpecError
from planner.explanation import headline
from planner.frozen import frozen
from planner.plan import Plan
from planner.problem import Problem
from planner.ranking import best_plan
from planner.search import Search
from planner.units import Dimension, format_human

# Factors on what is counted with, by what was measured. Assumed: links reach 60 to 110 % of what they are sold by (an
# all-reduce of large messages seldom reaches less, see docs/accuracy.md), a device 60 to 160 % of the speed that a
# utilisation of a half gives (30 to 80 % of its peak), start-ups four times as long, input 70 to 140 %.
ASSUMED: Mapping[str, tuple[float, float]] = {
    "network": (0.6, 1.1),
    "inside": (0.6, 1.1),
    "device": (0.6, 1.6),
    "start": (0.5, 4.0),
    "input": (0.7, 1.4),
    "memory": (0.9, 1.0),
}
# What a measurement leaves open: runs of one day and the next differ by so much.
MEASURED: Mapping[str, tuple[float, float]] = {
    "network": (0.95, 1.05),
    "inside": (0.95, 1.05),
    "device": (0.97, 1.03),
    "start": (0.8, 1.25),
    "input": (0.7, 1.4),
    "memory": (0.9, 1.0),
}


_MATTERS = 1e-3  # a regret below which no one would measure
_SAME = 1e-6  # a relative difference below which two plans are as good as each other
_STEPS = 20  # of halving, by which the value where two plans are equal is found


@frozen
class _Figure:
    """A figure of a question: how to move it by a factor, and how to measure it."""

    name: str
    kind: str
    words: str
    moved: Callable[[float], Problem]
    is_measured: bool = False
    how: str

    @property
    def range(self) -> tuple[float, float]:
        """Its range where the user gave none."""
        return (MEASURED if self.is_measured else ASSUMED)[self.kind]


def _figures_of(problem: Problem, plan: Plan) -> Iterator[_Figure]:
    """Yield the figures that a question rests on; those that can play no part are left out."""
    block, is_linked = plan.configuration.to_document(), problem.are_links_calibrated
    groups = problem.cluster.machine_groups
    devices = f"{getattr(plan.configuration, 'num_devices', block.get('num_devices', 2))} devices"
    sizes_bytes = sorted(group["size_bytes"] for group in block.get("fusion_groups") or ())
    ends = dict.fromkeys(format_human(size, Dimension.DATA) for size in (*sizes_bytes[:1], *sizes_bytes[-1:]))
    sizes = " to ".join(ends) or "1 MB to 1 GB"
    if problem.cluster.links:
        yield _Figure(
            name="network",
            kind="network",
            words="what links between machines reach",
            moved=lambda factor: perturb.wider_network(problem, factor),
            is_measured=is_linked,
            how=f"time all-reduces of {sizes} over {devices}, e.g. with nccl-tests: planner calibrate reads its output",
        )
    if any(group.inside is not None and group.devices_per_machine > 1 for group in groups):
        yield _Figure(
            name="inside",
            kind="inside",
            words="what links inside a machine reach",
            moved=lambda factor: perturb.wider_inside(problem, factor),
            is_measured=is_linked,
            how=f"time all-reduces of {sizes} inside one machine: planner calibrate reads nccl-tests",
        )
    for name in problem.profiles:
        yield _Figure(
            name=f"device:{name}",
            kind="device",
            words=f"the speed of {name}",
            moved=partial(perturb.faster_devices, problem, names=[name]),
            is_measured=problem.is_computation_measured,
            how=f"time forward and backward of each layer on one {name} (planner import --template, or a trace of "
            f"PyTorch's profiler)",
        )
    if problem.cluster.num_devices > 1:
        yield _Figure(
            name="start",
            kind="start",
            words="start-up of transfers",
            moved=lambda factor: perturb.faster_start(problem, factor),
            is_measured=is_linked,
            how=f"time all-reduces of 1 KB to 64 KB over {devices}: planner calibrate reads nccl-tests",
        )
    rates = [rate for group in groups for rate in (group.host_link_bytes_per_s, group.decode_samples_per_s)]
    if any(math.isfinite(rate) for rate in rates) or any(group.storage is not None for group in groups):
        yield _Figure(
            name="input",
            kind="input",
            words="reading, decoding and copying of samples",
            moved=lambda factor: perturb.faster_input(problem, factor),
            how="time a loader that reads, decodes and copies, and trains nothing",
        )
    total = plan.prediction.memory_bytes.get("total")
    if total and any(math.isfinite(group.device.memory_bytes) for group in groups):
        yield _Figure(
            name="memory",
            kind="memory",
            words="room in a device's memory",
            moved=lambda factor: more_memory(problem, factor),
            how=f"run one iteration of the plan and read the peak of allocated memory (predicted: "
            f"{format_human(total, Dimension.DATA)})",
        )


@frozen
class Measurement:
    """One figure, and what measuring it would settle."""

    name: str  # ``network``, ``inside``, ``device:NAME``, ``start``, ``input`` or ``memory``
    words: str
    # low, high: factors on what the plan counts with, between which the truth is taken to lie
    low: float
    high: float
    # how much slower the plan in hand is than the best one, at the worse end; infinite where it does not fit there
    regret: float
    rival: str  # the plan that wins there; empty where none does
    # factor at which plan and rival are equal; None where no rival wins, or the plan in hand ends to fit
    turns_at: float | None
    # share by which the best objective changes from one end to the other: what the prediction gains by measuring
    spread: float
    how: str  # what to run, and what reads it
    note: str = ""  # ends that were not answered in time

    @property
    def open_ends(self) -> str:
        """What was not answered, in brackets; nothing where all was."""
        return f" ({self.note})" if self.note else ""


@frozen
class MeasurementsToMake:
    """The plan in hand, and its figures, the one that decides most first."""

    plan: Plan
    rows: tuple[Measurement, ...]

    @property
    def deciding(self) -> tuple[Measurement, ...]:
        """Those that can change which plan is best."""
        return tuple(row for row in self.rows if row.regret > _MATTERS)

    def to_document(self) -> dict[str, object]:
        """Return ``planner.measurements/1``; what is infinite is null."""
        plan = self.plan
        return {
            "schema": "planner.measurements/1",
            "family": plan.family,
            "headline": headline(plan),
            "objective": {"name": plan.goal.field, "value": plan.objective, "bound": plan.bound, "gap": plan.gap},
            "rows": [
                {
                    **{name: getattr(row, name) for name in ("name", "low", "high")},
                    "regret": row.regret if math.isfinite(row.regret) else None,
                    "decides": row.regret > _MATTERS,
                    **{name: getattr(row, name) for name in ("rival", "turns_at", "spread", "how", "note")},
                }
                for row in self.rows
            ],
        }


def measurements_to_make(
    problem: Problem, plan: Plan, search: Search, *, ranges: Mapping[str, tuple[float, float]] | None = None
) -> MeasurementsToMake:
    """Return which figures decide whether a plan is the best one.

    Parameters
    ----------
    ranges
        By name of a figure, or of its kind: factors between which the truth lies, instead of those assumed.

    Raises
    ------
    SpecError
        If a range is of no figure of this question, or is none.
    """
    figures = list(_figures_of(problem, plan))
    given = dict(ranges or {})
    known = {name for figure in figures for name in (figure.name, figure.kind)}
    for name, (low, high) in given.items():
        fault = Fault(
            file="command line", field=f"range {name}", value=name, problem="this question has no such figure."
        )
        if name not in known:
            raise SpecError.of([replace(fault, mend=f"Known: {', '.join(sorted(known))}.")])
        if not 0.01 <= low <= 1 <= high <= 100:
            told = f"{low:g}..{high:g} is no range of factors around 1, within 0.01..100."
            raise SpecError.of([replace(fault, value="", problem=told, mend="Write e.g. 0.8..1.1.")])
    rows = []
    for index, figure in enumerate(figures):
        low, high = given.get(figure.name) or given.get(figure.kind) or figure.range
        rows.append(_measurement(figure, plan, low, high, search.part(search.left_s / (len(figures) - index))))
    return MeasurementsToMake(plan=plan, rows=tuple(sorted(rows, key=lambda row: (-row.regret, -row.spread))))


def _measurement(figure: _Figure, plan: Plan, low: float, high: float, search: Search) -> Measurement:
    """Return what measuring one figure would settle."""
    factors = [factor for factor in (low, high) if factor != 1]
    ends = []
    for at, factor in enumerate(factors):
        ends.append(_end(figure, plan, factor, search.part(search.left_s / (len(factors) - at))))
    worst = max(ends, key=lambda end: end.regret, default=None)
    objectives = [plan.objective, *(end.best.objective for end in ends if end.best is not None)]
    rival, turns_at = "", None
    if worst is not None and worst.best is not None and worst.regret > _SAME:
        rival, turns_at = headline(worst.best), _turn(figure, plan, worst.best, worst.factor)
        if rival == headline(plan):  # what makes it another one is told, too
            before, after = plan.configuration.to_document(), worst.best.configuration.to_document()
            others = [key.replace("_", " ") for key, value in after.items() if before.get(key) != value]
            rival += f", with other {' and '.join(others)}" if others else ""
    return Measurement(
        name=figure.name,
        words=figure.words,
        low=low,
        high=high,
        regret=max(worst.regret, 0.0) if worst is not None else 0.0,
        rival=rival,
        turns_at=turns_at,
        spread=(max(objectives) - min(objectives)) / plan.objective if plan.objective else 0.0,
        how=figure.how,
        note="; ".join(f"at {end.factor:g}: {end.note}" for end in ends if end.note),
    )


@frozen
class _End:
    """The best plan at one end of a range, and how much slower the plan in hand is there."""

    factor: float
    best: Plan | None
    regret: float
    note: str = ""


def _end(figure: _Figure, plan: Plan, factor: float, search: Search) -> _End:
    problem = figure.moved(factor)
    kept = carried(problem, plan)
    try:
        best = best_plan(problem, search)
    except (InfeasibleError, NoAnswerError) as error:
        note = "no plan fits" if isinstance(error, InfeasibleError) else "not answered in time"
        return _End(factor=factor, best=kept, regret=0.0, note=note)
    if kept is None:
        return _End(factor=factor, best=best, regret=math.inf, note="the plan in hand is none there")
    if kept.objective <= best.objective:
        return _End(factor=factor, best=kept, regret=0.0)
    return _End(factor=factor, best=best, regret=kept.objective / best.objective - 1)


def _turn(figure: _Figure, plan: Plan, best: Plan, factor: float) -> float:
    """Return the factor at which the plan in hand and the one that wins at an end are equal; by halving, in log."""
    # A plan of the same question, as the checker asks.
    winner = replace(best, provenance=plan.provenance, problem=plan.problem)
    near, far = 0.0, math.log(factor)
    for _ in range(_STEPS):
        middle = (near + far) / 2
        kept, rival = (carried(figure.moved(math.exp(middle)), one) for one in (plan, winner))
        is_kept = kept is not None and (rival is None or kept.objective <= rival.objective * (1 + _SAME))
        near, far = (middle, far) if is_kept else (near, middle)
    return math.exp(far)


def measurements_text(found: MeasurementsToMake) -> str:
    """Return the answer: what decides between plans and how to measure it, and what only sharpens the prediction."""
    lines = [f"The plan in hand: {headline(found.plan)}"]
    if number := len(found.deciding):
        lines += ["", f"Measure first: {number} figure{'s' * (number > 1)} can change which plan is best"]
    else:
        nothing = "Nothing within these ranges changes which plan is best: measuring sharpens the prediction alone."
        lines += ["", nothing]
    for place, row in enumerate(found.deciding, start=1):
        turn = f"within {row.low:g} to {row.high:g} times"
        if row.turns_at is not None:
            turn = f"{'below' if row.turns_at < 1 else 'above'} {row.turns_at:.2f} times"
        words = f"{turn} what is counted with, {row.rival} is faster, by up to {row.regret:.1%}"
        if not row.rival:
            words = f"between {row.low:g} and {row.high:g} times what is counted with, the plan may not be one"
        elif math.isinf(row.regret):
            words = f"{turn} what is counted with, the plan is none any more, and best is {row.rival}"
        lines += [f"  {place}. {row.words}: {words}{row.open_ends}", f"     {row.how}"]
    rest = [row for row in found.rows if row not in found.deciding]
    if rest:
        lines += ["", "Of these the prediction changes, the plan does not"]
    for row in rest:
        lines.append(f"  {row.words} ({row.low:g} to {row.high:g} times): by {row.spread:.1%}{row.open_ends}")
    return "\n".join(lines)
