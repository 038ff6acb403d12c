"""The file ``config.json`` of a Hugging Face checkpoint: plain JSON of one object, told from the files beside it."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError
from planner.importers.text import is_there, read_text

__all__ = ["MOST_BYTES", "OTHER_WAYS", "check_is_network", "line_of", "read_config", "refusal"]

MOST_BYTES = 16 * 2**20  # the names of 21,843 classes are 1.5 MiB
_MOST_KEYS = 10_000
_NAME = "config.json"
OTHER_WAYS = "Describe the network under dnn.transformer, or import it from ONNX or torch."
_MEND = "Give the file config.json of a checkpoint, as it was saved."

# Keys that only this file has, what it is then, and what to name instead. The first that fits is said.
_OTHERS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"peft_type"}), "the configuration of an adapter"),
    (frozenset({"weight_map"}), "the index of a checkpoint's weights"),
    (frozenset({"added_tokens", "model"}), "a tokenizer"),
    (frozenset({"tokenizer_class"}), "the configuration of a tokenizer"),
    (frozenset({"added_tokens_decoder"}), "the configuration of a tokenizer"),
    (frozenset({"model_max_length"}), "the configuration of a tokenizer"),
    (frozenset({"image_processor_type"}), "the configuration of an image processor"),
    (frozenset({"feature_extractor_type"}), "the configuration of a feature extractor"),
    (frozenset({"processor_class"}), "the configuration of a processor"),
    (frozenset({"_class_name"}), "a part of a diffusion pipeline"),
    (frozenset({"do_sample"}), "the configuration of text generation"),
    (frozenset({"max_new_tokens"}), "the configuration of text generation"),
    (frozenset({"_from_model_config"}), "the configuration of text generation"),
    (frozenset({"transformers_version", "eos_token_id"}), "the configuration of text generation"),
    (
        frozenset({"dim", "n_layers", "n_heads"}),
        "params.json, the configuration in the form of Meta's or Mistral's own code",
    ),
    (frozenset({"zero_optimization"}), "the configuration of DeepSpeed"),
)


class _TwiceError(ValueError):
    """A key that stands twice in one object."""


def read_config(path: Path) -> tuple[dict[str, Any], str, Path]:
    """Return the object of a file, its text, and the file: of a folder the ``config.json`` in it.

    Raises
    ------
    SpecError
        If there is no such file, if it is no JSON of one object, or too large.
    """
    file = path / _NAME if os.path.isdir(path) else path  # noqa: PTH112  # which takes a path of any length
    _check_size(file)
    text = read_text(file)
    values = _parsed(text, file)
    if not isinstance(values, dict):
        kind = "a list" if isinstance(values, list) else "a single value"
        raise _error(file, f"this is JSON, but {kind}, not an object of keys.", _MEND)
    if not values:
        raise _error(file, "this object of JSON has no keys.", _MEND)
    if len(values) > _MOST_KEYS:
        raise _error(file, f"this object of JSON has {len(values)} keys, more than {_MOST_KEYS}.", _MEND)
    return values, text, file


def _check_size(file: Path) -> None:
    """Refuse what is too large to be a configuration, before it is read."""
    try:
        size = file.stat().st_size if is_there(file) else 0
    except OSError:
        return  # said by what reads it
    if size > MOST_BYTES:
        raise _error(file, f"it holds {size} bytes, more than {MOST_BYTES}.", f"Is it the right file? {_MEND}")


def _parsed(text: str, file: Path) -> Any:
    """Return what the JSON says; a key that stands twice, or numbers and nesting beyond reason, are refused."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        problem = f"this is no JSON, or not all of it: {error.msg}."
        fault = Fault(file=str(file), line=error.lineno, column=error.colno, problem=problem, mend=_MEND)
        raise SpecError.of([fault]) from None
    except _TwiceError as error:
        key = str(error)
        name = key if key.isprintable() and len(key) <= 80 else repr(key)[:80]
        fault = Fault(
            file=str(file), line=line_of(text, key), field=name, problem="this key stands twice.", mend="Remove one."
        )
        raise SpecError.of([fault]) from None
    except (RecursionError, ValueError):
        raise _error(file, "this JSON is nested too deeply, or holds a number of thousands of digits.", _MEND) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; a key that stands twice would hide the first."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _TwiceError(key)
        found[key] = value
    return found


def line_of(text: str, key: str) -> int | None:
    """Return the line on which a key first stands; None where it does not."""
    found = re.search(rf"{re.escape(json.dumps(key, ensure_ascii=False))}\s*:", text)
    return None if found is None else text.count("\n", 0, found.start()) + 1


def refusal(file: Path, text: str, model_type: str, problem: str, mend: str) -> SpecError:
    """Return the error of an architecture, at the line that names it."""
    line = line_of(text, "model_type")
    fault = Fault(file=str(file), line=line, field="model_type", value=model_type, problem=problem, mend=mend)
    return SpecError.of([fault])


def check_is_network(values: Mapping[str, Any], file: Path) -> None:
    """Refuse the other files of a checkpoint, which say nothing of the network's sizes, by what they are.

    Raises
    ------
    SpecError
        That says which file it is, and which one to name.
    """
    if "model_type" in values:
        return
    for keys, what in _OTHERS:
        if keys <= values.keys():
            raise _error(file, f"this is {what}, not of a network.", _mend_of(values, file))


def _mend_of(values: Mapping[str, Any], file: Path) -> str:
    """Return what to name in place of another file."""
    base = values.get("base_model_name_or_path")
    if isinstance(base, str) and base:
        return f"Give the config.json of the network that it adapts, {base[:80]!r}."
    return f"Give {_NAME}, which stands beside it." if file.name != _NAME else _MEND


def _error(file: Path, problem: str, mend: str) -> SpecError:
    """Return the error of one fault of the whole file."""
    return SpecError.of([Fault(file=str(file), problem=problem, mend=mend)])
