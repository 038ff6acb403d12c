"""What a transformer computes, and on what shapes; and what a layer of any network does.

A multiply-add counts 2 FLOP. Backward is twice forward: the gradients of the input and of the weights, or of both
factors where both are activations (D. Narayanan et al., SC21, arXiv 2104.04473, section 5.1).

**A transformer** is a list of operators in order of execution: the embedding, one block of each kind, and the head.
Operators read one another by name; what enters a part is called ``input``, what leaves a block is its last operator.
Causal attention counts half of each of its two GEMMs; that leaves out half a diagonal. All but the GEMMs (norms,
softmax, activations, residual additions, rotary positions) has no multiply-adds and moves memory: its elements are
given. Where an indexer chooses what is attended to, it scores all pairs of tokens forward, and backward those that it
chose (DeepSeek-AI, DeepSeek-V3.2, section 2.1). Scores are in place: a fused kernel keeps none, and one that does keep
them adds what ``attention.scores`` puts out. Routed experts are taken to be evenly loaded, and to drop no token. Leaves
out dropout, the optimiser, and what a kernel computes twice (flash attention repeats the scores in backward). Sources:
A. Vaswani et al., arXiv 1706.03762; gated parts: N. Shazeer, arXiv 2002.05202; latent attention and shared experts:
DeepSeek-AI, arXiv 2405.04434, section 2.

**An encoder of images** in front of a language model is a transformer of its own, whose sample is an image, and whose
head is the projector. It stands before the embedding, on the first stage (Megatron-LM, ``examples/multimodal``).

**A layer of any network** computes what its ``operators`` say, as it was seen; else what its kind and shapes say
(:func:`operators_of`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import prod

from planner.dnn import PRODUCT_KINDS, Layer, Operator, Product, Tensor
from planner.encoders import Projector
from planner.frozen import frozen
from planner.models import scans
from planner.trained import EMBEDDING, HEAD
from planner.transformer import KINDS, LOGITS, SCANS, STEP_FREQUENCIES, LayerKind, Mixer, Transformer

FLOP_PER_MULTIPLY_ADD = 2
BACKWARD_PER_FORWARD = 2
INPUT = "input"  # what enters a list of operators
INDEXER = "attention.indexer."  # what those of an indexer begin with: they are whole on every device
ROUTED = "feed_forward.experts."  # what the operators of routed experts begin with
MOST_KEPT = 256  # results of a function: a question has one network of a few kinds of blocks, a sweep thousands
_WHOLE_PATCHES = "patch_embedding"  # of an encoder, whole on every tensor rank
# A projector's products. The first is split by columns, and the second, where there is one, by rows.
PROJECTED = ("projector.up", "projector.down")


@frozen
class TransformerOperator:
    """One operator."""

    name: str  # within its part of the network, e.g. ``attention.qkv``
    # input, embedding, matmul, router, attention (a product of two activations), index (the same of an indexer),
    # softmax, scan (such products chunk by chunk), conv1d, logits, norm, rotary, activation, dispatch, combine,
    # residual, pooling or loss
    kind: str
    inputs: tuple[str, ...]  # names of the operators that it reads, or :data:`INPUT`
    # of one sample: (features, tokens, 1), as an image of one column, so that all that is said of images holds
    output_shape: tuple[int, ...]
    input_elements: int  # numbers that it reads for one sample; weights are left out
    # of one sample, forward. Half of the product's where attention is causal
    num_multiply_adds: int = 0
    # what is trained. Logits that share the embedding's matrix have none, though their product reads it
    tensors: tuple[Tensor, ...] = ()
    product: Product | None = None  # the shape of its matrix product, where it is one
    # nothing more is kept for the backward pass: the output overwrites the input, or is computed again there
    is_in_place: bool = False
    is_frozen: bool = False  # whether what it has is not trained (:mod:`planner.trained`): its weights get no gradient
    # whether anything runs backward: nothing where neither it nor what is before it is trained
    has_backward: bool = True
    adapters: tuple[tuple[int, int], ...] = ()  # rank and columns of each that is trained in their place
    num_multiply_adds_back: int | None = None  # of one sample, backward, where they are not twice those forward

    @property
    def output_elements(self) -> int:
        """Numbers that it puts out for one sample."""
        return prod(self.output_shape)

    @property
    def weight_elements(self) -> int:
        """Parameters, biases included."""
        return sum(tensor.num_elements for tensor in self.tensors)

    @property
    def forward_flop(self) -> int:
        """FLOP of one sample, forward."""
        return FLOP_PER_MULTIPLY_ADD * self.num_multiply_adds + self.adapter_flop

    @property
    def backward_flop(self) -> int:
        """FLOP of one sample, backward: of frozen weights that of their input's gradient alone."""
        if not self.has_backward:
            return 0
        if self.num_multiply_adds_back is not None:
            return FLOP_PER_MULTIPLY_ADD * self.num_multiply_adds_back
        whole = BACKWARD_PER_FORWARD * self.forward_flop
        has_weights = self.kind in ("matmul", "router", "logits")
        return whole - FLOP_PER_MULTIPLY_ADD * self.num_multiply_adds * (self.is_frozen and has_weights)

    @property
    def adapter_flop(self) -> int:
        """FLOP of one sample through its adapters, forward."""
        if not self.adapters or self.product is None:
            return 0
        each = sum(rank * (self.product.inner + columns) for rank, columns in self.adapters)
        return FLOP_PER_MULTIPLY_ADD * int(self.product.rows) * each

    @property
    def adapter_elements(self) -> int:
        """Parameters of its adapters."""
        inner = 0 if self.product is None else self.product.inner
        return sum(rank * (inner + columns) for rank, columns in self.adapters)

    @property
    def trained_elements(self) -> int:
        """Parameters that are trained: its own, or its adapters'."""
        return self.adapter_elements + (0 if self.is_frozen else self.weight_elements)


