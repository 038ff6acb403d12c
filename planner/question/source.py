"""Where the parts of a file stand, so that a fault can name its line and column."""

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from planner.decisions import LAYOUT
from planner.errors import Fault, ModelError, SpecError
from planner.frozen import frozen
from planner.importers.text import MOST_DOCUMENT_BYTES, read_text
from planner.problem import Assumption
from planner.words import shown
from planner.yaml_text import MOST_LEVELS, Place, read_yaml


class Places(Protocol):
    """Line and column of the parts of a file, by their keys and indices from the outermost on."""

    def get(self, place: Place, /) -> tuple[int, int] | None:
        """Return those of a part, None where there is none."""

    def __getitem__(self, place: Place, /) -> tuple[int, int]: ...

    def __contains__(self, place: object, /) -> bool: ...


class JsonPlaces:
    """Lines and columns in JSON text, found where they are asked for: most files have no fault to place.

    The parts of a mapping or a list are found once, by the reader of the standard library, which is fast.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._inside: dict[Place, dict[str | int, tuple[int, int]]] = {}

    def get(self, place: Place, /) -> tuple[int, int] | None:
        """Return line and column of a part, None where there is none."""
        try:
            return self[place]
        except LookupError:
            return None

    def __getitem__(self, place: Place, /) -> tuple[int, int]:
        found = self._parts_of(place[:-1])[place[-1]]
        return self._text.count("\n", 0, found[0]) + 1, found[0] - self._text.rfind("\n", 0, found[0])

    def __contains__(self, place: object, /) -> bool:
        return isinstance(place, tuple) and bool(place) and place[-1] in self._parts_of(place[:-1])

    def _parts_of(self, place: Place) -> dict[str | int, tuple[int, int]]:
        """Return where each part of a mapping or a list begins, and its value; empty where it is neither."""
        if place not in self._inside:
            start = self._parts_of(place[:-1]).get(place[-1], (0, -1))[1] if place else _skipped(self._text, 0)
            self._inside[place] = {} if start < 0 else dict(self._parts(start))
        return self._inside[place]

    def _parts(self, at: int) -> Iterator[tuple[str | int, tuple[int, int]]]:
        """Yield every part's key or index, its place, and its value's place."""
        text, index = self._text, 0
        end = {"{": "}", "[": "]"}.get(text[at])
        at = _skipped(text, at + 1)
        while end and text[at] != end:
            key: str | int = index
            begin = at
            if end == "}":
                key, at = _DECODER.raw_decode(text, at)
                at = _skipped(text, _skipped(text, at) + 1)
            yield key, (begin, at)
            at = _skipped(text, _DECODER.raw_decode(text, at)[1])
            at, index = (_skipped(text, at + 1) if text[at] == "," else at), index + 1


_DECODER = json.JSONDecoder()
_BLANKS = re.compile(r"[ \t\n\r]*")


def _skipped(text: str, at: int) -> int:
    """Return the place of the next character that is no blank."""
    found = _BLANKS.match(text, at)
    assert found is not None, "it matches nothing, too"
    return found.end()


# --- Text of a spec in, plain data out, with the line of everything, so that faults can say where they are


@frozen
class Source:
    """Plain data of a spec, where it came from, and the line and column of each of its parts.

    ``allowed_code``: the factory of a network that may be run, since the user named it outside of the file.
    ``parts``: where the keys below a place came from another file, that file, and the place in it.
    """

    data: Any
    file: str
    folder: Path
    positions: Places
    allowed_code: str | None = None
    parts: "Mapping[Place, tuple[Source, Place]]" = field(default_factory=dict)

    def locate(self, fault: Fault, path: Sequence[str | int]) -> Fault:
        """Return the fault with file, line and column of ``path``, or of its nearest parent that stands in the file."""
        for place, (part, root) in self.parts.items():
            size = len(place)
            if len(path) > size and tuple(path[:size]) == place and tuple(path[: size + 1]) not in self.positions:
                return part.locate(fault, (*root, *path[size:]))
        for length in range(len(path), 0, -1):
            if position := self.positions.get(tuple(path[:length])):
                return replace(fault, file=self.file, line=position[0], column=position[1])
        return replace(fault, file=self.file)

    def fault(self, path: Sequence[str | int], problem: str, mend: str, value: object = "") -> Fault:
        """Return a fault at ``path``, with its place."""
        return self.locate(Fault(field=_dotted(path), problem=problem, mend=mend, value=str(value)), path)

    def error(self, path: Sequence[str | int], problem: str, mend: str, value: object = "") -> SpecError:
        """Return the error of that fault alone."""
        return SpecError.of([self.fault(path, problem, mend, value)])


def read_source(file: object) -> Source:
    """Return the data of a YAML or JSON file.

    Raises
    ------
    SpecError
        If it is no name of a file, no readable text, no valid YAML (1.2), no mapping, or larger than what is read in
        bounded time: JSON of 32 MiB, YAML of 4 MiB and 250,000 values.
    """
    if not isinstance(file, str | os.PathLike):
        what = f"a question is a mapping of the keys of a spec, or the name of its file, not {type(file).__name__}."
        raise SpecError.one(what, "Give e.g. {'dnn': {'zoo': 'vgg16'}, 'cluster': {'preset': 'osf-testbed'}}.")
    path = Path(file)
    text = read_text(path, most_bytes=MOST_DOCUMENT_BYTES)
    if (plain := _plain_json(text)) is not None:
        found = Source(data=plain, file=str(path), folder=path.parent, positions=JsonPlaces(text))
    else:
        yaml = read_yaml(text, str(path))
        found = Source(data=yaml.data, file=str(path), folder=path.parent, positions=yaml.positions)
    if not isinstance(found.data, dict):
        raise SpecError.one(
            "a spec is a mapping of keys, e.g. 'dnn: {zoo: vgg16}'.", "Start from `planner init`.", file=path
        )
    return found


def _plain_json(text: str) -> Any:
    """Return the data of JSON text, some hundred times as fast as YAML's reader; None where that has to judge it."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        data = json.loads(text, object_pairs_hook=_without_twins, parse_constant=_refuse)
        return data if _levels(data) <= MOST_LEVELS else None
    except (ValueError, RecursionError):
        return None


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a mapping; raise ValueError where a key stands twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse(name: str) -> None:
    """Refuse NaN and infinities, which are no JSON."""
    raise ValueError(name)


