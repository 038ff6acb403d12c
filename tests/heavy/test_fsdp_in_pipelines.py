"""What FSDP2 holds and communicates in a pipeline, run by PyTorch on four processes: as memory and seconds count it."""

import json
import os
import sys
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
from guards import free_port

from planner.models.layouts import Layouts
from planner.models.transformer_communication import Reduction, replica_communication
from planner.zoo.transformers import row

pytest.importorskip("torch.distributed.pipelining")

WIDTH, BLOCKS, MICROBATCHES = 64, 4, 4
PROGRAM = """
import json, os, sys
import torch
import torch.distributed as dist
import torch.distributed.fsdp._fully_shard._fsdp_param_group as groups
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Linear({width}, {width}, bias=False)
    def forward(self, x):
        return x + torch.relu(self.matrix(x))

dist.init_process_group("gloo")
torch.set_num_threads(1)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
index = mesh["pp"].get_local_rank()
model = nn.Sequential(*[Block() for _ in range({blocks})])
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for part in [*model, model]:
    fully_shard(part, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=sys.argv[1] == "always")
numbers = {{"gathers": 0, "reductions": 0, "weights": 0, "gradients": 0}}

def counting(name, function):
    def counted(*given, **more):
        numbers[name] += 1
        return function(*given, **more)
    return counted

groups.foreach_all_gather = counting("gathers", groups.foreach_all_gather)
groups.foreach_reduce = counting("reductions", groups.foreach_reduce)
stage = PipelineStage(model, index, 2, torch.device("cpu"), group=mesh.get_group("pp"))
backward = stage.backward_one_chunk

def looked_at(*given, **more):
    backward(*given, **more)
    held = [block._get_fsdp_state()._fsdp_param_group.fsdp_params[0] for block in model]
    weights = sum(t.untyped_storage().size() for one in held for t in one.all_gather_outputs)
    sums = [one.unsharded_accumulated_grad for one in held]
    numbers["weights"] = max(numbers["weights"], weights)
    numbers["gradients"] = max(numbers["gradients"], sum(t.numel() * t.element_size() for t in sums if t is not None))

stage.backward_one_chunk = looked_at
schedule = Schedule1F1B(stage, {microbatches}, loss_fn=lambda out, target: ((out - target) ** 2).mean())
for step in range(2):  # the first one looks at shapes, too
    numbers.update(gathers=0, reductions=0)
    sample = torch.randn(2 * {microbatches}, {width})
    schedule.step(sample) if index == 0 else schedule.step(target=sample, losses=[])
    for one in model.parameters():
        one.grad = None
if mesh["dp"].get_local_rank() == 0:
    open(os.path.join(sys.argv[2], f"{{index}}.json"), "w").write(json.dumps(numbers))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("reshards", "zero"), [("always", 3), ("never", 1)])
def test_a_stage_holds_whole_gradients_and_weights_and_gathers_as_often_as_counted(
    reshards: str, zero: int, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(width=WIDTH, blocks=BLOCKS, microbatches=MICROBATCHES))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    launcher += ["--master-port", str(free_port())]
    done = run(
        [*launcher, str(program), reshards, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    layout = Layouts.one(pipeline=2, data=2, zero=zero, num_microbatches=MICROBATCHES)
    counted, *_ = replica_communication(row("llama3-8b").transformer, layout, Reduction(reduces_every_microbatch=True))
    for index in range(2):
        found: dict[str, Any] = json.loads((tmp_path / f"{index}.json").read_text())
        assert found["gathers"] == BLOCKS * counted.gathers
        assert found["reductions"] == BLOCKS * counted.reduce_scatters
        assert found["weights"] == 2 * BLOCKS * WIDTH**2
        assert found["gradients"] == 4 * BLOCKS * WIDTH**2
