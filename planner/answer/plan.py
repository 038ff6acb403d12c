"""The answer to what to run: a plan with its proof, or the prediction of a given configuration."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from planner.answer.charts import scale_of
from planner.answer.drawing import drawing_of, timeline_chart
from planner.answer.explanation import effect_words
from planner.answer.parts import (
    Commands,
    History,
    bullet_blocks,
    certificate_chart,
    history_charts,
    notes,
    of_limit,
    origin,
    shares_chart,
    shares_of,
)
from planner.answer.text import bullets
from planner.answer.timeline import Drawn, trace_of
from planner.errors import ModelError, PlannerError, SpecError
from planner.plan import Alternative, Configuration, Plan, Predicted, Prediction
from planner.problem import Problem
from planner.sections import (
    Answer,
    Bars,
    Block,
    Bullets,
    Code,
    FamilyView,
    Memory,
    PlanView,
    Points,
    Section,
    Stacked,
    Table,
    Text,
    Tiles,
)
from planner.solution import Status
from planner.words import (
    beyond_words,
    capitalised,
    cut,
    few,
    first_lines,
    goal_words,
    many,
    not_repeated,
    objective_words,
    percent_words,
    proof_words,
    short,
    size_words,
    term_words,
    thinned,
    time_words,
    usd_words,
)

if TYPE_CHECKING:
    from planner.explanation import Explanation

_SAME = 5e-5  # relative loss below which two objectives read the same
_MOST_ALTERNATIVES = 7  # on a terminal
_MOST_BARS = 30
_MOST_ROWS = 100
_MOST_MEMORIES = 24  # kinds of devices in the memory plot
_MOST_WEIGHED = 60  # alternatives that are predicted anew for the plot of time against memory
_MOST_LETTERS = 100  # of a line that decisions share
_MOST_DEVICES = 50_000
_MOST_LAYERS = 10_000  # of a network whose schedule is drawn: it takes a page as long as a plan
_MOST_TASKS = 50_000  # forwards and backwards of a step that is drawn: some seconds
_NOT_SEARCHED = " (a batch per device, per iteration: their number was not searched)"
_WHOLE = "--json has all of them"


def plan_answer(
    plan: Plan,
    view: PlanView,
    *,
    explanation: "Explanation | None" = None,
    history: History = (),
    commands: Commands = (),
) -> Answer:
    """Return a plan as an answer.

    Parameters
    ----------
    view
        :func:`planner.planning.view_of` it.
    explanation
        Of the plan, for what other hardware would bring.
    history
        Bound, incumbent and number of the step, as the search told them.
    commands
        That give the answer again, each as its arguments.
    """
    problem = view.problem
    unit, beyond = plan.goal.unit, [f"{capitalised(line)}." for line in beyond_words(plan)]
    where = _devices_words(plan.configuration, problem)
    value = f"{plan.goal.name.replace('_', ' ')} {time_words(plan.objective)} ({plan.objective:.6g} s)"
    instead = [plan.instead] if plan.instead else []
    page = {"Also assumed": plan.assumptions, "Not modelled": plan.not_modelled}
    network = f", with {', '.join(plan.substitutions)} in the network" if plan.substitutions else ""
    return Answer(
        title=f"{problem.dnn.name} on {problem.cluster.words}: the plan",
        answer=f"Train {problem.dnn.name} on {problem.cluster.words} by {view.words} on "
        f"{plan.configuration.headline}{network}: {goal_words(plan.goal.name)} takes "
        f"{objective_words(plan.objective, unit)}.",
        verdict=" ".join([f"{proof_words(plan)}, under this cost model{', ' * bool(where)}{where}.", *beyond]),
        mark="proven" if plan.status is Status.OPTIMAL else "open",
        opening=[
            f"{problem.dnn.name} on {problem.cluster.name}: {plan.family} on {plan.configuration.headline}",
            f"{proof_words(plan, ', '.join(filter(None, [value, where])))}.",
            *beyond,
            *(f"Warning: {line}." for line in plan.cautions),
            *(f"{capitalised(line)}." for line in instead),
            *_prediction_lines(plan.prediction),
        ],
        minded=_minded(plan.prediction, plan.cautions),
        sections=[
            *_sections(plan, view, [*plan.cautions, *instead], not_repeated(plan.explanation, plan.warnings)),
            Section(
                name="alternatives",
                title="Alternatives considered",
                lines=_alternative_lines(plan.alternatives),
                blocks=partial(_alternatives, plan),
            ),
            Section(name="frontier", title="Time against memory", blocks=partial(_frontier, plan, view)),
            Section(
                name="sensitivity",
                title="What other hardware would bring",
                blocks=partial(_sensitivity, explanation, unit) if explanation is not None else list,
            ),
            Section(name="certificate", title="What is proven", blocks=partial(_certificate, plan, history)),
            _accuracy(plan.prediction, value=plan.objective, unit=unit),
            notes(not_repeated(plan.warnings, plan.key_assumptions), page, {**page, "Search space": plan.domain}),
            origin(plan.problem, commands, configuration={plan.family: plan.configuration.to_document()}),
        ],
    )


def _minded(prediction: Prediction, cautions: Sequence[str]) -> list[tuple[str, str]]:
    """Return what to know of a plan before it is run."""
    return [("expected error", _error_words(prediction)), *(("warning", line) for line in cautions)]


def _devices_words(configuration: Configuration, problem: Problem) -> str:
    """Return how many of the devices a plan takes, and whether another number of them, or of machines, was searched.

    Per epoch or training, and with a global batch, their number is searched, unless the user says it. With a fixed
    batch per device all are used per iteration.
    """
    used, there = getattr(configuration, "num_devices", None), problem.cluster.num_devices
    meant, batch = problem.training.num_devices, problem.training.fixed_batch_size
    allowed = problem.allowed_machines if used is None else problem.allowed_devices
    is_one = (problem.cluster.num_machines if used is None else there) == 1
    why, each = "", f", on the global batch of {batch:,} that all {meant:,}" if batch and meant else ""
    if used is None:  # of a family with servers: its headline says how many machines train, and how many serve
        if is_one or allowed.least == allowed.most:
            return ""
        if problem.is_number_of_devices_open:
            return f"the number of machines was searched{f'{each} devices would have' if each else ''}"
        return f"every machine trains or serves{_NOT_SEARCHED}"
    if not is_one and not problem.is_number_of_devices_open:
        why = _NOT_SEARCHED
    elif not is_one and allowed.least != allowed.most:
        why = f" (the number was searched{f'{each} would have' if each and meant and used < meant else ''})"
    words = f"on {'' if is_one else 'all '}{there:,}" if used == there else f"on {used:,} of {there:,}"
    return f"{words} device{'' if is_one else 's'}{why}"


def prediction_answer(found: Predicted, view: PlanView, *, commands: Commands = ()) -> Answer:
    """Return the prediction of a configuration as an answer; ``commands``: that give it again."""
    problem = view.problem
    name, headline = problem.dnn.name, found.configuration.headline
    value = found.prediction.iteration_time_s
    rest = {"Also assumed": found.assumptions, "Not modelled": found.not_modelled}
    held = found.prediction.memory_bytes
    is_too_full = held.get("total", 0.0) > held.get("limit", float("inf"))
    unfit = " if it fitted: it does not fit in memory" * is_too_full
    given = f"as given{', and it does not fit in memory' * is_too_full}"
    return Answer(
        title=f"{name} on {problem.cluster.words}: a prediction",
        answer=f"Training {name} by {view.words} on {headline} takes {time_words(value)} an iteration{unfit}.",
        verdict="A configuration as it was given: nothing says that it is the best one.",
        opening=[
            f"{name} on {problem.cluster.name}: {found.family} on {headline}, {given}",
            *(f"Warning: {line}." for line in found.cautions),
            *_prediction_lines(found.prediction),
        ],
        minded=_minded(found.prediction, found.cautions),
        sections=[
            *_sections(found, view, found.cautions, found.explanation),
            _accuracy(found.prediction, value=value, unit="s"),
            notes(not_repeated(found.warnings, found.key_assumptions), rest, rest),
            origin(problem.resolved, commands),
        ],
    )


def _sections(
    found: Plan | Predicted, view: PlanView, warnings: Sequence[str], reasons: Sequence[str]
) -> list[Section]:
    """Return what is told of every configuration: its figures, where the time goes, what runs where, and why."""
    prediction, safer = found.prediction, _recommended_texts(found)

    def summary() -> list[Block]:
        assumed = bullet_blocks("Assumptions", found.key_assumptions)
        return [*bullet_blocks("Warnings", warnings), _tiles(prediction), *assumed]

    launch = set(prediction.details.get("launch", ()))
    kept = [  # commands and refusals stand in sections of their own; what ends in a colon introduces commands
        line
        for line, after in pairwise([*reasons, ""])
        if line not in launch and " gives no plan: " not in line and not (line.endswith(":") and after in launch)
    ]
    return [
        Section(name="summary", title="In short", lines=bullets("Assumptions", found.key_assumptions), blocks=summary),
        Section(
            name="time",
            title="Where the time goes",
            lines=_breakdown_lines(prediction),
            blocks=partial(time_blocks, prediction),
        ),
        Section(
            name="plan",
            title="The plan",
            lines=_decision_lines(found.configuration.to_document(), view.family),
            blocks=partial(plan_blocks, found, view),
        ),
        Section(
            name="recommended",
            title="Recommended plan",
            lines=["Recommended plan", *(f"  {text}" for text in safer)] if safer else [],
            blocks=lambda: [Bullets(safer)] if safer else [],
        ),
        Section(
            name="why",
            title="Why",
            lines=["Why", *(f"  {line}" for line in reasons)],
            blocks=lambda: [Bullets(kept)] if kept else [],
        ),
        Section(name="memory", title="Memory", blocks=partial(_memory, prediction, view.family)),
    ]


# --- The figures that are read first


def _prediction_lines(prediction: Prediction) -> list[str]:
    """Return times, scaling, memory, and how far such predictions are off, for a terminal."""
    times = [f"{name} {time_words(seconds)}" for name, seconds in prediction.times_s.items()]
    details, memory = prediction.details, prediction.memory_bytes
    groups = details.get("groups")
    if not isinstance(groups, Mapping) or not all("batch_per_device" in one for one in groups.values()):
        number = details["batch_per_device"]
        samples = _shared_words(details) or f"{number} sample{'s' * (number != 1)} a device"
    else:
        samples = ", ".join(f"{one['batch_per_device']} ({name})" for name, one in groups.items()) + " samples a device"
    held = f"; {of_limit(memory)} of its memory" if memory else ""
    return [
        f"  {', '.join(times)}; scaling factor {prediction.scaling_factor:.3f}",
        f"  {samples}{held}",
        f"  Expected error: {_error_words(prediction)}",
    ]


def _shared_words(details: Mapping[str, Any]) -> str:
    """Return the samples and the devices of a batch that gives not all devices as many whole ones; else nothing."""
    batch, devices = details.get("global_batch_size"), details.get("num_devices")
    return f"{many(batch, 'sample')} on {devices:,} devices" if batch and devices and batch % devices else ""


def _tiles(prediction: Prediction) -> Tiles:
    """Return the same figures for a page."""
    details, memory = prediction.details, prediction.memory_bytes
    names = {"iteration": "an iteration", "epoch": "an epoch", "training": "the training"}
    rows = [(names[name], time_words(seconds)) for name, seconds in prediction.times_s.items()]
    rows += [("cost", usd_words(prediction.cost_usd))] if prediction.cost_usd is not None else []
    rows.append(("scaling factor", f"{prediction.scaling_factor:.3f}"))
    if "batch_per_device" in details:
        shared = _shared_words(details)
        rows.append(("batch", shared) if shared else ("samples a device", f"{details['batch_per_device']:,}"))
    rows += [("tokens a second", f"{details['tokens_per_s']:,.0f}")] if "tokens_per_s" in details else []
    rows += [("memory, fullest device", of_limit(memory))] if memory else []
    return Tiles(rows)


_FROM = {"all": "any device", "unmeasured": "devices left out"}  # where a band is from that no one device or case has


def _error_words(prediction: Prediction) -> str:
    """Return by how much measured times differ from such predictions."""
    band = prediction.relative_error
    if band is None:
        return "not measured for such a question"
    low, high = (percent_words(round(band[key], 2), is_signed=True) for key in ("low", "high"))
    where = _FROM.get(band["from"], band["from"])
    runs = f"{percent_words(round(band['coverage'], 2))} of validation runs on {where} fell in this range"
    return f"{low} to {high} ({runs})"


def _accuracy(prediction: Prediction, *, value: float, unit: str) -> Section:
    """Return how far measured times were from such predictions."""

    def blocks() -> list[Block]:
        words, band = f"Expected error: {_error_words(prediction)}.", prediction.relative_error
        if band is None:
            return [Text(f"{words} Compare the plan with a measurement before you rely on it.")]
        low, high = (objective_words(value * (1 + band[end]), unit) for end in ("low", "high"))
        conditions = [Text(f"Holds for {band['conditions']}.")] if band.get("conditions") else []
        return [Text(f"{words} So {objective_words(value, unit)} may be {low} to {high}."), *conditions]

    return Section(name="accuracy", title="How wrong it may be", blocks=blocks)


# --- Where time and memory go


def _breakdown_lines(prediction: Prediction) -> list[str]:
    """Return where an iteration's time goes, for a terminal."""
    rows = shares_of(prediction.breakdown_s)
    return [
        "Where an iteration's time goes",
        *(f"  {name:32} {time_words(seconds):>9}  {100 * share:5.1f} %" for name, seconds, share in rows),
    ]


