"""The file ``config.json`` of a Hugging Face checkpoint, told from the files beside it, and its keys, read one by one.

What is wrong with each key is collected, so that one pass names it all.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError
from planner.importers.text import is_there, read_text, refuse
from planner.transformer import MOST_INNER

__all__ = ["MOST_BYTES", "OTHER_WAYS", "Fields", "check_is_network", "read_config", "refusal", "shown"]

MOST_BYTES = 16 * 2**20  # the names of 21,843 classes are 1.5 MiB
_MOST_KEYS = 10_000
_NAME = "config.json"
OTHER_WAYS = "Describe the network under dnn.transformer, or import it from ONNX or torch."
_HINT = "Give the file config.json of a checkpoint, as it was saved."

# Keys that only this file has, what it is then, and what to name instead. The first that fits is said.
_OTHERS: tuple[tuple[set[str], str], ...] = (
    ({"peft_type"}, "the configuration of an adapter"),
    ({"weight_map"}, "the index of a checkpoint's weights"),
    ({"added_tokens", "model"}, "a tokenizer"),
    ({"tokenizer_class"}, "the configuration of a tokenizer"),
    ({"added_tokens_decoder"}, "the configuration of a tokenizer"),
    ({"model_max_length"}, "the configuration of a tokenizer"),
    ({"image_processor_type"}, "the configuration of an image processor"),
    ({"feature_extractor_type"}, "the configuration of a feature extractor"),
    ({"processor_class"}, "the configuration of a processor"),
    ({"_class_name"}, "a part of a diffusion pipeline"),
    ({"do_sample"}, "the configuration of text generation"),
    ({"max_new_tokens"}, "the configuration of text generation"),
    ({"_from_model_config"}, "the configuration of text generation"),
    ({"transformers_version", "eos_token_id"}, "the configuration of text generation"),
    ({"dim", "n_layers", "n_heads"}, "params.json, the configuration in the form of Meta's or Mistral's own code"),
    ({"zero_optimization"}, "the configuration of DeepSpeed"),
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
    size = file.stat().st_size if is_there(file) else 0  # what is not there is said by what reads it
    if size > MOST_BYTES:
        raise refuse(file, f"it holds {size} bytes, more than {MOST_BYTES}.", f"Is it the right file? {_HINT}")
    text = read_text(file)
    try:
        values = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        problem = f"this is no JSON, or not all of it: {error.msg}."
        fault = Fault(file=str(file), line=error.lineno, column=error.colno, problem=problem, mend=_HINT)
        raise SpecError.of([fault]) from None
    except _TwiceError as error:
        key = str(error)
        name = key if key.isprintable() and len(key) <= 80 else repr(key)[:80]
        problem = "this key stands twice."
        fault = Fault(file=str(file), line=_line_of(text, key), field=name, problem=problem, mend="Remove one.")
        raise SpecError.of([fault]) from None
    except (RecursionError, ValueError):
        raise refuse(file, "this JSON is nested too deeply, or holds a number of thousands of digits.", _HINT) from None
    if not isinstance(values, dict):
        kind = "a list" if isinstance(values, list) else "a single value"
        raise refuse(file, f"this is JSON, but {kind}, not an object of keys.", _HINT)
    if not values:
        raise refuse(file, "this object of JSON has no keys.", _HINT)
    if len(values) > _MOST_KEYS:
        raise refuse(file, f"this object of JSON has {len(values)} keys, more than {_MOST_KEYS}.", _HINT)
    return values, text, file


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; a key that stands twice would hide the first."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _TwiceError(key)
        found[key] = value
    return found


def _line_of(text: str, key: str) -> int | None:
    """Return the line on which a key first stands; None where it does not."""
    found = re.search(rf"{re.escape(json.dumps(key, ensure_ascii=False))}\s*:", text)
    return None if found is None else text.count("\n", 0, found.start()) + 1


def check_is_network(values: Mapping[str, Any], file: Path) -> None:
    """Refuse the other files of a checkpoint, which say nothing of the network's sizes, by what they are.

    Raises
    ------
    SpecError
        That says which file it is, and which one to name.
    """
    what = next((what for keys, what in _OTHERS if keys <= values.keys()), None)
    if "model_type" in values or what is None:
        return
    hint = f"Give {_NAME}, which stands beside it." if file.name != _NAME else _HINT
    base = values.get("base_model_name_or_path")
    if isinstance(base, str) and base:
        hint = f"Give the config.json of the network that it adapts, {base[:80]!r}."
    raise refuse(file, f"this is {what}, not of a network.", hint)


def refusal(file: Path, text: str, model_type: str, problem: str, hint: str) -> SpecError:
    """Return the error of an architecture, at the line that names it."""
    line = _line_of(text, "model_type")
    fault = Fault(file=str(file), line=line, field="model_type", value=model_type, problem=problem, mend=hint)
    return SpecError.of([fault])


def shown(value: object) -> str:
    """Return a value as a message shows it, not at any length."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(slots=True)
