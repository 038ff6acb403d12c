"""Fits, evaluation and studies of measured runs: not shipped; ``make accuracy`` writes pages and fitted data anew.

The measurements are read in place, from the folder that ``--data`` or the variable PLANNER_DATA names. Equal data give
equal bytes.
"""

from pathlib import Path

__all__ = ["ROOT"]

ROOT = Path(__file__).parents[1]
