"""Short questions: flags instead of a spec file, each a field."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from planner.cli.completion import groups, lists_of, names_of
from planner.cli.options import in_short
from planner.errors import SpecError
from planner.frozen import frozen
from planner.importers.text import is_there

_LINKS = ("network", "nics", "latency", "inside")
_CODE = "torch:"
_BETWEEN_AMOUNTS = re.compile(r"\s*(?:(?<!\d),|,(?!\d{3}))\s*")  # no comma within a number
_OF_SITE = ("as_of", "power", "carbon_intensity")  # of a purchase, as they stand in its block
_OF_LENGTH = ("global_batch", "epochs", "dataset_samples", "tokens", "samples", "sequence_length")
_MACHINES = re.compile(r"(\d{1,12})\s*x\s*(?:(\d{1,12})\s*x\s*)?(.+)")


@frozen
class ShortQuestion:
    """How to train on given machines."""

    dnn: Annotated[
        str | None,
        in_short("Zoo name, model.onnx, config.json, profile, trace, or torch:module:factory.", names_of("network")),
    ] = None
    machines: Annotated[
        str | None,
        in_short("E.g. 4x8xrtx-2080-ti or 4xdgx-h100 (`planner show machines`); unlike ones after commas.", groups),
    ] = None
    cluster: Annotated[str | None, in_short("A testbed by name, e.g. osf-testbed.", names_of("cluster"))] = None
    network: Annotated[
        str | None, in_short("Of each network card, '25 Gbit/s', or of all of a machine, '8 x 400 Gbit/s'.")
    ] = None
    nics: Annotated[int | None, in_short("Network cards of a machine.")] = None
    latency: Annotated[str | None, in_short("Per hop, e.g. '20 us'.")] = None
    inside: Annotated[str | None, in_short("Link inside a machine, e.g. nvlink-3.", names_of("link"))] = None
    batch: Annotated[int | None, in_short("Samples per device.")] = None
    global_batch: Annotated[int | None, in_short("Samples per iteration; then the number of devices is open.")] = None
    profile_batch: Annotated[int | None, in_short("Samples of the batch that a profile was measured at.")] = None
    sequence_length: Annotated[int | None, in_short("Tokens of a sample of a transformer.")] = None
    mtp_layers: Annotated[int | None, in_short("Depths of multi-token prediction that a transformer adds.")] = None
    precision: Annotated[
        str | None,
        in_short("fp32, tf32, fp16, bf16; products in fp8, mxfp8 or nvfp4 (dnn.dtype).", names_of("precision")),
    ] = None
    dtype: Annotated[str | None, in_short("The same as --precision.", names_of("precision"))] = None
    optimizer: Annotated[
        str | None, in_short("adam, sgd, adam_bf16, muon, ... (dnn.optimizer).", names_of("optimizer"))
    ] = None
    fine_tuning: Annotated[str | None, in_short("lora or qlora, of rank 16; or lora:8:q,v (dnn.fine_tuning).")] = None
    frozen: Annotated[
        str | None, in_short("What is not trained: the first so many layers, or parts: 20,experts (dnn.frozen).")
    ] = None
    epochs: Annotated[float | None, in_short("Of the training, for training_time.")] = None
    dataset_samples: Annotated[int | None, in_short("Samples of an epoch.")] = None
    tokens: Annotated[str | None, in_short("Of the whole training, e.g. 2T, in place of epochs.")] = None
    samples: Annotated[str | None, in_short("Of the whole training, e.g. 500M, in place of epochs.")] = None
    objective: Annotated[
        str | None, in_short("iteration_time, epoch_time or training_time.", names_of("objective"))
    ] = None
    families: Annotated[
        str | None, in_short("Those to try, e.g. all_reduce,pipeline; else all.", lists_of("family"))
    ] = None

    @property
    def code(self) -> str | None:
        """The factory that ``--dnn torch:package:function`` names, which may be run then."""
        return self.dnn.removeprefix(_CODE) if self.dnn is not None and self.dnn.startswith(_CODE) else None

    def asked(self, spec: Path | None) -> Path | dict[str, object]:
        """Return the spec's path, or a mapping of the same keys made of flags.

        Raises
        ------
        SpecError
            If both or neither are given, or ``--machines`` has no meaning.
        """
        from planner.question.values import dtype_name

        flags = asdict(self)
        if spec is not None:
            return _alone(spec, flags)
        if self.dnn is None:
            raise SpecError.of_option(
                "", "there is no question.", "Give a spec (see `planner init`), or --dnn and --machines."
            )
        if None not in (self.precision, self.dtype) and dtype_name(self.precision) != dtype_name(self.dtype):
            raise SpecError.of_option(
                "--dtype", "--precision says another one.", "Give one of them.", value=str(self.dtype)
            )
        given = {
            source_of(self.dnn): self.dnn.removeprefix(_CODE),
            "batch_per_device": self.batch,
            "dtype": self.dtype if self.precision is None else self.precision,
            **{key: flags[key] for key in ("global_batch", "profile_batch", "sequence_length", "mtp_layers")},
            **{key: flags[key] for key in ("dataset_samples", "epochs", "optimizer", "tokens", "samples")},
            "fine_tuning": None if self.fine_tuning is None else _fine_tuning(self.fine_tuning),
            "frozen": None if self.frozen is None else _frozen(self.frozen),
        }
        question: dict[str, Any] = {
            "dnn": {key: value for key, value in given.items() if value is not None},
            "cluster": _cluster(flags),
        }
        if self.families is not None:
            question["families"] = _listed(self.families)
        return question if self.objective is None else {**question, "objective": self.objective}


@frozen
class ShortPurchase:
    """What to buy or rent for a training."""

    dnn: Annotated[
        str | None, in_short("Zoo name, model.onnx, config.json, profile or trace.", names_of("network"))
    ] = None
    global_batch: Annotated[int | None, in_short("Samples per iteration, of all devices.")] = None
    epochs: Annotated[float | None, in_short("Of the training.")] = None
    dataset_samples: Annotated[int | None, in_short("Samples of an epoch.")] = None
    tokens: Annotated[str | None, in_short("Of the whole training, e.g. 2T, in place of epochs.")] = None
    samples: Annotated[str | None, in_short("Of the whole training, e.g. 500M, in place of epochs.")] = None
    sequence_length: Annotated[int | None, in_short("Tokens of a sample of a transformer.")] = None
    prices: Annotated[Path | None, in_short("A price list (CSV) instead of the built-in one.")] = None
    as_of: Annotated[str | None, in_short("Prices of the year before this day, e.g. 2026-07-20; or any.")] = None
    regions: Annotated[str | None, in_short("E.g. us-east-1,eu-*.")] = None
    deadline: Annotated[str | None, in_short("E.g. '24 h'.")] = None
    budget: Annotated[
        str | None, in_short("In all, '500 USD', or while it runs, '5000 USD/day'; both between commas.")
    ] = None
    rate: Annotated[str | None, in_short("Of other currencies, EUR=1.08USD; several between commas.")] = None
    power: Annotated[str | None, in_short("Of all machines, e.g. '2 MW'.")] = None
    carbon_intensity: Annotated[str | None, in_short("Of the electricity, e.g. '400 g/kWh'.")] = None
    objective: Annotated[
        str | None, in_short("cost (default; with a budget alone time), time or energy.", names_of("purpose"))
    ] = None
    providers: Annotated[str | None, in_short("E.g. aws,lambda.")] = None
    terms: Annotated[str | None, in_short("Of on-demand, spot, bought; else on-demand.", lists_of("term"))] = None
    families: Annotated[str | None, in_short("Those to try.", lists_of("family"))] = None

    def asked(self, spec: Path | None) -> Path | dict[str, object]:
        """Return the spec's path, or a mapping of the same keys made of flags.

        Raises
        ------
        SpecError
            If both or neither are given.
        """
        from planner.procurement.currencies import read_rates

        flags = asdict(self)
        if spec is not None:
            return _alone(spec, flags)
        given = {name: value for name, value in flags.items() if value is not None}
        if self.dnn is None:
            raise SpecError.of_option(
                "", "there is no question.", "Give a spec with a block procure, or --dnn and a --deadline."
            )
        families = {"families": _listed(self.families)} if self.families is not None else {}
        procure: dict[str, Any] = {}
        for name in ("deadline", "budget", "objective", "providers", "regions", "terms", "prices", *_OF_SITE):
            if name in given:
                procure[name] = _listed(given[name]) if name in ("providers", "regions", "terms") else given[name]
        if self.budget is not None and len(budgets := _BETWEEN_AMOUNTS.split(self.budget)) > 1:
            procure["budget"] = budgets
        if self.rate is not None:
            procure["rates"] = read_rates(_listed(self.rate))
        if self.prices is not None:
            procure["prices"] = str(self.prices)
        of_dnn = {name: given[name] for name in _OF_LENGTH if name in given}
        return {"dnn": {source_of(self.dnn): self.dnn, **of_dnn}, "procure": procure, **families}


def _alone(spec: Path, flags: Mapping[str, Any]) -> Path:
    """Return the spec's path; refuse flags beside it."""
    if given := [f"--{name.replace('_', '-')}" for name, value in flags.items() if value is not None]:
        raise SpecError.of_option(
            " ".join(given), "a spec and flags are given.", "Give one or the other; put these into the spec."
        )
    return spec


