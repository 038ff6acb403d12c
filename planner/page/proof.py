"""What is proven of an answer, what else was weighed, and how wrong a prediction may be."""

from collections.abc import Callable, Mapping, Sequence

from planner.explanations.explanation import Explanation
from planner.explanations.sensitivity import Sensitivity
from planner.page import figures
from planner.page.parts import Block, Bullets, Figure, Section, Table, Text, few, thinned
from planner.page.words import many, objective, short, size, time
from planner.plan import Alternative, Plan, Prediction
from planner.solution import Status
from planner.words import percent_words

__all__ = [
    "History",
    "accuracy_section",
    "alternatives_section",
    "certificate_figure",
    "certificate_section",
    "frontier_section",
    "history_figures",
    "notes_section",
    "sensitivity_section",
]

_MOST_BARS = 30
_MOST_ROWS = 100
_SAME = 5e-5  # relative loss below which two objectives read the same

_LEAST_MOMENTS = 3
_MOST_MOMENTS = 200
_WIDE = 20  # times the least: beyond, an axis from 0 shows nothing of the end

History = Sequence[tuple[float, float, int]]  # bound, incumbent, and how much was done by then
Weighed = Sequence[tuple[str, float, float]]  # name, seconds of the objective, bytes of the fullest device


def alternatives_section(plan: Plan) -> Section | None:
    """Return what lost, by how much and why."""
    found = plan.alternatives
    if not found:
        return None
    shown, listed = thinned(found, _MOST_BARS), thinned(found, _MOST_ROWS)
    unit = plan.goal.unit
    best = ("this plan", plan.objective, objective(plan.objective, unit))
    rows = [(one.name, one.objective, f"{objective(one.objective, unit)}, {_loss(one)}") for one in shown]
    data, layout = figures.bars([best, *rows], title=plan.goal.name.replace("_", " "), unit=unit, marked=0)
    table = Table(
        caption="Alternatives considered",
        columns=("what", "family", plan.goal.name.replace("_", " "), "more", "why it lost"),
        rows=[
            ("this plan", plan.family, objective(plan.objective, unit), "", plan.configuration.headline),
            *((_named(one), one.family, objective(one.objective, unit), _loss(one), one.reason) for one in listed),
        ],
        numbers=(2, 3),
        marked=(0,),
        note=few(len(found), len(listed), "alternatives", "--json has all of them"),
    )
    worst = max(found, key=lambda one: one.objective)
    alt = (
        f"Bars of this plan, {objective(plan.objective, unit)}, and of "
        f"{many(len(shown), 'alternative')} up to {objective(worst.objective, unit)}."
    )
    figure = Figure(
        caption="This plan against the alternatives",
        alt=alt,
        data=data,
        layout=layout,
        table=None,
        note=few(len(found), len(shown), "alternatives", "the table has more"),
    )
    reasons = [line for line in plan.explanation if " gives no plan: " in line]
    blocks: list[Block] = [figure, table]
    if reasons:
        blocks.append(Bullets(lines=reasons))
    return Section(name="alternatives", title="Alternatives, and why they lost", blocks=blocks)


def _named(one: Alternative) -> str:
    """Return an alternative with the replacements of its network."""
    return f"{one.name}, with {', '.join(one.substitutions)}" if one.substitutions else one.name


def _loss(one: Alternative) -> str:
    """Return how much more an alternative takes."""
    return percent_words(one.relative_loss, is_signed=True) if one.relative_loss > _SAME else "the same"


def frontier_section(weighed: Weighed, plan: Plan) -> Section | None:
    """Return time against memory of all that was weighed, where that is known of two or more."""
    if len(weighed) < 2:
        return None
    shown = thinned(list(weighed), _MOST_ROWS)
    front = _front(shown)
    time_by, time_unit = figures.scale_of(max(value for _, value, _ in shown), "s")
    memory_by, memory_unit = figures.scale_of(max(value for *_, value in shown), "B")

    def drawn(rows: Weighed) -> list[tuple[float, float, str]]:
        return [
            (memory / memory_by, value / time_by, f"{name}: {time(value)} in {size(memory)}")
            for name, value, memory in rows
        ]

    series = {
        "others": drawn([row for row in shown if row not in front]),
        "none is faster with as little": drawn(front),
        "this plan": drawn([shown[0]]),
    }
    goal = plan.goal.name.replace("_", " ")
    data, layout = figures.points(
        {name: rows for name, rows in series.items() if rows},
        x_title=f"memory of the fullest device ({memory_unit})",
        y_title=f"{goal} ({time_unit})",
        lines=("none is faster with as little",),
        steps=True,
    )
    table = Table(
        caption="Time against memory",
        columns=("what", goal, "memory of the fullest device", "on the frontier"),
        rows=[
            (name, time(value), size(memory), "yes" if (name, value, memory) in front else "")
            for name, value, memory in shown
        ],
        numbers=(1, 2),
    )
    alt = (
        f"Points of time against memory of {many(len(shown), 'configuration')}; on "
        f"{len(front)} of them none improves in both."
    )
    figure = Figure(caption="Time against memory", alt=alt, data=data, layout=layout, table=table)
    words = "Only what was weighed above is drawn, not every configuration there is."
    return Section(name="frontier", title="Time against memory", blocks=[figure, Text(words)])


