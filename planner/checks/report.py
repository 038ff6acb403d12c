"""What a check found: one finding for everything that was looked at, right or wrong."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["SAME", "CheckReport", "Finding", "agree", "agreement", "report_text"]

SAME = 1e-9  # relative difference below which two figures are one


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was checked: what, whether it holds, in words, and with its figures."""

    name: str
    is_ok: bool
    text: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All findings about one plan. ``not_checked`` says what no plan can show by itself."""

    family: str
    headline: str
    findings: tuple[Finding, ...]
    not_checked: tuple[str, ...] = ()

    @property
    def is_ok(self) -> bool:
        """Whether everything holds."""
        return all(one.is_ok for one in self.findings)

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What does not hold."""
        return tuple(one for one in self.findings if not one.is_ok)

    def to_document(self) -> dict[str, Any]:
        """Return ``planner.check/1``."""
        return {
            "schema": "planner.check/1",
            "ok": self.is_ok,
            "family": self.family,
            "findings": [
                {"name": one.name, "ok": one.is_ok, "text": one.text, "values": dict(one.values)}
                for one in self.findings
            ],
            "not_checked": list(self.not_checked),
        }


def report_text(report: CheckReport) -> str:
    """Return a report as text, what fails first."""
    faults = len(report.faults)
    verdict = f"{faults} of {len(report.findings)} checks fail" if faults else f"all {len(report.findings)} checks pass"
    ordered = [*report.faults, *(one for one in report.findings if one.is_ok)]
    lines = [f"{report.family} on {report.headline}: {verdict}" if report.headline else f"{report.family}: {verdict}"]
    lines += [f"  {'ok  ' if one.is_ok else 'FAIL'}  {one.name}: {one.text}" for one in ordered]
    return "\n".join([*lines, *(f"  not checked: {what}" for what in report.not_checked)])


def agree(one: float | None, other: float | None) -> bool:
    """Whether two figures are the same but for rounding; an infinite one is written as null."""
    if one is None or other is None:
        return (one is None or abs(one) == float("inf")) and (other is None or abs(other) == float("inf"))
    return one == other or abs(one - other) <= SAME * max(abs(one), abs(other))


def agreement(name: str, pairs: Iterable[tuple[str, float | None, float | None]]) -> Finding:
    """Return the finding that stated figures are those recomputed; ``pairs``: name, stated, recomputed."""
    rows = list(pairs)
    wrong = [row for row in rows if not agree(row[1], row[2])]
    if not wrong:
        text = f"{rows[0][1]:.9g} as stated" if len(rows) == 1 and rows[0][1] is not None else _many(rows)
        return Finding(name=name, is_ok=True, text=text, values={key: found for key, _, found in rows})
    text = "; ".join(f"{key} is stated as {_number(stated)}, and is {_number(found)}" for key, stated, found in wrong)
    values = {key: {"stated": stated, "found": found} for key, stated, found in wrong}
    return Finding(name=name, is_ok=False, text=text, values=values)


def _many(rows: Sequence[tuple[str, float | None, float | None]]) -> str:
    """Return how many figures agree."""
    return f"{len(rows)} figures as stated"


def _number(value: float | None) -> str:
    """Return a figure with all the digits that are compared."""
    if value is None:
        return "nothing"
    return "no number" if math.isnan(value) else f"{value:.12g}"
