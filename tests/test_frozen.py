"""``frozen`` makes what ``dataclasses.dataclass`` would, in less time."""

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import pytest

from planner.frozen import frozen


class Fields:
    """Of all kinds."""

    a: int
    b: tuple[int, ...] = (1, 2)
    c: list[int] = field(default_factory=list, compare=False)
    d: str = field(default="d", repr=False)
    e: int = field(init=False, default=5)
    f: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "f", self.a + 1)


class One:
    a: Any


class Nothing:
    pass


def both(body: type, base: tuple[type, type] = (object, object), **options: bool) -> tuple[Any, Any]:
    """Return the class of a body as both decorators make it, of the same name."""
    kept = {name: value for name, value in vars(body).items() if name not in ("__dict__", "__weakref__")}
    by_frozen: Any = frozen(**options)(type("Made", (base[0],), dict(kept)))
    by_dataclass: Any = dataclass(**{"kw_only": True, **options}, frozen=True, slots=True)(
        type("Made", (base[1],), dict(kept))
    )
    return by_frozen, by_dataclass


@frozen
class Pickled:
    a: int
    b: tuple[int, ...] = ()


GIVEN: list[tuple[type, list[dict[str, Any]]]] = [
    (Fields, [{"a": 1}, {"a": 1, "b": (3,)}, {"a": 1, "c": [4]}, {"a": 2, "d": "x"}]),
    (One, [{"a": 1}, {"a": 1.0}, {"a": 2}, {"a": "1"}]),
    (Nothing, [{}]),
]


@pytest.mark.parametrize("eq", [True, False])
@pytest.mark.parametrize(("body", "given"), GIVEN)
def test_objects_print_compare_and_hash_as_those_of_a_dataclass(
    body: type, given: list[dict[str, Any]], eq: bool
) -> None:
    ours, theirs = both(body, eq=eq)
    mine, its = [ours(**one) for one in given], [theirs(**one) for one in given]
    assert [*map(repr, mine)] == [*map(repr, its)]
    assert [[x == y for y in mine] for x in mine] == [[x == y for y in its] for x in its]
    assert mine[0] != its[0]
    assert mine[0] != 1
    if eq:
        assert [*map(hash, mine)] == [*map(hash, its)]
    assert [ours(**one) == ours(**one) for one in given] == [theirs(**one) == theirs(**one) for one in given]
    assert [*map(asdict, mine)] == [*map(asdict, its)]
    assert [one.name for one in fields(ours)] == [one.name for one in fields(theirs)]
    assert ours.__match_args__ == theirs.__match_args__
    assert not hasattr(mine[0], "__dict__")


@pytest.mark.parametrize("value", [np.arange(3), float("nan")])
def test_an_array_and_nan_are_the_same_as_themselves(value: Any) -> None:
    ours, _ = both(One)  # of a dataclass they are so before Python 3.13 alone
    assert ours(a=value) == ours(a=value)


@pytest.mark.parametrize("kw_only", [True, False])
@pytest.mark.parametrize("body", [Fields, One, Nothing])
def test_signatures_tell_types_and_defaults(body: type, kw_only: bool) -> None:
    ours, theirs = both(body, kw_only=kw_only)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__init__.__module__ == theirs.__init__.__module__


@pytest.mark.parametrize("kw_only", [True, False])
@pytest.mark.parametrize(
    ("args", "given"), [((), {}), ((1,), {}), ((), {"z": 1}), ((), {"a": 1, "e": 2}), ((1, 2), {})]
)
def test_what_cannot_be_made_is_refused_in_the_same_words(
    args: tuple[int, ...], given: dict[str, int], kw_only: bool
) -> None:
    said = []
    for made in both(Fields, kw_only=kw_only):
        try:
            said.append(repr(made(*args, **given)))
        except TypeError as error:
            said.append(str(error))
    assert said[0] == said[1]


def test_nothing_is_set_or_deleted_afterwards() -> None:
    made = Pickled(a=1)
    with pytest.raises(FrozenInstanceError, match="'a'"):
        made.a = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="'z'"):
        made.z = 2  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError, match="'a'"):
        del made.a
    assert made.a == 1


def test_a_default_list_is_no_one_elses() -> None:
    ours, _ = both(Fields)
    ours(a=1).c.append(1)
    assert ours(a=1).c == []


def test_objects_are_copied_pickled_and_replaced() -> None:
    made = Pickled(a=1, b=(2,))
    assert copy.deepcopy(made) == made
    assert pickle.loads(pickle.dumps(made)) == made
    assert replace(made, a=3) == Pickled(a=3, b=(2,))
    ours, _ = both(Fields)
    with pytest.raises((TypeError, ValueError), match="e"):
        replace(ours(a=1), e=2)


def test_a_derived_class_has_the_fields_of_its_base_first_and_is_another_class() -> None:
    bases = both(One)
    ours, theirs = both(Fields, bases)
    assert repr(ours(a=1)) == repr(theirs(a=1))
    assert [one.name for one in fields(ours)] == [one.name for one in fields(theirs)]
    assert ours(a=1) != bases[0](a=1)


@pytest.mark.parametrize("decorator", [frozen, dataclass(frozen=True, slots=True, kw_only=True)])
def test_either_decorator_may_be_used_of_what_is_derived_from_the_other(decorator: Any) -> None:
    for base in (
        Pickled,
        dataclass(frozen=True, slots=True, kw_only=True)(type("Base", (), {"__annotations__": {"a": int}})),
    ):
        derived = decorator(type("Derived", (base,), {"__annotations__": {"d": int}, "d": 4}))
        made = derived(a=1)
        assert (made.a, made.d) == (1, 4)
        assert made == derived(a=1, d=4)
        assert hash(made) == hash(derived(a=1))
        assert made != derived(a=2)
        with pytest.raises(FrozenInstanceError, match="'a'"):
            made.a = 2
        assert pickle.loads(pickle.dumps(Pickled(a=made.a))).a == 1


def test_own_methods_stay() -> None:
    class Own:
        a: int

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "own"

    ours, theirs = both(Own)
    assert (hash(ours(a=1)), repr(ours(a=1))) == (hash(theirs(a=1)), repr(theirs(a=1))) == (7, "own")
    assert ours(a=1) == ours(a=1)


def test_an_object_within_itself_is_printed() -> None:
    ours, theirs = both(One)
    shown = []
    for made in (ours, theirs):
        inner: list[Any] = []
        inner.append(made(a=inner))
        shown.append(repr(inner[0]))
    assert shown[0] == shown[1]
