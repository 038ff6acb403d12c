"""megatron-core takes the planned options, its groups have the planned degrees, and its layout the planned stages."""

from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from heavy_plans import LARGE, plan_of
from hybrid_questions import MOE, TINY
from layout_jobs import even_job, hybrid_of, uneven_job

from planner.exporters import megatron
from planner.exporters.export import Job
from planner.exporters.megatron import KNOWN
from planner.exporters.scripts import flags_of, launched
from planner.families.hybrid.configuration import ORDER_NAMES

torch = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")
pytest.importorskip("megatron.core", reason="megatron-core is not installed; run make test-heavy")
pytestmark = [
    pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning"),  # its own default
    pytest.mark.filterwarnings("ignore:Using a large number of experts:UserWarning"),  # advice on the router's numbers
]

LAUNCH = Path("launch.sh")
# Options of arguments.py whose fields in megatron-core have other names.
FIELDS = {
    "swiglu": "gated_linear_unit",
    "position_embedding_type": "",
    "num_experts": "num_moe_experts",
    "disable_bias_linear": "",
    "recompute_granularity": "recompute_granularity",
}


def options_of(job: Job) -> dict[str, list[str]]:
    """What pretrain_gpt.py is given."""
    words, _ = launched(LAUNCH, megatron.export(job).files["launch.sh"], "--tensor-model-parallel-size")
    return flags_of(words[words.index("--num-layers") :])


def settings_of(options: dict[str, list[str]]) -> dict[str, Any]:
    """The options that are fields of megatron-core's configuration, of their types."""
    known = {field.name for field in fields(import_module(TRANSFORMER).MLATransformerConfig)}
    found: dict[str, Any] = {}
    for name, values in options.items():
        field = FIELDS.get(name.replace("-", "_"), name.replace("-", "_"))
        if field in known and field not in {"normalization", "attention_backend", "moe_layer_freq"}:
            text = values[0] if values else ""
            found[field] = True if not values else int(text) if text.isdigit() else _number_or_text(text)
    if "recompute-modules" in options:
        found["recompute_modules"] = options["recompute-modules"]
    if "disable-bias-linear" in options:
        found["add_bias_linear"] = False
    if stages := found.get("pipeline_model_parallel_size", 1) > 1:
        found["pipeline_dtype"] = torch.bfloat16
    if stages and (each := options.get("num-layers-per-virtual-pipeline-stage")):
        ends = sum(f"account-for-{one}-in-pipeline-split" in options for one in ("embedding", "loss"))
        layers = found["num_layers"] + ends
        found["virtual_pipeline_model_parallel_size"] = layers // found["pipeline_model_parallel_size"] // int(each[0])
    return found


def _number_or_text(text: str) -> Any:
    """A number where it is one."""
    try:
        return float(text)
    except ValueError:
        return text


TRANSFORMER = "megatron.core.transformer.transformer_config"


def build(options: dict[str, list[str]], **change: Any) -> Any:
    """Megatron-core's configuration of options, some of them changed."""
    module = import_module(TRANSFORMER)
    kind = module.MLATransformerConfig if "multi-latent-attention" in options else module.TransformerConfig
    settings = {**settings_of(options), **change}
    known = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in settings.items() if name in known})


@pytest.fixture
def world() -> Iterator[Any]:
    """Start as many ranks as are asked for, of the backend that exchanges nothing, and their groups."""
    state = import_module("megatron.core.parallel_state")
    store = import_module("torch.testing._internal.distributed.fake_pg").FakeStore

    def start(number: int, settings: dict[str, Any], order: str = "tp-cp-ep-dp-pp") -> Any:
        torch.distributed.init_process_group("fake", store=store(), rank=0, world_size=number)
        names = ["tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"]
        names += ["virtual_pipeline_model_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size"]
        given = {name: settings[name] for name in names if name in settings}
        state.initialize_model_parallel(**given, order=order, create_gloo_process_groups=False)
        return state

    yield start
    state.destroy_model_parallel()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", LARGE)
def test_megatron_core_takes_the_options_and_makes_the_groups_of_a_plan(name: str, world: Any) -> None:
    job = plan_of(name)
    chosen = hybrid_of(job)
    options = options_of(job)
    found = build(options)
    order = "tp-cp-ep-pp-dp" if "use-tp-pp-dp-mapping" in options else "tp-cp-ep-dp-pp"
    state = world(chosen.num_devices, settings_of(options), order)
    assert state.get_tensor_model_parallel_world_size() == chosen.tensor
    assert state.get_pipeline_model_parallel_world_size() == chosen.pipeline
    assert state.get_context_parallel_world_size() == chosen.context
    assert state.get_data_parallel_world_size() == chosen.data
    if chosen.expert > 1:
        assert state.get_expert_model_parallel_world_size() == chosen.expert
    assert found.sequence_parallel == chosen.sequence_parallel
    assert (found.virtual_pipeline_model_parallel_size or 1) == chosen.interleave
    assert found.recompute_granularity == (None if chosen.recompute == "none" else chosen.recompute)
    assert int(options["global-batch-size"][0]) == chosen.data * chosen.microbatch * chosen.num_microbatches
    assert int(options["num-layers"][0]) == sum(chosen.chunk_layers(found.num_layers))


