"""The search of the family ``model_replicas``: the scalability optimiser of the Adam paper, with a proof.

Variables: N_ps servers, N_mr replicas of N_wr workers each; for every layer partitions P, layer replicas R, threads H,
and the worker of every segment. Objective: the goal's seconds (``T_epoch`` with ``serialised`` reading, the same again
for writing, or the input, whichever is longer). Constraints: C1 ``N_ps + N_mr N_wr <= N``; C2 ``H <= K``; C3 the
segments of a layer are on different workers, hence ``P R <= N_wr``; C4 the threads of a segment are on one worker; and
every worker holds what its segments keep (:mod:`planner.models.replica_memory`).

Three nested steps, none of which loses anything where memory is ample; where it is not, what fits is searched for in
:mod:`planner.families.model_replicas.memory`, exactly where layers have few choices, else with a gap:

* *Settings* (N_mr, N_wr, with the best N_ps; :mod:`planner.families.model_replicas.layers`) are solved in the order
  of a lower bound until the next bound is no better than the incumbent.
* *Layers*: a dynamic programme over the states (P, R, H) of each layer (:mod:`planner.solvers.chain`); threads
  that are never best, in seconds or, where memory is tight, in seconds and bytes, are left out
  (:func:`planner.models.replicas.worthwhile_threads`).
* *Maps*: for each pair of states of neighbours the best matching of their segments, forward and backward phase together
  (:func:`planner.solvers.matching.two_phase_assignment`), which depends on no other layer
  (:mod:`planner.models.replicas` has the proof).

One more reduction: where the batch is fixed, N_mr replicas of N_wr workers are no better than ``N_mr / d`` replicas of
``d N_wr`` workers for any divisor d. Replicate every layer d times as often: replica r of N_mr copies becomes layer
replicas ``r, r + d, ..``, which meet each other and nobody else's; computation, messages and memory are the same, an
exchange (a write and a read) carries d times the bytes and comes d times as seldom (the share of the batch that is left
over by rounding makes it no worse). So asynchrony alone gains nothing under this cost model, and of equal answers the
one with the fewest replicas, which is the least stale, is given. It does not hold where a replica exchanges after a
number of samples of its own (``batch_per_device`` beside ``max_global_batch``). Where memory is tight, both are tried.

Source: F. Yan, O. Ruwase, Y. He and T. Chilimbi, KDD 2015, doi:10.1145/2783258.2783270, section 5.
"""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import isqrt

from planner.errors import InfeasibleError, NoAnswerError, SpecError
from planner.families.answer import TOO_SHORT, alternative_of, plan_of
from planner.families.model_replicas.cost import (
    NAME,
    ReplicaChoice,
    exchange_parts_s,
    group_of,
    memory_limit_bytes,
    memory_of,
    model_of,
    threads_of,
)
from planner.families.model_replicas.family import NOT_MODELLED, explain, predicted
from planner.families.model_replicas.layers import (
    Layers,
    Setting,
    are_few,
    bound_of,
    can_be_told,
    fixed_of_goal,
    is_asynchronous_allowed,
    most_devices,
    most_machines,
    most_workers_of_tables,
    objective_of,
    samples_of_goal,
    settings_of,
    some_settings_of,
    table_bytes,
    why_nothing_fits,
)
from planner.families.model_replicas.memory import Fitting, num_threads_of
from planner.families.parsing import check_inner_links
from planner.models.replica_segments import LayerChoice, ReplicaConfiguration, SegmentWork
from planner.models.replicas import ReplicaModel
from planner.plan import Alternative, Plan, Prediction
from planner.problem import Problem
from planner.search import Search
from planner.solution import SAME, Status
from planner.solvers.matching import greedy_assignment, sum_assignment
from planner.units import Dimension, format_human

