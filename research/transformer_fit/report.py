"""How far predictions are off, by family: in all, and for rows that had no part in the fit.

Two ways of leaving out: whole groups of rows that differ in their layout only (five folds of each family's groups), and
whole families. *Regret* is asked within a group: how much slower the layout that is predicted fastest is than the one
measured fastest. Rows of other groups never mend it.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import log1p
from statistics import fmean

import numpy as np

from planner.cost import Floats
from planner.models.layouts import Ints
from research.bands import band, coverage
from research.transformer_fit.fit import Parameters, Table, as_unmeasured, fit, predict
from research.transformer_fit.rows import Row

__all__ = ["Errors", "errors_of", "folds", "left_out_errors", "summary_text", "table_text", "unmeasured_band"]

_FOLDS = 5
_BAND = (0.1, 0.9)  # quantiles of an 80 % band
_COVERED = 0.75  # of further groups, by an 80 % band, at least
_WIDENINGS = np.arange(1.0, 4.0, 0.05)
_FEWEST = 3  # layouts of a group that a rank is asked of
_FEWEST_GROUPS = 5  # of a family that has a band: fewer tell no spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Of predicted / measured - 1, over the rows of a family.

    ``rank`` and ``regret`` are means over ``num_groups`` groups of three layouts or more; nan where there is none.
    """

    num_rows: int
    mean: float
    largest: float
    bias: float
    rank: float
    regret: float
    worst_regret: float
    num_groups: int


