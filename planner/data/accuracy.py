"""How far predictions of a family were off where they were held against measurements.

``accuracy.yaml`` is written from the cases of measured data, by ``planner.evaluation.accuracy.bands_text``; a test
compares both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from planner.plan import Configuration, Prediction
from planner.problem import Problem
from planner.yaml_text import plain_yaml

__all__ = ["MEASURED", "Measured", "error_band", "with_known_error"]


@cache
def _bands() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the file's content."""
    text = resources.files("planner.data").joinpath("accuracy.yaml").read_text(encoding="utf-8")
    found: dict[str, dict[str, dict[str, Any]]] = plain_yaml(text)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Which questions the measurements cover: the ends of what was run, both included."""

    num_devices: tuple[int, int]
    network_bytes_per_s: tuple[float, float]
    dtypes: tuple[str, ...]

    def covers(self, *, num_devices: int, network_bytes_per_s: float, dtype: str) -> bool:
        """Whether a question lies within them."""
        (fewest, most), (narrowest, widest) = self.num_devices, self.network_bytes_per_s
        return fewest <= num_devices <= most and narrowest <= network_bytes_per_s <= widest and dtype in self.dtypes


# Of measured-hkbu-resnet50, as its conditions say in words.
MEASURED = {"all_reduce": Measured(num_devices=(4, 32), network_bytes_per_s=(1.25e9, 1.25e10), dtypes=("fp32",))}


def error_band(family: str, *, is_calibrated: bool = False) -> Mapping[str, Any] | None:
    """Return the band of measured / predicted - 1, or None where nothing of the family has been measured.

    Keys: ``low`` and ``high``; ``coverage``, the share of rows in groups that had no part in the band and lie in it;
    ``from``, the name of the case; ``conditions``, in words.

    Parameters
    ----------
    is_calibrated
        Whether links were fitted to measurements of the same network, or their rates are those they are sold by.

    >>> error_band("all_reduce")["from"], error_band("telepathy")
    ('measured-hkbu-resnet50', None)
    """
    found = _bands().get(family, {}).get("calibrated" if is_calibrated else "uncalibrated")
    return None if found is None else MappingProxyType(found)


def with_known_error(problem: Problem, family: str, configuration: Configuration, prediction: Prediction) -> Prediction:
    """Return the prediction with the error of its like, where whole iterations of the family were measured.

    A band is never borrowed: not for computation that was only estimated, other numbers of devices or other rates, nor
    from measurements of parts of an iteration.
    """
    measured = MEASURED.get(family)
    if measured is None or not problem.is_computation_measured or problem.variant != "corrected":
        return prediction
    block = configuration.to_document()
    if "groups" in block or "compression" in block:  # neither unlike devices nor compressed gradients were measured
        return prediction
    rate = problem.cluster.ring_link(block["num_machines"]).bandwidth_bytes_per_s
    dtype = problem.training.dtype
    if not measured.covers(num_devices=block["num_devices"], network_bytes_per_s=rate, dtype=dtype):
        return prediction
    return replace(prediction, relative_error=error_band(family, is_calibrated=problem.are_links_calibrated))
