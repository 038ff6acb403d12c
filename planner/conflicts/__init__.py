"""Why nothing is feasible: a minimal set of constraints that conflict, and how far each would have to give."""
