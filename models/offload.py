"""Activations that wait in host memory, between the forward and the backward pass: what stays on the device, and waits.

**Whole layers.** Transformer Engine copies what the first layers keep to the host while others compute, and brings it
back before their backward pass (``AsyncDoubleBufferGroupOffloadHandler`` of ``transformer_engine/pytorch/
cpu_offload.py``; Megatron-Core ``cpu_offloading_num_layers``). Without a pipeline only.

**Modules of every layer.** Megatron-Core copies what the backward pass of some modules reads (``offload_modules`` and
``fine_grained_activation_offloading`` of ``transformer_config.py`` of megatron-core 0.16.1;
``pipeline_parallel/fine_grained_activation_offload.py``), in a pipeline, too, on every stage alike:

- ``attn_norm``, ``mlp_norm``: the input of the norms before attention and feed-forward part where they are kernels of
  their own, and no part of the product behind them: before latent attention, and before experts;
- ``qkv_linear``: what the products read that make queries, keys and values, with the norm that is part of them;
- ``core_attn``: queries, keys and values as attention reads them;
- ``attn_proj``: the input of attention's last product. It is attention's output, which attention's backward pass reads,
  too, so that it goes with ``core_attn`` only; copied once (the program may copy it twice);
- ``expert_fc1``, ``moe_act``: tokens as they are sent to routed experts, and what their activation function reads.

Beside CUDA graphs these two alone go, where graphs hold attention, other mixers and routers, and no experts
(:func:`planner.models.low_precision.fuses_experts`): NVIDIA's recipes of Nemotron 3 Ultra have them (Megatron-Bridge,
pull request 5266); Megatron-Core 0.16.1 refuses whole layers.

No module has what a dense feed-forward part or another mixer than attention keeps. What is computed again is not kept,
and not copied.

**Seconds.** Both ways the copies of a stage are spread over the pass of its layers, so that a pass is as long as its
computing or as its copies, whichever is longer::

    waits = max(0, k / r - F) + max(0, k / r - B)

of a micro-batch, with k bytes that the stage copies, r bytes/s of the device's own link to its host, F and B seconds of
its layers forward and backward. A step waits so for each micro-batch of the stage with most layers, and while a
pipeline of v chunks a device fills and empties, a v-th of what all other stages wait once more (D. Narayanan et al.,
arXiv 2104.04473, section 2.2: passes that are longer by waits make bubbles longer alike); schedules that fill their
bubbles with gradients of weights (ZB-H2 and those that turn at the last device) are taken to wait no more.

The device holds what is not copied, and of one layer what is on its way. Leaves out: what the host does beside it, and
the contention of copies with kernels for the device's memory; tensors of fewer than 2^20 numbers, which are not copied
(``min_offloaded_tensor_size``).
"""

from functools import lru_cache

import numpy as np

from planner.cost import Floats
from planner.decisions import LAYOUT, NO_MODULES
from planner.models.layouts import Ints, Layouts, Schedule
from planner.models.low_precision import fuses_experts
from planner.models.operators import ROUTED, block_operators
from planner.models.recomputation import dropped_names, fuses_norm
from planner.names import OFFLOAD_MODULES
from planner.transformer import LayerKind, Transformer

# By the number by which a layout says them; the first is none.
OFFLOAD_SETS: tuple[tuple[str, ...], ...] = tuple(
    () if one == NO_MODULES else tuple(one.split()) for one in LAYOUT["offload_modules"].names
)
_LATENT = tuple(f"attention.{name}" for name in ("query_down", "query_norm", "query"))
_LATENT += tuple(f"attention.{name}" for name in ("key_value_down", "key_value_norm", "key_value"))
_OF_EXPERTS = ("expert_fc1", "moe_act")
_SCORES = ("attention.scores", "attention.softmax")


@lru_cache(maxsize=256)
def modules_with_input(transformer: Transformer) -> tuple[str, ...]:
    """Return the modules that some layer of a network has, of those whose inputs may wait on the host.

    Parameters
    ----------
    transformer
        The network.
    """
    kinds = dict.fromkeys(transformer.layer_kinds)
    return tuple(name for name in OFFLOAD_MODULES if any(_read_by(transformer, kind, name) for kind in kinds))


