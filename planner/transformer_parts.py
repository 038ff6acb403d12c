"""Parts of a transformer that not every one has: experts, latent attention, images; and the sizes that are allowed."""

from dataclasses import dataclass
from typing import Any

__all__ = [
    "MOST_CHANNELS",
    "MOST_EXPERTS",
    "MOST_HEADS",
    "MOST_INNER",
    "MOST_LAYERS",
    "MOST_PIXELS",
    "MOST_TOKENS",
    "MOST_WIDTH",
    "MOST_WORDS",
    "OPEN",
    "Experts",
    "Image",
    "LatentAttention",
    "check_within",
    "fill",
]

# A default that follows from other fields: given as None, and filled in before anyone can read it.
OPEN: Any = None
# Far beyond any network, yet its parameters, and what an operator puts out for a sample, fit 64 bits.
MOST_LAYERS, MOST_HEADS, MOST_EXPERTS = 2**12, 2**12, 2**12
MOST_WIDTH, MOST_INNER, MOST_TOKENS, MOST_WORDS, MOST_PIXELS = 2**17, 2**19, 2**20, 2**24, 2**14
MOST_CHANNELS = 2**10


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture of experts that takes the place of some layers' feed-forward part.

    Attributes
    ----------
    num_experts
        Routed experts of one layer.
    top_k
        Of these, how many each token goes to.
    expert_size
        Inner width of one routed expert.
    num_shared, shared_size
        Experts that every token goes through, and the inner width of each; by default that of a routed one. They run
        as one feed-forward part of their common width.
    num_dense_first, every
        The first ``num_dense_first`` layers are dense; of those behind them the first and then every ``every``-th has
        experts.
    has_router_bias
        Whether the router adds a number for each expert, as DeepSeek-V3's balancing does. It counts as a parameter.
    has_shared_gate
        Whether each token weighs what the shared experts give it by a product of its own (Qwen2-MoE).
    """

    num_experts: int
    top_k: int
    expert_size: int
    num_shared: int = 0
    shared_size: int = OPEN
    every: int = 1
    num_dense_first: int = 0
    has_router_bias: bool = False
    has_shared_gate: bool = False

    def __post_init__(self) -> None:
        fill(self, "shared_size", self.expert_size)
        check_within("num_experts", self.num_experts, MOST_EXPERTS)
        check_within("top_k", self.top_k, MOST_EXPERTS)
        check_within("expert_size", self.expert_size, MOST_WIDTH)
        check_within("num_shared", self.num_shared, MOST_EXPERTS, least=0)
        check_within("shared_size", self.shared_size, MOST_WIDTH)
        check_within("every", self.every, MOST_LAYERS)
        check_within("num_dense_first", self.num_dense_first, MOST_LAYERS, least=0)
        if self.has_shared_gate and not self.num_shared:
            raise ValueError("there is a gate of shared experts, and no shared expert. Leave it out, or add one.")
        if self.top_k > self.num_experts:
            raise ValueError(
                f"top_k {self.top_k} is more than the {self.num_experts} experts of a layer. "
                f"Give top_k at most {self.num_experts}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: queries, keys and values are projected by way of narrow layers.

    Attributes
    ----------
    query_rank
        Width of the queries' narrow layer, which has a norm; None where queries are projected at once.
    key_value_rank
        Width of the narrow layer that keys and values share, with a norm.
    rope_size, nope_size
        Parts of a head's query and key with and without rotary positions; the key's rotary part is common to all heads.
    value_size
        Width of a head's value.
    """

    query_rank: int | None
    key_value_rank: int
    rope_size: int
    nope_size: int
    value_size: int

    def __post_init__(self) -> None:
        if self.query_rank is not None:
            check_within("query_rank", self.query_rank, MOST_WIDTH)
        for name in ("key_value_rank", "rope_size", "nope_size", "value_size"):
            check_within(name, getattr(self, name), MOST_WIDTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image cut into square patches, each of them a token, as the vision transformers read it.

    Attributes
    ----------
    image_size, patch_size
        Height and width, in pixels.
    num_channels
        Colours of a pixel.
    num_classes
        Outputs of the classifier.
    has_class_token
        Whether a learned token stands before the patches; the classifier reads it, or else their mean.
    """

    image_size: int
    patch_size: int
    num_channels: int = 3
    num_classes: int = 1000
    has_class_token: bool = True

    def __post_init__(self) -> None:
        for name in ("image_size", "patch_size"):
            check_within(name, getattr(self, name), MOST_PIXELS)
        check_within("num_channels", self.num_channels, MOST_CHANNELS)
        check_within("num_classes", self.num_classes, MOST_WORDS)
        if self.image_size % self.patch_size:
            raise ValueError(
                f"an image of {self.image_size} pixels has no whole number of patches of {self.patch_size}. "
                f"Give a patch_size that divides image_size."
            )

    @property
    def num_patches(self) -> int:
        """Patches of one image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def patch_elements(self) -> int:
        """Numbers in one patch."""
        return self.patch_size**2 * self.num_channels

    @property
    def num_tokens(self) -> int:
        """Tokens of one image."""
        return self.num_patches + self.has_class_token


def fill(where: Any, name: str, value: object) -> None:
    """Set a field that was left out, before the object is in anyone's hands."""
    if getattr(where, name) is None:
        object.__setattr__(where, name, value)


def check_within(name: str, value: int, most: int, *, least: int = 1) -> None:
    """Refuse a size that is too small or beyond all reason."""
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}. Write a whole number from {least} to {most}.")
