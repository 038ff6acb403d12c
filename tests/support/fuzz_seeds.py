"""Valid documents of every kind that the program reads, from which changed ones are made.

They come from the repository where it has them: the pages in ``docs``, the cases, the examples that ship, the files of other
tests. Plans, stores and launch files are made by the program itself when they are first asked for, so that they are of today's
formats.
"""

import gzip
import json
import re
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import run_files
import sweeps

import planner

__all__ = [
    "QUESTIONS",
    "blocks",
    "calibration_tables",
    "calibrations",
    "case_files",
    "configurations",
    "events",
    "hugging_face",
    "launch_files",
    "network_files",
    "onnx_files",
    "plans",
    "profiles",
    "purchases",
    "questions",
    "runs",
    "store",
    "sweeps_asked",
    "tables",
    "vocabulary",
]

ROOT = Path(__file__).parents[2]
_EXAMPLES = ROOT / "planner" / "data" / "examples"
_MACHINE = {"count": 2, "device": "v100-sxm2-16g", "devices": 2, "inside": "nvlink-2", "network": "25 Gbit/s"}
_HOST = {"name": "hosts", "count": 2, "device": "dual-xeon-e5-2650-v4", "network": "10 Gbit/s", "latency": "20 us"}
_SLOW = {"name": "old", "count": 2, "device": "k80", "devices": 2, "inside": "pcie-3-x16", "network": "10 Gbit/s"}
_SMALL = {"layers": 4, "hidden": 256, "heads": 4, "vocabulary": 1000, "sequence_length": 128}
_GRAPH = {
    "nodes": [{"name": "a", "device": "v100"}, {"name": "b", "device": "v100"}, {"name": "switch", "type": "switch"}],
    "links": [
        {"ends": ["a", "switch"], "bandwidth": "25 Gbit/s", "latency": "5 us"},
        {"ends": ["b", "switch"], "bandwidth": "25 Gbit/s"},
    ],
}
# One question of each family at least, answered in well under a second.
QUESTIONS: tuple[dict[str, Any], ...] = (
    {
        "dnn": {
            "zoo": "alexnet",
            "batch_per_device": 32,
            "dataset_samples": 1000,
            "epochs": 2,
            "optimizer": "momentum",
        },
        "cluster": {"machines": [{**_MACHINE, "storage": {"bandwidth": "1 GB/s"}, "decode": "3000 samples/s"}]},
        "families": ["all_reduce"],
        "fix": {"num_devices": 4, "algorithm": "ring"},
    },
    {
        "dnn": {"zoo": "alexnet", "global_batch": 96},
        "cluster": {"machines": [{**_MACHINE, "name": "new"}, _SLOW]},
        "families": ["all_reduce"],
        "fix": {"num_machines": 2},
        "constraints": {"deadline": "24 h", "devices": {"at_least": 2}},
    },
    {
        "dnn": {"zoo": "alexnet", "global_batch": 64},
        "cluster": {"machines": [{**_SLOW, "devices": 1}, _HOST]},
        "families": ["parameter_server"],
        "fix": {"co_located": False},
        "calibration": {"bandwidth_efficiency": 0.8, "overhead": "1 ms", "straggler_deviation": "2 ms"},
    },
    {
        "dnn": {"zoo": "adam-mnist", "global_batch": 256},
        "cluster": {"machines": [{**_HOST, "count": 3}]},
        "families": ["model_replicas"],
    },
    {
        "dnn": {"zoo": "alexnet", "global_batch": 32},
        "cluster": {"machines": [{**_MACHINE, "count": 1}]},
        "families": ["pipeline"],
        "fix": {"num_stages": 2, "num_microbatches": 4, "schedule": "1f1b"},
    },
    {
        "dnn": {"transformer": _SMALL, "global_batch": 16, "dtype": "bf16", "optimizer": "adam"},
        "cluster": {"machines": [{**_MACHINE, "device": "a100-sxm4-80gb"}]},
        "families": ["hybrid"],
        "fix": {"num_devices": 4, "tensor_parallel_size": 2, "microbatch_size": 1},
        "constraints": {"exclude": {"recompute": ["full"]}, "memory_per_device": "70 GiB"},
    },
    {
        "dnn": {"layers": sweeps.LAYERS, "batch_per_device": 8, "dataset_samples": 1000, "sample_bytes": "100 kB"},
        "cluster": _GRAPH,
        "families": ["all_reduce"],
    },
    {"dnn": {"zoo": "vgg16", "batch_per_device": 16}, "cluster": {"preset": "osf-testbed"}, "fix": {"num_devices": 8}},
)
_OBJECTIVES = ("training_time", "iteration_time")


