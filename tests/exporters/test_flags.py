"""The flags of the decisions: every flag is written, and every decision that is read back can be pinned."""

from functools import cache

import pytest
from hybrid_questions import MOE, TINY
from layout_jobs import even_job
from modern_blocks import DEEPSEEK, LLAMA

from planner.decisions import FLAGS, LAYOUT
from planner.errors import InfeasibleError
from planner.exporters import export
from planner.exporters.layouts import pinned_by, pins_of
from planner.exporters.scripts import argument_words, nested
from planner.families.hybrid.configuration import PINS, HybridConfiguration

TARGETS = {"fsdp": "accelerate", "plugin": "accelerate"}  # of the columns that are not called as their target
PROGRAMS = list(FLAGS)
# Layouts in which every decision is made somewhere, in ways that one program or another takes.
LAYOUTS = (
    {"tensor": 2, "pipeline": 2, "data": 2, "zero": 1, "sequence_parallel": True, "overlap_data": True},
    {"pipeline": 2, "interleave": 2, "data": 2, "num_microbatches": 4, "recompute": "full"},
    {"pipeline": 2, "data": 2, "zero": 1, "offload_optimizer": True},
    {"context": 2, "data": 2, "zero": 2, "recompute": "full"},
    {"tensor": 2, "data": 2, "zero": 3, "recompute": "full"},
    {"tensor": 2, "sequence_parallel": True, "overlap_tensor": True, "recompute": "selective"},
    {"data": 4, "zero": 1, "offload_optimizer": True},
    {"context": 2, "data": 2, "zero": 1, "context_method": "ulysses"},
    {"data": 2, "offload_layers": 2},
    {"data": 2, "zero": 1, "offload_optimizer": True, "offload_percent": 50},
)
WHOLE = {"tensor": 2, "expert": 4, "expert_tensor": 1, "data": 2, "zero": 1, "sequence_parallel": True}


@cache
def texts(target: str) -> str:
    """All files of a target, of every layout that it takes, with and without experts."""
    found: list[str] = []
    tiny, moe = (LLAMA, DEEPSEEK) if target == "torchtitan" else (TINY, MOE)  # it trains its own networks alone
    jobs = [even_job(tiny, **layout) for layout in LAYOUTS]
    for job in [
        *jobs,
        even_job(moe, expert=2, data=4, zero=1),
        even_job(moe, expert=2, data=4, pipeline=2),
        even_job(moe, expert=2, data=4, overlap_expert=True),
        even_job(moe, **WHOLE),
        even_job(moe, data=8, recompute="selective", recompute_modules="moe_act"),
        even_job(tiny, data=4, zero=1, shard=2),
        even_job(tiny, data=4, pipeline=2, offload_modules="core_attn"),
    ]:
        try:
            found += export(target, job).files.values()
        except InfeasibleError:
            continue
    return "\n".join(found)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_flag_of_the_table_is_written(program: str) -> None:
    flags, text = FLAGS[program], texts(TARGETS.get(program, program))
    assert flags
    assert not {flag for flag in flags.values() if flag.rpartition(".")[2] not in text}


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_file_of_a_program_says_has_a_key_that_pins_it(program: str) -> None:
    pins = pins_of(HybridConfiguration(global_batch_size=8), *pinned_by(program))
    assert pins.keys() <= PINS.keys() | {"num_devices"}
    needless = [name for name in pinned_by(program) if name in LAYOUT and LAYOUT[name].goes_with]
    assert len(pins) == len(pinned_by(program)) - len(needless) > len(FLAGS[program]) - len(needless)


def test_flags_are_written_as_options_and_as_blocks() -> None:
    flags = {"a.size": 2, "a.b.fast": True, "a.b.slow": False, "left_out": None}
    assert argument_words(flags) == ["--a.size 2", "--a.b.fast", "--a.b.no-slow"]
    assert nested(flags) == {"a": {"size": 2, "b": {"fast": True, "slow": False}}}