def time_blocks(prediction: Prediction) -> list[Block]:
    """Return where an iteration's time goes, and all communication, hidden or not."""
    table = ("Terms of an iteration; they add up to it", "term", "time", "share")
    chart = shares_chart("Where an iteration's time goes", shares_of(prediction.breakdown_s), "time", "s", table)
    rows = [(term_words(name), time_words(value)) for name, value in prediction.communication_s.items() if value]
    caption, columns = "All communication, hidden behind computation or not", ("communication", "time of an iteration")
    return [chart, *([Table(caption=caption, columns=columns, rows=rows, numbers=(1,))] if rows else [])]


def _memory(prediction: Prediction, view: FamilyView) -> list[Block]:
    """Return what the memory of the devices holds, against what there is; nothing where it is not modelled."""
    memory = prediction.memory_bytes
    if not memory:
        return []
    whole = {name: value for name, value in memory.items() if name not in ("total", "limit")}
    given: Sequence[Memory] = view.memory or [("the fullest device", whole, None)]
    most = memory.get("limit", float("inf"))
    rows = [(name, parts, most if limit is None else limit) for name, parts, limit in given if parts]
    if not rows:
        return []
    shown = thinned(rows, _MOST_MEMORIES)
    names = list(dict.fromkeys(part for _, parts, _ in rows for part in parts))
    names = [name for name in names if any(parts.get(name, 0.0) for _, parts, _ in rows)]
    fullest = max(rows, key=lambda row: sum(row[1].values()))
    chart = Stacked(
        caption="Memory of a device, by what it holds",
        alt=f"Stacked bars of the memory of {many(len(shown), 'kind')} of devices; the fullest holds "
        f"{size_words(sum(fullest[1].values()))} of {_limit(fullest[2])}.",
        names=[name for name, *_ in shown],
        parts={term_words(name): [parts.get(name, 0.0) for _, parts, _ in shown] for name in names},
        title="memory of a device",
        limits=[limit for *_, limit in shown],
        table=Table(
            caption="Memory of a device",
            columns=("on", *map(term_words, names), "in all", "limit"),
            rows=[
                (
                    name,
                    *(size_words(parts.get(part, 0.0)) for part in names),
                    size_words(sum(parts.values())),
                    _limit(limit),
                )
                for name, parts, limit in shown
            ],
            numbers=range(1, len(names) + 3),
        ),
        note=few(len(rows), len(shown), "rows", _WHOLE),
    )
    groups = prediction.details.get("groups")
    if not isinstance(groups, Mapping) or not all("memory_bytes" in one for one in groups.values()):
        return [chart]
    table = Table(
        caption="Memory by kind of machines",
        columns=("machines", "samples a device", "memory of a device"),
        rows=[(name, f"{one['batch_per_device']:,}", size_words(one["memory_bytes"])) for name, one in groups.items()],
        numbers=(1, 2),
    )
    return [chart, Text("The plot is of the devices that are fullest, by their limits."), table]


