"""Frozen, slotted, keyword-only dataclasses that are quick to make and to build.

:func:`dataclasses.dataclass` writes and compiles six methods for each of them, which took a tenth of a short question:
most classes of a run are never compared, hashed or printed. Here only ``__init__`` is compiled; the others are the same
functions for all. What :mod:`dataclasses` offers of a dataclass, ``fields``, ``replace``, ``asdict``, holds of these.
Left out is what no class here asks for: ``InitVar`` and ``field(hash=...)``. Values are compared as those of tuples,
on each Python: NaN and an array are the same as themselves.
"""

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields, is_dataclass
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, NoReturn, TypeVar, dataclass_transform, overload

T = TypeVar("T")


class _New:
    """What a parameter is by default whose value is made for each object: a name for signatures."""

    def __repr__(self) -> str:
        return "<factory>"


_NEW = _New()


@overload
def frozen(cls: type[T], /) -> type[T]: ...
@overload
def frozen(*, kw_only: bool = True, eq: bool = True) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen(
    cls: type[T] | None = None, /, *, kw_only: bool = True, eq: bool = True
) -> type[T] | Callable[[type[T]], type[T]]:
    """Return a class as ``dataclass(frozen=True, slots=True, kw_only=kw_only, eq=eq)`` would.

    Parameters
    ----------
    kw_only
        Whether fields are given by name alone.
    eq
        Whether objects are compared and hashed by their fields; else by what they are.

    >>> @frozen
    ... class Link:
    ...     rate: float
    ...     late: float = 0.0
    >>> Link(rate=2.0) == Link(rate=2.0), Link(rate=2.0)
    (True, Link(rate=2.0, late=0.0))
    """
    return partial(_made, kw_only=kw_only, eq=eq) if cls is None else _made(cls, kw_only=kw_only, eq=eq)


def _made(cls: type, *, kw_only: bool, eq: bool) -> Any:
    own = vars(cls).keys()
    # With frozen=True it would compile two methods more, but for what is derived from a frozen class it insists on it.
    is_derived = any(map(is_dataclass, cls.__mro__[1:]))
    made: Any = dataclass(frozen=is_derived, slots=True, kw_only=kw_only, init=False, repr=False, eq=False)(cls)
    made.__dataclass_params__.frozen = True  # so that frozen dataclasses, a plug-in's, may be derived from it
    methods = {"__setattr__": _refuse, "__delattr__": _refuse, "__getstate__": _state, "__setstate__": _set_state}
    methods |= {"__init__": _init_of(made), "__repr__": _shown}
    if eq:
        methods |= _compared_by([one.name for one in fields(made) if one.compare])
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    return made


def _init_of(cls: Any) -> Callable[..., None]:
    """Return what sets the fields of a new object: a function of its own, as calls check the names of its parameters.

    Slots are set by their descriptors, whatever ``__setattr__`` refuses.
    """
    scope: dict[str, Any] = {"__name__": cls.__module__, "NEW": _NEW}
    given: dict[bool, list[str]] = {False: [], True: []}  # by whether they are given by name alone
    lines: list[str] = []
    for one in fields(cls):
        name, value, default = one.name, one.name, ""
        scope[f"set_{name}"] = getattr(cls, name).__set__
        if one.default_factory is not MISSING:
            scope[f"new_{name}"], default = one.default_factory, "=NEW"
            value = f"new_{name}() if {name} is NEW else {name}" if one.init else f"new_{name}()"
        elif one.default is not MISSING:
            scope[f"default_{name}"], default = one.default, f"=default_{name}"
            value = name if one.init else f"default_{name}"
        if one.init:
            given[one.kw_only is True].append(name + default)
        if one.init or default:
            lines.append(f"set_{name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ["self", *given[False], *(["*", *given[True]] if given[True] else [])]
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines or ["pass"]), scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"  # which errors of calls name
    init.__annotations__ = {one.name: one.type for one in fields(cls) if one.init} | {"return": None}  # for help()
    return init


def _compared_by(names: list[str]) -> dict[str, Callable[..., Any]]:
    """Return the methods that compare and hash objects of one class by these attributes."""
    values: Callable[[object], tuple[object, ...]] = (  # of one attribute attrgetter gives no tuple
        attrgetter(*names) if len(names) > 1 else lambda one: tuple(getattr(one, name) for name in names)
    )

    def is_equal(self: object, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: object) -> int:
        return hash(values(self))

    return {"__eq__": is_equal, "__hash__": hashed}


@recursive_repr()
def _shown(self: Any) -> str:
    values = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{self.__class__.__qualname__}({', '.join(values)})"


def _refuse(self: object, name: str, *_: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to or delete field {name!r}")


def _state(self: Any) -> list[object]:
    """Return what is pickled: by default it would be set by ``__setattr__``."""
    return [getattr(self, one.name) for one in fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)
