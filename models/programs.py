"""Programs that train transformers: what they keep in memory, and what they have.

What they take in seconds stands, under the same names, in :mod:`planner.data.fits`. Sources:

- ``megatron-lm``, ``megatron-deepspeed`` (2021 and 2022, fp16): 16 bytes a parameter (S. Rajbhandari et al., arXiv
  1910.02054, section 3.1); scores and masks of dropout are kept (V. Korthikanti et al., arXiv 2205.05198, section 4);
- ``megatron-lm-fused``: 18 bytes, as the GEMM that gives a gradient adds it up in four (the same, figure 1);
- ``megatron-deepspeed-bf16``: DeepSpeed's optimiser for bf16 as it stood early in 2022: gradients in two bytes, their
  sums and the master copy in four, whole on every device; only the moments are sharded (docs/transformer_memory.md);
- ``megatron-core``: 18 bytes; told so, gradients in two bytes (``--grad-reduce-in-bf16``) and, of weights in bf16, a
  master copy in two (``--use-precision-aware-optimizer``): 14;
- ``nanotron``: 20 bytes: gradients in two bytes beside their sums in four (``accumulate_grad_in_fp32``);
- ``composer-fsdp``, ``torchtitan``: PyTorch's fully sharded data parallel. Composer's loss is FlashAttention's
  kernel, torchtitan's is compiled with the model: neither copies logits. torchtitan's selective recomputation keeps
  what attention and every second matrix put out (its default, by operators: ``_apply_ac_to_transformer_block`` of
  ``parallelize_llama.py``); a compiled model does not keep what nobody reads.

What a program has is by its own options: Megatron-Core 0.16 (``--overlap-grad-reduce``, ``--tp-comm-overlap``,
``--sequence-parallel``, ``--use-distributed-optimizer``; ``--cp-comm-type`` p2p, all_gather, a2a and a2a+p2p);
torchtitan splits the sequence with every tensor degree, and overlaps that communication where the model is compiled;
fully sharded data parallelism always gathers ahead. Those of 2021 and 2022 send gradients behind the backward pass, and
overlap no tensor-parallel communication.
"""

from collections.abc import Mapping
from dataclasses import replace

from planner.frozen import frozen
from planner.models.layer_memory import KERNELS, Kernels
from planner.models.layouts import ContextMethod
from planner.models.low_precision import NUMBER_TYPES, NumberType
from planner.models.memory import PRECISIONS, Precision
from planner.schedules import OF_PROGRAMS

MEGATRON_CORE, PRIMUS = "megatron-core", "primus"
CORES = (MEGATRON_CORE, PRIMUS)  # whose ranks and options are those of Megatron-Core
# Of which groups switches add up what all-reduces send, where a program does not leave that to NCCL: Megatron-Core
# clears ``NCCL_COLLNET_ENABLE`` for all but the group of ``--sharp-enabled-group``, so that copies of experts have none
# (``initialize_model_parallel`` of ``megatron/core/parallel_state.py``, 0.16); Primus' files ask for no sums.
SUMMED_GROUPS: Mapping[str, tuple[str, ...]] = {MEGATRON_CORE: ("replicas", "copies"), PRIMUS: ()}
# Optimisers that ``--use-precision-aware-optimizer`` goes with (``OptimizerConfig`` of Megatron-Core asks for Adam).
PRECISION_AWARE = ("adam", "adamw", "adam_bf16", "adam_fp8")
_WHOLE_MASTER = Precision(weight_bytes=2, gradient_bytes=10, activation_bytes=2, master_bytes=0, optimizer_bytes=8)

DEEPEP, HYBRIDEP, ALL_TO_ALL = "deepep", "hybridep", "alltoall"
DEEPEP_BYTES_PER_S = 290e9  # that a device receives inside a machine at most: see ``Software.exchanged_bytes_per_s``
_BLACKWELL = ("b200", "b300", "gb200", "gb300")
_HOPPER = ("h100-sxm", "h20", "h800-sxm")  # H200 among them
_INSTINCT = ("mi3",)


def token_backend(device: str, program: str = MEGATRON_CORE, tensor: int = 1) -> str:
    """Return what sends tokens to experts: HybridEP on Blackwell, DeepEP on Hopper with NVLink, else an all-to-all.

    Source: Megatron-Bridge, which refuses DeepEP on GB200 and GB300 (``training/flex_dispatcher_backend.py``). It found
    8 % more with HybridEP on B200 (issue 1731), and recipes of B300 went over to it (issue 3399). DeepEP wants NVLink
    and eight devices a machine (its issues 104 and 296), and its authors never ran it between machines of A100 (149,
    162 and 234). AMD's Instinct has kernels of its own in Primus (``use_turbo_deepep``), which takes them up without
    tensor parallelism alone (``patches/turbo/moe_dispatcher_patches.py``), and none in Megatron-LM (MORI is an option
    of AMD's copy alone: ROCm/Megatron-LM, pull request 135).

    >>> token_backend("gb300"), token_backend("h100-sxm"), token_backend("a100-sxm4-80gb")
    ('hybridep', 'deepep', 'alltoall')
    >>> token_backend("mi300x"), token_backend("mi300x", PRIMUS), token_backend("mi300x", PRIMUS, tensor=2)
    ('alltoall', 'deepep', 'alltoall')
    """
    if device.startswith(_BLACKWELL):
        return HYBRIDEP
    return DEEPEP if device.startswith(_HOPPER + _INSTINCT * (program == PRIMUS and tensor == 1)) else ALL_TO_ALL


