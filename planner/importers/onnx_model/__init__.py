"""ONNX models: from a file to the layers, branches, parameters and work of its graph; see ``graph.read_onnx``."""
