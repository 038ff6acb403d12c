"""The ``config.json`` of a Hugging Face checkpoint, read without their library: plain JSON, a reader an architecture.

Parameters are counted from the sizes in it and equal those of ``transformers``; which keys an architecture has, and
what a missing one means, stands in the modules beside this one. What is not counted is refused or noted.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError
from planner.importers.huggingface import encoders, experts, llama, older
from planner.importers.huggingface.draft import Draft, Reader
from planner.importers.huggingface.fields import Fields, shown
from planner.importers.huggingface.file import OTHER_WAYS, check_is_network, read_config, refusal
from planner.importers.huggingface.head import head_of, length_of
from planner.importers.huggingface.refused import reason_against
from planner.transformer import Transformer

__all__ = ["READERS", "HuggingFaceNetwork", "read_huggingface"]

READERS: dict[str, Reader] = {
    **llama.READERS,
    **experts.READERS,
    **older.READERS,
    **encoders.READERS,
}
_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceNetwork:
    """A transformer from a configuration.

    Attributes
    ----------
    name
        Of the checkpoint where the configuration says it, else of the folder or file.
    dtype
        ``fp32``, ``fp16`` or ``bf16``, as its weights are stored; None where it does not say.
    notes
        What was assumed.
    warnings
        What makes the figures doubtful.
    """

    transformer: Transformer
    name: str
    dtype: str | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def read_huggingface(
    path: Path, *, sequence_length: int | None = None, is_text_only: bool = False
) -> HuggingFaceNetwork:
    """Return the network of a ``config.json``, or of the folder that it stands in.

    Parameters
    ----------
    sequence_length
        Tokens of a sample; by default the longest that the configuration names, but at most 4096.
    is_text_only
        Take the ``text_config`` of a network of several parts, which is refused otherwise.

    Raises
    ------
    SpecError
        With file, line and key of everything that is wrong with it, in one pass; if the architecture is not known, or
        known and not counted, with the reason.
    """
    values, text, file = read_config(path)
    check_is_network(values, file)
    if is_text_only:
        values = _text_part(values)
    model_type = _model_type(values, text, file)
    reason, mend = reason_against(model_type, values)
    if reason:
        raise refusal(file, text, model_type, f"{model_type!r} is not counted: {reason}.", mend)
    fields = Fields(values, text, file, model_type)
    draft = READERS[model_type](fields) if model_type in READERS else _from_library(fields)
    return _built(fields, draft, sequence_length)


def _text_part(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text part of a configuration of several; of another one, all of it."""
    part = values.get("text_config")
    if not isinstance(part, Mapping):
        return dict(values)
    outer = {key: values[key] for key in ("tie_word_embeddings", "torch_dtype", "dtype") if key in values}
    return {**outer, **part}


def _model_type(values: Mapping[str, Any], text: str, file: Path) -> str:
    """Return the architecture's name."""
    given = values.get("model_type")
    if isinstance(given, str) and given and given.isprintable() and len(given) <= 80:
        return given
    if "model_type" in values:
        raise refusal(file, text, "", f"{shown(given)} is no name of an architecture.", 'Write e.g. "llama".')
    names = values.get("architectures")
    first = str(names[0]) if isinstance(names, list) and names else ""
    hint = next((one for one in READERS if first.lower().startswith(re.sub(r"[-_]", "", one) + "for")), "llama")
    mend = f'Add it, as the checkpoint\'s own config.json has it, e.g. "model_type": "{hint}".'
    raise refusal(file, text, "", "it is missing, so that the architecture is not known.", mend)


def _from_library(fields: Fields) -> Draft:
    """Return the draft of an architecture that only the library knows."""
    from planner.importers.huggingface.rest import generic_draft  # noqa: PLC0415  # late, and with it transformers

    near = difflib.get_close_matches(fields.architecture, READERS, n=1, cutoff=0.4)
    return generic_draft(fields, near[0] if near else None)


def _built(fields: Fields, draft: Draft, sequence_length: int | None) -> HuggingFaceNetwork:
    """Return the network of a draft, or refuse all that was found wrong."""
    if fields.values.get("pruned_heads"):
        fields.refuse("pruned_heads", "heads that were cut off are not counted here.")
    sizes = {**draft.sizes, **head_of(fields, draft)}
    if draft.kind == "image":
        if sequence_length is not None:
            problem = "the length of an image's sequence follows from its patches."
            fields.faults.append(
                Fault(file=str(fields.file), field="sequence_length", problem=problem, mend="Leave it out.")
            )
    else:
        sizes["sequence_length"] = length_of(fields, draft, sequence_length)
    dtype = _dtype(fields)
    if fields.faults:
        raise SpecError.of(dict.fromkeys(fields.faults))
    try:
        transformer = Transformer(**sizes)
    except ValueError as error:
        raise SpecError.of([Fault(file=str(fields.file), problem=f"{fields.architecture}: {error}")]) from None
    _compare(fields, draft, transformer)
    _note(fields, draft, transformer)
    return HuggingFaceNetwork(
        transformer=transformer,
        name=_name(fields),
        dtype=dtype,
        notes=tuple(fields.notes),
        warnings=tuple(fields.warnings),
    )


def _compare(fields: Fields, draft: Draft, transformer: Transformer) -> None:
    """Refuse a plain decoder that the library builds otherwise."""
    if draft.expected_parameters is None:
        return
    sizes = {**draft.sizes, "head": "language", "sequence_length": transformer.sequence_length}
    ours, theirs = Transformer(**sizes).num_parameters, draft.expected_parameters
    if ours == theirs:
        return
    problem = (
        f"{fields.architecture!r} is not counted: a plain decoder of its sizes has {ours:,} parameters, and "
        f"transformers builds {theirs:,}."
    )
    raise refusal(fields.file, fields.text, fields.architecture, problem, OTHER_WAYS)


def _dtype(fields: Fields) -> str | None:
    """Return the type of the weights, in the words of a spec."""
    given = fields.word("dtype", "torch_dtype").removeprefix("torch.")
    if given and given not in _DTYPES:
        fields.notes.append(f"the weights are stored as {shown(given)}, which no training here is in")
    return _DTYPES.get(given)


def _note(fields: Fields, draft: Draft, transformer: Transformer) -> None:
    """Say what is counted otherwise than the configuration has it."""
    if draft.window is not None and draft.num_windowed and draft.window < transformer.sequence_length:
        fields.warnings.append(
            f"attention is counted in full, although a token sees {draft.window:,} tokens only in {draft.num_windowed} "
            f"of {transformer.num_layers} layers: the FLOP of attention are counted too high"
        )
    quantised = fields.values.get("quantization_config")
    if isinstance(quantised, Mapping):
        method = quantised.get("quant_method")
        how = f" ({method})" if isinstance(method, str) and method.isidentifier() else ""
        fields.notes.append(f"the checkpoint is quantised{how}: its parameters are counted as they were before")
    more = fields.values.get("num_nextn_predict_layers")
    if type(more) is int and more > 0:
        fields.notes.append(f"the {more} layers that predict further tokens (num_nextn_predict_layers) are not counted")


def _name(fields: Fields) -> str:
    """Return a name for the network."""
    given = fields.values.get("_name_or_path")
    file = fields.file
    plain = file.parent.name if file.name == "config.json" else file.stem
    for one in (given.rstrip("/").rsplit("/", 1)[-1] if isinstance(given, str) else "", plain, fields.architecture):
        if found := re.sub(r"[^\w.-]+", "-", one).strip("-.")[:80]:
            return found
    return "network"
