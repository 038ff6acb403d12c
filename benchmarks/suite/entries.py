"""What is measured: every command, on questions that users ask, and on the largest that the program is made for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.suite.inputs import onnx_folder

__all__ = ["Entry", "entries", "preparations"]

_H100 = ("--machines", "8x8xh100-sxm", "--network", "400 Gbit/s", "--global-batch", "512")
_README = ("--machines", "4x8xrtx-2080-ti", "--network", "25 Gbit/s")
_MIXED = ("--machines", "4x2xrtx-2080-ti,2x4xv100-sxm2-16g", "--network", "25 Gbit/s", "--global-batch", "256")
_PRESETS = ("dag-k80", "dag-v100", "gst-1g", "gst-100g", "adam-20", "het-cpu", "het-gpu", "het-gpu-1060")
_CONVOLUTIONAL = (
    "adam-imagenet22k adam-mnist alexnet googlenet googlenet-aux overfeat resnet18 resnet34 resnet50 resnet101 "
    "resnet152 vgg11 vgg13 vgg16 vgg16-replaced-head vgg16c vgg19"
)
# By one family: without a limit of time, pipelines of hundreds of layers are searched for minutes.
_BY_ONE_FAMILY = (
    "convnext-base convnext-small convnext-tiny densenet121 densenet169 efficientnet-b0 efficientnet-b1 "
    "efficientnet-b2 efficientnet-b3 efficientnet-b4 efficientnet-b5 efficientnet-b6 efficientnet-b7 inception-v3 "
    "inception-v3-aux lstm-lm lstm-lm-medium mixer-b16 mobilenet-v2 mobilenet-v3-large resnext50-32x4d swin-b swin-s "
    "swin-t unet"
)
_TRANSFORMERS = (
    "bert-base bert-base-pretraining bert-large bert-large-pretraining deepseek-v2 gpt3-13b llama2-7b llama2-13b "
    "llama2-70b llama3-8b llama3-70b llama3.1-8b llama3.1-70b megatron-1.7b megatron-3.6b megatron-7.5b "
    "megatron-18b megatron-22b megatron-39b megatron-76b mixtral-8x7b mixtral-8x22b vit-b-16 vit-h-14 vit-l-16 "
    "qwen2.5-0.5b qwen2.5-1.5b qwen2.5-3b qwen2.5-7b qwen2.5-14b qwen2.5-32b qwen2.5-72b qwen3-0.6b qwen3-1.7b "
    "qwen3-4b qwen3-8b qwen3-14b qwen3-32b qwen3-30b-a3b qwen3-next-80b-a3b gemma2-2b gemma2-9b gemma2-27b gemma3-1b "
    "gemma3-4b gemma3-12b gemma3-27b mistral-7b mistral-7b-v0.3 mistral-nemo-12b mistral-small-24b mistral-large-123b "
    "gpt-oss-20b gpt-oss-120b llama3.2-1b llama3.2-3b llama4-scout deepseek-v2-lite moonlight-16b-a3b glm-4.5-air "
    "dit-s-2 dit-b-2 dit-l-2 dit-xl-2 gemma3-4b-vision gemma3-12b-vision gemma3-27b-vision llava-1.5-7b llava-1.5-13b "
    "qwen2.5-vl-3b qwen2.5-vl-7b qwen2.5-vl-32b qwen2.5-vl-72b "
    "nemotron-4-15b nemotron-h-8b nemotron-h-47b nemotron-h-56b nemotron-nano-9b-v2 nemotron-nano-12b-v2 "
    "nemotron-3-nano-30b-a3b nemotron-3-super-120b-a12b"
)
_HUGE = (
    "deepseek-v3 gpt3-175b llama3.1-405b megatron-145b megatron-310b megatron-530b megatron-1t mt-nlg-530b "
    "qwen3-235b-a22b llama4-maverick kimi-k2 glm-4.5 nemotron-4-340b nemotron-3-ultra-550b-a55b "
    "deepseek-v3.2"
)
_H100_HUGE = ("--machines", "128x8xh100-sxm", "--network", "400 Gbit/s", "--global-batch", "2048")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One command.

    Attributes
    ----------
    name
        Its group, a slash, and what tells it from the others of the group.
    arguments
        Of ``planner``; or of Python, where ``is_python``.
    tiny
        Those of the same command on the smallest question, for a test that the entry works.
    exit_codes
        Those that count as an answer.
    removes
        Files that go before each run, so that every run does the same.
    """

    name: str
    arguments: tuple[str, ...]
    tiny: tuple[str, ...] | None = None
    is_python: bool = False
    exit_codes: tuple[int, ...] = (0,)
    removes: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """What comes before the slash."""
        return self.name.split("/")[0]


