"""``dnn: {file: dnn.yaml}``: a network that ``planner import`` wrote, with what the spec says beside it.

In a question that is a mapping the network itself may stand there, too, as :func:`planner.from_torch` returns it:
``dnn: {network: found, batch_per_device: 64}``.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.dnn import Dnn
from planner.errors import Fault, SpecError
from planner.importers.imported import Imported
from planner.importers.kinds import kind_of
from planner.spec.inline import imported_block
from planner.spec.question import NETWORK_KEYS, DnnSpec
from planner.spec.source import Source, faults_of, read_source

__all__ = ["with_network_files", "with_networks"]

_FILE, _NETWORK = "file", "network"
_Path = tuple[str | int, ...]
_Parts = dict[_Path, tuple[Source, _Path]]
_PATHS = ("profile", "trace", "onnx", "huggingface")


def with_networks(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return a question as plain data, a network in it as the block of its layers."""
    given = question.get("dnn")
    found = given.get(_NETWORK) if isinstance(given, Mapping) else given
    if not isinstance(found, Dnn | Imported):
        return dict(question)
    beside = {key: value for key, value in given.items() if key != _NETWORK} if isinstance(given, Mapping) else {}
    imported = found if isinstance(found, Imported) else Imported(dnn=found)
    return {**question, "dnn": {**imported_block(imported), **beside}}


def with_network_files(source: Source) -> Source:
    """Return the question with every network that stands in a file; keys of the question win over the file's.

    Raises
    ------
    SpecError
        If a file cannot be read, its block is wrong, or the question names another network, too.
    """
    parts: _Parts = {}
    data = _with_file(source.data, source, (), parts)
    procure = data.get("procure")
    jobs = procure.get("jobs") if isinstance(procure, dict) else None
    if isinstance(procure, dict) and isinstance(jobs, list):
        path = ("procure", "jobs")
        rows = [_with_file(job, source, (*path, index), parts) for index, job in enumerate(jobs)]
        data = {**data, "procure": {**procure, "jobs": rows}}
    return replace(source, data=data, parts=parts)


def _with_file(part: Any, source: Source, path: _Path, parts: _Parts) -> Any:
    """Return a part of a question with the network of its file, if it names one; note which file that is."""
    given = part.get("dnn") if isinstance(part, dict) else None
    if not isinstance(given, dict) or _FILE not in given:
        return part
    at = (*path, "dnn", _FILE)
    if not isinstance(given[_FILE], str) or not given[_FILE]:
        raise SpecError.of([source.fault(at, "this must be the name of a file.", "Write e.g. dnn.yaml.")])
    if also := [key for key in NETWORK_KEYS if key in given]:
        problem = f"{_FILE} and {also[0]} both name a network."
        raise SpecError.of([source.fault((*path, "dnn", also[0]), problem, "Keep one of them.")])
    own = {key: value for key, value in given.items() if key != _FILE}
    block, file, root = _block(source.folder / given[_FILE])
    parts[(*path, "dnn")] = (file, root)
    return {**part, "dnn": {**block, **own}}


def _block(path: Path) -> tuple[dict[str, Any], Source, _Path]:
    """Return a file's block, checked by itself so that faults name the file's own lines, the file, and its place."""
    if (kind := kind_of(path)) is not None:
        key = kind if kind in _PATHS else "profile"
        problem = f"this is no block that `planner import` wrote, but of the kind {kind}."
        raise SpecError.of([Fault(file=str(path), problem=problem, mend=f"Write {key}: instead of {_FILE}:.")])
    found = read_source(path)
    has_key = "dnn" in found.data
    root: _Path = ("dnn",) if has_key else ()
    block = found.data["dnn"] if has_key else found.data
    if not isinstance(block, dict) or _FILE in block:
        problem = "a file cannot name a further file." if isinstance(block, dict) else "this holds no network."
        raise SpecError.of([found.fault(root, problem, "Give what `planner import FILE -o dnn.yaml` wrote.")])
    try:
        DnnSpec.model_validate(block)
    except ValidationError as error:
        raise SpecError.of(faults_of(error, found, DnnSpec, root)) from None
    named = {key: block[key] for key in _PATHS if isinstance(block.get(key), str)}  # relative to this file
    absolute = {key: str((found.folder / name).resolve()) for key, name in named.items()}
    return {**block, **absolute}, found, root
