"""Networks from modules of torch: sizes, work and data flow from a pass without memory.

The module is copied to torch's meta device and run twice, with the example's batch and with twice that batch; see
:mod:`planner.importers.torch_module.record` for what is watched. Everything is counted, nothing is computed: a network
of a hundred billion parameters takes seconds.
"""

import inspect
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from planner.dnn import Dnn
from planner.importers.imported import Imported
from planner.importers.repeats import repeats_of
from planner.importers.torch_module.copy import copy_to_meta, fault_of, last_line, sample_of
from planner.importers.torch_module.layers import Figures, Passes, layers_of
from planner.importers.torch_module.library import flop_counter, load_torch
from planner.importers.torch_module.numbers import NeedsValuesError
from planner.importers.torch_module.record import Recording, record

__all__ = ["from_torch"]

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}
_CHECKPOINTS = ("CheckpointFunction",)


def from_torch(module: object, example: object, *, name: str | None = None) -> Imported:
    """Return the network of a ``torch.nn.Module``.

    Parameters
    ----------
    module
        On any device, also meta; it is not changed. It is taken in the mode (training or evaluation) that it is in.
    example
        What it is called with: a tensor, a tuple of positional arguments, a dict of keyword arguments, or a tuple of a
        tuple and a dict. The leading dimension of the first tensor is the batch; figures are of one sample.
    name
        Of the network; by default the class's name.

    Returns
    -------
    Imported
        ``facts``: ``forward_flop`` and, where backward runs, ``backward_flop``, of one sample; ``fixed_multiply_adds``
        of a pass, whatever its batch, in no layer; ``saved_bytes`` of one sample's activations that autograd keeps and
        ``fixed_saved_bytes`` kept once; ``counted_batch``, the example's or, where a batch of one runs other operators,
        twice that. ``counted_batch`` times the network's multiply-adds plus the fixed ones are half of
        ``FlopCounterMode.get_total_flops()`` at that batch, exactly.

    Raises
    ------
    SpecError
        If torch is missing, or the module cannot be copied or run without values.
    """
    torch = load_torch()
    if not isinstance(module, torch.nn.Module):
        raise fault_of(f"{type(module).__name__} is no torch.nn.Module.", "Give an instance of a module.")
    inner: Any = getattr(module, "_orig_mod", module)  # what torch.compile wraps
    if any(isinstance(one, torch.jit.ScriptModule) for one in inner.modules()):
        raise fault_of(
            f"{type(module).__name__} is compiled by TorchScript, which hides its modules.",
            "Give the module before torch.jit.script or torch.jit.trace.",
        )
    copied = copy_to_meta(torch, inner)
    passes, failure = _passes(torch, copied, example)
    parameters = dict(copied.named_parameters())
    figures = layers_of(passes, parameters, _stored_buffers(torch, copied))
    title = name or type(inner).__name__
    dnn = Dnn(title, figures.layers, source=f"torch module {type(inner).__name__}, torch {torch.__version__}")
    inputs = [dnn.inputs_of(layer.name) for layer in dnn.layers]
    dnn = Dnn(title, figures.layers, source=dnn.source, repeats=repeats_of(dnn.layers, inputs))
    dtype, notes = _dtype(parameters.values())
    return Imported(
        dnn=dnn,
        dtype=dtype,
        facts=_facts(passes, figures),
        notes=(*notes, *_notes(copied, passes, figures, parameters)),
        warnings=(*_warnings(passes, figures, failure), *_complex(parameters)),
    )


# -- the passes ------------------------------------------------------------------------------------------------------


def _passes(torch: Any, module: Any, example: object) -> tuple[Passes, str]:
    """Return both passes, and why the second could not be run, if so."""
    arguments = _arguments_of(module)
    sample, batch = sample_of(torch, example, arguments)
    try:
        if any(isinstance(one, torch.nn.modules.lazy.LazyModuleMixin) for one in module.modules()):
            with torch.device("meta"), torch.no_grad():
                sample.call(module)
        one = record(torch, module, sample, flop_counter(torch), runs_backward=True)
    except NeedsValuesError as error:
        raise fault_of(
            f"the path of the forward pass depends on values: {error}.",
            "Give a module whose path is the same for every sample; mixtures of experts of transformers have one with "
            "experts_implementation='grouped_mm' or 'batched_mm'.",
        ) from None
    except Exception as error:  # whatever the user's module raises
        raise fault_of(
            f"the module's forward pass fails on tensors without values (the meta device): {last_line(error)}.",
            "Check that module(example) runs. A pass must not leave torch (numpy, .tolist()), nor depend on values.",
        ) from error
    try:
        two = _larger(torch, module, example, arguments, 2)
        if _is_alike(one, two):
            return Passes(one=one, two=two, batch=batch), ""
        four = _larger(torch, module, example, arguments, 4)  # a batch of one is often a case of its own
    except Exception as error:  # as above; figures of one pass still stand
        return Passes(one=one, two=one, batch=batch), last_line(error)
    if _is_alike(two, four):
        return Passes(one=two, two=four, batch=2 * batch), ""
    return Passes(one=one, two=one, batch=batch), "it runs other operators then"


def _arguments_of(module: Any) -> list[str]:
    """Return the names of the arguments of a module's forward; none where it does not tell."""
    try:
        return list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):  # scripted modules have no signature
        return []


def _larger(torch: Any, module: Any, example: object, arguments: list[str], times: int) -> Recording:
    """Return a pass at a multiple of the example's batch."""
    sample, _ = sample_of(torch, example, arguments, times=times)
    return record(torch, module, sample, flop_counter(torch), runs_backward=True)


