"""What is read of every architecture of Hugging Face: a network but for the length of its samples and its head."""

from collections.abc import Callable
from typing import Any, Literal

from planner.frozen import frozen
from planner.importers.huggingface.configuration import Fields
from planner.transformer_parts import MOST_HEADS, MOST_LAYERS, MOST_TOKENS, MOST_WIDTH, MOST_WORDS


@frozen
class Draft:
    """A network but for the length of its samples and its head."""

    sizes: dict[str, Any]  # fields of :class:`planner.transformer.Transformer`
    longest: int | None = None  # tokens of the longest sample that the configuration names; None where it names none
    # which heads the architecture has: of language, of masked language, or of classes
    kind: Literal["decoder", "encoder", "image"] = "decoder"
    window: int | None = None  # tokens that a token sees where attention is windowed; None where it is not
    mixers: tuple[str, ...] = ()  # what mixes the tokens of every layer; empty where all have full attention
    # what the library counts with logits of every token, where it could be asked
    expected_parameters: int | None = None
    pools: bool = False  # whether the network without a head pools its first token (BERT, ViT)


Reader = Callable[[Fields], Draft]


def stream_of(
    fields: Fields,
    *,
    layers: tuple[str, ...] = ("num_hidden_layers",),
    hidden: tuple[str, ...] = ("hidden_size",),
    heads: tuple[str, ...] = ("num_attention_heads",),
) -> dict[str, Any]:
    """Return the sizes that every network of text has: layers, width, heads and vocabulary."""
    return {
        "num_layers": fields.count(*layers, most=MOST_LAYERS),
        "hidden_size": fields.count(*hidden, most=MOST_WIDTH),
        "num_heads": fields.count(*heads, most=MOST_HEADS),
        "vocabulary_size": fields.count("vocab_size", most=MOST_WORDS),
    }


def longest_of(fields: Fields, *names: str) -> int | None:
    """Return the tokens of the longest sample; None where no key names it."""
    found = fields.count_or(0, *names, most=2**40)
    return min(found, MOST_TOKENS) if found else None


def is_tied(fields: Fields, default: bool = True) -> bool:
    """Return whether the logits use the embedding's matrix."""
    return fields.flag("tie_word_embeddings", default)
