"""What the blocks of the documentation's pages need beside themselves, and how each is held: run, read or compared.

Nothing on a page is left out but what the tables here name, with the test that follows it, or with the reason.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs_commands import ROOT, Block, Command, blocks, follow, is_there, pages, read, write
from jsonschema import Draft202012Validator
from pytest import CaptureFixture
from ruamel.yaml import YAML

import planner
from planner.schemas import MODELS

DATA = ROOT / "tests/importers/data"

# Pages that a test of their own follows, block by block.
OWN = {
    "docs/asynchronous.md": "tests/models/test_asynchronous.py",
    "docs/explain.md": "tests/cli/test_explain_compare.py",
    "docs/first_hour.md": "tests/docs/test_first_hour.py",
    "docs/infeasible.md": "tests/conflicts/test_conflicts.py",
    "docs/money.md": "tests/models/test_money.py",
    "docs/procure.md": "tests/procurement/test_docs.py",
    "docs/scripting.md": "tests/docs/test_scripting.py",
    "docs/sweep.md": "tests/sweep/test_docs.py",
    "docs/timeline.md": "tests/timelines/test_measured.py",
}
QUESTIONS = "tests/docs/test_questions.py"
OWN |= {f"docs/{name}.md": QUESTIONS for name in ("buy_or_rent", "can_i_trust_it", "how_many_servers", "schemas")}
OWN |= {f"docs/{name}.md": QUESTIONS for name in ("which_buckets", "which_layout", "why_infeasible")}
GALLERY = "tests/docs/test_gallery.py"  # of all pages below docs/gallery

# Single blocks that another test follows, by page and first line.
ELSEWHERE = {
    (
        "docs/calibration.md",
        "$ planner calibrate iterations.csv --spec base.yaml -o calibration.yaml",
    ): "tests/calibration/test_calibrate_command.py",
    ("docs/calibration.md", "known_error:"): "tests/calibration/test_calibrate_command.py",
    (
        "docs/calibration.md",
        "$ planner calibrate --plan-measurements question.yaml",
    ): "tests/calibration/test_wanted.py",
    (
        "docs/profiles.md",
        "from torch.profiler import ProfilerActivity, profile, schedule",
    ): "tests/heavy/test_docs_commands.py",
    (
        "docs/report.md",
        "pip install 'training-planner[report]'     # plotly and jinja2, once",
    ): "tests/page/test_docs.py",
    ("docs/report.md", "import planner"): "tests/page/test_docs.py",
}
# Commands of others, and why no test runs them.
NOT_RUN = {
    "make": "sets up the environment that the tests run in; that the target exists is tested",
    "pip": "installs; that the extras exist is tested",
    "python3": "installs",
    "source": "a part of the shell",
    "sky": "rents machines; tests/heavy/test_skypilot.py has its own parser read the task",
    "kubectl": "needs a cluster; tests/heavy/test_kubeflow.py holds the jobs against the schemas of their operators",
    "pytest": "runs these tests",
    ".venv-heavy/bin/python": "runs these tests",
}

# Parts of a spec, by page and first line: what they stand in.
A100 = {"device": "a100-sxm4-80gb", "devices": 8, "inside": "nvlink-3", "nics": 8, "network": "200 Gbit/s"}
MIXED = {
    "dnn": {"zoo": "llama2-13b", "global_batch": 512, "dtype": "bf16", "optimizer": "adam"},
    "cluster": {
        "machines": [{**A100, "name": "old", "count": 4}, {**A100, "name": "new", "count": 2, "device": "h100-sxm"}]
    },
}
EIGHT = {"machines": [{**A100, "count": 8}]}
SMALL = {"dnn": {"zoo": "resnet50", "batch_per_device": 64}, "cluster": {"preset": "osf-testbed"}}
WITHIN: dict[tuple[str, str], dict[str, Any]] = {
    ("docs/all_reduce.md", "configuration:"): {
        "dnn": {"zoo": "resnet50", "global_batch": 256},
        "cluster": {
            "machines": [
                {"name": name, "count": 2, "devices": 4, "device": device, "nics": 1, "network": "25 Gbit/s"}
                for name, device in (("fast", "v100-sxm2-16g"), ("slow", "t4"))
            ]
        },
    },
    ("docs/calibration.md", "calibration: calibration.yaml"): SMALL,
    ("docs/huggingface.md", "dnn: {huggingface: path/to/config.json, sequence_length: 4096}"): {"cluster": EIGHT},
    ("docs/hybrid.md", "configuration:"): {
        "dnn": {"zoo": "gpt3-175b", "global_batch": 1536, "dtype": "bf16", "optimizer": "adam"},
        "cluster": {"machines": [{**A100, "count": 128}]},
    },
    (
        "docs/hybrid.md",
        "constraints: {exclude: {schedule: [gpipe], tensor_parallel_size: [16], recompute: [full], offload_optimizer: [true]}}",
    ): {"dnn": {"zoo": "llama3-8b", "global_batch": 64}, "cluster": EIGHT},
    ("docs/hybrid_mixed.md", "configuration:"): MIXED,
    ("docs/onnx.md", "dnn:"): {"cluster": EIGHT},
    ("docs/pipeline.md", "configuration:"): {
        "dnn": {"zoo": "alexnet", "global_batch": 1024},
        "cluster": {"machines": [{"name": "v100", "count": 16, "device": "v100-sxm2-16g", "network": "10 Gbit/s"}]},
    },
    ("docs/prices.md", "procure:"): {"dnn": {"zoo": "resnet50", "global_batch": 256, "epochs": 1}},
    (
        "docs/transformers.md",
        "dnn: {zoo: llama3-70b, sequence_length: 4096}   # one of the table, with samples of another length",
    ): {"cluster": EIGHT},
    ("docs/transformers.md", "dnn:"): {"cluster": EIGHT},
}

# Files that a page takes for granted.
FILES: dict[str, dict[str, str | Path]] = {
    "docs/calibration.md": {"calibration.yaml": "utilisation: 0.4\n"},
    "docs/huggingface.md": {"path/to/config.json": ROOT / "docs/gallery/own-config/config.json"},
    "docs/pipeline.md": {"vgg16.graph.txt": ROOT / "planner/data/examples/residual-mlp.graph.txt"},
    "docs/profiles.md": {"trace.json.gz": DATA / "cnn.pt.trace.json.gz", "tests": ROOT / "tests"},
    "docs/export.md": {
        "question.yaml": "dnn: {zoo: resnet50, global_batch: 1024, epochs: 1}\nprocure: {providers: [lambda]}\n"
        "families: [all_reduce]\n"
    },
    "docs/pytorch.md": {
        "spec.yaml": 'dnn: {torch: "nets:encoder", batch_per_device: 8, dataset_samples: 1000}\n'
        "cluster: {preset: osf-testbed}\nfamilies: [all_reduce]\n"
    },
}

# Lines of Python that speak of what the reader has, by page and first line: that.
KNOWN = {
    ("docs/transformer_exchange.md", "groups = groups_of(tiers_of(cluster), layouts)"): """
