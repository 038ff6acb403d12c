"""One forward pass of a module on the meta device, operator by operator.

Three observers watch it: hooks on modules tell which one runs, a dispatch mode sees every operator with its tensors,
and hooks on saved tensors see what autograd keeps for the backward pass. Tensors are known by their storage, so that
views of one array, and what is written into it, are one thing. FLOP are the growth of a ``FlopCounterMode`` that
watches from outside, so that their sum is its total.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.importers.torch_module.copy import Sample
from planner.importers.torch_module.library import (
    custom_functions,
    is_writing,
    name_of,
    needs_formula,
    run_without_memory,
)
from planner.importers.torch_module.modes import dispatch_mode, fused_attention
from planner.importers.torch_module.numbers import KnownNumbers

__all__ = ["Call", "Operation", "Output", "Recording", "record"]


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a module: its name in the network, itself, and whether it has modules within."""

    index: int
    name: str
    module: Any
    is_leaf: bool


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that an operator puts out."""

    storage: int
    shape: tuple[int, ...]
    is_floating: bool


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator of the pass, ``scope`` where it is part of an attention that a fused kernel does."""

    library: str
    name: str
    call: Call
    scope: int | None
    flop: int
    inputs: tuple[int, ...]
    outputs: tuple[Output, ...]
    is_unknown: bool
    is_writing: bool
    is_checkpointed: bool


@dataclass(slots=True)
class Recording:
    """What a pass left.

    Attributes
    ----------
    given, given_shapes, floating_inputs
        Storage of each tensor of the sample; shapes; and which of them hold floating-point numbers.
    held
        Storage of each parameter and buffer, by name; tied ones share it.
    saved
        Storages that autograd keeps, with their bytes, parameters and buffers left out, and what a fused attention
        does not keep.
    sizes_bytes
        Of all storages.
    results
        Storages of the module's outputs.
    backward_flop
        None where the backward pass could not be run.
    custom_functions
        Names of custom autograd functions that the outputs came through.
    """

    given: dict[str, int] = field(default_factory=dict)
    given_shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    floating_inputs: set[int] = field(default_factory=set)
    held: dict[str, int] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    saved: dict[int, int] = field(default_factory=dict)
    sizes_bytes: dict[int, int] = field(default_factory=dict)
    results: list[int] = field(default_factory=list)
    total_flop: int = 0
    backward_flop: int | None = None
    backward_problem: str = ""
    custom_functions: tuple[str, ...] = ()


def record(torch: Any, module: Any, sample: Sample, counter: Any, *, runs_backward: bool) -> Recording:
    """Return the record of one pass of a module that lies on the meta device.

    Raises
    ------
    Exception
        Whatever the module raises; ``NeedsValuesError`` where it asks for a number that is not there.
    """
    watch = _Watch(torch, counter)
    watch.hold(module, sample)
    with counter, torch.enable_grad():
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.device("meta"))
            stack.enter_context(watch.hooks_on(module))
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(watch.pack, _same))
            stack.enter_context(fused_attention(torch, watch.fused, watch.save))
            stack.enter_context(dispatch_mode(watch.run))
            result = sample.call(module)
        watch.recording.total_flop = counter.get_total_flops()
        watch.end(result, runs_backward=runs_backward)
    return watch.recording


