"""Lines of layers: cut as evenly as can be, assigned at least cost, bounded, and fitted on the fewest devices.

*Even cuts* (:func:`balanced_cuts`). A line of layers in n runs, of which the longest takes as little as it can: the
chains-on-chains problem, by bisection. Source: A. Pinar and C. Aykanat, J. Parallel Distrib. Comput. 64(8), 2004,
doi:10.1016/j.jpdc.2004.05.003.

*The cheapest chain* (:func:`cheapest_chain`). A state for every layer where neighbours' costs are known at first only
from below: Viterbi's recursion on bounds, made exact where it matters. Source: A. J. Viterbi, IEEE Trans. Inf. Theory
13(2), 1967, doi:10.1109/TIT.1967.1054010.

*A bound of all pipelines at once* (:func:`least_s`): what bubbles cost where memory forces many stages.

Sets and data: layers ``0..L-1`` with ``t`` seconds of a sample, forward and backward, on a device of speed 1; devices
whose speeds sum up to N; a batch of B samples in m micro-batches of at most ``b = ceil(B / m)``; for each run of layers
the micro-batches in flight that one device could hold.

Variables: p stages, their cuts, and the replicas of each; ``w_k`` are the seconds of a micro-batch in stage k. A
replica has at least one sample, and r of them share b: ``w_k >= t_k``, ``w_k >= b t_k / r_k``, ``sum r_k <= N``, and at
most b replicas each, so that ``N_p = min(N, p b fastest)`` of them count.

By F of :mod:`planner.solvers.pipeline_bounds`, with A the sum of w before stage s, X the sum behind it,
and ``K = min(m, p - s + 1)`` micro-batches in flight, no iteration is below

- 1F1B, ``K < m``: ``A + (m - K + 1) w_s + 2 X``; ``K = m``: ``A + (m + 1) / 2 w_s + X``, the mean of two terms;
- GPipe: ``A + m w_s + X``.

The mean over all stages is ``sum c_k w_k`` with ``c_k = (p - k + sum of X's factors before k + w_k's factor) / p``, and
by Cauchy and Schwarz ``(sum c_k w_k) (sum b t_k / w_k) >= b (sum sqrt(c_k t_k))**2``; so no iteration is below
``b (sum sqrt(c_k t_k))**2 / N_p``. The least sum over all cuts is a recursion over the layers, from the last one. Of
all m from ``low`` to ``high`` one bound is given. ``c_k / m`` falls with m where ``m > p``; where not, the terms of
``K = m`` are taken for all stages (with ``K < m`` they hold, too: they are less than the mean of the first terms and
``A + m w_s``), and fall likewise. So the lesser of the values at ``high`` and ``min(high, p)`` counts.

*The fewest devices* (:class:`FewestDevices`), and nothing about time. A stage of layers i to j that has k stages from
it to the last, itself included, needs at least ``r_t(k, i, j)`` devices of type t, of which there are ``N_t``, or fits
on none. ``D(k, i, w)`` is the fewest devices of the first type on which layers i to the last fit in exactly k stages,
where they may use ``w_t`` devices of each other type::

    D(0, L, w) = 0
    D(k, i, w) = min over j of  r_0(k, i, j) + D(k - 1, j + 1, w),
                 and, for the other types, D(k - 1, j + 1, w - r_t(k, i, j) e_t)

As a stage may have more devices than it needs, any configuration gives one with the fewest of each stage, so this is
exact: n stages fit if and only if ``D(n, 0, N) <= N_0``. Work: ``O(n L l T prod over the other types of (N_t + 1))``
where a stage has at most l layers, as longer ones fit on no devices.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from math import ceil, prod

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from planner.cost import Floats
from planner.frozen import frozen
from planner.search import Search
from planner.solution import Solution, Status

Integers = NDArray[np.int64]
Path = tuple[int, ...]
Needs = Callable[[int, Integers, int], Integers]

NONE = 2**40  # devices of a stage that fits on no number of them

_CLOSE = 1e-12  # relative difference at which two times are one
_CUTS_ROUNDING = 1e-13  # of sums; far below _CLOSE, so that every trial comes closer
_MOST_REMEMBERED = 1_000  # layers of cuts that are remembered
_MOST_TRIALS = 64  # each halves what is left, but for rounding: enough for _CLOSE
_WORK_AT_ONCE = 10_000_000  # pairs that are added between two questions whether to stop: some hundredths of a second
_LEAST_WORK = 10_000  # that a layer counts for, however few its pairs
_MOST_WORK = 1e7  # of one recursion of the bound of all pipelines
_LEAST_ROUNDING = 1 - 1e-9
_MOST_AT_ONCE = 2_000_000  # numbers in one pass over the fewest devices
_MOST_NUMBERS = 1 << 26  # in all their tables: half a gibibyte


def balanced_cuts(seconds: Floats, num_parts: int) -> tuple[int, ...]:
    """Return the last layer of each of ``num_parts`` runs of layers, of which the longest takes as little as it can.

    Parameters
    ----------
    seconds
        By layer; >= 0, at least ``num_parts`` of them.
    num_parts
        Runs; >= 1, none of them empty.

    >>> balanced_cuts(np.array([3.0, 1, 1, 1, 3]), 3)
    (0, 3, 4)
    """
    row = tuple(np.asarray(seconds, dtype=np.float64).tolist())
    return (_balanced if len(row) <= _MOST_REMEMBERED else _balanced.__wrapped__)(row, num_parts)


@lru_cache(maxsize=1_024)  # searches of one question, one after the other, ask for the same cuts
def _balanced(seconds: tuple[float, ...], num_parts: int) -> tuple[int, ...]:
    """Return :func:`balanced_cuts`."""
    total = np.concatenate([[0.0], np.cumsum(seconds)])
    return balanced_cuts_of([total] * num_parts)


def balanced_cuts_of(totals: Sequence[Floats]) -> tuple[int, ...]:
    """Return the last layer of each run, where every run has seconds of its own; a heuristic where they differ.

    Parameters
    ----------
    totals
        For each run, L + 1 prefix sums of what the layers take there; at least as many layers as runs.

    Notes
    -----
    Bisection over the longest run's seconds T: runs are filled one after another. With equal seconds that tells whether
    T suffices, and of the runs that are no longer than the least T the first are the longest. With different ones a run
    may be left with a layer that suits it ill, as none may be empty. A trial that fails rules out all T up to where a
    run would take a layer more, and one that succeeds all above its longest run: a few trials of O(n log L) do. With
    equal seconds T is no less than the mean, nor than the longest layer, and a run that ends below both together, for
    want of the next layer, is longer than the mean: that T suffices, but for rounding, and is tried first.

    >>> balanced_cuts_of([np.array([0.0, 1, 2, 3, 4]), np.array([0.0, 3, 6, 9, 12])])
    (2, 3)
    """
    shared = {id(total): total for total in totals}
    lists = {name: total.tolist() for name, total in shared.items()}  # of runs that share their seconds, once
    rows = [lists[id(total)] for total in totals]
    low, first_tried = 0.0, [max(row[-1] for row in rows)]
    if len(lists) == 1:
        mean, longest = first_tried[0] / len(rows), float(np.diff(totals[0]).max())
        low, first_tried = max(mean, longest) * (1 - _CUTS_ROUNDING), [mean + longest, *first_tried]
    for most_s in first_tried:
        best, high = _filled(rows, most_s)
        if best is not None:
            break
    assert best is not None, f"{len(totals[0]) - 1} layers do not make {len(totals)} runs"
    for _ in range(_MOST_TRIALS):
        if high - low <= _CLOSE * high:
            break
        cuts, seconds = _filled(rows, (low + high) / 2)
        if cuts is None:
            low = seconds
        else:
            best, high = cuts, seconds
    return best


def _filled(totals: Sequence[list[float]], most_s: float) -> tuple[tuple[int, ...] | None, float]:
    """Return the last layers of runs of at most ``most_s``, and the longest of them.

    Where there would be more runs, return None, and the least seconds with which one of these would be longer.
    """
    num_layers, start, ends = len(totals[0]) - 1, 0, list[int]()
    longest, longer = 0.0, float("inf")
    for part, total in enumerate(totals):
        far = bisect_right(total, total[start] + most_s * (1 + _CUTS_ROUNDING), start) - 1
        if far < num_layers:
            longer = min(longer, total[far + 1] - total[start])
        if far <= start:
            return None, longer  # not even its first layer
        end = min(far, num_layers - (len(totals) - 1 - part))
        longest = max(longest, total[end] - total[start])
        ends.append(end - 1)
        start = end
    return (tuple(ends), longest) if start == num_layers else (None, longer)


def cheapest_chain(
    nodes: Sequence[Floats],
    bounds: Sequence[Floats],
    pair_cost: Callable[[int, int, int], float],
    *,
    enough: float = np.inf,
    is_over: Callable[[], bool] = lambda: False,
) -> Solution[Path]:
    """Return one state for every layer, of least total cost.

    Sets: layers ``1..L``, states ``S(l)``. Variables: ``s(l)`` in ``S(l)``. Objective: minimise
    ``sum over l of node(l, s(l)) + sum over l > 1 of pair(l, s(l-1), s(l))``. No constraints.

    Recursion: ``T(1, s) = node(1, s)``, ``T(l, s) = node(l, s) + min over s' of T(l-1, s') + pair(l, s', s)``; the
    answer is ``min over s of T(L, s)``. A pair's cost may be dear to find (an assignment). So the recursion runs on
    lower bounds; the pairs on its cheapest chain are priced exactly and take their bounds' places; and it runs
    again, until all pairs of the cheapest chain are exact. That chain's cost is then its own bound: it is optimal.

    Parameters
    ----------
    nodes
        For every layer, the cost of each state; ``inf`` for one that may not be chosen.
    bounds
        For every layer but the first, ``[s', s]``: no more than the cost of the pair. They are not changed. Layers
        with the same array have equal pairs: what a pair costs for one of them, it costs for all.
    pair_cost
        ``(l, s', s)``, l from 1 as layers count from 0: the exact cost.
    enough
        Stop as soon as no chain can cost less than this: the bound says so.
    is_over
        Whether to stop with the best so far; asked in every run, after each ten million pairs or thousand layers.

    Returns
    -------
        OPTIMAL; INFEASIBLE if some layer has no state; or, stopped early, FEASIBLE (UNKNOWN without any chain) with a
        bound. If not even the first run came to its end, that is the chain of each layer's cheapest state, and the sum
        of each layer's least costs. The objective is the sum of exact costs.

    Notes
    -----
    Complexity: O(L S^2) a run; a run prices at least one pair, hence at most L S^2 runs, in practice a few tens.
    Memory: two numbers for every state, and a copy of every distinct array of bounds. Ties go to the lower index.
    """
    if any(not np.isfinite(costs).any() for costs in nodes):
        return Solution(status=Status.INFEASIBLE, objective=np.inf, bound=np.inf, value=None)
    chain = _Chain(nodes, bounds)
    best: tuple[float, Path | None] = (np.inf, None)
    bound = -np.inf
    while True:
        found = chain.cheapest(is_over)
        if found is None and best[1] is not None:
            break
        if found is None:  # not even the first run: the least of every layer, and its cheapest state
            bound, path = chain.bound_of_states(), tuple(int(costs.argmin()) for costs in nodes)
        else:
            bound, path = found
        if bound >= min(enough, best[0]) or (best[1] is not None and is_over()):
            break
        total = sum(float(costs[state]) for costs, state in zip(nodes, path, strict=True))
        total += sum(chain.price(layer, path[layer - 1], path[layer], pair_cost) for layer in range(1, len(nodes)))
        if found is None:
            best = (total, path) if total < np.inf else best
            break
        if chain.is_settled:  # its pairs cost what they were taken to cost: nothing is cheaper
            best = (bound, path)
            break
        if total < best[0]:
            best = (total, path)
    objective, value = best
    status = Status.UNKNOWN if value is None else Status.OPTIMAL if bound >= objective else Status.FEASIBLE
    return Solution(status=status, objective=objective, bound=min(bound, objective), value=value)


class _Chain:
    """The recursion's tables, which are made again from the first layer on whose pairs were priced."""

    def __init__(self, nodes: Sequence[Floats], bounds: Sequence[Floats]) -> None:
        self._nodes = nodes
        first = dict[int, int]()  # of the layers that share an array, by the array
        self._table = [first.setdefault(id(pairs), layer) for layer, pairs in enumerate(bounds, start=1)]
        self._pairs = {layer: bounds[layer - 1] for layer in first.values()}
        self._exact: dict[int, NDArray[np.bool_]] = {}  # what has none is all bounds, and not yet copied
        self._totals: list[Floats] = [np.asarray(nodes[0], dtype=np.float64)]
        self._from: list[NDArray[np.intp]] = []

    @property
    def is_settled(self) -> bool:
        """Whether no price has changed the tables since the last run."""
        return len(self._totals) == len(self._nodes)

    def cheapest(self, is_over: Callable[[], bool]) -> tuple[float, Path] | None:
        """Return the cost of the cheapest chain, as far as it is known, and its states; None if the time was over."""
        work = 0
        for layer in range(len(self._totals), len(self._nodes)):
            pairs = self._pairs[self._table[layer - 1]]
            work += max(pairs.size, _LEAST_WORK)
            if work > _WORK_AT_ONCE:
                work = 0
                if is_over():
                    return None
            sums = self._totals[-1][:, np.newaxis] + pairs
            before = sums.argmin(axis=0)
            self._from.append(before)
            self._totals.append(self._nodes[layer] + sums[before, np.arange(sums.shape[1])])
        state = int(self._totals[-1].argmin())
        cost = float(self._totals[-1][state])
        path = [state]
        for before in reversed(self._from):
            path.append(int(before[path[-1]]))
        return cost, tuple(reversed(path))

    def bound_of_states(self) -> float:
        """Return the least that any chain may cost: of every layer the least node and pair, whatever lies beside."""
        least = {table: float(pairs.min()) for table, pairs in self._pairs.items()}
        return sum(float(costs.min()) for costs in self._nodes) + sum(least[table] for table in self._table)

    def price(self, layer: int, before: int, after: int, pair_cost: Callable[[int, int, int], float]) -> float:
        """Return the exact cost of a pair, which takes the place of its bound."""
        table = self._table[layer - 1]
        if table not in self._exact:
            self._pairs[table] = np.array(self._pairs[table], dtype=np.float64)
            self._exact[table] = np.zeros(self._pairs[table].shape, dtype=np.bool_)
        pairs, exact = self._pairs[table], self._exact[table]
        if not exact[before, after]:
            exact[before, after] = True
            cost = pair_cost(layer, before, after)
            if cost != pairs[before, after]:
                pairs[before, after] = cost
                del self._totals[table:], self._from[table - 1 :]
        return float(pairs[before, after])


@frozen
class Line:
    """A line of layers and the devices for it.

    Attributes
    ----------
    work_s
        (L,) device-seconds of a sample of each layer, both ways.
    most_in_flight
        (L, L): micro-batches of one sample that fit on a device with layers i to j, both included.
    speed
        Of all devices together.
    fastest
        Speed of the fastest device.
    """

    work_s: Floats
    most_in_flight: Integers
    speed: float
    fastest: float

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.work_s)

    @property
    def width(self) -> int:
        """Layers that a stage holds at most."""
        firsts, lasts = np.nonzero(self.most_in_flight > 0)
        return int((lasts - firsts).max(initial=-1)) + 1


def least_s(line: Line, batch: int, low: int, high: int, numbers_of_stages: Sequence[int]) -> float:
    """Return seconds that no iteration with ``low`` to ``high`` micro-batches is below, GPipe or 1F1B.

    Parameters
    ----------
    line
        The layers and all devices.
    batch
        Samples of an iteration.
    low, high
        Numbers of micro-batches; 1 <= low <= high <= batch.
    numbers_of_stages
        That are allowed.

    Returns
    -------
    ``inf`` where no cut fits in memory; 0 where the recursion would take too long.

    >>> line = Line(work_s=np.ones(2), most_in_flight=np.diag([9, 9]), speed=2.0, fastest=1.0)
    >>> round(least_s(line, 4, 4, 4, [1, 2]), 2)  # each layer is a stage: a bubble of one micro-batch beside four
    4.95
    """
    most = max(numbers_of_stages, default=0)
    if most * most * line.num_layers * line.width > _MOST_WORK:
        return 0.0
    numbers = np.array(sorted(numbers_of_stages))
    least = np.inf
    for is_gpipe in (False, True):
        sums = _least_sums(line, numbers, low, high, is_gpipe=is_gpipe)
        useful = np.minimum(line.speed, numbers * ceil(batch / low) * line.fastest)
        least = min(least, float((batch * sums**2 / useful).min(initial=np.inf)))
    return least * _LEAST_ROUNDING


def fits(line: Line, low: int, numbers_of_stages: Collection[int]) -> bool:
    """Whether some cut fits in memory under 1F1B, with ``low`` micro-batches or more of one sample each.

    That is less than any of these pipelines holds, interleaved ones apart. How many devices there are is not asked.

    Parameters
    ----------
    line
        The layers.
    low
        Micro-batches; >= 1.
    numbers_of_stages
        That are allowed.

    >>> line = Line(work_s=np.ones(2), most_in_flight=np.diag([1, 1]), speed=2.0, fastest=1.0)
    >>> fits(line, 1, [2]), fits(line, 2, [2])
    (True, False)
    """
    num_layers = line.num_layers
    rest_fits = np.zeros(num_layers + 1, dtype=bool)  # from a layer on, with the stages behind
    rest_fits[-1] = True
    for behind in range(max(numbers_of_stages, default=0)):
        stage_fits = line.most_in_flight >= min(low, behind + 1)
        rest_fits = np.append((stage_fits & rest_fits[1:]).any(axis=1), False)
        if rest_fits[0] and behind + 1 in numbers_of_stages:
            return True
    return False


def _least_sums(line: Line, numbers: Integers, low: int, high: int, *, is_gpipe: bool) -> Floats:
    """Return, by number of stages, the least sum of ``sqrt(c_k t_k / m)`` over all cuts that fit."""
    num_layers, width = line.num_layers, max(line.width, 1)
    sums = np.concatenate(([0.0], np.cumsum(line.work_s)))
    firsts, ends = np.arange(num_layers)[:, None], np.arange(num_layers)[:, None] + np.arange(1, width + 1)[None, :]
    inside = ends <= num_layers
    ends = np.minimum(ends, num_layers)
    root_s = np.where(inside, np.sqrt(np.maximum(sums[ends] - sums[firsts], 0.0)), np.inf)
    room = np.where(inside, line.most_in_flight[firsts, ends - 1], 0)
    found = np.full(len(numbers), np.inf)
    # From a layer on, with the stages behind; as wide a margin of layers that are not there. GPipe's factors are those
    # of all stages alike, so that one sum is that of all numbers.
    left = np.full((1 if is_gpipe else len(numbers), num_layers + 1 + width), np.inf)
    left[:, num_layers] = 0.0
    for behind in range(int(numbers[-1])):
        held = low if is_gpipe else min(low, behind + 1)
        root = np.where(room >= max(held, 1), root_s, np.inf)[None]
        if not is_gpipe:
            is_open = numbers > behind
            left = left[-np.count_nonzero(is_open) :]
            root = np.sqrt(_factors(numbers[is_open], numbers[is_open] - behind, low, high))[:, None, None] * root
        after = sliding_window_view(left[:, 1:], width, axis=1)[:, :num_layers]
        left[:, :num_layers], left[:, num_layers] = (root + after).min(axis=2), np.inf
        found[numbers == behind + 1] = left[0, 0]
    return found * np.sqrt((numbers - 1 + high) / (high * numbers)) if is_gpipe else found


def _factors(numbers: Integers, k: Integers, low: int, high: int) -> Floats:
    """Return ``c_k / m`` of 1F1B by number of stages p, for stage k counted from 1."""
    few = np.minimum(high, numbers)
    beside = (numbers - 1 + (few + 1) / 2) / few
    plain = (high + 2 * k - 2) / high
    is_plain = low > numbers
    is_beside = high <= numbers
    return np.where(is_plain, plain, np.where(is_beside, beside, np.minimum(plain, beside))) / numbers


class FewestDevices:
    """The tables D, one number of stages after the other.

    Parameters
    ----------
    num_layers, num_devices
        L, and the devices by type.
    needs
        Given k, first layers that follow one another and a number of layers, ``r_t(k, i, j)`` by type, first layer and
        ``j - i`` from 0 to less than that number, ``NONE`` where none will do; ends behind the last layer are ignored.
    search
        Filling a table ends with it.
    ahead
        Given k, by layer, devices of the first type that the layers before it need at least, where k stages hold it and
        those behind: ways that leave too few are none.
    most_layers
        Given k, by layer, how many a stage may hold from it on; by default all of them.

    Attributes
    ----------
    is_stopped
        Whether a table was not filled, as the search was over or all tables would be too large.
    """

    def __init__(
        self,
        num_layers: int,
        num_devices: Sequence[int],
        needs: Needs,
        search: Search | None = None,
        ahead: Callable[[int], Integers] | None = None,
        most_layers: Callable[[int], Integers] | None = None,
    ) -> None:
        self.num_layers, self.num_devices, self.needs = num_layers, tuple(num_devices), needs
        nothing, rest = np.zeros(num_layers, dtype=np.int64), num_layers - np.arange(num_layers)
        self._ahead = (lambda _: nothing) if ahead is None else ahead
        self._most_layers = (lambda _: rest) if most_layers is None else most_layers
        self.is_stopped = False
        self._search = search
        self._grid = [number + 1 for number in num_devices[1:]]
        self._strides = [prod(self._grid[axis + 1 :]) for axis in range(len(self._grid))]
        self._budgets = np.indices(self._grid).reshape(len(self._grid), -1) if self._grid else np.zeros((0, 1), int)
        start = np.full((num_layers + 1, prod(self._grid)), NONE)
        start[-1] = 0
        self._tables = [start]

    def add(self) -> bool:
        """Fill the table of one stage more; return whether anything fits in so many stages, or may in still more.

        False, too, where it was not filled.
        """
        self.is_stopped = (len(self._tables) + 1) * self._tables[0].size > _MOST_NUMBERS
        if self.is_stopped:
            return False
        k, table = len(self._tables), np.full_like(self._tables[-1], NONE)
        most, most_layers = self.num_devices[0] - self._ahead(k), self._most_layers(k)
        firsts, width = self._firsts(most, most_layers)
        step = max(1, _MOST_AT_ONCE // (width * table.shape[1]))
        for low in range(0, len(firsts), step):
            if self._search is not None and self._search.is_over:
                self.is_stopped = True
                return False
            some = firsts[low : low + step]
            for axis, needed in enumerate(self.needs(k, some, width)):
                fewest = self._through(k, some, axis, needed).min(axis=1)
                table[some] = np.minimum(table[some], np.where(fewest <= most[some, None], fewest, NONE))
        self._tables.append(table)
        return bool((table < NONE).any())

    def _firsts(self, most: Integers, most_layers: Integers) -> tuple[Integers, int]:
        """Return layers in a row, with all from which one stage more may lead to the end, and how many it has.

        By layer, there are ``most`` devices from it on, of which each stage has one; and a stage has ``most_layers``.
        """
        ends = np.flatnonzero((self._tables[-1] < NONE).any(axis=1))
        if not len(ends):
            return ends, 1
        least = len(self._tables) if len(self.num_devices) == 1 else 0
        layers = np.arange(ends[-1])
        found = np.flatnonzero((most[: ends[-1]] >= least) & (layers + most_layers[: ends[-1]] >= ends[0]))
        if not len(found):
            return found, 1
        width = np.minimum(most_layers[found], ends[-1] - found).max()
        return layers[found[0] : found[-1] + 1], int(width)

    def _through(self, k: int, firsts: Integers, axis: int, needed: Integers) -> Integers:
        """Return the fewest by first layer, layers of the stage and budget, with a first stage of one type."""
        most, needed = needed.shape[1], needed[:, :, None]
        after, end = self._tables[k - 1], int(firsts[-1]) + 1 + most
        after = np.concatenate((after[firsts[0] + 1 : end], np.full((max(0, end - len(after)), after.shape[1]), NONE)))
        behind = sliding_window_view(after, most, axis=0).swapaxes(1, 2)
        if axis:
            left = self._budgets[axis - 1] - needed
            at = np.arange(behind.shape[2]) - np.where(left < 0, 0, needed) * self._strides[axis - 1]
            return np.where(left < 0, NONE, np.take_along_axis(behind, at, axis=2))
        return np.asarray(needed + behind)

    def fewest(self, num_stages: int) -> Integers:
        """Return ways to have so many stages fit, a row each: numbers of devices by type, none of which can be less.

        None of a type but the first counts what is left over: rows hold what may be used, and cover all ways.

        Parameters
        ----------
        num_stages
            Of a table that was filled.
        """
        table = self._tables[num_stages][0]
        fits = np.flatnonzero(table < NONE)
        return np.concatenate((table[None, fits], self._budgets[:, fits])).T

    def stages(self, num_stages: int, used: Sequence[int]) -> list[tuple[int, int, int, int]]:
        """Return stages (first, last, type, devices) that fit within a row of :meth:`fewest`; the first such.

        Parameters
        ----------
        num_stages
            As of the row.
        used
            The row: devices by type.
        """
        budget = int(sum(one * stride for one, stride in zip(used[1:], self._strides, strict=True)))
        first, found = 0, []
        for k in range(num_stages, 0, -1):
            firsts, target = np.array([first]), self._tables[k][first, budget]
            needs = self.needs(k, firsts, int(self._most_layers(k)[first]))
            for axis, by_end in enumerate(needs):
                ends = np.flatnonzero(self._through(k, firsts, axis, by_end)[0, :, budget] == target)
                if len(ends):
                    break
            last = first + int(ends[0])
            needed = int(needs[axis, 0, ends[0]])
            found.append((first, last, axis, needed))
            budget -= needed * self._strides[axis - 1] if axis else 0
            first = last + 1
        return found
