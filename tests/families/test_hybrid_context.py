"""How context ranks see keys and values: plans are proven and checked, files are read back, and what cannot be is said."""

from pathlib import Path
from typing import Any

import pytest
from hybrid_questions import TINY, given_layout, layout, question, whole_grid
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_jobs import even_job, job_of
from modern_blocks import LLAMA

import planner
from planner.decisions import LAYOUT
from planner.errors import InfeasibleError, SpecError
from planner.exporters import export
from planner.exporters.export import degrees_of
from planner.families.hybrid import family as hybrid
from planner.families.hybrid.cost import costs_of
from planner.models.layer_memory import Kernels, layer_bytes
from planner.models.layouts import ContextMethod, Layouts
from tests.referee.second_physics.hybrid import facts_of

pytestmark = pytest.mark.usefixtures("wordless")

METHODS = LAYOUT["context_method"].names
LONG = {**TINY, "sequence_length": 32768, "kv_heads": 4}


@pytest.mark.parametrize("network", ["200 Gbit/s", "25 Gbit/s"])
def test_the_best_method_of_every_layout_is_found(network: str) -> None:
    problem = question(LONG, network=network, fix={"context_parallel_size": 8, "microbatch_size": 1})
    (cost,) = costs_of(problem)
    nodes = whole_grid(cost)
    assert {METHODS[one] for one in nodes["context_method"]} == {"ring", "all_gather", "hierarchical"}
    layouts = cost.layouts(nodes)
    fits = cost.memory(layouts)["total"] <= cost.memory_limit_bytes
    best = float(cost.seconds(layouts.of(fits)).min())
    assert float(hybrid.predict(problem, layout(problem)).iteration_time_s) == pytest.approx(best)


@settings(max_examples=25, deadline=None)
@given(
    method=st.sampled_from(METHODS),
    context=st.sampled_from([2, 4, 8]),
    tensor=st.sampled_from([1, 2]),
    recompute=st.sampled_from(["none", "full"]),
)
def test_a_second_count_agrees_and_only_gathering_keeps_more(
    method: str, context: int, tensor: int, recompute: str
) -> None:
    problem, shares = question(LONG, devices=8), 4 // tensor
    block = {"context": context, "tensor": tensor, "recompute": recompute, "global_batch_size": 8}
    whole = {"ulysses": shares % context == 0, "hierarchical": 1 < min(shares, context) < context}.get(method, True)
    if not whole:
        with pytest.raises(SpecError, match="4 heads of keys and values, over a tensor degree of"):
            planner.predict(question(LONG, devices=8, configuration={"hybrid": {**block, "context_method": method}}))
        return
    found = {}
    for name in ("ring", method):
        chosen = given_layout(problem, **block, context_method=name)
        found[name] = hybrid.predict(problem, chosen)
        facts = facts_of(problem, chosen.to_document(), found[name])
        assert [f"{one.name}: {one.text}" for one in facts.findings if not one.is_ok] == []
    more = found[method].memory_bytes["total"] - found["ring"].memory_bytes["total"]
    assert more >= 0 if method == "all_gather" else more == 0


def test_gathered_keys_and_values_and_their_gradients_stand_beside_a_layers_backward_pass() -> None:
    network = question(LONG).dnn.transformer
    assert network is not None
    found = []
    for method in (ContextMethod.RING, ContextMethod.ALL_GATHER):
        one = Layouts.one(context=4, tensor=2, microbatch=3, context_method=int(method))
        found.append(layer_bytes(network, "dense", one, activation_bytes=2, kernels=Kernels()))
    assert found[0].kept == found[1].kept
    assert found[1].working - found[0].working == pytest.approx(2 * 2 * 3 * 32768 * (4 / 2) * 2 * 128)


def test_the_block_and_the_headline_say_it_where_it_is_no_ring() -> None:
    problem = question(LONG)
    plain, other = (given_layout(problem, context=4, context_method=one) for one in ("ring", "ulysses"))
    assert "context_method" not in plain.to_document()
    assert other.to_document()["context_method"] == "ulysses"
    assert "ulysses context" in other.headline


@pytest.mark.parametrize(
    ("method", "context", "words"),
    [
        ("ulysses", 2, "--cp-comm-type a2a"),
        ("all_gather", 2, "--cp-comm-type all_gather"),
        ("hierarchical", 16, "--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 8 2"),
        ("ring", 2, ""),
    ],
)
def test_a_script_says_it_and_is_read_back(method: str, context: int, words: str) -> None:
    job = even_job(TINY, context=context, context_method=method)
    text = export("megatron", job).files["launch.sh"]
    assert words in text
    assert ("--cp-comm-type" in text) == bool(words)
    found = degrees_of(Path("launch.sh"), text)
    assert found is not None
    assert found[1]["context_parallel_method"] == method


