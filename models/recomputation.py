"""What is computed again in the backward pass by module, and what of a layer is not kept then.

The modules are those of Megatron-Core 0.16 (``recompute_modules`` in ``transformer_config.py`` of
``megatron/core/transformer``; ``transformer_layer.py``, ``multi_latent_attention.py``, ``moe/moe_layer.py``):

- ``core_attn``: scores, softmax and context. What it gives is kept as the next product's input, so that it saves the
  scores alone, and nothing of flash attention, which has none;
- ``moe_act``: the activation function of routed experts; its output is dropped, which the second product reads;
- ``layernorm``: the norms before attention and feed-forward part where they are kernels of their own, and no part of
  the product behind them: before latent attention, and before experts;
- ``mla_up_proj``: what makes queries, keys and values of latent attention's narrow ones, their norms and positions too;
- ``mlp``: the whole dense feed-forward part, with the norm that its first product has in it;
- ``moe``: the whole part of experts, router and exchange included, and the shared experts;
- ``shared_experts``: these alone.

DeepSeek-V3 trains with ``layernorm`` and ``mla_up_proj`` (arXiv 2412.19437, section 3.2.3). The second, third and
fourth drop their outputs, too; the others keep theirs for what stands behind them. What is outside of a module is kept
as ever, and so are its inputs, since something else reads them.
"""

from functools import lru_cache

from planner.decisions import LAYOUT
from planner.models.operators import ROUTED, block_operators
from planner.transformer import LayerKind, Transformer

# By the number by which a layout says them; the first is the attention core alone.
MODULE_SETS: tuple[tuple[str, ...], ...] = tuple(tuple(one.split()) for one in LAYOUT["recompute_modules"].names)
_DROPS_OUTPUT = frozenset({"moe_act", "layernorm", "mla_up_proj"})
_FUSES_NORM = ("before", "both")  # places of a norm whose kernel is part of the product behind it
_LATENT = ("query_norm", "query", "key_value_norm", "key_value", "rotary")
_SHARED = "feed_forward.shared."


@lru_cache(maxsize=256)
def modules_of(transformer: Transformer) -> tuple[str, ...]:
    """Return the modules that some layer of a network has, the attention core left out.

    Parameters
    ----------
    transformer
        The network.
    """
    kinds = dict.fromkeys(transformer.layer_kinds)
    names = dict.fromkeys(name for one in MODULE_SETS for name in one)
    return tuple(
        name for name in names if name != "core_attn" and any(_inside(transformer, kind, name) for kind in kinds)
    )


def absent_words(transformer: Transformer, modules: int) -> str | None:
    """Return what of a set of modules a network lacks, in words; None where it has all.

    Parameters
    ----------
    transformer, modules
        The network, and the number of the set.
    """
    has = {"core_attn", *modules_of(transformer)}
    lacking = [name for name in MODULE_SETS[modules] if name not in has]
    return ", ".join(lacking) or None


@lru_cache(maxsize=1_024)
def again_names(transformer: Transformer, kind: LayerKind, modules: int) -> frozenset[str]:
    """Return the operators that a set of modules computes again in a layer of a kind; the attention core left out.

    Parameters
    ----------
    transformer, kind
        The network, and the kind of layer.
    modules
        The number of the set.
    """
    return frozenset(name for one in MODULE_SETS[modules] for name in _inside(transformer, kind, one))


@lru_cache(maxsize=1_024)
def dropped_names(transformer: Transformer, kind: LayerKind, modules: int) -> frozenset[str]:
    """Return the operators of a layer whose outputs a set of modules does not keep.

    Parameters
    ----------
    transformer, kind, modules
        As for :func:`again_names`.
    """
    found: set[str] = set()
    for one in MODULE_SETS[modules]:
        inside = _inside(transformer, kind, one)
        found |= {*inside} if one in _DROPS_OUTPUT else {*inside[:-1]}
    return frozenset(found)


def fuses_norm(transformer: Transformer) -> bool:
    """Return whether norms stand before products, where a kernel may do both.

    Parameters
    ----------
    transformer
        The network.
    """
    return transformer.norm_position in _FUSES_NORM


def _inside(transformer: Transformer, kind: LayerKind, module: str) -> tuple[str, ...]:
    """Return the operators of a module in a layer of a kind, in order; the last one gives its output."""
    names = [one.name for one in block_operators(transformer, kind)]
    has_experts, is_before = any(name.startswith(ROUTED) for name in names), fuses_norm(transformer)
    wanted: list[str] = []
    if module == "moe_act":
        wanted = [f"{ROUTED}activation"]
    elif module == "layernorm" and is_before:
        wanted = ["attention.norm"] if transformer.latent is not None else []
        wanted += ["feed_forward.norm"] if has_experts else []
    elif module == "mla_up_proj" and transformer.latent is not None:
        wanted = [f"attention.{name}" for name in _LATENT]
    elif module == "mlp" and not has_experts:
        wanted = [f"feed_forward.{name}" for name in ("norm", "up", "activation", "down")][not is_before :]
    elif module == "moe" and has_experts:
        outside = ("feed_forward.norm", "feed_forward.post_norm", "feed_forward.add")
        wanted = [name for name in names if name.startswith("feed_forward.") and name not in outside]
    elif module == "shared_experts":
        wanted = [name for name in names if name.startswith(_SHARED)]
    return tuple(name for name in names if name in wanted)
