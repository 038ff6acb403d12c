"""A transformer by its sizes: what the graph of layers, the operators and the search over layouts are built from.

Sizes are counts of numbers, not bytes; a token is one position of a sample. The parameters are counted here in closed
form, one term a tensor, as the published checkpoints hold them; :mod:`planner.models.operators` counts them
again, operator by operator, and tests hold the two against each other and against published figures.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from planner.encoders import Projector
from planner.frozen import frozen
from planner.mixers import DeltaNet, LinearAttention, Mamba, Scan
from planner.numerics import PLAIN, Activation, Numerics, Rotary
from planner.trained import EMBEDDING, ENCODER, EVERYTHING, HEAD, LAYERS, PROJECTOR, FineTuning, Learning, Trained
from planner.transformer_parts import (
    MOST_HEADS,
    MOST_IMAGES,
    MOST_INNER,
    MOST_LAYERS,
    MOST_TOKENS,
    MOST_WIDTH,
    MOST_WORDS,
    OPEN,
    Experts,
    Image,
    LatentAttention,
    SparseAttention,
    check_within,
    fill,
)

# --- Kinds of layers: what mixes tokens in a layer, and its feed-forward part

MOST_MTP_LAYERS = 2**4  # published networks have 1 to 3; F. Gloeckle et al. (arXiv 2404.19737) tried up to 8 tokens
LayerKind = str  # a key of KINDS
Mixer = Literal["attention", "window", "mamba", "linear", "delta", "none"]
FeedForward = Literal["dense", "moe", "none"]
# Those whose heads have a state, and the field of the network that has their sizes.
SCANS: tuple[Mixer, ...] = ("mamba", "linear", "delta")
MIXERS: tuple[Mixer, ...] = ("attention", "window", *SCANS)


@frozen(kw_only=False)
class Parts:
    """What a layer is made of; it has one part at least."""

    mixer: Mixer
    feed_forward: FeedForward
    is_prediction: bool = False  # a depth of multi-token prediction round the two
    learning: Learning = "trained"

    @property
    def number(self) -> int:
        """How many there are: 1 or 2."""
        return (self.mixer != "none") + (self.feed_forward != "none")

    @property
    def has_attention(self) -> bool:
        """Whether tokens attend to others, be it in a window."""
        return self.mixer in ("attention", "window")


_FED: tuple[FeedForward, ...] = ("dense", "moe")


def _kinds() -> dict[LayerKind, Parts]:
    """Return the kinds in the order in which counts list them; full attention is not said beside what follows it."""
    found: dict[LayerKind, Parts] = {}
    for mixer in MIXERS:
        for feed_forward in _FED:
            name = feed_forward if mixer == "attention" else f"{mixer}+{feed_forward}"
            found[name] = Parts(mixer, feed_forward)
    found |= {mixer: Parts(mixer, "none") for mixer in MIXERS}
    found |= {"feed_forward": Parts("none", "dense"), "experts": Parts("none", "moe")}
    found |= {f"mtp+{name}": Parts("attention", name, is_prediction=True) for name in _FED}
    still: tuple[Learning, ...] = ("frozen", "front")
    return found | {f"{one}+{name}": replace(parts, learning=one) for one in still for name, parts in found.items()}


# ``dense`` and ``moe``: full attention before a feed-forward part; ``attention`` and the like: a layer of one part.
KINDS: Mapping[LayerKind, Parts] = MappingProxyType(_kinds())
_NAMES = {parts: kind for kind, parts in KINDS.items()}
# The layers of one part, as Megatron-LM's ``--hybrid-override-pattern`` writes them.
LETTERS: Mapping[str, LayerKind] = MappingProxyType(
    {"M": "mamba", "*": "attention", "-": "feed_forward", "E": "experts"}
)


@lru_cache(maxsize=1_024)
def _kinds_of(
    num_layers: int,
    mixers: tuple[Mixer, ...],
    pattern: str | None,
    with_experts: range,
    num_mtp_layers: int,
    trained: Trained,
    learns_images: bool,
) -> tuple[tuple[LayerKind, ...], Mapping[LayerKind, int]]:
    """Return the kind of every layer, and how many there are of each kind that there is, in the order of KINDS."""
    if pattern is not None:
        kinds = tuple(LETTERS[letter] for letter in pattern)
    else:
        kinds = tuple(
            _NAMES[Parts(mixers[index % len(mixers)], "moe" if index in with_experts else "dense")]
            for index in range(num_layers)
        )
    if num_mtp_layers:
        has_experts = any(KINDS[kind].feed_forward == "moe" for kind in kinds)
        kinds += ("mtp+moe" if has_experts else "mtp+dense",) * num_mtp_layers
    if trained.has_frozen:
        kinds = tuple(
            _NAMES[replace(KINDS[kind], learning=trained.learning(index, learns_images=learns_images))]
            for index, kind in enumerate(kinds)
        )
    return kinds, MappingProxyType({kind: kinds.count(kind) for kind in KINDS if kind in kinds})


Positions = Literal["learned", "rotary", "alibi", "none"]
NormPosition = Literal["before", "after", "both", "output", "shared", "parallel"]
QueryKeyNormSpan = Literal["head", "all_heads"]
Head = Literal["language", "masked_language", "classes", "patches", "projector", "none"]
LOGITS = "logits"  # the operator of a head that gives them
STEP_FREQUENCIES = 256  # that a step of diffusion is embedded by (W. Peebles, S. Xie, arXiv 2212.09748; their code)

_BESIDE = ("shared", "parallel")  # norms of parts that run side by side
_NORMS = {"before": 2, "after": 2, "both": 4, "output": 2, "shared": 1, "parallel": 2}


@frozen
class Transformer:
    """A transformer: embedding, ``num_layers`` blocks of attention and feed-forward, and a head.

    A field that may be left out takes its default from others; ``dataclasses.replace`` keeps what was filled in then.
    """

    num_layers: int  # blocks, those of multi-token prediction among them
    hidden_size: int  # width of the stream that runs through all blocks
    # num_heads, num_kv_heads: heads of queries, and of keys and values; by default as many. Each key and value serves
    # ``num_heads / num_kv_heads`` queries
    num_heads: int
    vocabulary_size: int  # rows of the embedding, padding included; 0 for images
    sequence_length: int  # tokens of one sample
    num_kv_heads: int = OPEN
    # width of one head's query and key, and of its value but for latent attention; by default ``hidden_size /
    # num_heads``
    head_size: int = OPEN
    feed_forward_size: int = OPEN  # inner width of a dense layer's feed-forward part; by default ``4 hidden_size``
    # whether the feed-forward part multiplies two projections (SwiGLU and the like): three matrices, not two
    is_gated: bool = False
    has_tied_embeddings: bool = True  # whether the logits use the matrix of the embedding, which then counts once
    is_causal: bool = True  # whether a token attends to those before it only, which halves the products of attention
    # positions, num_positions: how positions enter; a learned table has ``num_positions`` rows, by default
    # ``sequence_length``
    positions: Positions = "learned"
    num_positions: int = OPEN
    # norm, has_norm_biases: ``layer_norm`` has a scale and, with biases, a shift; ``rms_norm`` a scale
    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"
    # ``before`` each of the two parts; ``after`` its residual addition (BERT); ``both``: before and after each part;
    # ``output``: behind each part, before its residual addition (OLMo 2); ``shared``: one norm before both parts, which
    # run side by side; ``parallel``: the same with a norm for each part (GPT-NeoX)
    norm_position: NormPosition = "before"
    # has_biases, has_qkv_biases: whether matrices have biases, and whether those of queries, keys and values do
    has_biases: bool = True
    has_norm_scales: bool = True  # whether norms have parameters at all (those of the first OLMo have none)
    has_norm_biases: bool = OPEN
    has_qkv_biases: bool = OPEN
    # has_output_bias, has_head_bias: whether attention's projection of its output has a bias, by default as other
    # matrices; and whether the logits do, by default for ``masked_language`` alone
    has_output_bias: bool = OPEN
    # has_query_key_norms, query_key_norm_span: whether queries and keys pass a norm: each ``head`` one of
    # ``head_size``, common to all heads, or ``all_heads`` at once
    has_query_key_norms: bool = False
    query_key_norm_span: QueryKeyNormSpan = "head"
    has_final_norm: bool = OPEN  # whether a norm follows the last block; by default, unless norms come ``after``
    has_embedding_norm: bool = False  # whether a norm follows the embedding
    num_token_types: int = 0  # rows of the table of segments (BERT: 2)
    # ``language``: logits of every token. ``masked_language``: BERT's transformation, and then logits of every token.
    # ``classes``: a classifier of the image. ``patches``: noise and its variance for every patch (DiT). ``projector``:
    # tokens of a language model, of which this is the encoder. ``none``: the network ends with its last block and norm
    head: Head = OPEN
    has_head_bias: bool = OPEN
    # whether the first token passes one more layer (BERT); with the head ``masked_language`` a classifier of two
    # classes reads it
    has_pooler: bool = False
    image: Image | None = None  # set for a network that reads images
    # experts, latent: mixture of experts, and latent attention, where there are any
    experts: Experts | None = None
    latent: LatentAttention | None = None
    # rotary, numerics: what rotary positions turn by, where there are any, and all else that costs nothing
    rotary: Rotary | None = None
    numerics: Numerics = PLAIN
    # what mixes tokens in the layers, one after another and again from the first; by default full attention in all.
    # Which layers have experts in place of a dense feed-forward part, ``experts`` says
    mixers: tuple[Mixer, ...] = OPEN
    # layers of one part each, one letter a layer, as Megatron-LM's ``--hybrid-override-pattern`` has them: ``M``
    # Mamba-2, ``*`` attention, ``-`` a dense feed-forward part, ``E`` experts. It takes the place of ``mixers``, and of
    # what ``experts`` says of layers
    pattern: str | None = None
    # window, has_chunked_windows: tokens that one attends to in the layers of the mixer ``window``: the last so many,
    # itself among them (half of them on each side where attention is not causal), or those before it in its own chunk
    # of so many (Llama 4)
    window: int | None = None
    has_chunked_windows: bool = False
    # whether each head has a learned number that takes part in the softmax (G. Xiao et al., arXiv 2309.17453, section
    # 3.3; GPT-OSS)
    has_sinks: bool = False
    # whether a product of the layer's input gates what attention gives (Z. Qiu et al., arXiv 2505.06708; Qwen3-Next)
    has_attention_gate: bool = False
    # mamba, linear, delta: sizes of the mixers of these names, where there are any
    mamba: Mamba | None = None
    linear: LinearAttention | None = None
    delta: DeltaNet | None = None
    # depths of multi-token prediction, the last blocks (DeepSeek-AI, arXiv 2412.19437, section 2.2): each has two norms
    # and a product of both streams, a block with full attention, with experts where the network has any, a norm, and
    # logits and a loss of its own with the matrices of embedding and head
    num_mtp_layers: int = 0
    trained: Trained = EVERYTHING  # what of it is: by default everything
    # tokens of each of the documents that a sample is packed with, where tokens attend to their own document alone
    document_length: int | None = None
    # how layers of the mixer ``attention`` choose the tokens that they attend to; by default they attend to all
    sparse: SparseAttention | None = None
    # whether a step of diffusion and a class shift, scale and gate both parts of every block, as adaLN-Zero has it (W.
    # Peebles, S. Xie, arXiv 2212.09748, section 3.2)
    has_modulation: bool = False
    projector: Projector | None = None  # of an encoder: its head
    # encoder, num_images: what makes tokens of images, and images of a sample. Their tokens are part of its
    # ``sequence_length``, in the place of words
    encoder: "Transformer | None" = None
    num_images: int = 0

    def __hash__(self) -> int:
        """Return that of a few numbers: networks are keys of caches, which are asked thousands of times a search."""
        return hash((self.num_layers, self.hidden_size, self.num_heads, self.vocabulary_size, self.sequence_length))

    def __post_init__(self) -> None:
        self._check_sizes()
        if self.encoder is not None:
            object.__setattr__(self, "encoder", replace(self.encoder, trained=self.trained.of_encoder()))
        fill(self, "num_kv_heads", self.num_heads)
        fill(self, "head_size", self._default_head_size())
        fill(self, "feed_forward_size", 4 * self.hidden_size)
        fill(self, "num_positions", self.sequence_length)
        fill(self, "has_norm_biases", self.has_biases and self.has_norm_scales)
        fill(self, "has_qkv_biases", self.has_biases)
        fill(self, "has_output_bias", self.has_biases)
        fill(self, "has_final_norm", self.norm_position != "after")
        fill(self, "head", "language" if self.image is None else "patches" if self.has_modulation else "classes")
        fill(self, "has_head_bias", self.head == "masked_language")
        fill(self, "rotary", Rotary() if self.positions == "rotary" else None)
        fill(self, "mixers", () if self.pattern is not None else ("attention" if self.window is None else "window",))
        self._check_layers()
        self._check_mixers()
        self._check_derived()
        self._check_parts()
        self._check_adapters()
        self._check_frozen()
        self._check_documents()
        self._check_encoder()

    def _check_sizes(self) -> None:
        """Refuse sizes of nothing, and beyond all reason."""
        check_within("num_layers", self.num_layers, MOST_LAYERS)
        check_within("hidden_size", self.hidden_size, MOST_WIDTH)
        check_within("num_heads", self.num_heads, MOST_HEADS)
        check_within("vocabulary_size", self.vocabulary_size, MOST_WORDS, least=0 if self.image else 1)
        check_within("sequence_length", self.sequence_length, MOST_TOKENS)
        check_within("num_token_types", self.num_token_types, MOST_WORDS, least=0)
        check_within("mtp_layers", self.num_mtp_layers, min(self.num_layers - 1, MOST_MTP_LAYERS), least=0)

    def _default_head_size(self) -> int:
        """Return the width of a head that none was given for."""
        if self.head_size is not None:
            return self.head_size
        if self.latent is not None:
            return self.latent.rope_size + self.latent.nope_size
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"the hidden size {self.hidden_size} is no multiple of the {self.num_heads} heads. "
                f"Give the size of a head, too, or other numbers."
            )
        return self.hidden_size // self.num_heads

    def _check_derived(self) -> None:
        """Refuse what was given in place of a default, where it cannot be."""
        check_within("num_kv_heads", self.num_kv_heads, MOST_HEADS)
        check_within("head_size", self.head_size, MOST_WIDTH)
        check_within("feed_forward_size", self.feed_forward_size, MOST_INNER)
        check_within("num_positions", self.num_positions, MOST_TOKENS)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"the {self.num_heads} heads are no multiple of the {self.num_kv_heads} heads of keys and values. "
                f"Write a number of these that divides {self.num_heads}."
            )
        if self.positions == "learned" and self.num_positions < self.sequence_length:
            raise ValueError(
                f"a sample of {self.sequence_length} tokens needs more than {self.num_positions} learned positions. "
                f"Shorten the sequence, or raise the number of positions."
            )

    def _check_layers(self) -> None:
        """Refuse kinds of layers that nobody knows, or that the network has no sizes for."""
        if (self.pattern is None) != bool(self.mixers):
            raise ValueError("mixers and a pattern both say what the layers are. Leave out one of them.")
        for mixer in self.mixers:
            if mixer not in MIXERS:
                raise ValueError(f"nobody knows the mixer {mixer!r}. Write one of {', '.join(MIXERS)}.")
        if self.pattern is None:
            return
        for letter in self.pattern:
            if letter not in LETTERS:
                meant = ", ".join(f"{letter} ({kind})" for letter, kind in LETTERS.items())
                raise ValueError(f"the pattern has a letter {letter!r}. Write one letter a layer: {meant}.")
        if len(self.pattern) != self.num_main_layers:
            raise ValueError(
                f"the pattern has {len(self.pattern)} letters, and the network {self.num_main_layers} layers. "
                f"Write one letter a layer."
            )
        if self.norm_position in _BESIDE:
            raise ValueError(
                f"layers of one part have nothing that runs beside it, as norm_position {self.norm_position!r} means. "
                f"Write 'before', 'after', 'both' or 'output', or leave out the pattern."
            )
        if "E" in self.pattern and self.experts is None:
            raise ValueError("the pattern has layers of experts. Add experts, or write '-' for 'E'.")

    def _check_mixers(self) -> None:
        """Refuse sizes of mixers that no layer has, or that nobody gave and a layer needs; windows that are none."""
        used = {KINDS[kind].mixer for kind in self.kind_counts}
        for mixer in ("window", *SCANS):
            is_given = getattr(self, mixer) is not None
            if is_given and mixer not in used:
                raise ValueError(
                    f"{mixer} is given, and no layer has that mixer. Leave it out, or write mixers: [{mixer}], say."
                )
            if mixer in used and not is_given:
                raise ValueError(f"layers have the mixer {mixer!r}, and nothing says its sizes. Add {mixer}.")
        if self.window is not None:
            check_within("window", self.window, MOST_TOKENS)
            if self.window > self.sequence_length:
                raise ValueError(
                    f"a window of {self.window:,} tokens is longer than the sequence of {self.sequence_length:,}. "
                    f"Write 1 to {self.sequence_length:,}, or leave out the window: all tokens then attend to all."
                )
        elif self.has_chunked_windows:
            raise ValueError("windows are chunks, and there is no window. Add window, or leave out the other.")
        if self.num_mtp_layers and self.head != "language":
            raise ValueError(f"multi-token prediction has logits, and the head is {self.head!r}. Leave one out.")
        if self.sparse is not None and "attention" not in used:
            raise ValueError("sparse_attention is given, and no layer has the mixer 'attention'. Leave it out.")
        if not self.has_attention and (self.has_sinks or self.has_attention_gate):
            what = "sinks" if self.has_sinks else "a gate"
            raise ValueError(f"no layer has attention, and {what} of attention is given. Leave it out.")

    def _check_parts(self) -> None:
        """Refuse parts that do not go together."""
        if self.image is not None and self.sequence_length != self.image.num_tokens:
            raise ValueError(
                f"an image of {self.image.num_tokens} tokens gives the sequence its length, not {self.sequence_length}."
            )
        if self.head == "classes" and self.image is None:
            raise ValueError(
                "the head 'classes' belongs to networks that read images, and to no others. Change head, or add image."
            )
        self._check_modulation()
        if self.image is not None and self.head not in ("classes", "patches", "projector", "none"):
            raise ValueError(f"a network that reads images has no head '{self.head}'. Write 'classes' or 'none'.")
        if self.has_norm_biases and not self.has_norm_scales:
            raise ValueError("norms without scales have no biases. Leave out norm_biases, or the other.")
        if self.latent is not None:
            size = self.latent.rope_size + self.latent.nope_size
            if (self.num_kv_heads, self.head_size) != (self.num_heads, size):
                raise ValueError(
                    f"latent attention has a key for each query, of size rope_size + nope_size = {size}. "
                    f"Leave out the number of key and value heads, and the size of a head."
                )
            if self.has_query_key_norms:
                raise ValueError("latent attention has norms of its own. Leave out those of queries and keys.")
        if self.rotary is not None and self.positions != "rotary":
            raise ValueError(f"positions are '{self.positions}', and rotary describes others. Leave one of them out.")
        if self.experts is not None and not self.num_moe_layers:
            if self.pattern is not None:
                raise ValueError("no letter of the pattern stands for experts. Write an 'E', or leave out the experts.")
            raise ValueError(
                f"none of the {self.num_layers} layers has experts: the first {self.experts.num_dense_first} are "
                f"dense. Let fewer be dense, or leave out the experts."
            )

    def _check_modulation(self) -> None:
        """Refuse modulation of what is no diffusion of images, and its head without it."""
        if self.has_modulation != (self.head == "patches"):
            raise ValueError("the head 'patches' and modulation belong together. Write both, or leave both out.")
        if not self.has_modulation:
            return
        if self.image is None or self.image.has_class_token:
            raise ValueError("modulation belongs to images in patches alone. Add image, with class_token: false.")
        if self.norm_position != "before" or self.pattern is not None or self.experts is not None:
            raise ValueError(
                "modulation is counted of blocks of attention and a dense part with norms before them. "
                "Leave out norm_position, pattern and experts."
            )

    def _check_documents(self) -> None:
        """Refuse documents of images, and longer than a sample."""
        if self.document_length is None:
            return
        check_within("document_length", self.document_length, MOST_TOKENS)
        if self.image is not None:
            raise ValueError("an image is no pack of documents. Leave packed out.")
        if self.document_length > self.sequence_length:
            raise ValueError(
                f"documents of {self.document_length:,} tokens are longer than the sequence of "
                f"{self.sequence_length:,}. Write 1 to {self.sequence_length:,}."
            )

    def _check_encoder(self) -> None:
        """Refuse an encoder whose tokens do not fit the language model, and a projector of what is none."""
        if (self.projector is not None) != (self.head == "projector"):
            raise ValueError("a projector is the head of an encoder. Write both, or leave both out.")
        if self.projector is not None:
            if self.image is None:
                raise ValueError("an encoder reads images, and nothing says their size. Add image.")
            if self.experts is not None or self.has_modulation or self.has_pooler:
                raise ValueError("an encoder is counted without experts, modulation and pooler. Leave them out.")
            side, merge = self.image.patch_size, self.projector.merge
            for pixels in (self.image.image_size, self.image.image_height):
                if pixels // side % merge:
                    raise ValueError(
                        f"the {pixels // side} patches of {pixels} pixels cannot be merged {merge} by {merge}. "
                        f"Write an image size that is a multiple of {side * merge}."
                    )
        encoder = self.encoder
        if encoder is None:
            if self.num_images:
                raise ValueError("images of a sample are given, and no encoder. Leave them out, or add encoder.")
            return
        check_within("images", self.num_images, MOST_IMAGES)
        if self.head != "language" or self.image is not None or encoder.projector is None:
            raise ValueError(
                "an encoder stands in front of a language model that reads text, and ends with a projector. "
                "Leave out the encoder, or the other head."
            )
        if encoder.projector.output_size != self.hidden_size:
            raise ValueError(
                f"the projector gives tokens of width {encoder.projector.output_size}, and the language model has "
                f"{self.hidden_size}. Write {self.hidden_size}."
            )
        if self.num_image_tokens > self.sequence_length:
            raise ValueError(
                f"{self.num_images} images of {encoder.image_tokens:,} tokens are {self.num_image_tokens:,} tokens, "
                f"more than the sequence of {self.sequence_length:,}. Write fewer or smaller images, or a longer "
                f"sequence."
            )

    @property
    def image_tokens(self) -> int:
        """Tokens that an encoder gives of one image; 0 of other networks."""
        if self.projector is None or self.image is None:
            return 0
        return self.image.num_patches // self.projector.merge**2

    @property
    def num_image_tokens(self) -> int:
        """Tokens of a sample that are of images."""
        return 0 if self.encoder is None else self.num_images * self.encoder.image_tokens

    @property
    def learns_images(self) -> bool:
        """Whether something of an encoder, or of its projector, is trained."""
        is_frozen = self.trained.adapters is not None or {ENCODER, PROJECTOR} <= {*self.trained.frozen_parts}
        return self.encoder is not None and not is_frozen

    def _check_adapters(self) -> None:
        """Refuse adapters beside matrices that the network does not have, and of what is not counted."""
        if self.fine_tuning is None:
            return
        if self.sparse is not None:
            why = "adapters beside an indexer of sparse attention are not counted"
            raise ValueError(f"{why}. Leave out sparse_attention, or train all parameters.")
        allowed = self.adapted
        if strange := [name for name in self.fine_tuning.targets if name not in allowed]:
            why = f"no layer of this network has a matrix {strange[0]!r} that an adapter is counted for"
            raise ValueError(f"{why}. Write some of {', '.join(allowed)}.")

    def _check_frozen(self) -> None:
        """Refuse frozen parts that there are not, and a network of which nothing is trained."""
        trained = self.trained
        if not trained.has_frozen:
            return
        if self.sparse is not None:
            why = "frozen parts beside an indexer of sparse attention are not counted"
            raise ValueError(f"{why}. Leave out sparse_attention, or train all parameters.")
        if trained.frozen_layers > self.num_main_layers:
            raise ValueError(
                f"the first {trained.frozen_layers} layers are frozen, and the network has {self.num_main_layers}. "
                f"Write 1 to {self.num_main_layers}."
            )
        kinds = [KINDS[kind] for kind in self.kind_counts]
        has_experts = self.experts is not None
        there = {
            **{EMBEDDING: True, LAYERS: True, HEAD: self.head != "none"},
            **{ENCODER: self.encoder is not None, PROJECTOR: self.encoder is not None},
            "attention": any(one.has_attention for one in kinds),
            "feed_forward": any(one.feed_forward != "none" for one in kinds),
            **{"experts": has_experts, "router": has_experts},
        }
        if lacking := [name for name in trained.frozen_parts if not there[name]]:
            has = ", ".join(name for name, is_there in there.items() if is_there)
            raise ValueError(f"this network has no {lacking[0]} that could be frozen. Write some of {has}.")
        if self.has_tied_embeddings and trained.is_head_frozen and not trained.is_embedding_frozen:
            raise ValueError(
                "the head multiplies by the matrix of the embedding, which is trained. "
                "Freeze the embedding, too; or leave out the head."
            )
        if not self.num_trained_parameters and self.projector is None:
            raise ValueError("every parameter is frozen. Leave out a part, so that something is trained.")

    @property
    def fine_tuning(self) -> FineTuning | None:
        """Adapters that are trained in place of all parameters, where they are."""
        return self.trained.adapters

    def learning_of(self, part: LayerKind) -> Learning:
        """Return what runs of a part: forward alone, gradients of activations, or those of weights, too.

        Parameters
        ----------
        part
            ``embedding``, ``head`` or a kind of layer.
        """
        if part == EMBEDDING:
            return self.trained.embedding_learning
        if part == HEAD:
            if self.projector is not None and not self.num_trained_parameters:
                return "front"
            return "frozen" if self.trained.is_head_frozen or self.has_frozen_logits else "trained"
        return KINDS[part].learning

    @property
    def has_frozen_logits(self) -> bool:
        """Whether the matrix of the logits is not trained, its own or the embedding's."""
        trained = self.trained
        return trained.is_head_frozen or (self.has_tied_embeddings and trained.is_embedding_frozen)

    def is_frozen(self, part: LayerKind, operator: str) -> bool:
        """Return whether the weights of an operator are not trained.

        Parameters
        ----------
        part
            As of :meth:`learning_of`.
        operator
            Its name.
        """
        if part == EMBEDDING:
            return self.trained.is_embedding_frozen
        if part == HEAD:
            return self.trained.is_head_frozen or (operator == LOGITS and self.has_frozen_logits)
        if operator == f"mtp.{LOGITS}":
            return self.has_frozen_logits
        return KINDS[part].learning != "trained" or self.trained.is_frozen(operator)

    @property
    def adapted(self) -> tuple[str, ...]:
        """The matrices that adapters may stand beside; of layers with experts those of attention alone."""
        attention = ("output",) if self.latent is not None else ("qkv", "query", "key", "value", "output")
        dense = ("gate_up", "gate", "up", "down") if self.is_gated else ("up", "down")
        kinds = [KINDS[kind] for kind in self.kind_counts]
        has_attention, has_experts = (
            any(one.mixer != "none" and one.mixer not in SCANS for one in kinds),
            any(one.feed_forward == "moe" for one in kinds),
        )
        return (*(attention if has_attention else ()), *(() if has_experts else dense))

    def adapter_columns(self, operator: str) -> tuple[int, ...]:
        """Return the columns of the matrices of an operator of a block that have an adapter each.

        Parameters
        ----------
        operator
            Its name (:mod:`planner.models.operators`).
        """
        if self.fine_tuning is None:
            return ()
        queries, keys, inner = (
            self.num_heads * self.head_size,
            self.num_kv_heads * self.head_size,
            self.feed_forward_size,
        )
        columns = {
            "attention.qkv": {"qkv": queries + 2 * keys, "query": queries, "key": keys, "value": keys},
            "attention.output": {"output": self.hidden_size},
            "feed_forward.up": {"gate_up": 2 * inner, "gate": inner, "up": inner},
            "feed_forward.down": {"down": self.hidden_size},
        }.get(operator, {})
        return tuple(columns[name] for name in self.fine_tuning.targets if name in columns)

    # -- what the blocks are -----------------------------------------------------------------------------------------

    def norms_of(self, kind: LayerKind) -> int:
        """Return the norms of one block of a kind, those inside of its parts left out."""
        number = _NORMS[self.norm_position]
        return number * KINDS[kind].number // 2 if self.norm_position not in _BESIDE else number

    @property
    def _moe_layers(self) -> range:
        """The blocks with experts in place of a dense feed-forward part, by their index, where there is no pattern."""
        experts = self.experts
        return range(0) if experts is None else range(experts.num_dense_first, self.num_main_layers, experts.every)

    @property
    def _kinds(self) -> tuple[tuple[LayerKind, ...], Mapping[LayerKind, int]]:
        """See the next two."""
        return _kinds_of(
            self.num_main_layers,
            self.mixers,
            self.pattern,
            self._moe_layers,
            self.num_mtp_layers,
            self.trained,
            self.learns_images,
        )

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kind of every block, in order: a key of :data:`KINDS`."""
        return self._kinds[0]

    @property
    def kind_counts(self) -> Mapping[LayerKind, int]:
        """How many blocks there are of each kind that there is, in the order of :data:`KINDS`."""
        return self._kinds[1]

    @property
    def num_moe_layers(self) -> int:
        """Blocks with experts."""
        return sum(count for kind, count in self.kind_counts.items() if KINDS[kind].feed_forward == "moe")

    @property
    def num_main_layers(self) -> int:
        """Blocks without those of multi-token prediction."""
        return self.num_layers - self.num_mtp_layers

    @property
    def has_dense(self) -> bool:
        """Whether some blocks have a dense feed-forward part."""
        return any(KINDS[kind].feed_forward == "dense" for kind in self.kind_counts)

    @property
    def has_attention(self) -> bool:
        """Whether some blocks have attention, be it in windows."""
        return any(KINDS[kind].has_attention for kind in self.kind_counts)

    def scan_of(self, mixer: Mixer) -> Scan | None:
        """Return the sizes of a mixer whose heads have a state; None of others."""
        sizes: Scan | None = getattr(self, mixer) if mixer in SCANS else None
        return sizes

    @property
    def scored_pairs(self) -> float:
        """The pairs of a token and one that an indexer scores, of one sample and head: all that attention could see."""
        every = self if self.sparse is None else replace(self, sparse=None)
        return every.attended_pairs("attention")

    def attended_pairs(self, mixer: Mixer) -> float:
        """Return the pairs of a token and one that it attends to, of one sample and head.

        Of causal attention half a diagonal is left out: ``s s / 2``, of a window of w tokens ``w (s - w / 2)``, and of
        w chosen ones as many; of documents in a pack these are added up, the last one with the tokens that are left.
        """
        tokens = self.sequence_length
        if self.document_length is None:
            return self._pairs(mixer, tokens)
        many, rest = divmod(tokens, self.document_length)
        return many * self._pairs(mixer, self.document_length) + self._pairs(mixer, rest)

    def _pairs(self, mixer: Mixer, tokens: int) -> float:
        """Return the same of so many tokens that attend to each other alone."""
        if mixer == "attention" and self.sparse is not None and self.sparse.top_k < tokens:
            return self.sparse.top_k * (tokens - self.sparse.top_k / 2 * self.is_causal)
        window = None if self.window is None else min(self.window, tokens)
        if mixer == "attention" or not window:
            return tokens * tokens / (2 if self.is_causal else 1)
        if self.has_chunked_windows:
            many, rest = divmod(tokens, window)
            return (many * window * window + rest * rest) / (2 if self.is_causal else 1)
        half = window / (1 if self.is_causal else 2)  # before a token, and as many behind it
        return half * (tokens - half / 2) * (1 if self.is_causal else 2)

    @property
    def activation(self) -> Activation:
        """The function of the feed-forward part."""
        return self.numerics.activation or ("silu" if self.is_gated else "gelu")

    @property
    def value_head_size(self) -> int:
        """Width of one head's value."""
        return self.head_size if self.latent is None else self.latent.value_size

    @property
    def query_key_norm_scales(self) -> int:
        """Width of the norms of queries and keys together; 0 where there are none."""
        if not self.has_query_key_norms:
            return 0
        heads = self.num_heads + self.num_kv_heads if self.query_key_norm_span == "all_heads" else 2
        return heads * self.head_size

    # -- parameters --------------------------------------------------------------------------------------------------

    @property
    def num_parameters(self) -> int:
        """Parameters in all; a matrix that the embedding and the logits share counts once."""
        blocks = sum(count * self.block_parameters(kind) for kind, count in self.kind_counts.items())
        return self.embedding_parameters + blocks + self.head_parameters

    @property
    def num_active_parameters(self) -> int:
        """Parameters that one token meets: all but those of the routed experts that it does not go to."""
        if self.experts is None:
            return self.num_parameters
        idle = (self.experts.num_experts - self.experts.top_k) * self.expert_parameters
        return self.num_parameters - self.num_moe_layers * idle

    @property
    def num_trained_parameters(self) -> int:
        """Those of the network's own that are trained: none with adapters, which are others."""
        if self.trained.adapters is not None:
            return 0
        blocks = sum(
            count * (self.block_parameters(kind) - self._frozen_parameters(KINDS[kind]))
            for kind, count in self.kind_counts.items()
            if KINDS[kind].learning == "trained"
        )
        images = 0 if self.encoder is None else self.encoder.num_parameters
        embedding = (self.embedding_parameters - images) * (not self.trained.is_embedding_frozen)
        embedding += 0 if self.encoder is None else self.encoder.num_trained_parameters
        return embedding + blocks + self.head_parameters * (not self.trained.is_head_frozen)

    def _frozen_parameters(self, parts: Parts) -> int:
        """Return those that are not trained of a block that is, for parts of it are frozen."""
        frozen, experts = self.trained.frozen_parts, self.experts
        found = self.attention_parameters * (parts.has_attention and "attention" in frozen)
        if parts.feed_forward == "dense":
            return found + self._feed_forward_parameters(self.feed_forward_size) * ("feed_forward" in frozen)
        if parts.feed_forward != "moe" or experts is None:
            return found
        if "feed_forward" in frozen:
            return found + self._expert_layer_parameters(experts)
        routed = experts.num_experts * self.expert_parameters * ("experts" in frozen)
        return found + routed + self._router_parameters(experts) * ("router" in frozen)

    def block_parameters(self, kind: LayerKind) -> int:
        """Return the parameters of one block.

        Raises
        ------
        ValueError
            For a block with experts where the network has none.
        """
        parts = KINDS[kind]
        norms = self.norms_of(kind) * self._norm_parameters(self.hidden_size)
        scan = self.scan_of(parts.mixer)
        outside = norms + (self.attention_parameters if parts.has_attention else 0)
        if self.sparse is not None and parts.mixer == "attention":
            outside += self.sparse.num_parameters(self.hidden_size, self.query_width)
        outside += 0 if scan is None else scan.num_parameters(self.hidden_size)
        outside += self._matrix(self.hidden_size, 6 * self.hidden_size, True) * self.has_modulation
        if parts.is_prediction:
            outside += 3 * self._norm_parameters(self.hidden_size) + 2 * self.hidden_size**2
        if parts.feed_forward == "none":
            return outside
        if parts.feed_forward == "dense":
            return outside + self._feed_forward_parameters(self.feed_forward_size)
        experts = self.experts
        if experts is None:
            raise ValueError(f"the network has no experts, so none of its layers is of the kind {kind!r}.")
        return outside + self._expert_layer_parameters(experts)

    def _router_parameters(self, experts: Experts) -> int:
        """Return the parameters of one block's router."""
        return self._matrix(self.hidden_size, experts.num_experts, experts.has_router_bias)

    def _expert_layer_parameters(self, experts: Experts) -> int:
        """Return the parameters of one block's experts, with their router, and with what all tokens pass."""
        shared = experts.num_shared * experts.shared_size
        return (
            self._router_parameters(experts)
            + experts.num_experts * self.expert_parameters
            + (self._feed_forward_parameters(shared) if shared else 0)
            + (self.hidden_size if experts.has_shared_gate else 0)
            + (2 * self.hidden_size * experts.latent_size if experts.latent_size else 0)
        )

    @property
    def attention_parameters(self) -> int:
        """Parameters of one block's attention, its norms before and after left out."""
        hidden, heads = self.hidden_size, self.num_heads
        output = self._matrix(heads * self.value_head_size, hidden, self.has_output_bias) + heads * self.has_sinks
        if self.has_attention_gate:
            output += self._matrix(hidden, heads * self.value_head_size, self.has_qkv_biases)
        if self.latent is None:
            columns = (heads + 2 * self.num_kv_heads) * self.head_size
            norms = self._norm_parameters(self.query_key_norm_scales)
            return self._matrix(hidden, columns, self.has_qkv_biases) + norms + output
        latent, has_biases = self.latent, self.has_qkv_biases
        rank, query = latent.query_rank, heads * self.head_size
        down = 0 if rank is None else self._matrix(hidden, rank, has_biases) + self._norm_parameters(rank)
        up = self._matrix(hidden if rank is None else rank, query, has_biases)
        key_value = self._matrix(hidden, latent.key_value_rank + latent.rope_size, has_biases)
        key_value += self._norm_parameters(latent.key_value_rank)
        key_value += self._matrix(latent.key_value_rank, heads * (latent.nope_size + latent.value_size), has_biases)
        return down + up + key_value + output

    @property
    def query_width(self) -> int:
        """Width of what queries are projected from."""
        return (self.latent and self.latent.query_rank) or self.hidden_size

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert of one block; 0 without experts."""
        if self.experts is None:
            return 0
        return self._feed_forward_parameters(self.experts.expert_size, self.routed_width)

    @property
    def routed_width(self) -> int:
        """Width of what goes to routed experts and comes back."""
        return (self.experts and self.experts.latent_size) or self.hidden_size

    def _feed_forward_parameters(self, inner: int, width: int | None = None) -> int:
        """Return the parameters of a feed-forward part of an inner width, by default on the stream."""
        columns, outer = 2 * inner if self.is_gated else inner, self.hidden_size if width is None else width
        return self._matrix(outer, columns, self.has_biases) + self._matrix(inner, outer, self.has_biases)

    @property
    def embedding_parameters(self) -> int:
        """Parameters before the first block: an encoder, tokens or patches, positions, segments and their norm."""
        hidden = self.hidden_size
        tokens = self.vocabulary_size * hidden
        if self.image is not None:
            has_bias = self.image.has_patch_bias
            tokens += self._matrix(self.image.patch_elements, hidden, has_bias) + self.image.has_class_token * hidden
            if self.has_modulation:  # a step's embedding, and that of a class or of none
                tokens += self._matrix(STEP_FREQUENCIES, hidden, True) + self._matrix(hidden, hidden, True)
                tokens += (self.image.num_classes + 1) * hidden
        positions = self.num_positions * hidden if self.positions == "learned" else 0
        norm = self._norm_parameters(hidden) if self.has_embedding_norm else 0
        encoder = 0 if self.encoder is None else self.encoder.num_parameters
        return encoder + tokens + positions + self.num_token_types * hidden + norm

    @property
    def head_parameters(self) -> int:
        """Parameters behind the last block: final norm, transformation, logits (0 where tied), pooler, classifiers."""
        hidden, words = self.hidden_size, self.vocabulary_size
        found = self._norm_parameters(hidden) if self.has_final_norm else 0
        found += self._matrix(hidden, hidden, True) if self.has_pooler else 0
        logits = 0 if self.has_tied_embeddings else words * hidden
        if self.head == "language":
            return found + logits + words * self.has_head_bias
        if self.head == "masked_language":
            next_sentence = self._matrix(hidden, 2, True) if self.has_pooler else 0
            transform = self._matrix(hidden, hidden, True) + self._norm_parameters(hidden)
            return found + transform + logits + words * self.has_head_bias + next_sentence
        if self.projector is not None:
            return found + self.projector.num_parameters(hidden)
        if self.head == "none" or self.image is None:
            return found
        if self.head == "patches":
            return (
                found
                + self._matrix(hidden, 2 * hidden, True)
                + self._matrix(hidden, 2 * self.image.patch_elements, True)
            )
        return found + self._matrix(hidden, self.image.num_classes, True)

    def _norm_parameters(self, width: int) -> int:
        """Return the parameters of one norm."""
        return width * (self.has_norm_scales + (self.norm == "layer_norm" and self.has_norm_biases))

    @staticmethod
    def _matrix(rows: int, columns: int, has_bias: bool) -> int:
        """Return the parameters of one matrix, with its bias."""
        return rows * columns + (columns if has_bias else 0)
