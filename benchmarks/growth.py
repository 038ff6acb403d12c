"""How time grows with the size of a question: python -m benchmarks.growth [--most-s 10] [--out FILE.json].

Each question is asked in sizes that double, until one takes more than ``--most-s`` seconds of processors; the first one
twice, for what it loads. The exponent e of ``time ~ size^e`` is fitted to the sizes that take more than a tenth of a
second, by least squares of logarithms.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import numpy as np

import planner
from planner.cost import Affine
from planner.errors import PlannerError
from planner.solvers import fusion

_LEAST_S = 0.1  # below this, what does not depend on the size counts most
_GPUS = "rtx-2080-ti"


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    name: str
    size: str
    sizes: Sequence[int]
    ask: Callable[[int], object]


def _line(num_layers: int) -> dict[str, Any]:
    """Return a line of layers, no two of them alike."""
    layers = [
        {
            "name": f"layer{index}",
            "kind": "fully_connected",
            "multiply_adds": 1_000_000 * (1 + index * 7919 % 997),
            "parameters": f"{10 + index * 104729 % 3989} kB",
            "output": f"{4 + index * 1299709 % 397} kB",
        }
        for index in range(num_layers)
    ]
    return {"batch_per_device": 32, "dataset_samples": 1_000_000, "layers": layers}


def _planned(dnn: dict[str, Any], machines: Sequence[dict[str, Any]], family: str) -> object:
    question = {"dnn": dnn, "cluster": {"machines": list(machines)}, "families": [family]}
    return planner.plan(planner.load(question), time_limit_s=600)


def _machines(count: int, devices: int = 8, device: str = _GPUS, network: str = "25 Gbit/s") -> list[dict[str, Any]]:
    """Return equal machines."""
    return [{"count": count, "devices": devices, "device": device, "network": network}]


def _transformer(count: int) -> object:
    """Plan a transformer's layout on so many machines of eight GPUs."""
    dnn = {"zoo": "llama3-70b", "global_batch": 16 * count}
    return _planned(dnn, _machines(count, device="h100-sxm", network="400 Gbit/s"), "hybrid")


def _groups(num_tensors: int) -> object:
    """Group gradients: the solver alone."""
    ready_s = np.cumsum(np.full(num_tensors, 1e-3))
    sizes = 1e5 * (1 + np.arange(num_tensors) * 7919 % 997)
    return fusion.optimal_groups(ready_s, sizes, Affine(startup_s=2e-3, per_byte_s=1e-9))


def growths() -> Iterator[Growth]:
    vgg = {"zoo": "vgg16", "batch_per_device": 32}
    yield Growth(name="fusion.optimal_groups", size="gradients", sizes=[2**k for k in range(12, 21)], ask=_groups)
    yield Growth(
        name="planner.load",
        size="layers",
        sizes=[2**k for k in range(6, 13)],
        ask=lambda n: planner.load({"dnn": _line(n), "cluster": {"machines": _machines(4)}}),
    )
    yield Growth(
        name="all_reduce",
        size="layers",
        sizes=[2**k for k in range(6, 11)],
        ask=lambda n: _planned(_line(n), _machines(4), "all_reduce"),
    )
    yield Growth(
        name="parameter_server",
        size="machines of one device",
        sizes=[2**k for k in range(2, 9)],
        ask=lambda n: _planned(
            {"zoo": "resnet50", "batch_per_device": 32}, _machines(n, devices=1), "parameter_server"
        ),
    )
    yield Growth(
        name="pipeline",
        size="devices",
        sizes=[2**k for k in range(1, 8)],
        ask=lambda n: _planned(vgg, _machines(max(1, n // 8), devices=min(n, 8)), "pipeline"),
    )
    yield Growth(
        name="pipeline",
        size="layers",
        sizes=[2**k for k in range(3, 9)],
        ask=lambda n: _planned(_line(n), _machines(1), "pipeline"),
    )
    yield Growth(name="hybrid", size="machines of eight devices", sizes=[2**k for k in range(1, 12)], ask=_transformer)


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float | None:
    """Return e of ``seconds ~ size^e``, by least squares of logarithms; None where fewer than two take long enough.

    >>> round(exponent([1, 2, 4], [1.0, 4.0, 16.0]), 6)
    2.0
    """
    kept = [(log(size), log(one)) for size, one in zip(sizes, seconds, strict=True) if one > _LEAST_S]
    if len(kept) < 2:
        return None
    logs = np.array(kept, dtype=np.float64)
    x, y = logs[:, 0] - logs[:, 0].mean(), logs[:, 1]
    return float(x @ y / (x @ x))


def measured(growth: Growth, most_s: float) -> dict[str, Any]:
    """Ask a question in all sizes, until one takes too long."""
    sizes, seconds = list[int](), list[float]()
    for index, size in enumerate([growth.sizes[0], *growth.sizes]):
        start_s = time.process_time()
        try:
            growth.ask(size)
        except PlannerError as error:  # too small to hold the network, say
            print(f"{growth.name}, {size} {growth.size}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        if index == 0:  # loads what is needed
            continue
        sizes.append(size)
        seconds.append(time.process_time() - start_s)
        if seconds[-1] > most_s:
            break
    return {
        "name": growth.name,
        "size": growth.size,
        "sizes": sizes,
        "cpu_s": seconds,
        "exponent": exponent(sizes, seconds),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table of Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--most-s", type=float, default=10.0, help="stop doubling beyond this; %(default)s")
    parser.add_argument("--only", action="append", default=[], help="names, e.g. pipeline")
    parser.add_argument("--out", type=Path, help="write JSON, too")
    options = parser.parse_args(arguments)
    rows = []
    print("| what | size | seconds of processors by size | exponent |\n| --- | --- | --- | --- |")
    for growth in growths():
        if options.only and growth.name not in options.only:
            continue
        rows.append(measured(growth, options.most_s))
        each = ", ".join(f"{n}: {s:.2f}" for n, s in zip(rows[-1]["sizes"], rows[-1]["cpu_s"], strict=True))
        fitted = rows[-1]["exponent"]
        print(f"| {growth.name} | {growth.size} | {each} | {'' if fitted is None else f'{fitted:.1f}'} |", flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
