"""Parts of a transformer that not every one has: experts, latent and sparse attention, images; and sizes allowed."""

from typing import Any

from planner.frozen import frozen
from planner.numerics import Routing, routing_of

# A default that follows from other fields: given as None, and filled in before anyone can read it.
OPEN: Any = None
# Far beyond any network, yet its parameters, and what an operator puts out for a sample, fit 64 bits.
MOST_LAYERS, MOST_HEADS, MOST_EXPERTS = 2**12, 2**12, 2**12
MOST_WIDTH, MOST_INNER, MOST_TOKENS, MOST_WORDS, MOST_PIXELS = 2**17, 2**19, 2**20, 2**24, 2**14
MOST_CHANNELS, MOST_IMAGES, MOST_FRAMES = 2**10, 2**12, 2**6


@frozen
class Experts:
    """The mixture of experts that takes the place of some layers' feed-forward part."""

    num_experts: int  # routed experts of one layer
    top_k: int  # of these, how many each token goes to
    expert_size: int  # inner width of one routed expert
    # num_shared, shared_size: experts that every token goes through, and the inner width of each; by default that of a
    # routed one. They run as one feed-forward part of their common width
    num_shared: int = 0
    shared_size: int = OPEN
    # num_dense_first, every: the first ``num_dense_first`` layers are dense; of those behind them the first and then
    # every ``every``-th has experts
    every: int = 1
    num_dense_first: int = 0
    # whether the router adds a number for each expert, as DeepSeek-V3's balancing does. It counts as a parameter
    has_router_bias: bool = False
    # whether each token weighs what the shared experts give it by a product of its own (Qwen2-MoE)
    has_shared_gate: bool = False
    # groups, top_groups: equal groups that the experts are in, one behind the other, and of how many of them a token's
    # experts are at most: node-limited routing (DeepSeek-AI, arXiv 2412.19437, section 2.1.2)
    groups: int = 1
    top_groups: int = 1
    # width that routed experts read and write, between two products of the layer that every token passes (NVIDIA's
    # LatentMoE, Nemotron 3 Super); by default the stream's
    latent_size: int | None = None
    routing: Routing = OPEN  # how the router scores and balances; by default as a router with or without a bias does

    def __post_init__(self) -> None:
        fill(self, "shared_size", self.expert_size)
        fill(self, "routing", routing_of(has_router_bias=self.has_router_bias))
        check_within("num_experts", self.num_experts, MOST_EXPERTS)
        check_within("top_k", self.top_k, MOST_EXPERTS)
        check_within("expert_size", self.expert_size, MOST_WIDTH)
        check_within("num_shared", self.num_shared, MOST_EXPERTS, least=0)
        check_within("shared_size", self.shared_size, MOST_WIDTH)
        if self.latent_size is not None:
            check_within("latent_size", self.latent_size, MOST_WIDTH)
        check_within("every", self.every, MOST_LAYERS)
        check_within("num_dense_first", self.num_dense_first, MOST_LAYERS, least=0)
        if self.has_shared_gate and not self.num_shared:
            raise ValueError("there is a gate of shared experts, and no shared expert. Leave it out, or add one.")
        if not 1 <= self.top_groups <= self.groups or self.num_experts % self.groups:
            raise ValueError(
                f"{self.top_groups} of {self.groups} groups of {self.num_experts} experts is no choice of equal ones. "
                f"Give groups that divide the experts, and top_groups of 1 to {self.groups}."
            )
        if self.top_k > self.num_experts:
            raise ValueError(
                f"top_k {self.top_k} is more than the {self.num_experts} experts of a layer. "
                f"Give top_k at most {self.num_experts}."
            )
        open_experts = self.num_experts * self.top_groups // self.groups
        if self.top_k > open_experts:
            raise ValueError(
                f"top_k {self.top_k} is more than the {open_experts} experts of {self.top_groups} groups. "
                f"Give top_k at most {open_experts}, or more top_groups."
            )


