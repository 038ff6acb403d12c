"""Changes to ONNX graphs, field by field, and to the stores of sweeps, row by row."""

import json
import sqlite3
import zlib
from random import Random
from typing import Any

from fuzz_changes import changed, edge_value

__all__ = ["changed_onnx", "changed_store"]

# -- ONNX ------------------------------------------------------------------------------------------------------------

_WHOLE = (0, 1, -1, 2, 3, 7, 16, 17, 255, 2**31 - 1, -(2**31), 2**62, -(2**63), 2**63 - 1, 10**6)
_WORDS = (
    "",
    "x",
    "y",
    "Conv",
    "MatMul",
    "Loop",
    "If",
    "Scan",
    "Reshape",
    "Constant",
    "com.microsoft",
    "ai.onnx",
    "A" * 5000,
)
_MORE_WORDS = (
    "../../etc/passwd",
    "/etc/passwd",
    "\x1b[31m",
    "é\u202e",
    "LSTM",
    "Attention",
    "Range",
    "ConstantOfShape",
    "axis",
)


def changed_onnx(data: bytes, draw: Random) -> bytes:
    """Return a serialised model with one to four fields changed."""
    import onnx

    model = onnx.ModelProto.FromString(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        _change_field(model, draw)
    return bytes(model.SerializeToString())


def _change_field(model: Any, draw: Random) -> None:
    """Change a field of a message that a walk from the root finds."""
    here = model
    for _ in range(12):
        filled = here.ListFields()
        if not filled:
            return
        # The graph of a model, and not its producer, is what most of the walks should see.
        field, value = draw.choices(filled, [6 if one.name in ("graph", "node") else 1 for one, _ in filled])[0]
        is_list = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
        if field.message_type is None:
            _set(here, field, value, is_list, draw)
            return
        if draw.random() < 0.12:
            _reorder(here, field, value, is_list, draw)
            return
        here = draw.choice(value) if is_list else value
    return


def _reorder(here: Any, field: Any, value: Any, is_list: bool, draw: Random) -> None:
    """Drop, double or shuffle messages."""
    kind = draw.randrange(4)
    if not is_list or kind == 0:
        here.ClearField(field.name)
    elif kind == 1:
        del value[draw.randrange(len(value))]
    elif kind == 2:
        copies = [draw.choice(value) for _ in range(draw.choice((1, 2, 100)))]
        for one in copies:
            value.add().CopyFrom(one)
    else:
        order = list(value)
        draw.shuffle(order)
        copies = [type(one).FromString(one.SerializeToString()) for one in order]
        del value[:]
        for one in copies:
            value.add().CopyFrom(one)


def _set(here: Any, field: Any, value: Any, is_list: bool, draw: Random) -> None:
    """Set a number or a text to another one."""
    kind = field.cpp_type if hasattr(field, "cpp_type") else 0
    values = list(value) if is_list else [value]
    old = draw.choice(values)
    if isinstance(old, str):
        new: Any = draw.choice((draw.choice(_WORDS), draw.choice(_MORE_WORDS), f"{old}x", old[:-1]))
    elif isinstance(old, bytes):
        new = draw.choice((b"", old[:-1], old + b"\xff", b"\xff" * 64))
    elif isinstance(old, float):
        new = draw.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    else:
        new = draw.choice((*_WHOLE, int(old) + 1, int(old) * 1000))
    try:
        if not is_list:
            setattr(here, field.name, new)
            return
        index = draw.randrange(len(values))
        values = draw.choice(
            (values[:index] + values[index + 1 :], [*values, new], [*values[:index], new, *values[index + 1 :]])
        )
        here.ClearField(field.name)
        getattr(here, field.name).extend(values)
    except (ValueError, TypeError, OverflowError):  # beyond what the field can hold
        _ = kind


# -- SQLite ----------------------------------------------------------------------------------------------------------

_TABLES = ("results", "timings", "sweeps", "members", "owners", "claims")
_ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"
_STATEMENTS = (
    "DROP TABLE {table}",
    "ALTER TABLE {table} RENAME TO other",
    "ALTER TABLE {table} ADD COLUMN more TEXT",
    "ALTER TABLE {table} RENAME COLUMN {column} TO strange",
    "ALTER TABLE {table} DROP COLUMN {column}",
    "DELETE FROM {table}",
    "PRAGMA user_version = {number}",
    "PRAGMA application_id = {number}",
    "CREATE TABLE more (a, b)",
    "CREATE TRIGGER stop BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'no'); END",
    "CREATE TRIGGER more AFTER INSERT ON {table} BEGIN DELETE FROM results; END",
)


def changed_store(data: bytes, draw: Random) -> bytes:
    """Return a store with changed rows, tables or versions."""
    db = sqlite3.connect(":memory:")
    try:
        db.deserialize(data)
        number = draw.choice((1, 1, 1, 2, 4))
        changes = draw.choices((_row, _copy, _statement, _document, _view), (14, 3, 3, 3, 1), k=number)
        for change in sorted(changes, key=lambda one: one is _view):  # nothing can be read after that one
            try:
                change(db, draw)
                db.commit()
            except (
                sqlite3.Error,
                OverflowError,
                UnicodeEncodeError,
                IndexError,
                TypeError,
                zlib.error,
                ValueError,
            ):  # the change itself is one that SQLite refuses
                db.rollback()
        return db.serialize()
    finally:
        db.close()


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]


