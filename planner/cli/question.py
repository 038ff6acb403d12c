"""Short questions: flags instead of a spec file."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError
from planner.importers.text import is_there

__all__ = ["code_of", "flag_fault", "purchase_of", "question_of", "source_of"]

_SAME = ("global_batch", "profile_batch", "sequence_length", "dataset_samples", "epochs")  # flags named as their key
_LINKS = ("network", "nics", "latency", "inside")
_PLAN = (
    *("dnn", "machines", "cluster", *_LINKS, "batch", "global_batch", "profile_batch", "sequence_length"),
    *("precision", "dataset_samples", "epochs", "objective", "families"),
)
_OF_DNN = ("dnn", "global_batch", "epochs", "dataset_samples")
_OF_PURCHASE = ("deadline", "budget", "objective")
_LISTS = ("providers", "terms", "families")
_CODE = "torch:"
_MACHINES = re.compile(r"(\d{1,12})\s*x\s*(?:(\d{1,12})\s*x\s*)?(.+)")


def question_of(spec: Path | None, options: Mapping[str, Any]) -> Path | dict[str, Any]:
    """Return the spec's path, or a mapping of the same keys made of flags; ``options``: all of the command.

    Raises
    ------
    SpecError
        If both or neither are given, or ``--machines`` has no meaning.
    """
    flags = {name: options[name] for name in _PLAN}
    if spec is not None:
        return _alone(spec, flags)
    if flags["dnn"] is None:
        raise flag_fault("", "there is no question.", "Give a spec (see `planner init`), or --dnn and --machines.")
    dnn: dict[str, Any] = {source_of(flags["dnn"]): flags["dnn"].removeprefix(_CODE)}
    for flag, key in (("batch", "batch_per_device"), ("precision", "dtype"), *((name, name) for name in _SAME)):
        if flags[flag] is not None:
            dnn[key] = flags[flag]
    question: dict[str, Any] = {"dnn": dnn, "cluster": _cluster(flags)}
    if flags["families"] is not None:
        question["families"] = _listed(flags["families"])
    return question if flags["objective"] is None else {**question, "objective": flags["objective"]}


def purchase_of(spec: Path | None, options: Mapping[str, Any]) -> Path | dict[str, Any]:
    """Return the same of a purchase.

    Raises
    ------
    SpecError
        If both or neither are given.
    """
    flags = {name: options[name] for name in (*_OF_DNN, "prices", *_OF_PURCHASE, *_LISTS)}
    if spec is not None:
        return _alone(spec, flags)
    given = {name: value for name, value in flags.items() if value is not None}
    if "dnn" not in given:
        raise flag_fault("", "there is no question.", "Give a spec with a block procure, or --dnn and a --deadline.")
    lists = {name: _listed(given[name]) for name in _LISTS if name in given}
    families = {"families": lists.pop("families")} if "families" in lists else {}
    procure = {name: given[name] for name in _OF_PURCHASE if name in given} | lists
    if "prices" in given:
        procure["prices"] = str(given["prices"])
    dnn = {source_of(given["dnn"]): given["dnn"], **{name: given[name] for name in _OF_DNN[1:] if name in given}}
    return {"dnn": dnn, "procure": procure, **families}


def _alone(spec: Path, flags: Mapping[str, Any]) -> Path:
    """Return the spec's path; refuse flags beside it."""
    if given := [f"--{name.replace('_', '-')}" for name, value in flags.items() if value is not None]:
        raise flag_fault(
            " ".join(given), "a spec and flags are given.", "Give one or the other; put these into the spec."
        )
    return spec


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
        from planner.importers.kinds import kind_of
        from planner.question.dnn import PROFILE_KINDS

        kind = kind_of(Path(dnn))
        if kind in PROFILE_KINDS:
            return "profile"
        if kind in ("huggingface", "onnx"):
            return kind
    if dnn.endswith((".json", ".yaml", ".yml")):
        return "file"
    return "trace" if is_table else "zoo"


def code_of(dnn: str | None) -> str | None:
    """Return the factory that ``--dnn torch:package:function`` names, which may be run then."""
    return dnn.removeprefix(_CODE) if dnn is not None and dnn.startswith(_CODE) else None


def _cluster(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cluster of ``--cluster`` or of ``--machines`` and the flags of its links."""
    if flags["cluster"] is not None:
        if also := [f"--{name}" for name in ("machines", *_LINKS) if flags[name] is not None]:
            raise flag_fault(
                " ".join(also), "--cluster describes the machines already.", "Leave it out, or the others."
            )
        return {"preset": flags["cluster"]}
    if flags["machines"] is None:
        raise flag_fault("", "there are no machines.", "Add --machines 4x8xrtx-2080-ti, or --cluster osf-testbed.")
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
        raise flag_fault("--machines", f"{text!r} has no meaning.", mend, text)
    count, devices, name = found.groups()
    if data.is_machine(name):
        return {"count": int(count), "machine": name, **({"devices": int(devices)} if devices else {})}
    try:
        device = data.device_or_machine(name)
    except SpecError as error:
        raise flag_fault("--machines", error.faults[0].problem, error.faults[0].mend, text) from None
    return {"count": int(count), "devices": int(devices or 1), "device": device}


def flag_fault(field: str, problem: str, mend: str, value: str = "") -> SpecError:
    """Return the error of a flag."""
    return SpecError.of([Fault(file="command line", field=field, problem=problem, mend=mend, value=value)])
