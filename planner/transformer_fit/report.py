"""How far predictions are off, by family: in all, and for rows that had no part in the fit.

Two ways of leaving out: whole groups of rows that differ in their layout only (five folds of each family's groups), and
whole families. *Regret* is asked within a group: how much slower the layout that is predicted fastest is than the one
measured fastest. Rows of other groups never mend it.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from planner.models.roofline import Floats
from planner.transformer_fit.fit import Table, fit, predict
from planner.transformer_fit.rows import Row

__all__ = ["Errors", "errors_of", "folds", "left_out_errors", "table_text"]

_FOLDS = 5
_BAND = (0.1, 0.9)  # quantiles of an 80 % band
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


def left_out_errors(rows: Sequence[Row], chosen: Iterable[Sequence[int]], workers: int) -> Floats:
    """Return the error of every row that is left out, from a fit to all rows that are not left out with it."""
    errors = np.full(len(rows), np.nan)
    tasks = [(tuple(rows), tuple(out)) for out in chosen]
    with ProcessPoolExecutor(max_workers=workers) as pool:
        for (_, out), found in zip(tasks, pool.map(_left_out, tasks), strict=True):
            errors[list(out)] = found
    return errors


def _left_out(task: tuple[Sequence[Row], Sequence[int]]) -> Floats:
    """Return the errors of some rows, from a fit to all others."""
    rows, out = task
    kept = set(range(len(rows))) - set(out)
    parameters = fit(Table([rows[index] for index in sorted(kept)]))
    return predict(Table([rows[index] for index in out]), parameters)


def bands(rows: Sequence[Row], errors: Floats) -> Mapping[str, tuple[float, float, float]]:
    """Return, by family, an 80 % band of measured / predicted - 1, and the share of groups that others' bands cover.

    A family of fewer than five groups has none.

    The share is that of rows in a group, averaged over groups, which lie in the band of the family's other groups.
    """
    found = {}
    for family in dict.fromkeys(row.family for row in rows):
        index = [i for i, row in enumerate(rows) if row.family == family]
        ratio = 1 / (1 + errors[index]) - 1
        groups = [rows[i].group for i in index]
        if len(set(groups)) < _FEWEST_GROUPS:
            continue
        shares = []
        for group in dict.fromkeys(groups):
            inside = np.array([one == group for one in groups])
            low, high = np.quantile(ratio[~inside], _BAND)
            shares.append(float(((low <= ratio[inside]) & (ratio[inside] <= high)).mean()))
        low, high = np.quantile(ratio, _BAND)
        found[family] = (float(low), float(high), float(np.mean(shares)))
    return found


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