@frozen
class Part:
    """Operators that stand ``count`` times in the network; ``kind`` is that of a block, else None.

    ``num_images``: of an encoder, how often a sample passes them, each time an image; else 0.
    """

    name: str
    operators: tuple[TransformerOperator, ...]
    kind: LayerKind | None = None
    count: int = 1
    num_images: int = 0


@frozen
class Flop:
    """FLOP of one sample."""

    forward_flop: int
    backward_flop: int

    @property
    def total_flop(self) -> int:
        """Both ways."""
        return self.forward_flop + self.backward_flop


# -- the operators of a transformer ------------------------------------------------------------------------------------


def parts(transformer: Transformer) -> tuple[Part, ...]:
    """Return those of an encoder, the embedding, one block of each kind with its count, and the head.

    Parameters
    ----------
    transformer
        Its blocks stand in the order of ``layer_kinds``; a head without operators is left out.
    """
    kinds = transformer.layer_kinds
    blocks = [
        Part(name=f"block ({kind})", kind=kind, count=kinds.count(kind), operators=block_operators(transformer, kind))
        for kind in dict.fromkeys(kinds)
    ]
    embedding = Part(name="embedding", operators=embedding_operators(transformer))
    head = Part(name="head", operators=head_operators(transformer))
    ahead = () if transformer.encoder is None else parts(transformer.encoder)
    encoder = [replace(one, name=f"encoder {one.name}", num_images=transformer.num_images) for one in ahead]
    return (*encoder, embedding, *blocks, head) if head.operators else (*encoder, embedding, *blocks)


def flop_per_sample(
    transformer: Transformer,
    *,
    has_full_attention: bool = False,
    has_logits: bool = True,
    recomputes_blocks: bool = False,
) -> Flop:
    """Return the FLOP of one sample's forward and backward pass.

    Parameters
    ----------
    transformer
        The network.
    has_full_attention
        Count all scores although attention is causal: kernels without a mask compute them, and most papers count them.
    has_logits
        Whether the product with the vocabulary counts.
    recomputes_blocks
        Whether backward computes every block's forward pass again (full recomputation).

    Notes
    -----
    For a GPT with full attention the sum is ``72 s L h^2 (1 + s / 6h + V / 12Lh)``, with recomputation
    ``96 s L h^2 (1 + s / 6h + V / 16Lh)`` (D. Narayanan et al., SC21, arXiv 2104.04473, section 5.1): the six products
    of a block and the logits, nothing else.
    """
    again = forward = backward = 0
    for part in parts(replace(transformer, is_causal=transformer.is_causal and not has_full_attention)):
        counted = [one for one in part.operators if has_logits or not one.name.endswith(LOGITS)]
        times = part.count * max(part.num_images, 1)
        flop = times * sum(one.forward_flop for one in counted)
        backward += times * sum(one.backward_flop for one in counted)
        forward += flop
        is_again = recomputes_blocks and part.kind is not None and KINDS[part.kind].learning != "front"
        again += flop * is_again
    return Flop(forward_flop=forward, backward_flop=backward + again)


