"""A plan, a prediction or a case as text for a terminal: the answer first, then where the time goes, then why."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from planner.plan import Alternative, Configuration, Plan, Prediction
from planner.problem import Problem
from planner.words import (
    beyond_words,
    capitalised,
    devices_words,
    percent_words,
    proof_words,
    size_words,
    term_words,
    time_words,
    untold,
)

__all__ = ["assumption_lines", "plan_text", "prediction_text", "table"]

_SAME = 5e-5  # relative loss below which two objectives read the same
_MOST_GROUPS = 4
_MOST_ALTERNATIVES = 7
_MOST_LETTERS = 100  # of a line that decisions share


def plan_text(plan: Plan, problem: Problem) -> str:
    """Return a plan as text: at most some forty lines, without colour."""
    lines = [
        f"{_title(problem)}: {plan.family} on {plan.configuration.headline}",
        _verdict(plan, problem),
        *(f"{capitalised(line)}." for line in beyond_words(plan)),
        *_cautions(plan.cautions),
        *(f"{capitalised(line)}." for line in filter(None, [plan.instead])),
        *_prediction_lines(plan.prediction),
        "",
        *assumption_lines(plan.key_assumptions),
        *_breakdown_lines(plan.prediction),
        "",
        *_decision_lines(plan.configuration, plan.prediction),
        "",
        "Why",
        *_bullets(untold(plan.explanation, plan.warnings)),
        "",
        *_alternative_lines(plan.alternatives),
        *_notes(plan.assumptions, untold(plan.warnings, plan.key_assumptions), plan.not_modelled, plan.domain),
    ]
    return "\n".join(lines)


def prediction_text(
    problem: Problem,
    family: str,
    configuration: Configuration,
    prediction: Prediction,
    explanation: Sequence[str],
    not_modelled: Sequence[str],
    *,
    key_assumptions: Sequence[str] = (),
    assumptions: Sequence[str] = (),
    cautions: Sequence[str] = (),
) -> str:
    """Return a prediction as text."""
    lines = [
        f"{_title(problem)}: {family} on {configuration.headline}, as given",
        *_cautions(cautions),
        *_prediction_lines(prediction),
        "",
        *assumption_lines(key_assumptions),
        *_breakdown_lines(prediction),
        "",
        *_decision_lines(configuration, prediction),
        "",
        "Why",
        *_bullets(explanation),
        "",
        *_notes(assumptions, untold(problem.warnings, key_assumptions), not_modelled),
    ]
    return "\n".join(lines)


def assumption_lines(lines: Sequence[str]) -> list[str]:
    """Return the assumptions that change an answer as a section, or nothing where there are none."""
    return ["Assumptions", *_bullets(lines), ""] if lines else []


def table(rows: Sequence[Mapping[str, object]], *, columns: Sequence[str] | None = None) -> str:
    """Return rows as columns of text, numbers to the right."""
    names = list(columns or (rows[0] if rows else []))
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in cells), 0) for i, name in enumerate(names)]
    is_number = [all(isinstance(row.get(name), int | float | None) for row in rows) for name in names]

    def line(texts: Iterable[str]) -> str:
        placed = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, widths, is_number, strict=True)
        )
        return "  ".join(placed).rstrip()

    return "\n".join([line(names), line("-" * width for width in widths), *(line(texts) for texts in cells)])


def _cell(value: object) -> str:
    """Return a table cell."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _title(problem: Problem) -> str:
    """Return ``vgg16 on osf-testbed``."""
    return f"{problem.dnn.name} on {problem.cluster.name}"


def _verdict(plan: Plan, problem: Problem) -> str:
    """Return what is proven, the objective, and on how many of the devices."""
    name, where = plan.goal.name.replace("_", " "), devices_words(plan.configuration, problem)
    parts = filter(None, [f"{name} {time_words(plan.objective)} ({plan.objective:.6g} s)", where])
    return f"{proof_words(plan, ', '.join(parts))}."


def _cautions(lines: Iterable[str]) -> list[str]:
    """Return what keeps a plan from being run as it is."""
    return [f"Warning: {line}." for line in lines]


def _prediction_lines(prediction: Prediction) -> list[str]:
    """Return times, scaling, memory, and how far such predictions are off."""
    times = [f"iteration {time_words(prediction.iteration_time_s)}"]
    if prediction.epoch_time_s is not None:
        times.append(f"epoch {time_words(prediction.epoch_time_s)}")
    if prediction.training_time_s is not None:
        times.append(f"training {time_words(prediction.training_time_s)}")
    return [
        f"  {', '.join(times)}; scaling factor {prediction.scaling_factor:.3f}",
        f"  {_samples(prediction.details)} samples a device{_memory(prediction.memory_bytes)}",
        f"  Expected error: {_error_band(prediction)}",
    ]


def _breakdown_lines(prediction: Prediction) -> list[str]:
    """Return where an iteration's time goes."""
    lines = ["Where an iteration's time goes"]
    for name, seconds in prediction.breakdown_s.items():
        share = seconds / prediction.iteration_time_s
        if share > 1e-6:
            lines.append(f"  {term_words(name):32} {time_words(seconds):>9}  {100 * share:5.1f} %")
    return lines


def _samples(details: Mapping[str, Any]) -> str:
    """Return the samples of a device, group by group where they differ."""
    groups = details.get("groups")
    if not isinstance(groups, Mapping) or not all("batch_per_device" in one for one in groups.values()):
        return str(details["batch_per_device"])
    return ", ".join(f"{one['batch_per_device']} ({name})" for name, one in groups.items())