def yaml_of(text: str) -> Any:
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True).load(StringIO(text))


@cache
def blocks() -> tuple[dict[str, Any], ...]:
    """Every YAML block of the pages: whole questions and parts of them."""
    found = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        for text in re.findall(r"```yaml[^\n]*\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            data = yaml_of(text)
            if isinstance(data, dict):
                found.append(data)
    return tuple(found)


def _cases() -> list[dict[str, Any]]:
    """Every question of the cases, with what they share."""
    found = []
    for path in sorted((ROOT / "cases").glob("*/case.yaml")):
        data = yaml_of(path.read_text(encoding="utf-8"))
        for question in (data.get("questions") or {}).values():
            shared = data.get("shared") or {}
            whole = {**shared, **question}
            for key in ("dnn", "cluster", "calibration", "procure"):
                if isinstance(shared.get(key), dict) and isinstance(question.get(key), dict):
                    whole[key] = {**shared[key], **question[key]}
            if "dnn" in whole and "cluster" in whole and not {"profile", "trace"} & set(whole["dnn"]):
                found.append(whole)
    return found


@cache
def questions() -> tuple[dict[str, Any], ...]:
    """Questions about given machines; those of the pages that name no file of theirs."""
    shipped = yaml_of((_EXAMPLES / "spec.yaml").read_text(encoding="utf-8"))
    aimed = [{**one, "objective": aim} for one, aim in zip(QUESTIONS, _OBJECTIVES, strict=False)]
    files = ("onnx", "huggingface", "torch", "profile", "trace", "file")
    paged = [
        one
        for one in blocks()
        if isinstance(one.get("dnn"), dict) and not any(key in one["dnn"] for key in files) and "cluster" in one
    ]
    told = [one for one in paged if not isinstance(one.get("calibration"), str) and "sweep" not in one]
    return (*QUESTIONS, *aimed, shipped, *told, *_cases())


@cache
def plans() -> tuple[dict[str, Any], ...]:
    """A plan of each of the questions, as ``planner plan --out`` writes it."""
    found = []
    for question in QUESTIONS:
        plan = planner.plan(planner.load(question), time_limit_s=30, num_alternatives=1)
        found.append(json.loads(json.dumps(plan.to_dict())))
    return tuple(found)


@cache
def configurations() -> tuple[dict[str, Any], ...]:
    """Questions with a configuration to be predicted: those of plans, and those of the pages."""
    planned = [{**plan["problem"], "configuration": {plan["family"]: plan["configuration"]}} for plan in plans()]
    short = [
        {**question, "configuration": {plan["family"]: plan["configuration"]}}
        for question, plan in zip(QUESTIONS, plans(), strict=True)
    ]
    return (*planned, *short, *(one for one in questions() if "configuration" in one))


@cache
def purchases() -> tuple[dict[str, Any], ...]:
    """Questions of what to buy or rent, on the built-in list and on one beside the question."""
    shipped = yaml_of((_EXAMPLES / "procure.yaml").read_text(encoding="utf-8"))
    dnn = {"zoo": "alexnet", "global_batch": 256, "epochs": 1, "dataset_samples": 100_000}
    paged = [{"dnn": dnn, **one} for one in blocks() if "procure" in one and "file" not in str(one["procure"])]
    own = {"dnn": dnn, "procure": {"prices": "prices.csv", "budget": "500 USD"}, "families": ["all_reduce"]}
    jobs = {
        "procure": {
            "prices": ["built-in", "prices.csv"],
            "jobs": [{"name": "daily", "dnn": dnn, "runs_per_month": 30, "deadline": "20 h"}],
            "terms": ["on-demand", "bought"],
            "networks": ["infiniband-400g-one-layer", {"file": "networks.csv"}],
            "power": "20 kW",
        }
    }
    return (shipped, own, jobs, *paged)


@cache
def sweeps_asked() -> tuple[dict[str, Any], ...]:
    """Questions with a block ``sweep``."""
    paged = [one for one in blocks() if "sweep" in one and not isinstance(one.get("calibration"), str)]
    grids: list[dict[str, Any]] = [
        sweeps.batches(5),
        {
            "vary": {
                "cluster.machines.0.count": [1, 2, 4],
                "dnn.batch_per_device": {"from": 1, "to": 1000, "factor": 10},
            }
        },
        {"zip": [{"cluster.machines.0.network": ["10 Gbit/s", "25 Gbit/s"], "fix.num_devices": [1, 2]}]},
        {"vary": {"cluster.machines.0.network": {"from": "1 Gbit/s", "to": "100 Gbit/s", "num": 4, "scale": "log"}}},
    ]
    return (*paged, *({**sweeps.BASE, "sweep": grid} for grid in grids))


@cache
def network_files() -> tuple[dict[str, Any], ...]:
    """What ``planner import -o dnn.yaml`` writes."""
    from planner.network_import import import_file

    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        for file, data in {**profiles(), "config.json": json.dumps(hugging_face()[0]).encode()}.items():
            path = Path(name, file)
            path.write_bytes(data)
            got = import_file(path, batch_size=None if file == "config.json" else 16)
            found.append({got.key: json.loads(json.dumps(dict(got.block), default=list))})
    return tuple(found)


@cache
def profiles() -> dict[str, bytes]:
    """Measured profiles of every format in text."""
    from planner.importers.profiles import template as table_of_layers

    graph = (_EXAMPLES / "residual-mlp.graph.txt").read_bytes()
    branches = (
        "node1 -- Input0 -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=0.0, parameter_size=0.0\n"
        "node2 -- Conv2d(3, 64, kernel_size=(3, 3)) -- forward_compute_time=1.5, backward_compute_time=3, "
        "activation_size=1000.0, parameter_size=7168.0\n"
        "node3 -- Add(inplace) -- forward_compute_time=0.1, backward_compute_time=0.1, activation_size=1000.0, "
        "parameter_size=0.0\n\tnode1 -- node2\n\tnode2 -- node3\n\tnode1 -- node3\n"
    )
    return {
        "net.graph.txt": graph,
        "small.graph.txt": branches.encode(),
        "net.trace.txt": (_EXAMPLES / "alexnet-k80.trace.txt").read_bytes(),
        "net.csv": table_of_layers().encode(),
    }


@cache
def events() -> tuple[dict[str, Any], ...]:
    """Traces of torch.profiler: one step of a small network, with modules and with ranges."""
    found = []
    for name in ("cnn.pt.trace.json.gz", "cnn_ranges.pt.trace.json.gz"):
        with gzip.open(ROOT / "tests" / "importers" / "data" / name) as stream:
            document = json.load(stream)
        steps = sorted(
            (event["ts"], event["ts"] + event["dur"])
            for event in document["traceEvents"]
            if str(event.get("name")).startswith("ProfilerStep")
        )
        begin, end = steps[1]
        kept = [event for event in document["traceEvents"] if begin - 1 <= event.get("ts", -1) <= end]
        found.append({**document, "traceEvents": kept})
    return tuple(found)


@cache
def hugging_face() -> tuple[dict[str, Any], ...]:
    """A ``config.json`` of every architecture that is read."""
    text = (ROOT / "tests" / "importers" / "data" / "huggingface.json").read_text(encoding="utf-8")
    return tuple(one["config"] for one in json.loads(text).values())


@cache
def onnx_files() -> tuple[bytes, ...]:
    """Graphs of ONNX: small ones with loops, branches, functions' domains and constants, and some of real networks."""
    from onnx import helper
    from onnx_graphs import FLOAT, integers, light, model_of, node, weight

    body = helper.make_graph(
        [node("Identity", "c", "d"), node("MatMul", "h v", "k")],
        "body",
        [helper.make_tensor_value_info(name, kind, []) for name, kind in (("i", 7), ("c", 9), ("h", FLOAT))],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in (("d", 9), ("k", FLOAT))],
        [weight("v", [16, 16])],
    )
    small = [
        model_of(
            [node("Conv", "x w b", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), node("Relu", "c", "y")],
            {"x": ["N", 3, 8, 8]},
            {"w": [4, 3, 3, 3], "b": [4]},
        ),
        model_of(
            [
                node("Gemm", "x w b", "g", transB=1),
                node("Reshape", "g shape", "r"),
                node("Transpose", "r", "t", perm=[0, 2, 1]),
                node("MatMul", "r t", "y"),
            ],
            {"x": ["N", 16]},
            [weight("w", [32, 16]), weight("b", [32]), integers("shape", [0, 4, 8])],
        ),
        model_of([node("Loop", "n - x", "y", body=body)], {"x": ["N", 16]}, [integers("n", [4])]),
        model_of(
            [node("LSTM", "x w r b", "y", hidden_size=8), node("Softmax", "y", "z", axis=-1)],
            {"x": [5, "N", 4]},
            {"w": [1, 32, 4], "r": [1, 32, 8], "b": [1, 64]},
            outputs="z",
        ),
        model_of(
            [
                node("Shape", "x", "s"),
                node("Gather", "s zero", "n"),
                node("Unsqueeze", "n axes", "u"),
                node("Concat", "u rest", "target", axis=0),
                node("Reshape", "x target", "f"),
                node("MatMul", "f w", "y"),
            ],
            {"x": ["N", 4, 4]},
            [
                integers("axes", [0]),
                integers("rest", [16]),
                weight("w", [16, 8]),
                helper.make_tensor("zero", 7, [], [0]),
            ],
        ),
    ]
    real = [light(name).read_bytes() for name in ("squeezenet", "zfnet512", "vgg19")]
    return (*(model.SerializeToString() for model in small), *real)