class _Watch:
    """What the observers share."""

    def __init__(self, torch: Any, counter: Any) -> None:
        self.torch, self.counter = torch, counter
        self.recording = Recording()
        self.scope: int | None = None
        self._num_scopes = 0
        self._calls: list[Call] = []
        self._num_calls = 0
        self._kept: dict[int, tuple[int, Any]] = {}  # the storages themselves: a freed one's address is used again
        self._is_over = False
        self._numbers = KnownNumbers(torch, self.storage)

    # -- tensors -----------------------------------------------------------------------------------------------------

    def storage(self, tensor: Any) -> int:
        """Return the number of a tensor's storage."""
        storage = tensor.untyped_storage()
        number, _ = self._kept.setdefault(storage._cdata, (len(self._kept), storage))
        return number

    def hold(self, module: Any, sample: Sample) -> None:
        """Name the tensors that are there before the pass."""
        self.recording.given = {name: self.storage(tensor) for name, tensor in sample.tensors.items()}
        self.recording.given_shapes = {self.storage(tensor): tuple(tensor.shape) for tensor in sample.tensors.values()}
        self.recording.floating_inputs = {
            self.storage(tensor)
            for tensor in sample.tensors.values()
            if tensor.is_floating_point() or tensor.is_complex()
        }
        for name, real in sample.values.items():
            self._numbers.know(sample.tensors[name], real)
        for name, tensor in (*module.named_parameters(remove_duplicate=False), *module.named_buffers()):
            self.recording.held[name] = self.storage(tensor)

    def pack(self, tensor: Any) -> Any:
        """Note what autograd keeps."""
        if tensor.layout == self.torch.strided and self.scope is None:
            self.save(tensor)
        return tensor

    def save(self, tensor: Any) -> None:
        """Note that a tensor stays until the backward pass."""
        self.recording.saved[self.storage(tensor)] = tensor.untyped_storage().nbytes()

    # -- modules -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def hooks_on(self, module: Any) -> Iterator[None]:
        """Follow which module runs."""
        handles = []
        for name, one in module.named_modules():
            handles.append(one.register_forward_pre_hook(self._entering(name), prepend=True))
            handles.append(one.register_forward_hook(self._leaving, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _entering(self, name: str) -> Callable[[Any, Any], None]:
        def enter(module: Any, _: Any) -> None:
            is_leaf = next(module.children(), None) is None
            self._calls.append(Call(self._num_calls, name, module, is_leaf))
            self._num_calls += 1

        return enter

    def _leaving(self, module: Any, *_: Any) -> None:
        while self._calls and self._calls.pop().module is not module:
            pass

    @contextlib.contextmanager
    def fused(self) -> Iterator[None]:
        """Take the operators within for one kernel."""
        outer, self.scope = self.scope, self._num_scopes if self.scope is None else self.scope
        self._num_scopes += outer is None
        try:
            yield
        finally:
            self.scope = outer

    # -- operators ---------------------------------------------------------------------------------------------------

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator and note it, unless it belongs to the backward pass."""
        if self._is_over:
            return run_without_memory(self.torch, function, args, kwargs)
        tensors = self._tensors((args, kwargs))
        if name_of(function)[1] == "_local_scalar_dense":
            return self._numbers.value(tensors[0])
        given = dict(zip(map(id, tensors), self._numbers.of(tensors), strict=True))
        before = self.counter.get_total_flops()
        result = run_without_memory(self.torch, function, args, kwargs)
        flop = self.counter.get_total_flops() - before
        outputs = self._tensors(result)
        self._note(function, tensors, outputs, flop)
        if hasattr(function, "_schema"):
            self._numbers.compute(function, args, kwargs, given, outputs)
        return result

    def _tensors(self, tree: Any) -> list[Any]:
        leaves = self.torch.utils._pytree.tree_leaves(tree)
        return [leaf for leaf in leaves if isinstance(leaf, self.torch.Tensor) and leaf.layout == self.torch.strided]

    def _note(self, function: Any, tensors: Sequence[Any], outputs: Sequence[Any], flop: int) -> None:
        library, name = name_of(function)
        call = self._calls[-1] if self._calls else Call(-1, "", None, False)
        is_floating = any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)
        self.recording.operations.append(
            Operation(
                library,
                name,
                call,
                self.scope,
                flop,
                tuple(dict.fromkeys(map(self.storage, tensors))),
                tuple(
                    Output(self.storage(out), tuple(out.shape), out.is_floating_point() or out.is_complex())
                    for out in outputs
                ),
                is_unknown=not flop and is_floating and needs_formula(self.torch, function),
                is_writing=is_writing(self.torch, function),
                is_checkpointed=self._is_checkpointed(),
            )
        )

    def _is_checkpointed(self) -> bool:
        """Whether somebody else's hooks get what is saved now: those of a checkpoint, which keeps nothing."""
        top = getattr(self.torch._C._autograd, "_top_saved_tensors_default_hooks", None)
        hooks = top(True) if top is not None else None
        return hooks is not None and hooks[0] != self.pack

    # -- the end -----------------------------------------------------------------------------------------------------

    def end(self, result: Any, *, runs_backward: bool) -> None:
        """Note the outputs, and run backward from them."""
        outputs = [out for out in self._tensors(result) if out.is_floating_point() or out.is_complex()]
        self.recording.results = list(dict.fromkeys(map(self.storage, outputs)))
        self.recording.sizes_bytes = {number: storage.nbytes() for number, storage in self._kept.values()}
        for held in self.recording.held.values():
            self.recording.saved.pop(held, None)
        ends = [out for out in outputs if out.grad_fn is not None]
        self.recording.custom_functions = custom_functions(self.torch, ends)
        if not runs_backward or not ends:
            return
        before = self.counter.get_total_flops()
        self._is_over = True
        try:
            with self.torch.device("meta"), dispatch_mode(self.run):
                self.torch.autograd.backward(ends, [self.torch.empty_like(out) for out in ends])
        except Exception as error:  # figures of the forward pass stand without it
            self.recording.backward_problem = f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"
            return
        self.recording.backward_flop = self.counter.get_total_flops() - before


def _same(tensor: Any) -> Any:
    """Return what was packed."""
    return tensor
