"""What the readers of architectures make: the sizes of a transformer before its length and its head are known."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from planner.importers.huggingface.fields import Fields
from planner.transformer_parts import MOST_HEADS, MOST_LAYERS, MOST_TOKENS, MOST_WIDTH, MOST_WORDS

__all__ = ["Draft", "Kind", "Reader", "longest", "stream"]

Kind = Literal["decoder", "encoder", "image"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A network but for the length of its samples and its head.

    Attributes
    ----------
    sizes
        Fields of :class:`planner.transformer.Transformer`.
    longest
        Tokens of the longest sample that the configuration names; None where it names none.
    kind
        Which heads the architecture has: of language, of masked language, or of classes.
    window
        Tokens that a token sees where attention is windowed; None where it is not. Attention is counted in full.
    num_windowed
        Layers whose attention is windowed.
    expected_parameters
        What the library counts with logits of every token, where it could be asked.
    pools
        Whether the network without a head pools its first token (BERT, ViT).
    """

    sizes: dict[str, Any]
    longest: int | None = None
    kind: Kind = "decoder"
    window: int | None = None
    num_windowed: int = 0
    expected_parameters: int | None = None
    pools: bool = False


Reader = Callable[[Fields], Draft]


def stream(
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


def longest(fields: Fields, *names: str) -> int | None:
    """Return the tokens of the longest sample; None where no key names it."""
    found = fields.count_or(0, *names, most=2**40)
    return min(found, MOST_TOKENS) if found else None
