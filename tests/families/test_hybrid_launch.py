"""What launches a layout: every option is one that the program has, with values of its kind, and the conditions hold.

The names, kinds and conditions stand here a second time, as read in ``megatron/training/arguments.py``.
"""

import argparse
import shlex
from typing import Any

import numpy as np
import pytest
from hybrid_questions import MOE, TINY, question
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_jobs import job_of
from modern_blocks import LLAMA

import planner
from planner.exporters import export
from planner.families.hybrid import family as hybrid
from planner.families.hybrid.configuration import ORDER_NAMES, HybridConfiguration, PipelineStage
from planner.families.hybrid.launch import Launch, launch_lines, launch_words, orders_of
from planner.families.hybrid.launch_network import not_expressed
from planner.models.layouts import Layouts
from planner.models.tiers import Tier, groups_of, operation_s
from planner.transformer import Transformer
from planner.zoo.transformers import row, row_names

pytestmark = pytest.mark.usefixtures("wordless")

NUMBERS = """num-layers hidden-size ffn-hidden-size num-attention-heads num-query-groups kv-channels seq-length
    max-position-embeddings vocab-size train-iters eval-iters log-interval tensor-model-parallel-size
    pipeline-model-parallel-size context-parallel-size expert-model-parallel-size expert-tensor-parallel-size
    num-layers-per-virtual-pipeline-stage micro-batch-size global-batch-size recompute-num-layers num-experts
    moe-router-topk moe-ffn-hidden-size moe-shared-expert-intermediate-size q-lora-rank kv-lora-rank qk-head-dim
    decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers mtp-num-layers moe-latent-size mamba-num-heads mamba-head-dim mamba-state-dim mamba-num-groups linear-num-key-heads linear-key-head-dim
    linear-num-value-heads linear-value-head-dim linear-conv-kernel-dim
    qk-pos-emb-head-dim v-head-dim rotary-base rotary-seq-len-interpolation-factor no-rope-freq
    yarn-original-max-position-embeddings make-vocab-size-divisible-by moe-router-num-groups moe-router-group-topk"""
SHARES = """attention-dropout hidden-dropout lr moe-aux-loss-coeff norm-epsilon init-method-std rotary-percent
    rope-scaling-factor rotary-scaling-factor mscale mscale-all-dim moe-router-topk-scaling-factor
    yarn-beta-fast yarn-beta-slow moe-router-bias-update-rate moe-z-loss-coeff mtp-loss-scaling-factor activation-func-clamp-value glu-linear-offset"""
FLAGS = """group-query-attention swiglu quick-geglu squared-relu use-rope-scaling rotary-interleaved qk-l2-norm
    is-hybrid-model moe-shared-expert-gate attention-output-gate apply-layernorm-1p moe-router-pre-softmax moe-apply-probs-on-input disable-bias-linear add-qkv-bias qk-layernorm multi-latent-attention
    untie-embeddings-and-output-weights cross-entropy-loss-fusion mock-data sequence-parallel use-distributed-optimizer
    use-precision-aware-optimizer use-megatron-fsdp no-gradient-accumulation-fusion overlap-grad-reduce
    overlap-param-gather tp-comm-overlap overlap-moe-expert-parallel-comm optimizer-cpu-offload use-tp-pp-dp-mapping moe-grouped-gemm
    moe-router-enable-expert-bias account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split bf16 fp16
    yarn-correction-range-round-to-int no-yarn-correction-range-round-to-int
    accumulate-allreduce-grads-in-fp32 grad-reduce-in-bf16"""
NAMES = {
    "position-embedding-type": ["learned_absolute", "rope", "yarn", "none"],
    "normalization": ["LayerNorm", "RMSNorm"],
    "attention-backend": ["flash", "fused", "auto"],
    "recompute-granularity": ["full", "selective"],
    "recompute-method": ["uniform", "block"],
    "tokenizer-type": ["NullTokenizer"],
    "moe-token-dispatcher-type": ["allgather", "alltoall", "flex"],
    "moe-flex-dispatcher-backend": ["deepep", "hybridep"],
    "moe-router-dtype": ["fp32", "fp64"],
    "moe-router-load-balancing-type": ["aux_loss", "seq_aux_loss", "global_aux_loss", "none"],
    "rope-type": ["rope", "yarn"],
    "moe-router-score-function": ["softmax", "sigmoid"],
    "data-parallel-sharding-strategy": ["optim_grads", "optim_grads_params"],
    "ckpt-format": ["fsdp_dtensor"],
}


