"""Questions with known answers, one folder each, for :mod:`planner.case.run`; ``forms``: models that only they ask."""