def _limit(limit_bytes: float) -> str:
    return "no limit" if limit_bytes == float("inf") else size_words(limit_bytes)


# --- The decisions: what runs where and when


def _decision_lines(block: Mapping[str, Any], view: FamilyView) -> list[str]:
    """Return the decisions: what the family tells by itself, then each by its name, as many in a line as it holds."""
    if view.told is None:
        return list(view.lines)
    lines: list[str] = []
    for name, value in block.items():
        part = f"{name}: {_short(value)}"
        if name in view.told:
            continue
        if lines and len(lines[-1]) + len(part) + 2 <= _MOST_LETTERS:
            lines[-1] += f"; {part}"
        else:
            lines.append(f"  {part}")
    return ["Configuration", *view.lines, *lines]


def _recommended_texts(found: Plan | Predicted) -> list[str]:
    """Return what the recommended plan is, what it costs more, and why it is safer; nothing where there is none."""
    if not isinstance(found, Plan) or found.recommended is None:
        return []
    one = found.recommended
    loss, error = (percent_words(value, is_signed=True) for value in (one.relative_loss, one.known_error))
    what = "this one" if found.is_recommended else f"{one.family} on {one.configuration.headline}"
    held = f", {of_limit(one.prediction.memory_bytes)} of memory" if "total" in one.prediction.memory_bytes else ""
    value = objective_words(one.objective, found.goal.unit)
    such = "such predictions" if found.prediction.relative_error is not None else "others on its devices"
    cost = f"{value} ({loss}, where {such} are off by up to {error}){held}"
    asked = [] if found.is_recommended else ["ask for it with --prefer-safe"]
    return [what, cost, *(f"safer: {reason}" for reason in one.reasons), *asked]


