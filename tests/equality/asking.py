"""Asking a question through the command line, what of its answer is kept, and when two answers are equal.

Only the command line and its documents are used: they outlive any rebuilding behind them.
"""

import contextlib
import hashlib
import io
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.cli.run import run

__all__ = ["ANSWERS", "Question", "answer", "asked", "differences", "kept", "recorded"]

ANSWERS = Path(__file__).with_name("answers.json")
SAME = 1e-9
SPEC = "question.yaml"
PREDICTED = (
    *("iteration_time_s", "epoch_time_s", "training_time_s", "breakdown_s", "communication_s"),
    *("scaling_factor", "memory_bytes", "cost_usd"),
)
EXPORT = "rows.json"  # a sweep is asked with --export


@dataclass(frozen=True, kw_only=True)
class Question:
    """A command and the files that it reads."""

    name: str  # the kind of question, a hyphen and a number: ``pipeline-012``
    words: tuple[str, ...]  # of the command line, less ``--json``
    # what ``question.yaml`` holds: a mapping, or its text; None where the command reads no spec
    spec: Mapping[str, Any] | str | None = None
    files: Mapping[str, str] = field(default_factory=dict)  # texts of the files beside it, by their names

    @property
    def kind(self) -> str:
        """What is asked, without the number."""
        return self.name.rpartition("-")[0]

    def to_row(self) -> dict[str, Any]:
        row = {"name": self.name, "words": list(self.words), "spec": self.spec, "files": dict(self.files)}
        return {key: value for key, value in row.items() if value}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Question":
        return cls(name=row["name"], words=tuple(row["words"]), spec=row.get("spec"), files=row.get("files", {}))


def recorded(path: Path = ANSWERS) -> dict[str, tuple[Question, dict[str, Any]]]:
    """Return the recorded questions and answers, by name."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return {row["name"]: (Question.of(row), row["answer"]) for row in rows}


# -- asking ----------------------------------------------------------------------------------------------------------


def asked(question: Question) -> tuple[int, dict[str, Any]]:
    """Ask, and return the exit status and the document; that of a sweep with the rows that it exports."""
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        if question.spec is not None:
            text = question.spec if isinstance(question.spec, str) else json.dumps(question.spec)
            Path(SPEC).write_text(text, encoding="utf-8")
        for name, text in question.files.items():
            Path(name).write_text(text, encoding="utf-8")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([*question.words, "--json"])
        document = json.loads(out.getvalue())
        if EXPORT in question.words and Path(EXPORT).exists():
            document |= json.loads(Path(EXPORT).read_text(encoding="utf-8"))
    return code, document


def answer(question: Question) -> dict[str, Any]:
    """Ask, and return what is kept of the answer."""
    return kept(question, *asked(question))


def kept(question: Question, code: int, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is compared of an answer, and what tells ties."""
    return {"exit": code, **_kept(question.words[0], document)}


def _kept(command: str, document: Mapping[str, Any]) -> dict[str, Any]:
    if document["schema"].startswith("planner.error/"):
        return {"kind": document["kind"], "conflict": _conflict(document)}
    if command == "plan":
        return {
            **_proof(document),
            "family": document["family"],
            "configuration": _digest([document["configuration"], document["substitutions"]]),
            "iteration_time_s": document["prediction"]["iteration_time_s"],
            "alternatives": [one["objective"] for one in document["alternatives"]],
        }
    if command == "predict":
        return {"family": document["family"], "prediction": {key: document["prediction"][key] for key in PREDICTED}}
    if command == "procure":
        choice, pareto = document["choice"], document["pareto"] or {"points": []}
        fleet = [
            [row["count"], row["provider"], row["instance"], row["region"], row["term"]] for row in choice["fleet"]
        ]
        return {
            **_proof(document),
            "family": ",".join(plan["family"] for plan in choice["plans"].values()),
            "configuration": _digest(fleet),
            "sums": [choice[key] for key in ("cost_usd", "wall_time_s", "energy_j", "power_w")],
            "pareto": [[one["wall_time_s"], one["cost_usd"]] for one in pareto["points"]],
            "alternatives": [one["objective"] for one in document["alternatives"]],
        }
    if command == "case":
        return {
            "quantities": {f"{row['case']}: {row['quantity']}": [row["ours"], row["ok"]] for row in document["rows"]}
        }
    if command == "show":
        rows = document["rows"]
        return {"totals": {row["name"]: [value for key, value in row.items() if key != "name"] for row in rows}}
    assert command == "sweep", command
    keys = {"outcome": "status", "objective_name": "name", "objective": "value", "bound": "bound", "family": "family"}
    return {"rows": [{new: row[old] for old, new in keys.items()} for row in document["rows"]]}


