"""ZeRO over a part of the data ranks (HSDP), and which stages of ZeRO go with a pipeline: by program, with a sentence."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hybrid_questions import MOE, TINY, question
from layout_jobs import even_job
from modern_blocks import LLAMA as SMALL

import planner
from planner.data.fits import transformer_rates
from planner.errors import SpecError
from planner.exporters import export
from planner.exporters.megatron import EXPORTERS
from planner.families.hybrid.configuration import HybridConfiguration
from planner.models.layouts import Layouts
from planner.models.memory import PRECISIONS, memory_bytes
from planner.models.tiers import Tier, groups_of
from planner.models.transformer_communication import Reduction, replica_communication, replica_times
from planner.plan import Prediction
from planner.zoo.transformers import row

pytestmark = pytest.mark.usefixtures("wordless")

LLAMA = row("llama3.1-8b").transformer
TIERS = (Tier(size=8, bandwidth_bytes_per_s=400e9), Tier(size=8, bandwidth_bytes_per_s=25e9, num_rails=8))


def predicted(network: dict[str, Any], program: str = "torchtitan", **block: Any) -> Prediction:
    asked = question(network, calibration={"program": program}, configuration={"hybrid": {"data": 8, **block}})
    return planner.predict(replace(asked, transformer_rates=transformer_rates()))


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_states_are_those_of_as_many_ranks(zero: int) -> None:
    """16 bytes a parameter: what is sharded over 8 of 64 ranks is what 8 ranks alone would share."""
    fields = {"zero": zero, "num_microbatches": 1}
    few, partly, whole = (
        memory_bytes(LLAMA, Layouts.one(**fields, **degrees), precision=PRECISIONS["mixed"])
        for degrees in ({"data": 8}, {"data": 64, "shard": 8}, {"data": 64})
    )
    for term in ("weights", "gradients", "optimizer"):
        assert partly[term] == few[term] >= whole[term]


def test_a_shard_of_all_ranks_is_none() -> None:
    layouts = [Layouts.one(data=64, zero=3, num_microbatches=4, shard=shard) for shard in (0, 64)]
    seconds = []
    for one in layouts:
        groups = groups_of(TIERS, one)
        times = replica_times(replica_communication(LLAMA, one, Reduction()), groups)
        seconds.append(sum(float(np.sum(way)) for ways in times.values() for way in ways))
    assert seconds[0] == pytest.approx(seconds[1])


def test_what_is_gathered_stays_inside_and_what_is_reduced_is_added_up_outside() -> None:
    """Of W bytes of weights a machine of 8 gathers 7/8 W over NVLink; copies add up a W/8 of gradients by all-reduces."""
    one = Layouts.one(data=64, zero=3, num_microbatches=1, shard=8)
    dense, *_ = replica_communication(LLAMA, one, Reduction())
    reduced, gathered = replica_times([dense], groups_of(TIERS, one))["dense"]
    size, pieces = float(dense.weight_bytes[0]), float(dense.num_pieces[0])
    assert float(gathered[0]) == pytest.approx(2 * 7 / 8 * size / 400e9)
    outside = 2 * 7 / 8 * size / 8 / 25e9
    assert float(reduced[0]) == pytest.approx(7 / 8 * size / 400e9 + outside, rel=1e-6)
    assert pieces == LLAMA.num_layers


@pytest.mark.parametrize("once", [True, False])
def test_copies_are_added_up_once_a_step_or_in_every_micro_batch(once: bool) -> None:
    """Megatron-FSDP scatters in all of 4 micro-batches and adds up its copies behind the last; FSDP2 in each."""
    one, by = Layouts.one(data=64, zero=3, num_microbatches=4, shard=8), {"reduces_every_microbatch": True}
    dense, *_ = replica_communication(LLAMA, one, Reduction(**by, reduces_copies_once=once))
    reduced, _ = replica_times([dense], groups_of(TIERS, one))["dense"]
    size = float(dense.gradient_bytes[0])
    outside = 2 * 7 / 8 * size / 8 / 25e9
    assert float(reduced[0]) == pytest.approx(4 * 7 / 8 * size / 400e9 + (1 if once else 4) * outside, rel=1e-6)


def test_programs_add_up_copies_as_their_sources_have_it() -> None:
    """Ten megabits a second between machines: what copies add up is nearly all that a step takes."""
    block: dict[str, Any] = {"zero": 3, "shard": 4, "microbatch": 1, "overlap_data": True}
    kind = {"count": 2, "devices": 4, "inside": "nvlink-3", "network": "10 Mbit/s", "latency": "5 us"}
    for program, device, number in (
        ("megatron-core", "a100-sxm4-80gb", 1),
        ("megatron-core", "tpu-v5p", 4),  # MaxText trains there
        ("composer-fsdp", "a100-sxm4-80gb", 4),
    ):
        asked = [
            question(
                TINY,
                batch=8 * steps,
                cluster={"machines": [{**kind, "device": device}]},
                calibration={"program": program},
                configuration={"hybrid": {"data": 8, **block}},
            )
            for steps in (1, 4)
        ]
        seconds = [planner.predict(replace(one, transformer_rates=transformer_rates())) for one in asked]
        ratio = seconds[1].communication_s["data"] / seconds[0].communication_s["data"]
        assert ratio == pytest.approx(number, rel=0.05)


@pytest.mark.parametrize(
    ("network", "program", "block", "words"),
    [
        (TINY, "torchtitan", {"zero": 3, "shard": 3}, "8 data ranks do not divide"),
        (TINY, "torchtitan", {"zero": 0, "shard": 4}, "ZeRO 0 shards nothing"),
        (TINY, "torchtitan", {"zero": 3, "shard": 1}, "nobody to share with"),
        (MOE, "torchtitan", {"zero": 3, "shard": 2, "expert": 4}, "share a copy of all states"),
        (TINY, "nanotron", {"zero": 1, "shard": 4}, "nanotron shards over all data ranks"),
        (TINY, "megatron-core", {"zero": 3, "data": 4, "pipeline": 2}, "Megatron-Core's distributed optimiser"),
        (TINY, "torchtitan", {"zero": 2, "data": 4, "pipeline": 2}, "torchtitan does with ZeRO 3 only"),
    ],
)
def test_what_cannot_be_is_refused(network: dict[str, Any], program: str, block: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        predicted(network, program, **block)


def test_zero_3_in_a_pipeline_holds_what_zero_1_does_and_gathers_more() -> None:
    """FSDP2's backward passes free no weights, and add up whole gradients in fp32 until the last (PyTorch 2.13).

    Of a stage's W parameters over 4 ranks: 4 W / 4 bytes of weights and 2 W gathered, 4 W of gradients, 8 W / 4 of
    Adam's moments. With m micro-batches weights are gathered m + 1 times, and gradients reduced once.
    """
    one, three = (predicted(TINY, data=4, pipeline=2, microbatch=1, zero=zero) for zero in (1, 3))
    assert three.communication_s["data"] > one.communication_s["data"]
    held = three.memory_bytes
    assert held == one.memory_bytes
    number = held["gradients"] / 4
    assert (held["weights"], held["optimizer"]) == pytest.approx((3 * number, 2 * number))
    layouts = Layouts.one(data=4, pipeline=2, zero=3, num_microbatches=8)
    dense, *_ = replica_communication(LLAMA, layouts, Reduction(reduces_every_microbatch=True))
    assert (dense.gathers.item(), dense.reduce_scatters.item()) == (9, 1)


def test_a_slow_network_shards_inside_of_machines() -> None:
    """With ZeRO 3 pinned, and machines that 10 Gbit/s join; a search finds it, and nothing of what is tried is quicker.

    Of gradients in bf16; where they are reduced in fp32 adding up copies sends as much as two gathers spare.
    """
    fix = {"zero_stage": 3, "pipeline_parallel_size": 1, "tensor_parallel_size": 1, "data_parallel_size": 8}
    asked = question(TINY, network="10 Gbit/s", calibration={"program": "composer-fsdp"}, fix=fix)
    asked = replace(asked, transformer_rates=transformer_rates())
    found = planner.plan(asked).configuration
    assert isinstance(found, HybridConfiguration)
    assert found.shard == 4
    pinned = planner.plan(replace(asked, fixed={**asked.fixed, "data_parallel_shard_size": 0}))
    assert pinned.objective > planner.predict(asked, found).iteration_time_s


def test_commands_say_it_and_are_read_back(tmp_path: Any) -> None:
    script = export("megatron", even_job(TINY, data=4, zero=1, shard=2)).files["launch.sh"]
    assert "--num-distributed-optimizer-instances 2" in script
    assert EXPORTERS["megatron"].degrees(tmp_path / "launch.sh", script)["data_parallel_shard_size"] == 2
    script = export("torchtitan", even_job(SMALL, data=4, zero=3, shard=2)).files["launch.sh"]
    text = " ".join(script.replace("\\\n", " ").split())
    assert "data_parallel_replicate_degree 2" in text
    assert "data_parallel_shard_degree 2" in text


def test_experts_are_whole_where_cut_ones_do_not_spread() -> None:
    """Expert x tensor ranks are more than there are: Megatron-Bridge's recipes say expert_tensor: 1."""
    found = predicted(MOE, "megatron-core", tensor=2, data=2, expert=4, sequence_parallel=True)
    assert found.iteration_time_s > 0