def errors_of(rows: Sequence[Row], errors: Floats) -> Errors:
    """Return the errors of some rows."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(row.group, []).append(index)
    measured = np.array([row.iteration_s for row in rows])
    predicted = measured * (1 + errors)
    sweeps = [np.array(each) for each in groups.values() if len(each) >= _FEWEST]
    ranks = [_rank_correlation(predicted[each], measured[each]) for each in sweeps]
    regrets = [measured[each][np.argmin(predicted[each])] / measured[each].min() - 1 for each in sweeps]
    return Errors(
        num_rows=len(rows),
        mean=float(np.abs(errors).mean()),
        largest=float(np.abs(errors).max()),
        bias=float(errors.mean()),
        rank=float(np.mean(ranks)) if ranks else float("nan"),
        regret=float(np.mean(regrets)) if regrets else float("nan"),
        worst_regret=float(np.max(regrets)) if regrets else float("nan"),
        num_groups=len(sweeps),
    )


def _rank_correlation(first: Floats, second: Floats) -> float:
    """Return Spearman's rank correlation; equal numbers share the mean of their ranks."""
    ranks = []
    for array in (first, second):
        values, where, counts = np.unique(array, return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        ranks.append((ends - (counts - 1) / 2)[where])
        if len(values) == 1:
            return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def folds(rows: Sequence[Row]) -> list[list[int]]:
    """Return the rows to leave out together: of each family every fifth group, in the order of the data."""
    found: list[list[int]] = [[] for _ in range(_FOLDS)]
    seen: dict[str, dict[tuple[str, ...], int]] = {}
    for index, row in enumerate(rows):
        groups = seen.setdefault(row.family, {})
        found[groups.setdefault(row.group, len(groups)) % _FOLDS].append(index)
    return [fold for fold in found if fold]


def left_out_errors(
    rows: Sequence[Row], chosen: Iterable[Sequence[int]], workers: int, near: Parameters | None = None
) -> Floats:
    """Return the error of every row that is left out, from a fit to all rows that are not left out with it.

    ``near``: where each fit begins. The fit to all rows is near, and the search from there ends at the same parameters
    as one from the priors, sooner.
    """
    errors = np.full(len(rows), np.nan)
    tasks = [(tuple(rows), tuple(out), near) for out in chosen]
    with ProcessPoolExecutor(max_workers=workers) as pool:
        for (_, out, _), found in zip(tasks, pool.map(_left_out, tasks), strict=True):
            errors[list(out)] = found
    return errors


def _left_out(task: tuple[Sequence[Row], Sequence[int], Parameters | None]) -> Floats:
    """Return the errors of some rows, from a fit to all others; on a device without any, as on one never measured."""
    rows, out, near = task
    kept = set(range(len(rows))) - set(out)
    parameters = fit(Table([rows[index] for index in sorted(kept)]), near)
    parameters = as_unmeasured(parameters, {rows[index].device for index in kept})
    return predict(Table([rows[index] for index in out]), parameters)


def bands(
    rows: Sequence[Row],
    errors: Floats,
    of: Callable[[Row], str] = lambda row: row.family,
    left_out: Callable[[Row], Hashable] = lambda row: row.group,
) -> Mapping[str, tuple[float, float, float]]:
    """Return, by family, an 80 % band of measured / predicted - 1, and the share of groups that others' bands cover.

    A family of fewer than five groups has none. ``of``: what stands for a family, as a row's device; its families then
    count as in the fit. ``left_out``: what stands for a group, as whole families that the fit did not see.

    The share is that of rows in a group which lie in the band of the family's other groups, averaged over groups. Of
    few groups the tenth and the ninetieth percentile cover less than 80 % of a further one: the band is then widened,
    as little as makes the share 75 %.
    """
    counts, weights = Counter(row.family for row in rows), Table(rows).weights
    groups_of = Counter(family for family, *_ in dict.fromkeys((row.family, left_out(row)) for row in rows))
    found = {}
    for name in dict.fromkeys(of(row) for row in rows):
        index = [i for i, row in enumerate(rows) if of(row) == name]
        groups = [left_out(rows[i]) for i in index]
        if len(set(groups)) < _FEWEST_GROUPS:
            continue
        ratio = 1 / (1 + errors[index]) - 1
        numbers = np.unique([list(dict.fromkeys(groups)).index(one) for one in groups], return_inverse=True)[1]
        families = [rows[i].family for i in index]
        # A group counts as its family does, over the family's groups.
        each = np.array([weights[i] * counts[one] / groups_of[one] for i, one in zip(index, families, strict=True)])
        for widening in _WIDENINGS:
            share = _covered(ratio, weights[index], numbers, each, widening)
            if share >= _COVERED:
                break
        found[name] = (*_ends(ratio, weights[index], widening), share)
    return found


def _covered(ratio: Floats, weights: Floats, groups: Ints, each: Floats, widening: float) -> float:
    """Return the share of a group's rows in the band of the others, the mean of all groups by their weights."""
    shares, sizes = [], []
    for group in range(int(groups.max()) + 1):
        inside = groups == group
        low, high = _ends(ratio[~inside], weights[~inside], widening)
        shares.append(float(((low <= ratio[inside]) & (ratio[inside] <= high)).mean()))
        sizes.append(float(each[inside][0]))
    return float(np.average(shares, weights=sizes))


def _ends(values: Floats, weights: Floats, widening: float) -> tuple[float, float]:
    """Return both ends of a band of weighted values, widened about its middle; equal weights give numpy's quantiles."""
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    below = np.cumsum(weights) - weights
    low, high = np.interp(_BAND, below / below[-1], values)
    more = (widening - 1) / 2 * (high - low)
    return float(low - more), float(high + more)


def unmeasured_band(rows: Sequence[Row], errors: Floats) -> tuple[float, float, float]:
    """Return an 80 % band of measured / predicted - 1 on a device that was left out, and the share of devices in it.

    A device counts once, by the mean of its families; whether it lies in the band is asked of that of the others.
    """
    families: dict[str, dict[str, list[float]]] = {}
    for row, error in zip(rows, errors.tolist(), strict=True):
        families.setdefault(row.device, {}).setdefault(row.family, []).append(log1p(error))
    logs = {name: [fmean(map(fmean, own.values()))] for name, own in families.items()}
    return (*band([mean for (mean,) in logs.values()]), coverage(logs))


def table_text(rows: Sequence[Row], ways: Mapping[str, Floats]) -> str:
    """Return the errors by family as a table in Markdown, one line for each family and way of leaving out."""
    lines = [
        "| family | rows | way | mean | largest | bias | rank | regret | worst | groups |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for family in dict.fromkeys(row.family for row in rows):
        index = [i for i, row in enumerate(rows) if row.family == family]
        for way, errors in ways.items():
            one = errors_of([rows[i] for i in index], errors[index])
            cells = [f"{100 * x:.1f} %" for x in (one.mean, one.largest, one.bias)]
            cells += ["-" if np.isnan(one.rank) else f"{one.rank:.2f}"]
            cells += ["-" if np.isnan(x) else f"{100 * x:.1f} %" for x in (one.regret, one.worst_regret)]
            lines.append(f"| {family} | {one.num_rows} | {way} | {' | '.join(cells)} | {one.num_groups} |")
    return "\n".join(lines)


def summary_text(rows: Sequence[Row], ways: Mapping[str, Floats], ranked: str) -> str:
    """Return the mean error by family and way of leaving out as a table in Markdown; regret of the way ``ranked``."""
    lines = [f"| family | rows | {' | '.join(ways)} | regret: mean, worst |", f"|---|---|{'---|' * len(ways)}---|"]
    for family in dict.fromkeys(row.family for row in rows):
        index = [i for i, row in enumerate(rows) if row.family == family]
        found = {way: errors_of([rows[i] for i in index], errors[index]) for way, errors in ways.items()}
        regrets = (found[ranked].regret, found[ranked].worst_regret)
        cells = [f"{100 * one.mean:.1f} %" for one in found.values()]
        cells.append("-" if np.isnan(regrets[0]) else ", ".join(f"{100 * one:.1f} %" for one in regrets))
        lines.append(f"| {family} | {len(index)} | {' | '.join(cells)} |")
    return "\n".join(lines)
