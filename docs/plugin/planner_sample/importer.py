"""An importer: measured layers, a line each, as some profiler of yours may write them.

::

    sample layers 1
    conv1 forward 0.0021 backward 0.0040 parameters 9408 output 802816
"""

from pathlib import Path

from planner.errors import Fault, SpecError
from planner.importers.imported import MeasuredLayer, MeasuredNetwork, build_measured
from planner.importers.kinds import Importer
from planner.importers.text import read_text

_FIRST = "sample layers 1"
_ELEMENT_BYTES = 4


def _read(path: Path, *, batch_size: int | None = None) -> MeasuredNetwork:
    """Return the network, a chain, with its seconds; those of the file are of a batch of so many samples."""
    rows = [MeasuredLayer(name="data", kind="input")]
    for number, line in enumerate(read_text(path).splitlines()[1:], start=2):
        name, *words = line.split()
        try:
            cells = {key: float(value) for key, value in zip(words[::2], words[1::2], strict=True)}
            row = MeasuredLayer(
                name=name,
                kind="operator",
                inputs=(rows[-1].name,),
                forward_s=cells["forward"],
                backward_s=cells["backward"],
                parameter_bytes=cells["parameters"] * _ELEMENT_BYTES,
                output_bytes=cells["output"] * _ELEMENT_BYTES * (batch_size or 1),
            )
        except (KeyError, ValueError):
            what = "a line is a name, then forward, backward, parameters and output with a number each."
            raise SpecError.of([Fault(file=str(path), line=number, problem=what, mend="Mend this line.")]) from None
        rows.append(row)
    return build_measured(path.stem, rows, batch_size=batch_size or 1, origin=f"{path.name}, sample layers")


IMPORTER = Importer(recognises=lambda text: text.startswith(_FIRST), read=_read)