@lru_cache(maxsize=MOST_KEPT)
def embedding_operators(transformer: Transformer) -> tuple[TransformerOperator, ...]:
    """Return what stands before the first block; the first operator is the sample itself.

    Parameters
    ----------
    transformer
        Of tokens, or of an image that is cut into patches, with a token of the class before them where it has one.
    """
    part, image = Operators(transformer, EMBEDDING), transformer.image
    if image is None:
        last = part.move(INPUT, "input", (), 1)
        last = part.table("tokens", last, transformer.vocabulary_size)
    else:
        shape = (image.num_channels * image.frames_per_patch, image.image_height, image.image_size)
        last = part.append(
            TransformerOperator(name=INPUT, kind="input", inputs=(), output_shape=shape, input_elements=0)
        )
        condition = part.condition(last) if transformer.has_modulation else None
        cut, has_bias = (image.patch_elements, part.width), image.has_patch_bias
        name = "patches" if transformer.projector is None else _WHOLE_PATCHES
        last = part.matmul(name, last, cut, has_bias=has_bias, rows=image.num_patches)
        if image.has_class_token:
            token = Tensor(name="weight", num_elements=part.width)
            last = part.move("class_token", "embedding", (last,), tensors=(token,), is_in_place=True)
    if transformer.positions == "learned":
        last = part.table("positions", last, transformer.num_positions, is_in_place=True)
    if transformer.num_token_types:
        last = part.table("token_types", last, transformer.num_token_types, is_in_place=True)
    if transformer.has_embedding_norm:
        last = part.norm("norm", last)
    if transformer.encoder is not None:  # images' tokens take the place of words
        read = transformer.num_image_tokens * part.width
        part.move("images", "copy", (last,), input_elements=read, is_in_place=True)
    if image is not None and condition is not None:  # it goes with the stream
        part.move("condition", "embedding", (last, condition), input_elements=0, is_in_place=True)
    return part.operators


@lru_cache(maxsize=MOST_KEPT)
def block_operators(transformer: Transformer, kind: LayerKind) -> tuple[TransformerOperator, ...]:
    """Return one block: attention, then a feed-forward part, dense or of experts, with their norms and additions.

    A block of one part has that alone.

    Parameters
    ----------
    transformer, kind
        The network, and the kind of block.

    Raises
    ------
    ValueError
        For experts where there are none.
    """
    parts = KINDS[kind]
    if parts.feed_forward == "moe" and transformer.experts is None:
        raise ValueError(f"the network has no experts, so none of its layers is of the kind {kind!r}.")
    part, position, entry = Operators(transformer, kind), transformer.norm_position, INPUT
    mixer, mixed = part.mixer(parts.mixer), "attention" if parts.has_attention else parts.mixer

    def feed_forward(source: str) -> str:
        return part.feed_forward(source) if parts.feed_forward == "dense" else part.experts(source)

    if parts.is_prediction:
        entry = part.prediction_start()
    shifts = part.modulation(6) if transformer.has_modulation else None
    if position in ("shared", "parallel"):
        read = part.norm("norm" if position == "shared" else f"{mixed}.norm", entry)
        attended = mixer(read)
        fed = feed_forward(read if position == "shared" else part.norm("feed_forward.norm", entry))
        entry = part.move("add", "residual", (attended, fed, entry), is_in_place=True)
        if parts.is_prediction:
            part.prediction_end(entry)
        return part.operators
    halves: list[tuple[str, Callable[[str], str]]]
    halves = [(mixed, mixer)] if parts.mixer != "none" else []
    halves += [("feed_forward", feed_forward)] if parts.feed_forward != "none" else []
    for name, inner in halves:
        read = part.norm(f"{name}.norm", entry) if position in ("before", "both") else entry
        last = inner(read if shifts is None else part.move(f"{name}.modulated", "multiply", (read, shifts)))
        if shifts is not None:
            last = part.move(f"{name}.scaled", "multiply", (last, shifts))
        if position in ("both", "output"):
            last = part.norm(f"{name}.post_norm", last)
        entry = part.move(f"{name}.add", "residual", (last, entry), is_in_place=True)
        if position == "after":
            entry = part.norm(f"{name}.norm", entry)
    if parts.is_prediction:
        part.prediction_end(entry)
    return part.operators


