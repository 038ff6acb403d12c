"""``planner import``: the network of a file of another program, or of a module, as a block that a spec can name.

A launch file that ``planner export`` wrote gives its decisions back, as a ``fix`` block, where it says the sizes of its
network that network, and its numbers, optimiser, adapters and batch.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypedDict

from planner.cost import Profile
from planner.dnn import Dnn
from planner.errors import Fault, SpecError
from planner.exporters import TARGETS, Exporter, TrainingBlocks, reader_of
from planner.frozen import frozen
from planner.importers.huggingface import HuggingFaceNetwork, read_huggingface
from planner.importers.huggingface.configuration import read_config
from planner.importers.imported import Imported
from planner.importers.kinds import IMPORTERS, kind_of
from planner.importers.text import is_there, read_text
from planner.question.dnn import imported_block, read_foreign, read_profile, transformer_block
from planner.transformer import Transformer

_LAUNCHED = {".sh", ".py", ".yaml", ".yml", ".json", ".sbatch", ".toml"}
_NAMED = re.compile(r"[\w-][\w.-]*\.(?:py|ya?ml|json)\b")  # what a script starts
_MOST_FILES, _MOST_BYTES = 100, 2**20  # of a folder, and each of them
_FOREIGN = ("onnx", "huggingface")
# What may be given for a kind of file, as the command line calls it; of any other it would change nothing.
_OPTIONS = {
    "--dimension": (("onnx",), "an ONNX model"),
    "--sequence-length": (("huggingface",), "a Hugging Face configuration"),
    "--text-only": (("huggingface",), "a Hugging Face configuration"),
    "--profile-batch": (IMPORTERS, "a measured profile"),
}


class KindRow(TypedDict):
    """All layers of one kind, for one sample."""

    kind: str
    layers: int
    trainable: int
    multiply_adds: int
    output_elements: int


@frozen
class ImportedFile:
    """What an import found: a network, or the decisions of a launch file."""

    kind: str  # of the file: ``onnx``, ``huggingface``, ``torch``, one of the profiles, or the target of a launch file
    block: Mapping[str, Any]  # ``dnn`` block of the network, or ``fix`` block of the decisions of a launch file
    dnn: Dnn | None = None
    profile: Profile | None = None
    facts: Mapping[str, float] = field(default_factory=dict)  # totals that the reader counted beside the network's own
    transformer: Transformer | None = None  # of a launch file: the network that it trains, where its sizes stand in it
    # of a launch file: what it says beside network and layout
    training: TrainingBlocks = field(default_factory=TrainingBlocks)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The part of a spec that the block is for."""
        return "fix" if self.dnn is None else "dnn"

    @property
    def network_block(self) -> Mapping[str, Any]:
        """The ``dnn`` block of a launch file: its network, where its sizes stand in it, and how that is trained."""
        network = {} if self.transformer is None else transformer_block(self.transformer)
        return {**network, **self.training.dnn}

    @property
    def blocks(self) -> Mapping[str, Mapping[str, object]]:
        """All blocks of a spec that the file is read as: one of a network, up to three of a launch file."""
        more = {"dnn": self.network_block, "calibration": self.training.calibration}
        return {self.key: self.block, **{key: block for key, block in more.items() if block}}

    def rows(self) -> list[KindRow]:
        """Return how many layers of each kind there are and what they hold, in the order of their first."""
        layers = () if self.dnn is None else self.dnn.layers
        rows: dict[str, KindRow] = {}
        for layer in layers:
            row = rows.setdefault(
                layer.kind, {"kind": layer.kind, "layers": 0, "trainable": 0, "multiply_adds": 0, "output_elements": 0}
            )
            row["layers"] += 1
            row["trainable"] += layer.num_trainable
            row["multiply_adds"] += layer.num_multiply_adds
            row["output_elements"] += layer.num_output_elements
        return list(rows.values())

    def totals(self) -> dict[str, float]:
        """Return what the whole network comes to, for one sample."""
        if self.transformer is not None:
            return {"parameters": self.transformer.num_parameters}
        if self.dnn is None:
            return {}
        counts: dict[str, float] = {
            "layers": len(self.dnn.layers),
            "trainable": self.dnn.num_trainable,
            "moving": self.dnn.num_moving,
            "multiply_adds": self.dnn.num_multiply_adds,
            "stored_elements": self.dnn.num_stored_elements,
        }
        if self.profile is not None:
            counts["forward_s"] = float(self.profile.forward_s.sum())
            counts["backward_s"] = float(self.profile.backward_s.sum())
        return {**counts, **self.facts}

    def to_document(self) -> dict[str, object]:
        """Return ``planner.import/1``."""
        return {
            "schema": "planner.import/1",
            "kind": self.kind,
            **{key: dict(block) for key, block in self.blocks.items()},
            "rows": self.rows(),
            "totals": self.totals(),
            "notes": list(self.notes),
            "warnings": list(self.warnings),
        }


