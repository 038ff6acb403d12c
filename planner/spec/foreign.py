"""Networks of other programs: which reader takes what, and code of the user's, which runs only if it is named."""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from planner.errors import Fault, SpecError
from planner.importers.imported import Imported
from planner.importers.kinds import kind_of
from planner.importers.measured import MeasuredNetwork
from planner.letters import visible
from planner.zoo.transformers import dnn_of

__all__ = ["MOST_LAYERS_CUT_ANYWHERE", "PROFILE_KINDS", "read_foreign", "read_profile"]

# Kind of a profile, as its content tells it, and the module of its reader.
PROFILE_KINDS = {
    "graph": "graph_profile",
    "layer_trace": "layer_trace",
    "layer_csv": "layer_csv",
    "chrome_trace": "chrome_trace",
}

# Blocks that repeat are kept together by pipelines in larger networks; in smaller ones every cut is tried.
MOST_LAYERS_CUT_ANYWHERE = 256


def read_profile(path: Path, *, batch_size: int) -> MeasuredNetwork:
    """Return the measured network of a profile in any format, which is told by its content.

    Raises
    ------
    SpecError
        If the file cannot be read, or is none.
    """
    kind = kind_of(path) or ("graph" if path.name.endswith((".graph", ".graph.txt")) else "layer_trace")
    if kind not in PROFILE_KINDS:
        problem, mend = f"this is no profile but of the kind {kind}.", f"Write {kind}: instead, under dnn."
        raise SpecError.of([Fault(file=str(path), problem=problem, mend=mend)])
    module = import_module(f"planner.importers.{PROFILE_KINDS[kind]}")  # late: few questions need more than one
    found: MeasuredNetwork = getattr(module, f"read_{PROFILE_KINDS[kind]}")(path, batch_size=batch_size)
    return replace(found, warnings=tuple(map(visible, found.warnings)))


def read_foreign(
    key: str,
    name: str,
    *,
    folder: Path,
    sizes: Mapping[str, int],
    sequence_length: int | None,
    allowed_code: str | None,
    is_text_only: bool = False,
) -> Imported:
    """Return the network that ``onnx``, ``huggingface`` or ``torch`` names.

    Parameters
    ----------
    name
        A file, relative to ``folder``; of ``torch`` a factory, ``package:function``.
    sizes
        Of an ONNX file's symbolic dimensions.
    is_text_only
        Whether a network of several parts is meant by its text part alone.
    allowed_code
        The factory that the user named on the command line, or in a call: no other is run.
    """
    if key == "onnx":
        from planner.importers.onnx_model.graph import read_onnx  # noqa: PLC0415

        return _as_searched(_seen(read_onnx(folder / name, sizes=sizes)))
    if key == "huggingface":
        return _seen(_of_config(folder / name, sequence_length, is_text_only=is_text_only))
    if name != allowed_code:
        problem = f"{name!r} would run code of yours to build the network; a spec alone must not."
        mend = f"Allow it on the command line, --run {name}, or write the network to a file with `planner import`."
        raise SpecError.of([Fault(problem=problem, mend=mend, value=name)])
    from planner.importers.torch_module import read_factory  # noqa: PLC0415

    return _as_searched(_seen(read_factory(name, folder)))


def _of_config(path: Path, sequence_length: int | None, *, is_text_only: bool) -> Imported:
    """Return the transformer of a Hugging Face ``config.json``."""
    from planner.importers.huggingface.network import read_huggingface  # noqa: PLC0415

    found = read_huggingface(path, sequence_length=sequence_length, is_text_only=is_text_only)
    dnn = dnn_of(found.transformer, found.name, source=f"Hugging Face configuration {path.name}")
    return Imported(dnn=dnn, dtype=found.dtype, notes=found.notes, warnings=found.warnings)


def _seen(found: Imported) -> Imported:
    """Return what a reader gives with every letter of its names and notes seen: they enter here."""
    try:
        dnn = found.dnn.with_visible_names()
    except ValueError as error:
        raise SpecError.of([Fault(problem=f"{error}.", mend="Rename one of them.")]) from None
    notes, warnings = (tuple(visible(line) for line in lines) for lines in (found.notes, found.warnings))
    return replace(found, dnn=dnn, notes=notes, warnings=warnings)


def _as_searched(found: Imported) -> Imported:
    """Return a network without its repeats where it is small enough to be cut anywhere."""
    if len(found.dnn.layers) > MOST_LAYERS_CUT_ANYWHERE or not found.dnn.repeats:
        return found
    return replace(found, dnn=found.dnn.without_repeats())
