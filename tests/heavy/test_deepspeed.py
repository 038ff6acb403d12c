"""DeepSpeed's own reader takes the planned configurations, and a PipelineModule the planned stages."""

import json
import os
from collections.abc import Iterator
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from heavy_plans import LARGE, plan_of
from layout_jobs import cnn_job, deepspeed_document, even_job, hybrid_of, uneven_job

os.environ.setdefault("DS_ACCELERATOR", "cpu")
torch = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")


def _imported() -> bool:
    """Whether DeepSpeed can be imported, with its warnings."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("deepspeed", reason="deepspeed is not installed; run make test-heavy") is not None


assert _imported()

from planner.errors import InfeasibleError  # noqa: E402  # behind the skips
from planner.exporters import deepspeed  # noqa: E402
from planner.exporters.deepspeed import KNOWN, REMOVED  # noqa: E402
from planner.exporters.huggingface_config import config_text  # noqa: E402
from planner.exporters.layouts import layout_of  # noqa: E402
from planner.zoo.transformers import row  # noqa: E402


class Ranks:
    """What DeepSpeed asks of a launcher's groups: how many data-parallel ranks there are."""

    def __init__(self, data: int) -> None:
        self._data = data

    def get_data_parallel_world_size(self) -> int:
        return self._data


class Recorded(dict[str, Any]):
    """A configuration that notes every key it is asked for."""

    asked: set[str]

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.asked = set()

    def __copy__(self) -> "Recorded":
        return self

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def keys(self) -> Any:
        return self


def read(document: dict[str, Any], data: int) -> Any:
    """The configuration as DeepSpeed has it, on so many data-parallel ranks of the fake backend."""
    config_class = import_module("deepspeed.runtime.config").DeepSpeedConfig

    return config_class(document, mpu=Ranks(data))


@pytest.fixture
def world() -> Iterator[Any]:
    """Start as many ranks as are asked for, of the backend that exchanges nothing."""
    comm = import_module("deepspeed.comm")
    store_class = import_module("torch.testing._internal.distributed.fake_pg").FakeStore

    def start(number: int, rank: int = 0) -> None:
        torch.distributed.init_process_group("fake", store=store_class(), rank=rank, world_size=number)
        comm.init_distributed("fake", auto_mpi_discovery=False, verbose=False)

    yield start
    comm.comm.cdb = None
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", LARGE)
def test_deepspeed_reads_the_batch_and_the_stage_of_a_plan(name: str, world: Any) -> None:
    job = plan_of(name)
    chosen = hybrid_of(job)
    try:
        document = deepspeed_document(job)
    except InfeasibleError as error:
        assert "cannot run this plan" in str(error)
        assert name in {"deepseek-v3-chunks", "deepseek-v3-stages", "mixtral"} or name.startswith("gpt3-175b-uneven"), (
            error
        )
        return
    world(chosen.num_devices)
    found = read(document, chosen.data)
    assert found.train_batch_size == chosen.global_batch_size
    assert found.train_micro_batch_size_per_gpu == chosen.microbatch
    assert found.gradient_accumulation_steps == chosen.num_microbatches
    assert found.zero_optimization_stage == chosen.zero
    assert found.bfloat16_config.enabled
    with pytest.raises(AssertionError, match="train_batch_size is not equal"):
        read({**document, "train_batch_size": chosen.global_batch_size + 1}, chosen.data)


@pytest.mark.parametrize(
    "job",
    [
        cnn_job,
        lambda: even_job(tensor=2, data=2, zero=1),
        lambda: even_job(context=2, data=2, zero=3, recompute="full"),
        lambda: even_job(data=4, zero=2, overlap_data=True),
        lambda: even_job(data=2, zero=1, offload_optimizer=True),
        lambda: even_job(pipeline=2, data=2, zero=1),
    ],
)
def test_every_key_that_is_written_is_one_that_deepspeed_asks_for(job: Any, world: Any) -> None:
    config_class = import_module("deepspeed.runtime.config").DeepSpeedConfig

    asked = job()
    document = Recorded(deepspeed_document(asked))
    layout = deepspeed.with_files(layout_of("deepspeed", asked))[0].chosen
    world(layout.num_devices)
    if layout.context > 1:  # without groups of a launcher it divides the ranks by this key
        config_class(document)
    else:
        config_class(document, mpu=Ranks(layout.data))
    assert set(dict.__iter__(document)) <= document.asked
    assert document.asked <= KNOWN | REMOVED


