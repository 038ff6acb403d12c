"""Fit, print the errors by family, and write the parameters that ship with the package.

The data are read in place, from the folder that ``--data`` or the variable PLANNER_DATA names. Equal data give equal
bytes.
"""

import argparse
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from planner.data.fits import transformer_rates
from research import ROOT, page_with
from research.transformer_fit import mixed
from research.transformer_fit.fit import MACHINES, PRIORS, Table, described, fit, parameters_text, predict
from research.transformer_fit.low_rows import fitted_rows
from research.transformer_fit.ranges import ranges_text
from research.transformer_fit.report import bands, folds, left_out_errors, summary_text, table_text, unmeasured_band
from research.transformer_fit.rows import FAMILIES, LEFT_OUT, Row

_Bands = Mapping[str, tuple[float, float, float]]
_COMMAND = "make accuracy"
_FILES = ("llm/open.csv", "llm/recipes_bf16_open.csv", "llm/nanotron_h100_open.csv", "simumax/b200_open.csv")
_PAGE = ROOT / "docs" / "accuracy_transformers.md"
_RATES = ROOT / "planner" / "data" / "transformer_rates.yaml"
_RANGES = ROOT / "planner" / "data" / "transformer_ranges.yaml"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.transformer_fit", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("PLANNER_DATA"), help="folder of measured data")
    parser.add_argument(
        "--write", action="store_true", help=f"write {_RATES.name}, {_RANGES.name} and the tables of {_PAGE.name} anew"
    )
    parser.add_argument("--quick", action="store_true", help="leave nothing out: no check on unseen rows, no bands")
    parser.add_argument("--workers", type=int, default=2, help="processes; they do not change the answer")
    given = parser.parse_args(arguments)
    if given.data is None or not (given.data / "llm" / "open.csv").is_file():
        print("no measured data: name their folder by --data or PLANNER_DATA.", file=sys.stderr)
        return 2
    rows = fitted_rows(given.data)
    table = Table(rows)
    parameters = fit(table)
    ways = {"fitted": predict(table, parameters)}
    ways["no program named"] = predict(Table([row.without_program() for row in rows]), parameters)
    found: _Bands = {}
    by_device: _Bands = {}
    if not given.quick:
        ways["groups left out"] = left_out_errors(rows, folds(rows), given.workers, parameters)
        ways["family left out"] = left_out_errors(rows, _rows_by(rows, "family"), given.workers, parameters)
        ways["device left out"] = left_out_errors(rows, _rows_by(rows, "device"), given.workers, parameters)
        found = bands(rows, ways["groups left out"])
        found = {name: one for name, one in found.items() if name not in MACHINES}  # no plan is for such a machine
        unseen = ways["family left out"]
        by_device = {
            **bands(rows, unseen, lambda row: row.device, lambda row: row.family),
            **bands(rows, unseen, lambda row: "all", lambda row: row.family),
            "unmeasured": unmeasured_band(rows, ways["device left out"]),
        }
    texts = {
        "errors": summary_text(rows, ways, "fitted" if given.quick else "groups left out"),
        "bands of families": _bands_text(found),
        "bands of devices": _bands_text(by_device, "families on"),
    }
    print(parameters_text(parameters, PRIORS), table_text(rows, ways), *texts.values(), _readings_text(), sep="\n\n")
    if given.write:
        page = _PAGE.read_text(encoding="utf-8")
        for part, text in texts.items():
            page = page_with(page, part, text)
        _PAGE.write_text(page, encoding="utf-8")
        text = _yaml_text(parameters, {"bands": found, "device_bands": by_device}, len(rows), _digest(given.data))
        _RATES.write_text(text, encoding="utf-8")
        _RANGES.write_text(ranges_text(rows), encoding="utf-8")
    return 0


def _rows_by(rows: Sequence[Row], source: str) -> list[list[int]]:
    """Return the rows of each family, or of each device."""
    names = dict.fromkeys(getattr(row, source) for row in rows)
    return [[index for index, row in enumerate(rows) if getattr(row, source) == name] for name in names]


def _digest(folder: Path) -> str:
    """Return what tells the data from others."""
    found = hashlib.sha256()
    for name in _FILES:
        found.update((folder / name).read_bytes())
    return found.hexdigest()[:16]


def _bands_text(found: _Bands, of: str = "family") -> str:
    inside = "groups' rows" if of == "family" else "rows of left out families or devices"
    lines = [f"| {of} | 80 % band of measured / predicted - 1 | {inside} inside others' band |", "|---|---|---|"]
    for family, (low, high, share) in found.items():
        lines.append(f"| {family} | {100 * low:+.1f} to {100 * high:+.1f} % | {100 * share:.0f} % |")
    return "\n".join(lines)


def _readings_text() -> str:
    """Return what is read otherwise than recorded, and what is left out."""
    read = [f"- {name}: {family.reading}" for name, family in FAMILIES.items() if family.reading]
    left = [f"- {name}: {why}" for name, why in LEFT_OUT.items()]
    return "\n".join(["Read otherwise than recorded:", *read, "", "Left out:", *left])


def _yaml_text(parameters: Mapping[str, float], found: Mapping[str, _Bands], num_rows: int, digest: str) -> str:
    lines = [
        "# Fitted figures of the transformers' cost model; models/compute.py says what they mean.",
        f"# Written by: {_COMMAND}",
        f"command: {_COMMAND}",
        f"data: {{files: [{', '.join(_FILES)}], rows: {num_rows}, sha256: {digest}}}",
    ]
    for section, entries in described(parameters).items():
        lines += mixed.product_lines(transformer_rates()["products"]) if section == "software" else []
        lines.append(f"{section}:")
        for name, value in entries.items():
            if isinstance(value, Mapping):
                inner = ", ".join(f"{key}: {_scalar(one)}" for key, one in value.items())
                lines.append(f"  {name}: {{{inner}}}")
            else:
                lines.append(f"  {name}: {_scalar(value)}")
    lines += [
        "# Of measured / predicted - 1, from groups of rows left out; of devices from whole families left out, and on",
        "# those unmeasured from devices left out; coverage over other groups, families and devices.",
    ]
    for section, each in found.items():
        lines.append(f"{section}:" if each else f"{section}: {{}}")
        for name, (low, high, share) in each.items():
            lines.append(f"  {name}: {{low: {low:.3f}, high: {high:.3f}, coverage: {share:.2f}}}")
    return "\n".join(lines) + "\n"


def _scalar(value: object) -> str:
    """Return a value as YAML writes it; floats with a point, which YAML's numbers need."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return ".inf" if value == float("inf") else repr(float(value))
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