def parser() -> argparse.ArgumentParser:
    """The program's command line, as far as it is used; nothing is abbreviated, and nothing given twice."""
    found = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name in NUMBERS.split():
        found.add_argument(f"--{name}", type=int)
    for name in SHARES.split():
        found.add_argument(f"--{name}", type=float)
    for name in FLAGS.split():
        found.add_argument(f"--{name}", action="store_true")
    for name, choices in NAMES.items():
        found.add_argument(f"--{name}", choices=choices)
    found.add_argument("--split")
    for name in ("moe-layer-freq", "window-size", "window-attn-skip-freq", "linear-attention-freq"):
        found.add_argument(f"--{name}")
    for name in ("hybrid-override-pattern", "hybrid-layer-pattern"):
        found.add_argument(f"--{name}")
    found.add_argument("--softmax-type", choices=["learnable", "vanilla"])
    found.add_argument("--experimental-attention-variant", choices=["gated_delta_net"])
    found.add_argument("--spec", nargs="*")
    found.add_argument("--pipeline-model-parallel-layout")
    return found


def read(lines: tuple[str, ...]) -> tuple[list[str], list[str], argparse.Namespace]:
    """The environment, the launcher's words, and the program's options."""
    last = next(index for index, line in enumerate(lines) if line.startswith("torchrun"))
    command = shlex.split("\n".join(lines[last:]).replace("\\\n", " "))
    start = next(index for index, one in enumerate(command) if one.startswith("pretrain_"))
    options = command[start + 1 :]
    names = [one for one in options if one.startswith("--")]
    assert len(names) == len(set(names)), "given twice"
    return list(lines[:last]), command[:start], parser().parse_args(options)


def conditions_hold(environment: list[str], given: argparse.Namespace, network: Transformer) -> None:
    """What the program asserts of its options and their environment."""
    degrees = (given.tensor_model_parallel_size, given.context_parallel_size or 1)
    if given.use_megatron_fsdp:
        assert environment == ["unset CUDA_DEVICE_MAX_CONNECTIONS"]
        assert given.ckpt_format == "fsdp_dtensor"
        assert given.pipeline_model_parallel_size == 1
    elif given.overlap_moe_expert_parallel_comm:
        assert environment == ["export CUDA_DEVICE_MAX_CONNECTIONS=32"]
        chunks = (given.num_layers_per_virtual_pipeline_stage, given.pipeline_model_parallel_layout)
        assert given.pipeline_model_parallel_size == 1 or any(one is not None for one in chunks)
        assert given.expert_model_parallel_size > 1
        assert given.recompute_granularity != "full"
    else:
        assert environment == ["export CUDA_DEVICE_MAX_CONNECTIONS=1"] * (max(degrees) > 1)
    assert given.bf16 != given.fp16
    assert not given.tp_comm_overlap or given.sequence_parallel
    assert not given.overlap_param_gather or (given.use_distributed_optimizer and given.overlap_grad_reduce)
    assert not given.optimizer_cpu_offload or given.use_precision_aware_optimizer
    assert not given.moe_grouped_gemm or given.bf16
    assert given.max_position_embeddings >= given.seq_length
    ends = given.account_for_embedding_in_pipeline_split + given.account_for_loss_in_pipeline_split
    stages, chunk = given.pipeline_model_parallel_size, given.num_layers_per_virtual_pipeline_stage or 1
    if given.pipeline_model_parallel_layout is None:
        assert (given.num_layers + ends) % (stages * chunk) == 0
    assert given.num_layers == network.num_layers
    assert given.vocab_size + 1 == network.vocabulary_size
    assert (given.num_experts or 0) == (0 if network.experts is None else network.experts.num_experts)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(row_names()),
    dtype=st.sampled_from(["bf16", "fp16"]),
    degrees=st.tuples(*[st.sampled_from([1, 2, 4])] * 3),
    zero=st.integers(0, 3),
    recompute=st.sampled_from(["none", "selective", "full"]),
    flags=st.tuples(*[st.booleans()] * 4),
    order=st.sampled_from(ORDER_NAMES),
)
def test_every_network_that_can_be_expressed_has_a_command_that_the_program_reads(
    name: str,
    dtype: str,
    degrees: tuple[int, ...],
    zero: int,
    recompute: str,
    flags: tuple[bool, ...],
    order: str,
) -> None:
    network, (tensor, context, data) = row(name).transformer, degrees
    if not_expressed(network):
        return
    chosen = HybridConfiguration(
        global_batch_size=16,
        tensor=tensor,
        context=context,
        data=data,
        expert=data if network.experts is not None else 1,
        zero=zero,
        recompute=recompute,
        sequence_parallel=flags[0],
        overlap_tensor=flags[0] and flags[1],
        overlap_data=flags[2],
        offload_optimizer=flags[3] and zero < 2,
        order=order,
    )
    environment, launcher, found = read(launch_lines(network, chosen, Launch(dtype=dtype, devices_per_machine=8)))
    conditions_hold(environment, found, network)
    number = chosen.num_devices
    assert launcher[0] == "torchrun"
    assert launcher[launcher.index("--nproc-per-node") + 1] == str(min(number, 8))
    assert ("--standalone" in launcher) == (number <= 8)
    assert found.hidden_size == network.hidden_size
    assert found.untie_embeddings_and_output_weights != network.has_tied_embeddings
    assert (found.num_query_groups or network.num_heads) == network.num_kv_heads
    assert (found.swiglu or found.quick_geglu) == network.is_gated
    if network.latent is not None:
        assert found.qk_head_dim + found.qk_pos_emb_head_dim == network.head_size
    if network.pattern is None and 0 < network.num_moe_layers < network.num_layers:
        kinds = eval(found.moe_layer_freq)  # as the program reads it
        assert kinds == [int(kind == "moe") for kind in network.layer_kinds]