def test_parts_that_deepspeed_reads_are_those_of_the_layout(world: Any) -> None:
    world(8)
    found = read(deepspeed_document(even_job(tensor=2, data=4, zero=2, overlap_data=True, recompute="full")), 4)
    assert found.tensor_parallel_config.autotp_size == 2
    assert found.zero_config.overlap_comm
    found = read(deepspeed_document(even_job(data=8, zero=1, offload_optimizer=True)), 8)
    assert found.zero_config.offload_optimizer.device == "cpu"


def test_spread_experts_pass_its_own_conditions(world: Any) -> None:
    validate_autoep_config = import_module("deepspeed.module_inject.auto_ep_config").validate_autoep_config

    job = plan_of("deepseek-v3")
    chosen = hybrid_of(job)
    world(chosen.num_devices)
    found = read(deepspeed_document(job), chosen.data).expert_parallel_config
    assert (found.enabled, found.autoep_size, found.preset_model) == (True, chosen.expert, "deepseek_v3")
    validate_autoep_config(found, chosen.num_devices, 1, 1, 1, zero_stage=chosen.zero)
    found.autoep_size = 3
    with pytest.raises(ValueError, match="must divide the stage size"):
        validate_autoep_config(found, chosen.num_devices, 1, 1, 1, zero_stage=chosen.zero)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"zero_optimization": {"stage": 7}}, "stage"),
        ({"zero_optimization": {"stage": 1, "overlap_com": True}}, "overlap_com"),
        ({"sparse_gradients": True}, "removed"),
    ],
)
def test_a_corrupted_configuration_is_refused_by_deepspeed(change: dict[str, Any], error: str, world: Any) -> None:
    world(2)
    document = deepspeed_document(even_job(data=2, zero=1))
    read(document, 2)
    with pytest.raises(Exception, match=error):
        read({**document, **change}, 2)


def test_a_pipeline_module_has_the_planned_stages(world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    (tmp_path / "planned_pipeline.py").write_text(
        deepspeed.export(uneven_job((1, 3, 2), data=2, zero=1)).files["planned_pipeline.py"]
    )
    spec = spec_from_file_location("planned_pipeline", tmp_path / "planned_pipeline.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    world(6, rank=2)  # of the second of three stages
    monkeypatch.setenv("LOCAL_RANK", "0")
    layers = [torch.nn.Linear(4, 4) for _ in range(8)]
    model = module.PlannedPipeline(layers, loss_fn=torch.nn.MSELoss())
    assert model.parts == [0, 2, 5, 8]
    assert (model._local_start, model._local_stop) == (2, 5)
    with pytest.raises(ValueError, match="the plan has 6 blocks; 4 were given"):
        module.PlannedPipeline(layers[:5], loss_fn=torch.nn.MSELoss())


@pytest.mark.parametrize(
    "name", ["gemma2-2b", "gemma3-1b", "gpt-oss-20b", "glm-4.5-air", "deepseek-v2-lite", "qwen3-30b-a3b"]
)
def test_the_library_builds_the_network_that_is_written_with_its_parameters(name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed; run make test-heavy")
    network = row(name).transformer
    text = config_text(network, "bf16")
    assert text is not None
    keys = json.loads(text)
    config = transformers.AutoConfig.for_model(keys.pop("model_type"), **keys)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    experts = network.experts
    is_buffer = experts is not None and experts.has_router_bias and experts.routing.bias == "selection"
    biases = network.num_moe_layers * experts.num_experts if experts is not None and is_buffer else 0
    assert sum(one.numel() for one in model.parameters()) == network.num_parameters - biases
