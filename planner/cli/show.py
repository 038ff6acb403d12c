"""``planner show``: what is built in, and what a spec describes."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.completion import shown
from planner.cli.options import json_of
from planner.errors import SpecError

if TYPE_CHECKING:
    from planner.cluster import Cluster, MachineGroup
    from planner.dnn import Dnn

Shown = tuple[list[dict[str, Any]], dict[str, Any]]  # the rows of a table, and what stands below it


class What(StrEnum):
    """What can be shown."""

    DNN = "dnn"
    CLUSTER = "cluster"
    DEVICES = "devices"
    LINKS = "links"
    MACHINES = "machines"
    PRICES = "prices"
    PLUGINS = "plugins"


_WORDS = {
    What.DNN: "networks of the zoo, or the layers of one, or of a spec",
    What.CLUSTER: "testbeds, or the machines of one, or of a spec",
    What.DEVICES: "accelerators and CPUs, or the figures of one with their sources",
    What.LINKS: "links inside machines",
    What.MACHINES: "machines as they are sold, or the figures of one with their sources",
    What.PRICES: "the price list that ships, or one of yours",
    What.PLUGINS: "what other distributions add, each loaded once",
}
_SPECS = (".yaml", ".yml", ".json")


def show(
    what: Annotated[What | None, typer.Argument(help="Which table; the list of them if left out.")] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            help="A zoo network or a file of one, testbed, device, machine, spec or price list; all names if left out.",
            autocompletion=shown,
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(help="Of prices: conditions that all hold, e.g. provider=aws,device=a100*,usd_per_h<5."),
    ] = None,
    sort: Annotated[str | None, typer.Option(help="Of prices: the column to sort by; -column: largest first.")] = None,
    unusable: Annotated[
        bool, typer.Option("--unusable", help="Of prices: also the rows that cannot be planned with, and why.")
    ] = False,
    json: Annotated[bool, json_of("planner.show/1")] = False,
) -> None:
    """Show networks, clusters, devices, links, machines and prices: those built in, of a spec or of a price list."""
    from planner.answer.documents import dump
    from planner.answer.text import table

    if what is not What.PRICES and (where or sort or unusable) and what is not None:
        raise typer.BadParameter("--where, --sort and --unusable are of prices alone.")
    makers: dict[What, Callable[[str | None], Shown]] = {
        What.DNN: _dnn,
        What.CLUSTER: _cluster,
        What.DEVICES: _devices,
        What.LINKS: _links,
        What.MACHINES: _machines,
        What.PLUGINS: _plugins,
        What.PRICES: lambda file: _prices(file, where or "", sort or "", unusable),
    }
    if what is None:
        rows: list[dict[str, Any]] = [{"what": one.value, "shows": words} for one, words in _WORDS.items()]
        totals: dict[str, Any] = {"e.g.": "planner show devices h100"}
    else:
        rows, totals = makers[what](name)
    if json:
        document = {"schema": "planner.show/1", "what": "" if what is None else what.value}
        print(dump({**document, "rows": rows, "totals": totals}))
        return
    text_of = {What.PRICES: _prices_text, What.DEVICES: _devices_text}
    if rows:
        print(table(rows) if what is None else text_of.get(what, table)(rows))
    for key, value in totals.items():
        if value != "":
            print(f"{key}: {value:,}" if isinstance(value, int) else f"{key}: {value}")


def _dnn(name: str | None) -> Shown:
    """Return the networks of the zoo, or the layers of one."""
    from planner import zoo

    if name is None:
        return [{"name": known, **_totals(zoo.build(known))} for known in zoo.names()], {}
    dnn = _any_network(name)
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


def _any_network(name: str) -> "Dnn":
    """Return a network of the zoo, of a spec, of its block alone, or of whatever else ``--dnn`` of a question takes."""
    import planner
    from planner import zoo
    from planner.cli.question import source_of
    from planner.network_import import import_file

    source = source_of(name)
    if source == "zoo":
        return zoo.build(name)
    if source != "file":
        found = import_file(Path(name)).dnn
        assert found is not None, "a launch file is no network's"
        return found
    try:
        return planner.load(Path(name)).dnn
    except SpecError as error:
        if {fault.field for fault in error.faults} != {"cluster"}:
            raise
    machines = {"machines": [{"count": 1, "machine": "hgx-h100"}]}  # a block alone: which ones plays no part
    return planner.load({"dnn": {"file": name}, "cluster": machines}).dnn


def _operators(dnn: "Dnn") -> Shown:
    """Return the operators of a transformer, each kind of block once with its count, and what they come to."""
    from planner.models.operators import flop_per_sample, parts

    transformer = dnn.transformer
    assert transformer is not None, "only of a transformer"
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


def _totals(dnn: "Dnn") -> dict[str, Any]:
    return {
        "trainable": dnn.num_trainable,
        "weights": dnn.num_weights,
        "multiply_adds": dnn.num_multiply_adds,
        "weight_layers": dnn.num_weight_layers,
        "tensors": dnn.num_trainable_tensors,
        "activations": dnn.num_stored_elements,
    }


def _cluster(name: str | None) -> Shown:
    """Return the testbeds, or the machines of one."""
    import planner
    from planner import data

    if name is None:
        return [{"name": known, "source": data.preset(known)["source"]} for known in data.preset_names()], {}
    question = {"dnn": {"zoo": "alexnet"}, "cluster": {"preset": name}, "fix": {"num_devices": 1}}
    cluster = planner.load(Path(name) if Path(name).suffix in _SPECS else question).cluster
    rows = [_machine_row(group, cluster) for group in cluster.machine_groups]
    totals: dict[str, Any] = {"machines": cluster.num_machines, "devices": cluster.num_devices}
    return rows, {**totals, **_network(cluster), "source": cluster.source}


def _network(cluster: "Cluster") -> dict[str, str]:
    """Return what the network gives a machine: in a ring and in trees over all, in an all-to-all, and by its levels."""
    from planner.routes import routes_of
    from planner.words import many

    number, routes = cluster.num_machines, routes_of(cluster)
    if number == 1:
        return {}
    rates = {
        "ring": routes.ring(number).bandwidth_bytes_per_s,
        "trees": routes.tree_bytes_per_s(number),
        "all-to-all": routes.even_bytes_per_s,
    }
    found = {name: f"{rate / 1e9:.4g} GB/s of each machine" for name, rate in rates.items()}
    if routes.units is None:
        return {**found, "levels": "none: not all machines are equally far apart by levels"}
    levels = [
        f"{many(unit.num_machines, 'machine')} with {unit.machine_bytes_per_s / 1e9:.4g} GB/s each"
        for unit in routes.units
    ]
    return {**found, "levels": ", ".join(levels)}


def _machine_row(group: "MachineGroup", cluster: "Cluster") -> dict[str, Any]:
    from planner.units import Dimension, format_human

    def rate(value: float | None) -> str:
        return "" if value is None or value == float("inf") else format_human(value, Dimension.RATE)

    edges = cluster.graph.edges(group.name, data=True)
    link = next((data["link"] for _, _, data in edges), None)
    storage, stored = group.storage, ""
    if storage is not None:
        who = f"shared by {storage.shared_by or 'all'}" if storage.is_shared else "local"
        stored = f"{rate(storage.bandwidth_bytes_per_s)} {who}"
    return {
        "name": group.name,
        "machines": group.count,
        "devices": group.devices_per_machine,
        "device": group.device.name,
        "inside": rate(group.inside.bandwidth_bytes_per_s if group.inside else None),
        "network": rate(link.bandwidth_bytes_per_s if link else None),
        "nics": group.num_nics,
        "latency": format_human(link.latency_s, Dimension.TIME) if link else "",
        "storage": stored,
    }


# What the columns of the device table are of, as heads of the printed table and as fields of one device.
_HEADS = {
    **{f"{dtype}_tflop_per_s": dtype for dtype in ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")},
    "memory_gib": "memory",
    "memory_bandwidth_gb_per_s": "bandwidth",
    "num_multiprocessors": "multiprocessors",
    "l2_mib": "L2 cache",
    "clock_mhz": "clock",
    "scale_up_devices": "scale-up",
    "scale_up_gb_per_s": "its rate",
    "power_w": "power",
}
_FIELDS = {
    **{column: f"{head} peak, dense" for column, head in _HEADS.items() if column.endswith("_tflop_per_s")},
    "memory_gib": "memory",
    "memory_bandwidth_gb_per_s": "memory bandwidth",
    "num_multiprocessors": "multiprocessors",
    "l2_mib": "L2 cache",
    "clock_mhz": "boost clock",
    "process_nm": "process, as it is sold, nm",
    "inline_ecc": "check bits among the data in memory",
    "link": "link inside a machine",
    "link_gb_per_s": "its rate, one direction",
    "scale_up_devices": "scale-up domain, devices",
    "scale_up_gb_per_s": "scale-up rate of one, one direction",
    "power_w": "power",
    "measured_matmul_bf16_tflop_per_s": "measured bf16 matrix product",
}
_UNITS_OF_DEVICES = (
    "peaks in TFLOP/s, dense, with fp32 accumulation; memory and L2 cache in GiB and MiB, bandwidth in GB/s, boost "
    "clock in MHz, power in W; scale-up: how many devices the vendor's links join at most, GB/s of one in one direction"
)


def _plugins(wanted: str | None) -> Shown:
    """Return the plug-ins that are installed, or those of a name, each loaded, or why it cannot be."""
    from planner.data.devices import DEVICES
    from planner.exporters import TARGETS
    from planner.families import FAMILIES
    from planner.importers.kinds import IMPORTERS
    from planner.models.communication import ALL_REDUCES
    from planner.plugins import Registry, named

    tables: list[Registry[Any]] = [FAMILIES, DEVICES, TARGETS, IMPORTERS, ALL_REDUCES]
    rows = []
    for table in tables:
        for name, plugin in named(table.group).items():
            try:
                state = f"loaded from {plugin.place}" if table[name] is not None else ""
            except SpecError as error:
                state = str(error)
            if name in table.own:
                state = "not used: it bears the name of a built-in one. Rename it, or uninstall it."
            rows.append({"group": table.group, "name": name, "distribution": plugin.origin, "state": state})
    if wanted is not None and not (rows := [row for row in rows if row["name"] == wanted]):
        message = f"no plug-in {wanted!r} is installed. `planner show plugins` lists them."
        raise SpecError(message)
    return rows, {"plugins": len(rows)}


def _devices(name: str | None) -> Shown:
    """Return the device table, or the figures of one device with their units and its source."""
    from planner import data
    from planner.data.devices import DEVICES

    rows = data.device_rows()
    if name is None:
        found = [{column: row[column] for column in ("name", *_HEADS)} for row in rows]
        totals = {"devices": len(rows), "units": _UNITS_OF_DEVICES, "sources": "planner show devices NAME"}
        broken = sorted(DEVICES.plugins.keys() - {row["name"] for row in rows})
        why = {"left out": f"{', '.join(broken)}; planner show plugins says why"} if broken else {}
        return found, {**totals, **why}
    known = data.device(name).name
    cells = [cell for row in rows if row["name"] == known for cell in row.items() if cell[1]]
    return [{"field": _FIELDS.get(key, key), "value": data.with_unit(key, cell)} for key, cell in cells], {}


def _devices_text(rows: list[dict[str, Any]]) -> str:
    """Return the device table as text, under heads that are as short as its cells."""
    from planner.answer.text import table

    return table([{_HEADS.get(column, column): cell for column, cell in row.items()} for row in rows])


def _machines(name: str | None) -> Shown:
    """Return the machines as they are sold, or one row of them with its source."""
    from planner import data

    rows = data.machine_rows()
    if name is not None:
        known = data.machine(name).name
        return [{"field": key, "value": cell} for row in rows if row["name"] == known for key, cell in row.items()], {}
    columns = ["name", "device", "devices", "inside", "nics", "gbit_per_s_per_nic", "aliases", "source"]
    totals = {"machines": len(rows), "reference machine of a device": "its first row"}
    return [{column: row[column] for column in columns} for row in rows], totals


def _links(name: str | None) -> Shown:
    from planner import data

    rows: list[dict[str, Any]] = [dict(row) for row in data.link_rows()]
    if name is not None:
        data.inside_link(name)  # refuses an unknown name, with the nearest
    return [row for row in rows if name in (None, row["name"])], {}


def _prices(file: str | None, where: str, sort: str, unusable: bool) -> Shown:
    """Return the rows of the price list that ships, or of a file."""
    from datetime import date

    from planner.procurement.prices import price_rows, price_totals, read_price_list

    today = date.today()
    prices = read_price_list(None if file is None else Path(file), today=today)
    rows = price_rows(prices, where=where, sort=sort, unusable=unusable)
    return rows, price_totals(prices, rows, today)


def _prices_text(rows: list[dict[str, Any]]) -> str:
    """Return the rows of a price list as text, those that cannot be used in a table of their own."""
    from planner.answer.text import table
    from planner.procurement.prices import COLUMNS

    usable = [row for row in rows if row["unusable"] is None]
    text = table(usable, columns=COLUMNS)
    if len(usable) < len(rows):
        columns = ("provider", "instance", "region", "term", "unusable")
        text += "\n\n" + table(rows[len(usable) :], columns=columns)
    return text + "\n"


# --- ``planner init``: a commented spec to start from


def init(
    file: Annotated[Path | None, typer.Argument(help="Where to write it; stdout if left out, or -.")] = None,
    procure: Annotated[bool, typer.Option("--procure", help="One for `planner procure`: what to buy or rent.")] = False,
) -> None:
    """Write a commented spec to start from."""
    from planner.cli.output import write_text
    from planner.shipped import shipped_text

    text = shipped_text("planner.data", f"examples/{'procure' if procure else 'spec'}.yaml")
    if file is None or str(file) == "-":
        print(text, end="")
        return
    if file.exists():
        raise SpecError.one("this file exists.", "Name another one, or remove it first.", file=file, value=str(file))
    write_text(file, text)
    typer.echo(f"Wrote {file}. Next: planner {'procure' if procure else 'plan'} {file}", err=True)


# --- ``planner schema``: JSON Schemas, for editors and for readers of the documents


class Document(StrEnum):
    """What has a schema."""

    SPEC = "spec"
    PROCURE = "procure"
    PLAN = "plan"
    PREDICTION = "prediction"
    CASE = "case"
    SHOW = "show"
    CALIBRATION = "calibration"
    FIT = "fit"
    RUNS = "runs"
    MEASUREMENTS = "measurements"
    CHECK = "check"
    EXPLANATION = "explanation"
    COMPARISON = "comparison"
    PROCUREMENT = "procurement"
    SWEEP = "sweep"
    IMPORT = "import"
    EXPORT = "export"
    ERROR = "error"


def schema(
    document: Annotated[Document, typer.Argument(help="Which one.")] = Document.SPEC,
    json: Annotated[bool, typer.Option("--json", help="A schema is JSON anyway.")] = False,
) -> None:
    """Print the JSON Schema of a question (spec, or procure: of what to buy or rent) or of an answer."""
    import json as library

    from planner.answer.schemas import MODELS
    from planner.procurement.question import ProcurementSpec
    from planner.question.spec import Spec
    from planner.sweep.question import question_schema
    from planner.sweep.report import SweepDocument

    questions: dict[str, type[Spec | ProcurementSpec]] = {"spec": Spec, "procure": ProcurementSpec}
    if document.value in questions:
        found = question_schema(questions[document.value])
    else:
        found = (dict(MODELS) | {"sweep": SweepDocument})[document.value].model_json_schema(by_alias=True)
    found = {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
    print(library.dumps(found, indent=2, ensure_ascii=False))