@lru_cache(maxsize=MOST_KEPT)
def head_operators(transformer: Transformer) -> tuple[TransformerOperator, ...]:
    """Return what stands behind the last block; nothing where that is the end.

    Parameters
    ----------
    transformer
        With the head of a language, of a masked one, of classes of images, or without.
    """
    part, image = Operators(transformer, HEAD), transformer.image
    last = part.norm("norm", INPUT) if transformer.has_final_norm else INPUT
    ends: list[str] = []
    square, is_masked = (part.width, part.width), transformer.head == "masked_language"
    if is_masked or transformer.head == "language":
        shown = last
        if is_masked:
            shown = part.matmul("transform", last, square, has_bias=True)
            shown = part.norm("transform_norm", part.move("transform_activation", "activation", (shown,)))
        ends.append(
            part.matmul(
                LOGITS,
                shown,
                (part.width, transformer.vocabulary_size),
                has_bias=transformer.has_head_bias,
                has_weight=not transformer.has_tied_embeddings,
            )
        )
    if image is not None and transformer.has_modulation:
        last = part.move("modulated", "multiply", (last, part.modulation(2)))
        ends.append(part.matmul("patches", last, (part.width, 2 * image.patch_elements), has_bias=True))
    elif transformer.projector is not None:
        part.project(last, transformer.projector)
    elif image is not None:
        if not image.has_class_token:
            last = part.move("pooling", "pooling", (last,), num_tokens=1)
        if transformer.head == "classes":
            ends.append(part.matmul("classes", last, (part.width, image.num_classes), has_bias=True, rows=1))
    if transformer.has_pooler:
        pooled = part.matmul("pooler", last, square, has_bias=True, rows=1)
        pooled = part.move("pooler_activation", "activation", (pooled,), num_tokens=1)
        if is_masked:
            ends.append(part.matmul("next_sentence", pooled, (part.width, 2), has_bias=True, rows=1))
    if ends:
        read = sum(map(part.elements_of, ends))
        part.append(
            TransformerOperator(name="loss", kind="loss", inputs=tuple(ends), output_shape=(1,), input_elements=read)
        )
    return part.operators