def _cell(draw: Random) -> Any:
    """A value of any type that SQLite holds."""
    kind = draw.randrange(8)
    if kind == 0:
        return draw.randbytes(draw.choice((0, 1, 30)))
    if kind == 1:
        return None
    if kind == 2:
        return draw.choice((2**62, -(2**62), 0, -1, 1e308, -1e308, float("inf"), 1e-320))
    value = edge_value(draw)
    return (
        value if isinstance(value, str | float) or (isinstance(value, int) and abs(value) < 2**63) else str(value)[:300]
    )


def _row(db: sqlite3.Connection, draw: Random) -> None:
    """Change a cell of one row, or of all of them."""
    table = draw.choice(_TABLES[:4])
    column = draw.choice(_columns(db, table))
    rows = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    where = "" if draw.random() < 0.3 else f" WHERE rowid = {draw.randrange(1, rows + 2)}"
    if table == "members" and where:
        where = f" WHERE position = {draw.randrange(rows + 1)}"
    db.execute(f"UPDATE {table} SET {column} = ?{where}", (_cell(draw),))


def _copy(db: sqlite3.Connection, draw: Random) -> None:
    """Add a row, most of whose cells are another one's."""
    table = draw.choice(_TABLES)
    columns = _columns(db, table)
    rows = db.execute(f"SELECT * FROM {table}").fetchall() or [tuple(_cell(draw) for _ in columns)]
    values = [draw.choice((cell, cell, _cell(draw))) for cell in draw.choice(rows)]
    db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)


def _statement(db: sqlite3.Connection, draw: Random) -> None:
    """Change tables, versions or triggers."""
    table = draw.choice(_TABLES)
    column = draw.choice(_columns(db, table) or ["x"])
    number = draw.choice((0, 1, 2, -1, 2**31 - 1))
    db.execute(draw.choice(_STATEMENTS).format(table=table, column=column, number=number))


def _document(db: sqlite3.Connection, draw: Random) -> None:
    """Change the document of an answer, or of the sweep, as it was before it was compressed; or after."""
    table, key = draw.choice((("results", "key"), ("sweeps", "identity")))
    name, document = draw.choice(db.execute(f"SELECT {key}, document FROM {table}").fetchall())
    text = zlib.decompress(document)
    kind = draw.randrange(5)
    if kind == 0:
        text = b"[" * 100_000
    elif kind == 1:
        text = b" " * (300 * 2**20) if draw.random() < 0.02 else b" " * 10**6
    elif kind < 4:
        text = json.dumps(changed(json.loads(text), draw, {})).encode()
    found = zlib.compress(text, 1)
    db.execute(f"UPDATE {table} SET document = ? WHERE {key} = ?", (found if kind else found[:-5], name))


def _view(db: sqlite3.Connection, draw: Random) -> None:
    """Put a view in a table's place that never ends."""
    table = draw.choice(_TABLES)
    columns = _columns(db, table)
    db.execute(f"DROP TABLE {table}")
    cells = ", ".join(f"x AS {column}" for column in columns)
    db.execute(f"CREATE VIEW {table} AS {_ENDLESS.replace('SELECT x FROM c', f'SELECT {cells} FROM c')}")
