"""Encoders: BERT and its kin, and the vision transformer.

Sources as in :mod:`planner.importers.huggingface.llama`.
"""

from typing import Any

from planner.importers.huggingface.draft import Draft, Reader, stream
from planner.importers.huggingface.fields import Fields, shown
from planner.transformer_parts import (
    MOST_CHANNELS,
    MOST_HEADS,
    MOST_LAYERS,
    MOST_PIXELS,
    MOST_TOKENS,
    MOST_WIDTH,
    MOST_WORDS,
    Image,
)

__all__ = ["READERS"]


def _bert(fields: Fields) -> Draft:
    """Return BERT: norms behind each half, segments."""
    if fields.flag("add_cross_attention", False):
        fields.refuse("add_cross_attention", "attention to an encoder is not counted here.")
    if fields.word("position_embedding_type") not in ("", "absolute"):
        fields.refuse("position_embedding_type", "positions relative to each other are not counted here.")
    sizes = stream(fields)
    if fields.count_or(sizes["hidden_size"], "embedding_size", most=MOST_WIDTH) != sizes["hidden_size"]:
        fields.refuse("embedding_size", "an embedding of another width than the stream's is not counted here.")
    rows = fields.count("max_position_embeddings", most=MOST_TOKENS)
    is_decoder = fields.flag("is_decoder", False)
    sizes |= {
        "feed_forward_size": fields.count("intermediate_size"),
        "num_positions": rows,
        "num_token_types": fields.count("type_vocab_size", least=0, most=MOST_WORDS),
        "is_causal": is_decoder,
        "has_tied_embeddings": fields.flag("tie_word_embeddings", True),
        "norm_position": "after",
        "has_embedding_norm": True,
    }
    return Draft(sizes=sizes, longest=rows, kind="encoder", pools=True)


def _roberta(fields: Fields) -> Draft:
    """Return RoBERTa: its positions are counted from behind that of padding; its table has rows for those, too."""
    draft = _bert(fields)
    unused = fields.count_or(1, "pad_token_id", least=0, most=MOST_WORDS) + 1
    rows = draft.longest or 0
    if rows <= unused and not fields.faults:
        mend = f"Write more than {unused}."
        fields.fault("max_position_embeddings", f"the first {unused} of {rows} positions are never used.", mend)
    return Draft(sizes=draft.sizes, longest=max(rows - unused, 1), kind="encoder", pools=True)


def _distilbert(fields: Fields) -> Draft:
    """Return DistilBERT: BERT without segments and pooler, under names of its own."""
    sizes = stream(
        fields,
        layers=("n_layers", "num_hidden_layers"),
        hidden=("dim", "hidden_size"),
        heads=("n_heads", "num_attention_heads"),
    )
    rows = fields.count("max_position_embeddings", most=MOST_TOKENS)
    sizes |= {
        "feed_forward_size": fields.count("hidden_dim"),
        "num_positions": rows,
        "is_causal": False,
        "has_tied_embeddings": fields.flag("tie_word_embeddings", True),
        "norm_position": "after",
        "has_embedding_norm": True,
    }
    return Draft(sizes=sizes, longest=rows, kind="encoder")


def _vit(fields: Fields) -> Draft:
    """Return the vision transformer: patches, a token of the class, learned positions."""
    hidden = fields.count("hidden_size", most=MOST_WIDTH)
    if fields.count_or(hidden, "pooler_output_size", most=MOST_WIDTH) != hidden:
        fields.refuse("pooler_output_size", "a pooler of another width than the stream's is not counted here.")
    pixels = fields.count("image_size", most=MOST_PIXELS)
    patch = fields.count("patch_size", most=MOST_PIXELS)
    if pixels % patch:
        fields.fault("patch_size", f"an image of {pixels} pixels has no whole number of these.", "Give a divisor.")
    channels, classes = fields.count_or(3, "num_channels", most=MOST_CHANNELS), _num_classes(fields)
    sizes: dict[str, Any] = {
        "num_layers": fields.count("num_hidden_layers", most=MOST_LAYERS),
        "hidden_size": hidden,
        "num_heads": fields.count("num_attention_heads", most=MOST_HEADS),
        "feed_forward_size": fields.count("intermediate_size"),
        "has_qkv_biases": fields.flag("qkv_bias", True),
        "vocabulary_size": 0,
        "is_causal": False,
    }
    if not fields.faults:
        image = Image(image_size=pixels, patch_size=patch, num_channels=channels, num_classes=classes)
        sizes |= {"image": image, "sequence_length": image.num_tokens}
    return Draft(sizes=sizes, kind="image", pools=True)


def _num_classes(fields: Fields) -> int:
    """Return the classes of the classifier: as many as have a name, else two, as transformers has it."""
    names = fields.get("id2label")
    if names is None:
        return fields.count_or(2, "num_labels", "_num_labels", most=MOST_WORDS)
    if not isinstance(names, dict) or not names:
        fields.fault("id2label", f"{shown(names)} is no table of names.", 'Write e.g. {"0": "cat"}.')
        return 2
    return len(names)


READERS: dict[str, Reader] = {
    "bert": _bert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "camembert": _roberta,
    "distilbert": _distilbert,
    "vit": _vit,
}
