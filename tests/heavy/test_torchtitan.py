"""torchtitan's own reader of settings takes the planned command lines, and its own mesh takes their degrees."""

import io
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

import pytest
from heavy_plans import LARGE, plan_of
from layout_jobs import even_job, hybrid_of, uneven_job
from modern_blocks import LLAMA

torch = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")
pytest.importorskip("torchtitan", reason="torchtitan is not installed; run make test-heavy")
for needed in ("spmd_types", "torchdata", "triton", "datasets", "tensorboard", "torch_checkpointing"):
    pytest.importorskip(needed, reason=f"torchtitan's settings need {needed}; run make test-heavy")

from planner.exporters import torchtitan  # noqa: E402  # behind the skips
from planner.exporters.export import Job  # noqa: E402
from planner.exporters.layouts import layout_of, pins_of  # noqa: E402
from planner.exporters.scripts import launched  # noqa: E402
from planner.exporters.torchtitan import FLAVOURS, Flavour  # noqa: E402
from planner.exporters.torchtitan_network import MODULE, family_of, module_text  # noqa: E402
from planner.problem import LowPrecision  # noqa: E402
from planner.trained import FineTuning, Trained  # noqa: E402
from planner.zoo.transformers import block_of, row, with_mtp_layers  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # triton
LAUNCH = Path("launch.sh")


def words_of(job: Job) -> list[str]:
    """What torchtitan.train is given; a network that is written beside the command is put where it is read from: here."""
    files = torchtitan.export(job).files
    for name, text in files.items():
        Path(name).write_text(text)
    sys.modules.pop(MODULE, None)
    invalidate_caches()
    words, _ = launched(LAUNCH, files["launch.sh"], "--parallelism.tensor_parallel_degree")
    return words[words.index("torchtitan.train") + 1 :]


def read(words: list[str]) -> Any:
    """The settings, as ``python -m torchtitan.train`` reads them."""
    return import_module("torchtitan.config").ConfigManager().parse_args(words)


@pytest.fixture(autouse=True)
def _silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop(MODULE, None)


@pytest.mark.parametrize("name", [name for name in LARGE if not name.startswith("gpt3")])  # which it has no model of
def test_its_own_reader_takes_a_planned_command_and_its_mesh_the_degrees(name: str) -> None:
    dims_class = import_module("torchtitan.distributed.parallel_dims").ParallelDims

    job = plan_of(name)
    network = job.problem.dnn.transformer
    assert network is not None
    chosen = torchtitan.as_run(layout_of("torchtitan", job), network).chosen
    settings = read(words_of(job))
    dims = dims_class.from_config(settings.parallelism, chosen.num_devices)
    assert (dims.tp, dims.cp, dims.pp, dims.ep) == (chosen.tensor, chosen.context, chosen.pipeline, chosen.expert)
    assert dims.dp_replicate * dims.dp_shard == chosen.data
    assert settings.training.global_batch_size == chosen.global_batch_size
    kinds = {"none": "NoneType", "selective": "SelectiveAC", "full": "FullAC"}
    assert type(settings.activation_checkpoint).__qualname__.split(".")[0] == kinds[chosen.recompute]
    if chosen.pipeline > 1:
        parts = settings.parallelism.module_fqns_per_model_part
        counts = tuple(sum(name.startswith("layers.") for name in part) for part in parts)
        assert counts == chosen.chunk_layers(network.num_layers)
    with pytest.raises(AssertionError, match="Invalid parallel dims"):
        dims_class.from_config(settings.parallelism, chosen.num_devices * 2 + 1)


@pytest.mark.parametrize(
    "job",
    [
        lambda: even_job(LLAMA, tensor=2, data=2, zero=3, recompute="full"),
        lambda: even_job(LLAMA, tensor=2, data=4, zero=3, sequence_parallel=True, overlap_tensor=True),
        lambda: uneven_job((1, 3, 2), LLAMA, data=2, zero=1, recompute="selective"),
        lambda: even_job(LLAMA, pipeline=2, interleave=2, num_microbatches=4),
        lambda: even_job(LLAMA, pipeline=2, schedule="gpipe", num_microbatches=4),
    ],
)
def test_settings_that_it_read_are_those_of_the_layout(job: Any) -> None:
    get_schedule_class = import_module("torch.distributed.pipelining.schedules").get_schedule_class

    asked = job()
    settings = read(words_of(asked))
    parallel, chosen = settings.parallelism, hybrid_of(asked)
    assert parallel.tensor_parallel_degree == chosen.tensor
    assert parallel.enable_sequence_parallel == chosen.sequence_parallel or chosen.tensor == 1
    assert settings.compile.enable_async_tensor_parallel == chosen.overlap_tensor
    if chosen.pipeline > 1:
        assert parallel.pipeline_parallel_microbatch_size == chosen.microbatch
        assert settings.training.local_batch_size == chosen.microbatch * chosen.num_microbatches
        name = get_schedule_class(parallel.pipeline_parallel_schedule).__name__
        expected = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}[chosen.schedule]
        assert name == ("ScheduleInterleaved1F1B" if chosen.interleave > 1 else expected)
    else:
        assert settings.training.local_batch_size == chosen.microbatch
    pins = torchtitan.degrees(LAUNCH, torchtitan.export(asked).files["launch.sh"])
    assert pins["num_devices"] == pins_of(chosen, "num_devices")["num_devices"]