def preparations(chosen: Sequence["Entry"]) -> list[tuple[str, ...]]:
    """Return commands that write what these entries read, by the code that is measured; the file stands last."""
    read = {name for entry in chosen for name in entry.arguments}
    found: list[tuple[str, ...]] = [
        ("plan", "--dnn", "vgg16", *_README, "--families", "all_reduce", "--out", "plan.json"),
        ("plan", "--dnn", "vgg16", *_README, "--families", "pipeline", "--out", "pipeline.json"),
        ("plan", "--dnn", "llama3-8b", *_H100, "--families", "hybrid", "--out", "hybrid.json"),
        ("init", "spec.yaml"),
        ("init", "--procure", "procure.yaml"),
    ]
    return [one for one in found if one[-1] in read]


def entries(*, is_large: bool = False) -> list[Entry]:
    """Return all entries, of the largest questions only where they are asked for."""
    found = [*_start_up(), *_show(), *_zoo(), *_presets(), *_families(), *_others()]
    return [*found, *_large()] if is_large else found


def _start_up() -> Iterator[Entry]:
    """Yield what answers nothing: only what is loaded counts."""
    yield Entry(name="start-up/help", arguments=("--help",))
    yield Entry(name="start-up/plan-help", arguments=("plan", "--help"))
    yield Entry(name="start-up/version", arguments=("--version",))
    yield Entry(name="start-up/python", arguments=("-c", "pass"), is_python=True)
    yield Entry(name="start-up/import", arguments=("-c", "import planner"), is_python=True)
    yield Entry(name="start-up/import-api", arguments=("-c", "import planner.api"), is_python=True)
    yield Entry(name="start-up/wrong-option", arguments=("plan", "--colour"), exit_codes=(2,))


def _show() -> Iterator[Entry]:
    for what in (
        ("dnn",),
        ("dnn", "vgg16"),
        ("dnn", "deepseek-v3"),
        ("cluster",),
        ("devices",),
        ("links",),
        ("prices",),
    ):
        yield Entry(name=f"show/{'-'.join(what)}", arguments=("show", *what))
    yield Entry(name="show/schema", arguments=("schema",))
    yield Entry(name="show/schema-procure", arguments=("schema", "procure"))


def _plan(name: str, *arguments: str, **tiny: Sequence[str]) -> Entry:
    """Return a plan as a document; at tiny size by one family. No limit strikes: a busy machine plans the same."""
    small = ("--dnn", "adam-mnist", "--cluster", "adam-20", "--families", "all_reduce")
    how = ("--time-limit", "3600 s", "--json")
    return Entry(name=name, arguments=("plan", *arguments, *how), tiny=("plan", *tiny.get("tiny", small), *how))


def _zoo() -> Iterator[Entry]:
    """Yield every network of the zoo, on machines that fit its size."""
    for dnn in _CONVOLUTIONAL.split():
        yield _plan(f"zoo/{dnn}", "--dnn", dnn, "--cluster", "osf-testbed")
    for dnn in _BY_ONE_FAMILY.split():
        yield _plan(f"zoo/{dnn}", "--dnn", dnn, "--cluster", "osf-testbed", "--families", "all_reduce")
    for dnn in _TRANSFORMERS.split():
        yield _plan(f"zoo/{dnn}", "--dnn", dnn, *_H100)
    for dnn in _HUGE.split():
        yield _plan(f"zoo/{dnn}", "--dnn", dnn, *_H100_HUGE)
    yield _plan("zoo/readme-vgg16", "--dnn", "vgg16", *_README)


def _presets() -> Iterator[Entry]:
    """Yield a plan on every other testbed."""
    for cluster in _PRESETS:
        yield _plan(f"preset/{cluster}", "--dnn", "resnet50", "--cluster", cluster)


def _families() -> Iterator[Entry]:
    for family in ("all_reduce", "parameter_server", "pipeline"):
        tiny = ("--dnn", "adam-mnist", "--cluster", "adam-20", "--families", family)
        yield _plan(f"family/{family}", "--dnn", "vgg16", *_README, "--families", family, tiny=tiny)
    for family in ("all_reduce", "parameter_server", "pipeline"):
        two = ("--dnn", "adam-mnist", "--machines", "1x1xv100-pcie-16g,1x1xk80", "--network", "10 Gbit/s")
        small = (*two, "--global-batch", "8", "--families", family)
        yield _plan(f"family/{family}-mixed", "--dnn", "resnet50", *_MIXED, "--families", family, tiny=small)
    replicas = ("--dnn", "adam-mnist", "--cluster", "adam-20", "--families", "model_replicas")
    yield _plan("family/model_replicas", *replicas, tiny=replicas)
    hybrid = ("--dnn", "bert-base", "--machines", "1x2xh100-sxm", "--network", "400 Gbit/s", "--global-batch", "8")
    yield _plan(
        "family/hybrid", "--dnn", "llama3-70b", *_H100, "--families", "hybrid", tiny=(*hybrid, "--families", "hybrid")
    )
    unlike = ("--machines", "2x8xh100-sxm,2x8xa100-sxm4-80gb", "--network", "200 Gbit/s", "--global-batch", "256")
    yield _plan("family/hybrid-mixed", "--dnn", "llama3-8b", *unlike, "--families", "hybrid")