# --- What no plan of the family ``model_replicas`` beats, in a closed form: for a ranking that never came to ask it
# Of M machines at most ``T = M - 1`` train, and at most ``M / 2`` pairs of a worker and a server exchange weights at
# the
# same time. An epoch of S samples in batches of at most B hence takes no less than the sum of
#
# * ``S / T`` times the computation of a sample on one worker with the best number of threads: the slowest of P segments
# has at least 1 / P of a phase, and a layer runs on ``P R N_mr <= T`` segments at a time;
# * ``S / B`` times one write and one read of all weights over ``M / 2`` links, with the latency, the start-up and the
# optimiser's step of one exchange: there are S / B exchanges or more.
#
# Messages between workers, input, memory, and that a layer cannot be cut into any number of stripes are left out.

_EXACT = 1 - 1e-9  # sums of seconds are rounded; a bound stays below them


def least_objective(problem: Problem, model: ReplicaModel | None = None) -> float:
    """Return an objective that no plan of the family beats, in the goal's unit; 0 where the family does not apply.

    ``model``: that of the question, where it has been made already.
    """
    try:
        model, machines, devices = model or model_of(problem), most_machines(problem), most_devices(problem)
        exchange_s = sum(exchange_parts_s(problem).values())
    except SpecError:
        return 0.0
    if machines < 2 or devices < 1:
        return 0.0
    threads = threads_of(problem)
    constants = model.constants
    busy = min(constants.interference(number) / number for number in threads)
    size_bytes = sum(stage.num_weights for stage in model.stages) * constants.number_bytes
    exchange_s += 2 * size_bytes / (constants.bandwidth_bytes_per_s * (machines // 2))
    samples, exchanges = _samples_and_exchanges(problem)
    return (samples * busy * _sample_s(problem, model) / devices + exchanges * exchange_s) * _EXACT


def _sample_s(problem: Problem, model: ReplicaModel) -> float:
    """Return the least seconds of computation of a sample on one thread, whatever the layers' partitions."""
    work, table = model.work, problem.calibration.multiply_add_s
    if table:  # smaller segments may be faster: as if all were as fast as the fastest
        least_s = min(seconds for _, seconds in table)
        work = SegmentWork(work.stages, replace(model.constants, multiply_add_s=lambda _size, _partitions: least_s))
    phases = (work.forward_s, work.backward_s, work.update_s)
    first: dict[int, int] = {}  # of every kind of layers
    number = Counter(first.setdefault(work.alike(index), index) for index in range(len(work.stages)))
    return sum(many * float(phase(index, 1)[0]) for index, many in number.items() for phase in phases)


def _samples_and_exchanges(problem: Problem) -> tuple[float, float]:
    """Return the fewest samples and exchanges of a replica that the goal counts."""
    training = problem.training
    if problem.goal.name == "iteration_time":
        return float(training.fixed_batch_size or 1), 1.0
    epochs = (training.epochs or 1.0) if problem.goal.name == "training_time" else 1.0
    samples = (training.dataset_samples or 0) * epochs
    most = training.fixed_batch_size or training.max_global_batch_size
    return samples, 0.0 if most is None else samples / most


# --- The paper's search space, as in its figure 15: every setting with uniform layers; and the paper's rule for maps
# Uniform: every layer is partitioned over all workers of a replica, none is replicated, all machines left are servers.

_MOST_LAYERS_OF_FIRST = 200  # numbers of partitions times kinds of layers that a first choice looks at
_MOST_PARTITIONS_OF_FIRST = 256


def search_space(
    problem: Problem, num_workers: Sequence[int] | None = None, *, model: ReplicaModel | None = None
) -> list[tuple[ReplicaChoice, float]]:
    """Return every setting with uniform layers and its objective, in the goal's unit.

    Parameters
    ----------
    num_workers
        The workers of a replica to consider, ``(1, 2, 4)`` in the paper; None for all.
    model
        That of the question, where it has been made already.

    Notes
    -----
    The settings are those that a plan may choose from, with the most threads, less those whose workers do not hold
    them. Layers of one number of workers are costed once: N_mr only divides them.

    >>> import planner
    >>> problem = planner.load({
    ...     "dnn": {"zoo": "adam-mnist", "global_batch": 1400},
    ...     "cluster": {"preset": "adam-20"},
    ...     "families": ["model_replicas"],
    ... })
    >>> space = search_space(problem, (1, 2, 4))
    >>> len(space), min(space, key=lambda row: row[1])[0].headline
    (32, '...')
    """
    model, threads = model or model_of(problem), threads_of(problem)[-1]
    memory, limit_bytes = memory_of(problem, model), memory_limit_bytes(problem)
    kinds = _kinds(model)
    is_ample = memory.most_bytes(threads) <= limit_bytes
    size_bytes = sum(stage.num_weights for stage in model.stages) * model.constants.number_bytes
    sample_s: dict[int, float] = {}  # inf where it does not fit
    rows = []
    for setting in settings_of(problem):
        workers = setting.num_workers
        if num_workers is not None and workers not in num_workers:
            continue
        choice = _uniform(model, setting, threads)
        if workers not in sample_s:
            per_sample_s = (number * model.layer_time(one, choice.configuration).per_sample_s for one, number in kinds)
            seconds = sum(per_sample_s) * setting.num_replicas
            fits = is_ample or memory.fullest(choice.configuration.layers, workers).total_bytes(1) <= limit_bytes
            sample_s[workers] = seconds if fits else float("inf")
        if sample_s[workers] < float("inf"):
            exchange_s = setting.price_s_per_byte(model.constants.bandwidth_bytes_per_s) * size_bytes
            rows.append((choice, objective_of(problem, setting, sample_s[workers] + exchange_s)))
    return rows


def first_choice(
    problem: Problem, model: ReplicaModel, settings: Sequence[Setting], search: Search
) -> ReplicaChoice | None:
    """Return the best of some settings with equal layers, all replicated or all cut into stripes; None if none fits.

    An answer for a search that may not come to its own. Layers that are replicated alike meet on their own workers
    alone: R replicas take 1 / R of the time of one, and each worker holds the whole network, so that one worker tells
    what any number of them do. Stripes are tried on few workers.
    """
    memory, limit_bytes = memory_of(problem, model), memory_limit_bytes(problem)
    kinds, stages = _kinds(model), model.stages
    size_bytes = sum(stage.num_weights for stage in stages) * model.constants.number_bytes
    sizes = {1, *(one.num_workers for one in settings if one.num_workers <= _MOST_PARTITIONS_OF_FIRST)}
    if len(sizes) * len(kinds) > _MOST_LAYERS_OF_FIRST:
        sizes = {1}
    times_s: dict[tuple[int, int], float] = {}  # a sample, of those that fit, by partitions and threads
    for partitions, threads in product(sorted(sizes), {threads_of(problem)[0], threads_of(problem)[-1]}):
        layers = (LayerChoice.spread(partitions, num_threads=threads),) * len(stages)
        one = ReplicaConfiguration(num_servers=1, num_replicas=1, num_workers=partitions, layers=layers)
        if times_s and search.is_over:
            break
        if memory.fullest(layers, partitions).total_bytes(1) <= limit_bytes:
            seconds = sum(number * model.layer_time(layer, one).per_sample_s for layer, number in kinds)
            times_s[partitions, threads] = seconds
    best: tuple[float, Setting, tuple[int, int, int]] | None = None
    for setting in settings:
        price = setting.price_s_per_byte(model.constants.bandwidth_bytes_per_s)
        for (partitions, threads), seconds in times_s.items():
            copies = setting.num_workers if partitions == 1 else 1
            if partitions * copies == setting.num_workers:
                objective = objective_of(problem, setting, seconds / copies + price * size_bytes * copies)
                if best is None or objective < best[0]:
                    best = objective, setting, (partitions, copies, threads)
    if best is None:
        return None
    _, setting, (partitions, copies, threads) = best
    layer = LayerChoice.spread(partitions, num_threads=threads, num_replicas=copies)
    chosen = ReplicaConfiguration(
        num_servers=setting.num_servers,
        num_replicas=setting.num_replicas,
        num_workers=setting.num_workers,
        layers=(layer,) * len(stages),
    )
    return ReplicaChoice(configuration=chosen, samples_per_read=setting.samples_per_read)


def search_space_csv(problem: Problem, num_workers: Sequence[int] | None = None) -> str:
    """Return :func:`search_space` as a table: workers, replicas, servers and the goal, a row each."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["num_workers_per_replica", "num_replicas", "num_parameter_servers", problem.goal.field])
    for choice, objective in search_space(problem, num_workers):
        chosen = choice.configuration
        table.writerow([chosen.num_workers, chosen.num_replicas, chosen.num_servers, repr(objective)])
    return text.getvalue()


def _kinds(model: ReplicaModel) -> list[tuple[int, int]]:
    """Return one layer of every kind, and how many are alike: in a uniform configuration they cost the same."""
    kinds: dict[tuple[int, bool], list[int]] = {}
    for index in range(len(model.stages)):
        kinds.setdefault((model.work.alike(index), index == 0), []).append(index)
    return [(some[0], len(some)) for some in kinds.values()]


def _uniform(model: ReplicaModel, setting: Setting, num_threads: int) -> ReplicaChoice:
    """Return the uniform configuration of a setting."""
    configuration = ReplicaConfiguration.uniform(
        num_workers=setting.num_workers,
        num_replicas=setting.num_replicas,
        num_servers=setting.num_servers,
        num_threads=num_threads,
        num_layers=len(model.stages),
    )
    return ReplicaChoice(configuration=configuration, samples_per_read=setting.samples_per_read)


# -- the paper's rule for maps ---------------------------------------------------------------------------------------


def sum_rule(model: ReplicaModel, layers: Sequence[LayerChoice]) -> tuple[LayerChoice, ...]:
    """Return the same layers, mapped so that each receives the fewest remote activations in sum (section 5.3).

    Each segment on the worker where it receives least; on a conflict the assignment of least sum. A layer lasts as long
    as its slowest segment, which this rule does not look at.
    """
    mapped: list[LayerChoice] = []
    made: dict[tuple[int, LayerChoice, LayerChoice], LayerChoice] = {}
    for index, layer in enumerate(layers):
        if index == 0:
            mapped.append(layer)
            continue
        key = (model.work.alike(index), mapped[-1], layer)
        if key not in made:  # equal layers are mapped once
            made[key] = _by_sum(model, index, mapped[-1], layer)
        mapped.append(made[key])
    return tuple(mapped)


def _by_sum(model: ReplicaModel, index: int, before: LayerChoice, layer: LayerChoice) -> LayerChoice:
    """Return a layer, mapped by the sum of what its segments receive from the layer before."""
    num_places = 1 + max(worker for one in (before, layer) for row in one.workers for worker in row)
    needed = model.work.boundary(index, before.num_partitions, layer.num_partitions).needed
    cost = [[0.0] * num_places for _ in range(num_places)]  # rows beyond the segments take what is left
    for row, (r, p) in enumerate((r, p) for r in range(layer.num_replicas) for p in range(layer.num_partitions)):
        cost[row] = _received(needed[p].tolist(), r, layer.num_replicas, before, num_places)
    found = greedy_assignment(cost) if row + 1 == num_places else sum_assignment(cost)
    found = found if found.value is not None else sum_assignment(cost)
    assert found.value is not None  # costs are finite: there is an assignment
    places = iter(found.value)
    rows = tuple(tuple(next(places) for _ in range(layer.num_partitions)) for _ in range(layer.num_replicas))
    return replace(layer, workers=rows)


def _received(needed: Sequence[int], r: int, num_replicas: int, before: LayerChoice, num_places: int) -> list[float]:
    """Return what a segment of layer replica r receives of a sample, on average, on every worker."""
    steps = range(r, num_replicas * before.num_replicas, num_replicas)
    costs = [float(sum(needed))] * num_places
    for k in steps:
        for q, worker in enumerate(before.workers[k % before.num_replicas]):
            costs[worker] -= needed[q] / len(steps)
    return costs


_SETTINGS_AT_ONCE = 1_024  # that are made between two readings of the clock
_FEW_WORKERS = 4_096
_LARGE = 20_000  # layers times workers: beyond, an answer is made before anything is searched
_MOST_MACHINES_OF_SPACE = 64  # up to which uniform layers and the paper's maps are told with the plan
_TIE = SAME / 2  # a bound this close need not be beaten, and the gap still counts as closed
_Space = Sequence[tuple[ReplicaChoice, float]]
_ASYNCHRONOUS = (
    "replicas train asynchronously on weights of unbounded staleness; how many more epochs that takes is not modelled"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A setting with the lower bound of its objective."""

    setting: Setting
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A solved setting."""

    setting: Setting
    configuration: ReplicaChoice
    prediction: Prediction
    objective: float


def plan(problem: Problem, search: Search) -> Plan:
    """Return the best plan of this family, and as many runners-up in servers, replicas and workers as asked for.

    Raises
    ------
    InfeasibleError
        If the question is none for this family, or no numbers of machines meet its limits; the message says why.
    NoAnswerError
        If the time limit struck before the first setting was solved, or nothing was found to fit in memory and it is
        not proven that nothing does.
    """
    try:
        check_inner_links(problem, NAME)
        model = model_of(problem)
        is_whole = are_few(problem)
        threads = threads_of(problem)
        settings: list[Setting] = []
        for one in settings_of(problem) if is_whole else some_settings_of(problem):
            if settings and not len(settings) % _SETTINGS_AT_ONCE and search.is_over:
                is_whole = False
                break
            settings.append(one)
    except SpecError as error:  # of a question, not of a given configuration: this family has no answer to it
        raise InfeasibleError(f"No plan fits: {_reason(error)}") from None
    if not settings and is_whole:
        raise InfeasibleError(why_nothing_fits(problem))
    num_threads = num_threads_of(problem, model, threads)
    most = most_workers_of_tables(model, num_threads, max((one.num_workers for one in settings), default=1))
    kept = [one for one in settings if one.num_workers <= most]
    is_whole = is_whole and len(kept) == len(settings)
    what = f"a table of {len(model.stages):,} layers x {most:,} workers of a replica"
    search.reserve(table_bytes(model, num_threads, most), what)
    is_large = not is_whole or len(model.stages) * most > _LARGE
    first = _first(problem, model, settings, search) if is_large else None
    try:
        if not kept:
            raise NoAnswerError(_too_many(problem, most))
        layers = Layers(model, threads, most, is_over=lambda: is_large and search.is_over)
        return _searched(problem, layers, kept, search, first, is_whole=is_whole)
    except InfeasibleError as error:
        if is_whole:
            raise
        raise NoAnswerError(f"{error} {_too_many(problem, most)}") from None
    except NoAnswerError:
        if first is None:
            raise
        return _plan_of_first(problem, model, first)


def _searched(
    problem: Problem,
    layers: Layers,
    settings: Sequence[Setting],
    search: Search,
    first: _Found | None,
    *,
    is_whole: bool,
) -> Plan:
    """Return the best plan of some settings; ``is_whole``: of all that there are."""
    model, num_settings = layers.model, len(settings)
    fitting = Fitting(problem, layers, threads_of(problem))
    settings = _that_may_fit(model, fitting, settings, search)
    keep_equals = search.num_alternatives > 0 or not fitting.is_ample
    candidates, other_bound = _candidates(problem, fitting.layers, settings, search, keep_equals=keep_equals)
    if not is_whole:
        other_bound = min(other_bound, least_objective(problem, model))
    is_cut = other_bound < float("inf")
    found, bound, num_solved = _search(problem, fitting, candidates, search, first, is_cut=is_cut)
    best = _least_stale(found)
    others = [one for one in found if one is not best][: search.num_alternatives]
    is_small = group_of(problem).count <= _MOST_MACHINES_OF_SPACE and not (first is not None and search.is_over)
    space = search_space(problem, model=model) if is_small else []
    return plan_of(
        problem,
        family=NAME,
        configuration=best.configuration,
        prediction=best.prediction,
        bound=min(bound, other_bound, best.objective),
        explanation=_why(problem, best, num_settings, num_solved, space, is_whole=is_whole),
        alternatives=[*_other_ways(problem, fitting, best, space, search), *_others(best, others)],
        warnings=[_ASYNCHRONOUS] if best.setting.num_replicas > 1 else [],
        not_modelled=NOT_MODELLED,
        solver="bounded enumeration x dynamic programme over layers x bottleneck assignment",
        num_candidates=num_settings,
        num_solved=num_solved,
    )


def _first(problem: Problem, model: ReplicaModel, settings: Sequence[Setting], search: Search) -> _Found | None:
    """Return an answer for a search that may be ended before its own, and name it to the search.

    On few workers first: to write down the places of a million takes seconds.
    """
    first: _Found | None = None
    for most in (_FEW_WORKERS, float("inf")):
        some = [one for one in settings if one.num_workers <= most and can_be_told(model, one.num_workers)]
        choice = first_choice(problem, model, some, search)
        if choice is None or (first is not None and search.is_over):
            continue
        one = choice.configuration
        setting = Setting(
            num_servers=one.num_servers,
            num_replicas=one.num_replicas,
            num_workers=one.num_workers,
            samples_per_read=choice.samples_per_read,
        )
        if first is None or first.setting != setting:
            found = _found(problem, model, setting, one)
            if first is None or found.objective < first.objective:
                first = found
                search.keep(lambda best=found: _plan_of_first(problem, model, best))  # type: ignore[misc]
    return first


def _plan_of_first(problem: Problem, model: ReplicaModel, first: _Found) -> Plan:
    """Return the plan of what was found before a limit ended the search."""
    lines = [*explain(problem, first.configuration, first.prediction), "a limit came before more was compared"]
    return plan_of(
        problem,
        family=NAME,
        configuration=first.configuration,
        prediction=first.prediction,
        bound=min(least_objective(problem, model), first.objective),
        explanation=lines,
        warnings=[_ASYNCHRONOUS] if first.setting.num_replicas > 1 else [],
        not_modelled=NOT_MODELLED,
        solver="bounded enumeration x dynamic programme over layers x bottleneck assignment",
    )


def _too_many(problem: Problem, most: int) -> str:
    """Return that not all settings were looked at, and what to pin."""
    return (
        f"Of the settings of up to {group_of(problem).count:,} machines some were looked at, with up to {most:,} "
        f"workers of a replica. Pin fix.num_replicas or fix.num_workers_per_replica, or allow fewer machines."
    )


def _reason(error: SpecError) -> str:
    """Return what is wrong with the question, without the keys of a given configuration."""
    texts = (
        fault.problem if fault.field.startswith("configuration") else f"{fault.problem} {fault.mend}".rstrip()
        for fault in error.faults
    )
    return " ".join(texts) or str(error)


def _that_may_fit(model: ReplicaModel, fitting: Fitting, settings: Sequence[Setting], search: Search) -> list[Setting]:
    """Return the settings that are not proven to need too much memory; raise InfeasibleError if there are none."""
    kept = [one for one in settings if fitting.may_fit(one.num_workers)]
    if not kept:
        widest = max(settings, key=lambda one: one.num_workers)
        price = widest.price_s_per_byte(model.constants.bandwidth_bytes_per_s)
        raise fitting.why_nothing_fits(widest.num_workers, price, lambda: search.is_over)
    return kept


def _candidates(
    problem: Problem, layers: Layers, settings: Sequence[Setting], search: Search, *, keep_equals: bool
) -> tuple[list[_Candidate], float]:
    """Return the settings that may be best, in the order of their bounds; of equal bounds the least stale first.

    And a bound on those that are left out where half of the time is over, the rest being for solving: settings are
    asked from coarse to fine, every 4,096th, then those half-way between them, and so on, so that the best of those
    asked by then is a fair one.
    """
    by_numbers = {(one.num_replicas, one.num_workers): one for one in settings}
    rows: list[_Candidate] = []
    other_bound = float("inf")
    asking = search.part(search.left_s / 2)
    for number in sorted(range(1, len(settings) + 1), key=lambda number: -(number & -number)):
        one = settings[number - 1]
        if rows and asking.is_over:
            other_bound = least_objective(problem, layers.model)
            break
        if keep_equals or not _is_matched(one, by_numbers):
            rows.append(_Candidate(setting=one, bound=bound_of(problem, layers.model, layers, one)))
    rows.sort(key=lambda one: (one.bound, one.setting.num_replicas, one.setting.num_workers))
    return rows, other_bound


def _is_matched(setting: Setting, others: dict[tuple[int, int], Setting]) -> bool:
    """Whether a setting with fewer replicas of more workers each is as good, see the head of this module."""
    replicas = setting.num_replicas
    for fewer in _divisors(replicas):
        other = others.get((fewer, setting.all_workers // fewer)) if fewer < replicas else None
        if other is None or other.num_servers != setting.num_servers:
            continue
        if other.samples_per_read * fewer >= setting.samples_per_read * replicas:
            return True
    return False


@cache
def _divisors(number: int) -> tuple[int, ...]:
    """Return what divides a number."""
    small = [one for one in range(1, isqrt(number) + 1) if number % one == 0]
    return tuple(sorted({*small, *(number // one for one in small)}))


def _search(
    problem: Problem,
    fitting: Fitting,
    candidates: Sequence[_Candidate],
    search: Search,
    first: _Found | None,
    *,
    is_cut: bool,
) -> tuple[list[_Found], float, int]:
    """Return what may be ranked, the best first, a bound on everything else, and how many settings were solved.

    ``first``: what is known already, in case nothing better is found. ``is_cut``: not all candidates are there, so that
    nothing is known of what none of them can do.
    """
    model = fitting.layers.model
    found: list[_Found] = []
    bound = float("inf")
    num_solved = 0
    for candidate in candidates:
        rank = min(search.num_alternatives, len(found) - 1)
        enough = found[rank].objective * (1 - _TIE) if len(found) > search.num_alternatives else float("inf")
        if candidate.bound >= enough:
            break
        is_enough = bool(found) and (found[0].objective <= search.good_enough or candidate.bound >= search.cutoff)
        if is_enough or (num_solved and search.is_over):
            bound = min(bound, candidate.bound)
            break
        setting = candidate.setting
        scale = samples_of_goal(problem, setting) / setting.num_replicas
        fixed = fixed_of_goal(problem, setting)
        solved = fitting.best(
            setting.num_workers,
            setting.price_s_per_byte(model.constants.bandwidth_bytes_per_s),
            enough=(enough - fixed) / scale,
            is_over=lambda: search.is_over,
        )
        num_solved += 1
        if not is_cut:
            search.tell(min(bound, candidate.bound), found[0].objective if found else float("inf"))
        if solved.status is not Status.OPTIMAL:
            bound = min(bound, max(candidate.bound, objective_of(problem, setting, solved.bound)))
        if solved.value is not None and objective_of(problem, setting, solved.objective) < enough:
            configuration = ReplicaConfiguration(
                num_servers=setting.num_servers,
                num_replicas=setting.num_replicas,
                num_workers=setting.num_workers,
                layers=solved.value,
            )
            found.append(_found(problem, model, setting, configuration))
            found.sort(key=lambda one: (one.objective, one.setting.num_replicas))
            if first is not None and found[0].objective < first.objective:
                search.keep(lambda one=found[0]: _plan_of_first(problem, model, one))  # type: ignore[misc]
    if first is not None and (not found or first.objective < found[0].objective * (1 - SAME)):
        found.insert(0, first)
    if not found:
        if is_cut or search.is_over:
            raise NoAnswerError(TOO_SHORT)
        if bound == float("inf"):
            raise fitting.none_fits(_numbers_of_workers(candidates))
        raise fitting.nothing_found(_numbers_of_workers(candidates))
    return found, bound, num_solved


def _numbers_of_workers(candidates: Sequence[_Candidate]) -> list[int]:
    """Return the workers of a replica that were asked for."""
    return sorted({one.setting.num_workers for one in candidates})


def _found(problem: Problem, model: ReplicaModel, setting: Setting, configuration: ReplicaConfiguration) -> _Found:
    """Return a configuration with what it costs."""
    choice = ReplicaChoice(configuration=configuration, samples_per_read=setting.samples_per_read)
    prediction = predicted(problem, model, choice)
    return _Found(
        setting=setting, configuration=choice, prediction=prediction, objective=prediction.value_of(problem.goal)
    )


def _least_stale(found: Sequence[_Found]) -> _Found:
    """Return the best; of those that tie, the one with the fewest replicas, then workers."""
    ties = [one for one in found if one.objective <= found[0].objective * (1 + SAME)]
    return min(ties, key=lambda one: (one.setting.num_replicas, one.setting.num_machines, one.setting.num_workers))


# -- words -----------------------------------------------------------------------------------------------------------


def _why(
    problem: Problem, best: _Found, num_settings: int, num_solved: int, space: _Space, *, is_whole: bool
) -> list[str]:
    """Return what binds, what was chosen, and how the answer was proven."""
    setting = best.setting
    lines = list(explain(problem, best.configuration, best.prediction))
    if setting.num_replicas == 1:
        why = (
            ""
            if is_asynchronous_allowed(problem)
            else f": constraints.max_staleness is {problem.limits.max_staleness or 0:g}"
        )
        lines.append(f"one model replica, hence synchronous{why}")
    if idle := group_of(problem).count - setting.num_machines:
        lines.append(
            f"{idle} machine{'s stay' if idle > 1 else ' stays'} idle: as servers they would not speed up the exchange "
            f"of weights"
        )
    lines.append(
        f"{num_settings:,} settings (servers, replicas, workers) are possible; {num_solved:,} had to be solved, the "
        f"others' bounds are no better"
        if is_whole
        else f"of very many settings (servers, replicas, workers) {num_settings:,} were looked at, and {num_solved:,} "
        f"of them solved; the bound holds for all"
    )
    if len(space) > 1:
        least, most = (format_human(end(one for _, one in space), Dimension.TIME) for end in (min, max))
        lines.append(f"of {len(space):,} settings with uniform layers the best takes {least}, the worst {most}")
    return lines


def _others(best: _Found, others: Sequence[_Found]) -> list[Alternative]:
    """Return other settings, as plans that lost."""
    reason = "each layer at its best"
    return [alternative_of(one.configuration.headline, one, best, reason, family=NAME) for one in others]


def _other_ways(problem: Problem, fitting: Fitting, best: _Found, space: _Space, search: Search) -> list[Alternative]:
    """Return what the paper's two simplifications cost, where they fit: uniform layers, maps by the sum of messages."""
    rows = []
    has_messages = best.prediction.communication_s["activations_and_errors"] > 0
    model = fitting.layers.model
    is_small = best.setting.num_workers * len(model.stages) <= _LARGE or not search.is_over
    if has_messages and best.setting.num_workers <= _MOST_MACHINES_OF_SPACE and is_small:
        layers = sum_rule(model, best.configuration.configuration.layers)
        by_sum = replace(best.configuration.configuration, layers=layers)
        if fitting.fits(layers, best.setting.num_workers):
            rows.append(
                ("maps by the least sum of messages", _found(problem, model, best.setting, by_sum), "the paper's rule")
            )
    if space:
        choice, objective = min(space, key=lambda row: row[1])
        uniform = replace(best, configuration=choice, objective=objective)
        rows.append(("uniform layers", uniform, f"all partitioned over all workers: {choice.headline}"))
    return [alternative_of(name, other, best, reason, family=NAME) for name, other, reason in rows]
