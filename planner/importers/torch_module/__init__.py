"""Networks of torch: from a module, or a factory that the user names, to layers, work and activations.

The module is copied to torch's meta device and run twice, with the example's batch and with twice that batch; see
:mod:`.recording` for what is watched, :mod:`.layers` for what becomes a layer. Everything is counted, nothing is
computed: a network of a hundred billion parameters takes seconds. torch itself is imported when a module is read, not
before.

:func:`read_factory` is the only reader that runs code of others. Nothing but a name that the user typed leads there.
"""

import importlib
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.dnn import Dnn
from planner.errors import SpecError
from planner.importers.imported import Imported, first_names, repeats_of
from planner.importers.torch_module.layers import Figures, Passes, layers_of
from planner.importers.torch_module.recording import (
    NeedsValuesError,
    Recording,
    copy_to_meta,
    count_backward,
    last_line,
    load_torch,
    record,
    sample_of,
)

__all__ = ["from_torch", "read_factory"]

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
        ``fixed_saved_bytes`` kept once; ``counted_batch``, the example's or, where a batch of one runs other operators
        or fails, some times that. ``counted_batch`` times the network's multiply-adds plus the fixed ones are half of
        ``FlopCounterMode.get_total_flops()`` at that batch, exactly.

    Raises
    ------
    SpecError
        If torch is missing, or the module cannot be copied or run without values.
    """
    torch = load_torch()
    if not isinstance(module, torch.nn.Module):
        raise SpecError.one(f"{type(module).__name__} is no torch.nn.Module.", "Give an instance of a module.")
    inner: Any = getattr(module, "_orig_mod", module)  # what torch.compile wraps
    if any(isinstance(one, torch.jit.ScriptModule) for one in inner.modules()):
        raise SpecError.one(
            f"{type(module).__name__} is compiled by TorchScript, which hides its modules.",
            "Give the module before torch.jit.script or torch.jit.trace.",
        )
    copied = copy_to_meta(torch, inner)
    passes, failure = _passes(torch, copied, example)
    count_backward(torch, passes.one)
    parameters = dict(copied.named_parameters())
    figures = layers_of(passes, parameters, dict(_stored_buffers(copied)))
    title, source = name or type(inner).__name__, f"torch module {type(inner).__name__}, torch {torch.__version__}"
    dnn = Dnn(title, figures.layers, source=source)
    repeats = repeats_of(dnn.layers, [dnn.inputs_of(layer.name) for layer in dnn.layers])
    sizes: Counter[str] = Counter()
    for tensor in parameters.values():
        sizes[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    facts = {
        "counted_batch": float(passes.batch),
        "forward_flop": passes.one.total_flop / passes.batch,
        "fixed_multiply_adds": float(figures.fixed_multiply_adds),
        "saved_bytes": figures.saved_bytes,
        "fixed_saved_bytes": figures.fixed_saved_bytes,
    }
    if passes.one.backward_flop is not None:
        facts["backward_flop"] = passes.one.backward_flop / passes.batch
    return Imported(
        dnn=Dnn(title, figures.layers, source=source, repeats=repeats),
        dtype=_DTYPES.get(sizes.most_common(1)[0][0]) if sizes else None,
        facts=facts,
        notes=tuple(_notes(copied, passes, figures, parameters, sizes)),
        warnings=tuple(_warnings(passes, figures, failure, parameters)),
    )


def _passes(torch: Any, module: Any, example: object) -> tuple[Passes, str]:
    """Return both passes, and why the second could not be run, if so."""
    try:
        arguments = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):  # scripted modules have no signature
        arguments = []
    batch = sample_of(torch, example, arguments)[1]

    def run(times: int) -> Recording:
        sample = sample_of(torch, example, arguments, times=times)[0]
        if any(isinstance(one, torch.nn.modules.lazy.LazyModuleMixin) for one in module.modules()):
            with torch.device("meta"), torch.no_grad():
                sample.call(module)
        return record(torch, module, sample)

    times, one = _first_pass(run, batch)
    alone = Passes(one=one, two=one, batch=times * batch, is_more=times > 1)
    try:
        two = run(2 * times)
        if _is_alike(one, two):
            return replace(alone, two=two), ""
        four = run(4 * times)
    except Exception as error:  # whatever the user's module raises; figures of one pass still stand
        return alone, last_line(error)
    if _is_alike(two, four):  # a batch of one is often a case of its own
        return replace(alone, one=two, two=four, batch=2 * times * batch), ""
    return alone, "it runs other operators then"


def _first_pass(run: Callable[[int], Recording], batch: int) -> tuple[int, Recording]:
    """Return the first pass that runs, and at how many times the example's batch.

    One sample is not enough for some modules in training: a batch norm of one value for each channel refuses.
    """
    try:
        return 1, run(1)
    except NeedsValuesError as error:
        raise SpecError.one(
            f"the path of the forward pass depends on values: {error}.",
            "Give a module whose path is the same for every sample; mixtures of experts of transformers have one with "
            "experts_implementation='grouped_mm' or 'batched_mm'.",
        ) from None
    except Exception as error:  # whatever the user's module raises
        for times in (2, 4) if batch == 1 else ():
            with suppress(Exception):
                return times, run(times)
        raise SpecError.one(
            f"the module's forward pass fails on tensors without values (the meta device): {last_line(error)}.",
            _mend_of(error),
        ) from error


def _mend_of(error: Exception) -> str:
    """Return what to do where a forward pass fails."""
    if isinstance(error, ImportError):
        return "Install what it names, or give a module that runs without it."
    if "fake impl" in str(error) and "aten::" not in str(error):  # torch's words for an operator of another library
        return "Tell torch what shape that operator puts out: torch.library.register_fake."
    return "Check that module(example) runs. A pass must not leave torch (numpy, .tolist()), nor depend on values."


def _is_alike(one: Recording, two: Recording) -> bool:
    """Whether two passes run the same operators."""
    pairs = zip(one.operations, two.operations, strict=False)
    is_same = all(first.name == second.name and first.call.name == second.call.name for first, second in pairs)
    return is_same and len(one.operations) == len(two.operations)


def _stored_buffers(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the floating-point buffers that are stored with the module, by name."""
    for path, one in module.named_modules():
        for name, tensor in one._buffers.items():
            is_stored = tensor is not None and name not in one._non_persistent_buffers_set
            if is_stored and tensor.is_floating_point():
                yield f"{path}.{name}" if path else name, tensor


