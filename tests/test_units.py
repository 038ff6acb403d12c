import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planner.units import Dimension, example_of, format_exact, format_human, parse, units_of

every_dimension = pytest.mark.parametrize("dimension", Dimension)
amounts = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
readable = st.floats(min_value=1e-30, max_value=1e30)


def named(dimension: Dimension) -> str:
    """A quantity with its article, as a reader says it: an amount, a rate."""
    return f"{'an' if dimension.value[0] in 'aeiou' else 'a'} {dimension.value}"


@every_dimension
def test_what_is_written_exactly_is_read_back_exactly(dimension: Dimension) -> None:
    @given(amounts)
    @example(0.0)
    @example(5e-324)
    @example(1.7976931348623157e308)
    def comes_back(value: float) -> None:
        assert parse(format_exact(value, dimension), dimension) == value

    comes_back()


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [
        (3.125e9, Dimension.RATE, "25 Gbit/s"),
        (1.25e10, Dimension.RATE, "100 Gbit/s"),
        (80 * 2**30, Dimension.DATA, "80 GiB"),
        (80e9, Dimension.DATA, "80 GB"),
        (20e-6, Dimension.TIME, "20 us"),
        (13.45e12, Dimension.FLOP_RATE, "13.45 TFLOP/s"),
        (1.0, Dimension.ENERGY, "1 J"),
    ],
)
def test_exact_text_is_the_shortest(value: float, dimension: Dimension, text: str) -> None:
    assert format_exact(value, dimension) == text


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("25 Gb/s", Dimension.RATE, 25e9 / 8),  # not gilberts
        ("25 Gbps", Dimension.RATE, 25e9 / 8),
        ("25 Gbit/s", Dimension.RATE, 25e9 / 8),
        ("25 GB/s", Dimension.RATE, 25e9),
        ("100 Gib", Dimension.DATA, 100 * 2**30 / 8),  # not barns
        ("80 GiB", Dimension.DATA, 80 * 2**30),  # not 80e9
        ("80 GB", Dimension.DATA, 80e9),
        ("1 kB", Dimension.DATA, 1000),
        ("1 KiB", Dimension.DATA, 1024),
        ("1 byte", Dimension.DATA, 1),
        ("8 bits", Dimension.DATA, 1),
        ("2.48 USD/h", Dimension.MONEY_RATE, 2.48 / 3600),
        ("1 d", Dimension.TIME, 86400),
        ("5 µs", Dimension.TIME, 5e-6),
        ("5 μs", Dimension.TIME, 5e-6),  # the Greek letter, not the micro sign
        ("3 kWh", Dimension.ENERGY, 1.08e7),
        ("1 ZFLOP", Dimension.FLOP, 1e21),
        ("  1.5e3ms ", Dimension.TIME, 1.5),
        (".5 s", Dimension.TIME, 0.5),
        ("+5. s", Dimension.TIME, 5),
    ],
)
def test_units_mean_what_this_field_means_by_them(text: str, dimension: Dimension, value: float) -> None:
    assert parse(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("1 KB", Dimension.DATA),
        ("1 kib", Dimension.DATA),
        ("1 gb", Dimension.DATA),
        ("1 Mflop", Dimension.FLOP),
        ("1 MS", Dimension.TIME),
        ("1 ghz", Dimension.FREQUENCY),
        ("1 mW", Dimension.POWER),
    ],
)
def test_case_counts(text: str, dimension: Dimension) -> None:
    with pytest.raises(
        ValueError, match=f"Unknown unit '{text.split()[1]}'; (did you mean|use one of {units_of(dimension)[0]}, )"
    ):
        parse(text, dimension)


@every_dimension
def test_a_bare_number_is_refused_with_an_example_that_is_read(dimension: Dimension) -> None:
    assert parse(example_of(dimension), dimension) > 0
    with pytest.raises(ValueError, match=f"'25' is not an? {dimension}. The unit is missing. Write e.g. '25 ") as error:
        parse("25", dimension)
    assert parse(str(error.value).split("'")[3], dimension) > 0


def test_a_negative_quantity_is_offered_without_its_sign() -> None:
    with pytest.raises(ValueError, match=r"It must be finite and not negative, e\.g\. '4 s'\."):
        parse("-4s", Dimension.TIME)


def test_a_time_without_a_unit_is_offered_in_seconds() -> None:
    with pytest.raises(ValueError, match=r"Write e\.g\. '40 s'\. Units: d, h, min, ms, us, ns, s\."):
        parse("40", Dimension.TIME)


