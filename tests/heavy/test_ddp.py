"""The export for DistributedDataParallel, run: real torchrun, gloo on the loopback, and the buckets that DDP forms."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from guards import free_port

torch = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")

import planner  # noqa: E402

# (name, kind, {tensor: elements}); forward order, as the module below registers them.
LAYERS = [
    ("conv1", "conv", {"conv1.weight": 8 * 3 * 9, "conv1.bias": 8}),
    ("norm1", "batch_norm", {"norm1.weight": 8, "norm1.bias": 8}),
    ("conv2", "conv", {"conv2.weight": 16 * 8 * 9, "conv2.bias": 16}),
    ("norm2", "batch_norm", {"norm2.weight": 16, "norm2.bias": 16}),
    ("fc1", "dense", {"fc1.weight": 1024 * 256, "fc1.bias": 256}),
    ("fc2", "dense", {"fc2.weight": 256 * 512, "fc2.bias": 512}),
    ("fc3", "dense", {"fc3.weight": 512 * 10, "fc3.bias": 10}),
]
FACTORY = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.fc1, self.fc2, self.fc3 = nn.Linear(1024, 256), nn.Linear(256, 512), nn.Linear(512, 10)

    def forward(self, x):
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x.flatten(1))))))

def build():
    torch.manual_seed(0)
    images, labels = torch.randn(64, 3, 8, 8), torch.randint(0, 10, (64,))
    return Net(), torch.utils.data.TensorDataset(images, labels), nn.functional.cross_entropy
"""


def question(groups: list[list[str]] | None = None, **more: Any) -> dict[str, Any]:
    """The network above on one machine of two devices; ``groups``: fused as listed, by the names of layers."""
    layers: list[dict[str, Any]] = [{"name": "input", "kind": "input", "shape": [3, 8, 8]}]
    for name, kind, tensors in LAYERS:
        rows = [
            {"name": key, "elements": number, "role": "bias" if key.endswith("bias") else "weight"}
            for key, number in tensors.items()
        ]
        layers.append({"name": name, "kind": kind, "multiply_adds": 1e8, "tensors": rows})
    device = {"name": "box", "fp32": "1 TFLOP/s", "memory": "8 GiB"}
    machine = {"count": 1, "device": device, "devices": 2, "inside": {"bandwidth": "1 GB/s", "latency": "20 us"}}
    found: dict[str, Any] = {
        "dnn": {"name": "net", "layers": layers, "global_batch": 16},
        "cluster": {"machines": [machine]},
        "families": ["all_reduce"],
        "fix": {"num_devices": 2},
        "objective": "iteration_time",
    }
    if groups:
        block = {"num_devices": 2, "fusion_groups": [{"tensors": group} for group in groups]}
        found["configuration"] = {"all_reduce": block}
    return {**found, **more}