import numpy as np
from planner import load
from planner.models.group_costs import groups_of
from planner.models.layouts import Layouts
from planner.models.tiers import tiers_of
from planner.models.transformer_exchange import exchange_times, layer_exchanges
from planner.models.transformer_replicas import replica_exchanges, replica_times
from planner.models.transformer_schedule import Stages, step_s

problem = load({"dnn": {"zoo": "llama3-8b", "global_batch": 64}, "cluster": {"machines": [
    {"count": 2, "devices": 8, "device": "h100-sxm", "inside": "nvlink-4", "network": "400 Gbit/s", "nics": 8}]}})
cluster, transformer = problem.cluster, problem.dnn.transformer
layouts = Layouts.one(tensor=2, pipeline=2, data=4, num_microbatches=8)
forward_s, backward_s, transfer_s = np.array([1e-2]), np.array([2e-2]), np.array([1e-4])
head_forward_s, head_backward_s = np.array([1e-3]), np.array([2e-3])
""",
}


# Pages that need a library which is not installed for the tests; tests/heavy follows them.
NEEDS = {"docs/pytorch.md": "torch"}
# Commands that take long: tests/heavy follows them, with all else on their page.
LONG: tuple[tuple[str, str], ...] = (
    (
        "README.md",
        '.venv/bin/planner procure --dnn resnet50 --global-batch 2048 --epochs 90 --deadline "24 h" --budget "500 USD"',
    ),
    ("README.md", ".venv/bin/planner plan mine.yaml --top 5 --out plan.json --html plan.html"),
    ("README.md", ".venv/bin/planner check plan.json       # feasibility and objective again, from the plan alone"),
    ("docs/report.md", "planner plan --dnn vgg16 --cluster osf-testbed            # on a terminal"),
    ("docs/report.md", "planner plan --dnn vgg16 --cluster osf-testbed | cat      # plain"),
    ("docs/report.md", "NO_COLOR=1 planner plan --dnn vgg16 --cluster osf-testbed"),
)


def followed() -> list[str]:
    """The pages whose blocks are followed by the functions below."""
    return [page for page in pages() if blocks(page) and page not in OWN and not page.startswith("docs/gallery/")]


def place_of(block: Block) -> tuple[str, str]:
    """How the tables name a block."""
    return block.page, block.first


def is_measured(block: Block) -> bool:
    """Whether a block reads measured data."""
    return "$PLANNER_DATA" in block.text


def is_long(page: str, command: Command) -> bool:
    """Whether a command waits for tests/heavy."""
    return (page, command.text) in LONG


def follow_page(page: str, folder: Path, capsys: CaptureFixture[str], *, has_long: bool = False) -> None:
    """Do what stands on a page, in its order; the current folder is ``folder``."""
    put(page, folder)
    known: dict[str, Any] = {}
    for block in blocks(page):
        if place_of(block) not in ELSEWHERE and not is_measured(block):
            stand(block, folder, known, capsys, has_long=has_long)


def put(page: str, folder: Path) -> None:
    """Lay out the files that a page takes for granted, and its tables, wherever they stand on it."""
    for name, source in FILES.get(page, {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(source, str):
            path.write_text(source, encoding="utf-8")
        else:
            path.symlink_to(source)
    for block in blocks(page):
        if block.name and block.kind in ("csv", "text"):
            write(block, folder)
    if page == "docs/onnx.md":  # a network whose samples are sequences
        from onnx_graphs import model_of, node, saved

        saved(model_of([node("MatMul", "x w")], {"x": ["batch", "sequence", 8]}, {"w": [8, 8]}), folder)


def stand(
    block: Block, folder: Path, known: dict[str, Any], capsys: CaptureFixture[str], *, has_long: bool = False
) -> None:
    """Do what a block is there for."""
    for command in block.commands:
        if is_there(command.needs) and (has_long or not is_long(block.page, command)):
            follow(command, capsys)
    if block.kind == "python" and block.name:
        write(block, folder)
    elif block.kind == "python":
        exec(KNOWN.get(place_of(block), ""), known)
        exec(compile(block.text, f"{block.page}:{block.line}", "exec"), known)
        capsys.readouterr()
    elif block.kind == "yaml":
        question(block, folder)
    elif block.kind == "json":
        document(json.loads(block.text))
    else:
        assert block.kind in ("sh", "console", "text") or block.name, f"{block.page}:{block.line}: what is it for?"


def question(block: Block, folder: Path) -> None:
    """Read a spec, or a part of one within what it stands in; what is given as a configuration is predicted."""
    data = YAML(typ="safe").load(block.text)
    path = folder / (block.name or "spec.yaml")
    if block.name:
        write(block, folder)
    if not data.keys() & {"cluster", "procure"} or ("dnn" not in data and "jobs" not in data.get("procure", {})):
        within = WITHIN.get(place_of(block))
        assert within is not None, f"{block.page}:{block.line}: a part of what? Say so in WITHIN."
        data, path = {**within, **data}, folder / "whole.yaml"
    with path.open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(data, file)
    read(path)
    if "configuration" in data:
        assert planner.predict(planner.load(path)).iteration_time_s > 0


def document(found: Mapping[str, Any]) -> None:
    """Hold a document against its schema."""
    name = found["schema"].removeprefix("planner.").partition("/")[0]
    Draft202012Validator(MODELS[name].model_json_schema(by_alias=True)).validate(found)
