"""The networks of timm that training steps were measured of, as :func:`planner.from_torch` sees them, on disk.

Needs torch and timm 0.6.13 (``pip install --no-deps timm==0.6.13``); torchvision, which timm imports for its readers
of images, is stood in for by empty modules. Networks are made and run on the meta device: no weights, no images.

    python -m research.timm_networks --data PATH --out build/timm
"""

import argparse
import csv
import enum
import importlib
import importlib.machinery
import os
import pickle
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.importers.torch_module import from_torch
from research import ROOT

__all__ = ["STEPS", "read_steps"]

STEPS = Path("training_steps") / "timm_rtx3090_open.csv"
_STOOD_IN = ("", ".transforms", ".transforms.functional", ".ops", ".ops.misc", ".datasets", ".datasets.folder")
_MODELS = (".models", ".models.feature_extraction")


def read_steps(folder: Path) -> list[dict[str, str]]:
    """Return the measured steps."""
    with (folder / STEPS).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _stand_in() -> None:
    """Put empty modules in torchvision's place."""

    class InterpolationMode(enum.Enum):
        NEAREST, BILINEAR, BICUBIC, BOX, HAMMING, LANCZOS = range(6)

    def made(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[0].isupper() else lambda *_, **__: None

    for name in (*_STOOD_IN, *_MODELS):
        module = types.ModuleType(f"torchvision{name}")
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        vars(module).update(__path__=[], __getattr__=made, InterpolationMode=InterpolationMode)
        sys.modules[module.__name__] = module
        if name:
            parent, _, last = module.__name__.rpartition(".")
            setattr(sys.modules[parent], last, module)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.timm_networks", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("PLANNER_DATA"), help="folder of measured data")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "timm", help="where the networks are put")
    given = parser.parse_args(arguments)
    if given.data is None or not (given.data / STEPS).is_file():
        print("no measured data: name their folder by --data or PLANNER_DATA.", file=sys.stderr)
        return 2
    torch: Any = importlib.import_module("torch")
    _stand_in()
    linspace = torch.linspace
    # Networks ask for the numbers of their rates of stochastic depth, which are no weights.
    torch.linspace = lambda *args, **kwargs: linspace(*args, **{**kwargs, "device": "cpu"})
    timm = importlib.import_module("timm")
    given.out.mkdir(parents=True, exist_ok=True)
    wanted = sorted({(row["model"], int(row["image_size"])) for row in read_steps(given.data)})
    refused = 0
    for name, size in wanted:
        path = given.out / f"{name}@{size}.pickle"
        if path.exists():
            continue
        try:
            try:
                with torch.device("meta"):
                    module = timm.create_model(name).train()
            except (NotImplementedError, RuntimeError):  # it computes with numbers while it is made
                module = timm.create_model(name).train()
            found = from_torch(module, torch.empty(1, 3, size, size, device="meta"), name=name)
        except Exception as error:  # whatever a network of 434 raises
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            refused += 1
            continue
        path.write_bytes(pickle.dumps(found.dnn))
    print(f"{len(wanted) - refused} of {len(wanted)} networks in {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