def _front(rows: Weighed) -> list[tuple[str, float, float]]:
    """Return the rows that no other beats in time and memory, the least memory first."""
    found: list[tuple[str, float, float]] = []
    for row in sorted(rows, key=lambda row: (row[2], row[1])):
        if not found or row[1] < found[-1][1] * (1 - 1e-9):
            found.append(row)
    return found


# -- other hardware --------------------------------------------------------------------------------------------------


def sensitivity_section(explanation: Explanation | None, unit: str) -> Section | None:
    """Return what other hardware would bring, planned anew."""
    if explanation is None:
        return None
    rows = explanation.sensitivities
    known = [one for one in rows if one.saving is not None][:_MOST_BARS]
    table = Table(
        caption="Each change alone, planned anew",
        columns=("change", "effect", "objective", "then"),
        rows=[_change(one, unit) for one in rows],
        numbers=(1, 2),
    )
    if not known:
        return Section(name="sensitivity", title="What other hardware would bring", blocks=[table])
    bars = [(one.words, 100 * (one.saving or 0.0), _effect(one)) for one in known]
    data, layout = figures.bars(bars, title="saving in per cent", unit="")
    best = known[0]
    alt = (
        f"Bars of the saving of {many(len(known), 'change')} of the hardware; the "
        f"largest is {best.words}: {_effect(best)}."
    )
    figure = Figure(caption="What other hardware would save", alt=alt, data=data, layout=layout, table=None)
    blocks: list[Block] = [figure, table]
    if explanation.plan.status is not Status.OPTIMAL:
        blocks.append(
            Text("The plan is not proven best: part of a saving may be what a longer search would find anyway.")
        )
    return Section(name="sensitivity", title="What other hardware would bring", blocks=blocks)


def _change(one: Sensitivity, unit: str) -> tuple[str, str, str, str]:
    """Return a change as a row."""
    if one.objective is None:
        return one.words, "not known", "", one.note
    return one.words, _effect(one), objective(one.objective, unit), one.plan if one.is_other_plan else "the same plan"


def _effect(one: Sensitivity) -> str:
    """Return a saving as far as it is proven."""
    saving = one.saving or 0.0
    least = "" if one.is_proven else "at least " if saving >= 0 else "at most "
    if abs(saving) < 5e-4:
        return "nothing" if one.is_proven else "nothing found"
    return f"saves {least}{saving:.1%}" if saving > 0 else f"costs {least}{-saving:.1%}"


# -- certificate -----------------------------------------------------------------------------------------------------