class Fields:
    """The keys of one configuration.

    A key that is ``null`` is left out. ``faults`` lists what was wrong with the keys that were read; where there is
    any, what the methods gave means nothing.

    Attributes
    ----------
    architecture
        Its ``model_type``, named by every message.
    notes, warnings
        What readers add for the user.
    """

    values: Mapping[str, Any]
    text: str
    file: Path
    architecture: str
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def get(self, *names: str) -> object:
        """Return the value of the first of these keys that has one; else None."""
        return next((self.values[name] for name in names if self.values.get(name) is not None), None)

    def count(self, *names: str, least: int = 1, most: int = MOST_INNER) -> int:
        """Return a size that must be given, under any of these keys."""
        if self.get(*names) is None:
            also = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
            hint = "Add it, as the checkpoint's own config.json has it; a size is not guessed."
            self.fault(names[0], f"it is missing, and {self.architecture} needs it{also}.", hint)
        return self.count_or(max(least, 1), *names, least=least, most=most)

    def count_or(self, default: int, *names: str, least: int = 1, most: int = MOST_INNER) -> int:
        """Return a size that may be left out."""
        name = next((name for name in names if self.values.get(name) is not None), None)
        if name is None:
            return default
        value = self.values[name]
        if type(value) is int and least <= value <= most:
            return value
        if type(value) is int:
            problem = f"{value} is out of range" if abs(value) < 10**60 else "this number is out of range"
        else:
            problem = f"{shown(value)} {'is text, not a number' if isinstance(value, str) else 'is no whole number'}"
        self.fault(name, f"{problem}.", f"Write a whole number from {least} to {most}.")
        return max(least, 1)

    def figure(self, default: float | None, *names: str, most: float = 1e12) -> float | None:
        """Return a figure above 0 that may be left out; None where it is 0, which says that there is none."""
        name = next((name for name in names if self.values.get(name) is not None), None)
        if name is None:
            return default
        value = self.values[name]
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most:
            return float(value)
        if isinstance(value, bool) or value != 0:
            self.fault(
                name, f"{shown(value)} is no number that it can be.", f"Write a number above 0, at most {most:g}."
            )
        return None

    def flag(self, name: str, default: bool) -> bool:
        """Return whether something is so; may be left out."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            self.fault(name, f"{shown(value)} is neither true nor false.", "Write true or false, without quotes.")
        return value if isinstance(value, bool) else default

    def word(self, *names: str) -> str:
        """Return a word; empty where it is left out."""
        name = next((name for name in names if self.values.get(name) is not None), None)
        value = self.values[name] if name is not None else ""
        if name is not None and not isinstance(value, str):
            self.fault(name, f"{shown(value)} is no text.", "Write a word in quotes.")
        return value if isinstance(value, str) else ""

    def words(self, name: str) -> tuple[str, ...]:
        """Return a list of words; empty where it is left out."""
        value = self.get(name)
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return tuple(value)
        if value is not None:
            self.fault(name, f"{shown(value)} is no list of words.", 'Write e.g. ["full_attention"].')
        return ()

    def wholes(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers of 0 or more; empty where it is left out."""
        value = self.get(name)
        if isinstance(value, list) and all(type(one) is int and one >= 0 for one in value):
            return tuple(value)
        if value is not None:
            self.fault(name, f"{shown(value)} is no list of whole numbers.", "Write e.g. [0, 1].")
        return ()

    def refuse(self, name: str, problem: str) -> None:
        """Note a key that makes another network of this one than is counted here."""
        self.fault(name, problem, OTHER_WAYS)

    def fault(self, name: str, problem: str, hint: str) -> None:
        """Note what is wrong with a key."""
        is_there = name in self.values
        line = _line_of(self.text, name) if is_there else None
        value = shown(self.values[name]) if is_there else ""
        where = Fault(file=str(self.file), line=line, field=name, value=value, problem=problem, mend=hint)
        self.faults.append(where)
