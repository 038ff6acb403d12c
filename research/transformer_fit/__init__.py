"""Fit of the transformers' cost model to measured steps: ``python -m research.transformer_fit --help``."""