@cache
def tables() -> dict[str, bytes]:
    """A price list and a table of network tiers."""
    lines = (ROOT / "planner" / "data" / "prices.csv").read_text(encoding="utf-8").splitlines()
    kept = [line for index, line in enumerate(lines) if index == 0 or index % 12 == 5 or ",bought," in line]
    networks = (ROOT / "planner" / "data" / "networks.csv").read_bytes()
    return {"prices.csv": ("\n".join(kept) + "\n").encode(), "networks.csv": networks}


@cache
def calibration_tables() -> dict[str, str]:
    """Measurements: tables as the templates have them, and what benchmarks print."""
    from planner.calibration.tables import template

    texts = {
        path.name: path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "tests" / "fuzz" / "seeds").glob("*.txt"))
    }
    rows = [
        f"all_reduce,{n},{size},{2e-5 + size / 1e10 * (n - 1) / n!r},20,1"
        for n in (4, 8)
        for size in (1024, 2**20, 2**24)
    ]
    more = template("collectives").split("collective,num_devices")[0]
    return {
        **texts,
        "collectives.csv": template("collectives"),
        "more.csv": f"{more}collective,num_devices,size_bytes,time_s,repetitions,num_machines\n"
        + "\n".join(rows)
        + "\n",
        "layers.csv": template("layers"),
        "iterations.csv": template("iterations"),
    }


