"""What a file is, told by its content; names and endings do not count."""

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from planner.frozen import frozen
from planner.plugins import Registry

if TYPE_CHECKING:
    from planner.importers.imported import Imported, MeasuredNetwork

_LOOKED_AT = 2**20  # bytes from the beginning, after decompression
_MOST_JSON = 16 * 2**20
_GRAPH = re.compile(r"^\S+ -- ", re.MULTILINE)
_EVENTS = re.compile(r'"traceEvents"\s*:|\{\s*"(?:ph|name|cat|pid|ts)"\s*:')
_BARE_EVENTS = re.compile(r'\s*\[\s*\{[^{}]*"ph"\s*:')
# Fields of an ONNX ModelProto and their wire types: https://github.com/onnx/onnx/blob/v1.19.0/onnx/onnx.proto.
_ONNX_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
_MOST_FIELDS = 64


def kind_of(path: Path) -> str | None:
    """Return what a file is; None where its content does not tell, or it cannot be read.

    One of ``onnx``, ``huggingface`` (a ``config.json``), ``graph`` (a profiled operator graph), ``layer_trace``,
    ``layer_csv`` and ``chrome_trace``, or what a plug-in knows where it is none of these. At most the first mebibyte is
    looked at, but for ``huggingface``, whose files are read whole up to 16 MiB. Nothing is checked beyond what tells
    the kinds apart: a reader may still refuse the file.
    """
    try:
        if not path.is_file():
            return None
        with path.open("rb") as stream:
            start = stream.read(_LOOKED_AT)
            if start.startswith(b"\x1f\x8b"):
                return (
                    "chrome_trace" if _is_chrome_trace(_unpacked(start).decode("utf-8-sig", errors="replace")) else None
                )
            if _is_onnx(stream, path.stat().st_size):
                return "onnx"
        text = start.decode("utf-8-sig", errors="replace")  # the last character may be cut
        if b"\0" in start:
            return None
        if text.lstrip().startswith(("{", "[")):
            if _is_chrome_trace(text):
                return "chrome_trace"
            if _is_configuration(path):
                return "huggingface"
            return next(
                IMPORTERS.where(lambda kind: kind not in IMPORTERS.own and IMPORTERS[kind].recognises(text)), None
            )
    except (OSError, ValueError):  # a path that no system takes, among others
        return None
    return next(IMPORTERS.where(lambda kind: IMPORTERS[kind].recognises(text)), None)


def _unpacked(data: bytes) -> bytes:
    """Return the beginning of what is compressed, as far as it goes."""
    unpacked = b""
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            while len(unpacked) < _LOOKED_AT and (piece := stream.read1(_LOOKED_AT)):
                unpacked += piece
    except (OSError, EOFError, zlib.error):  # cut off, or damaged: what came before still tells
        pass
    return unpacked


def _is_chrome_trace(text: str) -> bool:
    """Whether JSON text is a trace in Chrome's format."""
    found = text.lstrip().startswith("{") and _EVENTS.search(text)
    return bool(found and "traceEvents" in text) or _BARE_EVENTS.match(text) is not None


def _is_configuration(path: Path) -> bool:
    """Whether a JSON file describes a model of Hugging Face's transformers."""
    if path.stat().st_size > _MOST_JSON:
        return False
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and ("model_type" in found or "architectures" in found)


def _is_onnx(stream: BinaryIO, size: int) -> bool:
    """Whether a file is, or begins as, a serialised ModelProto: known fields, among them a version and the graph."""
    stream.seek(0)
    seen: set[int] = set()
    for _ in range(_MOST_FIELDS):
        tag = _varint(stream)
        if tag is None:
            break
        number, wire = tag >> 3, tag & 7
        if _ONNX_FIELDS.get(number) != wire:
            return False
        length = _varint(stream)
        if length is None:
            break
        seen.add(number)
        if wire == 2:
            if stream.tell() + length > size:  # cut off
                break
            stream.seek(length, io.SEEK_CUR)
    return 7 in seen and bool(seen & {1, 8})


def _varint(stream: BinaryIO) -> int | None:
    """Return the next number of a serialised message; None at the end, or where there is none."""
    value = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    return None


# -- tables ----------------------------------------------------------------------------------------------------------


def _first_line(text: str) -> str:
    """Return the first line that is no comment."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")


def _is_layer_csv(text: str) -> bool:
    """Whether the first line names columns of our own table."""
    cells = [cell.strip(' "').lower() for cell in _first_line(text).split(",")]
    return "name" in cells and any(cell.startswith(("forward_", "backward_")) for cell in cells)


def _is_layer_trace(text: str) -> bool:
    """Whether the first line names, or has, the columns Id Name Forward Backward Comm. Size."""
    line = _first_line(text)
    cells = [cell.strip() for cell in (line.split(",") if "," in line else line.split())]
    if [cell.lower() for cell in cells[:3]] == ["id", "name", "forward"]:
        return True
    try:
        list(map(float, cells[2:]))
    except ValueError:
        return False
    return len(cells) == 6 and cells[0].isdecimal()


# -- readers ---------------------------------------------------------------------------------------------------------


@frozen
class Importer:
    """What a kind of file of measured layers is, and its reader."""

    recognises: Callable[[str], bool]  # whether text is of this kind, by its first mebibyte
    # ``(path, batch_size=...)``: the network with the seconds of one sample, of a batch of so many that was measured;
    # raises SpecError where the file is damaged. Of a plug-in the seconds may be missing, and so may the batch
    read: "Callable[..., Imported | MeasuredNetwork]"


def _late(module: str, name: str) -> "Callable[..., MeasuredNetwork]":
    """Return a reader whose module is imported when it reads: few questions need more than one."""

    def read(path: Path, *, batch_size: int) -> "MeasuredNetwork":
        reader: Callable[..., MeasuredNetwork] = getattr(import_module(f"planner.importers.{module}"), name)
        return reader(path, batch_size=batch_size)

    return read


# In the order in which text is held against them.
IMPORTERS: Registry[Importer] = Registry(
    "planner.importers",
    {
        "layer_csv": Importer(recognises=_is_layer_csv, read=_late("profiles", "read_layer_csv")),
        "layer_trace": Importer(recognises=_is_layer_trace, read=_late("profiles", "read_layer_trace")),
        "graph": Importer(
            recognises=lambda text: _GRAPH.search(text) is not None, read=_late("profiles", "read_graph_profile")
        ),
        "chrome_trace": Importer(recognises=_is_chrome_trace, read=_late("chrome_trace", "read_chrome_trace")),
    },
    needs=["recognises", "read"],
)
