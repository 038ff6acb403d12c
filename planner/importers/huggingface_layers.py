"""Which layers of a configuration differ from the others: windows of attention, and experts."""

from collections.abc import Sequence
from typing import Any

from planner.importers.huggingface_fields import Fields, shown

__all__ = ["experts_pattern", "windows"]

_WINDOWED = frozenset({"sliding_attention", "chunked_attention", "local"})
_FULL = frozenset({"full_attention", "global"})


def windows(fields: Fields, num_layers: int) -> tuple[int | None, int]:
    """Return the tokens that a token sees in layers with windowed attention, and how many these are.

    Layers with another attention than full or windowed are refused.
    """
    types = fields.words("layer_types")
    unknown = sorted(set(types) - _WINDOWED - _FULL)
    if unknown:
        fields.refuse("layer_types", f"layers of the type {shown(unknown[0])} are not counted here.")
    if types and not unknown and len(types) != num_layers:
        mend = "Give as many types as layers, or leave them out."
        fields.fault("layer_types", f"these are {len(types)} types of {num_layers} layers.", mend)
    names = ("sliding_window", "attention_chunk_size")
    given = fields.get(*names)
    if given is None or given is False or given == 0 or not fields.flag("use_sliding_window", True):
        return None, 0
    window = fields.count(*names, most=2**40)
    if types:
        number = sum(one in _WINDOWED for one in types)
        return (window, number) if number else (None, 0)
    first = fields.count_or(0, "max_window_layers", least=0, most=2**40)
    if "use_sliding_window" in fields.values and first:  # Qwen2: the first layers see all
        return (window, num_layers - first) if first < num_layers else (None, 0)
    return window, num_layers


def experts_pattern(fields: Fields, name: str, chosen: Sequence[int], num_layers: int) -> dict[str, Any] | None:
    """Return where layers with experts begin and how often they come; None where there are none.

    ``chosen``: their positions, in order. What no first layer and step describe is refused, under the key ``name``.
    """
    if not chosen:
        return None
    step = chosen[1] - chosen[0] if len(chosen) > 1 else num_layers
    if list(chosen) != list(range(chosen[0], num_layers, step)):
        fields.refuse(name, "layers with experts do not come at a fixed step up to the last; this is not counted here.")
    return {"num_dense_first": chosen[0], "every": step}