def _notes(
    module: Any, passes: Passes, figures: Figures, parameters: Mapping[str, Any], sizes: Counter[str]
) -> list[str]:
    """Return what was assumed; ``sizes``: numbers of parameters by their type."""
    notes = []
    if len(sizes) > 1:
        (most, _), *others = sizes.most_common()
        notes.append(f"parameters are of {most}; {', '.join(f'{size:,} of {other}' for other, size in others)}")
    if not module.training:
        notes.append("the module is in evaluation mode: dropout does nothing; call .train() before, for training")
    if figures.fixed_multiply_adds:
        notes.append(
            f"{figures.fixed_multiply_adds:,} multiply-adds of a pass do not grow with the batch and are in no layer"
        )
    if passes.is_more:
        notes.append(f"the module fails with a batch of one: counted at a batch of {passes.batch}")
    if any(one.scope is not None for one in passes.one.operations):
        notes.append("scaled_dot_product_attention is taken for a fused kernel, which keeps no scores")
    frozen = sum(tensor.numel() for tensor in parameters.values() if not tensor.requires_grad)
    if frozen:
        notes.append(f"{frozen:,} parameters have no gradient (requires_grad=False): stored, not exchanged")
    calls = {one.call.index: one.call.name for one in passes.one.operations if one.call.name and one.call.is_leaf}
    if repeated := [name for name, count in Counter(calls.values()).items() if count > 1]:
        notes.append(f"used several times, with the same parameters: {first_names(repeated)}")
    checkpointed = {one.call.name or "the whole module" for one in passes.one.operations if one.is_checkpointed}
    if checkpointed or any(name in _CHECKPOINTS for name in passes.one.custom_functions):
        outermost = [
            name for name in sorted(checkpointed) if not any(name.startswith(f"{one}.") for one in checkpointed)
        ]
        notes.append(
            f"activations are checkpointed{f' ({first_names(outermost)})' if outermost else ''}: their forward "
            f"pass runs again in the backward pass, which counts in backward_flop alone"
        )
    return notes


