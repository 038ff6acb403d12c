"""What is made of a family's timeline before it is written: devices, the breakdown, fewer events, measured times."""

from planner.timelines.drawn import MOST_ITERATIONS, Drawn, drawn_document
from planner.timelines.measured import Measured, table_text

__all__ = ["MOST_ITERATIONS", "Drawn", "Measured", "drawn_document", "table_text"]
