"""One forward pass of a module on torch's meta device, operator by operator, and what counts as work.

Tensors of the meta device have shapes and types, but no numbers, so that a network of any size fits. The user's module
is left as it is: a deep copy is told beforehand what stands for each tensor. Three observers watch the pass: hooks on
modules tell which one runs, a dispatch mode sees every operator with its tensors, and hooks on saved tensors see what
autograd keeps for the backward pass. Tensors are known by their storage, so that views of one array, and what is
written into it, are one thing.

FLOP are those of ``torch.utils.flop_counter.FlopCounterMode`` (torch 2.13, torch/utils/flop_counter.py): its formulas
are asked directly, and it runs itself only where an operator is made of others. It counts 0 for what it has no formula
for. Formulas are added for
matrix-vector products, for grouped products (the experts of a mixture: torch.nn.functional.grouped_mm, and the operator
of transformers that stands in for it) and for the attention kernel of CPUs. What is left without a formula is told by
name. The formula for the gradients of convolutions forgets their groups there (a depth-wise one counts as often as it
has channels), and is replaced.

torch is imported when a module is read, not before; everything that is asked of it beyond its documented interface
stands here.
"""

import contextlib
import copy
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from types import ModuleType
from typing import Any

from planner.errors import SpecError
from planner.frozen import frozen
from planner.shipped import shipped_text

_PLAIN = (bool, int, float, str)  # arguments of operators that hold nothing
_MOST_KNOWN = 2**20  # numbers of one tensor that are computed along


def load_torch() -> ModuleType:
    """Return the module ``torch``; raise SpecError if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise SpecError.one("torch is not installed.", "Run pip install 'training-planner[torch]'.") from None


def last_line(error: BaseException) -> str:
    """Return the kind of an error and the last line that says something, at most 300 characters, without its stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:300].rstrip('.') if lines else 'no message'}"


# -- a module without memory, and the sample that goes with it ---------------------------------------------------------


def copy_to_meta(torch: ModuleType, module: Any) -> Any:
    """Return a copy of a module on the meta device.

    Raises
    ------
    SpecError
        If the module cannot be copied.
    """
    memo: dict[int, Any] = {}
    for one in module.modules():
        for held in (*one._parameters.values(), *one._buffers.values(), *_tensors_in(torch, vars(one))):
            if held is not None and id(held) not in memo:
                memo[id(held)] = _empty(torch, held)
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:  # what the user's objects raise when they are copied
        raise SpecError.one(
            f"the module {type(module).__name__} cannot be copied: {last_line(error)}.",
            "Give the plain module, before it is wrapped (DistributedDataParallel, FSDP, torch.compile).",
        ) from None


def _tensors_in(torch: ModuleType, held: Any, depth: int = 0) -> list[Any]:
    """Return the tensors among a module's plain attributes, also in lists and dicts."""
    if isinstance(held, torch.Tensor):
        return [held]
    if depth > 3 or not isinstance(held, dict | list | tuple):
        return []
    values = list(held.values()) if isinstance(held, dict) else held
    return [tensor for value in values for tensor in _tensors_in(torch, value, depth + 1)]


def _empty(torch: ModuleType, held: Any) -> Any:
    """Return what stands for a parameter, a buffer or another tensor."""
    nn = torch.nn.parameter
    if isinstance(held, nn.UninitializedParameter):
        return nn.UninitializedParameter(requires_grad=held.requires_grad, device="meta", dtype=held.dtype)
    if isinstance(held, nn.UninitializedBuffer):
        return nn.UninitializedBuffer(device="meta", dtype=held.dtype)
    empty = torch.empty_like(held.detach(), device="meta")
    if isinstance(held, torch.nn.Parameter):
        return torch.nn.Parameter(empty, requires_grad=held.requires_grad)
    return empty.requires_grad_(held.requires_grad)


@frozen(kw_only=False)
class Sample:
    """What a module is called with."""

    tensors: Mapping[str, Any]  # every tensor of the call, on the meta device, by a name
    # their numbers where they are integers or booleans and few: what a module asks of them can be answered
    values: Mapping[str, Any]
    call: Callable[[Any], Any]  # calls a module


