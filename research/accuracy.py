"""Predictions held against measurements that no model was tuned to: the page ``docs/accuracy.md``, and bands of error.

Every row's prediction comes from a fit that did not see the row's group (:mod:`research.measured`). An error
is predicted / measured - 1. A band is what a reader of a plan needs, the other way round: measured / predicted - 1.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from planner.errors import PlannerError, SpecError
from research import ROOT
from research.links import Sources, links_section, sources
from research.measured import MeasuredRow
from research.measured.cases import MeasuredCase, measured_cases

__all__ = ["accuracy_page", "bands", "bands_text"]

_PAGE, _BANDS_FILE = ROOT / "docs" / "accuracy.md", ROOT / "planner" / "data" / "accuracy.yaml"
_TOLD_APART = 0.02  # alternatives that measure closer than this have no order to predict
_HEAD = """\
# Accuracy

Written by `make accuracy`; a test fails when it is stale.

Predictions here are held against measurements that no model was tuned to. The measurements stay in the folder that
`PLANNER_DATA` names. Few parameters are fitted, by least squares of log(predicted / measured), and every row is
predicted by a fit that did not see the group it stands in. An error is predicted / measured - 1.
`python -m research.accuracy` prints the errors of every group, why predictions fail, and what was fitted.
"""
_BANDS = """\
## Bands