@every_dimension
@pytest.mark.parametrize(
    "text", ["", "  ", "nan", "nan s", "inf", "inf B", "GiB", "fast", "--5 s", "\0", "٣ s", "5 s\0"]
)
def test_what_is_no_number_with_a_known_unit_is_refused(dimension: Dimension, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{text!r} is not {named(dimension)}. ")):
        parse(text, dimension)


@every_dimension
@pytest.mark.parametrize("number", ["-1", "-1e-9", "1e999", "-1e999"])
def test_negative_and_boundless_amounts_are_refused(dimension: Dimension, number: str) -> None:
    unit = units_of(dimension)[0]
    with pytest.raises(
        ValueError, match=re.escape(f"'{number} {unit}' is not {named(dimension)}. It must be finite and")
    ):
        parse(f"{number} {unit}", dimension)


def test_an_amount_that_overflows_only_in_si_units_is_refused() -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        parse("1e308 GiB", Dimension.DATA)


def test_a_size_given_as_rate_is_told_to_be_per_second() -> None:
    with pytest.raises(ValueError, match=r"'25 Gbit' is not a rate\. Write it per second, e\.g\. '25 Gbit/s'\."):
        parse("25 Gbit", Dimension.RATE)


def test_an_unknown_unit_lists_all_that_are_offered() -> None:
    with pytest.raises(ValueError, match=r"Unknown unit 'parsecs'; use one of d, h, min, ms, us, ns, s\."):
        parse("3 parsecs", Dimension.TIME)


@pytest.mark.parametrize(
    ("text", "wanted", "given_instead"),
    [
        ("16 GiB", Dimension.TIME, Dimension.DATA),
        ("3 s", Dimension.DATA, Dimension.TIME),
        ("14 TFLOP", Dimension.FLOP_RATE, Dimension.FLOP),
        ("14 TFLOP/s", Dimension.FLOP, Dimension.FLOP_RATE),
        ("2 USD", Dimension.MONEY_RATE, Dimension.MONEY),
        ("250 W", Dimension.ENERGY, Dimension.POWER),
        ("25 Gbit/s", Dimension.DATA, Dimension.RATE),
    ],
)
def test_a_unit_of_another_dimension_is_named(text: str, wanted: Dimension, given_instead: Dimension) -> None:
    unit = text.split()[1]
    with pytest.raises(
        ValueError, match=f"{text!r} is not an? {wanted}. '{unit}' measures a {given_instead}; use one of"
    ):
        parse(text, wanted)


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [
        (0.0, Dimension.TIME, "0 s"),
        (0.0, Dimension.RATE, "0 B/s"),
        (0.0, Dimension.DATA, "0 B"),
        (0.00328, Dimension.TIME, "3.28 ms"),
        (0.9999996, Dimension.TIME, "1 s"),  # not 1000 ms
        (0.9994, Dimension.TIME, "999 ms"),
        (59.96, Dimension.TIME, "1 min"),  # not 60 s
        (86399.9, Dimension.TIME, "1 d"),  # not 24 h
        (1023.9999 * 2**10, Dimension.DATA, "1 MiB"),  # not 1024 KiB
        (1010 * 2**10, Dimension.DATA, "1010 KiB"),
        (1e-12, Dimension.TIME, "0.001 ns"),  # not 0 ns
        (1e-20, Dimension.TIME, "1e-11 ns"),
        (1e30, Dimension.TIME, "1.16e+25 d"),
        (2.0**60, Dimension.DATA, "1048576 TiB"),
        (0.00123, Dimension.MONEY, "0.00123 USD"),
        (1234567.8, Dimension.MONEY, "1234568 USD"),
        (3.125e9, Dimension.RATE, "25 Gbit/s"),
        (95e9, Dimension.RATE, "95 GB/s"),
        (math.inf, Dimension.DATA, "inf B"),
    ],
)
def test_amounts_are_rounded_for_reading(value: float, dimension: Dimension, text: str) -> None:
    assert format_human(value, dimension) == text


@every_dimension
def test_rounding_for_reading_keeps_the_asked_digits(dimension: Dimension) -> None:
    @given(readable, st.integers(1, 6))
    def keeps(value: float, digits: int) -> None:
        text = format_human(value, dimension, digits)
        assert parse(text, dimension) == pytest.approx(value, rel=0.5001 * 10.0 ** (1 - digits))

    keeps()


@pytest.mark.parametrize(
    ("text", "dimension", "mend"),
    [
        ("25,000 Mbit/s", Dimension.RATE, "without separators, e.g. '25000 Mbit/s'."),
        ("1_000", Dimension.DATA, "without separators, e.g. '1000 GiB'."),
        ("1'000'000.50 USD", Dimension.MONEY, "without separators, e.g. '1000000.50 USD'."),
        ("1,5 Gbit/s", Dimension.RATE, "Write decimals behind a point: '1.5 Gbit/s'."),
        ("1.500,25 Gbit/s", Dimension.RATE, "without separators, e.g. '25 Gbit/s'."),
        ("3gbit/s", Dimension.RATE, "Unknown unit 'gbit/s'; did you mean '3 Gbit/s'?"),
        ("10 mb/s", Dimension.RATE, "did you mean '10 MB/s' or '10 Mb/s'?"),
        ("80gb", Dimension.DATA, "did you mean '80 GB' or '80 Gb'?"),
        ("$200,000", Dimension.MONEY, "Write a number and a unit, e.g. '200000 USD'."),
        ("USD 1.5M", Dimension.MONEY, "Write a number and a unit, e.g. '1.5 MUSD'."),
        ("200k$", Dimension.MONEY, "Write e.g. '200 kUSD'."),
        ("200K", Dimension.MONEY, "Write e.g. '200 kUSD'."),
        ("1.5 months", Dimension.TIME, "write days, e.g. '45 d'."),
    ],
)
def test_what_a_quantity_was_meant_to_be_is_offered(text: str, dimension: Dimension, mend: str) -> None:
    with pytest.raises(ValueError, match=re.escape(mend)):
        parse(text, dimension)
