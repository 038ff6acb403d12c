"""Two plans side by side: which decisions differ, what differs in the question, and which terms of time decide."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from math import isclose
from typing import Any

from planner.answer.parts import Commands
from planner.answer.text import table
from planner.frozen import frozen
from planner.letters import visible_data
from planner.plan import Goal, may_be_stale
from planner.sections import Answer, Bars, Block, Bullets, Code, Section, Table, Text, Tiles
from planner.shown import Recorded, document_of
from planner.solution import SAME
from planner.words import cut, few, goal_words, many, objective_words, short, term_words, thinned, time_words

_MOST_PARTS = 6  # of a block; larger ones are told by their number
_PURCHASES = {
    "cost": Goal(name="cost", unit="usd"),
    "time": Goal(name="wall_time"),
    "energy": Goal(name="energy", unit="J"),
    "value_of_time": Goal(name="value_of_time", unit="usd"),
}
_DEGREES = ("pipeline", "tensor", "context", "expert", "data")
_ITERATION = Goal(name="iteration_time")
_WORK = {"iteration_time": ("sequence_length",), "epoch_time": ("sequence_length", "dataset_samples")}  # by goal
_WORK_OF_TRAINING = ("sequence_length", "dataset_samples", "epochs", "samples")
_MOST_OF_ONE = 3  # differences below one key of the question, before they are told by their number


@frozen
class Difference:
    """A decision or a key of the question that is not the same; None where a plan lacks it."""

    name: str
    values: tuple[Any, Any]


@frozen
class Term:
    """A term of the breakdown, in seconds of the objective; what the second plan has more than the first."""

    name: str
    seconds: tuple[float, float]

    @property
    def difference_s(self) -> float:
        """What the second plan spends more on it; zero where they differ by rounding alone."""
        first, second = self.seconds
        return 0.0 if isclose(first, second, rel_tol=SAME) else second - first


@frozen
class Comparison(Recorded):
    """Two plans compared.

    Attributes
    ----------
    goals, objectives
        What each plan minimises, and its value.
    headlines
        Each plan in a few words.
    sample_s
        Seconds of a sample of each plan, which decide where iterations are of different numbers of samples.
    better
        0 or 1; None where both are equal, or there is a reason why neither is.
    saving
        Share of the worse plan's objective, or of its seconds of a sample, that the better one saves.
    why_neither
        Why the plans have no order: they do not minimise the same, or do not train the same network as long.
    decisions, question
        What differs.
    terms
        Of the plans' times, the largest difference first; they add up to the difference of these.
    warnings
        Why the plans may not be comparable.
    """

    goals: tuple[Goal, Goal]
    objectives: tuple[float, float]
    headlines: tuple[str, str]
    sample_s: tuple[float, float] | None
    better: int | None
    saving: float
    why_neither: str | None
    decisions: tuple[Difference, ...]
    question: tuple[Difference, ...]
    terms: tuple[Term, ...]
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        """Return what a prompt shows: which plan is better; :meth:`to_dict` has all of it."""
        which = "neither" if self.better is None else ("first", "second")[self.better]
        return f"<Comparison: {which} is better, saving {self.saving:.2%}, {len(self.decisions)} decisions differ>"

    @property
    def objective_names(self) -> tuple[str, str]:
        """What each plan minimises, with its unit."""
        first, second = (goal.field for goal in self.goals)
        return first, second

    def to_dict(self) -> dict[str, object]:
        """Return ``planner.comparison/1``."""
        return {
            "schema": "planner.comparison/1",
            "plans": [
                {"headline": headline, "objective": {"name": name, "value": value}}
                for headline, name, value in zip(self.headlines, self.objective_names, self.objectives, strict=True)
            ],
            **document_of(self, "sample_s", "better", "saving", "why_neither", "decisions", "question"),
            "terms": [document_of(one, "name", "seconds", "difference_s") for one in self.terms],
            **document_of(self, "warnings"),
        }

    def to_records(self) -> list[dict[str, object]]:
        """Return a row of each thing that differs: objective, decisions, keys of the question, terms of the time."""
        rows: list[tuple[str, str, tuple[Any, Any]]] = [("objective", self.objective_names[0], self.objectives)]
        rows += [("decision", one.name, one.values) for one in self.decisions]
        rows += [("question", one.name, one.values) for one in self.question]
        rows += [("term", one.name, one.seconds) for one in self.terms]
        return [{"kind": kind, "name": name, "first": first, "second": second} for kind, name, (first, second) in rows]


def compare(
    one: Mapping[str, object],
    other: Mapping[str, object],
    *,
    purchases: tuple[Mapping[str, object] | None, Mapping[str, object] | None] = (None, None),
) -> Comparison:
    """Return what differs between two plans, given as documents ``planner.plan/1``.

    Parameters
    ----------
    purchases
        The answers ``planner.procurement/1`` that the plans stood in: where both did, what these minimise decides.
    """
    # questions are still as they were written
    both: tuple[dict[str, Any], dict[str, Any]] = (visible_data(dict(one)), visible_data(dict(other)))
    one, other = both
    bought: list[dict[str, Any]] = [dict(one) for one in purchases if one is not None] if None not in purchases else []
    goals = _pair(bought or both, lambda answer: _goal(str(answer["objective"]["name"])))
    values = _pair(bought or both, lambda answer: float(answer["objective"]["value"]))
    sample_s = _sample_s(both, values) if goals == (_ITERATION, _ITERATION) else None
    decisive = sample_s or values
    low, high = sorted(decisive)
    why_neither = _why_neither(both, goals)
    has_order = why_neither is None and high - low > SAME * high
    return Comparison(
        goals=goals,
        objectives=values,
        headlines=_pair(both, _headline),
        sample_s=sample_s,
        better=decisive.index(low) if has_order else None,
        saving=1 - low / high if has_order else 0.0,
        why_neither=why_neither,
        decisions=(
            *_different(*({"fleet": _fleet(each)} for each in bought or both)),
            *_different(*_pair(both, _decisions)),
        ),
        question=(
            *_different(*(dict(_flat(each["problem"].get("procure", {}), "procure")) for each in bought or both)),
            *_collapsed(_different(*_pair(both, _question))),
        ),
        terms=_terms(one, other) if one["objective"]["name"] == other["objective"]["name"] else (),
        warnings=tuple(_warnings(one, other, goals)),
    )


def _goal(objective: str) -> Goal:
    """Return what a purchase minimises, or a plan, whose objectives end in their unit."""
    name, _, unit = objective.rpartition("_")
    return _PURCHASES.get(objective) or Goal(name=name, unit=unit)


def _sample_s(
    both: tuple[Mapping[str, Any], Mapping[str, Any]], values: tuple[float, float]
) -> tuple[float, float] | None:
    """Return the seconds of a sample of two iterations; None where these are of as many samples, or of unknown ones."""
    first, second = _pair(both, _global_batch)
    if first is None or second is None or abs(first - second) <= 0.5:
        return None
    return values[0] / first, values[1] / second


def _why_neither(both: tuple[Mapping[str, Any], Mapping[str, Any]], goals: tuple[Goal, Goal]) -> str | None:
    """Return why two plans have no order, if they have none."""
    if goals[0] != goals[1]:
        return "they do not minimise the same"
    names = [_pair(both, lambda plan, key=key: _dnn(plan).get(key)) for key in ("zoo", "name")]
    if any(None not in pair and pair[0] != pair[1] for pair in names):
        return "they train different networks"
    work = _WORK.get(goals[0].name, _WORK_OF_TRAINING)
    if goals[0].name not in _WORK and all("tokens" in _dnn(plan) for plan in both):
        work = ("tokens",)  # of sequences of any length
    for key in work:
        values = _pair(both, lambda plan, key=key: _dnn(plan).get(key))
        if None not in values and values[0] != values[1]:
            return f"they do not train the same amount (dnn.{key} {values[0]} and {values[1]})"
    return None


def _fleet(answer: Mapping[str, Any]) -> str:
    """Return what an answer buys or rents, in words; empty of a plan on machines that are there."""
    fleet = answer["choice"]["fleet"] if "choice" in answer else ()
    return ", ".join(f"{one['count']} x {one['instance']}" for one in fleet)


def _pair(both: Any, function: Any) -> tuple[Any, Any]:
    """Return a function's value for each plan."""
    return function(both[0]), function(both[1])