class Operators:
    """Operators in order of execution; appending one gives back its name, by which later ones read it."""

    def __init__(self, transformer: Transformer, part: LayerKind) -> None:
        self._part = part
        self.width = transformer.hidden_size
        self._transformer, self.num_tokens = transformer, transformer.sequence_length
        self._operators: dict[str, TransformerOperator] = {}

    @property
    def operators(self) -> tuple[TransformerOperator, ...]:
        """All there are, in order, with what is trained of them."""
        network, found = self._transformer, tuple(self._operators.values())
        if network.trained.is_all:
            return found
        tuning = network.trained.adapters
        rank = 0 if tuning is None else tuning.rank
        return tuple(
            replace(
                one,
                is_frozen=network.is_frozen(self._part, one.name),
                has_backward=network.learning_of(self._part) != "front",
                adapters=tuple((rank, size) for size in network.adapter_columns(one.name)),
            )
            for one in found
        )

    def elements_of(self, name: str) -> int:
        """Return what an operator, or the stream that enters, puts out for one sample."""
        operator = self._operators.get(name)
        return self.width * self.num_tokens if operator is None else operator.output_elements

    def append(self, operator: TransformerOperator) -> str:
        """Append an operator."""
        self._operators[operator.name] = operator
        return operator.name

    def move(
        self,
        name: str,
        kind: str,
        inputs: Sequence[str],
        features: int | None = None,
        *,
        num_tokens: int | None = None,
        input_elements: int | None = None,
        tensors: tuple[Tensor, ...] = (),
        is_in_place: bool = False,
    ) -> str:
        """Append an operator without multiply-adds; by default of the stream's shape, reading its inputs whole."""
        read = sum(map(self.elements_of, inputs)) if input_elements is None else input_elements
        return self.append(
            TransformerOperator(
                name=name,
                kind=kind,
                inputs=tuple(inputs),
                output_shape=(features or self.width, num_tokens or self.num_tokens, 1),
                input_elements=read,
                tensors=tensors,
                is_in_place=is_in_place,
            )
        )

    def norm(self, name: str, source: str, features: int | None = None, *, num_scales: int | None = None) -> str:
        """Append a norm of the first ``features`` numbers of each token (by default all), with so many scales."""
        network = self._transformer
        whole = self.elements_of(source) // self.num_tokens if features is None else features
        has_shift = network.norm == "layer_norm" and network.has_norm_biases
        tensors = tuple(
            Tensor(name=role, num_elements=num_scales or whole, role=role)
            for role, is_there in (("scale", network.has_norm_scales), ("shift", has_shift))
            if is_there
        )
        read = whole * self.num_tokens
        return self.move(name, "norm", (source,), whole, input_elements=read, tensors=tensors)

    def table(self, name: str, source: str, num_rows: int, *, is_in_place: bool = False) -> str:
        """Append a look-up in a table, added to the stream where it is in place."""
        weight = Tensor(name="weight", num_elements=num_rows * self.width)
        return self.move(name, "embedding", (source,), tensors=(weight,), is_in_place=is_in_place)

    def matmul(
        self,
        name: str,
        source: str,
        shape: tuple[int, int],
        *,
        has_bias: bool,
        rows: int | None = None,
        kind: str = "matmul",
        has_weight: bool = True,
        count: int = 1,
    ) -> str:
        """Append the product of ``rows`` tokens (by default all) with an ``inner x columns`` matrix of weights.

        ``count``: of such matrices, among which the tokens are shared out evenly.
        """
        inner, columns = shape
        used = self.num_tokens if rows is None else rows
        weight = (Tensor(name="weight", num_elements=count * inner * columns),) if has_weight else ()
        bias = (Tensor(name="bias", num_elements=count * columns, role="bias"),) if has_bias else ()
        return self.append(
            TransformerOperator(
                name=name,
                kind=kind,
                inputs=(source,),
                output_shape=(columns, used, 1),
                input_elements=used * inner,
                num_multiply_adds=used * inner * columns,
                tensors=weight + bias,
                product=Product(rows=used / count if count > 1 else used, inner=inner, columns=columns, count=count),
            )
        )

    def convolve(
        self, name: str, source: str, channels: int, kernel: int, *, has_bias: bool, is_kept: bool = False
    ) -> str:
        """Append a convolution of each channel over the last tokens, with its activation function."""
        tensors = [Tensor(name="kernel", num_elements=channels * kernel)]
        tensors += [Tensor(name="bias", num_elements=channels, role="bias")] * has_bias
        return self.append(
            TransformerOperator(
                name=name,
                kind=scans.CONVOLUTION,
                inputs=(source,),
                output_shape=(channels, self.num_tokens, 1),
                input_elements=channels * self.num_tokens,
                num_multiply_adds=channels * kernel * self.num_tokens,
                tensors=tuple(tensors),
                is_in_place=not is_kept,
            )
        )

    def chunks(
        self,
        name: str,
        inputs: Sequence[str],
        features: int,
        read_features: int,
        product: Product,
        num_multiply_adds: int,
        *,
        tensors: tuple[Tensor, ...] = (),
        is_kept: bool = False,
    ) -> str:
        """Append products of two activations, chunk by chunk, which read and write so many numbers of a token."""
        return self.append(
            TransformerOperator(
                name=name,
                kind=scans.SCAN,
                inputs=tuple(inputs),
                output_shape=(features, self.num_tokens, 1),
                input_elements=read_features * self.num_tokens,
                num_multiply_adds=num_multiply_adds,
                tensors=tensors,
                product=product,
                is_in_place=not is_kept,
            )
        )

    def condition(self, source: str) -> str:
        """Append the embeddings of a step of diffusion and of a class, one of each a sample."""
        width, image = self.width, self._transformer.image
        assert image is not None, "asked of a network that reads images"
        step = self.matmul("step.in", source, (STEP_FREQUENCIES, width), has_bias=True, rows=1)
        step = self.move("step.activation", "activation", (step,), num_tokens=1)
        step = self.matmul("step.out", step, (width, width), has_bias=True, rows=1)
        rows = Tensor(name="weight", num_elements=(image.num_classes + 1) * width)
        return self.move(
            "labels", "embedding", (step,), num_tokens=1, input_elements=0, tensors=(rows,), is_in_place=True
        )

    def modulation(self, number: int) -> str:
        """Append what gives so many vectors of the stream's width from a sample's condition."""
        active = self.move("modulation.activation", "activation", (INPUT,), num_tokens=1, input_elements=self.width)
        return self.matmul("modulation", active, (self.width, number * self.width), has_bias=True, rows=1)

    def project(self, source: str, projector: Projector) -> None:
        """Append a projector: a norm, squares of tokens that become one, and a product or two."""
        tokens, width = self._transformer.image_tokens, self.width
        roles = ("scale", "shift")[: projector.num_norm_vectors]
        size = projector.norm_size(width)
        norm = tuple(Tensor(name=role, num_elements=size, role=role) for role in roles)
        many = tokens * projector.merge**2
        last, is_first = source, projector.is_norm_first
        if norm and is_first:
            last = self.move("projector.norm", "norm", (last,), num_tokens=many, tensors=norm)
        if projector.merge > 1:
            kind = "pooling" if projector.is_pooled else "copy"
            joined = projector.joined_size(width)
            last = self.move("projector.merge", kind, (last,), joined, num_tokens=tokens, input_elements=many * width)
        if norm and not is_first:
            last = self.move("projector.norm", "norm", (last,), size, num_tokens=tokens, tensors=norm)
        for index, shape in enumerate(projector.products(width)):
            if index:
                last = self.move("projector.activation", "activation", (last,), shape[0], num_tokens=tokens)
            name = PROJECTED[index]
            last = self.matmul(name, last, shape, has_bias=projector.has_biases, rows=tokens)

    def prediction_start(self) -> str:
        """Append what joins the stream with the embedding of the next token; return the product of both."""
        known = self.norm("mtp.stream_norm", INPUT)
        tokens = self.move("mtp.tokens", "embedding", (INPUT,), input_elements=0)
        both = self.move("mtp.join", "copy", (known, self.norm("mtp.token_norm", tokens)), 2 * self.width)
        return self.matmul("mtp.projection", both, (2 * self.width, self.width), has_bias=False)

    def prediction_end(self, source: str) -> None:
        """Append a norm, the logits by the head's matrix, and their loss."""
        words = self._transformer.vocabulary_size
        shape = (self.width, words)
        normed = self.norm("mtp.norm", source)
        logits = self.matmul("mtp.logits", normed, shape, has_bias=False, kind="logits", has_weight=False)
        self.append(
            TransformerOperator(
                name="mtp.loss",
                kind="loss",
                inputs=(logits,),
                output_shape=(1,),
                input_elements=words * self.num_tokens,
            )
        )

    def mixer(self, name: Mixer) -> Callable[[str], str]:
        """Return what appends a mixer, given what it reads."""
        network = self._transformer
        if network.mamba is not None and name == "mamba":
            return partial(scans.mamba, self, network.mamba)
        if network.delta is not None and name == "delta":
            return partial(scans.delta, self, network.delta)
        if network.linear is not None and name == "linear":
            return partial(scans.linear, self, network.linear)
        if name in SCANS:
            raise ValueError(f"the network has no {name}, so none of its layers has that mixer.")
        return partial(self.attention, mixer=name)

    def attention(self, source: str, mixer: Mixer = "attention") -> str:
        """Append attention: projections, scores, softmax, its product with the values, and the output's projection."""
        network, tokens = self._transformer, self.num_tokens
        heads, keys = network.num_heads, network.num_kv_heads
        size, value_size = network.head_size, network.value_head_size
        states = self._queries(source) if network.latent is None else self._latent(source)
        chosen = (self._chosen(source),) if network.sparse is not None and mixer == "attention" else ()
        done = int(heads * network.attended_pairs(mixer))
        scores = self.append(
            TransformerOperator(
                name="attention.scores",
                kind="attention",
                inputs=(states, *chosen),
                output_shape=(heads * tokens, tokens, 1),
                input_elements=(heads + keys) * size * tokens,
                num_multiply_adds=done * size,
                product=Product(rows=tokens, inner=size, columns=tokens, count=heads),
                is_in_place=True,
            )
        )
        sinks = (Tensor(name="sinks", num_elements=heads, role="bias"),) if network.has_sinks else ()
        weights = self.move("attention.softmax", "softmax", (scores,), heads * tokens, tensors=sinks, is_in_place=True)
        context = self.append(
            TransformerOperator(
                name="attention.context",
                kind="attention",
                inputs=(weights, states),
                output_shape=(heads * value_size, tokens, 1),
                input_elements=heads * tokens * tokens + keys * value_size * tokens,
                num_multiply_adds=done * value_size,
                product=Product(rows=tokens, inner=tokens, columns=value_size, count=heads),
            )
        )
        if network.has_attention_gate:
            columns = heads * value_size
            gate = self.matmul("attention.gate", source, (self.width, columns), has_bias=network.has_qkv_biases)
            context = self.move("attention.gated", "activation", (context, gate), columns)
        shape = (heads * value_size, self.width)
        return self.matmul("attention.output", context, shape, has_bias=network.has_output_bias)

    def _chosen(self, source: str) -> str:
        """Append the indexer: its projections, the scores of all pairs, and what it chooses: four bytes a token."""
        network, sparse, tokens = self._transformer, self._transformer.sparse, self.num_tokens
        assert sparse is not None, "asked of a network with an indexer"
        width, size = sparse.heads * sparse.head_size, sparse.head_size
        has_norm = "attention.query_norm" in self._operators
        queries = self.matmul(
            f"{INDEXER}query",
            "attention.query_norm" if has_norm else source,
            (network.query_width, width),
            has_bias=False,
        )
        key = self.matmul(f"{INDEXER}key", source, (self.width, size), has_bias=False)
        norm = tuple(Tensor(name=role, num_elements=size, role=role) for role in ("scale", "shift"))
        key = self.move(f"{INDEXER}key_norm", "norm", (key,), size, tensors=norm)
        turned = self.move(f"{INDEXER}rotary", "rotary", (queries, key), width + size, is_in_place=True)
        weights = self.matmul(f"{INDEXER}weights", source, (self.width, sparse.heads), has_bias=False)
        few = min(sparse.top_k, tokens)
        scored, attended = (int(width * pairs) for pairs in (network.scored_pairs, network.attended_pairs("attention")))
        return self.append(
            TransformerOperator(
                name=f"{INDEXER}scores",
                kind="index",
                inputs=(turned, weights),
                output_shape=(2 * few, tokens, 1),
                input_elements=(width + size + sparse.heads) * tokens,
                num_multiply_adds=scored,
                num_multiply_adds_back=BACKWARD_PER_FORWARD * attended,
                product=Product(rows=tokens, inner=size, columns=tokens, count=sparse.heads),
            )
        )

    def _queries(self, source: str) -> str:
        """Append the projection to queries, keys and values, their norms, and rotary positions; return them all."""
        network = self._transformer
        size, num_turned = network.head_size, network.num_heads + network.num_kv_heads
        columns = (num_turned + network.num_kv_heads) * size
        states = self.matmul("attention.qkv", source, (self.width, columns), has_bias=network.has_qkv_biases)
        if network.has_query_key_norms:
            states = self.norm("attention.query_key_norm", states, num_scales=network.query_key_norm_scales)
        if network.positions == "rotary":
            read = num_turned * size * self.num_tokens
            states = self.move("attention.rotary", "rotary", (states,), columns, input_elements=read, is_in_place=True)
        return states

    def _latent(self, source: str) -> str:
        """Append the narrow layers of latent attention; return queries, keys and values as every head reads them."""
        network, latent = self._transformer, self._transformer.latent
        assert latent is not None, "asked of a network with latent attention"
        heads, has_bias = network.num_heads, network.has_qkv_biases
        queries, query, inner = heads * network.head_size, source, self.width
        if latent.query_rank is not None:
            query = self.matmul("attention.query_down", source, (inner, latent.query_rank), has_bias=has_bias)
            query, inner = self.norm("attention.query_norm", query), latent.query_rank
        query = self.matmul("attention.query", query, (inner, queries), has_bias=has_bias)
        rank = latent.key_value_rank
        shape = (self.width, rank + latent.rope_size)
        down = self.matmul("attention.key_value_down", source, shape, has_bias=has_bias)
        normed = self.norm("attention.key_value_norm", down, rank)
        shape = (rank, heads * (latent.nope_size + latent.value_size))
        states = self.matmul("attention.key_value", normed, shape, has_bias=has_bias)
        # Every head gets a key of its own, of which the rotary part is copied: all three are written anew.
        return self.move("attention.rotary", "rotary", (query, states, down), 2 * queries + heads * latent.value_size)

    def feed_forward(self, source: str, name: str = "feed_forward", size: int | None = None) -> str:
        """Append two matrices with an activation between them; the first is twice as wide where it is gated."""
        network = self._transformer
        inner = network.feed_forward_size if size is None else size
        wide, has_bias = (2 * inner if network.is_gated else inner), network.has_biases
        up = self.matmul(f"{name}.up", source, (self.width, wide), has_bias=has_bias)
        active = self.move(f"{name}.activation", "activation", (up,), inner)
        return self.matmul(f"{name}.down", active, (inner, self.width), has_bias=has_bias)

    def experts(self, source: str) -> str:
        """Append router, dispatch, the routed experts, their weighted sum, and the shared experts; return the sum."""
        network, experts, width = self._transformer, self._transformer.experts, self.width
        assert experts is not None, "asked of a network with experts"
        number, inner, chosen = experts.num_experts, experts.expert_size, self.num_tokens * experts.top_k
        narrow = network.routed_width
        router = self.matmul(
            "feed_forward.router", source, (width, number), has_bias=experts.has_router_bias, kind="router"
        )
        gates = self.move("feed_forward.gates", "softmax", (router,), experts.top_k)
        entry = source
        if experts.latent_size is not None:
            entry = self.matmul("feed_forward.latent_down", source, (width, narrow), has_bias=False)
        last = self.move(
            "feed_forward.dispatch", "dispatch", (entry, gates), narrow, num_tokens=chosen,
            input_elements=chosen * narrow,
        )  # fmt: skip
        up = (narrow, 2 * inner if network.is_gated else inner)
        last = self.matmul(f"{ROUTED}up", last, up, has_bias=network.has_biases, rows=chosen, count=number)
        last = self.move(f"{ROUTED}activation", "activation", (last,), inner, num_tokens=chosen)
        last = self.matmul(
            f"{ROUTED}down", last, (inner, narrow), has_bias=network.has_biases, rows=chosen, count=number
        )
        routed = self.move("feed_forward.combine", "combine", (last, gates), narrow)
        if experts.latent_size is not None:
            routed = self.matmul("feed_forward.latent_up", routed, (narrow, width), has_bias=False)
        if not experts.num_shared:
            return routed
        shared = self.feed_forward(source, "feed_forward.shared", experts.num_shared * experts.shared_size)
        if experts.has_shared_gate:
            gate = self.matmul("feed_forward.shared.gate", source, (width, 1), has_bias=False, kind="router")
            shared = self.move("feed_forward.shared.weighed", "combine", (shared, gate), is_in_place=True)
        return self.move("feed_forward.sum", "residual", (routed, shared), is_in_place=True)