def _short(value: object) -> str:
    """Return a value as text of at most a line."""
    if isinstance(value, Mapping) and value:
        value = ", ".join(f"{name} {part}" for name, part in value.items())
    elif isinstance(value, Sequence) and any(isinstance(part, Mapping) for part in value):
        value = f"{len(value)}, told in --json"
    return cut(str(value), 90)


def plan_blocks(found: Plan | Predicted, view: PlanView, *, has_timeline: bool = True) -> list[Block]:
    """Return the machines with what runs on them, what the family shows, what runs when, and the decisions."""
    problem = view.problem
    num_devices, num_layers = problem.cluster.num_devices, len(problem.dnn.layers)
    blocks: list[Block] = []
    if num_devices <= _MOST_DEVICES:
        blocks.append(drawing_of(problem.cluster, view.family.placement()))
    else:
        blocks.append(Text(f"The cluster has {num_devices:,} devices, too many to draw."))
    num_tasks = view.family.num_tasks
    is_drawn = num_layers <= _MOST_LAYERS and num_tasks <= _MOST_TASKS
    if not is_drawn:
        many_of = f"network has {num_layers:,} layers" if num_layers > _MOST_LAYERS else f"step has {num_tasks:,} tasks"
        blocks.append(Text(f"The {many_of}, too many to draw what runs when; --trace writes it."))
    blocks += view.family.blocks()
    if has_timeline and is_drawn:
        with suppress(ModelError, SpecError):  # a family without a schedule, or one of too many tasks
            drawn = Drawn(devices="kinds", has_parts=False)
            blocks.append(timeline_chart(trace_of(view.timeline(), found.prediction, drawn, about={})))
    if lines := found.prediction.details.get("launch"):
        count = found.prediction.details.get("num_machines", 1)
        words = f"NODE_RANK is 0 to {count - 1}, one for each machine; MASTER_ADDR is the first one's."
        blocks.append(
            Code(caption="To launch, on every machine", text="\n".join(lines), note="" if count == 1 else words)
        )
    rows = [
        (f"{'number of ' * name.startswith('num_')}{name.removeprefix('num_').replace('_', ' ')}", _plain(value))
        for name, value in found.configuration.to_document().items()
        if not isinstance(value, list) and not (isinstance(value, Mapping) and len(value) > 6)
    ]
    return [*blocks, *([Table(caption="Decisions", columns=("decision", "value"), rows=rows)] if rows else [])]