def sample_of(torch: ModuleType, example: object, parameters: list[str], *, times: int = 1) -> tuple[Sample, int]:
    """Return the sample and its batch: the leading dimension of the first tensor.

    Parameters
    ----------
    example
        A tensor, a tuple or list of positional arguments, a mapping of keyword arguments, or a tuple of both.
    parameters
        Names of the module's arguments.
    times
        By how much to multiply every leading dimension that equals the batch.

    Raises
    ------
    SpecError
        If there is no tensor in it, or the first one has no dimension.
    """
    args, kwargs = _arguments(example)
    pytree = torch.utils._pytree
    leaves, spec = pytree.tree_flatten((args, kwargs))
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not given or not given[0].dim() or not given[0].shape[0]:
        problem = "has no tensor" if not given else f"begins with a tensor of shape {tuple(given[0].shape)}"
        raise SpecError.one(
            f"the example {problem}, so that there is no batch.",
            "Give a tensor whose first dimension is the batch, a tuple of arguments, or a dict of keyword arguments.",
        )
    batch = given[0].shape[0]
    # A name for every tensor: of its argument, numbered where that holds several.
    names: list[str] = []
    more = (f"input{i}" for i in range(len(parameters), len(args)))
    for name, value in [*zip([*parameters, *more], args, strict=False), *kwargs.items()]:
        held = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        names += [name if len(held) == 1 else f"{name}.{i}" for i in range(len(held))]
    next_name = iter(names if len(names) != 1 else ["input"])
    tensors: dict[str, Any] = {}
    values: dict[str, Any] = {}
    stand_ins = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            stand_ins.append(leaf)
            continue
        name, real = next(next_name), leaf.detach()
        if times > 1 and real.dim() and real.shape[0] == batch:
            is_known = not (real.is_floating_point() or real.device.type == "meta" or real.numel() > _MOST_KNOWN)
            shape = (times * batch, *real.shape[1:])
            real = torch.cat([real] * times) if is_known else torch.empty(shape, dtype=real.dtype, device="meta")
        tensors[name] = torch.empty_like(real, device="meta", requires_grad=leaf.requires_grad)
        if leaf.device.type != "meta" and not real.is_floating_point() and real.numel() <= _MOST_KNOWN:
            values[name] = real.cpu()
        stand_ins.append(tensors[name])
    args, kwargs = pytree.tree_unflatten(stand_ins, spec)
    return Sample(tensors, values, lambda module: module(*args, **kwargs)), batch


def _arguments(example: Any) -> tuple[list[Any], dict[str, Any]]:
    positional: object = example
    named: Mapping[Any, Any] = {}
    match example:
        case Mapping():
            positional, named = (), example
        case (tuple() as first, Mapping() as second) if isinstance(example, tuple):
            positional, named = first, second
    args = list(positional) if isinstance(positional, tuple | list) else [positional]
    return args, {str(key): value for key, value in named.items()}


# -- numbers that follow from shapes alone -----------------------------------------------------------------------------


class NeedsValuesError(RuntimeError):
    """A module asks for a number that a tensor without memory does not have."""


