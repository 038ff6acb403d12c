"""Short questions of a purchase: flags instead of a spec file."""

from pathlib import Path
from typing import Any

from planner.cli.question import flag_fault, source_of

__all__ = ["question_of"]

_DNN = ("global_batch", "epochs", "dataset_samples")
_PROCURE = ("deadline", "budget", "objective")
_LISTS = ("providers", "terms")


def question_of(spec: Path | None, flags: dict[str, Any]) -> Path | dict[str, Any]:
    """Return the spec's path, or a mapping of the same keys made of flags.

    Raises
    ------
    SpecError
        If both or neither are given.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    if spec is not None:
        if given:
            names = " ".join(f"--{name.replace('_', '-')}" for name in given)
            raise flag_fault(names, "a spec and flags are given.", "Give one or the other; put these into the spec.")
        return spec
    if "dnn" not in given:
        raise flag_fault("", "there is no question.", "Give a spec with a block procure, or --dnn and a --deadline.")
    procure: dict[str, Any] = {name: given[name] for name in _PROCURE if name in given}
    procure |= {name: _listed(given[name]) for name in _LISTS if name in given}
    if "prices" in given:
        procure["prices"] = str(given["prices"])
    dnn = {source_of(given["dnn"]): given["dnn"], **{name: given[name] for name in _DNN if name in given}}
    question: dict[str, Any] = {"dnn": dnn, "procure": procure}
    return {**question, "families": _listed(given["families"])} if "families" in given else question


def _listed(text: str) -> list[str]:
    """Return names between commas."""
    return [name.strip() for name in text.split(",")]
