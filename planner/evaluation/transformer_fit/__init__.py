"""Fit of the transformers' cost model to measured steps: ``python -m planner.evaluation.transformer_fit --help``."""
