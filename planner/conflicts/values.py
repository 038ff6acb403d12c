"""The nearest value that does: bisection, a walk outwards, and units in which the printed value is the tested one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from planner.units import Dimension, parse

__all__ = ["MEMORY_UNITS", "TIME_UNITS", "Unit", "first_feasible", "least_feasible"]


def least_feasible(low: int, high: int, is_feasible: Callable[[int], bool | None]) -> tuple[int | None, bool]:
    """Return the least feasible number above ``low``, up to ``high``, and whether the one below it is proven not to be.

    ``low`` is infeasible, and what is feasible stays so above. None where ``high`` is not known to be feasible.
    """
    if high <= low or not is_feasible(high):
        return None, False
    is_exact = True
    while high - low > 1:
        middle = (low + high) // 2
        answer = is_feasible(middle)
        if answer:
            high = middle
        else:
            low = middle
            is_exact = answer is not None
    return high, is_exact


def first_feasible(numbers: Iterable[int], is_feasible: Callable[[int], bool | None]) -> tuple[int | None, bool]:
    """Return the first feasible number, and whether all before it are proven not to be."""
    is_exact = True
    for number in numbers:
        answer = is_feasible(number)
        if answer:
            return number, is_exact
        if answer is None:
            is_exact = False
            break
    return None, is_exact


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit with so many digits after the point."""

    name: str
    digits: int
    dimension: Dimension

    @property
    def size(self) -> float:
        """What one of it is, in SI units."""
        return parse(f"1 {self.name}", self.dimension)

    @property
    def step(self) -> float:
        """What the last digit is worth, in SI units."""
        return self.size / 10.0**self.digits

    def text(self, number: int) -> str:
        """Return ``number`` of the last digits, as a spec writes it."""
        text = f"{number / 10**self.digits:.{self.digits}f}"
        return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {self.name}"


MEMORY_UNITS = [
    Unit(name=name, digits=digits, dimension=Dimension.DATA)
    for name, digits in (("GiB", 2), ("MiB", 1), ("KiB", 1), ("B", 0))
]
TIME_UNITS = [
    Unit(name=name, digits=digits, dimension=Dimension.TIME)
    for name, digits in (("h", 3), ("min", 2), ("s", 2), ("ms", 2), ("us", 2), ("ns", 2))
]
