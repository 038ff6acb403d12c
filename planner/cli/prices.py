"""``planner prices``: lists of prices made of what providers publish."""

from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli.options import json_of
from planner.errors import SpecError

_SHOWN = 6  # names beside a reason

prices = typer.Typer(help="Lists of prices: read what providers publish.", no_args_is_help=True, rich_markup_mode=None)


@prices.callback()
def _prices() -> None:
    """Lists of prices: read what providers publish."""


@prices.command(name="import")
def import_catalogue(
    files: Annotated[
        list[Path],
        typer.Argument(help="SkyPilot's vms.csv, AWS price list (JSON, CSV), Azure retail prices, Google Cloud SKUs."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the list of prices (CSV): planner procure --prices FILE.")
    ] = None,
    date: Annotated[
        str | None, typer.Option(help="Day on which the prices held, where the catalogue says none: 2026-11-02.")
    ] = None,
    provider: Annotated[
        str | None, typer.Option(help="Of a SkyPilot catalogue in a folder without its name, e.g. aws.")
    ] = None,
    region: Annotated[str | None, typer.Option(help="These alone, e.g. 'us-east-1,eu-*'.")] = None,
    rate: Annotated[
        list[str] | None, typer.Option(help="Of other currencies, EUR=1.08USD; several between commas.")
    ] = None,
    json: Annotated[bool, json_of("planner.show/1")] = False,
) -> None:
    """Read a public catalogue of prices in its own format, and join it with the devices and machines that are known.

    E.g. planner prices import catalogs/v8/aws/vms.csv --date 2026-11-02 -o aws.csv
    """
    from datetime import UTC, datetime

    from planner.answer.documents import dump
    from planner.cli.output import Progress, check_outputs, write_text
    from planner.procurement.catalogue_join import import_prices
    from planner.procurement.currencies import read_rates

    if out is not None and out.suffix.lower() != ".csv":
        raise SpecError.of_option(
            "--out",
            "a list of prices is a table, not YAML or JSON.",
            "Name a .csv file, e.g. prices.csv.",
            value=str(out),
        )
    check_outputs({"--out": out}, None, {f"the catalogue {path}": path for path in files})
    with Progress("reading"):
        found = import_prices(
            files,
            today=datetime.now(tz=UTC).date(),
            day=None if date is None else _day(date),
            provider=provider,
            regions=[one.strip() for one in (region or "").split(",") if one.strip()],
            rates=read_rates(one for text in rate or () for one in text.split(",")),
        )
    if out is not None:
        write_text(out, found.to_csv())
    totals = found.totals()
    if json:
        print(
            dump(
                {"schema": "planner.show/1", "what": "prices", "rows": [dict(r) for r in found.rows], "totals": totals}
            )
        )
        return
    print(_text(totals, ", ".join(str(path) for path in files), out))


def _day(text: str) -> Any:
    from datetime import date

    try:
        return date.fromisoformat(text)
    except ValueError:
        raise SpecError.of_option(
            "--date", f"{text!r} is not a date.", "Write year-month-day, e.g. 2026-11-02.", value=text
        ) from None


def _text(totals: dict[str, Any], files: str, out: Path | None) -> str:
    """Return in words what was joined, what was not and why."""
    from planner.words import many

    terms = ", ".join(f"{number:,} {term}" for term, number in totals["by_term"].items())
    lines = [
        f"{totals['catalogue']}, {files}: {totals['rows']:,} rows, prices of {totals['date']}",
        f"Joined: {many(totals['joined'], 'price')} of {many(totals['machines'], 'machine')} in "
        f"{many(totals['regions'], 'region')} ({terms})",
    ]
    for key, title in (("not_joined", "Not joined, kept as unusable"), ("left_out", "Left out")):
        if rows := totals[key]:
            lines.append(f"{title}: {sum(row['rows'] for row in rows):,}")
            for row in rows:
                more = ", ..." if len(row["names"]) > _SHOWN else ""
                names = f": {', '.join(row['names'][:_SHOWN])}{more}" if row["names"] else ""
                lines.append(f"  {row['rows']:>9,}  {row['reason']}{names}")
    lines += [f"Mind: {note}" for note in totals["notes"]]
    if out is None:
        lines.append("Nothing is written; add -o prices.csv.")
    else:
        lines.append(f"Written to {out}. Next: planner show prices {out}, or planner procure ... --prices {out}")
    return "\n".join(lines)