class _KnownNumbers:
    """The numbers of tensors by their place in their storage; views share theirs as the tensors do.

    Positions and masks are computed along, where they are few, and so is what is made of the example's whole numbers:
    modules ask such questions as "is nothing masked?", and get the true answer. What asks for a number of a weight or
    of what was computed with one gets none.

    Parameters
    ----------
    storage_of
        Gives the number of a tensor's storage, which must never be used again.
    """

    def __init__(self, torch: ModuleType, storage_of: Callable[[Any], int]) -> None:
        self._torch, self._storage_of = torch, storage_of
        self._values: dict[int, dict[object, Any]] = {}
        self._without_modes = importlib.import_module("torch.utils._python_dispatch")._disable_current_modes

    def know(self, tensor: Any, real: Any) -> None:
        """Keep the numbers of a tensor."""
        self._values.setdefault(self._storage_of(tensor), {})[self._place(tensor)] = real

    def of(self, tensor: Any) -> Any:
        """Return the numbers of a tensor; None where they are not known."""
        known = self._values.get(self._storage_of(tensor))
        return known.get(self._place(tensor)) if known else None

    def compute(self, function: Any, args: Any, kwargs: Any, given: Mapping[int, Any], outputs: Sequence[Any]) -> None:
        """Compute an operator's numbers where those of all its inputs are known; else forget what it overwrites.

        Parameters
        ----------
        given
            The numbers of its inputs, by the inputs' identity, as they were known before it ran.
        """
        torch, pytree = self._torch, self._torch.utils._pytree

        def real_of(leaf: Any) -> Any:
            if isinstance(leaf, torch.device):
                return torch.device("cpu")
            # An alias: what turns its axes in place must not turn those of the tensor that is kept.
            return given[id(leaf)].detach() if isinstance(leaf, torch.Tensor) else leaf

        is_known = all(real is not None for real in given.values()) and all(
            out.numel() <= _MOST_KNOWN for out in outputs
        )
        # What is drawn, or is memory that nobody wrote, is not known.
        if is_known and torch.Tag.nondeterministic_seeded not in function.tags and "empty" not in _name_of(function)[1]:
            with contextlib.suppress(Exception), self._without_modes():
                result = function(*pytree.tree_map(real_of, args), **pytree.tree_map(real_of, kwargs))
                found = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
                for out, real in zip(outputs, found, strict=True):
                    self.know(out, real)
                return
        if function._schema.is_mutable:
            for out in outputs:
                self._values.pop(self._storage_of(out), None)

    @staticmethod
    def _place(tensor: Any) -> object:
        """Return where in its storage a tensor lies."""
        return (tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


# -- the pass --------------------------------------------------------------------------------------------------------


@frozen(kw_only=False)
class Call:
    """One run of a module: its name in the network, itself, and whether it has modules within."""

    index: int
    name: str
    module: Any
    is_leaf: bool


@frozen(kw_only=False)
class Operand:
    """A tensor that an operator reads or writes.

    ``num_elements`` are those that differ: an axis along which it is spread without being copied counts once.
    """

    storage: int
    shape: tuple[int, ...]
    is_floating: bool
    offset: int
    num_elements: int


@frozen(kw_only=False)
class Attention:
    """What a fused attention reads and puts out; ``others`` are masks."""

    query: Operand
    key: Operand
    value: Operand
    others: tuple[Operand, ...]
    result: Operand

    @property
    def operands(self) -> tuple[Operand, ...]:
        """All that it reads."""
        return (self.query, self.key, self.value, *self.others)


@frozen(kw_only=False)
class Operation:
    """One operator of the pass, ``scope`` where it is part of an attention that a fused kernel does.

    ``inputs`` are the storages of its ``operands``, each once; ``settings`` of a convolution: whether it is transposed,
    and its groups.
    """

    library: str
    name: str
    call: Call
    scope: int | None
    flop: int
    inputs: tuple[int, ...]
    operands: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    settings: tuple[bool, int]
    is_unknown: bool
    is_writing: bool
    is_checkpointed: bool


@dataclass(slots=True)
class Recording:
    """What a pass left."""

    # given, given_shapes, floating_inputs: storage of each tensor of the sample; shapes; and which of them hold
    # floating-point numbers
    given: dict[str, int] = field(default_factory=dict)
    given_shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    floating_inputs: set[int] = field(default_factory=set)
    # storage of each parameter and buffer, by name; tied ones share it
    held: dict[str, int] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    attentions: dict[int, Attention] = field(default_factory=dict)  # by the ``scope`` of their operations
    # storages that autograd keeps, with their bytes, parameters and buffers left out, and what a fused attention does
    # not keep
    saved: dict[int, int] = field(default_factory=dict)
    sizes_bytes: dict[int, int] = field(default_factory=dict)  # of all storages
    results: list[int] = field(default_factory=list)  # storages of the module's outputs
    total_flop: int = 0
    ends: list[Any] = field(default_factory=list)  # outputs that have a gradient, until :func:`count_backward` has run
    backward_flop: int | None = None  # None where the backward pass was not run, or could not be
    backward_problem: str = ""
    custom_functions: tuple[str, ...] = ()  # names of custom autograd functions that the outputs came through


def record(torch: ModuleType, module: object, sample: Sample) -> Recording:
    """Return the record of one forward pass; :func:`count_backward` adds the backward pass.

    Parameters
    ----------
    module
        On the meta device, as :func:`copy_to_meta` gives it.
    sample
        What it is called with; its batch is the batch of all figures.

    Raises
    ------
    Exception
        Whatever the module raises; ``NeedsValuesError`` where it asks for a number that is not there.
    """
    watch = _Watch(torch)
    watch.hold(module, sample)
    with torch.enable_grad(), contextlib.ExitStack() as stack:
        stack.enter_context(torch.device("meta"))
        stack.enter_context(watch.hooks_on(module))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(watch.pack, lambda packed: packed))
        stack.enter_context(_fused_attention(torch, watch))
        stack.enter_context(_dispatch_mode(watch.run))
        result = sample.call(module)
    watch.end(result)
    return watch.recording


