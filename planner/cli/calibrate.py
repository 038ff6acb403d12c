"""``planner calibrate``: parameters of devices, links and families from measurements, or constants of this machine."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import MemoryLimit

if TYPE_CHECKING:
    from planner.calibration.fit_all import Asked
    from planner.calibration.read_files import Measurements
    from planner.evaluation.adam_loops import Calibration

__all__ = ["calibrate"]

_SAID = "What the data do not say"
_WANTED = "What to measure"


class Template(StrEnum):
    """A table to fill in."""

    COLLECTIVES = "collectives"
    LAYERS = "layers"
    ITERATIONS = "iterations"


class Form(StrEnum):
    """A form of seconds against bytes."""

    AFFINE = "affine"
    PIECEWISE = "piecewise"
    CURVE = "curve"


def calibrate(
    data: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files or folders: output of nccl-tests or osu-micro-benchmarks, profiles of layers, measured runs, "
            "or tables (see --template). Their content tells which."
        ),
    ] = None,
    spec: Annotated[Path | None, typer.Option(help="The question: its cluster, network and configurations.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the calibration to this file, for a spec to name.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw measured, predicted and residuals: .svg, .png, .pdf.")] = None,
    devices: Annotated[
        int | None, typer.Option(min=2, help="Number of devices of timings whose text lacks it.", rich_help_panel=_SAID)
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="The device that a profile was taken on.", rich_help_panel=_SAID)
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Its numbers: fp32, tf32, fp16, bf16.", rich_help_panel=_SAID)
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples of its batch.", rich_help_panel=_SAID)] = None,
    date: Annotated[str, typer.Option(help="Of the measurement, for the file's source.", rich_help_panel=_SAID)] = "",
    form: Annotated[Form | None, typer.Option(help="Take this form of curve; else cross-validation chooses.")] = None,
    law_only: Annotated[
        bool, typer.Option("--law-only", help="Write the law for any number of devices, and no curves; needs --spec.")
    ] = False,
    template: Annotated[Template | None, typer.Option(help="Print a table to fill in, and stop.")] = None,
    plan_measurements: Annotated[
        bool,
        typer.Option(
            "--plan-measurements",
            help="DATA is a spec or a plan: say which measurements its decision depends on most.",
            rich_help_panel=_WANTED,
        ),
    ] = False,
    range_: Annotated[
        list[str] | None,
        typer.Option("--range", help="How far a figure may be off, e.g. network=0.8..1.1.", rich_help_panel=_WANTED),
    ] = None,
    time_limit: Annotated[
        str, typer.Option(help="For all questions that are asked anew.", rich_help_panel=_WANTED)
    ] = "120 s",
    memory_limit: MemoryLimit = None,
    measure: Annotated[bool, typer.Option("--measure", help="Run the canonical loops now, for a few seconds.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON document (planner.fit/1; planner.calibration/1) on stdout.")
    ] = False,
) -> None:
    """Fit links, devices and families to measurements, and say how far off the fit is; or measure this machine.

    E.g. planner calibrate allreduce2.log allreduce4.log --spec spec.yaml -o calibration.yaml
    """
    from planner.cli.question import flag_fault

    if template is not None:
        print(_template(template), end="")
        return
    if measure:
        if data:
            raise flag_fault("--measure", "this measures here and now; files are given, too.", "Leave out one of them.")
        _measured(json=json)
        return
    if plan_measurements:
        from planner.cli.measurements import print_measurements

        print_measurements(data or [], range_ or [], time_limit=time_limit, memory_limit=memory_limit, json=json)
        return
    if not data:
        raise flag_fault("", "there is nothing to calibrate from.", "Name files, or write planner calibrate --measure.")
    from planner.calibration.fit_all import Asked
    from planner.calibration.read_files import read_files
    from planner.cli.output import check_outputs

    if plot:
        from planner.calibration.plot import check_picture

        check_picture(plot)
    found = read_files(data, num_devices=devices)
    check_outputs({"--out": out, "--plot": plot}, spec, {f"an input, {one}": one for one in found.files})
    if found.runs:
        _compared(found, json=json)
        return
    asked = Asked(spec=spec, form=form, device=device, dtype=dtype, batch_size=batch)
    _fitted(found, asked, out=out, plot=plot, date=date, is_law_only=law_only, json=json)


def _template(template: Template) -> str:
    """Return a table to fill in."""
    from planner.calibration import read_collectives, read_iterations, read_layers

    modules = {
        Template.COLLECTIVES: read_collectives,
        Template.LAYERS: read_layers,
        Template.ITERATIONS: read_iterations,
    }
    text: str = modules[template].TEMPLATE
    return text


def _compared(found: "Measurements", *, json: bool) -> None:
    """Print predicted beside measured iterations of runs."""
    from planner.calibration.runs import compare
    from planner.cli.question import flag_fault
    from planner.documents import dump

    if found.timings or found.iterations or found.profiles or found.layer_tables:
        mend = "Give the runs in a command of their own."
        raise flag_fault("", "measured runs are compared, other measurements are fitted.", mend)
    result = compare(found.runs)
    print(dump(result.to_document()) if json else result.text())


def _fitted(
    found: "Measurements",
    asked: "Asked",
    *,
    out: Path | None,
    plot: Path | None,
    date: str,
    is_law_only: bool,
    json: bool,
) -> None:
    """Fit, write what was asked for, and print."""
    from planner.calibration.fit_all import fit_all
    from planner.calibration.plot import picture, residuals_of
    from planner.calibration.report import document, text
    from planner.calibration.write import calibration_text
    from planner.cli.output import write_text
    from planner.cli.question import flag_fault
    from planner.documents import dump

    fitted = fit_all(found, asked)
    if is_law_only and fitted.cluster_law is None:
        mend = "Add --spec with the cluster, and timings of all-reduces that fit its machines."
        raise flag_fault("--law-only", "there is no law of a cluster.", mend)
    if plot:
        picture(residuals_of(fitted), plot)
    if out:
        write_text(out, calibration_text(fitted, date=date, is_law_only=is_law_only))
    if json:
        print(dump(document(fitted, date=date, is_law_only=is_law_only)))
        return
    print(text(fitted, is_law_only=is_law_only))
    print()
    if out:
        print(f"Written to {out}; name it in a spec: calibration: {out.name}")
    else:
        print("Add -o calibration.yaml to write what a spec can name.")


def _measured(*, json: bool) -> None:
    """Run the canonical loops and print what they take."""
    from planner.documents import dump
    from planner.evaluation.adam_loops import measure

    document = _document(measure())
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
    from planner.words import time_words

    multiply_adds = [
        {
            "working set": format_human(row["working_set_bytes"], Dimension.DATA),
            "a multiply-add": time_words(row["seconds"]),
            "GFLOP/s": round(2e-9 / row["seconds"], 2),
        }
        for row in document["multiply_add"]
    ]
    threads = [
        {"threads": row["num_threads"], "interference": round(row["factor"], 3)} for row in document["interference"]
    ]
    neuron = (
        f"An activation takes {time_words(document['activation_s'])}, an error term {time_words(document['error_s'])}."
    )
    return "\n".join([table(multiply_adds), "", table(threads), "", neuron])
