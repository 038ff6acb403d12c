"""The search of the family ``model_replicas``: the scalability optimiser of the Adam paper, with a proof.

Variables: N_ps servers, N_mr replicas of N_wr workers each; for every layer partitions P, layer replicas R, threads H,
and the worker of every segment. Objective: the goal's seconds (``T_epoch`` with ``serialised`` reading, the same again
for writing, or the input, whichever is longer). Constraints: C1 ``N_ps + N_mr N_wr <= N``; C2 ``H <= K``; C3 the
segments of a layer are on different workers, hence ``P R <= N_wr``; C4 the threads of a segment are on one worker; and
every worker holds what its segments keep (:mod:`planner.models.replica_memory`).

Three nested steps, none of which loses anything where memory is ample; where it is not, what fits is searched for in
:mod:`planner.families.model_replicas.layers`, exactly where layers have few choices, else with a gap:

* *Settings* (N_mr, N_wr, with the best N_ps; :mod:`planner.families.model_replicas.settings`) are solved in the order
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

Quick answers are what the paper searches, as in its figure 15: uniform layers, each partitioned over all workers of a
replica and never replicated, all machines left being servers, and the paper's rule for maps.

Source: F. Yan, O. Ruwase, Y. He and T. Chilimbi, KDD 2015, doi:10.1145/2783258.2783270, section 5.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import inf

from planner.errors import InfeasibleError, NoAnswerError, SpecError
from planner.families.answer import TOO_SHORT, Searched, alternative_of, plan_of
from planner.families.model_replicas.configuration import NAME, ReplicaChoice, group_of, threads_of
from planner.families.model_replicas.cost import (
    NOT_MODELLED,
    explain,
    memory_limit_bytes,
    memory_of,
    model_of,
    predicted,
)
from planner.families.model_replicas.layers import (
    Fitting,
    Layers,
    can_be_listed,
    most_workers_of_tables,
    num_threads_of,
    table_bytes,
)
from planner.families.model_replicas.settings import (
    Setting,
    are_few,
    fixed_of_goal,
    is_asynchronous_allowed,
    least_objective,
    objective_of,
    samples_of_goal,
    settings_of,
    some_settings_of,
    why_nothing_fits,
)
from planner.families.parsing import check_inner_links
from planner.frozen import frozen
from planner.models.replica_segments import LayerChoice, ReplicaConfiguration
from planner.models.replicas import ReplicaModel
from planner.plan import Alternative, Plan, Prediction
from planner.problem import Problem
from planner.search import Search
from planner.solution import SAME, Status
from planner.solvers.divisors import divisors
from planner.solvers.matching import greedy_assignment, sum_assignment
from planner.units import Dimension, format_human

_SETTINGS_AT_ONCE = 1_024  # that are made between two readings of the clock
_FEW_WORKERS = 4_096
_LARGE = 20_000  # layers times workers: beyond, an answer is made before anything is searched
_MOST_MACHINES_OF_SPACE = 64  # up to which uniform layers and the paper's maps are shown with the plan
_TIE = SAME / 2  # a bound this close need not be beaten, and the gap still counts as closed
_SOLVER = "bounded enumeration x dynamic programme over layers x bottleneck assignment"
_Space = Sequence[tuple[ReplicaChoice, float]]
_ASYNCHRONOUS = (
    "replicas train asynchronously on weights of unbounded staleness; how many more epochs that takes is not modelled"
)
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
        uniform = setting.configuration((LayerChoice.spread(workers, num_threads=threads),) * len(model.stages))
        if workers not in sample_s:
            per_sample_s = (number * model.layer_time(one, uniform).per_sample_s for one, number in kinds)
            seconds = sum(per_sample_s) * setting.num_replicas
            fits = is_ample or memory.fullest(uniform.layers, workers).total_bytes(1) <= limit_bytes
            sample_s[workers] = seconds if fits else float("inf")
        if sample_s[workers] < float("inf"):
            exchange_s = setting.price_s_per_byte(model.constants.bandwidth_bytes_per_s) * size_bytes
            choice = ReplicaChoice(configuration=uniform, samples_per_read=setting.samples_per_read)
            rows.append((choice, objective_of(problem, setting, sample_s[workers] + exchange_s)))
    return rows


def first_choice(
    problem: Problem, model: ReplicaModel, settings: Sequence[Setting], search: Search
) -> tuple[Setting, ReplicaConfiguration] | None:
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
    return setting, setting.configuration((layer,) * len(stages))


def _kinds(model: ReplicaModel) -> list[tuple[int, int]]:
    """Return one layer of every kind, and how many are alike: in a uniform configuration they cost the same."""
    kinds: dict[tuple[int, bool], list[int]] = {}
    for index in range(len(model.stages)):
        kinds.setdefault((model.work.alike(index), index == 0), []).append(index)
    return [(some[0], len(some)) for some in kinds.values()]


def sum_rule(model: ReplicaModel, layers: Sequence[LayerChoice]) -> tuple[LayerChoice, ...]:
    """Return the same layers, mapped so that each receives the fewest remote activations in sum (section 5.3).

    Each segment on the worker where it receives least; on a conflict the assignment of least sum. A layer lasts as long
    as its slowest segment, which this rule does not look at.
    """
    mapped = list(layers[:1])
    made: dict[tuple[int, LayerChoice, LayerChoice], LayerChoice] = {}
    for index, layer in enumerate(layers[1:], start=1):
        key = (model.work.alike(index), mapped[-1], layer)
        if key not in made:  # equal layers are mapped once
            made[key] = _by_sum(model, index, mapped[-1], layer)
        mapped.append(made[key])
    return tuple(mapped)


def _by_sum(model: ReplicaModel, index: int, before: LayerChoice, layer: LayerChoice) -> LayerChoice:
    """Return a layer, mapped by the sum of what its segments receive, on average, from the layer before."""
    num_places = 1 + max(worker for one in (before, layer) for row in one.workers for worker in row)
    needed = model.work.boundary(index, before.num_partitions, layer.num_partitions).needed
    segments = list(product(range(layer.num_replicas), range(layer.num_partitions)))
    cost = [[0.0] * num_places for _ in range(num_places)]  # rows beyond the segments take what is left
    for row, (r, p) in enumerate(segments):
        cost[row] = [float(needed[p].sum())] * num_places
        meets = range(r, layer.num_replicas * before.num_replicas, layer.num_replicas)
        for k in meets:
            for q, worker in enumerate(before.workers[k % before.num_replicas]):
                cost[row][worker] -= float(needed[p, q]) / len(meets)
    solution = greedy_assignment(cost) if len(segments) == num_places else sum_assignment(cost)
    solution = solution if solution.value is not None else sum_assignment(cost)
    assert solution.value is not None  # costs are finite: there is an assignment
    places = iter(solution.value)
    rows = tuple(tuple(next(places) for _ in range(layer.num_partitions)) for _ in range(layer.num_replicas))
    return replace(layer, workers=rows)


@frozen
class _Solved:
    """A setting with the best layers that were found, and what they cost."""

    setting: Setting
    configuration: ReplicaChoice
    prediction: Prediction
    objective: float

    @classmethod
    def of(
        cls, problem: Problem, model: ReplicaModel, setting: Setting, configuration: ReplicaConfiguration
    ) -> "_Solved":
        """Return a configuration with what it costs."""
        choice = ReplicaChoice(configuration=configuration, samples_per_read=setting.samples_per_read)
        prediction = predicted(problem, model, choice)
        objective = prediction.value_of(problem.goal)
        return cls(setting=setting, configuration=choice, prediction=prediction, objective=objective)

    @property
    def warnings(self) -> list[str]:
        """What there is to warn of."""
        return [_ASYNCHRONOUS] if self.setting.num_replicas > 1 else []


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
        model, threads, is_whole = model_of(problem), threads_of(problem), are_few(problem)
        settings: list[Setting] = []
        for setting in settings_of(problem) if is_whole else some_settings_of(problem):
            if settings and not len(settings) % _SETTINGS_AT_ONCE and search.is_over:
                is_whole = False
                break
            settings.append(setting)
    except SpecError as error:  # of a question, not of a given configuration: this family has no answer to it
        texts = (
            fault.problem if fault.field.startswith("configuration") else f"{fault.problem} {fault.mend}".rstrip()
            for fault in error.faults
        )
        raise InfeasibleError(f"No plan fits: {' '.join(texts) or error}") from None
    if not settings and is_whole:
        raise InfeasibleError(why_nothing_fits(problem))
    num_threads = num_threads_of(problem, model, threads)
    most = most_workers_of_tables(model, num_threads, max((one.num_workers for one in settings), default=1))
    kept = [setting for setting in settings if setting.num_workers <= most]
    is_whole = is_whole and len(kept) == len(settings)
    what = f"a table of {len(model.stages):,} layers x {most:,} workers of a replica"
    search.reserve(table_bytes(model, num_threads, most), what)
    is_large = not is_whole or len(model.stages) * most > _LARGE
    first = _first(problem, model, settings, search) if is_large else None
    too_many = (
        f"Of the settings of up to {group_of(problem).count:,} machines some were looked at, with up to {most:,} "
        f"workers of a replica. Pin fix.num_replicas or fix.num_workers_per_replica, or allow fewer machines."
    )
    try:
        if not kept:
            raise NoAnswerError(too_many)
        layers = Layers(model, threads, most, is_over=lambda: is_large and search.is_over)
        return _searched(problem, layers, kept, search, first, is_whole=is_whole)
    except InfeasibleError as error:
        if is_whole:
            raise
        raise NoAnswerError(f"{error} {too_many}") from None
    except NoAnswerError:
        if first is None:
            raise
        return _plan_of_first(problem, model, first)


def _first(problem: Problem, model: ReplicaModel, settings: Sequence[Setting], search: Search) -> _Solved | None:
    """Return an answer for a search that may be ended before its own, and name it to the search.

    On few workers first: to write down the places of a million takes seconds.
    """
    first: _Solved | None = None
    for most in (_FEW_WORKERS, inf):
        some = [one for one in settings if one.num_workers <= most and can_be_listed(model, one.num_workers)]
        choice = first_choice(problem, model, some, search)
        if choice is None or (first is not None and (search.is_over or first.setting == choice[0])):
            continue
        solved = _Solved.of(problem, model, *choice)
        if first is None or solved.objective < first.objective:
            first = solved
            search.keep(lambda best=solved: _plan_of_first(problem, model, best))  # type: ignore[misc]
    return first


def _plan_of_first(problem: Problem, model: ReplicaModel, first: _Solved) -> Plan:
    """Return the plan of what was found before a limit ended the search."""
    lines = [*explain(problem, first.configuration, first.prediction), "a limit came before more was compared"]
    return plan_of(
        problem,
        Searched(family=NAME, not_modelled=NOT_MODELLED, solver=_SOLVER),
        configuration=first.configuration,
        prediction=first.prediction,
        bound=min(least_objective(problem, model), first.objective),
        explanation=lines,
        warnings=first.warnings,
    )


def _searched(
    problem: Problem,
    layers: Layers,
    settings: Sequence[Setting],
    search: Search,
    first: _Solved | None,
    *,
    is_whole: bool,
) -> Plan:
    """Return the best plan of some settings; ``is_whole``: of all that there are."""
    model, num_settings = layers.model, len(settings)
    fitting = Fitting(problem, layers, threads_of(problem))
    may_fit = [setting for setting in settings if fitting.may_fit(setting.num_workers)]
    if not may_fit:
        widest = max(settings, key=lambda one: one.num_workers)
        price = widest.price_s_per_byte(model.constants.bandwidth_bytes_per_s)
        raise fitting.why_nothing_fits(widest.num_workers, price, lambda: search.is_over)
    keep_equals = search.num_alternatives > 0 or not fitting.is_ample
    candidates, other_bound = _candidates(problem, layers, may_fit, search, keep_equals=keep_equals)
    if not is_whole:
        other_bound = min(other_bound, least_objective(problem, model))
    solved, bound, num_solved = _solve(problem, fitting, candidates, search, first, is_cut=other_bound < inf)
    ties = [one for one in solved if one.objective <= solved[0].objective * (1 + SAME)]  # the least stale is the best
    best = min(ties, key=lambda one: (one.setting.num_replicas, one.setting.num_machines, one.setting.num_workers))
    others = [one for one in solved if one is not best][: search.num_alternatives]
    is_small = group_of(problem).count <= _MOST_MACHINES_OF_SPACE and not (first is not None and search.is_over)
    space = search_space(problem, model=model) if is_small else []
    runners_up = [
        alternative_of(one.configuration.headline, one, best, "each layer at its best", family=NAME) for one in others
    ]
    return plan_of(
        problem,
        Searched(
            family=NAME,
            not_modelled=NOT_MODELLED,
            solver=_SOLVER,
            num_candidates=num_settings,
            num_solved=num_solved,
        ),
        configuration=best.configuration,
        prediction=best.prediction,
        bound=min(bound, other_bound, best.objective),
        explanation=_why(problem, best, num_settings, num_solved, space, is_whole=is_whole),
        alternatives=[*_simplified(problem, fitting, best, space, search), *runners_up],
        warnings=best.warnings,
    )


def _candidates(
    problem: Problem, layers: Layers, settings: Sequence[Setting], search: Search, *, keep_equals: bool
) -> tuple[list[tuple[float, Setting]], float]:
    """Return the settings that may be best, in the order of their bounds; of equal bounds the least stale first.

    And a bound on those that are left out where half of the time is over, the rest being for solving: settings are
    asked from coarse to fine, every 4,096th, then those half-way between them, and so on, so that the best of those
    asked by then is a fair one.
    """
    by_numbers = {(one.num_replicas, one.num_workers): one for one in settings}
    candidates: list[tuple[float, Setting]] = []
    other_bound = inf
    asking = search.part(search.left_s / 2)
    for number in sorted(range(1, len(settings) + 1), key=lambda number: -(number & -number)):
        setting = settings[number - 1]
        if candidates and asking.is_over:
            other_bound = least_objective(problem, layers.model)
            break
        if keep_equals or not _is_matched(setting, by_numbers):
            candidates.append((bound_of(problem, layers, setting), setting))
    candidates.sort(key=lambda one: (one[0], one[1].num_replicas, one[1].num_workers))
    return candidates, other_bound


def bound_of(problem: Problem, layers: Layers, setting: Setting) -> float:
    """Return an objective that no choice of layers of a setting beats."""
    price = setting.price_s_per_byte(layers.model.constants.bandwidth_bytes_per_s)
    return objective_of(problem, setting, layers.bound(setting.num_workers, price))


def _is_matched(setting: Setting, others: Mapping[tuple[int, int], Setting]) -> bool:
    """Whether a setting with fewer replicas of more workers each is as good, see the head of this module."""
    replicas = setting.num_replicas
    for fewer in divisors(replicas):
        other = others.get((fewer, setting.all_workers // fewer)) if fewer < replicas else None
        if other is None or other.num_servers != setting.num_servers:
            continue
        if other.samples_per_read * fewer >= setting.samples_per_read * replicas:
            return True
    return False


def _solve(
    problem: Problem,
    fitting: Fitting,
    candidates: Sequence[tuple[float, Setting]],
    search: Search,
    first: _Solved | None,
    *,
    is_cut: bool,
) -> tuple[list[_Solved], float, int]:
    """Return what may be ranked, the best first, a bound on everything else, and how many settings were solved.

    Parameters
    ----------
    candidates
        The settings with their bounds, the least bound first.
    first
        An answer that there is already, in case nothing better is found.
    is_cut
        Not all candidates are there, so that nothing is known of what none of them can do.
    """
    model = fitting.layers.model
    solved: list[_Solved] = []
    bound, num_solved = inf, 0
    for least, setting in candidates:
        rank = min(search.num_alternatives, len(solved) - 1)
        enough = solved[rank].objective * (1 - _TIE) if len(solved) > search.num_alternatives else inf
        if least >= enough:
            break
        is_enough = bool(solved) and (solved[0].objective <= search.good_enough or least >= search.cutoff)
        if is_enough or (num_solved and search.is_over):
            bound = min(bound, least)
            break
        best = fitting.best(
            setting.num_workers,
            setting.price_s_per_byte(model.constants.bandwidth_bytes_per_s),
            enough=(enough - fixed_of_goal(problem, setting))
            / (samples_of_goal(problem, setting) / setting.num_replicas),
            is_over=lambda: search.is_over,
        )
        num_solved += 1
        if not is_cut:
            search.report(min(bound, least), solved[0].objective if solved else inf)
        if best.status is not Status.OPTIMAL:
            bound = min(bound, max(least, objective_of(problem, setting, best.bound)))
        if best.value is not None and objective_of(problem, setting, best.objective) < enough:
            solved.append(_Solved.of(problem, model, setting, setting.configuration(best.value)))
            solved.sort(key=lambda one: (one.objective, one.setting.num_replicas))
            if first is not None and solved[0].objective < first.objective:
                search.keep(lambda one=solved[0]: _plan_of_first(problem, model, one))  # type: ignore[misc]
    if first is not None and (not solved or first.objective < solved[0].objective * (1 - SAME)):
        solved.insert(0, first)
    if not solved:
        if is_cut or search.is_over:
            raise NoAnswerError(TOO_SHORT)
        numbers_of_workers = sorted({setting.num_workers for _, setting in candidates})
        raise fitting.none_fits(numbers_of_workers) if bound == inf else fitting.nothing_found(numbers_of_workers)
    return solved, bound, num_solved


# -- words -------------------------------------------------------------------------------------------------------------


def _why(
    problem: Problem, best: _Solved, num_settings: int, num_solved: int, space: _Space, *, is_whole: bool
) -> list[str]:
    """Return what binds, what was chosen, and how the answer was proven."""
    setting = best.setting
    lines = list(explain(problem, best.configuration, best.prediction))
    if setting.num_replicas == 1:
        limit = f": constraints.max_staleness is {problem.limits.max_staleness or 0:g}"
        lines.append(f"one model replica, hence synchronous{'' if is_asynchronous_allowed(problem) else limit}")
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


def _simplified(problem: Problem, fitting: Fitting, best: _Solved, space: _Space, search: Search) -> list[Alternative]:
    """Return what the paper's two simplifications cost, where they fit: uniform layers, maps by the sum of messages."""
    rows = []
    has_messages = best.prediction.communication_s["activations_and_errors"] > 0
    model, num_workers = fitting.layers.model, best.setting.num_workers
    is_small = num_workers * len(model.stages) <= _LARGE or not search.is_over
    if has_messages and num_workers <= _MOST_MACHINES_OF_SPACE and is_small:
        layers = sum_rule(model, best.configuration.configuration.layers)
        if fitting.fits(layers, num_workers):
            by_sum = _Solved.of(problem, model, best.setting, best.setting.configuration(layers))
            rows.append(("maps by the least sum of messages", by_sum, "the paper's rule"))
    if space:
        choice, objective = min(space, key=lambda row: row[1])
        uniform = replace(best, configuration=choice, objective=objective)
        rows.append(("uniform layers", uniform, f"all partitioned over all workers: {choice.headline}"))
    return [alternative_of(name, other, best, reason, family=NAME) for name, other, reason in rows]