def _others() -> Iterator[Entry]:
    buy = ("procure", "--dnn", "resnet50", "--global-batch", "1024", "--epochs", "90", "--deadline", "8 h")
    few = ("--providers", "lambda", "--as-of", "any", "--families", "all_reduce")
    yield Entry(name="procure/cheapest", arguments=(*buy, "--json"), tiny=(*buy, *few, "--json"))
    yield Entry(name="procure/pareto", arguments=(*buy, "--pareto", "--json"), tiny=(*buy, *few, "--pareto", "--json"))
    yield Entry(name="procure/spec", arguments=("procure", "procure.yaml", "--json"), tiny=("procure", "--help"))
    for name in ("plan", "pipeline", "hybrid"):
        yield Entry(name=f"check/{name}", arguments=("check", f"{name}.json", "--json"))
        yield Entry(name=f"predict/{name}", arguments=("predict", f"{name}.json", "--json"))
    yield Entry(name="predict/trace", arguments=("predict", "pipeline.json", "--trace", "trace.json"))
    yield Entry(name="explain/plan", arguments=("explain", "plan.json", "--json"))
    yield Entry(name="compare/plans", arguments=("compare", "plan.json", "pipeline.json", "--json"))
    for target in ("ddp", "horovod", "slurm"):
        yield Entry(name=f"export/{target}", arguments=("export", "plan.json", "--to", target, "--json"))
    yield Entry(name="export/megatron", arguments=("export", "hybrid.json", "--to", "megatron", "--json"))
    if onnx_folder() is not None:
        yield Entry(name="import/onnx-resnet50", arguments=("import", "resnet50.onnx", "--json"))
    yield Entry(name="import/huggingface", arguments=("import", "config.json", "--json"))
    fit = ("calibrate", "timings.csv", "--json")
    yield Entry(name="calibrate/collectives", arguments=fit, tiny=(*fit, "--form", "affine"))
    yield Entry(name="case/osf-table-2", arguments=("case", "osf-table-2", "--json"))
    sweep = ("sweep", "sweep.yaml", "--store", "answers.sqlite")
    yield Entry(name="sweep/20-questions", arguments=(*sweep, "--json"), removes=("answers.sqlite",))
    page = ("plan", "spec.yaml", "--html", "plan.html", "--no-explain")
    small = ("plan", "--dnn", "adam-mnist", "--cluster", "adam-20", "--families", "all_reduce", *page[2:])
    yield Entry(name="page/plan", arguments=page, tiny=small)
    yield Entry(name="init/spec", arguments=("init",))


def _large() -> Iterator[Entry]:
    """Yield the largest questions that the program is made for, for the memory that they take."""
    many = ("--machines", "1024x8xh100-sxm", "--network", "400 Gbit/s")
    yield _plan("large/1024-machines-resnet50", "--dnn", "resnet50", *many, "--global-batch", "32768")
    yield _plan("large/1024-machines-llama3.1-405b", "--dnn", "llama3.1-405b", *many, "--global-batch", "2048")
    yield _plan("large/1024-machines-deepseek-v3", "--dnn", "deepseek-v3", *many, "--global-batch", "8192")
    yield Entry(name="large/500-layers", arguments=("plan", "line_500.yaml", "--json"))
    yield Entry(
        name="large/whole-price-list",
        arguments=(
            *("procure", "--dnn", "resnet50", "--global-batch", "2048", "--epochs", "90", "--deadline", "24 h"),
            *("--terms", "on-demand,spot", "--pareto", "--what-if", "--json"),
        ),
    )
    yield Entry(
        name="large/trace-200-MB", arguments=("import", "large.pt.trace.json", "--profile-batch", "16", "--json")
    )
    page = ("--global-batch", "2048", "--html", "large.html", "--no-explain")
    yield Entry(name="large/page", arguments=("plan", "--dnn", "llama3.1-405b", *many, *page))
    sweep = ("sweep", "sweep_10k.yaml", "--store", "answers.sqlite", "--json")
    yield Entry(name="large/sweep-10000-questions", arguments=sweep, removes=("answers.sqlite",))
    if onnx_folder() is not None:
        yield Entry(name="large/onnx-20000-nodes", arguments=("import", "large.onnx", "--json"))
