"""What the program that trains keeps and computes, told a second time; nothing is taken from the cost model.

Bytes of a parameter: S. Rajbhandari et al., arXiv 1910.02054, section 3.1 (2 + 2 + 12); gradients added up in four
bytes (V. Korthikanti et al., arXiv 2205.05198, figure 1); DeepSpeed's first optimiser for bf16, whose sums and master
copy lie whole on every device (docs/transformer_memory.md); PyTorch's sharded data parallel, all in four bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.checks import Finding
from planner.plan import Prediction
from planner.problem import Problem
from tests.referee.second_physics.facts import holds

__all__ = ["GRADIENTS", "OPTIMIZER", "PROGRAM", "Program", "program_finding", "program_of", "state_bytes"]

PROGRAM = "program"  # a block's key for the name of the program; Megatron-Core without
OPTIMIZER = "optimizer"  # and for that of its optimiser; Adam without
GRADIENTS = "gradients"  # and for the type in which it keeps and reduces gradients, where that is told


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a program does.

    ``weight``, ``gradient``, ``state``: bytes of a parameter. ``keeps_scores``: attention is not one kernel; scores are
    written, masked ones too. ``keeps_masks``: of dropout, a byte a number. ``fuses_loss``: in the logits' own place;
    else copies of them in four bytes are made. ``holds_gradients``: an empty one of every shape of matrix.
    ``copies_context``: of attention's output, where an all-to-all spreads the context. ``stops_early``: a layer's last
    products are not computed again. ``more_copies``: the loss has three copies at a time, not two and a gradient of two
    bytes. ``buffers``: bytes, of ranks that share states out. ``keeps_every_second``: selective recomputation keeps
    what attention and every second matrix give, and nothing else; ``keeps_last``: a layer's last matrix is among them.
    ``weighs_early``: experts' activations, not what experts give, are multiplied by the router's shares. ``gathers``:
    ranks that share states have a shard of weights, and all of them in two bytes. ``reduced``: bytes of a number in the
    copy of one layer's gradients that is on its way. ``sent``: of a number where tokens of all ranks of experts arrive.
    """

    weight: float = 2.0
    gradient: float = 2.0
    state: float = 12.0
    keeps_scores: bool = False
    keeps_masks: bool = False
    fuses_loss: bool = False
    holds_gradients: bool = False
    copies_context: bool = False
    stops_early: bool = False
    more_copies: bool = False
    buffers: float = 0.0
    keeps_every_second: bool = False
    keeps_last: bool = False
    weighs_early: bool = False
    gathers: bool = False
    reduced: float = 0.0
    sent: float = 0.0


_SHARDED = Program(weight=4.0, gradient=4.0, state=8.0, stops_early=True, gathers=True)
_CORE = Program(gradient=4.0, fuses_loss=True, holds_gradients=True, copies_context=True, weighs_early=True, sent=2.0)
_PROGRAMS: Mapping[str, Program] = {
    "megatron-core": _CORE,
    "primus": _CORE,
    "megatron-lm": Program(keeps_scores=True, keeps_masks=True),
    "megatron-lm-fused": Program(gradient=4.0, keeps_scores=True, keeps_masks=True),
    "megatron-deepspeed": Program(keeps_scores=True, keeps_masks=True, buffers=5e8 * 2 * 2 * 4.5),
    "megatron-deepspeed-bf16": Program(gradient=2.0 + 4.0 + 4.0, state=8.0, keeps_scores=True, keeps_masks=True),
    "composer-fsdp": replace(_SHARDED, fuses_loss=True),
    "torchtitan": replace(_SHARDED, fuses_loss=True, keeps_every_second=True, reduced=4.0),
    "torchtitan-eager": replace(_SHARDED, more_copies=True, keeps_every_second=True, keeps_last=True, reduced=4.0),
    "nanotron": Program(gradient=6.0, more_copies=True),
}


def program_finding(problem: Problem, found: Prediction) -> Finding:
    """Return whether the figures are those of the program that the question names."""
    asked, stated = problem.calibration.program, found.details.get("software")
    return holds("program", asked == stated, asked, f"{asked} is asked for, and the figures are those of {stated}")


# Numbers of four bytes; two of two bytes, or of one, these with a scale for 256; rows and columns of a matrix.
_STATES = {"sgd": 0, "momentum": 4, "adam": 8, "adamw": 8, "adam_bf16": 4, "adam_fp8": 2, "adam_8bit": 2 + 8 / 256}
_STATES |= {"adafactor": 0.008, "muon": 4}


def state_bytes(block: Mapping[str, Any]) -> float:
    """Return the bytes that the optimiser of a block keeps of a parameter inside the layers."""
    return _STATES[block.get(OPTIMIZER, "adam")]


def program_of(block: Mapping[str, Any]) -> Program:
    found = _PROGRAMS[block.get(PROGRAM, "megatron-core")]
    found = replace(found, state=found.state - 8 + state_bytes(block))
    if block.get(GRADIENTS) != "bf16":
        return found
    # Copies in four bytes, but of the distributed optimiser, be it of one rank, which reads gradients as they are; that
    # of Adam joins a weight in bf16 and two more bytes to its master copy.
    is_widened = block["zero"] > 1 or (block["zero"] == 0 and block["data"] * block["context"] > 1)
    away = block.get("offload_percent", 100) / 100 if block["offload_optimizer"] else 0.0
    is_adam = block.get(OPTIMIZER, "adam") in ("adam", "adamw", "adam_bf16", "adam_fp8")
    is_joined = is_adam and not is_widened and not block["offload_optimizer"]
    return replace(found, gradient=2.0 + 4.0 * is_widened * (1 - away), state=found.state - 2.0 * is_joined)
