"""What of a transformer is trained: every parameter, adapters alone, or all but frozen parts.

A frozen weight has no gradient, no state of an optimiser and no sum over replicas, and is held in two bytes. Backward
through a frozen layer gives gradients of activations alone, half of its products; a frozen layer with nothing trained
before it runs no backward pass and keeps no activations (PyTorch, "Autograd mechanics", ``requires_grad``).

*Adapters.* LoRA keeps a matrix of ``n x m`` numbers as it is and trains two thin ones beside it, ``n x r`` and ``r x
m``, whose product is added, times ``alpha / r`` (E. J. Hu et al., arXiv 2106.09685, section 4.1). QLoRA does the same
beside matrices that are kept in four bits, and turned into two bytes whenever they are multiplied (T. Dettmers et al.,
arXiv 2305.14314, section 3). All else is frozen: embedding, norms, biases, logits.
"""

from typing import Literal

from planner.frozen import frozen

FineTuningMethod = Literal["lora", "qlora"]
# By the names of a spec those of Hugging Face's modules, and of Megatron's; ``qkv`` and ``gate_up`` are one matrix with
# one adapter (Megatron), ``query``, ``gate`` and the like parts of it with one each (Hugging Face).
TARGETS = ("qkv", "query", "key", "value", "output", "gate_up", "gate", "up", "down")
SYNONYMS = {
    **{"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output"},
    **{"gate_proj": "gate", "up_proj": "up", "down_proj": "down"},
    **{"q": "query", "k": "key", "v": "value"},
    **{"linear_qkv": "qkv", "linear_proj": "output", "linear_fc1": "gate_up", "linear_fc2": "down"},
}
# The same of both programs, for launch files; what is no whole matrix of one has no name there.
MODULES = {
    **{"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"},
    **{"gate": "gate_proj", "up": "up_proj", "down": "down_proj"},
}
MEGATRON_MODULES = {
    **{"qkv": "linear_qkv", "output": "linear_proj", "gate_up": "linear_fc1", "up": "linear_fc1", "down": "linear_fc2"},
}
_WHOLE = {"qkv": ("query", "key", "value"), "gate_up": ("gate", "up")}
MOST_RANK = 2**12
# Of a number in four bits: a scale of one byte for each 64, and one of four bytes for 256 of these (arXiv 2305.14314,
# section 3, "double quantization").
QUANTISED_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)


@frozen
class FineTuning:
    """Adapters of a transformer."""

    method: FineTuningMethod  # ``lora``; or ``qlora``: with the matrices of all blocks in four bits
    # rank, alpha: ``r`` and ``alpha``; the latter alters no second and no byte
    rank: int
    alpha: float
    targets: tuple[str, ...]  # of :data:`TARGETS`

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= MOST_RANK:
            raise ValueError(f"rank is {self.rank}. Write a whole number from 1 to {MOST_RANK}.")
        if unknown := [name for name in self.targets if name not in TARGETS]:
            raise ValueError(f"{unknown[0]!r} is no matrix that an adapter stands beside. Known: {', '.join(TARGETS)}.")
        for whole, parts in _WHOLE.items():
            if whole in self.targets and (both := [one for one in parts if one in self.targets]):
                raise ValueError(f"{whole} holds {both[0]}, and each has an adapter. Keep one of them.")

    @property
    def is_quantised(self) -> bool:
        """Whether the matrices of blocks are kept in four bits."""
        return self.method == "qlora"

    @property
    def modules(self) -> tuple[str, ...]:
        """The matrices by the names of Hugging Face's modules, of which a whole one is several."""
        names = [part for name in self.targets for part in _WHOLE.get(name, (name,))]
        return tuple(MODULES[name] for name in names)

    @property
    def words(self) -> str:
        """``LoRA of rank 16 beside qkv and output``."""
        name = {"lora": "LoRA", "qlora": "QLoRA"}[self.method]
        *first, last = self.targets
        return f"{name} of rank {self.rank} beside {', '.join(first)}{' and ' * bool(first)}{last}"


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


@frozen
class Trained:
    """What is trained; by default everything."""

    adapters: FineTuning | None = None  # trained in place of all of the network's own parameters
    frozen_layers: int = 0  # the first so many are not trained, nor is the embedding before them
    # what else is not, of :data:`FROZEN_PARTS`: the embedding, all layers, the head, or parts of every layer
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