def started(folder: Path, found: Any, arguments: str) -> dict[str, Any]:
    """Write an export, run it on this machine, and return its report."""
    for name, text in found.files.items():
        (folder / name).write_text(text)
    (folder / "net.py").write_text(FACTORY)
    report = folder / "report.json"
    environment = environment_of()
    command = ["bash", "launch.sh"]
    script = (folder / "launch.sh").read_text().replace("--demo 1", f"{arguments} --report {report}")
    (folder / "launch.sh").write_text(script)
    done = subprocess.run(
        command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {**json.loads(report.read_text()), "stdout": done.stdout, "stderr": done.stderr}


def exported(groups: list[list[str]], to: str = "ddp", **more: Any) -> Any:
    """The export of a plan whose groups are given."""
    problem = planner.load(question(**more))
    plan = planner.plan(problem)
    given = planner.load(question(groups, **more))
    from dataclasses import replace

    from planner.api import configuration_of

    _, configuration = configuration_of(given)
    prediction = planner.predict(given)
    changed = replace(
        plan, configuration=configuration, prediction=prediction, objective=prediction.iteration_time_s, bound=0.0
    )
    return planner.export(changed, to)


BACKWARD = ["fc3", "fc2", "fc1", "conv2", "conv1"]  # batch norm goes with the convolution before it


@pytest.mark.parametrize("cuts", [(1, 3), (2,), (1, 2, 3, 4), (3, 4), ()])
def test_ddp_forms_the_planned_unequal_groups_of_a_real_network(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    groups = [BACKWARD[start:end] for start, end in pairwise((0, *cuts, len(BACKWARD)))]
    found = exported(groups)
    numbers = json.loads(found.files["planned_ddp.json"])
    promised = [4 * one for one in numbers["bucket_elements"]]
    assert len(promised) == len(groups)
    report = started(tmp_path, found, "--factory net:build --steps 4")
    assert report["buckets"] == promised
    assert len(report["seconds"]) == 4


def test_ddp_forms_the_buckets_that_the_best_constant_size_promises(tmp_path: Path) -> None:
    found = exported([BACKWARD[:2], BACKWARD[2:3], BACKWARD[3:]])
    numbers = json.loads(found.files["planned_ddp.json"])
    promised = [4 * one for one in numbers["constant_bucket_elements"]]
    numbers["bucket_elements"] = []  # as where PyTorch has no list of limits
    files = {**found.files, "planned_ddp.json": json.dumps(numbers)}
    found = type(found)(target=found.target, version=found.version, files=files)
    report = started(tmp_path, found, "--factory net:build --steps 4")
    assert report["buckets"] == promised


def test_short_numbers_form_the_planned_buckets_of_long_weights(tmp_path: Path) -> None:
    asked = question()
    asked["dnn"] |= {"dtype": "bf16", "optimizer": "adam"}
    asked["cluster"]["machines"][0]["device"]["bf16"] = "2 TFLOP/s"
    found = planner.export(planner.plan(planner.load(asked)), "ddp")
    numbers = json.loads(found.files["planned_ddp.json"])
    assert numbers["gradient_bytes"] == 2
    assert any("short gradients" in note for note in found.notes)
    report = started(tmp_path, found, "--factory net:build --steps 3")
    assert report["buckets"] == [4 * elements for elements in numbers["bucket_elements"]]
    assert "gloo sends gradients in four bytes" in report["stderr"]


def test_the_made_up_module_has_the_planned_buckets_too_at_a_part_of_their_size(tmp_path: Path) -> None:
    plan = planner.plan(planner.load(question()))
    found = planner.export(plan, "ddp")
    numbers = json.loads(found.files["planned_ddp.json"])
    report = started(tmp_path, found, "--demo 4 --steps 3")
    assert len(report["buckets"]) == len(numbers["bucket_elements"])
    for bucket, planned in zip(report["buckets"], numbers["bucket_elements"], strict=True):
        assert bucket == pytest.approx(planned, rel=0.02, abs=64)  # 4 bytes a number, 1/4 of the numbers


def test_unequal_shares_and_passes_make_the_mean_over_the_global_batch(tmp_path: Path) -> None:
    found = planner.export(planner.plan(planner.load(question())), "ddp")
    numbers = json.loads(found.files["planned_ddp.json"])
    row = {**numbers["ranks"][0], "devices_per_machine": 1}
    numbers["ranks"] = [
        {**row, "batch_per_device": 11, "gradient_accumulation_steps": 2},
        {**row, "batch_per_device": 5, "gradient_accumulation_steps": 1},
    ]
    (tmp_path / "planned_ddp.json").write_text(json.dumps(numbers))
    (tmp_path / "planned_ddp.py").write_text(found.files["planned_ddp.py"])
    (tmp_path / "check.py").write_text(CHECK)
    environment = environment_of()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "check.py"]
    done = subprocess.run(
        command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "gradients agree" in done.stdout


def test_machines_of_unlike_numbers_of_devices_train_as_one_and_share_the_batch_as_planned(tmp_path: Path) -> None:
    kinds = [("new", 2, "2 TFLOP/s"), ("old", 1, "1 TFLOP/s")]
    machines = [
        {
            "name": name,
            "count": 1,
            "device": {"name": f"box-{name}", "fp32": rate, "memory": "8 GiB"},
            "devices": devices,
            "inside": {"bandwidth": "1 GB/s", "latency": "20 us"},
            "network": "10 Gbit/s",
        }
        for name, devices, rate in kinds
    ]
    asked = question(cluster={"machines": machines}, fix={"num_devices": 3}, calibration={"utilisation": 0.5})
    plan = planner.plan(planner.load(asked))
    found = planner.export(plan, "ddp")
    rows = json.loads(found.files["planned_ddp.json"])["ranks"]
    assert [(row["devices_per_machine"], row["batch_per_device"]) for row in rows] == [(2, 7), (1, 2)]
    for name, text in found.files.items():
        (tmp_path / name).write_text(text.replace("29500", str(free_port())) if name == "launch.sh" else text)
    (tmp_path / "net.py").write_text(FACTORY)
    script = (tmp_path / "launch.sh").read_text()
    (tmp_path / "launch.sh").write_text(
        script.replace("--demo 1", "--factory net:build --steps 4 --report report.json")
    )
    runs = [
        subprocess.Popen(
            ["bash", "launch.sh"],
            cwd=tmp_path,
            env=environment_of(NODE_RANK=str(rank), MASTER_ADDR="127.0.0.1"),
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    words = [run.communicate(timeout=200)[1] for run in runs]
    assert all(run.returncode == 0 for run in runs), "\n".join(words)[-3000:]
    report = json.loads((tmp_path / "report.json").read_text())
    wanted = json.loads(found.files["planned_ddp.json"])["bucket_elements"]
    assert report["buckets"] == [4 * elements for elements in wanted]


def environment_of(**more: str) -> dict[str, str]:
    """One thread a process, gloo on the loopback, this interpreter's torchrun."""
    found = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    return {**found, "PATH": f"{Path(sys.executable).parent}:{found['PATH']}", **more}


CHECK = """
import torch, torch.distributed as dist
from planned_ddp import PLAN, ShareBatches, leave, weight, wrap

dist.init_process_group("gloo")
torch.manual_seed(0)
module = torch.nn.Linear(7, 1)
data = torch.randn(16, 7)
PLAN["bucket_elements"], PLAN["constant_elements"] = [], None
wrapped = wrap(module)
batches = ShareBatches(16, dist.get_rank())
seen = list(batches)
assert len(seen) == batches.passes, seen
for index, indices in enumerate(seen):
    with wrapped.no_sync() if index < len(seen) - 1 else torch.enable_grad():
        ((wrapped(data[indices]) ** 2).mean() * weight(len(indices))).backward()
alone = torch.nn.Linear(7, 1)
alone.load_state_dict(module.state_dict())
(alone(data) ** 2).mean().backward()
assert torch.allclose(module.weight.grad, alone.weight.grad, atol=1e-6), (module.weight.grad, alone.weight.grad)
every = [None, None]
dist.all_gather_object(every, sum(seen, []))
assert sorted(every[0] + every[1]) == list(range(16)) and len(every[0]) == 11
if dist.get_rank() == 0:
    print("gradients agree")
del wrapped, module
leave()
"""