# -- the operators of any layer ----------------------------------------------------------------------------------------

# Of the kinds of layers, in this project's words; what stands for no work is left out.
_OF_LAYERS = {
    "convolution": "convolution",
    **dict.fromkeys(("fully_connected", "matmul", "router", "logits"), "matmul"),
    **dict.fromkeys(("attention", "index", "scan"), "batched_matmul"),
    "batch_norm": "batch_norm",
    "norm": "norm",
    **dict.fromkeys(("softmax", "loss"), "softmax"),
    **dict.fromkeys(("activation", "dropout", "rotary", "operator", "conv1d"), "element_wise"),
    "multiply": "multiplication",
    **dict.fromkeys(("add", "residual"), "addition"),
    "pooling": "pooling",
    "embedding": "embedding",
    **dict.fromkeys(("concatenate", "copy", "dispatch", "combine"), "copy"),
    **dict.fromkeys(("transpose", "gather", "expand", "tile", "pad"), "copy"),
    **dict.fromkeys(("slice", "split"), "slice"),
    "recurrent": "recurrent",
}
_FREE = ("input", "flatten", "identity", "reshape", "squeeze", "unsqueeze")  # views: nor do their gradients move


def is_known(kind: str) -> bool:
    """Return whether what layers of a kind compute is known; others count as element by element.

    Parameters
    ----------
    kind
        Of a layer.
    """
    return kind in _OF_LAYERS or kind in _FREE


