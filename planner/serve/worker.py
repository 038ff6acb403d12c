"""The process of one question: it is given a task, and sends progress and the answer through a pipe, as JSON each.

It is killed when its user stops it, or a limit strikes; nothing of it outlives the answer.
"""

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import planner
from planner.answer.comparison import comparison_answer
from planner.answer.documents import error_document
from planner.answer.html import page_of
from planner.answer.parts import yaml_of
from planner.answer.plan import plan_answer
from planner.answer.procurement import procurement_answer
from planner.answer.refusal import refusal_answer
from planner.errors import Fault, InfeasibleError, NoAnswerError, PlannerError, SolverError, SpecError, StoppedError
from planner.importers.kinds import kind_of
from planner.importers.text import read_begin
from planner.memory import OUT_OF_MEMORY, keep_freed, lower_ceiling
from planner.networks import asked, network_of
from planner.planning import view_again, view_of, with_value
from planner.procurement.answer import amount
from planner.procurement.question import load_procurement
from planner.sections import Tiles
from planner.serve.form import UPLOAD, UPLOADED
from planner.words import objective_words, progress_words

Tell = Callable[[Mapping[str, Any]], None]

_EVERY_S = 0.2  # between two lines of progress
_MOST_EXPLAINED_S = 20.0
_KEYS = {"onnx": "onnx", "huggingface": "huggingface"}  # of other kinds of files: profile


def answer_task(task: Mapping[str, object], pipe: Connection) -> None:
    """Answer a task, as a process of its own."""
    if sys.platform != "win32":
        os.setsid()  # what ends it ends what it has started
    if not os.environ.get("PLANNER_DEBUG"):  # what a library prints is for nobody
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path[:] = [os.path.abspath(one) for one in sys.path]  # noqa: PTH100  # never the folder of an uploaded file

    def tell(line: Mapping[str, Any]) -> None:
        pipe.send_bytes(json.dumps(line).encode())

    try:
        tell(_told(task, tell))
    except KeyboardInterrupt:
        tell({"error": {"kind": "stopped", "message": "stopped before any answer was found.", "faults": []}})