def _levels(data: Any) -> int:
    """Return how deep data are nested: one more than mappings and lists within each other, if not all are empty."""
    number, level = 1, [data] if isinstance(data, dict | list) else []
    while level := [part for part in level if part]:
        parts = (value for part in level for value in (part.values() if isinstance(part, dict) else part))
        number, level = number + 1, [value for value in parts if isinstance(value, dict | list)]
    return number


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``Did you mean 'x'?``, or the list of what is known."""
    names = sorted(known)
    found = difflib.get_close_matches(word, names, n=1)
    return f"Did you mean {found[0]!r}?" if found else f"Known: {', '.join(names)}."


def merged_questions(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, Any]:
    """Return both mappings in one, key by key at every depth; ``above`` wins.

    >>> merged_questions({"dnn": {"zoo": "vgg16", "batch_per_device": 32}}, {"dnn": {"zoo": "vgg19"}})
    {'dnn': {'zoo': 'vgg19', 'batch_per_device': 32}}
    """
    result = deepcopy(dict(below))
    for key, value in above.items():
        old = result.get(key)
        is_deep = isinstance(old, dict) and isinstance(value, Mapping)
        result[key] = merged_questions(old, value) if is_deep else deepcopy(value)  # type: ignore[arg-type]
    return result


def faults_of(error: ValidationError, source: Source, model: type[BaseModel], root: Place = ()) -> list[Fault]:
    """Return every fault that pydantic found, in our words and with its place."""
    return [_fault(details, source, model, root) for details in error.errors(include_url=False)]


def _fault(details: ErrorDetails, source: Source, model: type[BaseModel], root: Place) -> Fault:
    """Return one of pydantic's findings as a fault."""
    path = (*root, *_without_tags(details["loc"]))
    value = "" if details["type"] == "missing" else shown(details["input"], 80)
    problem, mend = _words(details, model)
    fault = Fault(field=_dotted(path), value=value, problem=problem, mend=mend)
    return source.locate(fault, path)


def _dotted(path: Sequence[str | int]) -> str:
    """Return a place as it is told; a key without a letter is told, too."""
    return ".".join(str(part) or "''" for part in path)