def _warnings(passes: Passes, figures: Figures, failure: str, parameters: Mapping[str, Any]) -> list[str]:
    warnings = []
    unknown = Counter(f"{one.library}.{one.name}" for one in passes.one.operations if one.is_unknown)
    if unknown:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(unknown.items()))
        share = f"{100 * figures.unknown_share:.2g} % of the elements that are read and written are theirs"
        warnings.append(f"{unknown.total()} operators without a formula for their work count none: {listed}; {share}")
    custom = [name for name in passes.one.custom_functions if name not in _CHECKPOINTS]
    if custom:
        warnings.append(f"custom autograd functions, of which only what torch sees is counted: {first_names(custom)}")
    if failure:
        warnings.append(
            f"with twice the batch the module does not run alike ({failure}); all figures are taken to grow with it"
        )
    if figures.grown:
        warnings.append(
            f"the work of {first_names(figures.grown)} grows faster than the batch; is the first dimension of the "
            f"example the batch?"
        )
    if figures.unread:
        warnings.append(f"{len(figures.unread)} parameters are not read and left out: {first_names(figures.unread)}")
    if passes.one.backward_problem:
        warnings.append(f"the backward pass was not counted: {passes.one.backward_problem}")
    elif passes.one.backward_flop is None:
        warnings.append("nothing has a gradient: the backward pass was not counted")
    if found := [name for name, tensor in parameters.items() if tensor.is_complex()]:
        warnings.append(
            f"complex parameters count as one number each, and their products as one multiply-add, though devices do "
            f"four: {first_names(found)}"
        )
    return warnings


# -- factories -------------------------------------------------------------------------------------------------------


def read_factory(named: str, folder: Path | None) -> Imported:
    """Return the network of the module that a function makes.

    Parameters
    ----------
    named
        ``package.module:function``. The function takes no arguments and returns a module and its example, ``(module,
        example)`` as :func:`from_torch` takes them, or a module with an attribute
        ``example_input``.
    folder
        Where to look for the package first; None for the installed ones alone.

    Raises
    ------
    SpecError
        If torch is missing, the name leads nowhere, the user's code raises (its last line is told), or what it returns
        is no module with an example.
    """
    torch = load_torch()
    package, separator, function = named.partition(":")
    parts = [*package.split("."), *function.split(".")]
    if not separator or not all(part.isidentifier() for part in parts):
        raise _fault(named, f"{named!r} is no name of a factory.", "Write package.module:function.")
    # What the user's code prints goes beside the answer, not into it: that may be one JSON document.
    with redirect_stdout(sys.stderr), _found_in(folder):
        try:
            factory: object = importlib.import_module(package)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{package}.".startswith(f"{error.name}."):
                where = f" in {folder}, nor is it installed" if folder is not None else " installed"
                raise _fault(named, f"there is no module {error.name!r}{where}.", "Check the name.") from None
            raise _broken(named, "cannot be imported", error) from error
        except (Exception, SystemExit) as error:  # whatever the user's code raises
            raise _broken(named, "cannot be imported", error) from error
        for part in function.split("."):
            if not hasattr(factory, part):
                raise _fault(named, f"module {package!r} has no {function!r}.", "Check the function's name.")
            factory = getattr(factory, part)
        if not callable(factory):
            raise _fault(named, f"{function!r} is no function.", "Name a function that returns (module, example).")
        try:
            made: object = factory()
        except (Exception, SystemExit) as error:  # as above
            raise _broken(named, "fails", error) from error
        if isinstance(made, tuple) and len(made) == 2:
            module, example = made
        else:
            module, example = made, getattr(made, "example_input", None)
        if not isinstance(module, torch.nn.Module) or example is None:
            what = f"a {type(made).__name__}"
            if isinstance(made, tuple):
                what = f"a tuple of {', '.join(type(part).__name__ for part in made[:5]) or 'nothing'}"
            raise _fault(
                named,
                f"it returns {what}, not a module with an example.",
                "Return (module, example), or give the module an attribute example_input.",
            )
        return from_torch(module, example)


@contextmanager
def _found_in(folder: Path | None) -> Iterator[None]:
    """Look for modules in a folder first."""
    before = list(sys.path)
    if folder is not None:
        sys.path.insert(0, str(folder.resolve()))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def _broken(named: str, what: str, error: BaseException) -> SpecError:
    """Return an error for code that raises."""
    return _fault(named, f"{named} {what}: {last_line(error)}.", "Run it by itself, and mend it.")


def _fault(named: str, problem: str, hint: str) -> SpecError:
    return SpecError.one(problem, hint, field="dnn.torch", value=named)
