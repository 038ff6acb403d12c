"""Tensor, context, pipeline, data and expert degrees of a transformer, on equal machines and (mixed_*) unlike ones."""