# Of :func:`planner.question.values.tag`, and of the price lists' files in :mod:`planner.procurement.question`.
_TAGS = ("<name>", "<mapping>", "<list>", "<file>")


def _without_tags(place: Sequence[str | int]) -> list[str | int]:
    """Return a place less the tags of unions; a user's key may look alike."""
    return [part for part in place if part not in _TAGS]


def _halves(text: str) -> tuple[str, str]:
    """Return problem and mend of a message: its first sentence, and the rest; a value that is cut ends in dots."""
    problem, *mend = re.split(r"(?<!\.\.)\. ", text, maxsplit=1)
    return problem, mend[0] if mend else ""


# What others call a key of a spec; of a layout's decisions the names in its block and in ``fix`` stand for each other.
_CALLED: Mapping[str, str] = {
    "devices": "gpus num_gpus gpus_per_node devices_per_machine devices_per_node accelerators",
    "count": "nodes num_nodes num_machines machines",
    "device": "gpu accelerator",
    "network": "bandwidth network_bandwidth",
    "global_batch": "batch batch_size global_batch_size",
    "sequence_length": "seq_len seq_length context_length max_position_embeddings",
    "layers": "num_layers num_hidden_layers",
    "hidden": "hidden_size d_model",
    "heads": "num_heads num_attention_heads",
    "kv_heads": "num_kv_heads num_key_value_heads num_query_groups",
    "feed_forward": "intermediate_size ffn_hidden_size",
    "vocabulary": "vocab vocab_size",
    "dtype": "precision",
    "tensor": "tp tensor_parallel",
    "pipeline": "pp pipeline_parallel num_stages",
    "data": "dp data_parallel",
    "context": "cp context_parallel",
    "expert": "ep expert_parallel",
    "microbatch": "mbs micro_batch micro_batch_size",
    "interleave": "vpp virtual_pipeline_size virtual_pipeline_model_parallel_size virtual_pipeline_parallel_size",
    "recompute": "recompute_granularity activation_checkpointing",
}


_BLOCKS = ("dnn", "constraints", "calibration", "procure")  # whose keys are sought where they stand elsewhere


def _meant(key: str) -> list[str]:
    """Return the keys that a word which is none may stand for."""
    found = [one for one, words in _CALLED.items() if key.lower() in words.split()] or [key]
    pinned = [LAYOUT[one].key for one in found if one in LAYOUT]
    return [*found, *pinned, *(name for name, row in LAYOUT.items() if row.key == key)]


def _words(details: ErrorDetails, model: type[BaseModel]) -> tuple[str, str]:
    """Return problem and mend for pydantic's error type."""
    kind = details["type"]
    location = _without_tags(details["loc"])
    if kind == "extra_forbidden":
        known = _fields_at(model, location[:-1])
        if {str(location[-1]).lower(), str(details["input"]).lower()} & _NO_TRAINING:
            return (
                f"{location[-1]!r} asks for what is no training: planner plans neither inference nor the roll-outs of "
                f"reinforcement learning.",
                "Leave it out, and ask for the training step alone.",
            )
        key = str(location[-1])
        meant = [one for one in _meant(key) if one in known]
        elsewhere = [f"{one}.{key}" for one in _BLOCKS if key in _fields_at(model, (one,))]
        mend = f"Did you mean {(meant or elsewhere)[0]!r}?" if meant or elsewhere else nearest(key, known)
        families = [
            one
            for one in known
            if [*location[:-1]] == ["configuration"] and key in _fields_at(model, ("configuration", one))
        ]
        if families:  # a plan has its family beside its configuration, a spec above it
            mend = f"Write the block below its family, e.g. {families[0]}: {{{key}: ...}}."
        return f"unknown key {key!r}.", mend
    if kind == "missing":
        return "this key is missing.", "Add it."
    if kind == "value_error":
        problem, mend = _halves(str(details["ctx"]["error"]))
        return f"{problem.rstrip('.')}.", mend
    if kind not in _WORDS:
        return f"{details['msg']}; got {shown(details['input'], 80)}.", "Mend this value."
    what, mend = _WORDS[kind]
    if kind == "literal_error" and isinstance(details["input"], str):
        near = nearest(details["input"], re.findall(r"'([^']+)'", details["ctx"]["expected"]))
        mend = near if near.startswith("Did") else mend  # else it names what is known already
    # Words of ours alone are a format; what pydantic says may quote the input.
    return f"{what.format(**details.get('ctx', {}))}; got {shown(details['input'], 80)}.", mend


