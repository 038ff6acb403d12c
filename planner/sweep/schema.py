"""The tables of a store, and the words for what can go wrong with its file."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from planner.errors import Fault, SpecError

__all__ = ["APPLICATION", "VERSION", "guarded", "prepare"]

APPLICATION = 0x504C5357  # "PLSW", in the file's header: tells a store of ours from other databases
VERSION = 1
_EMPTY = 0

# Wall times stand in a table of their own: all others hold the same for the same questions.
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


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Check the tables of a file, or make them where it is empty.

    Each is one transaction: what others who start at the same time have made is seen whole or not at all.

    Raises
    ------
    SpecError
        As :func:`refuse_foreign`.
    """
    with _transaction(connection, "BEGIN"):
        is_new = refuse_foreign(connection, path)
    if is_new:
        create(connection, path)


def create(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of an empty file; do nothing where another process was faster."""
    with _transaction(connection, "BEGIN IMMEDIATE"):
        if refuse_foreign(connection, path):
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


def refuse_foreign(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether a file has no tables yet; refuse one of another program, or of a newer version of this one.

    To be asked within a transaction: numbers and tables must be of one moment.

    Raises
    ------
    SpecError
        With what to do.
    """
    application, version = _pragma(connection, "application_id"), _pragma(connection, "user_version")
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application == _EMPTY and version == _EMPTY and not tables:
        return True
    if application != APPLICATION:
        raise _fault(path, "this is a database of another program.", "Name another file with --store.")
    if version > VERSION:
        problem = f"a newer version of this program wrote this store (its format {version}; this one reads {VERSION})."
        raise _fault(path, problem, "Upgrade this program, or name another file with --store.")
    _refuse_changed(connection, path, version)
    return False


def _refuse_changed(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Refuse tables that somebody changed, views in their place, which may never end, and triggers.

    Tables and views of other names, and indices, do no harm.
    """
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    given = {str(sql) for kind, _, sql in rows if kind == "table"}
    lacking = [statement.split()[2] for statement in _TABLES if statement not in given]
    triggers = [str(name) for kind, name, _ in rows if kind == "trigger"]
    problem = ""
    if version != VERSION:
        problem = f"its format is {version}, which no version of this program wrote."
    elif lacking:
        problem = f"its {'table' if len(lacking) == 1 else 'tables'} {', '.join(lacking)} cannot be this program's."
    elif triggers:
        problem = f"it has triggers ({', '.join(triggers)[:80]}), and no store of this program has any."
    if problem:
        mend = "Move it away and give the same command again, or name another file with --store."
        raise _fault(path, f"this store is damaged: {problem}", mend)


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Turn what SQLite says about a file into what to do about it.

    Raises
    ------
    SpecError
        If the file or its folder cannot be written, the disk is full, the file is damaged, or others hold it too long.
    """
    try:
        yield
    except UnicodeDecodeError:
        mend = "Move it away and give the same command again, or name another file with --store."
        raise _fault(path, "this store is damaged: it holds text that is none.", mend) from None
    except sqlite3.Error as error:
        problem, mend = _words(error, path)
        raise _fault(path, problem, mend) from None


def _words(error: sqlite3.Error, path: Path) -> tuple[str, str]:
    """Return problem and mend."""
    text = str(error)
    code = getattr(error, "sqlite_errorname", "")
    if code.startswith("SQLITE_FULL") or "disk is full" in text:
        return "the disk is full. All answers so far are kept.", "Make room and give the same command again."
    if code.startswith("SQLITE_IOERR"):
        return f"the disk fails ({text}); it may be full.", "Look at the disk and give the same command again."
    if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        kind = "there is no such folder" if not path.parent.is_dir() else "it cannot be written"
        return f"{kind} ({text}).", "Name a file in a folder that can be written, with --store."
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "another process holds the store for more than a minute.", "Stop that process, or name another store."
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT")):
        mend = "Move it away, or save what is left with `sqlite3 FILE .recover`; then give the same command again."
        return f"this is no store, or it is damaged ({text}).", mend
    return f"the store cannot be used ({text}).", "Name another file with --store."


def _fault(path: Path, problem: str, mend: str) -> SpecError:
    """Return the error of a store."""
    return SpecError.of([Fault(file=str(path), problem=problem, mend=mend)])


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    """Return a number of the file's header."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
