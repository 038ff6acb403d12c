"""Files of others in, networks and profiles out: one file, or one package, per format."""

__all__ = [
    "chrome_trace",
    "graph_profile",
    "huggingface",
    "imported",
    "kinds",
    "layer_csv",
    "layer_trace",
    "measured",
    "onnx_model",
    "repeats",
    "rows",
    "text",
    "torch_module",
]