def _plain(value: Any) -> str:
    """Return a decision's value in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return short("; ".join(f"{key}: {_plain(part)}" for key, part in value.items()), 200)
    return f"{value:,}" if isinstance(value, int) else short(str(value), 200)


# --- Alternatives: by how much they lost, and time against memory


def _loss(one: Alternative) -> str:
    """Return how much more an alternative takes."""
    return percent_words(one.relative_loss, is_signed=True) if one.relative_loss > _SAME else "the same"


def _alternative_lines(alternatives: Sequence[Alternative]) -> list[str]:
    lines = [
        f"  {cut(one.name, 44):44} {time_words(one.objective):>9}  {_loss(one):>9}  {one.reason}"
        for one in alternatives
    ]
    return ["Alternatives considered", *first_lines(lines, _MOST_ALTERNATIVES)] if lines else []


def _alternatives(plan: Plan) -> list[Block]:
    """Return the alternatives, by how much they lost and why."""
    found, unit = plan.alternatives, plan.goal.unit
    if not found:
        return []
    shown, listed = thinned(found, _MOST_BARS), thinned(found, _MOST_ROWS)
    goal, best = plan.goal.name.replace("_", " "), objective_words(plan.objective, unit)
    rows = [
        (
            f"{one.name}, with {', '.join(one.substitutions)}" if one.substitutions else one.name,
            *(one.family, objective_words(one.objective, unit), _loss(one), one.reason),
        )
        for one in listed
    ]
    worst = max(found, key=lambda one: one.objective)
    chart = Bars(
        caption="This plan against the alternatives",
        alt=f"Bars of this plan, {best}, and of {many(len(shown), 'alternative')} up to "
        f"{objective_words(worst.objective, unit)}.",
        rows=[
            ("this plan", plan.objective, best),
            *((one.name, one.objective, f"{objective_words(one.objective, unit)}, {_loss(one)}") for one in shown),
        ],
        title=goal,
        unit=unit,
        marked=0,
        note=few(len(found), len(shown), "alternatives", "the table has more"),
    )
    table = Table(
        caption="Alternatives considered",
        columns=("what", "family", goal, "more", "why it lost"),
        rows=[("this plan", plan.family, best, "", plan.configuration.headline), *rows],
        numbers=(2, 3),
        marked=(0,),
        note=few(len(found), len(listed), "alternatives", _WHOLE),
    )
    reasons = [line for line in plan.explanation if " gives no plan: " in line]
    return [chart, table, *([Bullets(reasons)] if reasons else [])]


def _frontier(plan: Plan, view: PlanView) -> list[Block]:
    """Return time against memory of all that was weighed, where that is known of two or more."""
    weighed = _weighed(plan, view)
    if len(weighed) < 2:
        return []
    shown = thinned(weighed, _MOST_ROWS)
    front: list[tuple[str, float, float]] = []  # those that no other beats in both, the least memory first
    for row in sorted(shown, key=lambda row: (row[2], row[1])):
        if not front or row[1] < front[-1][1] * (1 - 1e-9):
            front.append(row)
    time_by, time_unit = scale_of(max(value for _, value, _ in shown), "s")
    memory_by, memory_unit = scale_of(max(value for *_, value in shown), "B")

    def drawn(rows: Sequence[tuple[str, float, float]]) -> list[tuple[float, float, str]]:
        return [
            (memory / memory_by, value / time_by, f"{name}: {time_words(value)} in {size_words(memory)}")
            for name, value, memory in rows
        ]

    goal, best = plan.goal.name.replace("_", " "), "none is faster with as little"
    series = {
        "others": drawn([row for row in shown if row not in front]),
        best: drawn(front),
        "this plan": drawn(shown[:1]),
    }
    chart = Points(
        caption="Time against memory",
        alt=f"Points of time against memory of {many(len(shown), 'configuration')}; on "
        f"{len(front)} of them none improves in both.",
        series={name: rows for name, rows in series.items() if rows},
        titles=(f"memory of the fullest device ({memory_unit})", f"{goal} ({time_unit})"),
        lines=(best,),
        has_steps=True,
        table=Table(
            caption="Time against memory",
            columns=("what", goal, "memory of the fullest device", "on the frontier"),
            rows=[(row[0], time_words(row[1]), size_words(row[2]), "yes" if row in front else "") for row in shown],
            numbers=(1, 2),
        ),
    )
    return [chart, Text("Only the plan and the alternatives above are drawn, not every configuration there is.")]


def _weighed(plan: Plan, view: PlanView) -> list[tuple[str, float, float]]:
    """Return name, objective and memory of the plan and of the alternatives on its network, predicted anew."""
    if plan.goal.unit != "s" or "total" not in plan.prediction.memory_bytes:
        return []
    rows = [("this plan", plan.objective, float(plan.prediction.memory_bytes["total"]))]
    own = [(one, one.configuration) for one in plan.alternatives if one.substitutions == plan.substitutions]
    known = [(one, configuration) for one, configuration in own if configuration is not None]
    for one, configuration in known[:_MOST_WEIGHED]:
        try:
            memory = view.predict(configuration).memory_bytes.get("total")
        except PlannerError:  # an alternative that was only bounded, or that another network's rules made
            continue
        if memory is not None:
            name = one.name if one.family == plan.family else f"{one.name}, {size_words(memory)}"
            rows.append((name, one.objective, float(memory)))
    is_telling = max(row[2] for row in rows) > 1.001 * min(row[2] for row in rows)
    return rows if is_telling else []


# --- What other hardware would bring, and what is proven


def _sensitivity(explanation: "Explanation", unit: str) -> list[Block]:
    """Return what other hardware would bring, planned anew."""
    rows = explanation.sensitivities
    known = [one for one in rows if one.saving is not None][:_MOST_BARS]
    table = Table(
        caption="Each change alone, planned anew",
        columns=("change", "effect", "objective", "then"),
        rows=[
            (one.words, "not known", "", one.note)
            if one.objective is None
            else (
                one.words,
                effect_words(one),
                objective_words(one.objective, unit),
                one.plan if one.is_other_plan else "the same plan",
            )
            for one in rows
        ],
        numbers=(1, 2),
    )
    if not known:
        return [table]
    chart = Bars(
        caption="What other hardware would save",
        alt=f"Bars of the saving of {many(len(known), 'change')} of the hardware; the "
        f"largest is {known[0].words}: {effect_words(known[0])}.",
        rows=[(one.words, 100 * (one.saving or 0.0), effect_words(one)) for one in known],
        title="saving in per cent",
    )
    open_words = "The plan is not proven best: part of a saving may be what a longer search would find anyway."
    return [chart, table, *([Text(open_words)] if explanation.plan.status is not Status.OPTIMAL else [])]


def _certificate(plan: Plan, history: History) -> list[Block]:
    """Return the proof: objective, bound, gap, how the search closed in, and over what."""
    unit, from_ = plan.goal.unit, plan.provenance
    steps: list[tuple[float, float, int]] = []  # in which something changed, and the end; no bound above the proven one
    for bound, best, number in (*history, (plan.bound, plan.objective, history[-1][2] + 1 if history else 1)):
        row = (min(bound, plan.bound), max(best, plan.objective))
        if not steps or steps[-1][:2] != row:
            steps.append((*row, number))
    facts = [
        ("status", plan.status.value),
        ("objective", f"{objective_words(plan.objective, unit)} ({plan.objective:.6g} {unit})"),
        ("bound: no plan has less", f"{objective_words(plan.bound, unit)} ({plan.bound:.6g} {unit})"),
        ("gap", f"{plan.gap:.2%}"),
        ("candidates", f"{from_.num_candidates:,}"),
        ("of which solved or evaluated in full", f"{from_.num_solved:,}"),
        ("solver", from_.solver),
        ("digest of the question, and seed", f"{from_.input_digest}, {from_.seed}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in from_.versions.items())),
    ]
    return [
        *certificate_chart(plan.objective, plan.bound, unit),
        *history_charts(
            steps,
            lambda value: objective_words(value, unit),
            goal=plan.goal.name.replace("_", " "),
            axis=unit,
            best="best plan",
            step="steps of the search",
        ),
        Table(caption="Certificate", columns=("what", "value"), rows=facts),
        *bullet_blocks("Search space", plan.domain),
    ]