def import_file(
    path: Path,
    *,
    sizes: Mapping[str, int] | None = None,
    sequence_length: int | None = None,
    is_text_only: bool = False,
    batch_size: int | None = None,
) -> ImportedFile:
    """Return what a file holds; its kind is told by its content.

    Parameters
    ----------
    path
        A file, the folder of a Hugging Face checkpoint, or one of launch files.
    sizes
        Of symbolic dimensions of an ONNX file, by name.
    sequence_length, is_text_only
        Of a Hugging Face configuration; of one with several parts its text part alone. The former of the one beside
        DeepSpeed's, too.
    batch_size
        Samples of the batch that a profile was measured at.

    Raises
    ------
    SpecError
        If nothing here can read it, it is wrong, or something is given that it has no use for.
    """
    kind = kind_of(path)
    if kind is None and path.suffix.lower() == ".onnx":
        kind = "onnx"  # where the content does not tell, its reader says why
    elif kind is None and (path.name == "config.json" or _is_checkpoint(path)):
        kind = "huggingface"
    given = {
        "--dimension": sizes,
        "--sequence-length": sequence_length is not None,
        "--text-only": is_text_only,
        "--profile-batch": batch_size is not None,
    }
    wrong = [name for name, value in given.items() if value and kind not in _OPTIONS[name][0]]
    if kind is not None and wrong:
        raise SpecError.of(
            Fault(file=str(path), field=name, problem=f"it belongs to {_OPTIONS[name][1]}.", mend="Leave it out here.")
            for name in wrong
        )
    if kind in _FOREIGN:
        found = read_foreign(
            kind,
            path.name,
            folder=path.parent,
            sizes=sizes or {},
            sequence_length=sequence_length,
            allowed_code=None,
            is_text_only=is_text_only,
        )
        return _network(kind, found)
    if kind is not None and kind in IMPORTERS.own:
        if batch_size is None:
            problem = "the batch at which the profile was measured is missing."
            raise SpecError.one(problem, "Write e.g. 128.", file=path, field="--profile-batch")
        measured = read_profile(path, batch_size=batch_size)
        warnings = measured.warnings
        if device := measured.profile.measured_on:
            told = f"its seconds were measured on {device}, as the trace says"
            warnings = (*warnings, f"{told}; set dnn.profile_device where a plan is for another device")
        imported = Imported(dnn=measured.dnn, profile=measured.profile, warnings=warnings)
        return _network(kind, imported, batch_size=batch_size)
    if kind is not None and kind not in _FOREIGN:
        given_by = IMPORTERS[kind].read(path, batch_size=batch_size)
        imported = given_by if isinstance(given_by, Imported) else Imported(dnn=given_by.dnn, profile=given_by.profile)
        return _network(kind, replace(imported, warnings=given_by.warnings), batch_size=batch_size or 1)
    if (launch := _launch(path, sequence_length)) is not None:
        return launch
    if path.is_dir():
        problem = "none of its files is a launch file of `planner export`, and it has no config.json."
        raise SpecError.one(problem, "Name a file in it, or another folder.", file=path)
    text = read_text(path)
    if text.lstrip().startswith("{"):
        read_config(path)  # says where it is no JSON
    problem = "its content is of no kind that is known here."
    hint = "Give an ONNX model, a Hugging Face config.json, a profile (see --template), or a launch file of ours."
    raise SpecError.one(problem, hint, file=path)


def _is_checkpoint(path: Path) -> bool:
    """Whether a folder is one of Hugging Face's, which has no launch files."""
    return is_there(path / "config.json") and not is_there(path / "launch.sh")


