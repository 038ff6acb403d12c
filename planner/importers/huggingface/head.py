"""The head of a network, by the class that the configuration names, and the length of its samples."""

from typing import Any

from planner.errors import Fault
from planner.importers.huggingface.draft import Draft
from planner.importers.huggingface.fields import Fields, shown

__all__ = ["DEFAULT_TOKENS", "head_of", "length_of"]

DEFAULT_TOKENS = 4096  # of a sample, where the configuration allows more: few train on the longest that it names
_UNKNOWN_TOKENS = 2048

_LANGUAGE = ("ForCausalLM", "LMHeadModel")
_MASKED, _PRETRAINING = ("ForMaskedLM",), ("ForPreTraining",)
_IMAGE = ("ForImageClassification",)


def head_of(fields: Fields, draft: Draft) -> dict[str, Any]:
    """Return the fields of a transformer that the class of the checkpoint decides: its head and its pooler."""
    names = fields.words("architectures")
    if len(names) > 1:
        fields.notes.append(f"architectures names {len(names)} classes; the first, {names[0][:80]}, is counted")
    strange = [one for one in names if not one.isidentifier()]
    if strange:
        fields.fault("architectures", f"{shown(strange[0])} is no name of a class.", 'Write e.g. ["LlamaForCausalLM"].')
        return {}
    name = names[0] if names else ""
    if not name:
        fields.notes.append(f"architectures is missing: counted {_DEFAULTS[draft.kind]}")
    if draft.kind == "image":
        return _image_head(fields, name)
    if draft.kind == "encoder":
        return _encoder_head(fields, draft, name)
    if not name or name.endswith(_LANGUAGE):
        return {"head": "language"}
    if not name.endswith("Model"):
        _warn(fields, name)
    return {"head": "none", "has_tied_embeddings": True}


_DEFAULTS = {
    "decoder": "with logits of every token, as for language modelling",
    "encoder": "with logits of every token, as for masked language modelling",
    "image": "with the classifier of images",
}


def _image_head(fields: Fields, name: str) -> dict[str, Any]:
    """Return the head of a network that reads images."""
    if not name or name.endswith(_IMAGE):
        return {"head": "classes"}
    if name.endswith("Model"):
        return {"head": "none", "has_pooler": True}
    _warn(fields, name)
    return {"head": "none"}


def _encoder_head(fields: Fields, draft: Draft, name: str) -> dict[str, Any]:
    """Return the head of BERT and its kin."""
    is_untied = not draft.sizes.get("has_tied_embeddings", True)
    if is_untied and draft.pools and (not name or name.endswith(_MASKED + _LANGUAGE + _PRETRAINING)):
        fields.notes.append("transformers holds the bias of the logits twice where they are not tied; it counts once")
    if not name or name.endswith(_MASKED + _LANGUAGE):
        return {"head": "masked_language"}
    if name.endswith(_PRETRAINING) and draft.pools:
        return {"head": "masked_language", "has_pooler": True}
    plain: dict[str, Any] = {"head": "none", "has_tied_embeddings": True}
    if name.endswith("Model"):
        return {**plain, "has_pooler": draft.pools}
    _warn(fields, name)
    pools = draft.pools and fields.architecture == "bert" and name.endswith(("Classification", "MultipleChoice"))
    return {**plain, "has_pooler": pools and not name.endswith("TokenClassification")}


def _warn(fields: Fields, name: str) -> None:
    """Say that a head is left out."""
    fields.warnings.append(f"the head of {name[:80]} is not counted: the network ends with its last block and norm")


def length_of(fields: Fields, draft: Draft, asked: int | None) -> int:
    """Return the tokens of a sample, of a network that reads text: as asked for, else what is usual."""
    longest, is_learned = draft.longest, draft.sizes.get("positions", "learned") == "learned"
    if asked is None:
        if longest is None:
            fields.notes.append(f"sequence_length: {_UNKNOWN_TOKENS}; the configuration names no length")
            return _UNKNOWN_TOKENS
        found = min(longest, DEFAULT_TOKENS)
        what = "the longest that the configuration names" if found == longest else f"of up to {longest:,} allowed"
        fields.notes.append(f"sequence_length: {found:,}, {what}")
        return found
    if longest is not None and asked > longest:
        if is_learned:
            problem = f"a sample of {shown(asked)} tokens needs more learned positions than the table has: {longest:,}."
            mend = f"Ask for at most {longest}."
            fields.faults.append(Fault(file=str(fields.file), field="sequence_length", problem=problem, mend=mend))
            return longest
        fields.notes.append(f"samples of {asked:,} tokens are longer than the {longest:,} that the configuration names")
    return asked
