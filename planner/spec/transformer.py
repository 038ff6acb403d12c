"""What a spec may say about a transformer, ``dnn.transformer``; what is left out has the defaults of its fields."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema, model_validator

from planner.spec.values import Count, Model, whole
from planner.transformer import Transformer
from planner.transformer_parts import (
    MOST_CHANNELS,
    MOST_EXPERTS,
    MOST_HEADS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_PIXELS,
    MOST_TOKENS,
    MOST_WIDTH,
    MOST_WORDS,
)
from planner.zoo.transformers import transformer_of

__all__ = ["ExpertsSpec", "ImageSpec", "LatentAttentionSpec", "Tokens", "TransformerSpec"]


def _at_most(most: int) -> AfterValidator:
    """Return what refuses numbers beyond all reason."""

    def check(value: int) -> int:
        if value > most:
            raise ValueError(f"{value} is too large. Write a whole number of at most {most}.")
        return value

    return AfterValidator(check)


def _schema(least: int, most: int) -> WithJsonSchema:
    """Return the JSON Schema of a whole number."""
    return WithJsonSchema({"type": "integer", "minimum": least, "maximum": most})


def _number(value: object) -> int:
    """Return a whole number of 0 or more."""
    return 0 if value == 0 and not isinstance(value, bool) else whole(value)


Layers = Annotated[Count, _at_most(MOST_LAYERS), _schema(1, MOST_LAYERS)]
Heads = Annotated[Count, _at_most(MOST_HEADS), _schema(1, MOST_HEADS)]
NumExperts = Annotated[Count, _at_most(MOST_EXPERTS), _schema(1, MOST_EXPERTS)]
Width = Annotated[Count, _at_most(MOST_WIDTH), _schema(1, MOST_WIDTH)]
Inner = Annotated[Count, _at_most(MOST_INNER), _schema(1, MOST_INNER)]
Tokens = Annotated[Count, _at_most(MOST_TOKENS), _schema(1, MOST_TOKENS)]
Words = Annotated[Count, _at_most(MOST_WORDS), _schema(1, MOST_WORDS)]
Pixels = Annotated[Count, _at_most(MOST_PIXELS), _schema(1, MOST_PIXELS)]
SomeLayers = Annotated[int, BeforeValidator(_number), _at_most(MOST_LAYERS), _schema(0, MOST_LAYERS)]
SomeExperts = Annotated[int, BeforeValidator(_number), _at_most(MOST_EXPERTS), _schema(0, MOST_EXPERTS)]
SomeTypes = Annotated[int, BeforeValidator(_number), _at_most(MOST_WORDS), _schema(0, MOST_WORDS)]


class ExpertsSpec(Model):
    """A mixture of experts; see :class:`planner.transformer_parts.Experts`."""

    count: NumExperts
    top_k: NumExperts
    size: Width
    shared: SomeExperts = 0
    shared_size: Width | None = None
    every: Layers = 1
    dense_first: SomeLayers = 0
    router_bias: bool = False
    shared_gate: bool = False


class LatentAttentionSpec(Model):
    """Multi-head latent attention; see :class:`planner.transformer_parts.LatentAttention`."""

    query_rank: Width | None = None
    key_value_rank: Width
    rope_size: Width
    nope_size: Width
    value_size: Width


class ImageSpec(Model):
    """Images in patches; see :class:`planner.transformer_parts.Image`."""

    size: Pixels
    patch: Pixels
    channels: Annotated[Count, _at_most(MOST_CHANNELS), _schema(1, MOST_CHANNELS)] = 3
    classes: Words = 1000
    class_token: bool = True


class TransformerSpec(Model):
    """A transformer by its sizes; see :class:`planner.transformer.Transformer`."""

    layers: Layers
    hidden: Width
    heads: Heads
    kv_heads: Heads | None = None
    head_size: Width | None = None
    feed_forward: Inner | None = None
    gated: bool | None = None
    vocabulary: Words | None = None
    sequence_length: Tokens | None = None
    tied_embeddings: bool | None = None
    causal: bool | None = None
    positions: Literal["learned", "rotary", "alibi", "none"] | None = None
    num_positions: Tokens | None = None
    norm: Literal["layer_norm", "rms_norm"] | None = None
    norm_position: Literal["before", "after", "both", "output", "shared", "parallel"] | None = None
    biases: bool | None = None
    norm_scales: bool | None = None
    norm_biases: bool | None = None
    qkv_biases: bool | None = None
    output_bias: bool | None = None
    query_key_norms: bool | None = None
    query_key_norm_span: Literal["head", "all_heads"] | None = None
    final_norm: bool | None = None
    embedding_norm: bool | None = None
    token_types: SomeTypes | None = None
    head: Literal["language", "masked_language", "classes", "none"] | None = None
    head_bias: bool | None = None
    pooler: bool | None = None
    experts: ExpertsSpec | None = None
    latent_attention: LatentAttentionSpec | None = None
    image: ImageSpec | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        text = {"vocabulary": self.vocabulary, "sequence_length": self.sequence_length}
        for key, value in text.items():
            if self.image is None and value is None:
                raise ValueError(f"{key} is missing. Add it; only a network that reads images has none.")
            if self.image is not None and value is not None:
                raise ValueError(f"{key} belongs to a network that reads text. Leave it out where there is an image.")
        self.build()
        return self

    def build(self) -> Transformer:
        """Return the transformer; raise ValueError where the sizes do not go together."""
        return transformer_of(self.model_dump(exclude_none=True))