def operator_kind(kind: str) -> str:
    """Return what a layer without multiply-adds computes, one of :data:`planner.dnn.OPERATOR_KINDS`.

    Parameters
    ----------
    kind
        Of the layer, or of an operator of a transformer.
    """
    return _OF_LAYERS.get(kind, "element_wise")


def operators_of(layer: Layer, inputs: Sequence[Layer]) -> tuple[Operator, ...]:
    """Return what a layer computes for one sample: as it was seen, or by its kind and shapes.

    Parameters
    ----------
    layer, inputs
        The layer, and those that it reads.

    Notes
    -----
    What one number of a product's output reads is its multiply-adds over the numbers of its output. A convolution's
    groups follow from that and its window. A kind that nobody knows reads its inputs and writes its output once; its
    multiply-adds, if any, are those of a product.
    """
    if layer.operators or layer.kind in _FREE:
        return layer.operators
    written, read = layer.num_output_elements, sum(one.num_output_elements for one in inputs)
    kind = operator_kind(layer.kind)
    product = None
    if layer.num_multiply_adds:
        inner = max(1, round(layer.num_multiply_adds / max(1, written)))  # a layer by hand may put out nothing
        places = max(1, prod(layer.output_shape[1:]))
        groups = 1
        if kind == "convolution" and layer.window is not None and inputs:
            groups = max(1, round(inputs[0].output_shape[0] * layer.window.kernel**2 / inner))
        elif kind not in PRODUCT_KINDS:
            kind = "matmul"
        product = Product(rows=places, inner=inner, columns=max(1, layer.output_shape[0] // groups), count=groups)
    elif kind in PRODUCT_KINDS:
        kind = "element_wise"
    if kind == "embedding":
        read = 0
    return (
        Operator(
            kind=kind,
            num_multiply_adds=layer.num_multiply_adds,
            read_elements=read,
            written_elements=written,
            weight_elements=0 if kind == "embedding" else layer.num_trainable,
            product=product,
        ),
    )