def test_a_program_without_the_method_refuses_it_and_others_run_their_own() -> None:
    asked: dict[str, Any] = {"hybrid": {"context": 2, "context_method": "ulysses", "global_batch_size": 8}}
    with pytest.raises(SpecError, match="torchtitan has no such method of context parallelism: it has ring"):
        planner.predict(planner.load({**QUESTION, "configuration": asked}))
    fix = {"context_parallel_size": 2, "context_parallel_method": "ulysses"}
    with pytest.raises(InfeasibleError, match="it can be ring: torchtitan has no such method of context parallelism"):
        planner.plan(planner.load({**QUESTION, "families": ["hybrid"], "fix": fix}))
    job = even_job(LLAMA, context=2, data=2, zero=2, context_method="ulysses")
    assert any("round a ring" in one for one in export("torchtitan", job).notes)
    ring = even_job(TINY, context=2, data=2, zero=2)
    assert any("it exchanges heads by all-to-alls" in one for one in export("deepspeed", ring).notes)


QUESTION: dict[str, Any] = {
    "dnn": {"transformer": TINY, "global_batch": 8, "dtype": "bf16"},
    "cluster": {"machines": [{"count": 1, "device": "a100-sxm4-80gb", "devices": 4}]},
    "calibration": {"program": "torchtitan"},
}


def test_packed_documents_shorten_attention_alone() -> None:
    def asked(packed: int | None, length: int = 4096) -> Any:
        dnn = {"transformer": {**TINY, "sequence_length": length}, "global_batch": 4, "dtype": "bf16"}
        packs = {} if packed is None else {"packed": packed}
        return planner.load({**QUESTION, "dnn": {**dnn, **packs}, "calibration": {}, "families": ["hybrid"]})

    whole, halves, odd = (asked(one).dnn.transformer for one in (None, 2048, 3000))
    pairs = [one.attended_pairs("attention") for one in (whole, halves, odd)]
    assert pairs == [4096**2 / 2, 2 * 2048**2 / 2, (3000**2 + 1096**2) / 2]
    found = []
    for packed in (4096, 1024, 128):
        problem = asked(packed)
        chosen = given_layout(problem, context=2, data=2)
        found.append(hybrid.predict(problem, chosen))
        facts = facts_of(problem, chosen.to_document(), found[-1])
        assert [f"{one.name}: {one.text}" for one in facts.findings if not one.is_ok] == []
    assert found[0].iteration_time_s > found[1].iteration_time_s > found[2].iteration_time_s
    assert found[0].memory_bytes == found[2].memory_bytes
    assert (
        found[0].iteration_time_s
        == hybrid.predict(asked(None), given_layout(asked(None), context=2, data=2)).iteration_time_s
    )
    with pytest.raises(SpecError, match="documents of 8,192 tokens are longer than the sequence of 4,096"):
        asked(8192)


def test_files_say_how_their_program_learns_where_documents_end() -> None:
    dnn = {"transformer": LLAMA, "global_batch": 4, "dtype": "bf16", "packed": 1024}
    problem = planner.load({**QUESTION, "dnn": dnn, "calibration": {}, "families": ["hybrid"]})
    job = job_of(problem, "hybrid", given_layout(problem, context=2, data=2))
    for target, words in (
        ("megatron", "must be told where they end"),
        ("megatron-bridge", "PackedSequenceSpecs"),
        ("torchtitan", "where its data say that one ends"),
    ):
        assert any("documents of 1,024 tokens" in one and words in one for one in export(target, job).notes)


def test_keys_of_windows_pass_round_no_ring_of_megatron_core() -> None:
    def asked(method: str) -> Any:
        dnn = {"transformer": {**TINY, "sequence_length": 4096, "window": 512}, "global_batch": 4, "dtype": "bf16"}
        configuration = {"hybrid": {"context": 2, "data": 2, "microbatch": 1, "context_method": method}}
        return planner.load(
            {**QUESTION, "dnn": dnn, "calibration": {}, "families": ["hybrid"], "configuration": configuration}
        )

    assert planner.predict(asked("all_gather")).iteration_time_s > 0
    with pytest.raises(SpecError, match="passes keys round no ring where attention has windows"):
        planner.predict(asked("ring"))
