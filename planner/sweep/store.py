"""The store of sweeps: one SQLite file, one commit for every answer.

A process may be killed at any moment: what was committed stays, what was not is asked again. Two sweeps may use one
store at once: each question is claimed before it is asked, and a claim ends with the process that made it, which is
told without any clock, so that what a killed sweep had begun is free at once.

Tables: answers in ``results`` by their keys, and their wall times apart, so that all other tables hold the same for the
same questions; ``sweeps``; in ``members`` which answer stands at which position of a sweep; ``owners``, the processes
that work on the store, and their ``claims``.
"""

import json
import math
import os
import socket
import sqlite3
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from planner.errors import SpecError
from planner.frozen import frozen
from planner.letters import visible
from planner.plugins import planner_version
from planner.sweep.answers import Answer, Outcome
from planner.sweep.question import Sweep

APPLICATION = 0x504C5357  # "PLSW", in the file's header: tells a store of ours from other databases
VERSION = 1
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
_ELSEWHERE = "Move it away and give the same command again, or name another file with --store."
_TABLES = (
    "CREATE TABLE results (key TEXT PRIMARY KEY, outcome TEXT NOT NULL, objective_name TEXT, objective REAL, "
    "bound REAL, gap REAL, family TEXT, headline TEXT, num_devices INTEGER, iteration_time_s REAL, time_s REAL, "
    "cost_usd REAL, error TEXT, document BLOB NOT NULL)",
    "CREATE TABLE timings (key TEXT PRIMARY KEY, wall_s REAL NOT NULL)",
    "CREATE TABLE sweeps (identity TEXT PRIMARY KEY, version TEXT NOT NULL, today TEXT NOT NULL, "
    "number INTEGER NOT NULL, document BLOB NOT NULL)",
    "CREATE TABLE members (sweep TEXT NOT NULL, position INTEGER NOT NULL, key TEXT NOT NULL, "
    "PRIMARY KEY (sweep, position)) WITHOUT ROWID",
    "CREATE TABLE owners (name TEXT PRIMARY KEY, host TEXT NOT NULL, process INTEGER NOT NULL, born TEXT NOT NULL, "
    "beat REAL NOT NULL)",
    "CREATE TABLE claims (key TEXT PRIMARY KEY, owner TEXT NOT NULL) WITHOUT ROWID",
)


@frozen
class Claim:
    """What became of the wish to answer some questions: each key is in one of the three."""

    mine: frozenset[str]
    answered: frozenset[str]
    others: frozenset[str]


@frozen
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
        self.owner = uuid.uuid4().hex  # the name of this run of a sweep
        self.born = _born(os.getpid()) or ""  # tells its process from a later one of the same number
        self._beat_s = -_BEAT_S
        owner = (self.owner, socket.gethostname(), os.getpid(), self.born, time.time())
        with _guarded(path):
            self._db = sqlite3.connect(path, timeout=_BUSY_MS / 1000, isolation_level=None, cached_statements=64)
            try:
                prepare(self._db, path)
                self._write_ahead()
                self._write(lambda: self._db.execute("INSERT INTO owners VALUES (?, ?, ?, ?, ?)", owner))
                self._free_dead()
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

    def close(self) -> None:
        """Give back what was claimed and not answered, and close the file."""
        try:
            self._write(lambda: self._forget([self.owner]))
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
            self._db.executemany("INSERT INTO claims VALUES (?, ?)", [(key, self.owner) for key in sorted(mine)])
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
        row = (time.time(), self.owner)
        self._write(lambda: self._db.execute("UPDATE owners SET beat = ? WHERE name = ?", row))
        self._free_dead()

    def free_dead(self) -> None:
        """Free what dead processes had claimed."""
        with _guarded(self.path):
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
        with _guarded(self.path):
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
        return SpecError.one(
            f"this store is damaged ({what}).", "Move it away and give the same command again.", file=self.path
        )

    def _read(self, statement: str, values: Sequence[object]) -> list[Any]:
        """Return the rows of a question to the file."""
        with _guarded(self.path):
            return self._db.execute(statement, values).fetchall()

    def _write(self, work: Callable[[], _Found]) -> _Found:
        """Do some work in one transaction."""
        with _guarded(self.path):
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
            is_far = host != socket.gethostname()
            if time.time() - beat > _DEAD_S if is_far else not _is_alive(process, born):
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


