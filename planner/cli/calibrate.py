"""``planner calibrate``: parameters of devices, links and families from measurements, or constants of this machine."""

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import MemoryLimit, grouped
from planner.errors import SpecError
from planner.frozen import frozen

if TYPE_CHECKING:
    from planner.calibration.fits import Fitted

_SAID = "What the data do not say"
_WANTED = "What to measure"
_RANGE = re.compile(r"(?P<name>[^=]+)=(?P<low>[0-9.]{1,9}?)\.\.(?P<high>[0-9.]{1,9})")


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


@frozen
class Unsaid:
    """What measurements do not say of themselves."""

    devices: Annotated[
        int | None, typer.Option(min=2, help="Number of devices of timings whose text lacks it.", rich_help_panel=_SAID)
    ] = None
    device: Annotated[
        str | None, typer.Option(help="The device that a profile was taken on.", rich_help_panel=_SAID)
    ] = None
    dtype: Annotated[str | None, typer.Option(help="Its numbers: fp32, tf32, fp16, bf16.", rich_help_panel=_SAID)] = (
        None
    )
    batch: Annotated[int | None, typer.Option(min=1, help="Samples of its batch.", rich_help_panel=_SAID)] = None
    date: Annotated[str, typer.Option(help="Of the measurement, for the file's source.", rich_help_panel=_SAID)] = ""


@frozen
class ToMeasure:
    """Which measurements would sharpen a decision most."""

    plan_measurements: Annotated[
        bool,
        typer.Option(
            "--plan-measurements",
            help="DATA is a spec or a plan: say which measurements its decision depends on most.",
            rich_help_panel=_WANTED,
        ),
    ] = False
    range_: Annotated[
        list[str] | None,
        typer.Option("--range", help="How far a figure may be off, e.g. network=0.8..1.1.", rich_help_panel=_WANTED),
    ] = None
    time_limit: Annotated[str, typer.Option(help="For all questions that are asked anew.", rich_help_panel=_WANTED)] = (
        "120 s"
    )
    memory_limit: MemoryLimit = None

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """How far figures may be off, by their names."""
        given = {}
        for text in self.range_ or ():
            match = _RANGE.fullmatch(text)
            try:
                given[match["name"] if match else ""] = (float(match["low"]), float(match["high"])) if match else (0, 0)
            except ValueError:
                match = None
            if match is None:
                raise SpecError.of_option(
                    "--range", f"{text!r} is no range.", "Write e.g. --range network=0.8..1.1.", value=text
                )
        return given


@frozen
class FitOutput:
    """Where a fit goes."""

    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the calibration to this file, for a spec to name.")
    ] = None
    plot: Annotated[Path | None, typer.Option(help="Draw measured, predicted and residuals: .svg, .png, .pdf.")] = None
    law_only: Annotated[
        bool, typer.Option("--law-only", help="Write the law for any number of devices, and no curves; needs --spec.")
    ] = False
    json: Annotated[
        bool, typer.Option("--json", help="One JSON document (planner.fit/1; planner.calibration/1) on stdout.")
    ] = False

    def give(self, fitted: "Fitted", date: str) -> None:
        """Write what was asked for, and print the fit."""
        from planner.answer.documents import dump
        from planner.calibration.report import calibration_text, document, picture, residuals_of, text
        from planner.cli.output import write_text

        if self.plot:
            picture(residuals_of(fitted), self.plot)
        if self.out:
            write_text(self.out, calibration_text(fitted, date=date, is_law_only=self.law_only))
        if self.json:
            print(dump(document(fitted, date=date, is_law_only=self.law_only)))
            return
        print(text(fitted, is_law_only=self.law_only))
        print()
        if self.out:
            print(f"Written to {self.out}; name it in a spec: calibration: {self.out.name}")
        else:
            print("Add -o calibration.yaml to write what a spec can name.")


