"""What programs that train transformers keep in memory, their kernels and the bytes of a parameter, and what they have.

What they take in seconds stands, under the same names, in :mod:`planner.data.transformer_rates`. Sources:

* ``megatron-lm``, ``megatron-deepspeed`` (2021 and 2022, fp16): 16 bytes a parameter (S. Rajbhandari et al., arXiv
  1910.02054, section 3.1); scores and masks of dropout are kept (V. Korthikanti et al., arXiv 2205.05198, section 4);
* ``megatron-lm-fused``: 18 bytes, as the product that gives a gradient adds it up in four (the same, figure 1);
* ``megatron-deepspeed-bf16``: DeepSpeed's optimiser for bf16 as it stood early in 2022: gradients in two bytes, their
  sums and the master copy in four, whole on every device; only the moments are spread (docs/transformer_memory.md);
* ``composer-fsdp``, ``torchtitan``: PyTorch's fully sharded data parallel. What selective recomputation of torchtitan
  frees is left out: it counts as if it freed nothing, which is too much memory, never too little.

What a program has is by its own options: Megatron-Core 0.16 (``--overlap-grad-reduce``, ``--tp-comm-overlap``,
``--sequence-parallel``, ``--use-distributed-optimizer``); torchtitan splits the sequence with every tensor degree, and
overlaps that exchange where the model is compiled; fully sharded data parallelism always gathers ahead. Those of 2021
and 2022 send gradients behind the backward pass, and overlap no tensor-parallel exchange.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.models.memory import Precision
from planner.models.transformer_activations import KERNELS, Kernels
from planner.models.transformer_memory import PRECISIONS

__all__ = ["MEGATRON_CORE", "PROGRAMS", "Program"]

MEGATRON_CORE = "megatron-core"
_WHOLE_MASTER = Precision(weight_bytes=2, gradient_bytes=10, activation_bytes=2, master_bytes=0, optimizer_bytes=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a program keeps, and what it has.

    ``has``: decisions of :class:`planner.models.layouts.Layouts` that are on in it unless they are turned off; of the
    overlaps it can have no others.
    """

    kernels: Kernels
    precision: Precision
    has: frozenset[str] = frozenset()


_OLD = KERNELS["megatron-2021"]
_SHARDED = Program(kernels=KERNELS["fsdp"], precision=PRECISIONS["fsdp"], has=frozenset({"overlaps_data", "zero"}))
_TITAN = replace(_SHARDED, has=_SHARDED.has | {"is_sequence_parallel"})
PROGRAMS: Mapping[str, Program] = {
    MEGATRON_CORE: Program(
        kernels=KERNELS["megatron-core"],
        precision=PRECISIONS["megatron"],
        has=frozenset({"is_sequence_parallel", "overlaps_tensor", "overlaps_data", "zero"}),
    ),
    "megatron-lm": Program(kernels=_OLD, precision=PRECISIONS["mixed"]),
    "megatron-lm-fused": Program(kernels=_OLD, precision=PRECISIONS["megatron"]),
    "megatron-deepspeed": Program(kernels=_OLD, precision=PRECISIONS["mixed"], has=frozenset({"zero"})),
    "megatron-deepspeed-bf16": Program(kernels=_OLD, precision=_WHOLE_MASTER, has=frozenset({"zero"})),
    "composer-fsdp": _SHARDED,
    "torchtitan": replace(_TITAN, has=_TITAN.has | {"overlaps_tensor"}),
    "torchtitan-eager": _TITAN,
}
