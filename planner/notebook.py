"""What a notebook shows of a network, a cluster, a prediction and a plan: a title, some lines, some small tables.

Plain HTML: no script, no style and no colour of its own, so that it takes those of the notebook, light or dark. Every
name is escaped. Equal objects give equal text. Long tables are cut, with the number of rows left out; the whole page of
an answer is that of :mod:`planner.page`.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from planner.units import Dimension, format_human
from planner.words import beyond_words, capitalised, proof_words, size_words

if TYPE_CHECKING:
    from planner.cluster import Cluster, MachineGroup
    from planner.dnn import Dnn, Layer
    from planner.plan import Plan, Prediction

__all__ = ["MOST_ROWS", "cluster_html", "dnn_html", "plan_html", "prediction_html"]

MOST_ROWS = 20  # of one table
_MOST_LETTERS = 200  # of one cell, or of the title
_LEAST_SHARE = 1e-6  # of an iteration; what takes less is not shown, as on a terminal

Row = Sequence[str]


def dnn_html(dnn: "Dnn") -> str:
    """Return a network: its totals, and a table of its kinds of layers, the kind with most parameters first."""
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
    lines = [
        f"{_number(len(dnn.layers), 'layer')}, {dnn.num_trainable:,} trainable parameters in "
        f"{_number(dnn.num_trainable_tensors, 'tensor')}, {dnn.num_multiply_adds:,} multiply-adds a sample (forward)"
    ]
    names = ("kind", "layers", "parameters", "multiply-adds a sample", "elements kept for backward")
    return _shown(dnn.name, lines, _table(names, rows))


def cluster_html(cluster: "Cluster") -> str:
    """Return a cluster: a table of its groups of machines, and one of the links between them."""
    links = [
        (f"{one} - {other}", *_link(data["link"].bandwidth_bytes_per_s, data["link"].latency_s))
        for one, other, data in cluster.graph.edges(data=True)
    ]
    lines = [f"{_number(cluster.num_machines, 'machine')}, {_number(cluster.num_devices, 'device')}"]
    names = ("machines", "count", "devices of each", "device", "memory", "link inside", "network cards")
    tables = [_table(names, [_group(group) for group in cluster.machine_groups])]
    if links:
        tables.append(_table(("link", "bandwidth", "latency a hop"), links))
    return _shown(cluster.name, lines, *tables)


def prediction_html(prediction: "Prediction") -> str:
    """Return a prediction: its times, its memory, and where an iteration's time goes."""
    return _shown("Prediction", _prediction_lines(prediction), _breakdown(prediction))


def plan_html(plan: "Plan") -> str:
    """Return a plan: the answer in a sentence, what is proven of it, its decisions, and where the time goes."""
    names = {"epoch_time": "an epoch", "training_time": "the training", "iteration_time": "an iteration"}
    goal = names.get(plan.goal.name, plan.goal.name.replace("_", " "))
    network = f", with {', '.join(plan.substitutions)} in the network" if plan.substitutions else ""
    found = f"{plan.family} on {plan.configuration.headline}{network}"
    lines = [
        f"{proof_words(plan, searched='what was searched')}, under this cost model.",
        *(f"{capitalised(line)}." for line in beyond_words(plan)),
        *(f"Warning: {line}." for line in plan.cautions),
        *(f"{capitalised(line)}." for line in filter(None, [plan.instead])),
        *_prediction_lines(plan.prediction),
        *(f"Assumption: {line}" for line in plan.key_assumptions),
    ]
    decisions = [(name, _short(value)) for name, value in plan.configuration.to_document().items()]
    return _shown(
        f"{found}: {goal} takes {_amount(plan.objective, plan.goal.unit)}",
        lines,
        _table(("decision", "value"), decisions),
        _breakdown(plan.prediction),
    )


def _prediction_lines(prediction: "Prediction") -> list[str]:
    """Return times, scaling and memory."""
    times = [
        (name, seconds)
        for name, seconds in (
            ("iteration", prediction.iteration_time_s),
            ("epoch", prediction.epoch_time_s),
            ("training", prediction.training_time_s),
        )
        if seconds is not None
    ]
    lines = [
        f"{', '.join(f'{name} {_amount(seconds)}' for name, seconds in times)}; "
        f"scaling factor {prediction.scaling_factor:.3f}"
    ]
    if "total" in prediction.memory_bytes:
        limit = prediction.memory_bytes.get("limit", float("inf"))
        of = "" if limit == float("inf") else f" of {size_words(limit)}"
        lines.append(f"{size_words(prediction.memory_bytes['total'])}{of} of a device's memory")
    return lines


def _breakdown(prediction: "Prediction") -> str:
    """Return where an iteration's time goes."""
    total = prediction.iteration_time_s
    rows = [
        (name.replace("_", " "), _amount(seconds), f"{seconds / total:.1%}")
        for name, seconds in prediction.breakdown_s.items()
        if seconds > _LEAST_SHARE * total
    ]
    return _table(("where an iteration's time goes", "time", "share"), rows)


def _group(group: "MachineGroup") -> Row:
    """Return the row of a group of machines."""
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
    """Return a link's figures."""
    return format_human(bandwidth_bytes_per_s, Dimension.RATE), format_human(latency_s, Dimension.TIME)


def _amount(value: float, unit: str = "s") -> str:
    """Return an objective for reading."""
    return format_human(value, Dimension.TIME) if unit == "s" else f"{value:.6g} {unit}"


def _number(count: int, word: str) -> str:
    """Return ``1 layer`` or ``8 layers``."""
    return f"{count:,} {word}{'s' * (count != 1)}"


def _short(value: object) -> str:
    """Return a decision: a long list, or one of blocks, by its length alone."""
    text = str(value)
    is_long = len(text) > _MOST_LETTERS or "{" in text
    return f"a list of {len(value):,}" if is_long and isinstance(value, list | tuple) else text


# -- HTML: the only places where text becomes markup ------------------------------------------------------------------


def _text(text: str) -> str:
    """Return text that is no markup, and of a length that a table bears."""
    return escape(text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 3]}...")


def _shown(title: str, lines: Iterable[str], *tables: str) -> str:
    """Return the whole: one element, its title bold, a line each, then its tables."""
    told = "".join(f"<br>{escape(line)}" for line in lines)
    return f"<div><p><strong>{_text(title)}</strong>{told}</p>{''.join(tables)}</div>"


def _table(names: Sequence[str], rows: Sequence[Row]) -> str:
    """Return a table of texts, with a line that says how many rows were left out."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows[:MOST_ROWS])
    if (more := len(rows) - MOST_ROWS) > 0:
        body += f'<tr><td colspan="{len(names)}">... and {more:,} more</td></tr>'
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
