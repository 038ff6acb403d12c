"""The values of a spec: text with units in, SI numbers out, and the words for what is wrong with them."""

import math
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from planner.errors import SpecError
from planner.frozen import frozen
from planner.letters import visible
from planner.names import FamilyName
from planner.plugins import named
from planner.problem import Algorithm
from planner.units import Dimension, example_of, parse, with_unit

if TYPE_CHECKING:
    import networkx as nx

_LEAST, _MOST = 1e-9, 1e24  # in SI units
_MOST_COUNT = 10**15


def _quantity(dimension: Dimension, *, is_positive: bool = False, is_signed: bool = False) -> tuple[Any, ...]:
    """Return how text with a unit of ``dimension`` is read, and its JSON Schema: a bare number has no unit.

    Not positive: also zero; signed: also less, an intercept.
    """

    def read(value: object) -> float:
        if not isinstance(value, str):
            is_number = _is_finite(value) and 0 <= value <= _MOST
            mend = with_unit(f"{value:.12g}", dimension) if is_number else f"Write e.g. {example_of(dimension)!r}."
            raise ValueError(f"{value!r} has no unit. {mend}")
        if is_signed and value.lstrip().startswith("-"):
            return -parse(value.lstrip().removeprefix("-"), dimension)
        number = parse(value, dimension)
        if is_positive and number < _LEAST:  # a division would follow
            raise ValueError(f"it must be greater than 0, and at least {_LEAST:g} in SI units. Check the unit.")
        if number > _MOST:  # products of such numbers have to be finite
            raise ValueError(f"{value!r} is beyond all reason, above {_MOST:g} in SI units. Check the unit.")
        return number

    words = f"{dimension.value}, e.g. {example_of(dimension)}"
    return BeforeValidator(read), WithJsonSchema({"type": "string", "description": words})


def _is_finite(value: object) -> TypeGuard[int | float]:
    """Whether a value is a finite number; a whole one may be larger than any float."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def whole(value: object, *, least: int = 1) -> int:
    """Return a whole number of at least ``least``; 1e6 counts as one, true does not."""
    if not _is_finite(value) or value != int(value):
        raise ValueError(f"{value!r} is not a whole number. Write e.g. 64.")
    if value > _MOST_COUNT:
        raise ValueError(f"{value!r} is too large. Write a whole number of at most {_MOST_COUNT}.")
    if value < least:
        raise ValueError(f"{value!r} is too small. Write a whole number of {least} or more.")
    return int(value)


def _number(value: object) -> float:
    """Return a finite number greater than 0."""
    if not _is_finite(value) or value <= 0:
        raise ValueError(f"{value!r} is not a number greater than 0. Write e.g. 0.5.")
    if not _LEAST <= value <= 1 / _LEAST:
        raise ValueError(f"{value!r} is beyond all reason. Write e.g. 0.5.")
    return float(value)


_AMOUNT = re.compile(
    r"(\d{1,15}(?:\.\d{1,12})?(?:[eE]\+?\d{1,2})?)\s*([kKMGBT]?|million|billion|trillion)\s*(?:tokens|samples)?",
    re.ASCII,
)
_TIMES = {
    "": 1.0,
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "B": 1e9,
    "T": 1e12,
    "million": 1e6,
    "billion": 1e9,
    "trillion": 1e12,
}


def amount_of(value: object) -> int:
    """Return a whole number that may be written as people say it: ``2T``, ``15.6T``, ``300 billion``, ``500M``.

    >>> amount_of("2T"), amount_of("1.5k samples"), amount_of("200 billion tokens"), amount_of(64)
    (2000000000000, 1500, 200000000000, 64)
    """
    if isinstance(value, str):
        found = _AMOUNT.fullmatch(value.strip())
        if found is None:
            raise ValueError(f"{value[:40]!r} is no number of tokens or samples. Write e.g. 2T, 300B, 500M or 64000.")
        value = round(float(found[1]) * _TIMES[found[2]], 3)
    return whole(value)


Bytes = Annotated[float, *_quantity(Dimension.DATA)]
PositiveBytes = Annotated[float, *_quantity(Dimension.DATA, is_positive=True)]
Rate = Annotated[float, *_quantity(Dimension.RATE, is_positive=True)]
Seconds = Annotated[float, *_quantity(Dimension.TIME)]
PositiveSeconds = Annotated[float, *_quantity(Dimension.TIME, is_positive=True)]
SignedSeconds = Annotated[float, *_quantity(Dimension.TIME, is_signed=True)]
FlopRate = Annotated[float, *_quantity(Dimension.FLOP_RATE, is_positive=True)]
SampleRate = Annotated[float, *_quantity(Dimension.SAMPLE_RATE, is_positive=True)]
Hertz = Annotated[float, *_quantity(Dimension.FREQUENCY, is_positive=True)]
Watts = Annotated[float, *_quantity(Dimension.POWER)]
Usd = Annotated[float, *_quantity(Dimension.MONEY, is_positive=True)]
UsdRate = Annotated[float, *_quantity(Dimension.MONEY_RATE, is_positive=True)]
Count = Annotated[int, BeforeValidator(whole), WithJsonSchema({"type": "integer", "minimum": 1})]
Amount = Annotated[
    int,
    BeforeValidator(amount_of, json_schema_input_type=int | str),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "description": "number, e.g. 2T"}]}
    ),
]
Positive = Annotated[float, BeforeValidator(_number), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})]
Share = Annotated[float, Field(ge=0, lt=1)]
Index = Annotated[int, Field(ge=0, strict=True)]
File = Annotated[str, Field(min_length=1)]  # as the system has it, whatever its letters; a factory of code, too
Text = Annotated[str, AfterValidator(lambda text: visible(text, keep="\n"))]
Name = Annotated[str, Field(min_length=1), AfterValidator(visible)]
Dtype = Literal["fp32", "tf32", "fp16", "bf16"]
_DTYPES = {"float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"}  # PyTorch's


def dtype_name(value: object) -> object:
    """Return a number format in small letters, by its name here.

    >>> dtype_name("BF16"), dtype_name("bfloat16")
    ('bf16', 'bf16')
    """
    return _DTYPES.get(value.lower(), value.lower()) if isinstance(value, str) else value


# The last three: of products alone.
TrainingDtype = Annotated[Literal["fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4"], BeforeValidator(dtype_name)]
Fp8Recipe = Literal["current", "delayed", "blockwise"]
_STATES = {"fp32": "", "bf16": "_bf16", "fp8": "_fp8", "8bit": "_8bit"}  # of Adam's moments


def _optimizer(value: object) -> object:
    """Return an optimiser's name from ``{name: adam, states: bf16}``, in which Adam's moments may be told apart."""
    if not isinstance(value, dict):
        return value
    name, states = value.get("name"), value.get("states", "fp32")
    if more := sorted(str(key) for key in value if key not in ("name", "states")):
        raise ValueError(f"an optimizer has a name and states, and {more[0]!r} is neither. Leave it out.")
    if states == "fp32":
        return name
    if name not in ("adam", "adamw") or states not in _STATES:
        raise ValueError(
            f"states {states!r} of {name!r} are not known. Write adam with states of {', '.join(_STATES)}; or leave "
            f"states out."
        )
    return f"adam{_STATES[states]}"


OptimizerName = Annotated[
    Literal["sgd", "momentum", "adam", "adamw", "adam_bf16", "adam_fp8", "adam_8bit", "adafactor", "muon"],
    BeforeValidator(_optimizer, json_schema_input_type=str | dict[str, str]),
]


class Model(BaseModel):
    """Every part of a spec: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def is_graph(value: object) -> TypeGuard["nx.Graph[object]"]:
    """Whether a value is a networkx graph; who has one has imported the library, which takes a while."""
    networkx = sys.modules.get("networkx")
    return networkx is not None and isinstance(value, networkx.Graph)


