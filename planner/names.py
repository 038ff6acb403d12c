"""Names as people type them: found whatever the case and the dashes, or refused with the nearest ones."""

import difflib
import re
from collections.abc import Mapping
from typing import Literal, get_args

from planner.errors import SpecError


def fold(name: str) -> str:
    """Return ``name`` in lower case without spaces, underscores and dashes.

    >>> fold("RTX_2080 Ti") == fold("rtx-2080-ti")
    True
    """
    return re.sub(r"[\s_-]+", "", name).lower()


def find(name: str, known: Mapping[str, str], what: str) -> str:
    """Return the proper name that ``known`` gives for the folded ``name``.

    Parameters
    ----------
    known
        Folded name or alias -> proper name.
    what
        Is named, in the singular, for the message.

    Raises
    ------
    SpecError
        With the nearest names, or all of them if none is near, or, of a long list, what shows it.

    >>> find("Red", {"red": "red", "green": "green"}, "colour")
    'red'
    >>> find("gren", {"red": "red", "green": "green"}, "colour")
    Traceback (most recent call last):
    planner.errors.SpecError: 'gren' is not a known colour. Did you mean 'green'?
    """
    folded = fold(name)
    if folded in known:
        return known[folded]
    # dict.fromkeys keeps the order and drops a name that two of its aliases brought in.
    near = dict.fromkeys(known[key] for key in difflib.get_close_matches(folded, known, n=3))
    all_names = dict.fromkeys(known.values())
    mend = f"Did you mean {_quoted(near, ' or ')}?" if near else f"Write one of {_quoted(all_names, ', ')}."
    if not near and what in _LISTED_BY:
        mend = f"See {_LISTED_BY[what]} for all {len(all_names)}, such as {next(iter(all_names))!r}."
    if what == "network of the zoo" and not near:
        mend += " Others are read from files: config.json of Hugging Face, model.onnx, a profile."
    if what.startswith("device"):
        mend += " A spec may describe one that the table lacks: device: {name: mine, fp32: 20 TFLOP/s, memory: 24 GiB}."
    raise SpecError.one(f"{name!r} is not a known {what}.", mend, value=name)


_LISTED_BY = {  # of what there are too many for a message
    "network of the zoo": "`planner show dnn`",
    "device": "`planner show devices`",
    "machine": "`planner show machines`",
    "device or machine": "`planner show machines` and `planner show devices`",
    "case": "`planner case`",
}


def _quoted(names: Mapping[str, None], between: str) -> str:
    """Return the names in quotes."""
    return between.join(repr(name) for name in names)


# --- The families of plans by name: the one list that specs, searches, checks and exporters follow

FamilyName = Literal["all_reduce", "parameter_server", "model_replicas", "pipeline", "hybrid"]
FAMILY_NAMES: tuple[str, ...] = get_args(FamilyName)
OF_TRANSFORMERS: FamilyName = "hybrid"  # the family that is made for transformers, and answers for them alone


# --- Modules of a transformer's layer that can be computed again by themselves, as Megatron-Core names them

RECOMPUTE_MODULES: tuple[str, ...] = (
    "core_attn",
    "moe_act",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "shared_experts",
)

# --- Modules whose inputs may wait in host memory between the passes, as Megatron-Core names them

OFFLOAD_MODULES: tuple[str, ...] = (
    "attn_norm",
    "qkv_linear",
    "core_attn",
    "attn_proj",
    "mlp_norm",
    "expert_fc1",
    "moe_act",
)
