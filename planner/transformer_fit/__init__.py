"""Fit of the transformers' cost model to measured training steps: ``python -m planner.transformer_fit --help``."""