`low` to `high` is where measured / predicted - 1 lay; `coverage` is the share of rows that lie in the band of the other
settings (a network and a number of devices). A plan or prediction of `all_reduce` carries the band of its transport and
of the network of its size where the seconds of computation were measured or calibrated; the wider one, of both
transports, where the question does not say how its machines send. What links are taken to reach (*defaults*) was
fitted to the same testbeds, among others: what other sources alone say of them stands below. The band of
`parameter_server` is of communication alone, so that no prediction of an iteration carries it; on processors and slow
links predictions carry those of [measured runs](accuracy_runs.md#bands-of-ordinary-questions). A family that is not
listed has not been measured.

"""
_RANKS = f"""\
Alternatives of one setting, ranked: of pairs that measure more than {_TOLD_APART:.0%} apart, how many the prediction
puts in the same order; and how much longer the alternative that it picks takes than the best one measured (regret).
"""

_TRANSFORMERS = """\
## Transformers, and convolutional networks in short numbers

Predictions of the family `hybrid` are fitted and tested apart: [accuracy of transformers](accuracy_transformers.md).
Other networks: [training steps of image networks](accuracy_steps.md), [compiled networks](accuracy_fused.md),
[kernels in fp32](accuracy_kernels.md).
"""

_RUNS = """\
## Measured runs

Iterations of distributed PyTorch, predicted from layers measured on one worker, links measured at rest, and the
buckets or servers of the job: [accuracy of measured runs](accuracy_runs.md). Unlike all else on this page, the few
constants and what is modelled were settled on these same runs.
"""

Band = dict[str, Any]


def accuracy_page(results: Iterable[MeasuredCase], links: Sources, *, is_whole: bool = False) -> str:
    """Return the page, in Markdown; ``links``: what they reach, by source; ``is_whole``: with every group of a case.

    Raises
    ------
    SpecError
        If a case's data are missing: half a page would look whole.
    """
    found = _with_rows(results)
    sections, above = [], dict[str, str]()
    for result in found:
        sections.append(_whole_section(result) if is_whole else _section(result, above))
        above = {**above, **_ways(result)}
    return "\n".join([_HEAD, _BANDS + _band_table(bands(found)), links_section(links), _TRANSFORMERS, _RUNS, *sections])


def bands_text(results: Iterable[MeasuredCase]) -> str:
    """Return ``planner/data/accuracy.yaml``."""
    lines = ["# Measured / predicted - 1, by family; written by make accuracy, compared by a test."]
    for family, kinds in bands(results).items():
        lines.append(f"{family}:")
        for kind, rows in kinds.items():
            lines.append(f"  {kind}:")
            for row in rows:
                (first, *others) = [f"{key}: {json.dumps(value)}" for key, value in row.items()]
                lines += [f"    - {first}", *(f"      {line}" for line in others)]
    return "\n".join(lines) + "\n"


def bands(results: Iterable[MeasuredCase]) -> dict[str, dict[str, list[Band]]]:
    """Return family -> calibrated or uncalibrated -> low, high, coverage and more, by case and transport, or any."""
    found: dict[str, dict[str, list[Band]]] = {}
    for result in _with_rows(results):
        for given in result.given.bands:
            kind = "calibrated" if given.calibrated else "uncalibrated"
            every = _rows_of(result, given.evaluation)
            for transport in (*sorted({row.transport for row in every}), "any"):
                rows = [replace(row, group=row.setting) for row in every if transport in (row.transport, "any")]
                low, high, coverage = _band(
                    [[row.measured / row.predicted - 1 for row in group] for group in _by_group(rows).values()]
                )
                band = {"transport": transport, "low": low, "high": high, "coverage": coverage}
                band |= {"from": result.name, "parameters": given.parameters, "conditions": given.conditions}
                found.setdefault(given.family, {}).setdefault(kind, []).append(band)
    return dict(sorted(found.items()))


def _with_rows(results: Iterable[MeasuredCase]) -> list[MeasuredCase]:
    """Return the cases; raise SpecError if one was skipped."""
    found = list(results)
    if skipped := [f"{result.name}: {result.skipped}." for result in found if result.skipped]:
        raise SpecError("\n".join([*skipped, "Set PLANNER_DATA to the folder of measured data."]))
    return found


# -- figures ---------------------------------------------------------------------------------------------------------


def _rows_of(result: MeasuredCase, evaluation: str) -> list[MeasuredRow]:
    return [row for row in result.rows if row.evaluation == evaluation]


def _by_group(rows: Iterable[MeasuredRow]) -> dict[str, list[MeasuredRow]]:
    """Return the rows of every group, in the order in which groups come first."""
    groups: dict[str, list[MeasuredRow]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return groups


def _band(groups: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return low, high and coverage, to the hundredth: bands outwards, coverage down.

    >>> _band([[0.0, 0.101], [0.05, 0.2]])
    (0.0, 0.2, 0.5)
    """
    inside = 0
    for index, group in enumerate(groups):
        low, high = _hull(value for other in (*groups[:index], *groups[index + 1 :]) for value in other)
        inside += sum(low <= value <= high for value in group)
    coverage = math.floor(100 * inside / sum(map(len, groups))) / 100
    return (*_hull(value for group in groups for value in group), coverage)


def _hull(values: Iterable[float]) -> tuple[float, float]:
    """Return the least and the greatest, each to the hundredth outwards; what is on a hundredth stays there."""
    every = [round(100 * value, 6) for value in values]
    return math.floor(min(every)) / 100, math.ceil(max(every)) / 100


def _ranked(rows: Iterable[MeasuredRow]) -> dict[str, list[MeasuredRow]]:
    """Return the alternatives of every setting that has several."""
    settings: dict[str, list[MeasuredRow]] = {}
    for row in rows:
        if row.choice:
            settings.setdefault(row.setting, []).append(row)
    return {setting: rows for setting, rows in settings.items() if len(rows) > 1}


def _ordered(alternatives: Sequence[MeasuredRow]) -> tuple[int, int]:
    """Return how many pairs are told apart by measuring, and how many of them are predicted in the same order."""
    apart = [
        (one, other)
        for one, other in combinations(alternatives, 2)
        if max(one.measured, other.measured) > (1 + _TOLD_APART) * min(one.measured, other.measured)
    ]
    same = sum((one.measured - other.measured) * (one.predicted - other.predicted) > 0 for one, other in apart)
    return len(apart), same


def _regret(alternatives: Sequence[MeasuredRow]) -> float:
    """Return how much longer the pick takes than the best one; of picks that tie, the first."""
    pick = min(alternatives, key=lambda row: float(f"{row.predicted:.6g}"))
    return pick.measured / min(row.measured for row in alternatives) - 1


# -- text ------------------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _band_table(found: Mapping[str, Mapping[str, Sequence[Band]]]) -> str:
    rows = [
        (
            f"`{family}`",
            kind,
            band["transport"],
            f"{band['low']:+.0%}",
            f"{band['high']:+.0%}",
            f"{band['coverage']:.0%}",
            f"`{band['from']}`",
        )
        for family, kinds in found.items()
        for kind, bands_of_kind in kinds.items()
        for band in bands_of_kind
    ]
    conditions = {
        f"- `{band['from']}`, {kind}: {band['conditions']}.\n": None
        for kinds in found.values()
        for kind, bands_of_kind in kinds.items()
        for band in bands_of_kind
    }
    head = ("family", "links", "transport", "low", "high", "coverage", "from")
    return _table(head, rows) + "\nConditions:\n\n" + "".join(conditions)


def _ways(result: MeasuredCase) -> dict[str, str]:
    """Return what each way to predict a case is, by its name."""
    return {name: one.about for name, one in result.given.evaluations.items()}


# Ways that are printed alone, and not on the page: how far fitted figures carry from some rows to others.
_PRINTED = {"flat ring", "latency of others", "other networks", "other methods", "other sizes", "stages"}


def _section(result: MeasuredCase, above: Mapping[str, str]) -> str:
    """Return one case: its question, and each way to predict with its errors and the order of its alternatives.

    ``above``: ways that stand above, which are not told again.
    """
    title, _, text = result.readme.partition("\n")
    question = text.strip().partition("\n\n")[0]
    ranks = {evaluation: (same, pairs, mean) for evaluation, _, pairs, same, mean, _ in _rank_cells(result)}
    rows = []
    for evaluation, group, *errors in _error_cells(result):
        if evaluation not in _PRINTED and group in _told(_rows_of(result, evaluation)):
            same, pairs, mean = ranks.get(evaluation if group == "all" else "", ("", "", ""))
            rows.append((evaluation, group, *errors, f"{same} of {pairs}" if pairs else "", mean))
    head = ("predicted", "group", "rows", "mean", "largest", "from", "to", "pairs in order", "mean regret")
    told = {name: about for name, about in _ways(result).items() if name not in _PRINTED}
    own = {name: about for name, about in told.items() if above.get(name) != about}
    ways = "".join(f"- *{name}*: {about}.\n" for name, about in own.items())
    ways += "- the others: as above.\n" * (len(own) < len(told))
    return f"## {title.lstrip('# ')}: `{result.name}`\n\n{question}\n\n{ways}\n{_table(head, rows)}"


def _told(rows: Sequence[MeasuredRow]) -> set[str]:
    """Return the groups that the short page tells: all as one, else sums alone, which are compared, else each."""
    if all(row.choice for row in rows):
        return {"all"}
    return {row.group for row in rows if row.choice} or {row.group for row in rows}


def _whole_section(result: MeasuredCase) -> str:
    """Return one case: its README, how it was predicted, its errors, its ranks, and what was fitted."""
    title, _, text = result.readme.partition("\n")
    ways = "".join(f"- *{name}*: {about}.\n" for name, about in _ways(result).items())
    parts = [f"## {title.lstrip('# ')}: `{result.name}`\n{text.rstrip()}\n", f"Ways to predict:\n\n{ways}"]
    parts.append(_table(("predicted", "group", "rows", "mean", "largest", "from", "to"), _error_cells(result)))
    if ranks := list(_rank_cells(result)):
        parts.append(_RANKS)
        parts.append(_table(("predicted", "settings", "pairs", "same order", "mean regret", "largest regret"), ranks))
    fitted = ", ".join(f"{name}: {value:g}" for name, value in result.fitted.items())
    return "\n".join([*parts, f"Fitted to all rows: {fitted}.\n"])


def _error_cells(result: MeasuredCase) -> Iterable[tuple[str, ...]]:
    """Yield a line for every group of every evaluation."""
    for evaluation in result.given.evaluations:
        rows = _rows_of(result, evaluation)
        groups = _by_group(rows)
        for group, own in groups.items():
            yield (evaluation, group, *_errors(own))
        if len(groups) > 1 and all(row.choice for row in rows):  # else some rows are sums or parts of others
            yield (evaluation, "all", *_errors(rows))


def _errors(rows: Sequence[MeasuredRow]) -> tuple[str, ...]:
    """Return the cells of a group: rows, mean and largest absolute error, and the range."""
    errors = [row.predicted / row.measured - 1 for row in rows]
    sizes = [abs(error) for error in errors]
    spread = (f"{min(errors):+.1%}", f"{max(errors):+.1%}")
    return (str(len(rows)), f"{math.fsum(sizes) / len(sizes):.1%}", f"{max(sizes):.1%}", *spread)


def _rank_cells(result: MeasuredCase) -> Iterable[tuple[str, ...]]:
    """Yield a line for every evaluation with alternatives."""
    for evaluation in result.given.evaluations:
        settings = _ranked(_rows_of(result, evaluation)).values()
        if settings:
            pairs, same = (sum(counts) for counts in zip(*map(_ordered, settings), strict=True))
            regrets = [_regret(alternatives) for alternatives in settings]
            mean = math.fsum(regrets) / len(regrets)
            yield (evaluation, str(len(settings)), str(pairs), str(same), f"{mean:.1%}", f"{max(regrets):.1%}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page with every group, or write it and the bands; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.accuracy", description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help=f"write {_PAGE.name}, without groups, and {_BANDS_FILE.name} anew"
    )
    given = parser.parse_args(arguments)
    try:
        results = measured_cases()
        page = accuracy_page(results, sources(results), is_whole=not given.write)
        bands_of_all = bands_text(results)
    except PlannerError as error:
        print(error, file=sys.stderr)
        return 2
    if given.write:
        _PAGE.write_text(page, encoding="utf-8")
        _BANDS_FILE.write_text(bands_of_all, encoding="utf-8")
    else:
        print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