def test_a_corrupted_command_is_refused_by_the_same_reader() -> None:
    words = words_of(even_job(LLAMA, tensor=2, data=2))
    bad = [word.replace("tensor_parallel_degree", "tensor_paralel_degree") for word in words]
    shown = io.StringIO()
    with redirect_stdout(shown), redirect_stderr(shown), pytest.raises(SystemExit):
        read(bad)
    assert "tensor_paralel_degree" in shown.getvalue()
    place = words.index("--training.local_batch_size") + 1
    with redirect_stdout(shown), redirect_stderr(shown), pytest.raises(SystemExit):
        read([*words[:place], "many", *words[place + 1 :]])
    with redirect_stdout(shown), redirect_stderr(shown), pytest.raises(SystemExit):
        read([one for one in words_of(even_job(LLAMA, pipeline=2)) if one != "--training.disable_cuda_graphs"])
    assert "CUDA graphs do not support pipeline" in shown.getvalue()


@pytest.mark.parametrize("flavour", FLAVOURS, ids=lambda one: one.config)
def test_sizes_of_its_networks_are_those_that_its_models_have(flavour: Flavour) -> None:
    from inspect import signature

    module = import_module(f"torchtitan.models.{flavour.module}")
    tables = [value for name, value in vars(module).items() if name.endswith("_configs") and isinstance(value, dict)]
    build = tables[0][flavour.size]
    more = {"attn_backend": "flex", "moe_comm_backend": "standard"}
    model = build(**{name: value for name, value in more.items() if name in signature(build).parameters})
    first, last = model.layers[0], model.layers[-1]
    epsilon, base, scaling = torchtitan._FIGURES[flavour.module]
    rope = last.attention.rope
    assert (model.norm.eps, rope.theta) == (epsilon, base)
    assert rope.scaling == ("none" if scaling is None else "llama" if scaling.kind == "llama3" else "yarn")
    if scaling is not None and scaling.kind == "llama3":
        assert (rope.scaling_factor, rope.original_max_position_embeddings) == (scaling.factor, scaling.original_length)
        assert (rope.low_freq_factor, rope.high_freq_factor) == (1, 4)
    elif scaling is not None:
        assert (rope.rope_factor, rope.original_seq_len) == (scaling.factor, scaling.original_length)
    if flavour.num_experts:
        router, (score, is_normalised, scale, *_, scale_all) = last.moe.router, torchtitan._ROUTES[flavour.config]
        assert (router.score_func, router.route_norm, router.route_scale) == (score, is_normalised, scale)
        assert getattr(last.attention, "mscale", 0.0) == scale_all
    assert (len(model.layers), model.dim, model.vocab_size) == (
        flavour.num_layers,
        flavour.hidden_size,
        flavour.vocabulary_size,
    )
    assert first.attention.n_heads == flavour.num_heads
    assert (getattr(first.attention, "n_kv_heads", None) or flavour.num_heads) == flavour.num_kv_heads
    assert bool(getattr(model, "enable_weight_tying", False)) == flavour.has_tied_embeddings
    moe, dense = getattr(last, "moe", None), getattr(first, "feed_forward", None)
    assert (moe.num_experts if moe else 0) == flavour.num_experts
    if moe:
        assert moe.routed_experts.inner_experts.hidden_dim == flavour.expert_size
    if dense:
        assert dense.w1.out_features == flavour.feed_forward_size
    registered = getattr(import_module(f"torchtitan.models.{flavour.module}.config_registry"), flavour.config)
    if flavour.is_float8:
        with pytest.raises(ImportError, match="use float8"):  # without torchao
            registered()
        return
    assert registered().model_spec.flavor == flavour.size


_DENSE = ("llama3.1-8b", "llama3.2-1b", "mistral-nemo-12b", "qwen3-4b", "qwen2.5-7b", "qwen2.5-1.5b")
_ROUTED = (
    "qwen3-235b-a22b",
    "mixtral-8x7b",
    "deepseek-v2-lite",
    "deepseek-v3",
    "kimi-k2",
    "gpt-oss-20b",
    "gpt-oss-120b",
)
NAMES = (*_DENSE, *_ROUTED)


