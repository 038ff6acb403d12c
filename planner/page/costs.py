"""Where time and memory go: the sections of a prediction's figures."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.page import figures
from planner.page.parts import Block, Figure, Section, Table, Text, Tile, Tiles, few, thinned
from planner.page.told import Told
from planner.page.words import many, size, term, time, usd

__all__ = ["memory_section", "tiles", "time_section"]

_LEAST_SHARE = 1e-6
_MOST_ROWS = 24  # of the memory plot
_LEFT_OUT = ("total", "limit")


def tiles(told: Told) -> Tiles:
    """Return the figures that are read first."""
    found, details = told.prediction, told.details
    rows = [("an iteration", time(found.iteration_time_s))]
    rows += [("an epoch", time(found.epoch_time_s))] if found.epoch_time_s is not None else []
    rows += [("the training", time(found.training_time_s))] if found.training_time_s is not None else []
    rows += [("cost", usd(found.cost_usd))] if found.cost_usd is not None else []
    rows.append(("scaling factor", f"{found.scaling_factor:.3f}"))
    rows += [("samples a device", f"{details['batch_per_device']:,}")] if "batch_per_device" in details else []
    rows += [("tokens a second", f"{details['tokens_per_s']:,.0f}")] if "tokens_per_s" in details else []
    if found.memory_bytes:
        rows.append(("memory, fullest device", _of_limit(found.memory_bytes)))
    return Tiles(tiles=[Tile(label=label, value=value) for label, value in rows])


def _of_limit(memory: Mapping[str, float]) -> str:
    """Return the memory that is used, of what there is."""
    limit = memory.get("limit", float("inf"))
    return size(memory["total"]) + ("" if limit == float("inf") else f" of {size(limit)}")


def time_section(told: Told) -> Section:
    """Return where an iteration's time goes."""
    found = told.prediction
    total_s = found.iteration_time_s
    terms = [(name, value) for name, value in found.breakdown_s.items() if value > _LEAST_SHARE * total_s]
    rows = [(term(name), value, f"{time(value)}, {value / total_s:.1%}") for name, value in terms]
    data, layout = figures.bars(rows, title="time", unit="s")
    table = Table(
        caption="Terms of an iteration; they add up to it",
        columns=("term", "time", "share"),
        rows=[(term(name), time(value), f"{value / total_s:.1%}") for name, value in terms],
        numbers=(1, 2),
    )
    largest = max(terms, key=lambda one: one[1], default=("nothing", 0.0))
    alt = (
        f"Bars of the {many(len(terms), 'term')} of an iteration of {time(total_s)}; the "
        f"largest is {term(largest[0])}, {time(largest[1])}."
    )
    figure = Figure(caption="Where an iteration's time goes", alt=alt, data=data, layout=layout, table=table)
    return Section(name="time", title="Where the time goes", blocks=[figure, *_communication(told)])


def _communication(told: Told) -> list[Block]:
    """Return all communication, hidden or not."""
    rows = [(term(name), time(value)) for name, value in told.prediction.communication_s.items() if value]
    if not rows:
        return []
    caption = "All communication, hidden behind computation or not"
    return [Table(caption=caption, columns=("exchange", "time of an iteration"), rows=rows, numbers=(1,))]


def memory_section(told: Told) -> Section | None:
    """Return what the memory of the devices holds, against what there is; None where it is not modelled."""
    rows = [(name, parts, limit) for name, parts, limit in _memories(told) if parts]
    if not rows:
        return None
    shown = thinned(rows, _MOST_ROWS)
    names = list(dict.fromkeys(part for _, parts, _ in rows for part in parts))
    names = [name for name in names if any(parts.get(name, 0.0) for _, parts, _ in rows)]
    values = {term(name): [parts.get(name, 0.0) for _, parts, _ in shown] for name in names}
    data, layout = figures.stacked(
        [name for name, *_ in shown], values, title="memory of a device", unit="B", limit=[limit for *_, limit in shown]
    )
    table = Table(
        caption="Memory of a device",
        columns=("on", *(term(name) for name in names), "in all", "limit"),
        rows=[
            (name, *(size(parts.get(part, 0.0)) for part in names), size(sum(parts.values())), _limit(limit))
            for name, parts, limit in shown
        ],
        numbers=range(1, len(names) + 3),
    )
    fullest = max(rows, key=lambda row: sum(row[1].values()))
    alt = (
        f"Stacked bars of the memory of {many(len(shown), 'kind')} of devices; the fullest holds "
        f"{size(sum(fullest[1].values()))} of {_limit(fullest[2])}."
    )
    note = few(len(rows), len(shown), "rows", "--json has all of them")
    figure = Figure(
        caption="Memory of a device, by what it holds", alt=alt, data=data, layout=layout, table=table, note=note
    )
    return Section(name="memory", title="Memory", blocks=[figure, *_memory_words(told)])


def _limit(limit_bytes: float) -> str:
    """Return a limit for reading."""
    return "no limit" if limit_bytes == float("inf") else size(limit_bytes)


def _memories(told: Told) -> Sequence[tuple[str, Mapping[str, float], float]]:
    """Return, by stage where the family tells them apart, else of the fullest device, the parts and the limit."""
    memory = told.prediction.memory_bytes
    if not memory:
        return []
    limit = memory.get("limit", float("inf"))
    stages: Sequence[Mapping[str, Any]] = told.details.get("stages", ())
    if len(stages) > 1 and all("terms_bytes" in one for one in stages):
        rooms = [one.get("room_bytes") for one in stages]
        own = [limit if room is None else one["memory_bytes"] + room for one, room in zip(stages, rooms, strict=True)]
        return [(f"stage {index + 1}", one["terms_bytes"], own[index]) for index, one in enumerate(stages)]
    parts = {name: value for name, value in memory.items() if name not in _LEFT_OUT}
    return [("the fullest device", parts, limit)]


def _memory_words(told: Told) -> list[Block]:
    """Return which devices the figures are of, where there are several kinds."""
    groups = told.details.get("groups")
    if not isinstance(groups, Mapping) or not all("memory_bytes" in one for one in groups.values()):
        return []
    rows = [(name, f"{one['batch_per_device']:,}", size(one["memory_bytes"])) for name, one in groups.items()]
    columns = ("machines", "samples a device", "memory of a device")
    return [
        Text("The plot is of the devices that are fullest, by their limits."),
        Table(caption="Memory by kind of machines", columns=columns, rows=rows, numbers=(1, 2)),
    ]