def _fine_tuning(text: str) -> dict[str, Any]:
    """Return the block of a method, its rank, and the matrices that get an adapter.

    >>> _fine_tuning("lora:8:q,v")
    {'method': 'lora', 'rank': 8, 'targets': ['q', 'v']}
    """
    method, *more = text.split(":")
    if len(more) > 2 or (more and not more[0].isdecimal()):
        raise SpecError.of_option(
            "--fine-tuning", f"{text!r} is no method with a rank and matrices.", "Write e.g. lora:8:q,v."
        )
    found: dict[str, Any] = {"method": method}
    if more:
        found["rank"] = int(more[0])
    return found | ({"targets": _listed(more[1])} if len(more) > 1 else {})


def _frozen(text: str) -> dict[str, Any]:
    """Return the block of frozen layers and parts.

    >>> _frozen("20,experts")
    {'layers': 20, 'parts': ['experts']}
    """
    names = _listed(text)
    numbers = [int(one) for one in names if one.isdecimal()]
    if len(numbers) > 1:
        raise SpecError.of_option("--frozen", f"{text!r} has several numbers of layers.", "Write e.g. 20,experts.")
    parts = [one for one in names if not one.isdecimal()]
    return {**({"layers": numbers[0]} if numbers else {}), **({"parts": parts} if parts else {})}