def test_mixtral_on_64_h100s_can_be_launched_from_what_is_printed() -> None:
    machines = {"count": 8, "devices": 8, "device": "h100-sxm", "inside": "nvlink-4", "network": "400 Gbit/s"}
    problem = planner.load(
        {
            "dnn": {"zoo": "mixtral-8x7b", "global_batch": 512},
            "cluster": {"machines": [machines]},
            "objective": "iteration_time",
            "families": ["hybrid"],
        }
    )
    best = planner.plan(problem)
    lines = best.explanation
    start = next(index for index, line in enumerate(lines) if line.startswith("to launch on 64 devices"))
    assert "NODE_RANK 0 to 7" in lines[start]
    end = next(index for index in range(start + 1, len(lines)) if lines[index].startswith("--bf16"))
    environment, launcher, found = read(lines[start + 1 : end + 1])
    network = problem.dnn.transformer
    assert network is not None
    conditions_hold(environment, found, network)
    block = best.configuration.to_document()
    assert (found.pipeline_model_parallel_size, found.expert_model_parallel_size) == (
        block["pipeline"],
        block["expert"],
    )
    assert launcher[:3] == ["torchrun", "--nnodes", "8"]
    assert tuple(best.prediction.details["launch"]) == lines[start + 1 : end + 1]


@pytest.mark.parametrize(
    ("sizes", "word"),
    [
        ({"positions": "alibi"}, "ALiBi"),
        ({"causal": False}, "attention to later tokens"),
        ({"norm_position": "after"}, "norms 'after'"),
    ],
)
def test_a_network_that_the_program_does_not_know_is_named(sizes: dict[str, Any], word: str) -> None:
    problem = question({**TINY, **sizes})
    chosen = HybridConfiguration(global_batch_size=8, tensor=2)
    found = hybrid.predict(problem, chosen)
    lines = hybrid.explain(problem, chosen, found)
    (line,) = [line for line in lines if line.startswith("to launch on 2 devices")]
    assert word in line
    assert "--tensor-model-parallel-size 2" in line
    assert found.details["launch"] == []


