"""Which of torchtitan's own configurations trains a network: the pairs that ``--module`` and ``--config`` take.

Source: ``torchtitan/models/{llama3,qwen3,deepseek_v3}/{__init__,config_registry}.py`` of torchtitan 0.3.0; a test with
that version installed holds every size here against its models.
"""

from dataclasses import dataclass

from planner.transformer import Transformer

__all__ = ["FLAVOURS", "Flavour", "flavour_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """One configuration of torchtitan's, and the sizes of its network.

    ``size`` is its name in the module's table of models; ``num_experts`` and ``expert_size`` are 0 without experts;
    ``is_float8``: whether it trains its products in eight bits.
    """

    module: str
    config: str
    size: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    feed_forward_size: int
    vocabulary_size: int
    has_tied_embeddings: bool = False
    num_experts: int = 0
    expert_size: int = 0
    is_float8: bool = False


def _llama(config: str, size: str, *sizes: int, is_float8: bool = False) -> Flavour:
    """Return a Llama 3."""
    layers, hidden, heads, keys, inner = sizes
    return Flavour(
        module="llama3",
        config=config,
        size=size,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=keys,
        feed_forward_size=inner,
        vocabulary_size=128256,
        is_float8=is_float8,
    )


def _qwen(config: str, size: str, *sizes: int, is_tied: bool = False, experts: tuple[int, int] = (0, 0)) -> Flavour:
    """Return a Qwen 3."""
    layers, hidden, heads, keys, inner = sizes
    return Flavour(
        module="qwen3",
        config=config,
        size=size,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=keys,
        feed_forward_size=inner,
        vocabulary_size=151936,
        has_tied_embeddings=is_tied,
        num_experts=experts[0],
        expert_size=experts[1],
    )


FLAVOURS = (
    _llama("llama3_8b", "8B", 32, 4096, 32, 8, 14336),
    _llama("llama3_70b", "70B", 80, 8192, 64, 8, 28672),
    _llama("llama3_405b", "405B", 126, 16384, 128, 8, 53248, is_float8=True),
    _qwen("qwen3_0_6b", "0.6B", 28, 1024, 16, 8, 3072, is_tied=True),
    _qwen("qwen3_1_7b", "1.7B", 28, 2048, 16, 8, 6144, is_tied=True),
    _qwen("qwen3_14b", "14B", 40, 5120, 40, 8, 17408),
    _qwen("qwen3_32b", "32B", 64, 5120, 64, 8, 25600),
    _qwen("qwen3_30b_a3b", "30B-A3B", 48, 2048, 32, 4, 0, experts=(128, 768)),
    Flavour(
        module="deepseek_v3",
        config="deepseek_v3_16b",
        size="16B",
        num_layers=27,
        hidden_size=2048,
        num_heads=16,
        num_kv_heads=16,
        feed_forward_size=10944,
        vocabulary_size=102400,
        num_experts=64,
        expert_size=1408,
    ),
    Flavour(
        module="deepseek_v3",
        config="deepseek_v3_671b",
        size="671B",
        num_layers=61,
        hidden_size=7168,
        num_heads=128,
        num_kv_heads=128,
        feed_forward_size=18432,
        vocabulary_size=129280,
        num_experts=256,
        expert_size=2048,
    ),
)


def flavour_of(network: Transformer) -> Flavour | None:
    """Return the configuration whose network has these sizes and parts; None if torchtitan has none."""
    return next((one for one in FLAVOURS if _has_parts(network, one.module) and _has_sizes(network, one)), None)


def _has_parts(network: Transformer, module: str) -> bool:
    """Whether blocks are made as a module of torchtitan makes them."""
    is_plain = (
        network.is_causal
        and network.is_gated
        and network.norm == "rms_norm"
        and network.norm_position == "before"
        and network.positions == "rotary"
        and network.head == "language"
        and not (network.has_biases or network.has_qkv_biases or network.has_embedding_norm)
        and not (network.has_output_bias or network.has_head_bias)
        and network.has_norm_scales
        and network.query_key_norm_span == "head"
        and not (network.experts is not None and network.experts.has_shared_gate)
    )
    if module == "deepseek_v3":
        return is_plain and network.latent is not None and network.experts is not None
    return is_plain and network.latent is None and network.has_query_key_norms == (module == "qwen3")


def _has_sizes(network: Transformer, flavour: Flavour) -> bool:
    """Whether all sizes are those of a configuration."""
    experts = network.experts
    if (experts.num_experts if experts else 0, experts.expert_size if experts else 0) != (
        flavour.num_experts,
        flavour.expert_size,
    ):
        return False
    names = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "vocabulary_size", "has_tied_embeddings")
    has_dense = network.num_moe_layers < network.num_layers
    return all(getattr(network, name) == getattr(flavour, name) for name in names) and (
        not has_dense or network.feed_forward_size == flavour.feed_forward_size
    )