def _listed(text: str) -> list[str]:
    """Return names between commas."""
    return [name.strip() for name in text.split(",")]


def source_of(dnn: str) -> str:
    """Return the key that a network's name belongs under: a file by its content, else by its ending, or the zoo."""
    if dnn.startswith(_CODE):
        return "torch"
    if dnn.endswith(".onnx"):
        return "onnx"
    if dnn.endswith((".graph.txt", ".graph", ".json.gz", ".trace.json")):
        return "profile"
    if Path(dnn).name.endswith("config.json") or is_there(Path(dnn, "config.json")):
        return "huggingface"
    is_table = dnn.endswith((".txt", ".csv", ".tsv"))
    is_path = Path(dnn).suffix or Path(dnn).name != dnn  # a bare name is the zoo's, whatever lies in this folder
    if is_path and not is_table and is_there(Path(dnn)):
        from planner.importers.kinds import IMPORTERS, kind_of

        kind = kind_of(Path(dnn))
        if kind in ("huggingface", "onnx"):
            return kind
        if kind is not None and kind in IMPORTERS:
            return "profile"
        if not dnn.endswith((".json", ".yaml", ".yml")):
            mend = "Give an ONNX model, a config.json of Hugging Face, a profile or layers in YAML."
            raise SpecError.one("this file is no network that is known here.", mend, file=dnn, field="dnn")
    if dnn.endswith((".json", ".yaml", ".yml")):
        return "file"
    return "trace" if is_table else "zoo"


def _cluster(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cluster of ``--cluster`` or of ``--machines`` and the flags of its links."""
    if flags["cluster"] is not None:
        if also := [f"--{name}" for name in ("machines", *_LINKS) if flags[name] is not None]:
            raise SpecError.of_option(
                " ".join(also), "--cluster describes the machines already.", "Leave it out, or the others."
            )
        return {"preset": flags["cluster"]}
    if flags["machines"] is None:
        raise SpecError.of_option(
            "", "there are no machines.", "Add --machines 4x8xrtx-2080-ti, or --cluster osf-testbed."
        )
    links = {key: flags[key] for key in _LINKS if flags[key] is not None}
    return {"machines": [{**_machines(part), **links} for part in flags["machines"].split(",")]}


def _machines(text: str) -> dict[str, Any]:
    """Return the group of equal machines of ``4x8xrtx-2080-ti``, or of machines as they are sold, ``4xdgx-h100``.

    The name of a machine alone is one of them.
    """
    from planner import data

    if data.is_machine(text):
        return {"count": 1, "machine": text.strip()}
    found = _MACHINES.fullmatch(text.strip())
    if found is None:
        mend = "Write machines x devices x type, e.g. 4x8xrtx-2080-ti, or 4xdgx-h100; put commas between unlike ones."
        raise SpecError.of_option("--machines", f"{text!r} has no meaning.", mend, value=text)
    count, devices, name = found.groups()
    if data.is_machine(name):
        return {"count": int(count), "machine": name, **({"devices": int(devices)} if devices else {})}
    try:
        device = data.device_or_machine(name)
    except SpecError as error:
        raise SpecError.of_option("--machines", error.faults[0].problem, error.faults[0].mend, value=text) from None
    return {"count": int(count), "devices": int(devices or 1), "device": device}
