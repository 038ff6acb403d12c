"""The store of sweeps: one SQLite file, one commit for every answer.

A process may be killed at any moment: what was committed stays, what was not is asked again. Two sweeps may use one
store at once: each question is claimed before it is asked, and a claim ends with the process that made it.
"""

import json
import math
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from planner.errors import Fault, SpecError
from planner.letters import visible
from planner.sweep.answers import Answer, Outcome
from planner.sweep.owner import Owner, is_alive, this_process
from planner.sweep.question import Sweep
from planner.sweep.schema import guarded, prepare
from planner.workers.version import planner_version

__all__ = ["RETRIED", "Claim", "Store", "Stored"]

RETRIED = (Outcome.FAILED, Outcome.LIMIT)  # what --retry-failed asks again
_BUSY_MS = 60_000
_AGAIN_S = 0.01
_BEAT_S = 10.0
_DEAD_S = 120.0  # without a beat, of an owner on another host
_MOST_DOCUMENT = 256 * 2**20  # bytes of one answer, unpacked
_Found = TypeVar("_Found")
_COLUMNS = tuple(field.name for field in fields(Answer) if field.name != "wall_s")
_TEXTS = ("objective_name", "family", "headline", "error")
_NUMBERS = ("objective", "bound", "gap", "iteration_time_s", "time_s", "cost_usd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What became of the wish to answer some questions: each key is in one of the three."""

    mine: frozenset[str]
    answered: frozenset[str]
    others: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An answer as the store has it, at its position of a sweep."""

    position: int
    answer: Answer


class Store:
    """One open store; close it. Every method raises SpecError where the file fails.

    Parameters
    ----------
    path
        Of the file; it is made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.owner = this_process()
        self._beat_s = -_BEAT_S
        with guarded(path):
            self._db = sqlite3.connect(path, timeout=_BUSY_MS / 1000, isolation_level=None, cached_statements=64)
            try:
                prepare(self._db, path)
                self._write_ahead()
                self._open()
            except BaseException:
                self._db.close()
                raise

    def _write_ahead(self) -> None:
        """Let readers and writers work side by side; wait for others who ask for the same at the same moment."""
        end_s = time.monotonic() + _BUSY_MS / 1000
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                is_held = error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL"))
                if not is_held or time.monotonic() > end_s:
                    raise
                time.sleep(_AGAIN_S)
        self._db.execute("PRAGMA synchronous = NORMAL")

    def _open(self) -> None:
        """Note that this process works on the store."""
        owner = self.owner
        row = (owner.name, owner.host, owner.process, owner.born, time.time())
        self._write(lambda: self._db.execute("INSERT INTO owners VALUES (?, ?, ?, ?, ?)", row))
        self._free_dead()

    def close(self) -> None:
        """Give back what was claimed and not answered, and close the file."""
        try:
            self._write(lambda: self._forget([self.owner.name]))
        except (SpecError, sqlite3.Error):  # a full disk: the claims end with the process
            pass
        finally:
            self._db.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, sweep: Sweep, today: date) -> date:
        """Note a sweep, and return the day against which the age of its prices is told: that of its first start."""
        document = zlib.compress(json.dumps(sweep.document, sort_keys=True, default=str).encode())
        row = (sweep.identity, planner_version(), today.isoformat(), len(sweep.grid), document)
        self._write(lambda: self._db.execute("INSERT OR IGNORE INTO sweeps VALUES (?, ?, ?, ?, ?)", row))
        found = self._read("SELECT today FROM sweeps WHERE identity = ?", (sweep.identity,))
        try:
            return date.fromisoformat(found[0][0])
        except (ValueError, TypeError, IndexError):
            raise self._damaged("the day of the sweep's first start") from None

    def answered(self, sweep: str, first: int, last: int, *, but: Sequence[Outcome] = ()) -> set[int]:
        """Return which positions from first to last, less the last, are answered; not those with an outcome of but."""
        marks = ", ".join("?" * len(but))
        rows = self._read(
            "SELECT position FROM members JOIN results USING (key) WHERE sweep = ? AND position >= ? AND position < ? "
            f"AND outcome NOT IN ({marks})",
            (sweep, first, last, *but),
        )
        return {row[0] for row in rows}

    def claim(self, keys: Sequence[str], *, but: Sequence[Outcome] = ()) -> Claim:
        """Claim the keys that are neither answered nor claimed; answers with an outcome of but do not count."""

        def work() -> Claim:
            marks = ", ".join("?" * len(keys))
            rows = self._db.execute(f"SELECT key, outcome FROM results WHERE key IN ({marks})", keys).fetchall()
            answered = {key for key, outcome in rows if outcome not in but}
            claimed = {row[0] for row in self._db.execute(f"SELECT key FROM claims WHERE key IN ({marks})", keys)}
            mine = set(keys) - answered - claimed
            self._db.executemany("INSERT INTO claims VALUES (?, ?)", [(key, self.owner.name) for key in sorted(mine)])
            others = set(keys) - answered - mine
            return Claim(mine=frozenset(mine), answered=frozenset(answered), others=frozenset(others))

        return self._write(work)

    def join(self, sweep: str, rows: Iterable[tuple[int, str]]) -> None:
        """Note which answers stand at which positions of a sweep."""
        given = [(sweep, position, key) for position, key in rows]
        if given:
            self._write(lambda: self._db.executemany("INSERT OR REPLACE INTO members VALUES (?, ?, ?)", given))

    def put(self, sweep: str, position: int, found: Answer) -> bool:
        """Store an answer, in one commit; return whether it is new: not so where another process was faster."""
        values = [getattr(found, name) for name in _COLUMNS]
        retried = ", ".join(f"'{outcome}'" for outcome in RETRIED)
        updates = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name != "key")

        def work() -> bool:
            done = self._db.execute(
                f"INSERT INTO results ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) "
                f"ON CONFLICT (key) DO UPDATE SET {updates} WHERE results.outcome IN ({retried})",
                values,
            )
            if done.rowcount:
                self._db.execute("INSERT OR REPLACE INTO timings VALUES (?, ?)", (found.key, found.wall_s))
            self._db.execute("INSERT OR REPLACE INTO members VALUES (?, ?, ?)", (sweep, position, found.key))
            self._db.execute("DELETE FROM claims WHERE key = ?", (found.key,))
            return bool(done.rowcount)

        return self._write(work)

    def beat(self) -> None:
        """Say now and then that this process lives, and free what dead ones had claimed."""
        if time.monotonic() - self._beat_s < _BEAT_S:
            return
        self._beat_s = time.monotonic()
        row = (time.time(), self.owner.name)
        self._write(lambda: self._db.execute("UPDATE owners SET beat = ? WHERE name = ?", row))
        self._free_dead()

    def free_dead(self) -> None:
        """Free what dead processes had claimed."""
        with guarded(self.path):
            self._free_dead()

    def counts(self, sweep: str) -> dict[Outcome, int]:
        """Return how many questions of a sweep have which outcome."""
        rows = self._read(
            "SELECT outcome, count(*) FROM members JOIN results USING (key) WHERE sweep = ? GROUP BY outcome", (sweep,)
        )
        found = {self._outcome(name): number for name, number in rows}
        return {outcome: found[outcome] for outcome in Outcome if outcome in found}

    def rows(self, sweep: str) -> Iterator[Stored]:
        """Yield the answers of a sweep by their positions, without their documents."""
        columns = ", ".join(f"results.{name}" for name in _COLUMNS if name != "document")
        with guarded(self.path):
            for position, wall_s, *values in self._db.execute(
                f"SELECT position, wall_s, {columns} FROM members JOIN results USING (key) LEFT JOIN timings "
                "USING (key) WHERE sweep = ? ORDER BY position",
                (sweep,),
            ):
                known = dict(zip((name for name in _COLUMNS if name != "document"), values, strict=True))
                known["outcome"] = self._outcome(known["outcome"])
                self._check_row(position, wall_s, known)
                known |= {name: visible(known[name], keep="\n") for name in _TEXTS if known[name] is not None}
                yield Stored(position=position, answer=Answer(**known, document=b"", wall_s=wall_s or 0.0))

    def document(self, key: str) -> dict[str, Any]:
        """Return the whole answer to a question: a plan, a purchase or an error.

        Raises
        ------
        SpecError
            If it is damaged, or there is none.
        """
        rows = self._read("SELECT document FROM results WHERE key = ?", (key,))
        try:
            reader = zlib.decompressobj()
            text = reader.decompress(rows[0][0] if rows else b"", _MOST_DOCUMENT)
            document = json.loads(text)
            if reader.unconsumed_tail or not isinstance(document, dict):
                raise ValueError("too large, or no document")
            return document
        except (zlib.error, ValueError, TypeError, RecursionError) as error:
            raise self._damaged(f"the answer {key}: {error}") from None

    def _check_row(self, position: object, wall_s: object, known: Mapping[str, Any]) -> None:
        """Refuse a row with cells of another kind than this program writes: SQLite keeps whatever it is given."""
        numbers = {"wall_s": wall_s, **{name: known[name] for name in _NUMBERS}}
        odd = [name for name in ("key", *_TEXTS) if not isinstance(known[name], str | None)]
        odd += [name for name, value in numbers.items() if not _is_number(value)]
        odd += [
            name
            for name, value in (("num_devices", known["num_devices"]), ("position", position))
            if not isinstance(value, int | None)
        ]
        if odd or position is None or known["key"] is None:
            raise self._damaged(f"the row at position {str(position)[:40]}: {', '.join(odd) or 'no key'}")

    def _outcome(self, name: object) -> Outcome:
        """Return an outcome by its name."""
        try:
            return Outcome(str(name))
        except ValueError:
            raise self._damaged(f"the outcome {repr(name)[:80]}") from None

    def _damaged(self, what: str) -> SpecError:
        """Return the error of a store that holds what nobody wrote."""
        problem, mend = f"this store is damaged ({what}).", "Move it away and give the same command again."
        return SpecError.of([Fault(file=str(self.path), problem=problem, mend=mend)])

    def _read(self, statement: str, values: Sequence[object]) -> list[Any]:
        """Return the rows of a question to the file."""
        with guarded(self.path):
            return self._db.execute(statement, values).fetchall()

    def _write(self, work: Callable[[], _Found]) -> _Found:
        """Do some work in one transaction."""
        with guarded(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                found = work()
                self._db.execute("COMMIT")
                return found
            except BaseException:
                if self._db.in_transaction:
                    self._db.rollback()
                raise

    def _free_dead(self) -> None:
        """Free what dead processes had claimed."""
        rows = self._db.execute("SELECT name, host, process, born, beat FROM owners").fetchall()
        dead = []
        for name, host, process, born, beat in rows:
            if not (isinstance(process, int) and isinstance(beat, int | float)):
                raise self._damaged("the owners")
            lives = is_alive(Owner(name=name, host=host, process=process, born=born))
            if lives is False or (lives is None and time.time() - beat > _DEAD_S):
                dead.append(name)
        if dead:
            self._write(lambda: self._forget(dead))

    def _forget(self, names: Sequence[str]) -> None:
        """Remove owners and their claims."""
        self._db.executemany("DELETE FROM claims WHERE owner = ?", [(name,) for name in names])
        self._db.executemany("DELETE FROM owners WHERE name = ?", [(name,) for name in names])


def _is_number(value: object) -> bool:
    """Whether a cell is empty or a finite number."""
    return value is None or (isinstance(value, int | float) and math.isfinite(value))
