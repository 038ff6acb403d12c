"""An exporter: a plan's decisions as JSON, for a launcher of your own."""

import json
from collections.abc import Mapping
from pathlib import Path

from planner.errors import SpecError
from planner.exporters.export import Export, Exporter, Job

_MARK = "planner-sample/1"


def _export(job: Job) -> Export:
    """Return one file."""
    plan = job.plan
    document = {"schema": _MARK, "family": plan.family, **plan.configuration.to_document()}
    text = f"{json.dumps(document, indent=1)}\n"
    return Export(
        target="sample-json",
        version=_MARK,
        files={"plan.json": text},
        notes=("starts nothing by itself",),
        how_to_run=("your-launcher plan.json",),
    )


def _degrees(path: Path, text: str) -> Mapping[str, object]:
    """Return the decisions of such a file, as ``fix`` has them."""
    found = json.loads(text)
    if not isinstance(found.get("num_devices"), int):
        raise SpecError(f"{path}: num_devices is missing. Give a file of `planner export --to sample-json`.")
    return {"num_devices": found["num_devices"]}


EXPORTER = Exporter(export=_export, recognises=lambda _path, text: f'"{_MARK}"' in text[:200], degrees=_degrees)