@frozen
class Program:
    """What a program keeps, and what it has.

    ``has``: decisions of :class:`planner.models.layouts.Layouts` that are on in it unless they are turned off; of the
    overlaps it can have no others. ``bf16_gradients``: what it keeps where it is asked to keep and reduce gradients in
    bf16; None: it has no such option. ``cuts_experts``: whether experts are cut as all else is, unless told otherwise.
    ``low_recipes``: in which types and recipes it multiplies short numbers
    (:data:`planner.models.low_precision.NUMBER_TYPES`); ``keeps_low``: whether it then keeps weights and what products
    read in them, too; ``gathers_low``: whether ranks gather them.
    ``has_cuda_graphs``: whether it captures a step's kernels.
    ``recomputes_modules``: whether it computes modules of a layer again by themselves, or some layers of a stage only.
    ``offloads_activations``: whether some layers' activations may wait in host memory.
    ``context_methods``: by which context ranks may see keys and values.
    ``schedules``: those that it runs beside GPipe and 1F1B, by name; a search takes no others unless one is pinned.
    ``shards_partly``: whether ZeRO may share out states over a part of the data ranks (Megatron-Core
    ``--num-distributed-optimizer-instances``, PyTorch's HYBRID_SHARD). ``gathers_in_stages``: whether it has ZeRO 3 in
    a pipeline. ``fills_stages``: whether its 1F1B refuses fewer micro-batches than stages.
    """

    kernels: Kernels
    precision: Precision
    has: frozenset[str] = frozenset()
    bf16_gradients: Precision | None = None
    cuts_experts: bool = True
    low_recipes: frozenset[tuple[str, str]] = frozenset()
    keeps_low: bool = False
    gathers_low: bool = True
    has_cuda_graphs: bool = False
    recomputes_modules: bool = False
    offloads_activations: bool = False
    context_methods: tuple[ContextMethod, ...] = (ContextMethod.RING,)
    schedules: frozenset[str] = frozenset()
    shards_partly: bool = False
    gathers_in_stages: bool = False
    fills_stages: bool = False

    def in_type(self, low: NumberType | None) -> "Program":
        """Return what it keeps where products are of shorter numbers; itself without, or where it keeps two bytes.

        Parameters
        ----------
        low
            How numbers are kept.
        """
        if low is None or not self.keeps_low:
            return self
        wide = self.bf16_gradients
        return replace(
            self,
            precision=replace(self.precision, weight_bytes=low.kept_weight_bytes),
            bf16_gradients=None if wide is None else replace(wide, weight_bytes=low.kept_weight_bytes, spared_bytes=0),
            kernels=replace(self.kernels, product_input_bytes=low.element_bytes),
        )


_OLD = KERNELS["megatron-2021"]
_SHARDED = Program(
    kernels=KERNELS["composer-fsdp"],
    precision=PRECISIONS["fsdp"],
    has=frozenset({"overlap_data", "zero"}),
    shards_partly=True,
)
_TITAN = replace(
    _SHARDED,
    schedules=OF_PROGRAMS["torchtitan"],
    kernels=KERNELS["torchtitan"],
    has=_SHARDED.has | {"sequence_parallel"},
    cuts_experts=False,
    gathers_in_stages=True,
    fills_stages=True,  # ``Schedule1F1B.__init__`` of torch.distributed.pipelining
    # torchao's converters ``float8`` and ``mx`` of its configuration, which keep what is read in two bytes, and gather
    # it so: with one scale for a row ranks share no scale (torchtitan, docs/float8.md).
    low_recipes=frozenset({("fp8", "current"), ("mxfp8", "mxfp8")}),
    gathers_low=False,
)
_CORE = Program(
    kernels=KERNELS["megatron-core"],
    precision=PRECISIONS["megatron"],
    has=frozenset({"sequence_parallel", "overlap_tensor", "overlap_data", "overlap_expert", "zero"}),
    bf16_gradients=PRECISIONS["megatron-bf16-gradients"],
    # Transformer Engine: ``--fp8-recipe``, ``--fp4-recipe``, ``--fp8-param-gather``; ``--cuda-graph-impl``.
    low_recipes=frozenset(NUMBER_TYPES),
    keeps_low=True,
    has_cuda_graphs=True,
    recomputes_modules=True,
    offloads_activations=True,
    context_methods=tuple(ContextMethod),
    shards_partly=True,
)
PROGRAMS: Mapping[str, Program] = {
    MEGATRON_CORE: _CORE,
    PRIMUS: replace(_CORE, schedules=OF_PROGRAMS[PRIMUS]),
    "megatron-lm": Program(kernels=_OLD, precision=PRECISIONS["mixed"]),
    "megatron-lm-fused": Program(kernels=_OLD, precision=PRECISIONS["megatron"]),
    "megatron-deepspeed": Program(
        kernels=KERNELS["megatron-deepspeed"], precision=PRECISIONS["mixed"], has=frozenset({"zero"})
    ),
    "megatron-deepspeed-bf16": Program(kernels=_OLD, precision=_WHOLE_MASTER, has=frozenset({"zero"})),
    "composer-fsdp": _SHARDED,
    "torchtitan": replace(_TITAN, has=_TITAN.has | {"overlap_tensor"}),
    "torchtitan-eager": replace(_TITAN, kernels=KERNELS["torchtitan-eager"]),
    "nanotron": Program(
        kernels=KERNELS["nanotron"],
        precision=replace(PRECISIONS["megatron"], gradient_bytes=6),
        has=frozenset({"sequence_parallel", "overlap_tensor", "overlap_data", "zero"}),
    ),
}