def _memory(memory: Mapping[str, float]) -> str:
    """Return how much of a device's memory is used, where that is modelled."""
    if not memory:
        return ""
    limit = "" if memory["limit"] == float("inf") else f" of {size_words(memory['limit'])}"
    return f"; {size_words(memory['total'])}{limit} of its memory"


def _error_band(prediction: Prediction) -> str:
    """Return by how much measured times differ from such predictions."""
    band = prediction.relative_error
    if band is None:
        return "not measured for such a question"
    low, high = (percent_words(round(band[key], 2), is_signed=True) for key in ("low", "high"))
    runs = f"{percent_words(round(band['coverage'], 2))} of validation runs on {band['from']} fell in this range"
    return f"{low} to {high} ({runs})"


def _decision_lines(configuration: Configuration, prediction: Prediction) -> list[str]:
    """Return the decisions: fusion groups as a timetable, anything else by its name."""
    block = configuration.to_document()
    if "fusion_groups" in block:
        return _fusion_lines(block, prediction)
    stages = block.get("stages") or ()
    listed = [one for one in stages if isinstance(one, Mapping) and "first" in one]
    plain = [f"{name}: {_short(value)}" for name, value in block.items() if name != "stages" or not listed]
    return ["Configuration", *_stage_lines(listed), *_packed(plain)]


def _stage_lines(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the stages of a pipeline, a line each: which layers run where."""
    lines = []
    for number, one in enumerate(stages, start=1):
        layers = f"{_cut(one['first'], 30)} to {_cut(one['last'], 30)}"
        lines.append(f"  stage {number}: {layers}, on {one['replicas']} of {one['machines']}")
    return _first(lines, _MOST_GROUPS)


def _packed(parts: Sequence[str]) -> list[str]:
    """Return short parts, as many in a line as it holds."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 2 <= _MOST_LETTERS:
            lines[-1] += f"; {part}"
        else:
            lines.append(f"  {part}")
    return lines


def _short(value: object) -> str:
    """Return a value as text of at most a line."""
    if isinstance(value, Mapping) and value:
        value = ", ".join(f"{name} {part}" for name, part in value.items())
    elif isinstance(value, Sequence) and any(isinstance(part, Mapping) for part in value):
        value = f"{len(value)}, told in --json"
    text = str(value)
    return text if len(text) <= 90 else f"{text[:87]}..."


def _fusion_lines(configuration: Mapping[str, Any], prediction: Prediction) -> list[str]:
    """Return the groups in the order in which they are sent."""
    groups, schedule = configuration["fusion_groups"], prediction.details["schedule"]
    if not groups:
        return ["No gradients to exchange."]
    parts = ", ".join(
        f"{term_words(name)} {time_words(seconds)}" for name, seconds in prediction.communication_s.items() if seconds
    )
    many = f"{len(groups)} all-reduce{'s' * (len(groups) > 1)}"
    lines = [
        f"{many} of {size_words(prediction.details['gradient_bytes'])} in all, hidden or not: {parts}",
        "  send after gradient of     carrying                          size        from         to",
    ]
    rows = []
    for group, row in zip(groups, schedule, strict=True):
        tensors = group["tensors"]
        carried = f"{len(tensors)} gradient{'s' * (len(tensors) > 1)} by {group['algorithm']}"
        size, start, end = size_words(row["size_bytes"]), time_words(row["start_s"]), time_words(row["end_s"])
        rows.append(f"  {_cut(tensors[-1], 26):26} {_cut(carried, 30):30} {size:>10} {start:>10} {end:>10}")
    return [*lines, *_first(rows, _MOST_GROUPS)]


def _alternative_lines(alternatives: Sequence[Alternative]) -> list[str]:
    """Return what lost, and by how much."""
    if not alternatives:
        return []
    lines = []
    for one in alternatives:
        loss = percent_words(one.relative_loss, is_signed=True) if one.relative_loss > _SAME else "the same"
        lines.append(f"  {_cut(one.name, 44):44} {time_words(one.objective):>9}  {loss:>9}  {one.reason}")
    return ["Alternatives considered", *_first(lines, _MOST_ALTERNATIVES), ""]


def _first(lines: Sequence[str], most: int) -> list[str]:
    """Return the first lines and how many are left out; all, where that would take as many."""
    left = len(lines) - most
    return list(lines) if left <= 1 else [*lines[:most], f"  ... and {left} more; --json has all"]


def _cut(name: str, most: int) -> str:
    """Return a name of at most so many letters; of a longer one that something is missing is seen."""
    return name if len(name) <= most else f"{name[: most - 3]}..."


def _notes(
    assumptions: Sequence[str], warnings: Sequence[str], not_modelled: Sequence[str], domain: Sequence[str] = ()
) -> list[str]:
    """Return minor assumptions, warnings, what is left out, and what was searched."""
    parts = (("Also assumed", assumptions), ("Not modelled", not_modelled), ("Search space", domain))
    listed = ["Warnings", *_bullets(f"{line}." for line in warnings)] if warnings else []
    return listed + [f"{title}: {'; '.join(lines)}." for title, lines in parts if lines]


def _bullets(lines: Iterable[str]) -> list[str]:
    """Return lines, indented."""
    return [f"  {line}" for line in lines]