def _told(task: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Return the answer, or the error as a document: nothing here leaves as a traceback."""
    lower_ceiling(task["memory_limit_bytes"])
    keep_freed(task["memory_limit_bytes"])
    error: PlannerError
    kind = "bug"
    try:
        _enter(task["folder"])
        return {"answer": answer_of(task, tell)}
    except MemoryError:
        error, kind = NoAnswerError(OUT_OF_MEMORY), "limit"
    except InfeasibleError as caught:
        error, kind = caught, "infeasible"
    except StoppedError as caught:
        error, kind = caught, "stopped"
    except (NoAnswerError, SolverError) as caught:
        error, kind = caught, "limit"
    except PlannerError as caught:
        error, kind = _beside_its_file(caught), "input"
    except Exception as caught:  # a bug of ours: told as the command line does
        error = PlannerError(f"a bug of ours: {type(caught).__name__}: {caught}. Please report it.")
    return {"error": error_document(error, kind=kind)}


def _beside_its_file(error: PlannerError) -> PlannerError:
    """Return an error whose faults of the uploaded file stand at the field of the form that it was chosen in."""
    if not isinstance(error, SpecError) or all(one.file != UPLOADED for one in error.faults):
        return error

    def moved(fault: Fault) -> Fault:
        where = ", ".join((*([f"line {fault.line}"] if fault.line else []), *([fault.field] if fault.field else [])))
        problem = f"{where}: {fault.problem}" if where else fault.problem
        return replace(fault, file="", line=None, column=None, field=f"dnn.{UPLOAD}", problem=problem)

    return SpecError.of([moved(one) if one.file == UPLOADED else one for one in error.faults])


def answer_of(task: Mapping[str, object], tell: Tell = lambda _line: None) -> dict[str, object]:
    """Return what the page shows of an answer, and what it keeps; raises what :mod:`planner.api` does."""
    return _ANSWERS[str(task["kind"])](
        {"changes": [], "changed": [], "has_explanation": False, "memory_limit_bytes": None, **task}, tell
    )


def _enter(folder: str) -> None:
    """Make the folder of the uploaded file the current one.

    Raises
    ------
    SpecError
        If it is gone: later files of the page took its place while the question waited.
    """
    try:
        os.chdir(folder)
    except FileNotFoundError:
        raise SpecError.one("this file is not held here any more.", "Upload it again.", field=f"dnn.{UPLOAD}") from None


class _Progress:
    """Tells bound and incumbent now and then, and keeps how they closed in."""

    def __init__(self, tell: Tell, words: Callable[[float], str]) -> None:
        self._tell, self._words, self._next_s = tell, words, 0.0
        self.history: list[tuple[float, float, int]] = []
        self._number = 0

    def __call__(self, bound: float, incumbent: float, number: int | None = None) -> None:
        self._number = self._number + 1 if number is None else number
        if not self.history or self.history[-1][:2] != (bound, incumbent):
            self.history.append((bound, incumbent, self._number))
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _EVERY_S
            self._tell({"progress": f"best so far {progress_words(bound, incumbent, self._words)}"})


def _with_upload(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return a question whose uploaded file stands under the key of its kind, told by its content alone."""
    given = question.get("dnn", {})
    if UPLOAD not in given:
        return dict(question)
    kind = kind_of(Path(UPLOADED))
    if kind is None and read_begin(Path(UPLOADED)).lstrip().startswith(b"{"):
        kind = "huggingface"  # whose reader says what is wrong with it, or where it is cut off
    if kind is None and not read_begin(Path(UPLOADED)).strip():
        raise SpecError.one("this file is empty.", "Upload another one.", field=f"dnn.{UPLOAD}", value=given[UPLOAD])
    if kind is None:
        problem = "this file is no network that is known here."
        mend = "Upload an ONNX model, a config.json of Hugging Face, or a profile; nothing that has to be run is taken."
        raise SpecError.one(problem, mend, field=f"dnn.{UPLOAD}", value=given[UPLOAD])
    own = {key: value for key, value in given.items() if key != UPLOAD}
    return {**question, "dnn": {_KEYS.get(kind, "profile"): UPLOADED, **own}}


def _question(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is asked: the question of an earlier answer with what was changed, or that of a form."""
    question = _with_upload(task["question"])
    if not task["changes"]:
        return question
    for base in (question, task["resolved"]):  # machines of a testbed stand only in the second
        found = base
        with suppress(LookupError):
            for place, value in task["changes"]:
                found = with_value(found, place, value)
            return found
    raise SpecError("this cannot be changed here. Ask with a form that says it.")


def _command(kind: str, task: Mapping[str, Any]) -> tuple[str, ...]:
    return ("planner", kind, "question.yaml", "--time-limit", f"{task['time_limit_s']:g} s")


def _plan(task: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Answer how to train on given machines."""
    question, seconds = _question(task), task["time_limit_s"]
    problem = planner.load(question)
    progress = _Progress(tell, partial(objective_words, unit=problem.goal.unit))
    tell({"progress": "no plan so far"})
    limit = task["memory_limit_bytes"]
    command = _command("plan", task)
    repeated = _repeated(question, problem.resolved, command)
    try:
        plan = planner.plan(problem, time_limit_s=seconds, memory_limit_bytes=limit, on_progress=progress)
    except (InfeasibleError, NoAnswerError) as error:
        moved = _moved(task, problem.key_assumptions, (), problem.resolved)
        return {**_refused(error, problem.resolved, problem.dnn.name, command), **moved, **repeated}
    network, explanation = network_of(asked(problem), plan.substitutions), None
    if task["has_explanation"]:
        tell({"progress": "what other hardware would bring"})
        explained_s = min(seconds, _MOST_EXPLAINED_S)
        explanation = planner.explain(asked(network), plan, time_limit_s=explained_s, memory_limit_bytes=limit)
    answer = plan_answer(
        plan,
        view_of(network, plan),
        explanation=explanation,
        history=progress.history,
        commands=[(*command, "--out", "plan.json"), ("planner", "explain", "plan.json")],
    )
    return {
        **_shown(answer),
        **_moved(task, problem.key_assumptions, plan.key_assumptions, problem.resolved),
        "objective": {
            "name": plan.goal.field,
            "value": plan.objective,
            "words": objective_words(plan.objective, plan.goal.unit),
        },
        "document": plan.to_dict(),
        **repeated,
    }


def _procure(task: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Answer what to buy or rent."""
    question, today = _question(task), datetime.now(tz=UTC).date()
    read, command = load_procurement(question, today=today), _command("procure", task)
    words = partial(amount, name=read.asked.objective)
    progress, repeated = _Progress(tell, words), _repeated(question, read.resolved, command)
    limits = {"time_limit_s": task["time_limit_s"], "memory_limit_bytes": task["memory_limit_bytes"]}
    try:
        found = planner.procure(question, today=today, on_progress=progress, **limits)
    except (InfeasibleError, NoAnswerError) as error:
        return {**_refused(error, read.resolved, "What to buy or rent", command), "assumptions": [], **repeated}
    answer = procurement_answer(
        found, view_again, history=progress.history, commands=[(*command, "--out", "answer.json")]
    )
    moved: dict[str, Any] = {"assumptions": []}
    if len(found.choice.plans) == 1:  # what was assumed of it its plan's own question says as if it had been asked
        (plan,) = found.choice.plans.values()
        problem = planner.load({**read.jobs[0].question, "cluster": plan.problem["cluster"]})
        assumptions = [one for one in problem.key_assumptions if one.field[0] in ("dnn", "calibration")]
        moved = _moved(task, assumptions, found.choice.key_assumptions, problem.resolved)
    return {
        **_shown(answer),
        **moved,
        "objective": {
            "name": read.asked.objective,
            "value": found.choice.objective,
            "words": words(found.choice.objective),
        },
        "document": found.to_dict(),
        **repeated,
    }


def _compare(task: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Answer what differs between two plans."""
    one, other = task["plans"]
    return _shown(comparison_answer(planner.compare(one, other), ("A", "B")))


_ANSWERS = {"plan": _plan, "procure": _procure, "compare": _compare}


def _refused(
    error: InfeasibleError | NoAnswerError, question: Mapping[str, Any], subject: str, command: Sequence[str]
) -> dict[str, Any]:
    """Return the page of a question without an answer: what conflicts, and what would settle it."""
    if isinstance(error, StoppedError):
        raise error
    return _shown(refusal_answer(error, question, subject=subject, commands=[command]))


def _shown(answer: Any) -> dict[str, Any]:
    """Return what the page shows of an answer, and its report."""
    tiles = [
        tile
        for section in answer.sections
        for block in section.blocks()
        if isinstance(block, Tiles)
        for tile in block.tiles
    ]
    summary = {name: getattr(answer, name) for name in ("title", "answer", "verdict", "mark", "minded")}
    return {**summary, "tiles": tiles[:12], "report": page_of(answer, is_light=True)}


def _moved(task: Mapping[str, Any], assumptions: Any, told: Any, resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was assumed, each with its value and the place that sets it; what the user changed comes first."""
    fields = [
        {**one, "value": _at(resolved, one["place"]), "effect": "", "is_changed": True} for one in task["changed"]
    ]
    places = {tuple(one["place"]) for one in fields}
    for one in assumptions:
        value = _at(resolved, one.field)
        is_plain = isinstance(value, str | int | float) or (value is None and isinstance(one.other, str | int | float))
        like = one.other if value is None else value
        effect = next((line.removeprefix(one.text) for line in told if line.startswith(one.text)), "")
        if one.field in places:
            continue
        fields.append(
            {
                "text": one.text,
                "effect": effect.split("   (")[0].removeprefix("; "),
                "flag": one.flag,
                "place": [*one.field] if is_plain and one.field[-1] != "preset" else None,
                "also": [[*place] for place in one.also],
                "value": value if is_plain else None,
                "like": like if is_plain else None,
                "is_changed": False,
            }
        )
    return {"assumptions": fields}


def _at(tree: Any, place: Any) -> Any:
    """Return what stands at a place, None where nothing does."""
    for key in place:
        if not (isinstance(tree, Mapping) and key in tree) and not (isinstance(tree, list) and key < len(tree)):
            return None
        tree = tree[key]
    return tree


def _repeated(question: Mapping[str, Any], resolved: Mapping[str, Any], command: tuple[str, ...]) -> dict[str, Any]:
    """Return the spec that asks the same, without any other file, and the command."""
    is_uploaded = UPLOADED in question.get("dnn", {}).values()
    text, cut = yaml_of(resolved if is_uploaded else question)
    if cut:  # JSON is YAML, too
        text = json.dumps(resolved if is_uploaded else question, indent=1, ensure_ascii=False)
    return {"question": dict(question), "resolved": dict(resolved), "spec": f"{text}\n", "command": shlex.join(command)}
