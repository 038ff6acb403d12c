"""Data parallelism by all-reduce: devices, shares, fusion groups; on equal machines and (mixed_*) unlike ones."""
