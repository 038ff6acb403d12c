"""``planner show``: what is built in, and what a spec describes."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["show"]


class What(StrEnum):
    """What can be shown."""

    DNN = "dnn"
    CLUSTER = "cluster"
    DEVICES = "devices"
    LINKS = "links"
    MACHINES = "machines"
    PRICES = "prices"


_WORDS = {
    What.DNN: "networks of the zoo, or the layers of one, or of a spec",
    What.CLUSTER: "testbeds, or the machines of one, or of a spec",
    What.DEVICES: "accelerators and CPUs, or the figures of one with their sources",
    What.LINKS: "links inside machines",
    What.MACHINES: "machines as they are sold, or the figures of one with their sources",
    What.PRICES: "the price list that ships, or one of yours",
}


def show(
    what: Annotated[What | None, typer.Argument(help="Which table; the list of them if left out.")] = None,
    name: Annotated[
        str | None,
        typer.Argument(help="A zoo network, testbed, device, machine, spec or price list; all names if left out."),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(help="Of prices: conditions that all hold, e.g. provider=aws,device=a100*,usd_per_h<5."),
    ] = None,
    sort: Annotated[str | None, typer.Option(help="Of prices: the column to sort by; -column: largest first.")] = None,
    unusable: Annotated[
        bool, typer.Option("--unusable", help="Of prices: also the rows that cannot be planned with, and why.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document (planner.show/1) on stdout.")] = False,
) -> None:
    """Show networks, clusters, devices, links, machines and prices: those built in, of a spec or of a price list."""
    from planner.documents import dump
    from planner.report import table

    if what is None:
        rows = [{"what": one.value, "shows": words} for one, words in _WORDS.items()]
        example = "planner show devices h100"
        print(
            dump({"schema": "planner.show/1", "what": "", "rows": rows, "totals": {"e.g.": example}})
            if json
            else f"{table(rows)}\ne.g.: {example}"
        )
        return
    makers: dict[What, Callable[[str | None], tuple[list[dict[str, Any]], dict[str, Any]]]] = {
        What.DNN: _dnn,
        What.CLUSTER: _cluster,
        What.DEVICES: _devices,
        What.LINKS: _links,
        What.MACHINES: _machines,
        What.PRICES: lambda file: _prices(file, where or "", sort or "", unusable),
    }
    if what is not What.PRICES and (where or sort or unusable):
        raise typer.BadParameter("--where, --sort and --unusable are of prices alone.")
    rows, totals = makers[what](name)
    if json:
        print(dump({"schema": "planner.show/1", "what": what.value, "rows": rows, "totals": totals}))
        return
    if what is What.PRICES:
        print(_prices_text(rows))
    else:
        print(table(rows))
    for key, value in totals.items():
        print(f"{key}: {value:,}" if isinstance(value, int) else f"{key}: {value}")


def _dnn(name: str | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the networks of the zoo, or the layers of one."""
    from planner import zoo

    if name is None:
        networks = [zoo.build(known) for known in zoo.names()]
        return [{"name": known, **_totals(dnn)} for known, dnn in zip(zoo.names(), networks, strict=True)], {}
    dnn = _problem(name).dnn if Path(name).suffix in (".yaml", ".yml", ".json") else zoo.build(name)
    if dnn.transformer is not None:
        return _operators(dnn)
    rows = [
        {
            "layer": layer.name,
            "kind": layer.kind,
            "inputs": ", ".join(dnn.inputs_of(layer.name)),
            "output": "x".join(map(str, layer.output_shape)),
            "trainable": layer.num_trainable,
            "multiply_adds": layer.num_multiply_adds,
        }
        for layer in dnn.layers
    ]
    return rows, {**_totals(dnn), "source": dnn.source}