def _launch(path: Path, sequence_length: int | None) -> ImportedFile | None:
    """Return what a launch file says, or all those of a folder, or of what a script starts; None where none is one."""
    files = _recognised(path)
    # What only starts machines says less than what trains on them.
    files = [one for one in files if not TARGETS[one[2]].starts_machines] or files
    if len(named := {target: one.name for one, _, target, _ in reversed(files)}) > 1:
        listed = " and ".join(f"{target} ({name})" for target, name in sorted(named.items()))
        raise SpecError.one(f"it holds files of {listed}.", "Name one of them.", file=path)
    parts = [_launch_part(*one, sequence_length) for one in files]
    if not parts:
        return None
    warnings = tuple(dict.fromkeys(line for one in parts for line in one.warnings))
    return ImportedFile(
        kind=parts[0].kind,
        block=_joined(one.block for one in parts),
        transformer=next((one.transformer for one in parts if one.transformer is not None), None),
        training=TrainingBlocks(
            dnn=_joined(one.training.dnn for one in parts),
            calibration=_joined(one.training.calibration for one in parts),
            warnings=warnings,
        ),
        notes=tuple(line for one in parts for line in one.notes),
        warnings=warnings,
    )


def _recognised(path: Path) -> list[tuple[Path, str, str, Exporter]]:
    """Return the launch files at a path: each with its text, its target and what reads it."""
    read = [(one, text, reader_of(one, text)) for one, text in ((one, read_text(one)) for one in _launch_files(path))]
    return [(one, text, *found) for one, text, found in read if found is not None]


def other_launch_files(folder: Path, written: Collection[str]) -> list[str]:
    """Return the names of launch files in a folder beside those that were written now."""
    return [one.name for one, *_ in _recognised(folder) if one.name not in written]


def _joined(blocks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the keys of all blocks, of which the last says what it has."""
    return {key: value for one in blocks for key, value in one.items()}


def _launch_part(path: Path, text: str, target: str, reader: Exporter, sequence_length: int | None) -> ImportedFile:
    """Return what one launch file says."""
    training = reader.training(path, text)
    beside = None if path.suffix != ".json" else _network_beside(path, sequence_length)
    return ImportedFile(
        kind=target,
        block=reader.degrees(path, text),
        transformer=reader.network(path, text) if beside is None else beside.transformer,
        training=training,
        notes=() if beside is None else beside.notes,
        warnings=training.warnings + (() if beside is None else beside.warnings),
    )


def _launch_files(path: Path) -> list[Path]:
    """Return the file, or those of a folder, or with a script that is none itself those beside it which it names."""
    with suppress(OSError, ValueError):  # a path that no system takes, or reads
        if path.is_dir():
            there = [one for one in sorted(path.iterdir()) if one.suffix in _LAUNCHED and is_there(one)]
            return [one for one in there if 0 < one.stat().st_size <= _MOST_BYTES][:_MOST_FILES]
    text = read_text(path)
    if path.suffix != ".sh" or reader_of(path, text) is not None:
        return [path]
    named = sorted({*_NAMED.findall(text)})[:_MOST_FILES]
    return [one for one in map(path.with_name, named) if is_there(one)]


def _network_beside(path: Path, sequence_length: int | None) -> HuggingFaceNetwork | None:
    """Return the network of the ``config.json`` beside DeepSpeed's configuration; None where there is none."""
    beside = path.with_name("config.json")
    return read_huggingface(beside, sequence_length=sequence_length) if is_there(beside) else None


def import_code(name: str, folder: Path) -> ImportedFile:
    """Return the network of a factory of a PyTorch module, ``package:function``, which is run.

    Raises
    ------
    SpecError
        If it cannot be found, or fails.
    """
    found = read_foreign("torch", name, folder=folder, sizes={}, sequence_length=None, allowed_code=name)
    return _network("torch", found)


def _network(kind: str, found: Imported, *, batch_size: int = 1) -> ImportedFile:
    """Return what a reader found."""
    return ImportedFile(
        kind=kind,
        block=imported_block(found, batch_size=batch_size),
        dnn=found.dnn,
        profile=found.profile,
        facts=found.facts,
        notes=found.notes,
        warnings=found.warnings,
    )
