"""What of a transformer is trained: every parameter, adapters alone, or all but frozen parts.

A frozen weight has no gradient, no state of an optimiser and no sum over replicas, and is held in two bytes. Backward
through a frozen layer gives gradients of activations alone, half of its products; a frozen layer with nothing trained
before it runs no backward pass and keeps no activations (PyTorch, "Autograd mechanics", ``requires_grad``).
"""

from dataclasses import dataclass
from typing import Literal

from planner.fine_tuning import FineTuning

# What runs of a part. ``trained``: forward, gradients of activations and of those weights in it that are trained;
# ``frozen``: forward, and gradients of activations; ``front``: forward alone, since nothing before it is trained.
Learning = Literal["trained", "frozen", "front"]
EMBEDDING, LAYERS, HEAD = "embedding", "layers", "head"
ENCODER, PROJECTOR = "encoder", "projector"  # of images, before a language model
# Parts inside of layers, by what the names of their operators begin with (:mod:`planner.models.operators`).
OPERATORS = {
    "attention": "attention.",
    "feed_forward": "feed_forward.",
    "experts": "feed_forward.experts.",
    "router": "feed_forward.router",
}
FROZEN_PARTS = (EMBEDDING, LAYERS, HEAD, ENCODER, PROJECTOR, *OPERATORS)
# Norms beside a part of a layer belong to none.
_OUTSIDE = frozenset(f"{part}.{norm}" for part in ("attention", "feed_forward") for norm in ("norm", "post_norm"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What is trained; by default everything.

    Attributes
    ----------
    adapters
        Trained in place of all of the network's own parameters.
    frozen_layers
        The first so many are not trained, nor is the embedding before them.
    frozen_parts
        What else is not, of :data:`FROZEN_PARTS`: the embedding, all layers, the head, or parts of every layer.
    """

    adapters: FineTuning | None = None
    frozen_layers: int = 0
    frozen_parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.frozen_layers < 0:
            raise ValueError(f"{self.frozen_layers} layers are none. Write 1 or more, or leave layers out.")
        if unknown := [name for name in self.frozen_parts if name not in FROZEN_PARTS]:
            raise ValueError(f"nobody knows the part {unknown[0]!r}. Write some of {', '.join(FROZEN_PARTS)}.")
        if self.adapters is not None and self.has_frozen:
            raise ValueError("adapters freeze all of the network already. Leave out frozen, or fine_tuning.")

    @property
    def has_frozen(self) -> bool:
        """Whether parts are frozen, rather than all or nothing."""
        return bool(self.frozen_layers or self.frozen_parts)

    @property
    def is_all(self) -> bool:
        """Whether every parameter is trained."""
        return self.adapters is None and not self.has_frozen

    @property
    def is_quantised(self) -> bool:
        """Whether frozen matrices of blocks are kept in four bits."""
        return self.adapters is not None and self.adapters.is_quantised

    @property
    def is_embedding_frozen(self) -> bool:
        """Whether the embedding is."""
        return self.adapters is not None or self.frozen_layers > 0 or EMBEDDING in self.frozen_parts

    @property
    def is_head_frozen(self) -> bool:
        """Whether what is behind the last block is, a matrix that the embedding shares left out."""
        return self.adapters is not None or HEAD in self.frozen_parts

    def learning(self, index: int, *, learns_images: bool = False) -> Learning:
        """Return what runs of a block, by its place among all.

        Parameters
        ----------
        index
            From 0.
        learns_images
            Whether something is trained of what is before the embedding.
        """
        if index >= self.frozen_layers and LAYERS not in self.frozen_parts:
            return "trained"
        return "front" if self.is_embedding_frozen and not learns_images else "frozen"

    def of_encoder(self) -> "Trained":
        """Return what is trained of an encoder of images by itself, whose head is the projector."""
        if self.adapters is not None:
            return Trained(frozen_parts=(EMBEDDING, LAYERS, HEAD))
        parts = (EMBEDDING, LAYERS) * (ENCODER in self.frozen_parts) + (HEAD,) * (PROJECTOR in self.frozen_parts)
        return Trained(frozen_parts=parts)

    @property
    def embedding_learning(self) -> Learning:
        """What runs of the embedding; adapters stand behind it."""
        if self.adapters is not None:
            return "frozen"
        return "front" if self.is_embedding_frozen else "trained"

    def is_frozen(self, operator: str) -> bool:
        """Return whether the weights of an operator of a block that is trained are not.

        Parameters
        ----------
        operator
            Its name.
        """
        if self.adapters is not None:
            return True
        names = tuple(OPERATORS[part] for part in self.frozen_parts if part in OPERATORS)
        return operator.startswith(names) and operator not in _OUTSIDE if names else False

    @property
    def own_words(self) -> str:
        """What of it the family of transformers alone counts; nothing where every family does."""
        if self.adapters is not None:
            return "training by adapters"
        return "training with frozen parts" if self.has_frozen else ""

    @property
    def words(self) -> str:
        """``LoRA of rank 16 beside qkv``; or ``the first 20 layers, the embedding before them and the experts``."""
        if self.adapters is not None:
            return self.adapters.words
        named = {
            **{LAYERS: "all layers", "attention": "the attention of every layer", "router": "the routers"},
            **{"experts": "the routed experts", "feed_forward": "the feed-forward parts"},
        }
        found = []
        if self.frozen_layers:
            first = f"first {self.frozen_layers} layers" if self.frozen_layers > 1 else "first layer"
            found += [f"the {first}", "the embedding before them" if self.frozen_layers > 1 else "the embedding"]
        found += [named.get(one, f"the {one}") for one in self.frozen_parts if one != EMBEDDING or not found]
        *most, last = found
        return f"{', '.join(most)}{' and ' * bool(most)}{last}"


EVERYTHING = Trained()