def count_backward(torch: ModuleType, recording: Recording) -> None:
    """Run the backward pass of a recorded forward pass, if there is one, and note its FLOP, or why it cannot run."""
    ends, recording.ends = recording.ends, []
    if not ends:
        return
    counter, total_flop = _FlopCounter(torch), 0

    def run(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal total_flop
        result, flop = counter.run(function, args, kwargs)
        total_flop += flop
        return result

    try:
        with torch.enable_grad(), torch.device("meta"), _dispatch_mode(run):
            torch.autograd.backward(ends, [torch.empty_like(out) for out in ends])
    except Exception as error:  # figures of the forward pass stand without it
        recording.backward_problem = last_line(error)
    else:
        recording.backward_flop = total_flop


class _Watch:
    def __init__(self, torch: ModuleType) -> None:
        self.torch, self.counter = torch, _FlopCounter(torch)
        self.recording = Recording()
        self.scope: int | None = None
        self._num_scopes = 0
        self._calls: list[Call] = []
        self._num_calls = 0
        self._kept: dict[int, tuple[int, Any]] = {}  # the storages themselves: a freed one's address is used again
        self._numbers = _KnownNumbers(torch, self.storage)
        self._top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)

    def storage(self, tensor: Any) -> int:
        """Return the number of a tensor's storage."""
        storage = tensor.untyped_storage()
        number, _ = self._kept.setdefault(storage._cdata, (len(self._kept), storage))
        return number

    def operand(self, tensor: Any) -> Operand:
        """Return a tensor as what it is to an operator."""
        shape, elements = tuple(tensor.shape), 1
        for size, stride in zip(shape, tensor.stride(), strict=True):
            elements *= size if stride or not size else 1
        return Operand(self.storage(tensor), shape, _is_floating(tensor), tensor.storage_offset(), elements)

    def hold(self, module: Any, sample: Sample) -> None:
        """Name the tensors that are there before the pass."""
        self.recording.given = {name: self.storage(tensor) for name, tensor in sample.tensors.items()}
        self.recording.given_shapes = {self.storage(tensor): tuple(tensor.shape) for tensor in sample.tensors.values()}
        self.recording.floating_inputs = {
            self.storage(tensor) for tensor in sample.tensors.values() if _is_floating(tensor)
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

    @contextlib.contextmanager
    def hooks_on(self, module: Any) -> Iterator[None]:
        """Follow which module runs."""
        handles = []
        for name, one in module.named_modules():
            handles.append(one.register_forward_pre_hook(partial(self._enter, name), prepend=True))
            handles.append(one.register_forward_hook(self._leaving, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str, module: Any, _: Any) -> None:
        self._calls.append(Call(self._num_calls, name, module, next(module.children(), None) is None))
        self._num_calls += 1

    def _leaving(self, module: Any, *_: Any) -> None:
        while self._calls and self._calls.pop().module is not module:
            pass

    @contextlib.contextmanager
    def fused(self) -> Iterator[int]:
        """Take the operators within for one kernel, whose number it gives."""
        outer, scope = self.scope, self._num_scopes if self.scope is None else self.scope
        self._num_scopes += outer is None
        self.scope = scope
        try:
            yield scope
        finally:
            self.scope = outer

    def note_attention(self, scope: int, given: Sequence[Any], result: Any) -> None:
        """Note what a fused attention reads (query, key, value, perhaps a mask) and puts out."""
        query, key, value, *others = map(self.operand, given)
        self.recording.attentions[scope] = Attention(query, key, value, tuple(others), self.operand(result))

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator and note it."""
        tensors = self._tensors((args, kwargs))
        traits = self.counter.traits(function)
        if traits.name == "_local_scalar_dense":
            real = self._numbers.of(tensors[0])
            if real is None:
                raise NeedsValuesError("the module asks for a value that depends on the sample or on weights")
            return real.item()
        given = {id(tensor): self._numbers.of(tensor) for tensor in tensors}
        operands = tuple(map(self.operand, tensors))  # before it runs: some turn their axes in place
        result, flop = self.counter.run(function, args, kwargs)
        outputs = self._tensors(result)
        # Somebody else's hooks get what is saved now: those of a checkpoint, which keeps nothing.
        hooks = self._top_hooks(True)
        is_convolution = traits.name == "convolution" and len(args) > 8
        self.recording.total_flop += flop
        self.recording.operations.append(
            Operation(
                traits.library,
                traits.name,
                self._calls[-1] if self._calls else Call(-1, "", None, False),
                self.scope,
                flop,
                tuple(dict.fromkeys(one.storage for one in operands)),
                operands,
                tuple(map(self.operand, outputs)),
                (bool(args[6]), int(args[8])) if is_convolution else (False, 1),
                is_unknown=traits.needs_formula and not flop and any(one.is_floating for one in operands),
                is_writing=traits.is_writing,
                is_checkpointed=hooks is not None and hooks[0] != self.pack,
            )
        )
        if traits.has_schema:
            self._numbers.compute(function, args, kwargs, given, outputs)
        return result

    def _tensors(self, tree: Any) -> list[Any]:
        """Return the tensors of an operator's arguments, or of its results."""
        found: list[Any] = []
        waiting = [tree]
        while waiting:
            one = waiting.pop()
            if isinstance(one, self.torch.Tensor):
                if one.layout == self.torch.strided:
                    found.append(one)
            elif isinstance(one, tuple | list):
                waiting += reversed(one)
            elif isinstance(one, dict):
                waiting += reversed(one.values())
            elif one is not None and not isinstance(one, _PLAIN):
                waiting += reversed(self._more_of(one))
        return found

    def _more_of(self, one: Any) -> list[Any]:
        """Return what a container of another kind holds."""
        leaves = self.torch.utils._pytree.tree_leaves(one)
        return [leaf for leaf in leaves if leaf is not one]

    def end(self, result: Any) -> None:
        """Note the outputs."""
        outputs = list(filter(_is_floating, self._tensors(result)))
        self.recording.results = list(dict.fromkeys(map(self.storage, outputs)))
        self.recording.sizes_bytes = {number: storage.nbytes() for number, storage in self._kept.values()}
        for held in self.recording.held.values():
            self.recording.saved.pop(held, None)
        self.recording.ends = [out for out in outputs if out.grad_fn is not None]
        self.recording.custom_functions = _custom_functions(self.torch, self.recording.ends)


def _is_floating(tensor: Any) -> bool:
    """Whether a tensor holds floating-point numbers, complex ones among them."""
    return bool(tensor.is_floating_point() or tensor.is_complex())


def _dispatch_mode(run: Callable[[Any, Any, Any], Any]) -> Any:
    """Return a mode that gives every operator, with its arguments, to ``run``."""
    base: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Mode(base):  # type: ignore[misc]  # torch is imported late, so that its classes are not known
        supports_higher_order_operators = True

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # nothing is compiled here; the guard would import torch._dynamo and sympy

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return run(func, args, kwargs or {})

    return Mode()


@contextlib.contextmanager
def _fused_attention(torch: ModuleType, watch: _Watch) -> Iterator[None]:
    """Take every scaled dot-product attention for one kernel, during a pass.

    The function's name is bound anew for that time: a mode does not see it inside of other functions of torch.
    """
    functional = torch.nn.functional
    attention = functional.scaled_dot_product_attention
    base: Any = torch.overrides.TorchFunctionMode

    def fused(*args: Any, **kwargs: Any) -> Any:
        with watch.fused() as scope:
            result = attention(*args, **kwargs)
        named = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | kwargs
        given = [named[name] for name in ("query", "key", "value", "attn_mask") if named.get(name) is not None]
        for tensor in given[:3]:
            # Such a kernel keeps its inputs, and computes the scores again; its result is kept by who reads it.
            if result.requires_grad:
                watch.save(tensor)
        watch.note_attention(scope, given, result)
        return result

    class Mode(base):  # type: ignore[misc]  # see above
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return (fused if func is attention else func)(*args, **(kwargs or {}))

    functional.scaled_dot_product_attention = fused
    try:
        with Mode():
            yield
    finally:
        functional.scaled_dot_product_attention = attention


# -- operators -------------------------------------------------------------------------------------------------------

# Those that read floating-point numbers and have no products worth counting. Views, copies and what torch tags as
# element by element come on top.
_FREE = frozenset(shipped_text("planner.importers.torch_module", "free_operators.txt").split())


def _name_of(function: Any) -> tuple[str, str]:
    """Return the library and the name of an operator, ``("aten", "add")``; in-place forms lose their underscore."""
    library, _, name = str(getattr(function, "_schema", function)).split("(")[0].partition("::")
    if not name:  # an operator that takes functions, such as flex_attention
        return "higher_order", str(getattr(function, "__name__", function))
    name = name.split(".")[0]
    return library, name.removesuffix("_") if not name.endswith("__") else name


def _needs_formula(torch: ModuleType, function: Any) -> bool:
    """Whether an operator may well do products, so that 0 FLOP of it are worth a warning."""
    library, name = _name_of(function)
    if library != "aten":
        return library not in ("prim", "prims", "debugprims")
    tags = getattr(function, "tags", ())
    is_simple = torch.Tag.pointwise in tags or torch.Tag.inplace_view in tags or getattr(function, "is_view", False)
    return not is_simple and name not in _FREE


@frozen(kw_only=False)
class _Traits:
    """What is known of an operator before it runs."""

    library: str
    name: str
    has_schema: bool
    needs_formula: bool
    is_writing: bool  # one that merely turns the axes of what it is given does not write
    is_made_of_others: bool  # it may be taken apart into operators, some with FLOP
    is_fresh: bool  # by its schema, what it puts out is new memory
    is_in_place: bool  # it writes over what it is given first, and puts that out
    formula: Any  # of its FLOP


class _FlopCounter:
    """Runs operators on the meta device, and counts their FLOP.

    What an operator puts out follows from the shapes that it is given, which torch finds out in Python, in many steps:
    it is remembered, and made anew for the same shapes: networks repeat themselves. What has no dimension is not, since
    the type of a result then depends on where that number comes from.
    """

    def __init__(self, torch: ModuleType) -> None:
        self._torch, self._known = torch, dict[Any, _Traits]()
        self._remembered: dict[object, Any] = {}
        self._registry = _flop_counter(torch).flop_registry

    def traits(self, function: Any) -> _Traits:
        """Return what is known of an operator."""
        found = self._known.get(function)
        if found is None:
            found = self._known[function] = self._look_up(function)
        return found

    def _look_up(self, function: Any) -> _Traits:
        torch = self._torch
        schema, packet = getattr(function, "_schema", None), getattr(function, "_overloadpacket", None)
        library, name = _name_of(function)
        needs_formula, is_mutable = _needs_formula(torch, function), getattr(schema, "is_mutable", False)
        is_writing = is_mutable and torch.Tag.inplace_view not in getattr(function, "tags", ())
        composite = torch._C.DispatchKey.CompositeImplicitAutograd
        return _Traits(
            library=library,
            name=name,
            has_schema=schema is not None,
            needs_formula=needs_formula,
            is_writing=is_writing,
            is_made_of_others=packet is None
            or (
                needs_formula
                and (
                    composite in function.py_kernels
                    or torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), composite)
                )
            ),
            is_fresh=library == "aten"
            and not is_mutable
            and all(one.alias_info is None for one in function._schema.returns),
            is_in_place=library == "aten" and is_writing and function._schema.name.endswith("_"),
            formula=self._registry.get(packet),
        )

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, int]:
        """Return an operator's result, and its FLOP."""
        traits = self.traits(function)
        if traits.is_made_of_others:
            with _flop_counter(self._torch) as mode:
                result = function(*args, **kwargs)
            return result, mode.get_total_flops()
        result = self._result(traits, function, args, kwargs)
        return result, traits.formula(*args, **kwargs, out_val=result) if traits.formula is not None else 0

    def _result(self, traits: _Traits, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return an operator's result: made anew where it is remembered."""
        torch, key = self._torch, None
        if traits.is_fresh or traits.is_in_place:
            with contextlib.suppress(_UnlikeError, TypeError):  # TypeError: an argument that cannot be a key
                key = (function, self._shape_of(args), self._shape_of(tuple(kwargs.items())))
                if (known := self._remembered.get(key)) is not None:
                    if traits.is_in_place:
                        return args[0]
                    made = [None if one is None else self._made(one) for one in known[1]]
                    return made[0] if known[0] else tuple(made)
        result = _run_without_memory(torch, traits, function, args, kwargs)
        if key is not None and traits.is_in_place:
            if result is args[0]:
                self._remembered[key] = True
        elif key is not None:
            is_single = not isinstance(result, tuple)
            outputs = (result,) if is_single else result
            with contextlib.suppress(_UnlikeError):
                specs = [None if one is None else self._spec_of(one) for one in outputs]
                if self._is_new([one for one in outputs if one is not None], (args, kwargs)):
                    self._remembered[key] = is_single, specs
        return result

    def _made(self, spec: tuple[Any, ...]) -> Any:
        """Return a tensor of a shape, strides and type."""
        return self._torch.empty_strided(*spec[:2], dtype=spec[2], device="meta")

    def _is_new(self, outputs: list[Any], given: Any) -> bool:
        """Whether each output has memory of its own, and no more of it than it shows."""
        torch = self._torch
        leaves = [one for one in torch.utils._pytree.tree_leaves(given) if isinstance(one, torch.Tensor)]
        storages = {one.untyped_storage()._cdata for one in leaves}
        new = {one.untyped_storage()._cdata for one in outputs}
        sizes = [one.untyped_storage().nbytes() for one in outputs]
        made = [self._made(self._spec_of(one)).untyped_storage().nbytes() for one in outputs]
        return len(new) == len(outputs) and storages.isdisjoint(new) and sizes == made

    def _shape_of(self, given: Any) -> object:
        """Return what the shapes of results may follow from."""
        if isinstance(given, self._torch.Tensor):
            if not given.dim():
                raise _UnlikeError
            return self._spec_of(given)
        if isinstance(given, tuple | list):
            return tuple(map(self._shape_of, given))
        return type(given), given

    def _spec_of(self, tensor: Any) -> tuple[Any, ...]:
        torch = self._torch
        is_plain = isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and tensor.device.type == "meta"
        if not is_plain or tensor.is_conj() or tensor.is_neg():
            raise _UnlikeError
        return tuple(tensor.shape), tensor.stride(), tensor.dtype


class _UnlikeError(Exception):
    """Something that no key can stand for."""


def _run_without_memory(
    torch: ModuleType, traits: _Traits, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run an operator on the meta device.

    There the grouped product takes bf16 alone (torch 2.13, torch/_meta_registrations.py), while devices take fp32, too:
    it is shown tensors of bf16 instead.
    """
    if traits.name != "_grouped_mm" or traits.library != "aten" or args[0].dtype == torch.bfloat16:
        return function(*args, **kwargs)

    def short(value: Any) -> Any:
        is_floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return torch.empty_like(value, dtype=torch.bfloat16) if is_floating else value

    kept = {key: short(value) for key, value in kwargs.items() if key != "out_dtype"}
    result = function(*map(short, args), **kept)
    return torch.empty_like(result, dtype=kwargs.get("out_dtype") or args[0].dtype)


def _custom_functions(torch: ModuleType, ends: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of custom autograd functions behind some tensors."""
    seen: set[Any] = set()
    names: dict[str, None] = {}
    waiting = [out.grad_fn for out in ends]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            names.setdefault(type(node).__name__.removesuffix("Backward"))
        waiting.extend(following for following, _ in node.next_functions)
    return tuple(names)


def _flop_counter(torch: ModuleType) -> Any:
    """Return a ``FlopCounterMode`` that prints nothing and also counts what it has no formula for by itself."""
    library = importlib.import_module("torch.utils.flop_counter")
    ours = {
        ("aten", "_grouped_mm"): _grouped_flop,
        ("aten", "_scaled_grouped_mm"): _grouped_flop,
        ("transformers", "grouped_mm_fallback"): _grouped_flop,
        ("transformers", "grouped_mm_fallback_backward"): lambda *args, **kwargs: 2 * _grouped_flop(*args, **kwargs),
        ("aten", "mv"): _vector_flop,
        ("aten", "dot"): _vector_flop,
        ("aten", "vdot"): _vector_flop,
        ("aten", "addmv"): lambda _, *args, **kwargs: _vector_flop(*args, **kwargs),
        ("aten", "_int_mm"): _vector_flop,
        ("aten", "_scaled_dot_product_flash_attention_for_cpu"): _attention_flop,
        ("aten", "_scaled_dot_product_fused_attention_overrideable"): _attention_flop,
    }
    formulas: dict[Any, Any] = {torch.ops.aten.convolution_backward: _convolution_backward_flop}
    for (namespace, name), formula in ours.items():
        operator = getattr(getattr(torch.ops, namespace), name, None)
        if operator is not None and operator not in library.flop_registry:  # this torch has it, and no formula
            formulas[operator] = formula
    return library.FlopCounterMode(display=False, custom_mapping=formulas)


def _grouped_flop(first: Any, second: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Return ``2 m k n``, times the groups where no side is split among them.

    Either side is a stack of matrices (three dimensions) or one that offsets split: rows of the first, columns of the
    second, or, where both are split, the inner width. All offsets together cover it once.
    """
    *stack, rows, inner = first
    columns = second[-1]
    return int(2 * rows * inner * columns * (stack[0] if stack and len(second) == 3 else 1))


_CONVOLUTION_ARGUMENTS = (
    *("bias", "stride", "padding", "dilation"),
    *("transposed", "output_padding", "groups", "output_mask"),
)


def _convolution_backward_flop(
    gradient: Any, image: Any, weight: Any, *others: Any, out_shape: Any = None, **named: Any
) -> int:
    """Return the FLOP of the gradients of a convolution's image and weight, each as many as forward.

    ``others`` are :data:`_CONVOLUTION_ARGUMENTS`, the last of which tells which gradients are wanted.
    """
    given = dict(zip(_CONVOLUTION_ARGUMENTS, others, strict=False)) | named
    is_transposed, wanted = given["transposed"], given["output_mask"]
    places = prod((image if is_transposed else gradient)[2:])
    return int(2 * image[0] * places * prod(weight) * sum(map(bool, wanted[:2])))


def _vector_flop(first: Any, second: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Return the FLOP of a matrix, or a vector, times a vector, or a matrix."""
    rows = first[0] if len(first) > 1 else 1
    columns = second[1] if len(second) > 1 else 1
    return int(2 * rows * first[-1] * columns)


def _attention_flop(query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Return the FLOP of both products of attention; a mask saves none, as in the formulas of torch."""
    batch, heads, queries, width = query
    return int(2 * batch * heads * queries * key[-2] * (width + value[-1]))
