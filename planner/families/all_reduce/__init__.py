"""Data parallelism by all-reduce: devices, shares, fusion groups; homogeneous devices are one kind of them."""