def planned_module(text: str) -> Any:
    Path(f"{MODULE}.py").write_text(text)
    sys.modules.pop(MODULE, None)
    invalidate_caches()
    return import_module(MODULE)


@pytest.mark.parametrize("name", NAMES)
def test_a_network_that_is_written_has_the_parameters_and_figures_of_the_planned_one(name: str) -> None:
    network = row(name).transformer
    config = planned_module(module_text(network, None, head="# planned", is_compiled=True)).planned().model_spec.model
    with torch.device("meta"):
        model = config.build()
    experts = network.experts
    # A bias for the choice of experts is a buffer there, and a parameter of the checkpoint's here.
    is_buffer = experts is not None and experts.has_router_bias and experts.routing.bias == "selection"
    biases = network.num_moe_layers * experts.num_experts if experts is not None and is_buffer else 0
    assert sum(one.numel() for one in model.parameters()) == network.num_parameters - biases
    norms, rotary = [model.norm, model.layers["0"].attention_norm], network.rotary
    assert {norm.eps for norm in norms} == {network.numerics.norm_epsilon}
    assert rotary is not None
    rope = config.layers[0].attention.rope
    assert rope.theta == rotary.base
    assert (rope.scaling == "none") == (rotary.scaling is None)


def test_layers_of_multi_token_prediction_have_the_parameters_of_the_planned_ones() -> None:
    network = with_mtp_layers(row("deepseek-v3").transformer, 1)
    written = planned_module(module_text(network, None, head="# planned", is_compiled=True)).planned()
    assert type(written.loss).__qualname__ == "MTPLoss.Config"
    with torch.device("meta"):
        model = written.model_spec.model.build()
    experts = network.experts
    assert experts is not None
    biases = network.num_moe_layers * experts.num_experts  # buffers there
    assert (len(model.layers), len(model.mtp_layers)) == (61, 1)
    assert sum(one.numel() for one in model.parameters()) == network.num_parameters - biases


def test_its_own_reader_takes_a_network_that_is_written() -> None:
    job = even_job(block_of(row("qwen3-4b").transformer), data=2, tensor=2, zero=3)
    settings = read(words_of(job))
    assert (settings.model_spec.name, settings.model_spec.flavor) == ("qwen3", "planned")
    assert settings.model_spec.model.layers[0].attention.rope.theta == 1e6


@pytest.mark.parametrize(
    ("low", "network", "why"),
    [
        (LowPrecision(name="fp8", recipe="current"), "llama3.1-8b", "use float8"),
        (LowPrecision(name="fp8", recipe="current", wide_layers=4), "qwen3-30b-a3b", "use float8"),
        (LowPrecision(name="mxfp8", recipe="mxfp8"), "deepseek-v3", "use MXFP8"),
        (LowPrecision(name="nvfp4", recipe="nvfp4", wide_layers=2), "llama3.1-8b", "NVFP4"),
    ],
)
def test_products_in_short_numbers_are_asked_of_its_converters(low: LowPrecision, network: str, why: str) -> None:
    quantization = import_module("torchtitan.components.quantization")
    module = planned_module(module_text(row(network).transformer, low, head="#", is_compiled=True))
    for name, fields in module.CONVERTERS:  # torchao, and a device that has such products, are not here
        getattr(quantization, name).Config(model_compile_enabled=True, **fields)
    with pytest.raises(ImportError, match=why):
        module.planned()


def test_every_family_is_built_with_torchtitan() -> None:
    assert {family_of(row(name).transformer) for name in NAMES} == {"llama3", "qwen3", "deepseek_v3", "gpt_oss"}


def test_adapters_that_are_written_have_the_parameters_that_the_plan_trains() -> None:
    network = row("llama3.2-1b").transformer
    tuning = FineTuning(method="lora", rank=16, alpha=32.0, targets=("qkv", "output", "gate", "up", "down"))
    tuned = replace(network, trained=Trained(adapters=tuning))
    config = planned_module(module_text(tuned, None, head="# planned", is_compiled=True)).planned().model_spec.model
    with torch.device("meta"):
        model = config.build()
    trained = {name: one.numel() for name, one in model.named_parameters() if one.requires_grad}
    assert all(".lora_a." in name or ".lora_b." in name for name in trained)
    width, inner, heads = network.hidden_size, network.feed_forward_size, network.num_kv_heads * network.head_size
    columns = (width + width + 2 * heads) + 2 * width + 3 * (width + inner)
    assert sum(trained.values()) == tuning.rank * network.num_layers * columns