@cache
def calibrations() -> tuple[dict[str, Any], ...]:
    """Calibration blocks, as files that a spec names."""
    measured = {
        "schema": "planner.calibration/1",
        "number_bytes": 4,
        "num_cores": 2,
        "multiply_add": [{"working_set_bytes": 1000, "seconds": 1e-9}, {"working_set_bytes": 10**6, "seconds": 3e-9}],
        "activation_s": 1e-8,
        "error_s": 2e-8,
        "interference": [{"num_threads": 1, "factor": 1.0}, {"num_threads": 2, "factor": 1.4}],
    }
    full = {
        "utilisation": 0.4,
        "curves": [
            {"num_devices": 4, "file": "curve.csv"},
            {"num_devices": 8, "points": [["1 kB", "30 us"], ["1 MB", "130 us"], ["64 MB", "5 ms"]]},
        ],
        "overhead": "100 us",
        "wait": "exact",
        "timeout": "1 ms",
        "known_error": [{"of": "all_reduce", "mean": 0.03, "worst": 0.1, "source": "made up"}],
    }
    printed = {
        "piecewise": [
            {
                **{"num_devices": 4, "log_slope": "1 us", "log_offset": "-2 us", "bandwidth": "1 GB/s"},
                **{"offset": "1 us", "threshold": "1 MB"},
            }
        ],
        "queue": {"switch": "10 Gbit/s", "packet": "1500 B", "hops": 2},
        "multiply_add": [["1 kB", "1 ns"], ["1 MB", "2 ns"]],
        "interference": [[1, 1.0], [2, 1.3]],
        "cores": 4,
    }
    paged = [one["calibration"] for one in (*blocks(), *QUESTIONS) if isinstance(one.get("calibration"), dict)]
    return (measured, full, printed, *paged)


