"""Predicted against measured, for files of runs: a row each, errors by family, and the regret of choosing so.

An error is predicted / measured - 1, of the median iteration. Regret: among jobs of one session that train the same
network on the same workers, and so differ in what a planner may choose (bucket cap; servers, placement, overlap), how
much longer the one predicted fastest took than the one measured fastest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.calibration.runs import all_reduce
from planner.calibration.runs.run import is_run, read_run
from planner.calibration.runs.run_facts import Run, RunPrediction
from planner.errors import Fault, ModelError, SpecError

__all__ = [
    "NAMES",
    "FamilyErrors",
    "Ranking",
    "Regret",
    "RunComparison",
    "RunRow",
    "compare",
    "compare_runs",
    "run_files",
]

SCHEMA = "planner.runs/1"
_MOST_FILES = 10_000
NAMES = {
    "allreduce_emulated": "all-reduce, emulated compute",
    "allreduce_real": "all-reduce, real compute",
    "ps_emulated": "parameter servers, emulated compute",
    "ps_real": "parameter servers, real compute",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run; ``measured_s`` and ``error`` are None where its file holds no results."""

    run: Run
    prediction: RunPrediction

    @property
    def predicted_s(self) -> float:
        """Seconds of an iteration, predicted."""
        return self.prediction.iteration_time_s

    @property
    def measured_s(self) -> float | None:
        """Seconds of the median iteration, measured."""
        return self.run.measured.median_s if self.run.measured else None

    @property
    def error(self) -> float | None:
        """Predicted / measured - 1."""
        return self.predicted_s / self.run.measured.median_s - 1 if self.run.measured else None

    def to_document(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {
            "job": self.run.job_id,
            "session": self.run.session,
            "family": self.run.family.value,
            "predicted_s": self.predicted_s,
            "measured_s": self.measured_s,
            "error": self.error,
            "breakdown_s": dict(self.prediction.breakdown_s),
            "notes": list(self.prediction.notes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyErrors:
    """Absolute relative errors of the runs of one family; ``bias`` is the mean with its sign, ``worst`` a job."""

    family: str
    count: int
    mean: float
    median: float
    largest: float
    bias: float
    worst: str

    def to_document(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Jobs of one session to choose among; ``regret`` is chosen measured / best measured - 1."""

    session: str
    jobs: tuple[str, ...]
    chosen: str
    best: str
    regret: float

    def to_document(self) -> dict[str, Any]:
        """Return the choice as plain data."""
        return {name: getattr(self, name) for name in ("session", "chosen", "best", "regret")} | {
            "jobs": list(self.jobs)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Alternatives of one session, measured or not: their jobs and predicted seconds, fastest first."""

    session: str
    jobs: tuple[str, ...]
    predicted_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """All runs, in order of family, session and job."""

    rows: tuple[RunRow, ...]

    @property
    def families(self) -> tuple[FamilyErrors, ...]:
        """The errors of every family that was measured."""
        found = []
        for family in dict.fromkeys(row.run.family.value for row in self.rows):
            errors = {row.run.job_id: row.error for row in self.rows if row.run.family.value == family}
            if known := {job: error for job, error in errors.items() if error is not None}:
                found.append(_errors(family, known))
        return tuple(found)

    @property
    def regrets(self) -> tuple[Regret, ...]:
        """One for every session that measured alternatives."""
        groups = _groups(row for row in self.rows if row.run.measured)
        return tuple(_regret(rows) for rows in groups)

    @property
    def rankings(self) -> tuple[Ranking, ...]:
        """One for every session that has alternatives of which not all were measured; not part of the document."""
        return tuple(_ranking(rows) for rows in _groups(self.rows) if not all(row.run.measured for row in rows))

    def to_document(self) -> dict[str, Any]:
        """Return everything as plain data, of the schema ``planner.runs/1``."""
        return {
            "schema": SCHEMA,
            "runs": [row.to_document() for row in self.rows],
            "families": [errors.to_document() for errors in self.families],
            "regrets": [regret.to_document() for regret in self.regrets],
        }

    def text(self) -> str:
        """Return the tables as text: runs, families, choices."""
        parts = [_runs_text(self.rows)]
        if self.families:
            parts.append(_families_text(self.families))
        if self.regrets:
            parts.append(_regrets_text(self.regrets))
        if self.rankings:
            parts.append(_rankings_text(self.rankings))
        return "\n\n".join(parts) + "\n"


def compare(paths: Iterable[str | Path]) -> RunComparison:
    """Return predicted against measured for files of runs, or all such files in folders.

    Raises
    ------
    SpecError
        If there is none, or a file is wrong; what is wrong with all files is told at once.
    """
    runs: list[Run] = []
    faults: list[Fault] = []
    for path in run_files(paths):
        try:
            runs.append(read_run(path))
        except SpecError as error:
            faults += error.faults
    if faults:
        raise SpecError.of(faults)
    return compare_runs(runs)


def compare_runs(runs: Iterable[Run]) -> RunComparison:
    """Return predicted against measured for runs that were read."""
    order = {name: place for place, name in enumerate(NAMES)}
    ordered = sorted(runs, key=lambda run: (order[run.family.value], run.session, run.job_id))
    return RunComparison(rows=tuple(RunRow(run=run, prediction=_predict(run)) for run in ordered))


def run_files(paths: Iterable[str | Path]) -> tuple[Path, ...]:
    """Return the files of runs: those named, and those in folders that are named, each once, in order of name.

    Raises
    ------
    SpecError
        If a folder holds none, or more than ten thousand JSON files.
    """
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            found[path] = None
            continue
        inside = sorted(path.glob("*.json"))
        if len(inside) > _MOST_FILES:
            fault = Fault(file=str(path), problem=f"it holds {len(inside)} files.", mend="Name a smaller folder.")
            raise SpecError.of([fault])
        runs = [file for file in inside if is_run(file)]
        if not runs:
            fault = Fault(
                file=str(path), problem="no file of a run is in it.", mend="Name a folder of such JSON files."
            )
            raise SpecError.of([fault])
        found |= dict.fromkeys(runs)
    return tuple(found)


def _predict(run: Run) -> RunPrediction:
    """Return the prediction of the run's family."""
    try:
        if run.family.is_all_reduce:
            return all_reduce.predict(run)
        # Imported here: it simulates servers, which other runs have no use for.
        from planner.calibration.runs.parameter_server import predict  # noqa: PLC0415

        return predict(run)
    except ModelError as error:
        raise ModelError(f"{run.file}: {error}") from None


def _errors(family: str, errors: Mapping[str, float]) -> FamilyErrors:
    """Return mean, median and largest of errors by job."""
    sizes = np.abs(list(errors.values()))
    return FamilyErrors(
        family=family,
        count=len(errors),
        mean=float(sizes.mean()),
        median=float(np.median(sizes)),
        largest=float(sizes.max()),
        bias=float(np.mean(list(errors.values()))),
        worst=max(errors, key=lambda job: abs(errors[job])),
    )


def _question(run: Run) -> tuple[object, ...]:
    """Return what the alternatives of one choice have in common."""
    model = tuple(sorted((key, str(value)) for key, value in run.model.items()))
    return run.session, run.family, model, tuple(worker.compute_factor for worker in run.workers)


def _groups(rows: Iterable[RunRow]) -> list[list[RunRow]]:
    """Return rows that are alternatives of one choice, in order; a row without another is no choice."""
    groups: dict[tuple[object, ...], list[RunRow]] = {}
    for row in rows:
        groups.setdefault(_question(row.run), []).append(row)
    return [group for group in groups.values() if len(group) > 1]


def _ranking(rows: Sequence[RunRow]) -> Ranking:
    """Return alternatives by their predicted seconds; equal ones by name."""
    ordered = sorted(rows, key=lambda row: (row.predicted_s, row.run.job_id))
    return Ranking(
        session=rows[0].run.session,
        jobs=tuple(row.run.job_id for row in ordered),
        predicted_s=tuple(row.predicted_s for row in ordered),
    )


def _regret(rows: Sequence[RunRow]) -> Regret:
    """Return what choosing by prediction costs among measured rows."""
    measured_s = {row.run.job_id: row.run.measured.median_s for row in rows if row.run.measured}
    chosen = min(rows, key=lambda row: row.predicted_s).run.job_id
    best = min(measured_s, key=lambda job: measured_s[job])
    return Regret(
        session=rows[0].run.session,
        jobs=tuple(measured_s),
        chosen=chosen,
        best=best,
        regret=measured_s[chosen] / measured_s[best] - 1,
    )


def _runs_text(rows: Sequence[RunRow]) -> str:
    """Return the table of runs."""
    width = max([len(row.run.job_id) for row in rows] + [3])
    lines = [f"{'run':<{width}}  predicted   measured    error"]
    for row in rows:
        measured = "         -" if row.measured_s is None else f"{row.measured_s:8.4f} s"
        error = "      -" if row.error is None else f"{row.error:+7.2%}"
        lines.append(f"{row.run.job_id:<{width}} {row.predicted_s:8.4f} s {measured}  {error}")
    return "\n".join(lines)


def _families_text(families: Sequence[FamilyErrors]) -> str:
    """Return the errors by family."""
    width = max(len(NAMES[one.family]) for one in families)
    lines = [f"{'family':<{width}}  runs   mean  median  worst    bias  worst run"]
    lines += [
        f"{NAMES[one.family]:<{width}}  {one.count:4}  {one.mean:5.2%}  {one.median:5.2%}  {one.largest:5.2%}"
        f"  {one.bias:+6.2%}  {one.worst}"
        for one in families
    ]
    return "\n".join(lines)


def _regrets_text(regrets: Sequence[Regret]) -> str:
    """Return what choosing by prediction costs."""
    lines = ["choices within a session"]
    lines += [
        f"{len(one.jobs)} runs of {one.session}: regret {one.regret:.2%}; predicted best {one.chosen}, "
        f"measured best {one.best}"
        for one in regrets
    ]
    return "\n".join(lines)


def _rankings_text(rankings: Sequence[Ranking]) -> str:
    """Return the alternatives that were not all measured, fastest first."""
    lines = ["alternatives not all measured, predicted fastest first"]
    for one in rankings:
        lines.append(f"{len(one.jobs)} runs of {one.session}")
        lines += [f"  {seconds:8.4f} s  {job}" for job, seconds in zip(one.jobs, one.predicted_s, strict=True)]
    return "\n".join(lines)
