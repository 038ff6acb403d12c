"""Errors of predicted runs: ``docs/accuracy_runs.md``, and the package's ``run_bands.yaml``."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from planner.calibration.run_files import Run
from planner.calibration.runs import NAMES, RunComparison, RunRow
from planner.models.ddp import DdpConstants
from research.bands import band, band_text, coverage
from research.runs.constants_fit import FittedConstant, fit_copy_s_per_byte, fit_wake_s
from research.runs.evaluation import band_errors, ordinary, server_errors, without_parts
from research.runs.page_text import (
    ALL_REDUCE,
    BANDS,
    HEAD,
    ORDINARY,
    ORDINARY_HEAD,
    SERVERS,
    SERVERS_HEAD,
    SERVERS_TAIL,
    WITHOUT,
)

__all__ = ["bands_text", "page", "runs_text"]


def page(found: RunComparison) -> str:
    """Return the page, in Markdown."""
    parts = [HEAD, _families_table(found)]
    if runs := [row.run for row in found.rows if row.run.family.is_all_reduce]:
        parts += [ALL_REDUCE, WITHOUT, _without_table(runs), ORDINARY, _ordinary_tables(found.rows)[1]]
    if servers := [row for row in found.rows if not row.run.family.is_all_reduce and row.error is not None]:
        parts += [SERVERS, _servers_tables(servers)[1], SERVERS_TAIL]
    if bands := band_errors(found.rows):
        parts += [BANDS, _bands_table(bands)]
    return "".join(parts).rstrip("\n") + "\n"


def runs_text(found: RunComparison) -> str:
    """Return what the page sums up, in Markdown: runs, choices, constants, and runs as ordinary questions."""
    parts = [_runs_table(found.rows), _choices_table(found)]
    if runs := [row.run for row in found.rows if row.run.family.is_all_reduce]:
        parts += [_constants_table(runs), ORDINARY_HEAD, _ordinary_tables(found.rows)[0]]
    if servers := [row for row in found.rows if not row.run.family.is_all_reduce and row.error is not None]:
        parts.append(SERVERS_HEAD + _servers_tables(servers)[0])
    return "".join(parts)


def bands_text(found: RunComparison) -> str:
    """Return ``planner/data/run_bands.yaml``: between which errors another run as an ordinary question lies."""
    lines = ["# Measured / predicted - 1 of measured runs as ordinary questions, by family; written by make accuracy."]
    for family, logs in band_errors(found.rows).items():
        runs = [row.run for row in found.rows if row.run.family.is_all_reduce is (family == "all_reduce")]
        rates = [run.network.link_rate_bytes_per_s for run in runs]
        lines.append(f"{family}:")
        lines += [f"  {key}: {value}" for key, value in band_text(logs).items()]
        lines.append(f"  runs: {sum(map(len, logs.values()))}")
        lines.append(f"  workers: [{min(run.num_workers for run in runs)}, {max(run.num_workers for run in runs)}]")
        lines.append(f"  bytes_per_s: [{min(rates):.4e}, {max(rates):.4e}]")
    return "\n".join(lines) + "\n"


def _bands_table(bands: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Return the same as a table."""
    lines = []
    for family, logs in bands.items():
        low, high = band([one for mine in logs.values() for one in mine])
        number = sum(map(len, logs.values()))
        lines.append(f"| `{family}` | {number} | {len(logs)} | {low:+.1%} | {high:+.1%} | {coverage(logs):.0%} |")
    return "\n".join(lines) + "\n\n"


def _regrets_of(found: RunComparison, family: str) -> list[float]:
    families = {row.run.job_id: row.run.family.value for row in found.rows}
    return [one.regret for one in found.regrets if families[one.chosen] == family]


