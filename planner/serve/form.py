"""What a page may ask: fields of a spec that hold no name of a file and no code; all else is refused.

A field is named by its place in the spec, so that a fault of :func:`planner.load` names the field of the form.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from planner.constraints import CONSTRAINTS
from planner.decisions import DECISIONS
from planner.errors import Fault, SpecError
from planner.frozen import frozen

Place = tuple[str | int, ...]
UPLOAD = "upload"  # under ``dnn``: the id of an uploaded file, in place of the keys that name files
UPLOADED = "uploaded"  # the name of every such file, in a folder of its own

_MOST_ROWS = 32  # groups of machines
_MOST_LETTERS = 200  # of a value
_MOST_NAMES = 50  # in a list
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")
_DNN = (
    *("zoo", UPLOAD, "global_batch", "batch_per_device", "sequence_length", "dtype", "optimizer", "fine_tuning"),
    *("epochs", "tokens", "samples", "dataset_samples", "profile_batch", "profile_device"),
)
_ANY = ""  # a key that stands for all: names that a file gives
_MACHINE = ("count", "machine", "device", "devices", "network", "nics", "latency", "inside")
_JOB = ("name", "runs_per_month", "deadline", "share")
_PROCURE = ("deadline", "budget", "objective", "terms", "providers", "regions", "devices", "as_of", "power")
_PARTS = {"range": ("exactly", "at_least", "at_most"), "exclude": [row.key for row in DECISIONS if row.excluded_by]}
_CONSTRAINTS: Mapping[str, Any] = {  # a key has parts, or one value
    one.key: dict.fromkeys(one.kind if isinstance(one.kind, Mapping) else _PARTS.get(str(one.kind), ())) or None
    for one in CONSTRAINTS
    if one.kind is not None
}
_JOBS = [{**dict.fromkeys(_JOB), "dnn": dict.fromkeys(key for key in _DNN if key != UPLOAD)}]
# Of each block its keys; a list: rows of these keys. None: one plain value, or a list of them.
_FIELDS: Mapping[str, Any] = {
    "dnn": {**dict.fromkeys(_DNN), "dimensions": {_ANY: None}},
    "cluster": {"preset": None, "machines": [dict.fromkeys(_MACHINE)]},
    "procure": {**dict.fromkeys(_PROCURE), "jobs": _JOBS},
    "constraints": _CONSTRAINTS,
    "fix": dict.fromkeys(row.key for row in DECISIONS),
    "objective": None,
    "families": None,
}
# What a row of the page limits or fixes, by its place in the spec: in words, and whether it is a list.
LIMITS = [
    *((f"constraints.{key}", key, key == "forbidden_families") for key, parts in _CONSTRAINTS.items() if parts is None),
    *(
        (f"constraints.{key}.{part}", f"{key}, {part}", key == "exclude")
        for key, parts in _CONSTRAINTS.items()
        for part in parts or ()
    ),
    *((f"fix.{row.key}", row.words, row.key in ("layers_per_stage", "substitutions")) for row in DECISIONS),
]


@frozen
class Form:
    """What is asked: a spec, and how much beside its answer."""

    question: Mapping[str, Any]
    time_limit_s: float
    has_explanation: bool = False

    @property
    def is_purchase(self) -> bool:
        """Whether it asks what to buy or rent."""
        return "procure" in self.question


def checked_form(sent: object, *, most_s: float) -> Form:
    """Return the form that a page sent, ``{question, time_limit_s, explain}``.

    Raises
    ------
    SpecError
        With every field that is none of ours, or holds what is no plain value; what values mean is judged by
        :func:`planner.load`.
    """
    if not isinstance(sent, dict) or not isinstance(sent.get("question"), dict):
        raise SpecError.one("this is no form.", "Reload the page.")
    faults: list[Fault] = []
    question = _checked(sent["question"], _FIELDS, (), faults)
    seconds = sent.get("time_limit_s", most_s)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= most_s:
        mend = f"Write 1 to {most_s:g} seconds."
        faults.append(Fault(field="time_limit_s", problem="this is no time that is allowed here.", mend=mend))
    dnn = question.get("dnn")
    if not faults and isinstance(dnn, dict) and not {"zoo", UPLOAD} & dnn.keys():
        faults.append(Fault(field="dnn.zoo", problem="no network is named.", mend="Write e.g. llama3-8b."))
    if not faults and ("cluster" in question) == ("procure" in question):
        mend = "Describe the machines, or give money or a deadline."
        faults.append(Fault(field="cluster", problem="it is not said with what to train.", mend=mend))
    if faults:
        raise SpecError.of(faults)
    return Form(question=question, time_limit_s=float(seconds), has_explanation=sent.get("explain") is True)


def _checked(value: object, fields: Any, place: Place, faults: list[Fault]) -> Any:
    """Return a value without what is left empty; note what does not belong there."""
    name = ".".join(map(str, place))
    if isinstance(fields, Mapping) and isinstance(value, dict):
        known = {
            str(key): (part, key in fields or (_ANY in fields and len(fields) == 1)) for key, part in value.items()
        }
        faults += [
            Fault(field=".".join([*map(str, place), key]), problem="this page does not ask this.", mend="Leave it out.")
            for key, (_, is_known) in known.items()
            if not is_known
        ]
        found = {
            key: _checked(part, fields.get(key), (*place, key), faults)
            for key, (part, is_known) in known.items()
            if is_known
        }
        return {key: part for key, part in found.items() if part not in ("", None)}
    if isinstance(fields, list) and isinstance(value, list) and len(value) <= _MOST_ROWS:
        return [_checked(row, fields[0], (*place, index), faults) for index, row in enumerate(value)]
    if fields is None and isinstance(value, list) and len(value) <= _MOST_NAMES:
        return [_plain(one, name, faults) for one in value]
    if fields is None:
        return _plain(value, name, faults)
    faults.append(Fault(field=name, problem="this is of the wrong kind, or too long.", mend="Reload the page."))
    return None


def _plain(value: object, name: str, faults: list[Fault]) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str) and len(value) <= _MOST_LETTERS:
        return value.strip()
    faults.append(Fault(field=name, problem="this is no short text and no number.", mend="Write it shorter."))
    return None


def checked_values(sent: object, fields: Sequence[Mapping[str, object]]) -> dict[int, object]:
    """Return the values that a page changes, by the index of the assumption: of those that an answer told.

    A value is a number where the one that is assumed is one, and it can be read as such.

    Raises
    ------
    SpecError
        If it changes anything else.
    """
    values = sent.get("values") if isinstance(sent, dict) else None
    faults: list[Fault] = []
    found: dict[int, Any] = {}
    for key, value in values.items() if isinstance(values, dict) else ():
        index = int(key) if str(key).isdecimal() and len(str(key)) <= 3 else len(fields)
        if index >= len(fields) or fields[index]["place"] is None:
            faults.append(
                Fault(field=str(key)[:20], problem="the answer assumes no such thing.", mend="Reload the page.")
            )
            continue
        found[index] = _like(_plain(value, f"assumption.{index}", faults), fields[index]["like"])
    if faults or not found:
        raise SpecError.of(faults or [Fault(problem="nothing is changed.", mend="Change a value.")])
    return found


def _like(value: Any, other: Any) -> Any:
    """Return text as a number or a truth value, if the other value is one.

    >>> _like("8192", 4096), _like("0.4", 0.5), _like("yes", True), _like("5 us", "20 us"), _like("many", 3)
    (8192, 0.4, 'yes', '5 us', 'many')
    >>> _like("1,048,576", 3), _like("0,4", 3), _like("1_000", 3)  # a comma that parts no thousands is no guess of ours
    (1048576, '0,4', '1_000')
    """
    if not isinstance(value, str):
        return value
    if isinstance(other, bool):
        return {"true": True, "false": False}.get(value.lower(), value)
    is_plain = "_" not in value and ("," not in value or _THOUSANDS.fullmatch(value) is not None)
    for kind in (int, float) if isinstance(other, int | float) and is_plain else ():
        try:
            return kind(value.replace(",", ""))
        except ValueError:
            continue
    return value