@pytest.mark.parametrize(
    "job",
    [
        lambda: plan_of("gpt3-175b-uneven"),
        lambda: plan_of("deepseek-v3-stages"),
        lambda: uneven_job((1, 3, 2), data=2, zero=1),
    ],
)
def test_its_reader_of_layouts_finds_the_planned_layers_on_every_stage(job: Any) -> None:
    module = import_module("megatron.core.transformer.pipeline_parallel_layer_layout")
    asked = job()
    chosen = hybrid_of(asked)
    text = options_of(asked)["pipeline-model-parallel-layout"][0]
    found = module.PipelineParallelLayerLayout.from_str(text, chosen.pipeline)
    network = asked.problem.dnn.transformer
    assert network is not None
    layers = sum(chosen.chunk_layers(network.num_layers))  # of even ones, too
    found.validate_layer_layout(layers, None)
    decoder = import_module("megatron.core.transformer.enums").LayerType.decoder
    counts = tuple(
        found.layout[stage][chunk].count(decoder)
        for chunk in range(chosen.interleave)
        for stage in range(chosen.pipeline)
    )
    assert counts == chosen.chunk_layers(layers)
    with pytest.raises(AssertionError, match="must match num_layers"):
        found.validate_layer_layout(layers + 1, None)
    with pytest.raises(AssertionError, match="must be divisible"):
        module.PipelineParallelLayerLayout(text, chosen.pipeline + 1)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"tensor_model_parallel_size": 3}, "divisible by tensor_model_parallel_size|multiple of tensor"),
        ({"tensor_model_parallel_size": 1, "sequence_parallel": True}, "sequence parallel"),
        ({"virtual_pipeline_model_parallel_size": 2, "pipeline_dtype": None}, "pipeline"),
        ({"recompute_granularity": "some"}, "some must be"),
    ],
)
def test_corrupted_options_are_refused_by_megatron_core(change: dict[str, Any], error: str) -> None:
    options = options_of(even_job(tensor=2, data=2, pipeline=2, sequence_parallel=True))
    build(options)
    with pytest.raises((AssertionError, ValueError), match=f"(?i){error}"):
        build(options, **change)


def test_degrees_that_do_not_divide_the_ranks_are_refused_by_it(world: Any) -> None:
    settings = settings_of(options_of(even_job(tensor=4, pipeline=2, data=2)))
    with pytest.raises(RuntimeError, match="not divisible"):
        world(12, settings)


@pytest.mark.parametrize(
    ("tensor", "context", "expert", "is_made"), [(1, 1, 4, False), (2, 1, 1, True), (1, 2, 2, True), (2, 2, 1, False)]
)
def test_groups_with_data_ranks_outside_of_a_pipeline_are_made_as_the_exporter_has_it(
    tensor: int, context: int, expert: int, is_made: bool, world: Any
) -> None:
    network = MOE if expert > 1 else TINY
    degrees = {"tensor": tensor, "context": context, "expert": expert, "data": 4, "pipeline": 2}
    flags: dict[str, Any] = {"order": ORDER_NAMES[1], "sequence_parallel": tensor > 1}
    job = even_job(network, **degrees, **flags)
    options = options_of(job)
    assert ("use-tp-pp-dp-mapping" in options) == is_made
    if is_made:
        world(hybrid_of(job).num_devices, settings_of(options), "tp-cp-ep-pp-dp")
        return
    with pytest.raises(AssertionError, match="must be the same"):
        world(hybrid_of(job).num_devices, settings_of(options), "tp-cp-ep-pp-dp")


def test_options_that_are_fields_of_its_configurations_have_their_names() -> None:
    names = {name.replace("-", "_") for name in KNOWN}
    data = {field.name for field in fields(import_module("megatron.core.distributed").DistributedDataParallelConfig)}
    optimizer = {field.name for field in fields(import_module("megatron.core.optimizer").OptimizerConfig)}
    transformer = {field.name for field in fields(import_module(TRANSFORMER).MLATransformerConfig)}
    assert {"overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer"} <= names & data
    assert {"optimizer_cpu_offload", "use_precision_aware_optimizer", "optimizer"} <= names & optimizer
    assert {
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "context_parallel_size",
        "expert_model_parallel_size",
        "expert_tensor_parallel_size",
        "pipeline_model_parallel_layout",
        "sequence_parallel",
        "recompute_granularity",
        "recompute_method",
        "recompute_num_layers",
        "tp_comm_overlap",
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
        "moe_token_dispatcher_type",
        "moe_router_topk",
        "q_lora_rank",
    } <= names & transformer
