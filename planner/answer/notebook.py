"""What a notebook shows of a network, a cluster, a prediction and a plan: a title, some lines, some small tables.

Plain HTML: no script, no style and no colour of its own, so that it takes those of the notebook, light or dark. Every
name is escaped. Equal objects give equal text. Long tables are cut, with the number of rows left out; the whole page of
an answer is that of :mod:`planner.answer.html`.
"""

from collections.abc import Iterable, Sequence
from html import escape

from planner.answer.parts import of_limit, shares_of
from planner.cluster import Cluster, MachineGroup
from planner.dnn import Dnn, Layer
from planner.plan import Plan, Prediction
from planner.units import Dimension, format_human
from planner.words import beyond_words, capitalised, cut, goal_words, many, proof_words, size_words, time_words

MOST_ROWS = 20  # of one table
_MOST_LETTERS = 200  # of one cell, or of the title


def html_of(shown: object) -> str:
    """Return an object as HTML: one element, its title bold, a line each, then its tables."""
    if isinstance(shown, Dnn):
        return _shown(shown.name, *_network(shown))
    if isinstance(shown, Cluster):
        return _shown(shown.name, *_cluster(shown))
    if isinstance(shown, Plan):
        return _plan(shown)
    assert isinstance(shown, Prediction), "nothing else asks"
    return _shown("Prediction", _prediction_lines(shown), [_breakdown(shown)])


def _network(dnn: Dnn) -> tuple[list[str], list[str]]:
    """Return a network's totals, and a table of its kinds of layers, the kind with most parameters first."""
    kinds: dict[str, list[Layer]] = {}
    for layer in dnn.layers:
        kinds.setdefault(layer.kind, []).append(layer)
    rows = [
        (
            kind,
            f"{len(layers):,}",
            f"{sum(layer.num_trainable for layer in layers):,}",
            f"{sum(layer.num_multiply_adds for layer in layers):,}",
            f"{sum(layer.num_stored_elements for layer in layers):,}",
        )
        for kind, layers in sorted(kinds.items(), key=lambda one: -sum(layer.num_trainable for layer in one[1]))
    ]
    line = (
        f"{many(len(dnn.layers), 'layer')}, {dnn.num_trainable:,} trainable parameters in "
        f"{many(dnn.num_trainable_tensors, 'tensor')}, {dnn.num_multiply_adds:,} multiply-adds a sample (forward)"
    )
    names = ("kind", "layers", "parameters", "multiply-adds a sample", "elements kept for backward")
    return [line], [_table(names, rows)]


def _cluster(cluster: Cluster) -> tuple[list[str], list[str]]:
    """Return a table of the groups of machines, and one of the links between them."""
    names = ("machines", "count", "devices of each", "device", "memory", "link inside", "network cards")
    tables = [_table(names, [_group(group) for group in cluster.machine_groups])]
    links = [
        (f"{one} - {other}", *_link(cable.bandwidth_bytes_per_s, cable.latency_s))
        for one, other, cable in cluster.links
    ]
    tables += [_table(("link", "bandwidth", "latency a hop"), links)] if links else []
    return [f"{many(cluster.num_machines, 'machine')}, {many(cluster.num_devices, 'device')}"], tables


def _group(group: MachineGroup) -> Sequence[str]:
    inside = group.inside
    return (
        group.name,
        f"{group.count:,}",
        f"{group.devices_per_machine:,}",
        group.device.name,
        "not limited" if group.device.memory_bytes == float("inf") else size_words(group.device.memory_bytes),
        "none" if inside is None else ", ".join(_link(inside.bandwidth_bytes_per_s, inside.latency_s)),
        f"{group.num_nics:,}",
    )


def _link(bandwidth_bytes_per_s: float, latency_s: float) -> tuple[str, str]:
    return format_human(bandwidth_bytes_per_s, Dimension.RATE), time_words(latency_s)


def _plan(plan: Plan) -> str:
    """Return a plan: the answer in a sentence, what is proven of it, its decisions, and where the time goes."""
    network = f", with {', '.join(plan.substitutions)} in the network" if plan.substitutions else ""
    value = time_words(plan.objective) if plan.goal.unit == "s" else f"{plan.objective:.6g} {plan.goal.unit}"
    lines = [
        f"{proof_words(plan, searched='what was searched')}, under this cost model.",
        *(f"{capitalised(line)}." for line in beyond_words(plan)),
        *(f"Warning: {line}." for line in plan.cautions),
        *(f"{capitalised(line)}." for line in filter(None, [plan.instead])),
        *_prediction_lines(plan.prediction),
        *(f"Assumption: {line}" for line in plan.key_assumptions),
    ]
    decisions = [(name, _short(value)) for name, value in plan.configuration.to_document().items()]
    title = f"{plan.family} on {plan.configuration.headline}{network}: {goal_words(plan.goal.name)} takes {value}"
    return _shown(title, lines, [_table(("decision", "value"), decisions), _breakdown(plan.prediction)])


def _short(value: object) -> str:
    """Return a decision: a long list, or one of blocks, by its length alone."""
    text = str(value)
    is_long = len(text) > _MOST_LETTERS or "{" in text
    return f"a list of {len(value):,}" if is_long and isinstance(value, list | tuple) else text


def _prediction_lines(prediction: Prediction) -> list[str]:
    """Return times, scaling and memory."""
    known = ", ".join(f"{name} {time_words(seconds)}" for name, seconds in prediction.times_s.items())
    held = [f"{of_limit(prediction.memory_bytes)} of a device's memory"] if "total" in prediction.memory_bytes else []
    return [f"{known}; scaling factor {prediction.scaling_factor:.3f}", *held]


def _breakdown(prediction: Prediction) -> str:
    """Return where an iteration's time goes."""
    rows = [(part.name, time_words(part.value), f"{part.share:.1%}") for part in shares_of(prediction.breakdown_s)]
    return _table(("where an iteration's time goes", "time", "share"), rows)


# --- HTML: the only places where text becomes markup


def _shown(title: str, lines: Iterable[str], tables: Iterable[str]) -> str:
    told = "".join(f"<br>{escape(line)}" for line in lines)
    return f"<div><p><strong>{escape(cut(title, _MOST_LETTERS))}</strong>{told}</p>{''.join(tables)}</div>"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts, with a line that says how many rows were left out."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    cells = [[f"<td>{escape(cut(cell, _MOST_LETTERS))}</td>" for cell in row] for row in rows[:MOST_ROWS]]
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    if (more := len(rows) - MOST_ROWS) > 0:
        body += f'<tr><td colspan="{len(names)}">... and {more:,} more</td></tr>'
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