def test_what_must_be_done_by_hand_is_said() -> None:
    few = question({**TINY, "kv_heads": 2}).dnn.transformer
    experts = question(MOE).dnn.transformer
    assert few is not None
    assert experts is not None
    wide = HybridConfiguration(global_batch_size=8, tensor=4, data=3)
    words = launch_words(few, wide, Launch(dtype="bf16", devices_per_machine=8))
    assert any("from 0.16 on" in line and "fix.tensor_parallel_size: 2" in line for line in words)
    assert any("the last machine has 4 devices" in line for line in words)
    spread = HybridConfiguration(global_batch_size=8, data=4, expert=4)
    assert any(
        "dtype: bf16" in one for one in launch_words(experts, spread, Launch(dtype="fp16", devices_per_machine=8))
    )
    assert not any(
        "dtype: " in one for one in launch_words(experts, spread, Launch(dtype="bf16", devices_per_machine=8))
    )


def test_data_ranks_outside_of_a_pipeline_are_asked_for_only_where_megatron_core_makes_such_groups() -> None:
    network, inner = row("mixtral-8x7b").transformer, ORDER_NAMES[1]
    for expert, context, is_made in ((8, 1, False), (1, 1, True), (2, 2, True), (1, 2, False)):
        chosen = HybridConfiguration(
            global_batch_size=32, pipeline=2, data=8, context=context, expert=expert, order=inner
        )
        words = launch_words(network, chosen, Launch(dtype="bf16", devices_per_machine=8))
        assert any("--use-tp-pp-dp-mapping" in one for one in words) == is_made
        assert any("makes no groups here" in one for one in words) != is_made