# -- decisions and question ------------------------------------------------------------------------------------------


def _headline(plan: Mapping[str, Any]) -> str:
    """Return the network, the family and the machines of a plan in a few words."""
    block = plan["configuration"]
    numbers = [
        many(block[key], key.removeprefix("num_").removesuffix("s").replace("_", " "))
        for key in ("num_devices", "num_machines", "num_parameter_servers", "num_replicas")
        if isinstance(block.get(key), int)
    ]
    numbers += [f"{key} {block[key]}" for key in _DEGREES if isinstance(block.get(key), int) and block[key] > 1]
    if isinstance(block.get("stages"), list) and "pipeline" not in block:
        numbers.append(f"{len(block['stages'])} stages")
    network = f", with {', '.join(plan['substitutions'])}" if plan["substitutions"] else ""
    return f"{plan['family']}{': ' if numbers else ''}{', '.join(numbers)}{network}"


def _decisions(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return every decision by its path: the family, the substitutions, and the configuration's own."""
    found: dict[str, Any] = {"family": plan["family"], "substitutions": ", ".join(plan["substitutions"]) or "none"}
    for key, value in plan["configuration"].items():
        if isinstance(value, Mapping) and 0 < len(value) <= _MOST_PARTS:
            found |= {f"{key}.{name}": part for name, part in value.items()}
        else:
            found[key] = value
    return found


def _question(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return every key of the question by its path, but for a configuration that stood in it."""
    asked = {key: value for key, value in plan["problem"].items() if key != "configuration"}
    return dict(_flat(asked, ""))


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _flat(part, f"{path}.{index}")
    else:
        yield path, value


def _different(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield what is not the same, in the order of the first plan."""
    for name in [*one, *(name for name in other if name not in one)]:
        values = one.get(name), other.get(name)
        if values[0] != values[1]:
            yield Difference(name=name, values=_shortened(*values))


def _shortened(one: Any, other: Any) -> tuple[Any, Any]:
    """Return two values as they fit into a line: long lists and mappings by their numbers of parts."""

    def short(value: Any) -> Any:
        if isinstance(value, list | Mapping) and (
            len(value) > _MOST_PARTS or any(isinstance(part, list | Mapping) for part in value)
        ):
            return f"{len(value)} entries"
        return ", ".join(map(str, value)) if isinstance(value, list) else value

    texts = short(one), short(other)
    return (texts[0], f"{texts[1]}, other ones") if texts[0] == texts[1] else texts


def _collapsed(differences: Iterator[Difference]) -> Iterator[Difference]:
    """Yield differences, those of one long block (``dnn.layers``) by their number."""
    for prefix, group in groupby(differences, key=lambda one: ".".join(one.name.split(".")[:2])):
        rows = list(group)
        if len(rows) <= _MOST_OF_ONE:
            yield from rows
        else:
            yield Difference(name=prefix, values=(f"{len(rows)} values differ", ""))


# -- terms -----------------------------------------------------------------------------------------------------------


def _terms(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[Term, ...]:
    """Return the terms of both breakdowns in seconds of the objective, the largest difference first."""
    first, second = _seconds(one), _seconds(other)
    names = [*first, *(name for name in second if name not in first)]
    terms = [Term(name=name, seconds=(first.get(name, 0.0), second.get(name, 0.0))) for name in names]
    return tuple(sorted(terms, key=lambda term: -abs(term.difference_s)))


def _seconds(plan: Mapping[str, Any]) -> dict[str, float]:
    """Return the breakdown of an iteration, times the iterations that the objective counts."""
    prediction = plan["prediction"]
    iteration_s = prediction["iteration_time_s"]
    many = plan["objective"]["value"] / iteration_s if iteration_s else 0.0
    return {name: seconds * many for name, seconds in prediction["breakdown_s"].items()}


# -- warnings ----------------------------------------------------------------------------------------------------------


def _warnings(one: Mapping[str, Any], other: Mapping[str, Any], goals: tuple[Goal, Goal]) -> Iterator[str]:
    """Yield why two plans may not be comparable."""
    both = (one, other)
    if goals[0] != goals[1]:
        yield f"the plans do not minimise the same: {goals[0].field} and {goals[1].field}"
    batches = _pair(both, _global_batch)
    if None not in batches and abs(batches[0] - batches[1]) > 0.5:
        sizes = f"{batches[0]:.0f} and {batches[1]:.0f}"
        yield f"the global batches differ, {sizes}: epochs of them need not be worth the same"
    for key in ("zoo", "name", "transformer", "sequence_length", "dataset_samples", "epochs", "dtype", "optimizer"):
        values = _pair(both, lambda plan, key=key: _dnn(plan).get(key))
        if values[0] != values[1]:
            yield f"dnn.{key} differs, {values[0]} and {values[1]}: the plans answer different questions"
    if one["substitutions"] != other["substitutions"]:
        yield "the networks differ by their substitutions, and what those do to the accuracy is not modelled"
    stale = _pair(both, lambda plan: may_be_stale(plan["prediction"]["details"]))
    if stale[0] != stale[1]:
        which = "first" if stale[0] else "second"
        yield f"the {which} plan is asynchronous: it may need more epochs, which is not modelled"
    open_gaps = [f"{plan['objective']['gap']:.1%}" for plan in both if plan["status"] != "optimal"]
    if open_gaps:
        yield f"not proven best: a plan of either question may be better (gap {' and '.join(open_gaps)})"


def _global_batch(plan: Mapping[str, Any]) -> float | None:
    """Return the samples of an iteration: as configured, or from the times of iteration and epoch."""
    given = plan["configuration"].get("global_batch_size")
    if isinstance(given, int | float):
        return float(given)
    prediction = plan["prediction"]
    samples, epoch_s = _dnn(plan).get("dataset_samples"), prediction["epoch_time_s"]
    if not epoch_s or not isinstance(samples, int | float):
        return None
    return float(samples * prediction["iteration_time_s"] / epoch_s)


def _dnn(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a plan's question says about the network."""
    found = plan["problem"].get("dnn")
    return found if isinstance(found, Mapping) else {}


# --- The comparison as an answer

_MOST_LINES = 9  # of decisions, of the question, of the terms, on a terminal
_MOST_ROWS = 200
_MOST_BARS = 30
_WHOLE = "--json has all of them"


def comparison_answer(found: Comparison, names: tuple[str, str], *, commands: Commands = ()) -> Answer:
    """Return a comparison as an answer; ``names``: what the user calls the plans; ``commands``: that give it again."""
    if found.better is not None:
        better, worse = names[found.better], names[1 - found.better]
        decisive, unit = found.sample_s or found.objectives, found.goals[0].unit
        least, most = (objective_words(decisive[index], unit) for index in (found.better, 1 - found.better))
        goal = "a sample" if found.sample_s else goal_words(found.goals[0].name)
        does = f"{goal} takes" if unit == "s" else f"its {goal} is"
        of_what = "takes for a sample" if found.sample_s else "takes"
        verdict = f"{better} is better: it saves {found.saving:.2%} of what {worse} {of_what}."
        answer = f"{better} is better: {does} {least} instead of the {most} of {worse}, {found.saving:.2%} less."
    elif found.why_neither:
        verdict = answer = f"Neither is better: {found.why_neither}."
    else:
        decisive, what = (found.sample_s, " for a sample") if found.sample_s else (found.objectives, "")
        verdict = f"Both take the same{what}."
        answer = f"Both take the same{what}, {objective_words(decisive[0], found.goals[0].unit)}."
    plans = [
        f"{name}: {found.goals[index].name.replace('_', ' ')} {_value(found, index)}, {found.headlines[index]}"
        for index, name in enumerate(names)
    ]

    def summary() -> list[Block]:
        goals = [goal_words(goal.name) for goal in found.goals]
        tiles = [(f"{goals[index]}, {short(names[index])}", _value(found, index)) for index in (0, 1)]
        return [Tiles(tiles), Bullets([f"{name}: {line}" for name, line in zip(names, found.headlines, strict=True)])]

    sections = [
        Section(name="summary", title="In short", blocks=summary),
        _differences("decisions", "Decisions", "What the plans decide", found.decisions, names),
        _differences("asked", "The question", "What was asked", found.question, names),
        Section(
            name="time",
            title="Where the time goes",
            lines=_term_lines(found, names),
            blocks=partial(_term_blocks, found, names),
        ),
    ]
    if commands:
        text = "\n".join(map(shlex.join, commands))
        code = Code(caption="To compare them again", text=text)
        sections.append(Section(name="question", title="How to repeat it", blocks=lambda: [code]))
    return Answer(
        title=f"{names[0]} against {names[1]}",
        answer=answer,
        verdict="; ".join(found.warnings),
        mark="open" if found.warnings else "plain",
        opening=[*plans, verdict, *(f"Warning: {warning}." for warning in found.warnings)],
        sections=sections,
    )


def _value(found: Comparison, index: int) -> str:
    return objective_words(found.objectives[index], found.goals[index].unit)


def _differences(name: str, head: str, title: str, rows: Sequence[Difference], names: tuple[str, str]) -> Section:
    """Return what differs, as a table."""
    lines = [f"{head}: the same"]
    if rows:
        cells = [[_cell(value, 40) for value in one.values] for one in rows[:_MOST_LINES]]
        shown = [
            {head: one.name, **dict(zip(_two(names), values, strict=True))}
            for one, values in zip(rows, cells, strict=False)
        ]
        lines = [table(shown), *_and_more(len(rows))]

    def blocks() -> list[Block]:
        if not rows:
            return [Text("The same in both.")]
        shown = thinned(rows, _MOST_ROWS)
        listed = Table(
            caption=f"{title}, where it differs",
            columns=("what", *names),
            rows=[(one.name.replace("_", " "), *(_cell(value, 300) for value in one.values)) for one in shown],
            note=few(len(rows), len(shown), "differences", _WHOLE),
        )
        return [listed]

    return Section(name=name, title=title, lines=lines, blocks=blocks)


def _term_lines(found: Comparison, names: tuple[str, str]) -> list[str]:
    """Return the terms that decide, and their sum, for a terminal."""
    if not found.terms:
        return []
    known = [one for one in found.terms if any(one.seconds)]
    shown = [
        {
            "Where the time goes": term_words(one.name),
            **dict(zip(_two(names), map(time_words, one.seconds), strict=True)),
            "difference": _signed(one.difference_s),
        }
        for one in [*known[:_MOST_LINES], _whole(found)]
    ]
    return [table(shown), *_and_more(len(known))]


def _whole(found: Comparison) -> Term:
    """Return what the terms add up to."""
    first, second = (sum(one.seconds[index] for one in found.terms) for index in (0, 1))
    return Term(name="in all", seconds=(first, second))


def _term_blocks(found: Comparison, names: tuple[str, str]) -> list[Block]:
    """Return the terms that decide, and their sum."""
    known = [one for one in found.terms if any(one.seconds)]
    if not known:
        return []
    shown = known[:_MOST_BARS]
    chart = Bars(
        caption=f"What {names[1]} takes more",
        alt=f"Bars of what {names[1]} takes more than {names[0]}, by {many(len(shown), 'term')}.",
        rows=[(term_words(one.name), one.difference_s, _signed(one.difference_s)) for one in shown],
        title=f"more time with {short(names[1])}",
        unit="s",
    )
    listed = Table(
        caption="The terms of both, the largest difference first",
        columns=("term", *names, "difference"),
        rows=[
            (term_words(one.name), *map(time_words, one.seconds), _signed(one.difference_s))
            for one in (*shown, _whole(found))
        ],
        numbers=(1, 2, 3),
        marked=(len(shown),),
        note=few(len(known), len(shown), "terms", _WHOLE),
    )
    return [chart, listed]


def _two(names: tuple[str, str]) -> tuple[str, str]:
    """Return two headings that are not the same."""
    return names if names[0] != names[1] else (f"{names[0]} (first)", f"{names[1]} (second)")


def _and_more(number: int) -> list[str]:
    """Return how many rows are left out on a terminal."""
    return [f"... and {number - _MOST_LINES} more; --json has all"] if number > _MOST_LINES else []


def _cell(value: Any, most: int) -> str:
    """Return a value of at most so many letters; a dash for none."""
    return "-" if value is None else cut(str(value), most)


def _signed(seconds: float) -> str:
    return f"{'+' if seconds > 0 else '-'}{time_words(abs(seconds))}" if seconds else "0 s"
