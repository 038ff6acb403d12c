"""Questions with known answers, one folder each; data only, run by :mod:`planner.case.run`."""
