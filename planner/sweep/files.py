"""Files that a question names: found from the folder of the spec, read once, and told apart by their content."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.network_import import import_file
from planner.question.dnn import with_network_files
from planner.question.source import Source, read_source
from planner.question.spec import NETWORK_KEYS

_NETWORKS = ("profile", "trace", "onnx", "huggingface")
_OF_READING = ("dimensions", "sequence_length", "text_only", "profile_batch")  # what a file's reader is told beside it
_MOST_NAME = 1024
_BUILT_IN = "built-in"


@dataclass(slots=True)
class Files:
    """What the questions of a sweep read, from one folder.

    A network is read once and put into every question that names its file, so that a worker needs no such file.
    All other files are named by their whole path; a worker elsewhere must find them there.
    """

    folder: Path
    digests: dict[str, str] = field(default_factory=dict)
    _blocks: dict[str, Any] = field(default_factory=dict)
    _is_there: dict[str, bool] = field(default_factory=dict)

    def resolved(self, question: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return a question that can be asked from any folder, and the digest of each file that it still names.

        Raises
        ------
        SpecError
            If a network's file is wrong.
        """
        used: dict[str, str] = {}
        found = dict(question)
        if isinstance(found.get("dnn"), dict):
            found["dnn"] = self._network(found["dnn"], used)
        if "calibration" in found:
            found["calibration"] = self._calibration(found["calibration"], used)
        if isinstance(found.get("procure"), dict):
            found["procure"] = self._procure(found["procure"], used)
        return found, used

    def resolved_names(self, data: object) -> list[tuple[str, str]]:
        """Return every text in data that names a file, with the digest of what it holds, sorted."""
        found: dict[str, str] = {}
        waiting = [data]
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                waiting.extend(value.values())
            elif isinstance(value, list | tuple):
                waiting.extend(value)
            elif isinstance(value, str) and 0 < len(value) <= _MOST_NAME and self._is_file(value):
                used: dict[str, str] = {}
                self._named(value, used)
                found[value] = next(iter(used.values()))
        return sorted(found.items())

    def _is_file(self, name: str) -> bool:
        """Return whether a text names a file of the folder; asked once for each text."""
        if name not in self._is_there:
            try:
                self._is_there[name] = (self.folder / name).is_file()
            except (OSError, ValueError):
                self._is_there[name] = False
        return self._is_there[name]

    def _named(self, name: Any, used: dict[str, str]) -> Any:
        """Return a file's name as a whole path, its digest noted; what is no text stays, for others to judge."""
        if not isinstance(name, str) or not name:
            return name
        path = str((self.folder / name).absolute())
        if path not in self.digests:
            self.digests[path] = _digest_of(Path(path))
        used[path] = self.digests[path]
        return path

    def _network(self, dnn: dict[str, Any], used: dict[str, str]) -> dict[str, Any]:
        """Return a block dnn with the network of its file in it; what stands beside a file's name wins."""
        if "file" in dnn:
            name, own = dnn["file"], {key: value for key, value in dnn.items() if key != "file"}
            if not isinstance(name, str) or any(key in own for key in NETWORK_KEYS):  # wrong: its question shall say so
                dnn = {**dnn, "file": str((self.folder / str(name)).absolute())}
            else:
                if name not in self._blocks:  # what ``planner import`` wrote
                    source = Source(data={"dnn": {"file": name}}, file="", folder=self.folder, positions={})
                    self._blocks[name] = with_network_files(source).data["dnn"]
                dnn = {**self._blocks[name], **own}
        for key in _NETWORKS:
            if isinstance(dnn.get(key), str) and dnn[key]:
                return self._of_program(dnn, key, used)
        return dnn

    def _of_program(self, dnn: dict[str, Any], key: str, used: dict[str, str]) -> dict[str, Any]:
        """Return a block with the network of another program's file; of a profile only if its batch is given."""
        path = self._named(dnn[key], used)
        is_measured = key in ("profile", "trace")
        if is_measured and not isinstance(dnn.get("profile_batch"), int):
            return {**dnn, key: path}
        told = {name: dnn[name] for name in _OF_READING if name in dnn and (name != "profile_batch" or is_measured)}
        place = f"{key} {path} {sorted(told.items(), key=str)}"
        if place not in self._blocks:
            self._blocks[place] = self._imported(Path(path), told)
        block = self._blocks[place]
        if block is None:
            return {**dnn, key: path}
        del used[path]
        return {**block, **{name: value for name, value in dnn.items() if name != key and name not in _OF_READING}}

    @staticmethod
    def _imported(path: Path, told: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the block of a file's network; None where its question shall say what is wrong."""
        try:
            found = import_file(
                path,
                sizes=told.get("dimensions") or {},
                sequence_length=told.get("sequence_length"),
                is_text_only=bool(told.get("text_only", False)),
                batch_size=told.get("profile_batch"),
            )
        except (SpecError, ValueError, TypeError, AttributeError):
            return None
        if found.dnn is None:
            return None
        words = [*found.block.get("warnings", []), *found.notes]
        return {**found.block, **({"warnings": words} if words else {})}

    def _calibration(self, given: Any, used: dict[str, str]) -> Any:
        """Return a calibration, its files by their whole paths."""
        if not isinstance(given, str):
            if not isinstance(given, dict) or not isinstance(given.get("curves"), list):
                return given
            return {**given, "curves": [self._with_file(curve, used) for curve in given["curves"]]}
        path = self._named(given, used)
        try:
            data = read_source(Path(path)).data
        except (SpecError, OSError, ValueError):
            return path
        # The digests of the files that the calibration's file names: its folder is theirs.
        block = data.get("calibration", data)
        curves = block.get("curves") if isinstance(block, dict) else None
        for curve in curves if isinstance(curves, list) else ():
            if isinstance(curve, dict) and isinstance(curve.get("file"), str):
                self._named(str(Path(path).parent / curve["file"]), used)
        return path

    def _with_file(self, part: Any, used: dict[str, str]) -> Any:
        """Return a part whose key ``file`` is a whole path."""
        return {**part, "file": self._named(part["file"], used)} if isinstance(part, dict) and "file" in part else part

    def _procure(self, given: dict[str, Any], used: dict[str, str]) -> dict[str, Any]:
        """Return a block procure, its files by their whole paths."""
        found = dict(given)
        prices = found.get("prices")
        if prices is not None:
            names = prices if isinstance(prices, list) else [prices]
            found["prices"] = [name if name == _BUILT_IN else self._named(name, used) for name in names]
        networks = found.get("networks")
        if isinstance(networks, list | dict):
            rows = networks if isinstance(networks, list) else [networks]
            found["networks"] = [self._with_file(one, used) for one in rows]
        if isinstance(found.get("jobs"), list):
            found["jobs"] = [
                {**job, "dnn": self._network(job["dnn"], used)}
                if isinstance(job, dict) and isinstance(job.get("dnn"), dict)
                else job
                for job in found["jobs"]
            ]
        return found


def _digest_of(path: Path) -> str:
    """Return the digest of what a file holds; of a device or a pipe, which may never end, nothing is read."""
    try:
        if path.is_file():
            with path.open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()
    except (OSError, ValueError):
        pass
    return "unreadable"  # who asks the question says so