@grouped
def calibrate(
    *,
    data: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files or folders: output of nccl-tests or osu-micro-benchmarks, profiles of layers, measured runs, "
            "or tables (see --template). Their content tells which."
        ),
    ] = None,
    spec: Annotated[Path | None, typer.Option(help="The question: its cluster, network and configurations.")] = None,
    output: FitOutput,
    unsaid: Unsaid,
    form: Annotated[Form | None, typer.Option(help="Take this form of curve; else cross-validation chooses.")] = None,
    template: Annotated[Template | None, typer.Option(help="Print a table to fill in, and stop.")] = None,
    wanted: ToMeasure,
    measure: Annotated[bool, typer.Option("--measure", help="Run the canonical loops now, for a few seconds.")] = False,
) -> None:
    """Fit links, devices and families to measurements, and say how far off the fit is; or measure this machine.

    E.g. planner calibrate allreduce2.log allreduce4.log --spec spec.yaml -o calibration.yaml
    """
    from planner.answer.documents import dump
    from planner.cli.output import Progress

    if template is not None:
        from planner.calibration.tables import template as table_of

        print(table_of(template), end="")
        return
    if measure:
        if data:
            raise SpecError.of_option(
                "--measure", "this measures here and now; files are given, too.", "Leave out one of them."
            )
        from planner.calibration.canonical_loops import measure as measured

        with Progress("measuring"):
            here = measured()
        print(dump(here.to_document()) if output.json else here.text())
        return
    if wanted.plan_measurements:
        _print_measurements(data or [], wanted, is_json=output.json)
        return
    if not data:
        raise SpecError.of_option(
            "", "there is nothing to calibrate from.", "Name files, or write planner calibrate --measure."
        )
    from planner.calibration.benchmarks import read_files
    from planner.calibration.fits import Asked, fit_all
    from planner.cli.output import check_outputs

    if output.plot:
        from planner.calibration.report import check_picture

        check_picture(output.plot)
    with Progress("reading"):
        found = read_files(data, num_devices=unsaid.devices)
    check_outputs({"--out": output.out, "--plot": output.plot}, spec, {f"an input, {one}": one for one in found.files})
    if found.runs:
        from planner.calibration.runs import compare

        if found.timings or found.iterations or found.profiles or found.layer_tables:
            mend = "Give the runs in a command of their own."
            raise SpecError.of_option("", "measured runs are compared, other measurements are fitted.", mend)
        result = compare(found.runs)
        print(dump(result.to_document()) if output.json else result.text())
        return
    asked = Asked(spec=spec, form=form, device=unsaid.device, dtype=unsaid.dtype, batch_size=unsaid.batch)
    with Progress("fitting"):
        fitted = fit_all(found, asked)
    if output.law_only and fitted.cluster_law is None:
        mend = "Add --spec with the cluster, and timings of all-reduces that fit its machines."
        raise SpecError.of_option("--law-only", "there is no law of a cluster.", mend)
    output.give(fitted, unsaid.date)


def _print_measurements(questions: list[Path], wanted: ToMeasure, *, is_json: bool) -> None:
    """Print which measurements would sharpen the decision of a spec, or of a plan, most."""
    import planner
    from planner.answer.documents import dump
    from planner.answer.plan_file import is_plan
    from planner.api import plan_of_file
    from planner.calibration.measurements import measurements_text, measurements_to_make
    from planner.cli.output import Progress, limit_bytes, limit_s
    from planner.search import Search

    if len(questions) != 1:
        mend = "Name one spec, or one plan that `planner plan --out` wrote."
        raise SpecError.of_option("--plan-measurements", f"{len(questions)} files are given.", mend)
    ranges = wanted.ranges
    seconds, most_bytes = limit_s(wanted.time_limit), limit_bytes(wanted.memory_limit)
    search = Search(time_limit_s=seconds, memory_limit_bytes=most_bytes)
    if is_plan(questions[0]):
        problem, plan = plan_of_file(questions[0])
    else:
        problem = planner.load(questions[0])
        # Half of the time is for the questions that are asked anew.
        with Progress("planning"):
            plan = planner.plan(problem, time_limit_s=seconds / 2, memory_limit_bytes=most_bytes)
    with Progress("asking what each figure changes"), search.interruptible():
        found = measurements_to_make(problem, plan, search, ranges=ranges)
    print(dump(found.to_document()) if is_json else measurements_text(found))
