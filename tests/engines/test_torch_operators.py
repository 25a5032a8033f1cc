"""The torch module of each ONNX operator gives the same result as onnxruntime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from detector.core.errors import EngineError

pytest.importorskip("torch", reason="machine: torch is not installed")

SHAPE = [2, 4, 6, 3]
LONG = TensorProto.INT64


class Sketch:
    """A graph with the tensors x (float32 [2, 4, 6, 3] in 0..255) and n (x - 128 in int64)."""

    def __init__(self) -> None:
        self.nodes = [
            helper.make_node("Cast", ["images"], ["x"], name="x", to=TensorProto.FLOAT),
            helper.make_node("Cast", ["images"], ["whole"], name="whole", to=LONG),
        ]
        self.constants: list = []
        self.outputs: list = []
        self.add("Sub", "whole", np.array(128), name="n")

    def add(
        self,
        operator: str,
        *inputs: str | np.ndarray | np.float32,
        outputs: int = 1,
        name: str = "",
        **attributes,
    ):
        given = []
        for value in inputs:
            if not isinstance(value, str):
                self.constants.append(
                    numpy_helper.from_array(np.asarray(value), f"c{len(self.constants)}")
                )
                value = self.constants[-1].name
            given.append(value)
        name = name or f"made{len(self.nodes)}"
        made = [name, *(f"{name}.{at}" for at in range(1, outputs))]
        self.nodes.append(helper.make_node(operator, given, made, name=name, **attributes))
        return made[0] if outputs == 1 else made

    def model(self, *outputs: str) -> onnx.ModelProto:
        infos = [helper.make_empty_tensor_value_info(name) for name in outputs]
        given = [helper.make_tensor_value_info("images", TensorProto.UINT8, SHAPE)]
        graph = helper.make_graph(self.nodes, "g", given, infos, initializer=self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def small(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).integers(-9, 10, shape).astype(np.float32)


def indices_of_best(sketch: Sketch) -> str:
    best = sketch.add("ReduceMax", "x", whole(3), keepdims=0)
    return sketch.add("TopK", best, whole(3), outputs=2)[1]  # [2, 4, 3]


CASES = {
    "Split by sizes": lambda s: s.add("Split", "x", whole(1, 3, 2), outputs=3, axis=2),
    "Split from the end": lambda s: s.add("Split", "x", whole(1, 2), outputs=2, axis=-1),
    "Split into two parts": lambda s: s.add("Split", "x", outputs=2, axis=3, num_outputs=2),
    "TopK": lambda s: s.add(
        "TopK", s.add("Mul", "x", np.float32(0.5)), whole(2), outputs=2, axis=1
    ),
    "TopK of the smallest": lambda s: s.add("TopK", "x", whole(2), outputs=2, axis=2, largest=0),
    "TopK with only its indices used": indices_of_best,
    "GatherElements": lambda s: s.add(
        "GatherElements", "x", np.full((2, 4, 6, 2), -1, np.int64), axis=3
    ),
    "GatherElements with computed indices": lambda s: s.add(
        "GatherElements", s.add("ReduceMax", "x", whole(3), keepdims=0), indices_of_best(s), axis=2
    ),
    "Gather with computed indices": lambda s: s.add("Gather", "x", indices_of_best(s), axis=2),
    "Gather by 2-D indices": lambda s: s.add("Gather", "x", np.array([[0, -1], [2, 1]]), axis=-2),
    "GatherND": lambda s: s.add("GatherND", "x", np.array([[0, 3], [1, -2]])),
    "Tile": lambda s: s.add("Tile", "x", whole(1, 2, 1, 3)),
    "Slice": lambda s: s.add("Slice", "x", whole(1, 0), whole(9, 5), whole(1, 2), whole(1, 2)),
    "Expand": lambda s: s.add("Expand", s.add("ReduceMax", "x", whole(2)), whole(4, 5, 1)),
    "Mod": lambda s: s.add("Mod", "n", np.array(-7)),
    "Mod with the dividend's sign": lambda s: s.add("Mod", "n", np.array(7), fmod=1),
    "Div of integers": lambda s: s.add("Div", "n", np.array(7)),
    "Div": lambda s: s.add("Div", "x", np.float32(7)),
    "ArgMax": lambda s: s.add("ArgMax", "x", axis=2, keepdims=0),
    "PRelu": lambda s: s.add("PRelu", s.add("Cast", "n", to=1), np.float32([0.1, 0.2, 0.3])),
    "Pad": lambda s: s.add("Pad", "x", whole(0, 1, 2, 0, 1, 0, 0, 3), np.float32(7)),
    "Pad with negative pads": lambda s: s.add("Pad", "x", whole(0, 0, -2, 1, 0, 0, 1, -1)),
    "Pad with a list of axes": lambda s: s.add("Pad", "x", whole(1, 0, 0, 2), "", whole(-1, 2)),
    "Xor": lambda s: s.add(
        "Xor", s.add("Less", "n", np.array(50)), s.add("Less", "n", np.array(-20))
    ),
    "Gemm": lambda s: s.add(
        "Gemm", s.add("Flatten", "x", axis=3), small(5, 3), small(5), transB=1, beta=2.0
    ),
    "Gemm with A transposed": lambda s: s.add(
        "Gemm", s.add("Flatten", "x", axis=3), small(48, 2), alpha=2.0, transA=1
    ),
    "ConvTranspose": lambda s: s.add(
        "ConvTranspose", "x", small(4, 3, 2, 2), small(3), strides=[2, 2]
    ),
    "ConvTranspose with groups": lambda s: s.add(
        "ConvTranspose",
        "x",
        small(4, 3, 3, 2),
        group=2,
        strides=[2, 1],
        pads=[1, 0, 1, 0],
        output_padding=[1, 0],
        dilations=[1, 2],
    ),
    "MaxPool with ceil_mode": lambda s: s.add(
        "MaxPool", "x", kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1
    ),
    "MaxPool with pads and ceil_mode": lambda s: s.add(
        "MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1
    ),
    "Transpose without perm": lambda s: s.add("Transpose", "x"),
    "Where": lambda s: s.add(
        "Where",
        s.add(
            "And", s.add("Less", "n", np.array(50)), s.add("Not", s.add("Equal", "n", np.array(3)))
        ),
        "x",
        s.add("Neg", "x"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_operator_equals_onnxruntime(case):
    import onnxruntime as ort
    import torch

    from detector.core.engines.torch.graph import graph_module

    sketch = Sketch()
    outputs = CASES[case](sketch)
    model = sketch.model(*([outputs] if isinstance(outputs, str) else outputs))
    different = np.random.default_rng(0).permutation(np.arange(144, dtype=np.uint8))
    given = different.reshape(SHAPE)
    expected = ort.InferenceSession(model.SerializeToString()).run(None, {"images": given})
    for ours, theirs in zip(graph_module(model)(torch.from_numpy(given)), expected, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)
        assert ours.numpy().dtype == theirs.dtype


def test_slice_that_torch_does_not_support_is_refused():
    from detector.core.engines.torch.operators import OPERATORS, OnnxNode

    proto = helper.make_node("Slice", ["x", "start", "end", "", "step"], ["y"])
    for bounds in ((0, 3, 0), (3, 0, -1), (-1, 3, 1), (0, -1, 1), (0, 2**31 - 1, 1)):
        given = dict(zip(("start", "end", "step"), map(whole, bounds), strict=True))
        with pytest.raises(EngineError):
            OPERATORS["Slice"](OnnxNode(proto, given))


def test_refusal_of_an_unsupported_node_names_the_node():
    from detector.core.engines.torch.graph import graph_module

    pooled, reduced = Sketch(), Sketch()
    places = pooled.add("MaxPool", "x", outputs=2, name="pool", kernel_shape=[2, 2])[1]
    nothing = reduced.add("ReduceSum", "x", whole(), name="sum", noop_with_empty_axes=1)
    for model, node in ((pooled.model(places), "pool"), (reduced.model(nothing), "sum")):
        with pytest.raises(EngineError, match=f"node {node} .*use --engine ort"):
            graph_module(model)


@pytest.mark.parametrize("axis", [-1, 2])
def test_layer_normalization_equals_the_formula(axis):
    """Compare with the formula, since ONNX Runtime 1.20 has an error of 7e-4 here."""
    import torch

    from detector.core.engines.torch.graph import graph_module

    sketch, shape = Sketch(), SHAPE[axis:]
    scale, bias = small(*shape), small(*shape)
    model = sketch.model(sketch.add("LayerNormalization", "x", scale, bias, axis=axis, epsilon=0.1))
    given = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)
    over = tuple(range(axis % given.ndim, given.ndim))
    deviation = given - given.mean(over, keepdims=True)
    expected = deviation / np.sqrt((deviation**2).mean(over, keepdims=True) + 0.1) * scale + bias
    [ours] = graph_module(model)(torch.from_numpy(given))
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grid_sample_equals_onnxruntime(mode, corners):
    import onnxruntime as ort
    import torch

    from detector.core.engines.torch.graph import graph_module

    sketch = Sketch()
    grid = np.random.default_rng(1).uniform(-1.3, 1.3, (2, 5, 7, 2)).astype(np.float32)
    model = sketch.model(sketch.add("GridSample", "x", grid, mode=mode, align_corners=corners))
    given = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)
    [expected] = ort.InferenceSession(model.SerializeToString()).run(None, {"images": given})
    np.testing.assert_allclose(
        graph_module(model)(torch.from_numpy(given))[0].numpy(), expected, rtol=1e-5, atol=1e-3
    )


@pytest.mark.slow
def test_grid_sample_accepts_a_bf16_map_that_is_not_contiguous():
    """RT-DETR gets such a map by splitting [batch, positions, heads x channels] into heads."""
    import torch

    from detector.core.engines.torch.operators import OPERATORS, OnnxNode

    proto = helper.make_node("GridSample", ["x", "grid"], ["y"], name="y", mode="linear")
    module, _ = OPERATORS["GridSample"](OnnxNode(proto, {}))
    maps = torch.rand(40, 40, 8, 32, generator=torch.manual_seed(0)).bfloat16()
    grid = (torch.rand(8, 300, 4, 2) * 2.1 - 1.05).bfloat16()
    sampled = module(maps.permute(2, 3, 0, 1), grid)
    assert sampled.dtype == torch.bfloat16
    expected = module(maps.permute(2, 3, 0, 1).contiguous(), grid)
    torch.testing.assert_close(sampled, expected)
    assert float(sampled.abs().max()) <= 1