# Keys, and values of keys, by which users ask for what is not answered here.
_NO_TRAINING = {
    *("inference", "serving", "serve", "generation", "generate", "decode", "decoding", "prefill", "kv_cache"),
    *("rollout", "rollouts", "roll_out", "roll_outs", "rl", "rlhf", "grpo", "ppo", "reinforcement_learning"),
}

# pydantic's error types in our words, with what to do.
_WORDS = {
    "model_type": ("this must be a mapping of keys", "Write e.g. {key: value}, or keys indented below it."),
    "model_attributes_type": ("this must be a mapping of keys", "Write e.g. {key: value}, or keys indented below it."),
    "dict_type": ("this must be a mapping", "Write e.g. {name: value}."),
    "list_type": ("this must be a list", "Write e.g. [first, second]."),
    "tuple_type": ("this must be a pair", "Write e.g. [1 MB, 2 ms]."),
    "string_type": ("this must be text", "Put it in quotes."),
    "string_too_short": ("this text is empty", "Fill it."),
    "too_short": ("there must be at least {min_length}", "Add what is missing."),
    "too_long": ("there may be at most {max_length}", "Remove what is too much."),
    "literal_error": ("it must be {expected}", "Write one of these."),
    "enum": ("it must be {expected}", "Write one of these."),
    "bool_type": ("this must be true or false", "Write true or false."),
    "bool_parsing": ("this must be true or false", "Write true or false."),
    "float_type": ("this must be a number", "Write e.g. 1.5."),
    "float_parsing": ("this must be a number", "Write e.g. 1.5, or of a share 0.4."),
    "int_type": ("this must be a whole number", "Write e.g. 1."),
    "finite_number": ("this must be a finite number", "Write e.g. 1.5."),
    "greater_than_equal": ("it must be at least {ge}", "Raise it."),
    "greater_than": ("it must be more than {gt}", "Raise it."),
    "less_than": ("it must be less than {lt}", "Lower it; a share is written as 0.1, not as 10."),
    "less_than_equal": ("it may be at most {le}", "Lower it; check the unit."),
    "invalid_key": ("keys must be text", "Put the key in quotes."),
    "missing_argument": ("a value is missing", "Write e.g. [1 MB, 2 ms]."),
}


def _fields_at(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """Return the keys allowed at a place, by walking the models' fields."""
    current: Any = model
    for part in location:
        if isinstance(part, int):
            continue
        field = getattr(current, "model_fields", {}).get(part)
        current = _model_in(field.annotation) if field else None
    return list(getattr(current, "model_fields", {}))


def _model_in(annotation: Any) -> Any:
    """Return the first pydantic model in a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in getattr(annotation, "__args__", ()) if (found := _model_in(part))), None)


@dataclass(slots=True)
class Notes:
    """What is noted while a problem is built: faults, so that all are told at once; assumptions; warnings."""

    source: Source
    faults: list[Fault] = field(default_factory=list)
    key_assumptions: list[Assumption] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def assume_aloud(self, text: str, field: tuple[str | int, ...], *, flag: str = "", other: object = None) -> None:
        """Note what was assumed at a place of the spec, under the headline of an answer.

        ``flag``: what sets it, by default the key; ``other``: another value, whose effect is told.
        """
        flag = flag or ".".join(map(str, field))
        self.key_assumptions.append(Assumption(text=text, field=field, flag=flag, other=other))

    def fault(self, path: tuple[str | int, ...], problem: str, mend: str, value: object = "") -> None:
        """Note a fault at a place of the spec."""
        self.faults.append(self.source.fault(path, problem, mend, value))

    def attempt(self, path: tuple[str | int, ...], make: Callable[[], object]) -> Any:
        """Return what ``make`` returns, or None after noting why it could not."""
        try:
            return make()
        except SpecError as error:
            for fault in error.faults:
                named = replace(fault, field=fault.field or _dotted(path))
                self.faults.append(named if fault.file else self.source.locate(named, path))
        except (ValueError, ModelError) as error:
            problem, mend = _halves(str(error).replace("; ", ". ", 1))
            self.fault(
                path, f"{problem.rstrip('.')}.", f"{mend[:1].upper()}{mend[1:]}".rstrip(".") + "." if mend else ""
            )
        return None
