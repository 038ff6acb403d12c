"""One question of a sweep and its answer: the same in this process, in another one and on another machine."""

import json
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from enum import StrEnum
from typing import Any

from planner.errors import InfeasibleError, ModelError, NoAnswerError, PlannerError, SolverError, SpecError, is_due_to
from planner.frozen import frozen
from planner.memory import default_limit_bytes
from planner.search import Search
from planner.workers.dask_workers import check_version

_LEVEL = 6  # of compression
# Of a purchase's objectives, as they are told with their unit.
_NAMES = {"cost": "cost_usd", "time": "wall_time_s", "energy": "energy_j", "value_of_time": "cost_with_time_usd"}


class Outcome(StrEnum):
    """What became of a question."""

    OPTIMAL = "optimal"  # proven
    FEASIBLE = "feasible"  # a limit came before the proof; the bound holds
    INFEASIBLE = "infeasible"  # proven that there is no plan
    WRONG = "wrong"  # the question is none
    LIMIT = "limit"  # a limit came before any answer, or a solver's back end failed
    FAILED = "failed"  # a bug, or a process that died of it


@frozen
class Task:
    """A question as plain data."""

    key: str  # digest of question, files, options and version: what is stored under it is its answer
    question: Mapping[str, Any]  # needs no folder
    time_limit_s: float  # of its search
    today: date  # against which the age of prices is told
    # of the process that answers it; None: of what its machine has left, the share of one of ``num_workers``
    memory_limit_bytes: float | None = None
    num_workers: int = 1

    @property
    def most_bytes(self) -> float:
        """Return what the process that answers it may hold."""
        return default_limit_bytes(self.num_workers) if self.memory_limit_bytes is None else self.memory_limit_bytes


@frozen
class Answer:
    """What a question was answered with."""

    key: str
    outcome: Outcome
    document: bytes  # the whole answer as JSON, compressed by zlib; of an error ``planner.error/1``
    wall_s: float = 0.0  # seconds that it took, which is no part of the answer
    # objective_name, objective, bound, gap: of the plan or the fleet, in the unit that the name ends in
    objective_name: str | None = None
    objective: float | None = None
    bound: float | None = None
    gap: float | None = None
    family: str | None = None
    headline: str | None = None
    num_devices: int | None = None
    iteration_time_s: float | None = None
    time_s: float | None = None  # of the whole training: of a purchase its wall time; None where no length is known
    cost_usd: float | None = None
    error: str | None = None


def writable(text: str) -> str:
    r"""Return text with halves of characters, which JSON can name and no file can hold, written out.

    >>> writable("a\ud800")
    'a\\ud800'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def answer(task: Task) -> Answer:
    """Return the answer to a question, whatever comes: errors are answers, too."""
    begin_s = time.perf_counter()
    try:
        found = _purchase(task) if "procure" in task.question else _plan(task)
    except InfeasibleError as error:
        found = _refused(task.key, Outcome.INFEASIBLE, error, "infeasible")
    except (SpecError, ModelError) as error:
        found = wrong(task.key, error)
    except (NoAnswerError, SolverError) as error:
        found = _refused(task.key, Outcome.LIMIT, error, "limit")
    except Exception as error:  # one bug must not stop the other questions
        if is_due_to(error, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        found = failed(task.key, f"a bug of ours: {type(error).__name__}: {error}")
    return replace(found, wall_s=time.perf_counter() - begin_s)


def answer_all(tasks: Sequence[Task], expected: str) -> list[Answer]:
    """Return the answers to several questions, in a process elsewhere.

    Raises
    ------
    VersionError
        If this process runs another version than the one whose answers are expected.
    """
    check_version(expected)
    return [answer(task) for task in tasks]


def wrong(key: str, error: PlannerError) -> Answer:
    """Return the answer to a question that is none."""
    return _refused(key, Outcome.WRONG, error, "input")


def failed(key: str, why: str) -> Answer:
    """Return the answer to a question that could not be answered."""
    return _refused(key, Outcome.FAILED, PlannerError(why), "bug")


def _refused(key: str, outcome: Outcome, error: PlannerError, kind: str) -> Answer:
    """Return an error as an answer."""
    from planner.answer.documents import error_document  # noqa: PLC0415  # late: the parent of many workers answers nothing

    document = _packed(error_document(error, kind=kind))
    return Answer(key=key, outcome=outcome, document=document, error=writable(str(error)))


def _packed(document: Mapping[str, Any]) -> bytes:
    """Return a document as JSON, compressed: equal documents are equal bytes."""
    from planner.answer.documents import finite  # noqa: PLC0415

    text = json.dumps(finite(document), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return zlib.compress(writable(text).encode(), _LEVEL)


def _plan(task: Task) -> Answer:
    """Return the best plan."""
    from planner.planning import plan_of  # noqa: PLC0415
    from planner.question.build import load  # noqa: PLC0415

    found = plan_of(load(task.question), Search(time_limit_s=task.time_limit_s, memory_limit_bytes=task.most_bytes))
    return Answer(
        key=task.key,
        outcome=Outcome(found.status.value),
        document=_packed(found.to_dict()),
        objective_name=found.goal.field,
        objective=found.objective,
        bound=found.bound,
        gap=found.gap,
        family=found.family,
        headline=writable(found.configuration.headline),
        num_devices=getattr(found.configuration, "num_devices", None),
        iteration_time_s=found.prediction.iteration_time_s,
        time_s=found.prediction.training_time_s,
        cost_usd=found.prediction.cost_usd,
    )


def _purchase(task: Task) -> Answer:
    """Return what to buy or rent."""
    from planner.planning import OTHER_FLEETS, plan_of_fleet  # noqa: PLC0415
    from planner.procurement.procure import procure  # noqa: PLC0415
    from planner.procurement.question import load_procurement  # noqa: PLC0415

    asked = load_procurement(task.question, today=task.today)
    search = Search(time_limit_s=task.time_limit_s, memory_limit_bytes=task.most_bytes, num_alternatives=OTHER_FLEETS)
    with search.interruptible():
        found = procure(asked, search, lambda problem, before: plan_of_fleet(problem, search, before))
    document = found.to_dict()
    objective, choice = document["objective"], found.choice
    plans = list(choice.plans.values())
    return Answer(
        key=task.key,
        outcome=Outcome(document["status"]),
        document=_packed(document),
        objective_name=_NAMES.get(objective["name"], objective["name"]),
        objective=objective["value"],
        bound=objective["bound"],
        gap=objective["gap"],
        family=", ".join(dict.fromkeys(plan.family for plan in plans)),
        headline=writable(choice.fleet.headline),
        num_devices=choice.fleet.num_devices,
        iteration_time_s=plans[0].prediction.iteration_time_s if len(plans) == 1 else None,
        time_s=choice.total_wall_s,
        cost_usd=choice.cost_usd,
    )