def _families_table(found: RunComparison) -> str:
    lines = [
        "| family | runs | mean | median | largest | bias | choices | regret |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in found.families:
        regrets = _regrets_of(found, one.family)
        regret = f"{np.mean(regrets):.2%}" if regrets else ""
        lines.append(
            f"| {NAMES[one.family]} | {one.count} | {one.mean:.2%} | {one.median:.2%} | {one.largest:.2%}"
            f" | {one.bias:+.2%} | {len(regrets)} | {regret} |"
        )
    return "\n".join(lines) + "\n\n"


def _runs_table(rows: Iterable[RunRow]) -> str:
    lines = ["| run | predicted, s | measured, s | error |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{row.run.job_id}` | {row.predicted_s:.4f} | {row.measured_s:.4f} | {row.error:+.2%} |"
        for row in rows
        if row.measured_s is not None and row.error is not None
    ]
    return "\n".join(lines) + "\n\n"


def _choices_table(found: RunComparison) -> str:
    """Return the choices within sessions; nothing where there are none."""
    if not found.regrets:
        return ""
    lines = ["| runs to choose among | predicted best | measured best | regret |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {len(one.jobs)} of `{one.session}` | `{one.chosen}` | `{one.best}` | {one.regret:.2%} |"
        for one in found.regrets
    ]
    return "\n".join(lines) + "\n\n"


def _constants_table(runs: Sequence[Run]) -> str:
    """Return the fitted constants, and how much they depend on single sessions."""
    lines = [
        "| constant | shipped | fitted | without any one session | of single runs | runs |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    shipped = DdpConstants()
    rows: list[tuple[str, float, float, FittedConstant | None]] = [
        ("copy, ns a byte", 1e9, shipped.copy_s_per_byte, fit_copy_s_per_byte(runs)),
        ("late waking, ms a layer and worker", 1e3, shipped.wake_s, fit_wake_s(runs)),
    ]
    for name, scale, value, fitted in rows:
        if fitted is not None:
            low, high, least, most = (
                scale * one for one in (fitted.low, fitted.high, fitted.least_of_runs, fitted.most_of_runs)
            )
            lines.append(
                f"| {name} | {scale * value:.2f} | {scale * fitted.value:.3f} | {low:.3f} to {high:.3f}"
                f" | {least:.2f} to {most:.2f} | {fitted.num_runs} |"
            )
    return "\n".join(lines) + "\n\n"


def _without_table(runs: Sequence[Run]) -> str:
    """Return the mean errors with parts left out."""
    columns = [without_parts(run for run in runs if run.family.is_real is is_real) for is_real in (False, True)]
    lines = [f"| {name} | {columns[0][name]:.2%} | {columns[1][name]:.2%} |" for name in columns[0]]
    return "\n".join(lines) + "\n\n"


def _ordinary_tables(rows: Sequence[RunRow]) -> tuple[str, str]:
    """Return each all-reduce run as an ordinary question, and in sentences how near the family comes."""
    lines = []
    distances: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for row in rows:
        if not row.run.family.is_all_reduce or row.measured_s is None:
            continue
        found = ordinary(row.run)
        error, beside = found.given_s / row.measured_s - 1, found.given_s / row.predicted_s - 1
        distances[row.run.family.is_real].append((abs(error), abs(beside)))
        lines.append(
            f"| `{row.run.job_id}` | {error:+.2%} | {beside:+.2%} | {found.num_buckets} | {found.num_groups}"
            f" | {1 - found.planned_s / found.given_s:.1%} |"
        )
    summary = [_distance_text(is_real, pairs) for is_real, pairs in distances.items() if pairs]
    return "\n".join(lines) + "\n\n", "\n".join(summary) + "\n\n"


def _distance_text(is_real: bool, pairs: Sequence[tuple[float, float]]) -> str:
    """Return in a sentence how far off the family is, and how far from the prediction; both by run."""
    kind = "Real" if is_real else "Emulated"
    error, beside = (float(np.mean(values)) for values in zip(*pairs, strict=True))
    most = max(distance for _, distance in pairs)
    return (
        f"{kind} runs: the family's mean error is {error:.2%}; it lies {beside:.2%} from the prediction above on "
        f"average, {most:.2%} at most."
    )


def _servers_tables(rows: Sequence[RunRow]) -> tuple[str, str]:
    """Return the runs with servers by this model, with free keys, and by the ordinary family; and their means."""
    lines, means, sizes = [], [], []
    for row in rows:
        errors = (row.error or 0.0, *server_errors(row.run))
        sizes.append(np.abs(errors))
        lines.append(f"| `{row.run.job_id}` | " + " | ".join(f"{error:+.2%}" for error in errors) + " |")
    for name, values in (("mean", np.mean(sizes, axis=0)), ("median", np.median(sizes, axis=0))):
        means.append(f"| {name} of sizes | " + " | ".join(f"{value:.2%}" for value in values) + " |")
    return "\n".join(lines) + "\n\n", "\n".join(means) + "\n\n"
