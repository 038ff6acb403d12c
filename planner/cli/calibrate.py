"""``planner calibrate``: constants of this machine."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from planner.measure import Calibration

__all__ = ["calibrate"]


def calibrate(
    measure: Annotated[bool, typer.Option("--measure", help="Run the canonical loops now, for a few seconds.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document (planner.calibration/1) on stdout.")] = False,
) -> None:
    """Measure what a multiply-add, an activation and an error term take on this machine, and how threads interfere."""
    from planner.documents import dump
    from planner.errors import Fault, SpecError
    from planner.measure import measure as run

    if not measure:
        problem, mend = "there is nothing to calibrate from.", "Write planner calibrate --measure."
        raise SpecError.of([Fault(file="command line", field="--measure", problem=problem, mend=mend)])
    document = _document(run())
    print(dump(document) if json else _text(document))


def _document(found: "Calibration") -> dict[str, Any]:
    """Return ``planner.calibration/1``."""
    return {
        "schema": "planner.calibration/1",
        "number_bytes": found.number_bytes,
        "num_cores": found.num_cores,
        "multiply_add": [{"working_set_bytes": size, "seconds": seconds} for size, seconds in found.multiply_add_s],
        "activation_s": found.activation_s,
        "error_s": found.error_s,
        "interference": [{"num_threads": number, "factor": factor} for number, factor in found.interference],
    }


def _text(document: dict[str, Any]) -> str:
    """Return the document as tables."""
    from planner.report import table
    from planner.units import Dimension, format_human

    def time(seconds: float) -> str:
        return format_human(seconds, Dimension.TIME)

    multiply_adds = [
        {
            "working set": format_human(row["working_set_bytes"], Dimension.DATA),
            "a multiply-add": time(row["seconds"]),
            "GFLOP/s": round(2e-9 / row["seconds"], 2),
        }
        for row in document["multiply_add"]
    ]
    threads = [
        {"threads": row["num_threads"], "interference": round(row["factor"], 3)} for row in document["interference"]
    ]
    neuron = f"An activation takes {time(document['activation_s'])}, an error term {time(document['error_s'])}."
    return "\n".join([table(multiply_adds), "", table(threads), "", neuron])