@cache
def runs() -> tuple[dict[str, Any], ...]:
    return (
        run_files.run_document(),
        run_files.run_document(factors=(1.0, 2.0, 1.0)),
        run_files.run_document(median_s=None),
    )


@cache
def launch_files() -> tuple[tuple[str, str], ...]:
    """Files that ``planner export`` writes and ``planner import`` reads back, by name."""
    from planner.errors import InfeasibleError
    from planner.exporters import TARGETS, degrees_of

    found = []
    for plan in plans():
        for target in TARGETS:
            try:
                files = planner.export(plan, target, script="train.py", image="image").files
            except InfeasibleError:
                continue
            found += [(name, text) for name, text in files.items() if degrees_of(Path(name), text)]
    return tuple(dict.fromkeys(found))


@cache
def case_files() -> tuple[dict[str, str], ...]:
    """Cases that are computed in a fraction of a second."""
    names = (
        "osf-equation-7",
        "osf-table-3",
        "osf-section-3-2",
        "adam-arithmetic",
        "dag-input",
        "osf-scaling-factor",
        "het-table-1",
    )
    return tuple(
        {
            file: (ROOT / "cases" / name / file).read_text(encoding="utf-8")
            for file in ("case.yaml", "published.csv", "README.md")
        }
        for name in names
    )


@cache
def store() -> tuple[dict[str, Any], bytes]:
    """A sweep with answers of several kinds, and its store as bytes without a log."""
    from planner.sweep.engine import OneWorker, run
    from planner.sweep.question import load_sweep
    from planner.sweep.store import Store

    asked = {**sweeps.BASE, "sweep": {"vary": {"dnn.batch_per_device": [1, 2, 10**7], "fix.num_devices": [1, 2, 3]}}}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "spec.json")
        path.write_text(json.dumps(asked), encoding="utf-8")
        sweep = load_sweep(path, time_limit_s=60.0)
        with Store(Path(name, "store.sqlite")) as opened:
            run(sweep, opened, OneWorker(), today=sweeps.TODAY)
        with sqlite3.connect(Path(name, "store.sqlite")) as db:
            db.execute("PRAGMA journal_mode = DELETE")
        db.close()
        return asked, Path(name, "store.sqlite").read_bytes()


def vocabulary(documents: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
    """Every value that stands under a key in any of some documents, each once and at most some dozens."""
    found: dict[str, dict[str, Any]] = {}
    waiting: list[Any] = list(documents)
    while waiting:
        here = waiting.pop()
        if isinstance(here, dict):
            for key, value in here.items():
                known = found.setdefault(str(key), {})
                if len(known) < 60:
                    known.setdefault(repr(value)[:200], value)
        parts = here.values() if isinstance(here, dict) else here if isinstance(here, list) else ()
        waiting += [part for part in parts if isinstance(part, dict | list)]
    return {key: list(values.values()) for key, values in found.items()}
