"""What the blocks of the documentation's pages need beside themselves, and how each is held: run, read or compared.

Nothing on a page is left out but what the tables here name, with the test that follows it, or with the reason.
"""

import builtins
import doctest
import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from docs_commands import ROOT, Block, Command, blocks, follow, is_there, missing, pages, read, write
from jsonschema import Draft202012Validator
from pytest import CaptureFixture
from ruamel.yaml import YAML

import planner
from planner.answer.schemas import MODELS

DATA = ROOT / "tests/importers/data"

GALLERY = "tests/docs/test_gallery.py"  # of all pages below docs/gallery

# Single blocks that another test follows, by page and first line.
ELSEWHERE = {
    (
        "docs/profiles.md",
        "from torch.profiler import ProfilerActivity, profile, schedule",
    ): "tests/heavy/test_docs_commands.py",
}
# Commands of others, and why no test runs them.
NOT_RUN = {
    "make": "sets up the environment that the tests run in; that the target exists is tested",
    "pip": "installs; that the extras exist is tested",
    "pipx": "installs; tests/heavy/test_packages.py runs these lines",
    "uvx": "installs; tests/heavy/test_packages.py runs these lines",
    "python3": "installs",
    "source": "a part of the shell",
    "sky": "rents machines; tests/heavy/test_skypilot.py has its own parser read the task",
    "kubectl": "needs a cluster; tests/heavy/test_kubeflow.py holds the jobs against the schemas of their operators",
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
    "docs/prices.md": {
        "catalogs/v8/aws/vms.csv": "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,"
        "Region,AvailabilityZone,Arch\np4d.24xlarge,A100,8.0,96.0,1152.0,,32.77,9.5,us-east-1,use1-az1,x86_64\n"
    },
    "docs/profiles.md": {"trace.json.gz": DATA / "cnn.pt.trace.json.gz", "tests": ROOT / "tests"},
    "docs/timeline.md": {"cnn.pt.trace.json.gz": DATA / "cnn.pt.trace.json.gz"},
    "docs/export.md": {
        "question.yaml": "dnn: {zoo: resnet50, global_batch: 1024, epochs: 1}\nprocure: {providers: [lambda], as_of: any}\n"
        "families: [all_reduce]\n"
    },
    "docs/pytorch.md": {
        "spec.yaml": 'dnn: {torch: "nets:encoder", batch_per_device: 8, dataset_samples: 1000}\n'
        "cluster: {preset: osf-testbed}\nfamilies: [all_reduce]\n"
    },
}

# Commands that take long: tests/heavy follows them, with all else on their page.
LONG: tuple[tuple[str, str], ...] = (
    (
        "README.md",
        '.venv/bin/planner procure --dnn resnet50 --global-batch 2048 --epochs 90 --deadline "24 h" --budget "500 USD"',
    ),
    ("README.md", ".venv/bin/planner plan mine.yaml --top 5 --out plan.json --html plan.html"),
    ("README.md", ".venv/bin/planner check plan.json       # feasibility and objective again, from the plan alone"),
    (
        "docs/hybrid.md",
        'planner plan --dnn llama3.1-70b --sequence-length 4096 --machines 4x8xh100-sxm --network "400 Gbit/s" --global-batch 128 --frozen 40',
    ),
    (
        "docs/procure.md",
        'planner procure --dnn llama2-7b --global-batch 512 --tokens 200B --deadline "30 d" --budget "5000 EUR/day" --rate EUR=1.08USD --carbon-intensity "380 g/kWh"',
    ),
    ("docs/why_infeasible.md", "planner plan large.yaml"),
)


def followed() -> list[str]:
    """The pages whose blocks are followed by the functions below."""
    return [page for page in pages() if blocks(page) and not page.startswith("docs/gallery/")]


def has_needs(page: str) -> bool:
    """Whether a block of a page needs a library that the tests are run without; tests/heavy has it."""
    return any("needs" in block.notes for block in blocks(page))


def place_of(block: Block) -> tuple[str, str]:
    return block.page, block.first


def is_measured(block: Block) -> bool:
    return "$PLANNER_DATA" in block.text


def is_long(page: str, command: Command) -> bool:
    """Whether a command waits for tests/heavy."""
    return (page, command.text) in LONG


def follow_page(page: str, folder: Path, capsys: CaptureFixture[str], *, has_long: bool = False) -> None:
    """Do what stands on a page, in its order; the current folder is ``folder``."""
    put(page, folder)
    known: dict[str, Any] = {}
    for block, after in pairwise([*blocks(page), None]):
        assert block is not None
        if place_of(block) not in ELSEWHERE and not is_measured(block) and is_there(block.notes.get("needs", "")):
            stand(block, folder, known, capsys, has_long=has_long)
            if block.kind == "python" and not block.name:
                out, _ = capsys.readouterr()
                shown = after.text if after is not None and after.kind == "text" else ""
                assert missing(shown, out) == [], f"{block.page}:{block.line} prints: {out}"


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
    for command in block.commands:
        if is_there(command.needs) and (has_long or not is_long(block.page, command)):
            follow(command, capsys)
    if block.kind == "python" and block.name:
        write(block, folder)
    elif block.kind == "python":
        capsys.readouterr()
        exec(compile(block.text, f"{block.page}:{block.line}", "exec"), known)
    elif block.kind == "pycon":
        session(block, known)
    elif block.kind == "yaml":
        question(block, folder)
    elif block.kind == "json" and not block.name:
        document(json.loads(block.text))
    else:
        assert block.kind in ("sh", "console", "text") or block.name, f"{block.page}:{block.line}: what is it for?"


def session(block: Block, known: dict[str, Any]) -> None:
    """Type the lines behind ``>>>``; what they print stands below them, and leaves no ``_`` behind."""
    found = doctest.DocTestParser().get_doctest(block.text, known, block.page, block.page, block.line)
    told: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(
        found, out=told.append, clear_globs=False
    )
    vars(builtins).pop("_", None)  # libraries take it for the gettext of their host
    assert result.failed == 0, "".join(told)
    known.update(found.globs)


def question(block: Block, folder: Path) -> None:
    """Read a spec, or a part of one within what it stands in; what is given as a configuration is predicted."""
    data = YAML(typ="safe").load(block.text)
    path = write(block, folder) if block.name else folder / "spec.yaml"
    if not data.keys() & {"cluster", "procure"} or ("dnn" not in data and "jobs" not in data.get("procure", {})):
        within = WITHIN.get(place_of(block))
        assert within is not None, f"{block.page}:{block.line}: a part of what? Say so in WITHIN."
        data, path = {**within, **data}, folder / "whole.yaml"
    if path.name != block.name:
        with path.open("w", encoding="utf-8") as file:
            YAML(typ="safe").dump(data, file)
    read(path)
    if "configuration" in data:
        assert planner.predict(planner.load(path)).iteration_time_s > 0


def document(found: Mapping[str, Any]) -> None:
    """Hold a document against its schema."""
    name = found["schema"].removeprefix("planner.").partition("/")[0]
    Draft202012Validator(MODELS[name].model_json_schema(by_alias=True)).validate(found)