def _proof(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is minimised, how far, and what is proven of it."""
    objective = document["objective"]
    return {
        "status": document["status"],
        "objective": objective["name"],
        "value": objective["value"],
        "bound": objective["bound"],
    }


def _conflict(document: Mapping[str, Any]) -> list[Any]:
    """Return the constraints that conflict, each with how far it would have to give."""
    return [[one["field"], *one["values"]] for one in document.get("relaxations", [])]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


# -- comparing -------------------------------------------------------------------------------------------------------


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return what must not differ and does, and what may: ties, runners-up, the words of a conflict."""
    hard = [
        f"{key}: {before.get(key)} became {now.get(key)}"
        for key in ("exit", "kind", "objective")
        if before.get(key) != now.get(key)
    ]
    if hard:
        return hard, []
    hard += _worse(before, now)
    for number, (one, other) in enumerate(zip(before.get("rows", []), now.get("rows", []), strict=False)):
        hard += [f"row {number}: {line}" for line in _worse(one, other)]
    if len(before.get("rows", [])) != len(now.get("rows", [])):
        hard.append("another number of rows")
    for key in ("prediction", "totals"):
        hard += _unequal(before.get(key), now.get(key), key, _scale(before.get(key)))
    if before.get("quantities"):  # recorded without measured data, with which there are more
        known = {name: value for name, value in now.get("quantities", {}).items() if name in before["quantities"]}
        hard += _unequal(before["quantities"], known, "quantities", 0.0)
    if before.get("status") == "optimal":
        hard += _unequal(before.get("pareto"), now.get("pareto"), "pareto", 0.0)
    soft = [key for key in ("family", "configuration") if before.get(key) != now.get(key)]
    soft += [
        key for key in ("alternatives", "sums", "conflict") if list(_unequal(before.get(key), now.get(key), key, 0.0))
    ]
    return hard, soft


def _worse(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield where an answer is worse: an optimal one is the same, another neither costlier nor proven less."""
    if "status" not in before:
        return
    was, status = before["status"], now["status"]
    if was != status and (was != "feasible" or status != "optimal"):
        yield f"status: {was} became {status}"
    elif before["value"] is not None:
        value, bound = (now[key] / before[key] - 1 if before[key] else now[key] for key in ("value", "bound"))
        if value > SAME or (was == "optimal" and value < -SAME):
            yield f"value: {before['value']!r} became {now['value']!r}"
        if bound < -SAME or now["bound"] > now["value"] * (1 + SAME):
            yield f"bound: {before['bound']!r} became {now['bound']!r}"


def _scale(prediction: Any) -> float:
    """Return against what rounding is judged: parts of a sum may cancel."""
    found = prediction.get("iteration_time_s", 0.0) if isinstance(prediction, Mapping) else 0.0
    return float(found)


def _unequal(before: Any, now: Any, place: str, scale: float) -> Iterator[str]:
    """Yield where two values of any shape differ by more than rounding."""
    if isinstance(before, Mapping) and isinstance(now, Mapping) and before.keys() == now.keys():
        for key in before:
            yield from _unequal(before[key], now[key], f"{place}.{key}", scale)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from _unequal(one, other, f"{place}.{index}", scale)
    elif isinstance(before, float) and isinstance(now, int | float):
        if not math.isclose(before, now, rel_tol=SAME, abs_tol=SAME * scale):
            yield f"{place}: {before!r} became {now!r}"
    elif before != now:
        yield f"{place}: {before!r} became {now!r}"
