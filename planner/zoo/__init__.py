"""Networks of known shape, built layer by layer when asked for.

>>> build("VGG16").num_trainable
138357544
"""

import re
from collections.abc import Callable
from functools import lru_cache, partial

from planner.dnn import Dnn
from planner.names import find, fold
from planner.zoo import transformers
from planner.zoo.convolutional import (
    adam_imagenet22k,
    adam_mnist,
    alexnet,
    densenet,
    googlenet,
    inception_v3,
    overfeat,
    resnet,
    resnext50,
    unet,
    vgg,
    vgg16_replaced_head,
)
from planner.zoo.depthwise import convnext, efficientnet, lstm_lm, mixer_b16, mobilenet_v2, mobilenet_v3_large, swin

__all__ = ["build", "find_name", "layered_names", "names"]

_FACTORIES: dict[str, Callable[[], Dnn]] = {
    "adam-imagenet22k": adam_imagenet22k,
    "adam-mnist": adam_mnist,
    "alexnet": alexnet,
    **{f"convnext-{size}": partial(convnext, size) for size in ("tiny", "small", "base")},
    **{f"densenet{depth}": partial(densenet, depth) for depth in (121, 169)},
    **{f"efficientnet-b{number}": partial(efficientnet, number) for number in range(8)},
    "googlenet": googlenet,
    "googlenet-aux": partial(googlenet, auxiliary=True),
    "inception-v3": inception_v3,
    "inception-v3-aux": partial(inception_v3, auxiliary=True),
    "lstm-lm": partial(lstm_lm, "large"),
    "lstm-lm-medium": partial(lstm_lm, "medium"),
    "mixer-b16": mixer_b16,
    "mobilenet-v2": mobilenet_v2,
    "mobilenet-v3-large": mobilenet_v3_large,
    "overfeat": overfeat,
    **{f"resnet{depth}": partial(resnet, depth) for depth in (18, 34, 50, 101, 152)},
    "resnext50-32x4d": resnext50,
    **{f"swin-{size}": partial(swin, size) for size in "tsb"},
    "unet": unet,
    **{name: partial(vgg, name) for name in ("vgg11", "vgg13", "vgg16", "vgg16c", "vgg19")},
    "vgg16-replaced-head": vgg16_replaced_head,
}
# VGG by depth and the letter of its paper's Table 1.
_ALIASES = {
    **{"vgg11a": "vgg11", "vgg13b": "vgg13", "vgg16d": "vgg16", "vgg19e": "vgg19", "inception-v1": "googlenet"},
    **{"swin-tiny": "swin-t", "swin-small": "swin-s", "swin-base": "swin-b", "resnext50": "resnext50-32x4d"},
    **{"mobilenet-v3": "mobilenet-v3-large", "u-net": "unet", "mixer-b-16": "mixer-b16", "lstm-lm-large": "lstm-lm"},
}


# What publishers add to a network's name for what it was trained on later, or how it is stored: its sizes stay.
_LATER = re.compile(r"[-_ ](instruct|it|pt|base|chat|hf|bf16|thinking|reasoning|\d{4})$", re.IGNORECASE)


def names() -> tuple[str, ...]:
    """Return the names of all networks, sorted; aliases are left out."""
    return tuple(sorted([*_FACTORIES, *transformers.row_names()]))


def layered_names() -> tuple[str, ...]:
    """Return the names of the networks that are no transformers, sorted."""
    return tuple(sorted(_FACTORIES))


def find_name(name: str) -> str:
    """Return the proper name of a network; raise SpecError, with the nearest one, if there is none."""
    layered = {fold(known): known for known in _FACTORIES} | {fold(alias): proper for alias, proper in _ALIASES.items()}
    if fold(name) in layered:  # then the table of transformers need not be read
        return layered[fold(name)]
    others = {fold(alias): proper for alias, proper in transformers.aliases().items()}
    known = {fold(known): known for known in names()} | others | layered
    plain = name.rpartition("/")[2] or name  # an owner before it is left out
    while fold(plain) not in known and (shorter := re.sub(_LATER, "", plain)) != plain:
        plain = shorter
    return find(plain, known, "network of the zoo")


@lru_cache(maxsize=32)  # a network cannot be changed: one will do for all questions about it
def _layered(proper: str) -> Dnn:
    """Return a network that is no transformer."""
    return _FACTORIES[proper]()


def build(name: str, *, sequence_length: int | None = None) -> Dnn:
    """Build the network called ``name``.

    Parameters
    ----------
    name
        One of :func:`names`, or an alias such as ``vgg16d``; case and dashes do not count, nor does an owner before
        it, or what it was trained on later (``Qwen/Qwen3-8B-Instruct``).
    sequence_length
        Tokens of one sample, of a transformer that reads text; by default those that it was trained on.

    Raises
    ------
    SpecError
        If there is no such network; the message suggests the nearest name.
    ValueError
        For a sequence length of a network that has none, or another one.
    """
    proper = find_name(name)
    if proper in _FACTORIES:
        if sequence_length is not None:
            raise ValueError(f"{proper} reads no sequence of tokens. Leave out sequence_length.")
        return _layered(proper)
    row = transformers.row(proper)
    transformer = row.transformer
    if sequence_length is not None:
        transformer = transformers.with_sequence_length(transformer, sequence_length)
    return transformers.dnn_of(transformer, proper, source=row.source, dataset_samples=row.dataset_samples)