def _operators(dnn: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the operators of a transformer, each kind of block once with its count, and what they come to."""
    from planner.models.transformer_operators import flop_per_sample, parts

    transformer = dnn.transformer
    rows = [
        {
            "part": f"{part.count} x {part.name}" if part.kind else part.name,
            "operator": operator.name,
            "kind": operator.kind,
            "output": "x".join(map(str, operator.output_shape)),
            "product": str(operator.product or ""),
            "trainable": operator.weight_elements,
            "forward_flop": operator.forward_flop,
            "backward_flop": operator.backward_flop,
        }
        for part in parts(transformer)
        for operator in part.operators
    ]
    tokens = transformer.sequence_length
    half, full = (flop_per_sample(transformer, has_full_attention=whole) for whole in (False, True))
    blocks = flop_per_sample(transformer, has_logits=False)
    totals = {
        "trainable": transformer.num_parameters,
        "active_per_token": transformer.num_active_parameters,
        "layers": transformer.num_layers,
        "tokens_per_sample": tokens,
        "attention": "causal: half of each product counts" if transformer.is_causal else "full",
        "forward_flop_per_token": round(half.forward_flop / tokens),
        "backward_flop_per_token": round(half.backward_flop / tokens),
        "forward_flop_per_token_full_attention": round(full.forward_flop / tokens),
        "forward_flop_per_token_without_logits": round(blocks.forward_flop / tokens),
        "source": dnn.source,
    }
    return rows, totals


def _totals(dnn: Any) -> dict[str, Any]:
    """Return the totals of a network."""
    return {
        "trainable": dnn.num_trainable,
        "weights": dnn.num_weights,
        "multiply_adds": dnn.num_multiply_adds,
        "weight_layers": dnn.num_weight_layers,
        "tensors": dnn.num_trainable_tensors,
        "activations": dnn.num_stored_elements,
    }


def _problem(name: str) -> Any:
    """Return the problem of a spec file."""
    import planner

    return planner.load(Path(name))


def _cluster(name: str | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the testbeds, or the machines of one."""
    import planner
    from planner import data

    if name is None:
        presets = [(known, data.preset(known)) for known in data.preset_names()]
        return [{"name": known, "source": preset["source"]} for known, preset in presets], {}
    is_file = Path(name).suffix in (".yaml", ".yml", ".json")
    question = {"dnn": {"zoo": "alexnet"}, "cluster": {"preset": name}, "fix": {"num_devices": 1}}
    cluster = (planner.load(Path(name)) if is_file else planner.load(question)).cluster
    rows = [_machine_row(group, cluster) for group in cluster.machine_groups]
    return rows, {"machines": cluster.num_machines, "devices": cluster.num_devices, "source": cluster.source}


def _machine_row(group: Any, cluster: Any) -> dict[str, Any]:
    """Return one group of machines."""
    from planner.units import Dimension, format_human

    def rate(value: float | None) -> str:
        return "" if value is None or value == float("inf") else format_human(value, Dimension.RATE)

    edges = cluster.graph.edges(group.name, data=True)
    link = next((data["link"] for _, _, data in edges), None)
    storage = group.storage
    return {
        "name": group.name,
        "machines": group.count,
        "devices": group.devices_per_machine,
        "device": group.device.name,
        "inside": rate(group.inside.bandwidth_bytes_per_s if group.inside else None),
        "network": rate(link.bandwidth_bytes_per_s if link else None),
        "nics": group.num_nics,
        "latency": format_human(link.latency_s, Dimension.TIME) if link else "",
        "storage": _storage(storage, rate) if storage else "",
    }


def _devices(name: str | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the device table, or one row of it with its source."""
    from planner import data

    rows = data.device_rows()
    if name is not None:
        wanted = data.device(name).name
        return [
            {"field": key, "value": value} for row in rows if row["name"] == wanted for key, value in row.items()
        ], {}
    rates = [f"{dtype}_tflop_per_s" for dtype in ("fp32", "tf32", "fp16", "bf16", "fp8")]
    columns = ["name", *rates, "memory_gib", "memory_bandwidth_gb_per_s", "power_w", "verified"]
    unverified = sum(row["verified"] == "no" for row in rows)
    return [{column: row[column] for column in columns} for row in rows], {
        "devices": len(rows),
        "unverified, from memory": unverified,
        "sources": "planner show devices NAME",
    }


def _links(name: str | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the named links inside machines."""
    from planner import data

    rows: list[dict[str, Any]] = [dict(row) for row in data.link_rows()]
    if name is not None:
        data.inside_link(name)  # refuses an unknown name, with the nearest
    return [row for row in rows if name in (None, row["name"])], {}


def _machines(name: str | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the machines as they are sold, or one row of them with its source."""
    from planner import data

    rows = data.machine_rows()
    if name is not None:
        wanted = data.machine(name).name
        return [
            {"field": key, "value": value} for row in rows if row["name"] == wanted for key, value in row.items()
        ], {}
    columns = ["name", "device", "devices", "inside", "nics", "gbit_per_s_per_nic", "verified", "aliases", "source"]
    return [{column: row[column] for column in columns} for row in rows], {
        "machines": len(rows),
        "unverified, from memory": sum(row["verified"] == "no" for row in rows),
        "reference machine of a device": "its first row",
    }


def _prices(file: str | None, where: str, sort: str, unusable: bool) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of the price list that ships, or of a file."""
    from datetime import date

    from planner.procurement.price_list import read_price_list
    from planner.procurement.price_rows import price_rows, price_totals

    today = date.today()
    prices = read_price_list(None if file is None else Path(file), today=today)
    rows = price_rows(prices, where=where, sort=sort, unusable=unusable)
    return rows, price_totals(prices, rows, today)


def _prices_text(rows: list[dict[str, Any]]) -> str:
    """Return the rows of a price list as text, those that cannot be used in a table of their own."""
    from planner.procurement.price_rows import COLUMNS
    from planner.report import table

    usable = [row for row in rows if row["unusable"] is None]
    text = table(usable, columns=COLUMNS)
    if len(usable) < len(rows):
        columns = ("provider", "instance", "region", "term", "unusable")
        text += "\n\n" + table(rows[len(usable) :], columns=columns)
    return text + "\n"


def _storage(storage: Any, rate: Callable[[float], str]) -> str:
    """Return the rate of a store, and who shares it."""
    who = f"shared by {storage.shared_by or 'all'}" if storage.is_shared else "local"
    return f"{rate(storage.bandwidth_bytes_per_s)} {who}"
