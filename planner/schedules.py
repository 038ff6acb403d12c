"""Pipeline schedules by name: what each is, where it is from, and which programs run it by which option.

Orders stand in :mod:`planner.models.orders`, their seconds and memory in the models that read these.
"""

from collections.abc import Mapping
from dataclasses import field

from planner.frozen import frozen


@frozen
class Named:
    """One schedule."""

    # title, source: what its authors call it, and where they do
    title: str
    source: str
    runs_in: Mapping[str, str] = field(default_factory=dict)  # by program: its option or setting


_PIPELINING = "torchtitan"
_V = "patch_zero_bubble, zero_bubble_v_schedule, zero_bubble_v_schedule_mem_setup"  # primus/configs, zero_bubble.yaml
_MEGATRON = "Megatron-LM"

NAMED: Mapping[str, Named] = {
    "gpipe": Named(title="GPipe", source="arXiv:1811.06965", runs_in={_PIPELINING: "GPipe"}),
    "1f1b": Named(
        title="1F1B",
        source="arXiv:2104.04473",
        runs_in={_MEGATRON: "by default", "DeepSpeed": "by default", _PIPELINING: "1F1B", "Primus": "by default"},
    ),
    "interleaved": Named(
        title="interleaved 1F1B",
        source="arXiv:2104.04473",
        runs_in={
            _MEGATRON: "--num-layers-per-virtual-pipeline-stage",
            _PIPELINING: "Interleaved1F1B",
            "Primus": "num_virtual_stages_per_pipeline_rank",
        },
    ),
    "zb_h1": Named(
        title="ZB-H1",
        source="arXiv:2401.10241",
        runs_in={"sail-sg/zero-bubble-pipeline-parallelism": "--enable-zero-bubble", "Primus": "patch_zero_bubble"},
    ),
    "zb_h2": Named(
        title="ZB-H2",
        source="arXiv:2401.10241",
        runs_in={
            "sail-sg/zero-bubble-pipeline-parallelism": "--enable-zero-bubble, more activations allowed",
            "Primus": "patch_zero_bubble, zero_bubble_max_pending_backward",
        },
    ),
    "zb_v": Named(
        title="ZB-V",
        source="arXiv:2401.10241",
        runs_in={_PIPELINING: "ZBVZeroBubble", "Primus": f"{_V}: zb"},
    ),
    "v_half": Named(title="V-Half", source="arXiv:2405.15362", runs_in={"Primus": f"{_V}: half"}),
    "v_min": Named(title="V-Min", source="arXiv:2405.15362", runs_in={"Primus": f"{_V}: min"}),
    "dualpipe": Named(title="DualPipe", source="arXiv:2412.19437", runs_in={"deepseek-ai/DualPipe": "DualPipe"}),
    "dualpipe_v": Named(
        title="DualPipeV",
        source="deepseek-ai/DualPipe",
        runs_in={_PIPELINING: "DualPipeV", "deepseek-ai/DualPipe": "DualPipeV"},
    ),
}

# By program of the cost model, beside GPipe and 1F1B: others have none.
OF_PROGRAMS: Mapping[str, frozenset[str]] = {
    program: frozenset(name for name, one in NAMED.items() if title in one.runs_in) - {"gpipe", "1f1b", "interleaved"}
    for program, title in (("primus", "Primus"), ("torchtitan", _PIPELINING), ("torchtitan-eager", _PIPELINING))
}


def runs_words(schedule: str) -> str:
    """Return the programs that run a schedule, each with its option.

    >>> runs_words("dualpipe")
    'deepseek-ai/DualPipe (DualPipe)'
    """
    return ", ".join(f"{program} ({option})" for program, option in NAMED[schedule].runs_in.items())
