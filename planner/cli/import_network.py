"""``planner import``: networks and launch files of other programs."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import grouped
from planner.errors import SpecError
from planner.frozen import frozen

if TYPE_CHECKING:
    from planner.network_import import ImportedFile


@frozen
class OfFile:
    """What a file does not say of itself."""

    sequence_length: Annotated[int | None, typer.Option(min=1, help="Tokens of a sample, of a config.json.")] = None
    text_only: Annotated[
        bool, typer.Option("--text-only", help="Of a config.json of several parts its text part alone.")
    ] = False
    dimension: Annotated[
        list[str] | None, typer.Option(help="Size of a symbolic dimension of an ONNX model, e.g. seq=128.")
    ] = None
    profile_batch: Annotated[
        int | None, typer.Option(min=1, help="Samples of the batch that a profile was measured at.")
    ] = None


@grouped
def import_network(
    *,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="ONNX model, Hugging Face config.json, profile, trace, or launch files of `planner export`."
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="A factory of a PyTorch module, package:function; your code is run.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the block, YAML or .json; a spec names it: dnn: {file: ...}."),
    ] = None,
    unsaid: OfFile,
    template: Annotated[bool, typer.Option("--template", help="Print a CSV to fill in with measured layers.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document (planner.import/1) on stdout.")] = False,
) -> None:
    """Read a network, or a launch file, of another program; its kind is told by its content.

    E.g. planner import resnet50.onnx -o dnn.yaml
    """
    from planner.answer.documents import dump

    if template:
        from planner.importers.profiles import template as table_of_layers

        print(table_of_layers(), end="")
        return
    if (file is None) == (run is None):
        problem = "there is nothing to import." if file is None else "a file and a factory are given."
        raise SpecError.of_option("", problem, "Give a file, or --run package:function.")
    from planner.cli.output import Progress, check_outputs
    from planner.network_import import import_code, import_file

    check_outputs({"--out": out}, None, {"the file that is imported": file})
    if run is not None:
        if given := [f"--{name.replace('_', '-')}" for name, value in asdict(unsaid).items() if value]:
            raise SpecError.of_option(" ".join(given), "a factory has no use for it.", "Leave it out.")
        found = import_code(run, Path.cwd())
    else:
        assert file is not None, "one of the two is given"
        with Progress("reading"):
            found = import_file(
                file,
                sizes=_sizes(unsaid.dimension or []),
                sequence_length=unsaid.sequence_length,
                is_text_only=unsaid.text_only,
                batch_size=unsaid.profile_batch,
            )
    if out is not None:
        _write(out, found)
    print(dump(found.to_document()) if json else _text(found, out))


def _sizes(given: list[str]) -> dict[str, int]:
    """Return the sizes of ``seq=128``."""
    sizes = {}
    for one in given:
        name, _, number = one.rpartition("=")
        if not name or not number.isascii() or not number.isdigit() or not 0 < int(number[:10]) < 10**9:
            raise SpecError.of_option(
                "--dimension", f"{one!r} is no size of a dimension.", "Write e.g. seq=128.", value=one
            )
        if name in sizes:
            raise SpecError.of_option("--dimension", f"{name!r} has two sizes.", "Give one.", value=one)
        sizes[name] = int(number)
    return sizes


def _write(out: Path, found: "ImportedFile") -> None:
    """Write the block: JSON where the name says so, which is read faster, else YAML."""
    import json

    from planner.cli.output import write_text

    content = {key: dict(block) for key, block in found.blocks.items()}
    if out.suffix == ".json":
        write_text(out, json.dumps(content, indent=1) + "\n")
        return
    from io import StringIO

    from ruamel.yaml import YAML

    text = StringIO()
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = None
    writer.width = 120
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.dump(content, text)
    write_text(out, text.getvalue())


def _text(found: "ImportedFile", out: Path | None) -> str:
    from json import dumps

    from planner.answer.text import table

    lines = []
    if found.dnn is None:
        lines += [f"launch file: {found.kind}", "fix:", *(f"  {key}: {value}" for key, value in found.block.items())]
        for key in [key for key in ("calibration", "dnn") if key in found.blocks]:
            rows = found.blocks[key].items()
            lines += [f"{key}:", *(f"  {name}: {dumps(value)}" for name, value in rows if name != "transformer")]
        if found.transformer is not None:
            sizes = found.network_block["transformer"].items()
            lines += ["  transformer:", *(f"    {key}: {dumps(value)}" for key, value in sizes)]
            lines.append(f"parameters: {found.transformer.num_parameters:,}")
    else:
        lines += [f"{found.dnn.name}: {found.kind}, {found.dnn.source}", table(found.rows()), ""]
        totals = found.totals().items()
        lines += [f"{key}: {value:,}" if isinstance(value, int) else f"{key}: {value:,.6g}" for key, value in totals]
    lines += [f"Assumed: {one}" for one in found.notes]
    lines += [f"Mind: {one}" for one in found.warnings]
    if out is not None:
        use = f"dnn: {{file: {out.name}}}" if found.dnn is not None else "its blocks"
        lines.append(f"Written to {out}; in a spec beside it: {use}")
    return "\n".join(lines)
