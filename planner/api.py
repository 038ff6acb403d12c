"""The product in one line: spec -> problem -> family (cost model x solver) -> plan."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from planner.answer.timeline import MOST_EVENTS, MOST_ITERATIONS, Drawn, Measured, Trace, measured_step, traces_of
from planner.errors import SpecError
from planner.families import FAMILIES
from planner.importers.imported import Imported
from planner.memory import too_many_workers
from planner.networks import asked, network_of
from planner.plan import Configuration, Plan, Prediction
from planner.planning import (
    OTHER_FLEETS,
    as_asked,
    configuration_of,
    plan_of,
    plan_of_document,
    plan_of_fleet,
    planned,
    predicted,
    prediction_of,
    refuse_variant,
    with_left_out,
)
from planner.problem import Problem
from planner.search import Search
from planner.shown import Recorded
from planner.worker_pool import WorkerPool

if TYPE_CHECKING:
    from planner.answer.comparison import Comparison
    from planner.checks import CheckReport
    from planner.explanation import Explanation
    from planner.exporters import Export
    from planner.procurement.answer import Procured
    from planner.procurement.search import OnProgress
    from planner.sweep.engine import Done
    from planner.sweep.swept import Swept

__all__ = [
    "Question",
    "check",
    "compare",
    "configuration_of",
    "explain",
    "export",
    "from_torch",
    "load",
    "measured_step",
    "plan",
    "plan_of_file",
    "predict",
    "predicted",
    "procure",
    "sweep",
    "timeline",
    "with_left_out",
]

DEFAULT_TIME_LIMIT_S = 60.0

Question = Problem | str | Path | Mapping[str, Any]
"""A question: as :func:`load` returns it, or what that reads: a mapping of the keys of a spec, or a file of them."""


def load(question: Question, *, run: str | None = None) -> Problem:
    """Return the problem that a spec file (YAML or JSON), a plan file, or a mapping asks.

    Parameters
    ----------
    question
        In a mapping the cluster and the network may be graphs of networkx. Of the cluster, attributes of a node are the
        keys of a machine, or ``type: switch``, and those of an edge are the keys of a link. Of the network, attributes
        of a node are the keys of a layer, edges lead to the layers that read it, and attributes of the graph are
        further keys of the block.
    run
        The one factory of a PyTorch module, ``package:function``, that ``dnn.torch`` may name: it is code, and runs.

    Raises
    ------
    SpecError
        With every fault of the text in one pass.

    >>> import networkx as nx
    >>> import planner
    >>> network = nx.DiGraph(name="tiny", batch_per_device=256, dataset_samples=50_000)
    >>> network.add_node("image", kind="input", output="600 kB")
    >>> network.add_node("conv", kind="convolution", multiply_adds=2e9, parameters="10 MB", output="3 MB")
    >>> network.add_edge("image", "conv")
    >>> cluster = nx.Graph()
    >>> cluster.add_node("machines", count=4, devices=8, device="rtx-2080-ti", inside="pcie-3-x16")
    >>> cluster.add_node("switch", type="switch")
    >>> cluster.add_edge("machines", "switch", bandwidth="100 Gbit/s", latency="5 us")
    >>> problem = planner.load({"dnn": network, "cluster": cluster})
    >>> len(problem.dnn.layers), problem.cluster.num_devices
    (2, 32)
    """
    from planner.question.build import load as load_problem  # noqa: PLC0415 - takes a while

    return question if isinstance(question, Problem) else load_problem(question, allowed_code=run)


def from_torch(module: object, example: object, *, name: str | None = None) -> Imported:
    """Return the network of a PyTorch module: its layers, parameters, multiply-adds and what it keeps for backward.

    Nothing is computed, and no memory taken: the module runs on the meta device, which knows shapes alone. What is
    returned may stand in a question, ``planner.load({"dnn": found, "cluster": ...})``, or beside other keys,
    ``{"dnn": {"network": found, "batch_per_device": 64}, ...}``.

    Parameters
    ----------
    module
        A ``torch.nn.Module``.
    example
        What it is called with: a tensor, a tuple or a mapping of arguments; the first dimension is the batch.

    Raises
    ------
    SpecError
        If PyTorch is missing, or the module cannot be run on shapes alone.
    """
    from planner.importers.torch_module import from_torch as imported  # noqa: PLC0415  # torch is a large optional part

    return imported(module, example, name=name)


def plan(
    question: Question,
    *,
    num_alternatives: int = 0,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    memory_limit_bytes: float | None = None,
    has_frontier: bool = False,
    prefers_safe: bool = False,
    on_progress: Callable[[float, float], None] | None = None,
    pool: WorkerPool | None = None,
) -> Plan:
    """Return the best plan of all families that the question allows.

    Parameters
    ----------
    question
        As :func:`load` returns or reads it.
    num_alternatives
        How many runners-up in number of devices to rank, beside the other ways to fuse.
    time_limit_s
        Wall-clock limit; when it strikes, the plan is the best so far, with its bound and gap.
    memory_limit_bytes
        What this process may hold; what would exceed it ends the search in the same way. None: a share of what the
        machine has left.
    has_frontier
        Whether the family ``hybrid`` lists, among the alternatives, the fastest layouts of less and less memory.
    prefers_safe
        Whether the recommended plan is the answer, where there is one beside the best: within the known error of that
        one, with less risk, ``feasible`` with its gap (:mod:`planner.recommendation`).
    on_progress
        Called now and then with what no plan beats and the best so far, once there is one.
    pool
        A worker pool that helps, as :func:`planner.workers.worker_pool` gives; the plan is the same.

    Raises
    ------
    InfeasibleError
        If no family has an answer; the message says why, and by how much what would have to give.
    NoAnswerError
        If a limit came before any answer.

    >>> import planner
    >>> question = {"dnn": {"zoo": "resnet50", "batch_per_device": 32}, "cluster": {"preset": "osf-testbed"}}
    >>> found = planner.plan(question, num_alternatives=2)
    >>> found.status.value, found.configuration.headline
    ('optimal', '32 devices (4 machines x 8)')
    >>> [row["name"] for row in found.to_records() if row["family"] == "all_reduce"][-2:]
    ['24 devices on 3 machines', 'one buffer']
    """
    _refuse_odd(time_limit_s, memory_limit_bytes, num_alternatives=num_alternatives)
    problem = load(question)
    search = Search(
        time_limit_s=time_limit_s,
        memory_limit_bytes=memory_limit_bytes,
        num_alternatives=num_alternatives,
        has_frontier=has_frontier,
        on_progress=on_progress,
        pool=pool,
    )
    found = plan_of(problem, search, prefers_safe=prefers_safe)
    return found if pool is None else replace(found, warnings=(*found.warnings, *pool.notes))


def procure(
    question: str | Path | Mapping[str, object],
    *,
    num_alternatives: int = OTHER_FLEETS,
    has_pareto: bool = False,
    is_robust: bool = False,
    has_what_if: bool = False,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    memory_limit_bytes: float | None = None,
    today: date | None = None,
    on_progress: "OnProgress | None" = None,
    pool: WorkerPool | None = None,
) -> "Procured":
    """Return what to buy or rent: the best fleet of machines of a price list, with its plan and its proof.

    Parameters
    ----------
    question
        A spec with a block ``procure``, or a mapping of the same keys.
    has_pareto, has_what_if
        Whether to find all fleets that none beats in time and money; and which changes would change the decision.
    is_robust
        Plan for the pessimistic end of the predictions' known error.
    memory_limit_bytes
        What this process may hold; see :func:`plan`.
    today
        Against which the age of the prices is told; by the clock where it is left out.
    on_progress
        Called now and then with bound, incumbent and number of fleets planned.
    pool
        A worker pool that helps, as :func:`planner.workers.worker_pool` gives; the answer is the same.

    Raises
    ------
    SpecError
        With every fault of the question, or of a price list.
    InfeasibleError
        If no fleet keeps the limits: with what each would have to be.
    NoAnswerError
        If a limit came before any fleet was found.

    >>> from datetime import date
    >>> import planner
    >>> found = planner.procure(
    ...     {
    ...         "dnn": {"zoo": "resnet50", "global_batch": 1024, "epochs": 90},
    ...         "procure": {"deadline": "8 h", "providers": ["lambda"], "as_of": "any"},
    ...         "families": ["all_reduce"],
    ...     },
    ...     today=date(2026, 7, 1),
    ... )
    >>> found.choice.fleet.headline, found.certificate.status.value
    ('1 x gpu_8x_h100_sxm5', 'optimal')
    >>> {row["kind"] for row in found.to_records()} <= {"choice", "alternative"}
    True
    """
    from planner.procurement.procure import procure as procured  # noqa: PLC0415  # late: only a purchase pays for it
    from planner.procurement.question import load_procurement  # noqa: PLC0415

    _refuse_odd(time_limit_s, memory_limit_bytes, num_alternatives=num_alternatives)
    asked_for = load_procurement(question, today=today or datetime.now(tz=UTC).date())
    search = Search(
        time_limit_s=time_limit_s, memory_limit_bytes=memory_limit_bytes, num_alternatives=num_alternatives, pool=pool
    )
    with search.interruptible():
        found = procured(
            asked_for,
            search,
            lambda problem, before: plan_of_fleet(problem, search, before),
            is_robust=is_robust,
            has_pareto=has_pareto,
            has_what_if=has_what_if,
            on_progress=on_progress,
        )
    return found if pool is None else replace(found, warnings=(*found.warnings, *pool.notes))


def sweep(
    question: str | Path | Mapping[str, object],
    *,
    store: str | Path | None = None,
    num_workers: int = 1,
    scheduler: str | None = None,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    memory_limit_bytes: float | None = None,
    is_retried: bool = False,
    today: date | None = None,
    on_progress: "Callable[[Done], None] | None" = None,
) -> "Swept":
    """Return the answers to many variants of a question, of a plan or a purchase, in rows of a table.

    Parameters
    ----------
    question
        A spec with a block ``sweep``, or a mapping of the same keys; the cluster and the network as :func:`load` has
        them.
    store
        SQLite file that keeps every answer: the same call goes on where it was stopped. None: none is kept.
    num_workers, scheduler
        Processes of this machine, one being this one; or the address of a Dask scheduler.
    time_limit_s, memory_limit_bytes
        Of each question; see :func:`plan`.
    is_retried
        Ask those again that failed, or that a limit stopped.
    today
        Against which the age of prices is told; by the clock where it is left out.
    on_progress
        Called often, with how far it is.

    Raises
    ------
    SpecError
        With every fault of the block; if all questions are wrong, or the store fails.
    NoAnswerError
        If the scheduler is gone on the way.

    >>> import planner
    >>> found = planner.sweep({
    ...     "dnn": {"zoo": "resnet50", "batch_per_device": 32},
    ...     "cluster": {"machines": [{"count": 4, "devices": 8, "device": "rtx-2080-ti", "network": "100 Gbit/s"}]},
    ...     "families": ["all_reduce"],
    ...     "sweep": {"vary": {"cluster.machines.0.count": [2, 4]}},
    ... })
    >>> [(row["cluster.machines.0.count"], row["outcome"], row["num_devices"]) for row in found.to_records()]
    [(2, 'optimal', 16), (4, 'optimal', 32)]
    """
    from planner.sweep.question import load_sweep  # noqa: PLC0415  # late: only a sweep pays for it
    from planner.sweep.swept import answered as swept  # noqa: PLC0415

    _refuse_odd(time_limit_s, memory_limit_bytes)
    if scheduler is None and num_workers < 1:
        raise SpecError(f"num_workers: {num_workers} is too small. Give 1 or more; 1 is this process alone.")
    if scheduler is None and (problem := too_many_workers(num_workers)):
        raise SpecError(f"num_workers: {problem}. Give as many or fewer.")
    return swept(
        load_sweep(question, time_limit_s=time_limit_s, memory_limit_bytes=memory_limit_bytes, num_workers=num_workers),
        store=None if store is None else Path(store),
        today=today or datetime.now(tz=UTC).date(),
        scheduler=scheduler,
        is_retried=is_retried,
        on_progress=on_progress or (lambda _done: None),
    )


def predict(question: Question, configuration: Configuration | None = None) -> Prediction:
    """Return what a configuration costs: the one given, or the one in the question.

    Raises
    ------
    SpecError
        If neither is there, or it contradicts the cluster, the network or itself.

    >>> import planner
    >>> found = planner.predict({
    ...     "dnn": {"zoo": "resnet50", "batch_per_device": 32},
    ...     "cluster": {"preset": "osf-testbed"},
    ...     "configuration": {"all_reduce": {"num_devices": 32, "fusion_groups": "one"}},
    ... })
    >>> list(found.breakdown_s)[:3], round(sum(found.breakdown_s.values()) / found.iteration_time_s, 6)
    (['forward', 'backward', 'exposed_all_reduce'], 1.0)
    """
    problem = load(question)
    family, chosen = configuration_of(problem) if configuration is None else as_asked(problem, configuration)
    return prediction_of(problem, family, chosen)


def timeline(
    question: Question,
    family: Plan | str,
    configuration: Configuration | None = None,
    *,
    devices: str | None = "kinds",
    num_iterations: int = 1,
    has_parts: bool = False,
    measured: Path | Measured | None = None,
    most_events: int = MOST_EVENTS,
) -> Trace:
    """Return the schedule of a plan, or of a configuration, as a Chrome trace, for Perfetto.

    Parameters
    ----------
    family, configuration
        A plan alone; or the name of a family, and a configuration of it.
    devices
        ``all``, or ``kinds``: one device of each kind. None: all, if they are 64 or fewer.
    num_iterations
        From 1 to 100.
    has_parts
        Whether the slices inside others are there, and the prediction's terms as a process of their own.
    measured
        A trace of ``torch.profiler`` of one device, or what :func:`measured_step` read from it, whose modules' seconds
        stand beside the predicted ones; compared in ``otherData.measured``.
    most_events
        Beyond which the shortest spans are left out.

    Raises
    ------
    SpecError
        If a parameter is none of these, the schedule has too many tasks to draw, or the measured trace cannot be read.
    """
    if isinstance(family, Plan):
        configuration = configuration or family.configuration
        family = family.family
    draw = timelines(
        question,
        family,
        configuration,
        devices=devices,
        num_iterations=num_iterations,
        has_parts=has_parts,
        measured=measured,
    )
    return draw(most_events)


def timelines(
    question: Question,
    family: str,
    configuration: Configuration | None,
    *,
    devices: str | None,
    num_iterations: int,
    has_parts: bool,
    measured: Path | Measured | None,
) -> Callable[[int], Trace]:
    """Return what gives :func:`timeline` with at most so many events; the schedule is made once."""
    if devices not in (None, "all", "kinds"):
        raise SpecError(f"--trace-devices: {devices!r} is not known. Write all or kinds.")
    if not 1 <= num_iterations <= MOST_ITERATIONS:
        raise SpecError(f"--trace-iterations: {num_iterations} is not from 1 to {MOST_ITERATIONS}.")
    problem, chosen = load(question), cast("Any", configuration)
    if family not in FAMILIES:
        raise SpecError(f"{family!r} is no family. Give one of {', '.join(FAMILIES)}.")
    if configuration is None:
        raise SpecError(f"{family!r} stands without a configuration. Give one beside it, or a plan alone.")
    if (its_own := as_asked(problem, chosen)[0]) != family:
        raise SpecError(f"this is a configuration of {its_own}, not of {family}. Name its own family.")
    schedule = FAMILIES[family].timeline(problem, chosen, num_iterations=num_iterations)
    return traces_of(
        schedule,
        FAMILIES[family].predict(problem, chosen),
        Drawn(devices=devices, num_iterations=num_iterations, has_parts=has_parts),
        about={"family": family, "configuration": configuration.headline},
        measured=measured_step(measured) if isinstance(measured, Path) else measured,
    )


def check(question: Question, plan: Plan | Mapping[str, object]) -> "CheckReport":
    """Return what is right and wrong about a plan of a question, recomputed from the plan alone; see planner.checks.

    Raises
    ------
    SpecError
        If a document is given that is no plan.

    >>> import planner
    >>> problem = planner.load({"dnn": {"zoo": "resnet50"}, "cluster": {"preset": "osf-testbed"}})
    >>> planner.check(problem, planner.plan(problem)).is_ok
    True
    """
    from planner.checks import check as check_plan  # noqa: PLC0415  # late: a plan does not pay for it

    if not isinstance(plan, Plan | Mapping):
        raise SpecError(f"check takes a plan as planner.plan returns it, or its to_dict(), not {type(plan).__name__}.")
    return check_plan(load(question), plan)


def explain(
    question: Question,
    plan: Plan | None = None,
    *,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    memory_limit_bytes: float | None = None,
) -> "Explanation":
    """Return why the best plan of a question, or a given plan of it, is as it is, and what other hardware would bring.

    Parameters
    ----------
    plan
        Of this question; where there is none, it is planned first, in at most half of the time.
    memory_limit_bytes
        What this process may hold; see :func:`plan`.

    Raises
    ------
    InfeasibleError, NoAnswerError
        If there is no plan to explain.

    >>> import planner
    >>> question = {"dnn": {"zoo": "vgg16"}, "cluster": {"preset": "osf-testbed"}, "families": ["all_reduce"]}
    >>> first = planner.explain(question).sensitivities[0]
    >>> first.words, round(first.saving, 2)
    ('a network twice as fast', 0.43)
    """
    from planner.explanation import explain as explained  # noqa: PLC0415  # late: a plan does not pay for it

    _refuse_odd(time_limit_s, memory_limit_bytes)
    if not isinstance(plan, Plan | None):
        raise SpecError(f"explain takes a plan as planner.plan returns it, not {type(plan).__name__}. Or leave it out.")
    problem = load(question)
    refuse_variant(problem)
    search = Search(time_limit_s=time_limit_s, memory_limit_bytes=memory_limit_bytes)
    with search.interruptible():  # one search for all: an interruption of the plan leaves out the questions after it
        chosen = planned(asked(problem), search.part(time_limit_s / 2, num_alternatives=1)) if plan is None else plan
        return explained(problem, chosen, search)


def compare(
    one: "Plan | Procured | str | Path | Mapping[str, object]",
    other: "Plan | Procured | str | Path | Mapping[str, object]",
) -> "Comparison":
    """Return what differs between two plans, given themselves, as documents or as files of ``planner plan --out``.

    Two answers to questions of purchases are compared by what was minimised there, such as their cost.

    Raises
    ------
    SpecError
        If one of them is no plan.

    >>> import planner
    >>> slow, fast = (
    ...     planner.plan({
    ...         "dnn": {"zoo": "vgg16", "batch_per_device": 32},
    ...         "cluster": {"machines": [{"count": 4, "devices": 8, "device": "rtx-2080-ti", "network": network}]},
    ...         "families": ["all_reduce"],
    ...     })
    ...     for network in ("10 Gbit/s", "100 Gbit/s")
    ... )
    >>> found = planner.compare(slow, fast)
    >>> found.better, found.saving > 0.5  # the second one, by over half of the first one's epoch
    (1, True)
    """
    from planner.answer.comparison import compare as compared  # noqa: PLC0415  # late: a plan pays for neither
    from planner.answer.plan_file import purchase_of, read_plan  # noqa: PLC0415

    first, second = (each.to_dict() if isinstance(each, Recorded) else _document_of(each) for each in (one, other))
    return compared(read_plan(first), read_plan(second), purchases=(purchase_of(first), purchase_of(second)))


def export(
    plan: Plan | str | Path | Mapping[str, object],
    target: str,
    *,
    script: str | None = None,
    image: str | None = None,
    program: str | None = None,
    name: str | None = None,
) -> "Export":
    """Return the launch files of a plan, given itself, as a document or as a file of ``planner plan --out``.

    The answer to a question of a purchase that holds one plan will do, too; its offers then say where to start it.

    Parameters
    ----------
    target
        Of :data:`planner.exporters.TARGETS`: ddp, horovod, deepspeed, accelerate, megatron,
        megatron-bridge, primus, torchtitan, maxtext, tfjob, pytorchjob, trainjob, slurm or skypilot.
    script
        The training program with its arguments, as on a command line.
    image
        Of a container, where the target starts containers.
    program
        The target that trains, where ``target`` only starts machines.
    name
        Of the job.

    Raises
    ------
    SpecError
        If it is no plan, there is no such target, or a text cannot be a command line.
    InfeasibleError
        If the target cannot run the plan; the message names those that can.

    >>> import planner
    >>> found = planner.plan(planner.load({"dnn": {"zoo": "resnet50"}, "cluster": {"preset": "osf-testbed"}}))
    >>> list(planner.export(found, "ddp").files)
    ['launch.sh', 'planned_ddp.py', 'planned_ddp.json']
    """
    from planner.answer.plan_file import purchase_of, read_plan  # noqa: PLC0415
    from planner.exporters import Job, Settings, advised, target_of  # noqa: PLC0415  # late: only an export pays for it

    target = target_of(target)  # before a file is read
    source = plan if isinstance(plan, Plan) else _document_of(plan)
    problem, found = plan_of_document(read_plan(source.to_dict() if isinstance(source, Plan) else source))
    settings = Settings(script=script, image=image, program=program, name=name)
    purchase = None if isinstance(source, Plan) else purchase_of(source)
    offers = () if purchase is None else tuple(purchase["choice"]["fleet"])
    chosen = network_of(problem, found.substitutions)
    return advised(target, Job(problem=chosen, plan=found, settings=settings, offers=offers))


def plan_of_file(path: Path) -> tuple[Problem, Plan]:
    """Return the question and the plan that a file of ``planner plan --out`` holds, its prediction computed anew.

    Where its figures contradict the cost model, or each other, nothing that it calls proven is taken over: its bound is
    then 0, and a warning says why. That nothing beats a bound without contradiction only a new search can show.

    Raises
    ------
    SpecError
        If the file is no plan.
    """
    from planner.answer.plan_file import read_plan  # noqa: PLC0415  # late: a plan does not pay for it

    return plan_of_document(read_plan(path))


def _document_of(plan: object) -> Path | Mapping[str, Any]:
    """Return the document of a plan, or its file; raise SpecError where it can be neither."""
    if isinstance(plan, Mapping):
        return plan
    if isinstance(plan, str | os.PathLike):
        return Path(plan)
    what = "what planner.plan returns, its to_dict(), or a file of `planner plan --out`"
    raise SpecError(f"a plan is {what}, not {type(plan).__name__}. Give one of these.")


def _refuse_odd(time_limit_s: object, memory_limit_bytes: object, num_alternatives: object = 0) -> None:
    """Raise SpecError for limits that are none, as text with a unit or less than 0, and for too few alternatives."""
    for name, value in (("time_limit_s", time_limit_s), ("memory_limit_bytes", memory_limit_bytes)):
        if value is not None and not isinstance(value, Real):
            raise SpecError(
                f"{name}: {value!r} is no number. Give it without a unit: the name of the parameter has it."
            )
        if value is not None and not float(value) >= 0:
            raise SpecError(f"{name}: {value} is no limit. Give 0 or more, or math.inf.")
    if not isinstance(num_alternatives, Integral):
        raise SpecError(f"num_alternatives: {num_alternatives!r} is no whole number. Give 0 or more.")
    if num_alternatives < 0:
        raise SpecError(f"num_alternatives: {num_alternatives} is too small. Give 0 or more.")
