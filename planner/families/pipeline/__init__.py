"""Pipelines: cuts, replicas and device of each stage, micro-batches and schedule."""