def exactly_one(model: BaseModel, keys: tuple[str, ...]) -> str:
    """Return the one key of ``keys`` that is given."""
    given = [key for key in keys if getattr(model, key) is not None]
    if len(given) != 1:
        what = f"{' and '.join(given)} are given" if given else "none is given"
        raise ValueError(f"give exactly one of {', '.join(keys)}; {what}.")
    return given[0]


def known(find: Callable[[str], object]) -> AfterValidator:
    """Return a validator that refuses names which a look-up refuses, with its words."""

    def check(name: str) -> str:
        try:
            find(name)
        except SpecError as error:
            raise ValueError(" ".join(str(fault) for fault in error.faults)) from None
        return name

    return AfterValidator(check)


@frozen(kw_only=False)
class OrPlugin:
    """Takes the name of a plug-in of a group, too, where it is none of what is built in."""

    group: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the names that are built in, with a further look where it refuses one."""

        def check(value: object, known: ValidatorFunctionWrapHandler) -> Any:
            try:
                return known(value)
            except ValidationError as error:
                more = named(self.group)
                if isinstance(value, str) and value in more:
                    return value
                fault = error.errors()[0]
                if more and fault["type"] == "literal_error":
                    names = ", ".join((fault["ctx"]["expected"].replace(" or ", ", "), *map(repr, more)))
                    expected = " or ".join(names.rsplit(", ", 1))
                    raise PydanticKnownError("literal_error", {"expected": expected}) from None
                raise

        as_it_is = core_schema.plain_serializer_function_ser_schema(lambda value: value)
        return core_schema.no_info_wrap_validator_function(check, handler(source), serialization=as_it_is)


FamilyOf = Annotated[FamilyName, OrPlugin("planner.families")]
AlgorithmOf = Annotated[Algorithm, OrPlugin("planner.cost_models")]


def tag(value: object) -> str:
    """Tell names, mappings and lists apart, so that faults speak of the one that was meant.

    The tags stand in no path.
    """
    kinds = {str: "<name>", dict: "<mapping>", list: "<list>"}
    return next((tag for kind, tag in kinds.items() if isinstance(value, kind)), "<mapping>")