def certificate_section(plan: Plan, history: History = ()) -> Section:
    """Return the proof: objective, bound, gap, how the search closed in, and over what."""
    unit, origin = plan.goal.unit, plan.provenance
    facts = [
        ("status", plan.status.value),
        ("objective", f"{objective(plan.objective, unit)} ({plan.objective:.6g} {unit})"),
        ("bound: no plan has less", f"{objective(plan.bound, unit)} ({plan.bound:.6g} {unit})"),
        ("gap", f"{plan.gap:.2%}"),
        ("candidates", f"{origin.num_candidates:,}"),
        ("of which solved or evaluated in full", f"{origin.num_solved:,}"),
        ("solver", origin.solver),
        ("digest of the question, and seed", f"{origin.input_digest}, {origin.seed}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in origin.versions.items())),
    ]
    blocks: list[Block] = [
        *certificate_figure(plan.objective, plan.bound, unit),
        *history_figures(
            _steps(plan, history),
            lambda value: objective(value, unit),
            goal=plan.goal.name.replace("_", " "),
            axis=unit,
            best="best plan",
            step="steps of the search",
        ),
        Table(caption="Certificate", columns=("what", "value"), rows=facts),
    ]
    if plan.domain:
        blocks += [Text("Search space:"), Bullets(lines=plan.domain)]
    return Section(name="certificate", title="What is proven", blocks=blocks)


def certificate_figure(value: float, bound: float, unit: str, *, axis: str | None = None) -> list[Figure]:
    """Return objective and bound, side by side, where they differ; ``axis``: the unit as the axis has it."""
    if value - bound <= 1e-9 * abs(value):
        return []
    rows = [("found", value, objective(value, unit)), ("bound", bound, objective(bound, unit))]
    data, layout = figures.bars(rows, title="objective", unit=axis or unit, marked=0)
    table = Table(
        caption="Objective and bound",
        columns=("what", "value"),
        rows=[(name, text) for name, _, text in rows],
        numbers=(1,),
    )
    gap = (value - bound) / value if value else 0.0
    alt = (
        f"Two bars: the objective, {objective(value, unit)}, and the bound, "
        f"{objective(bound, unit)}; the gap is {gap:.2%}."
    )
    return [Figure(caption="Objective and bound", alt=alt, data=data, layout=layout, table=table)]


def _steps(plan: Plan, history: History) -> History:
    """Return the moments in which a bound or an incumbent changed, and the end; no bound is above the proven one."""
    found: list[tuple[float, float, int]] = []
    last = history[-1][2] if history else 0
    for bound, best, number in (*history, (plan.bound, plan.objective, last + 1)):
        row = (min(bound, plan.bound), max(best, plan.objective))
        if not found or found[-1][:2] != row:
            found.append((*row, number))
    return found


def history_figures(
    history: History, said: Callable[[float], str], *, goal: str, axis: str, best: str, step: str
) -> list[Figure]:
    """Return bound and incumbent as the search went on, by what was done; nothing where there are few moments.

    Parameters
    ----------
    said
        Puts a bound or an incumbent into words.
    goal, axis
        What is minimised, and its unit as :func:`planner.page.figures.scale_of` takes it.
    best, step
        What the incumbent is, and what is counted.
    """
    if len({number for *_, number in history}) < _LEAST_MOMENTS:
        return []
    shown = thinned(history, _MOST_MOMENTS)
    by, unit = figures.scale_of(max(max(row[:2]) for row in shown), axis)
    series = {
        best: [(number, value / by, f"{number:,} {step}: {said(value)}") for _, value, number in shown],
        "bound": [(number, value / by, f"{number:,} {step}: at least {said(value)}") for value, _, number in shown],
    }
    is_wide = max(row[1] for row in shown) > _WIDE * min(row[0] for row in shown) > 0
    title = f"{goal} ({unit})"
    data, layout = figures.points(series, x_title=step, y_title=title, lines=tuple(series), log_y=is_wide, steps=True)
    table = Table(
        caption="Bound and best so far as the search went on",
        columns=(step, best, "bound"),
        rows=[(f"{number:,}", said(value), said(bound)) for bound, value, number in shown],
        numbers=(0, 1, 2),
        note=few(len(history), len(shown), "moments", "these are chosen evenly"),
    )
    bound, value, _ = shown[-1]
    apart = f"{(value - bound) / value:.1%} apart" if value else "together"
    alt = f"Lines of the {best} and of the bound over {many(len(shown), 'moment')} of the search; they end {apart}."
    return [Figure(caption="How the search closed in", alt=alt, data=data, layout=layout, table=table)]


# -- accuracy and notes ----------------------------------------------------------------------------------------------


def accuracy_section(prediction: Prediction, *, value: float, unit: str) -> Section:
    """Return how far measured times were from such predictions."""
    band = prediction.relative_error
    title = "How wrong it may be"
    if band is None:
        text = "not measured for such a question. Compare the plan with a measurement before you rely on it."
        return Section(name="accuracy", title=title, blocks=[Text(f"Expected error: {text}")])
    low, high = (value * (1 + band[end]) for end in ("low", "high"))
    least, most = (percent_words(round(band[end], 2), is_signed=True) for end in ("low", "high"))
    words = (
        f"Expected error: {least} to {most} ({percent_words(round(band['coverage'], 2))} of validation runs on "
        f"{band['from']} fell in this range). So {objective(value, unit)} may be {objective(low, unit)} to "
        f"{objective(high, unit)}."
    )
    blocks: list[Block] = [Text(words)]
    if band.get("conditions"):
        blocks.append(Text(f"Holds for {band['conditions']}."))
    return Section(name="accuracy", title=title, blocks=blocks)


def notes_section(parts: Mapping[str, Sequence[str]]) -> Section:
    """Return warnings, assumptions and what is left out, each in full."""
    blocks: list[Block] = []
    for title, lines in parts.items():
        if lines:
            shown = list(lines)[:_MOST_ROWS]
            left = few(len(lines), len(shown), "lines", "--json has all of them")
            blocks += [Text(f"{title}:"), Bullets(lines=[short(line, 2000) for line in shown] + [left] * bool(left))]
    return Section(name="notes", title="Warnings and assumptions", blocks=blocks or [Text("There are none.")])