def test_the_search_offers_an_order_of_ranks_that_can_be_launched_unless_another_is_pinned() -> None:
    def found(**fix: Any) -> HybridConfiguration:
        asked = question(fix={"context_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 2, **fix})
        chosen = planner.plan(asked).configuration
        assert isinstance(chosen, HybridConfiguration)
        return chosen

    assert not found().order.endswith("-data")
    network = question().dnn.transformer
    assert network is not None
    assert found().order in (*orders_of(network, found()), *ORDER_NAMES[3:4])
    assert found(rank_order=ORDER_NAMES[1]).order == ORDER_NAMES[1]


@pytest.mark.parametrize(
    ("block", "group"),
    [
        ({"data": 36, "zero": 0}, "dp"),
        ({"data": 36, "zero": 1, "shard": 4}, "dp_replica"),
        ({"data": 36, "zero": 1}, ""),  # reduce-scatters and gathers, which rings do
        ({"data": 9, "tensor": 4, "zero": 0}, "dp"),
        ({"data": 4, "pipeline": 2, "zero": 0}, ""),  # replicas within a machine
        ({"data": 8, "zero": 0}, ""),  # of two machines a ring does as well
    ],
)
@pytest.mark.parametrize("reduces", [True, False])
def test_switches_that_add_up_what_a_layout_counts_on_are_asked_to(
    block: dict[str, Any], group: str, reduces: bool
) -> None:
    """Where a cluster's switches do, all-reduces over three machines or more are told so: in words, and in launch files."""
    kind = {"count": 9, "device": "h100-sxm", "devices": 4, "network": "400 Gbit/s", "latency": "5 us"}
    spec = {"kind": "fat-tree", "leaf": 3, "spines": 1, "reduces": reduces}
    asked = {"dnn": {"transformer": LLAMA, "global_batch": 72, "dtype": "bf16"}, "families": ["hybrid"]}
    problem = planner.load({**asked, "cluster": {"machines": [kind], "topology": spec}, "objective": "iteration_time"})
    chosen = HybridConfiguration(global_batch_size=72, **block)
    job = job_of(problem, "hybrid", chosen)
    is_told = reduces and bool(group)
    lines = hybrid.explain(problem, chosen, job.plan.prediction)
    assert any(line.startswith("in_network: the network's switches add up") for line in lines) == is_told
    option = f"--use-sharp --sharp-enabled-group {group}"
    script, recipe = export("megatron", job).files["launch.sh"], export("megatron-bridge", job).files["recipe.py"]
    assert (option in script) == is_told
    assert ('"use_sharp": True' in recipe) == is_told
    assert "--use-sharp" not in script or is_told
    if "pipeline" in block or block["zero"] == 1:
        return
    for target in ("torchtitan", "accelerate"):
        found = export(target, job)
        assert ("NCCL_COLLNET_ENABLE" in found.files["launch.sh"]) == is_told
        assert any("plug-in for SHARP" in note for note in found.notes) == is_told


@pytest.mark.parametrize(
    ("program", "zero", "groups"),
    [
        ("megatron-deepspeed-bf16", 1, 1),  # whose ZeRO 1 adds up gradients whole
        ("megatron-deepspeed-bf16", 2, 1),
        ("megatron-core", 0, 2),
        ("megatron-core", 1, 2),
        ("megatron-deepspeed-bf16", 1, 2),
        ("primus", 0, 2),
    ],
)
def test_launch_files_ask_for_the_switches_that_a_step_counts_on(program: str, zero: int, groups: int) -> None:
    """Of stages on several kinds of machines, and of programs whose ZeRO 1 adds up all gradients on all ranks, too."""
    names = ["h100-sxm", "a100-sxm4-80gb"][:groups]
    kinds = [{"count": 9, "device": one, "devices": 4, "network": "100 Gbit/s", "latency": "5 us"} for one in names]
    found = {}
    for reduces in (False, True):
        spec = {"kind": "fat-tree", "leaf": 3 if groups == 1 else 9, "spines": 1, "reduces": reduces}
        asked = {
            "dnn": {"transformer": LLAMA, "global_batch": 72, "dtype": "bf16"},
            "calibration": {"program": program},
        }
        problem = planner.load({**asked, "cluster": {"machines": kinds, "topology": spec}, "families": ["hybrid"]})
        block: dict[str, Any] = {"pipeline": groups}
        if groups > 1:
            own = [one.name for one in problem.cluster.machine_groups]
            block["stages"] = tuple(PipelineStage(layers=LLAMA["layers"] // 2, machines=name) for name in own)
        chosen = HybridConfiguration(global_batch_size=72, data=36, zero=zero, **block)
        job = job_of(problem, "hybrid", chosen)
        found[reduces] = job.plan.prediction.breakdown_s["data"], export("deepspeed", job)
    is_counted = found[True][0] < found[False][0]
    assert is_counted == (program != "primus" and zero < (1 if program == "megatron-core" else 2))
    for reduces, (_, exported) in found.items():
        is_told = reduces and is_counted
        assert ("NCCL_COLLNET_ENABLE" in exported.files["launch.sh"]) == is_told
        assert any("plug-in for SHARP" in note for note in exported.notes) == is_told


@pytest.mark.parametrize(
    ("program", "saves"), [("megatron-core", False), ("primus", False), ("megatron-deepspeed", True)]
)
def test_switches_add_up_copies_of_experts_where_a_program_leaves_that_to_nccl(program: str, saves: bool) -> None:
    """Megatron-Core has them for the group of its option alone, which is that of all other weights."""
    kind = {"count": 9, "device": "h100-sxm", "devices": 4, "network": "100 Gbit/s", "latency": "5 us"}
    sizes = {**LLAMA, "layers": 2, "vocabulary": 256, "experts": {"count": 4, "top_k": 1, "size": 16384}}
    asked = {"dnn": {"transformer": sizes, "global_batch": 36, "dtype": "bf16"}, "calibration": {"program": program}}
    seconds = {}
    for reduces in (False, True):
        topology = {"kind": "fat-tree", "leaf": 3, "spines": 1, "reduces": reduces}
        cluster = {"machines": [kind], "topology": topology}
        problem = planner.load({**asked, "cluster": cluster, "objective": "iteration_time", "families": ["hybrid"]})
        chosen = HybridConfiguration(global_batch_size=36, data=36, expert=4)
        prediction = hybrid.predict(problem, chosen)
        seconds[reduces] = prediction.breakdown_s["data"]
    assert (seconds[True] < 0.8 * seconds[False]) == saves  # nearly all weights are experts'


def test_an_all_reduce_that_switches_add_up_takes_half_of_a_rings_bytes() -> None:
    """Of 64 machines' D bytes over B each: D / B up, and as much down at the same time, not 2 x 63 / 64 D / B."""
    seconds = []
    for reduces in (True, False):
        tiers = (
            Tier(size=8, bandwidth_bytes_per_s=400e9),
            Tier(size=64, bandwidth_bytes_per_s=50e9, num_rails=8, reduces=reduces),
        )
        groups = groups_of(tiers, Layouts.one(tensor=8, data=64))
        seconds.append(float(operation_s("all_reduce", groups["replicas"], np.array([1e9]))[0]))
    assert seconds == pytest.approx([1e9 / 50e9, 2 * 63 / 64 * 1e9 / 50e9])
