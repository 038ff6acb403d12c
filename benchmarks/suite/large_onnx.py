"""Write a large ONNX graph, as a process of its own: python -m benchmarks.suite.large_onnx FILE."""

import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper

NUM_BLOCKS, NUM_CHANNELS, NUM_PIXELS = 10_000, 8, 16


def main(path: Path) -> None:
    """Write a line of convolutions and activations, 20,000 nodes, and weights of a few hundred MB inside the file."""
    nodes, weights, name = [], [], "x"
    for index in range(NUM_BLOCKS):
        shape = [NUM_CHANNELS, NUM_CHANNELS, 3, 3]
        data = bytes(4 * NUM_CHANNELS * NUM_CHANNELS * 9)
        weights.append(TensorProto(name=f"w{index}", dims=shape, data_type=TensorProto.FLOAT, raw_data=data))
        nodes.append(helper.make_node("Conv", [name, f"w{index}"], [f"c{index}"], kernel_shape=[3, 3], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index}"]))
        name = f"r{index}"
    head = [NUM_CHANNELS * NUM_PIXELS * NUM_PIXELS, 30_000]
    weights.append(
        TensorProto(name="head", dims=head, data_type=TensorProto.FLOAT, raw_data=bytes(4 * head[0] * head[1]))
    )
    nodes += [helper.make_node("Flatten", [name], ["flat"]), helper.make_node("MatMul", ["flat", "head"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "line",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, NUM_CHANNELS, NUM_PIXELS, NUM_PIXELS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    path.write_bytes(model.SerializeToString())


if __name__ == "__main__":
    print(onnx.__version__)
    main(Path(sys.argv[1]))