# -- owners ------------------------------------------------------------------------------------------------------------


def _is_alive(process: int, born: str) -> bool:
    """Return whether a process of this host lives; ``born`` tells it from a later one of the same number."""
    if born:
        return _born(process) == born
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _born(process: int) -> str | None:
    """Return when a process was started, in ticks of its host since which start.

    None where the system does not say, and of a process that is dead and only not waited for yet (a zombie).
    """
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"
    except (OSError, IndexError):
        return None


# -- the file ----------------------------------------------------------------------------------------------------------


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Check the tables of a file, or make them where it is empty.

    Each is one transaction: what others who start at the same time have made is seen whole or not at all.

    Raises
    ------
    SpecError
        As :func:`_refuse_foreign`.
    """
    with _transaction(connection, "BEGIN"):
        is_new = _refuse_foreign(connection, path)
    if is_new:
        with _transaction(connection, "BEGIN IMMEDIATE"):
            if _refuse_foreign(connection, path):  # or another process was faster
                for statement in _TABLES:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {VERSION}")


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    """Do what is within in one transaction, on one state of the file."""
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def _refuse_foreign(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether a file has no tables yet; refuse one of another program, of a newer version, or that was changed.

    To be asked within a transaction: numbers and tables must be of one moment. Views in the place of tables may never
    end, and triggers do more than is asked; tables and views of other names, and indices, do no harm.

    Raises
    ------
    SpecError
        With what to do.
    """
    application, version = _pragma(connection, "application_id"), _pragma(connection, "user_version")
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    if not application and not version and not rows:
        return True
    if application != APPLICATION:
        raise SpecError.one("this is a database of another program.", "Name another file with --store.", file=path)
    if version > VERSION:
        problem = f"a newer version of this program wrote this store (its format {version}; this one reads {VERSION})."
        raise SpecError.one(problem, "Upgrade this program, or name another file with --store.", file=path)
    own = {str(sql) for kind, _, sql in rows if kind == "table"}
    lacking = [statement.split()[2] for statement in _TABLES if statement not in own]
    triggers = [str(name) for kind, name, _ in rows if kind == "trigger"]
    problem = ""
    if version != VERSION:
        problem = f"its format is {version}, which no version of this program wrote."
    elif lacking:
        problem = f"its {'table' if len(lacking) == 1 else 'tables'} {', '.join(lacking)} cannot be this program's."
    elif triggers:
        problem = f"it has triggers ({', '.join(triggers)[:80]}), and no store of this program has any."
    if problem:
        raise SpecError.one(f"this store is damaged: {problem}", _ELSEWHERE, file=path)
    return False


@contextmanager
def _guarded(path: Path) -> Iterator[None]:
    """Turn what SQLite says about a file into what to do about it.

    Raises
    ------
    SpecError
        If the file or its folder cannot be written, the disk is full, the file is damaged, or others hold it too long.
    """
    try:
        yield
        return
    except UnicodeDecodeError:
        raise SpecError.one("this store is damaged: it holds text that is none.", _ELSEWHERE, file=path) from None
    except sqlite3.Error as error:
        text, code = str(error), getattr(error, "sqlite_errorname", "")
    if code.startswith("SQLITE_FULL") or "disk is full" in text:
        problem = "the disk is full. All answers so far are kept."
        hint = "Make room and give the same command again."
    elif code.startswith("SQLITE_IOERR"):
        problem = f"the disk fails ({text}); it may be full."
        hint = "Look at the disk and give the same command again."
    elif code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        kind = "there is no such folder" if not path.parent.is_dir() else "it cannot be written"
        problem, hint = f"{kind} ({text}).", "Name a file in a folder that can be written, with --store."
    elif code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        problem = "another process holds the store for more than a minute."
        hint = "Stop that process, or name another store."
    elif code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT")):
        problem = f"this is no store, or it is damaged ({text})."
        hint = "Move it away, or save what is left with `sqlite3 FILE .recover`; then give the same command again."
    else:
        problem, hint = f"the store cannot be used ({text}).", "Name another file with --store."
    raise SpecError.one(problem, hint, file=path)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    """Return a number of the file's header."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
