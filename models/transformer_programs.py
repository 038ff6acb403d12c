"""What programs that train transformers keep in memory: their kernels, and the bytes of a parameter.

What they take in seconds stands, under the same names, in :mod:`planner.data.transformer_rates`. Sources:

* ``megatron-lm``, ``megatron-deepspeed`` (2021 and 2022, fp16): 16 bytes a parameter (S. Rajbhandari et al., arXiv
  1910.02054, section 3.1); scores and masks of dropout are kept (V. Korthikanti et al., arXiv 2205.05198, section 4);
* ``megatron-lm-fused``: 18 bytes, as the product that gives a gradient adds it up in four (the same, figure 1);
* ``megatron-deepspeed-bf16``: DeepSpeed's optimiser for bf16 as it stood early in 2022: gradients in two bytes, their
  sums and the master copy in four, whole on every device; only the moments are spread (docs/transformer_memory.md);
* ``composer-fsdp``, ``torchtitan``: PyTorch's fully sharded data parallel. What selective recomputation of torchtitan
  frees is left out: it counts as if it freed nothing, which is too much memory, never too little.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.models.memory import Precision
from planner.models.transformer_activations import KERNELS, Kernels
from planner.models.transformer_memory import PRECISIONS

__all__ = ["MEGATRON_CORE", "PROGRAMS", "Program"]

MEGATRON_CORE = "megatron-core"
_WHOLE_MASTER = Precision(weight_bytes=2, gradient_bytes=10, activation_bytes=2, master_bytes=0, optimizer_bytes=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a program keeps."""

    kernels: Kernels
    precision: Precision


_OLD, _SHARDED = KERNELS["megatron-2021"], Program(kernels=KERNELS["fsdp"], precision=PRECISIONS["fsdp"])
PROGRAMS: Mapping[str, Program] = {
    MEGATRON_CORE: Program(kernels=KERNELS["megatron-core"], precision=PRECISIONS["megatron"]),
    "megatron-lm": Program(kernels=_OLD, precision=PRECISIONS["mixed"]),
    "megatron-lm-fused": Program(kernels=_OLD, precision=PRECISIONS["megatron"]),
    "megatron-deepspeed": Program(kernels=_OLD, precision=PRECISIONS["mixed"]),
    "megatron-deepspeed-bf16": Program(kernels=_OLD, precision=_WHOLE_MASTER),
    "composer-fsdp": _SHARDED,
    "torchtitan": _SHARDED,
    "torchtitan-eager": _SHARDED,
}