@frozen
class LatentAttention:
    """Multi-head latent attention: queries, keys and values are projected by way of narrow layers."""

    # width of the queries' narrow layer, which has a norm; None where queries are projected at once
    query_rank: int | None
    key_value_rank: int  # width of the narrow layer that keys and values share, with a norm
    # rope_size, nope_size: parts of a head's query and key with and without rotary positions; the key's rotary part is
    # common to all heads
    rope_size: int
    nope_size: int
    value_size: int  # width of a head's value

    def __post_init__(self) -> None:
        if self.query_rank is not None:
            check_within("query_rank", self.query_rank, MOST_WIDTH)
        for name in ("key_value_rank", "rope_size", "nope_size", "value_size"):
            check_within(name, getattr(self, name), MOST_WIDTH)


@frozen
class SparseAttention:
    """Attention to chosen tokens alone, as a small indexer scores them (DeepSeek-AI, DeepSeek-V3.2, section 2.1)."""

    # heads, head_size: of the indexer: heads of queries, which share one key, and their width
    heads: int
    head_size: int
    top_k: int  # tokens that one attends to

    def __post_init__(self) -> None:
        check_within("heads", self.heads, MOST_HEADS)
        check_within("head_size", self.head_size, MOST_WIDTH)
        check_within("top_k", self.top_k, MOST_TOKENS)

    def num_parameters(self, hidden_size: int, query_rank: int) -> int:
        """Return the parameters of one block's indexer: queries, a key with a layer norm, and a weight of each head.

        Parameters
        ----------
        hidden_size, query_rank
            Width of the stream, and of what its queries are projected from.
        """
        width = self.heads * self.head_size
        return query_rank * width + hidden_size * (self.head_size + self.heads) + 2 * self.head_size


@frozen
class Image:
    """An image cut into square patches, each of them a token, as the vision transformers read it."""

    # image_size, patch_size: height and width, in pixels
    image_size: int
    patch_size: int
    num_channels: int = 3  # colours of a pixel
    num_classes: int = 1000  # outputs of the classifier
    # whether a learned token stands before the patches; the classifier reads it, or else their mean
    has_class_token: bool = True
    image_height: int = OPEN  # where an image is no square
    # frames of a video that one patch reaches through; a single image is then read as often (Qwen2-VL)
    frames_per_patch: int = 1
    has_patch_bias: bool = True  # whether the product that makes tokens of patches has a bias

    def __post_init__(self) -> None:
        fill(self, "image_height", self.image_size)
        for name in ("image_size", "image_height", "patch_size"):
            check_within(name, getattr(self, name), MOST_PIXELS)
        check_within("frames_per_patch", self.frames_per_patch, MOST_FRAMES)
        check_within("num_channels", self.num_channels, MOST_CHANNELS)
        check_within("num_classes", self.num_classes, MOST_WORDS)
        for pixels in (self.image_size, self.image_height):
            if pixels % self.patch_size:
                raise ValueError(
                    f"an image of {pixels} pixels has no whole number of patches of {self.patch_size}. "
                    f"Give a patch_size that divides image_size."
                )

    @property
    def num_patches(self) -> int:
        """Patches of one image."""
        return self.image_size // self.patch_size * (self.image_height // self.patch_size)

    @property
    def patch_elements(self) -> int:
        """Numbers in one patch."""
        return self.patch_size**2 * self.num_channels * self.frames_per_patch

    @property
    def num_tokens(self) -> int:
        """Tokens of one image."""
        return self.num_patches + self.has_class_token


def fill(where: object, name: str, value: object) -> None:
    """Set a field that was left out, before the object is in anyone's hands."""
    if getattr(where, name) is None:
        object.__setattr__(where, name, value)


def check_within(name: str, value: int, most: int, *, least: int = 1) -> None:
    """Refuse a size that is too small or beyond all reason."""
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}. Write a whole number from {least} to {most}.")