def modules_beside_graphs(transformer: Transformer) -> tuple[str, ...]:
    """Return the modules whose inputs may wait on the host where kernels are captured: of experts that are not.

    Parameters
    ----------
    transformer
        The network.
    """
    is_captured = fuses_experts(transformer, has_graphs=True)
    return () if is_captured else tuple(one for one in modules_with_input(transformer) if one in _OF_EXPERTS)


def absent_modules_words(transformer: Transformer, modules: int) -> str | None:
    """Return what of a set of modules no layer of a network has, in words; None where it has all.

    Parameters
    ----------
    transformer, modules
        The network, and the number of the set.
    """
    has = modules_with_input(transformer)
    return ", ".join(name for name in OFFLOAD_SETS[modules] if name not in has) or None


@lru_cache(maxsize=1_024)
def offloaded_names(transformer: Transformer, kind: LayerKind, modules: int, recomputed: int) -> frozenset[str]:
    """Return the operators of a layer whose outputs wait on the host.

    Parameters
    ----------
    transformer, kind
        The network, and the kind of layer.
    modules
        The number of the set of modules whose inputs are copied.
    recomputed
        The number of the set of modules that are computed again: what these drop is not copied.
    """
    found = {name for one in OFFLOAD_SETS[modules] for name in _read_by(transformer, kind, one)}
    return frozenset(found - dropped_names(transformer, kind, recomputed))


def _read_by(transformer: Transformer, kind: LayerKind, module: str) -> tuple[str, ...]:
    """Return the operators of a layer, or its input, whose outputs the backward pass of a module reads."""
    operators = {one.name: one for one in block_operators(transformer, kind)}
    has_experts = any(name.startswith(ROUTED) for name in operators)
    is_latent, is_fused = transformer.latent is not None, fuses_norm(transformer)
    if module in ("core_attn", "attn_proj"):
        wanted = ["attention.context" if module == "core_attn" else "attention.output"]
    elif module == "attn_norm":
        wanted = ["attention.norm"] * (is_fused and is_latent)
    elif module == "qkv_linear":
        wanted = [*_LATENT] if is_latent else ["attention.qkv", *["attention.norm"] * is_fused]
    elif module == "mlp_norm":
        wanted = ["feed_forward.norm"] * (is_fused and has_experts)
    else:
        wanted = [f"{ROUTED}{'up' if module == 'expert_fc1' else 'activation'}"]
    if "attention.context" not in operators:
        wanted = [name for name in wanted if not name.startswith("attention.")]
    read = [name for one in wanted if one in operators for name in operators[one].inputs if name not in _SCORES]
    return tuple(dict.fromkeys(read))


def offloaded_share(layouts: Layouts, layers: Ints) -> Floats:
    """Return the share of a stage's layers whose activations wait in host memory, shape (n,).

    Parameters
    ----------
    layouts, layers
        n of them, and the layers of a stage of each.
    """
    return np.asarray(np.minimum(layouts.offload_layers / np.maximum(layers, 1), 1.0))


def waits_s(copied_bytes: Floats, link_bytes_per_s: float, forward_s: Floats, backward_s: Floats) -> Floats:
    """Return how long a device waits for copies in a micro-batch, both ways.

    Parameters
    ----------
    copied_bytes
        Of a micro-batch, one way.
    link_bytes_per_s
        Of the device to its host, each way.
    forward_s, backward_s
        Of all layers.

    Examples
    --------
    >>> float(waits_s(np.array([3e9]), 1e9, np.array([1.0]), np.array([2.0]))[0])
    3.0
    """
    copies_s = copied_bytes / link_bytes_per_s
    return np.asarray(np.maximum(copies_s - forward_s, 0.0) + np.maximum(copies_s - backward_s, 0.0))


def waits_of_step(layouts: Layouts, waits: Floats, share: Floats) -> Floats:
    """Return how long a step waits, shape (n,).

    Parameters
    ----------
    layouts
        n of them.
    waits
        Seconds of a micro-batch through all layers.
    share
        Of the layers, what the stage with most has.

    Examples
    --------
    Four stages, eight micro-batches: eleven passes of a stage.

    >>> one = Layouts.one(pipeline=4, num_microbatches=8)
    >>> float(waits_of_step(one, np.array([2.0]), np.array([0.25]))[0])
    5.5
    """
    is_filled = layouts.schedule >= Schedule.ZB_H2  # whose order leaves little to wait for
    filling = np.where(is_filled, 0.0, (1 - share) / layouts.interleave)
    return np.asarray(waits * (layouts.num_microbatches * share + filling))
