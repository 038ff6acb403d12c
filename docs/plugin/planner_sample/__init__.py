"""A sample plug-in of planner: one module for each kind of thing that may be added."""