def _is_alike(one: Recording, two: Recording) -> bool:
    """Whether two passes run the same operators."""
    pairs = zip(one.operations, two.operations, strict=False)
    is_same = all(first.name == second.name and first.call.name == second.call.name for first, second in pairs)
    return is_same and len(one.operations) == len(two.operations)


def _stored_buffers(torch: Any, module: Any) -> dict[str, Any]:
    """Return the floating-point buffers that are stored with the module, by name."""
    kept = {}
    for path, one in module.named_modules():
        for name, tensor in one._buffers.items():
            is_stored = tensor is not None and name not in one._non_persistent_buffers_set
            if is_stored and tensor.is_floating_point():
                kept[f"{path}.{name}" if path else name] = tensor
    return kept


def _dtype(parameters: Iterable[Any]) -> tuple[str | None, list[str]]:
    """Return the type of most parameters, and a note where there are several types."""
    sizes: Counter[str] = Counter()
    for tensor in parameters:
        sizes[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    if not sizes:
        return None, []
    (most, _), *others = sizes.most_common()
    notes = [f"parameters are of {most}; {', '.join(f'{size:,} of {other}' for other, size in others)}"]
    return _DTYPES.get(most), notes if others else []


# -- what to tell ----------------------------------------------------------------------------------------------------


def _facts(passes: Passes, figures: Figures) -> dict[str, float]:
    """Return the totals beside the network's own."""
    facts = {
        "counted_batch": float(passes.batch),
        "forward_flop": passes.one.total_flop / passes.batch,
        "fixed_multiply_adds": float(figures.fixed_multiply_adds),
        "saved_bytes": figures.saved_bytes,
        "fixed_saved_bytes": figures.fixed_saved_bytes,
    }
    if passes.one.backward_flop is not None:
        facts["backward_flop"] = passes.one.backward_flop / passes.batch
    return facts


def _notes(module: Any, passes: Passes, figures: Figures, parameters: Mapping[str, Any]) -> list[str]:
    """Return what was assumed."""
    notes = []
    if not module.training:
        notes.append("the module is in evaluation mode: dropout does nothing; call .train() before, for training")
    if figures.fixed_multiply_adds:
        notes.append(
            f"{figures.fixed_multiply_adds:,} multiply-adds of a pass do not grow with the batch and are in no layer"
        )
    if any(one.scope is not None for one in passes.one.operations):
        notes.append("scaled_dot_product_attention is taken for a fused kernel, which keeps no scores")
    frozen = sum(tensor.numel() for tensor in parameters.values() if not tensor.requires_grad)
    if frozen:
        notes.append(f"{frozen:,} parameters have no gradient (requires_grad=False): stored, not exchanged")
    calls: Counter[str] = Counter()
    seen: set[int] = set()
    for one in passes.one.operations:
        if one.call.index not in seen and one.call.name and one.call.is_leaf:
            seen.add(one.call.index)
            calls[one.call.name] += 1
    if repeated := [name for name, count in calls.items() if count > 1]:
        notes.append(f"used several times, with the same parameters: {_some(repeated)}")
    checkpointed = {one.call.name or "the whole module" for one in passes.one.operations if one.is_checkpointed}
    if checkpointed or any(name in _CHECKPOINTS for name in passes.one.custom_functions):
        outermost = [
            name for name in sorted(checkpointed) if not any(name.startswith(f"{one}.") for one in checkpointed)
        ]
        notes.append(
            f"activations are checkpointed{f' ({_some(outermost)})' if outermost else ''}: their forward "
            f"pass runs again in the backward pass, which counts in backward_flop alone"
        )
    return notes


def _warnings(passes: Passes, figures: Figures, failure: str) -> list[str]:
    """Return what makes the figures doubtful."""
    warnings = []
    unknown = Counter(f"{one.library}.{one.name}" for one in passes.one.operations if one.is_unknown)
    if unknown:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(unknown.items()))
        warnings.append(f"{unknown.total()} operators without a formula for their work count none: {listed}")
    custom = [name for name in passes.one.custom_functions if name not in _CHECKPOINTS]
    if custom:
        warnings.append(f"custom autograd functions, of which only what torch sees is counted: {_some(custom)}")
    if failure:
        warnings.append(
            f"with twice the batch the module does not run alike ({failure}); all figures are taken to grow with it"
        )
    if figures.grown:
        warnings.append(
            f"the work of {_some(figures.grown)} grows faster than the batch; is the first dimension of the example "
            f"the batch?"
        )
    if figures.unread:
        warnings.append(f"{len(figures.unread)} parameters are not read and left out: {_some(figures.unread)}")
    if passes.one.backward_problem:
        warnings.append(f"the backward pass was not counted: {passes.one.backward_problem}")
    elif passes.one.backward_flop is None:
        warnings.append("nothing has a gradient: the backward pass was not counted")
    return warnings


def _complex(parameters: Mapping[str, Any]) -> list[str]:
    """Warn of complex parameters, which are two numbers each."""
    found = [name for name, tensor in parameters.items() if tensor.is_complex()]
    if not found:
        return []
    return [
        f"complex parameters count as one number each, and their products as one multiply-add, though devices do "
        f"four: {_some(found)}"
    ]


def _some(names: Iterable[str]) -> str:
    """Return the first names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - 5} more" if len(every) > 5 else ""
    return ", ".join(every[:5]) + more
