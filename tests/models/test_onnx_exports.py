"""What exporters write around a network: unsorted nodes, formulas for sizes, inputs for the
picture's size. A file with any of these gives the same boxes as a file without."""

from pathlib import Path

import numpy as np
import pytest

from detector.core.errors import UsageError
from detector.core.models.formats.onnx import load
from tests.models import exports
from tests.models.exports import SIDE, STATED
from tests.models.test_onnx_families import BOTH, EVERY, GREEN, detect, picture
from tests.networks import refusal


def changed(path: str, change) -> str:
    import onnx

    model = onnx.load(path)
    change(model)
    onnx.save(model, path)
    return path


# ---- order


def test_nodes_in_any_order_are_sorted(tmp_path):
    def reverse(model):
        nodes = list(model.graph.node)[::-1]
        del model.graph.node[:]
        model.graph.node.extend(nodes)

    path = exports.anchor_free().save(tmp_path / "yolov8n.onnx", STATED)
    assert detect(changed(path, reverse)) == GREEN


def test_half_precision_file_with_casts_out_of_order_is_read(tmp_path):
    """Converters to float16 keep float32 inputs and outputs and append the Casts."""
    from onnx import TensorProto, helper

    def half(model):
        graph = model.graph
        graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT
        graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
        for node in graph.node:
            node.input[:] = ["cast_in" if name == "images" else name for name in node.input]
            node.output[:] = ["half_out" if name == "output0" else name for name in node.output]
        graph.node.append(
            helper.make_node("Cast", ["images"], ["cast_in"], name="graph_input_cast_0", to=10)
        )
        graph.node.append(
            helper.make_node("Cast", ["half_out"], ["output0"], name="graph_output_cast_0", to=1)
        )
        graph.node.insert(0, graph.node.pop())  # move the output's Cast to the front
        del graph.value_info[:]

    path = exports.anchor_free(kind="FLOAT16").save(tmp_path / "yolov8n.onnx", STATED)
    found = detect(changed(path, half))
    assert [name for name, _, _ in found] == ["green", "green"]
    assert [box for _, _, box in found] == BOTH
    assert [score for _, score, _ in found] == pytest.approx([0.8, 0.8], abs=1e-3)


def test_a_branch_may_read_the_output_of_a_later_node(tmp_path):
    """The branches of an If may read tensors of the outer graph by name."""
    from onnx import helper

    def wrap(model):
        graph, last = model.graph, model.graph.node[-1]
        assert last.op_type == "Identity"
        info = helper.make_tensor_value_info("inner", 1, None)
        branch = helper.make_graph(
            [helper.make_node("Identity", list(last.input), ["inner"])], "branch", [], [info]
        )
        always = helper.make_tensor("always", 9, [1], [1])
        graph.node.pop()
        graph.initializer.append(always)
        chosen = helper.make_node(
            "If", ["always"], ["output0"], then_branch=branch, else_branch=branch
        )
        graph.node.insert(0, chosen)

    path = exports.anchor_free().save(tmp_path / "yolov8n.onnx", STATED)
    assert detect(changed(path, wrap)) == GREEN


# ---- formulas


def test_long_formulas_for_sizes_are_accepted(tmp_path):
    """``yolo export dynamic=True`` gives an axis a name of 1,234 characters. We infer the size."""
    from onnx import helper

    def label(model):
        formula = "floor(floor(height/2 - 1/2)/2)" * 42
        names = [name for node in model.graph.node[:-1] for name in node.output]
        del model.graph.value_info[:]
        model.graph.value_info.extend(
            helper.make_tensor_value_info(name, 1, [formula] * 3) for name in names
        )
        for dim in model.graph.output[0].type.tensor_type.shape.dim:
            dim.dim_param = formula

    path = exports.anchor_free(batch="batch", side="height").save(tmp_path / "yolov8n.onnx", STATED)
    assert detect(changed(path, label), size=str(SIDE)) == GREEN


def test_output_without_a_stated_shape_is_inferred(tmp_path):
    """Before constants are folded, shape inference cannot find even the number of axes."""

    def forget(model):
        for info in model.graph.output:
            info.type.tensor_type.ClearField("shape")
        del model.graph.value_info[:]

    path = exports.deployed("N").save(tmp_path / "rtdetr.onnx", {"names": STATED["names"]})
    assert sorted(detect(changed(path, forget))) == sorted(EVERY)


# ---- inputs for the picture's size


@pytest.mark.parametrize("batch", [1, "N"])
@pytest.mark.parametrize("engine", ["ort", "openvino", "torch"])
def test_outputs_of_the_official_exporters_are_read(tmp_path, batch, engine):
    """These networks need no NMS. The picture is twice as wide as high, and gets stretched."""
    path = exports.deployed(batch).save(tmp_path / "dfine_s.onnx", {"names": STATED["names"]})
    pytest.importorskip({"ort": "onnxruntime"}.get(engine, engine))
    image = np.repeat(picture(), 2, axis=1)
    wide = [(name, score, [2 * x1, y1, 2 * x2, y2]) for name, score, (x1, y1, x2, y2) in EVERY]
    assert sorted(detect(path, image, engine)) == sorted(wide)  # ties come in any order


def _scaled(name: str, dims: list, kind: str, take: list[int]) -> exports.Export:
    """Make a YOLOv10 that multiplies boxes by an extra input. Sides in pixels are divided by 64."""
    export = exports.Export()
    colours = export.colours()
    sides = export.add("Cast", export.add_input(name, dims, kind), to=1)
    whole = export.add("Reshape", sides, export.ints(-1))
    sides = export.add("Gather", whole, export.const(take, np.int64))
    boxes = export.table(colours, exports.CORNERS, 300)
    factor = 1 / SIDE if "scale" not in name and "mask" not in name else 1.0
    boxes = export.add("Mul", boxes, export.add("Mul", sides, export.const([factor])))
    scores = export.table(colours, [(0.9,), (0.7,)], 300)
    classes = export.table(colours, [(2.0,), (1.0,)], 300)
    return export.out("output0", export.add("Concat", boxes, scores, classes, axis=2))


@pytest.mark.parametrize(
    ("name", "dims", "kind", "take"),
    [
        ("orig_target_sizes", [1, 2], "INT64", [0, 1, 0, 1]),  # RT-DETR, D-FINE, DEIM
        ("im_shape", [1, 2], "FLOAT", [1, 0, 1, 0]),  # PaddleDetection
        ("im_shape", ["batch", 2], "FLOAT", [1, 0, 1, 0]),
        ("scale_factor", [1, 2], "FLOAT", [1, 0, 1, 0]),
        ("scale_factor", [1, 4], "FLOAT", [0, 1, 2, 3]),  # mmdetection
        ("image_shape", [1, 2], "FLOAT", [1, 0, 1, 0]),  # YOLOv3 of the ONNX zoo
        ("serving_default_image_shape:0", [2], "INT32", [1, 0, 1, 0]),
        ("im_info", [1, 3], "FLOAT", [1, 0, 1, 0]),  # Faster R-CNN
        ("pixel_mask", [1, SIDE, SIDE], "INT64", [0, 1, SIDE, -1]),  # DETR of transformers
        ("pixel_mask", ["batch", "height", "width"], "BOOL", [0, 1, SIDE, -1]),
    ],
)
def test_input_for_the_picture_size_is_set(tmp_path, name, dims, kind, take):
    path = _scaled(name, dims, kind, take).save(tmp_path / "yolov10n.onnx", STATED)
    if name == "orig_target_sizes":
        path = str(Path(path).rename(tmp_path / "m.onnx"))
    assert detect(path) == [("blue", 0.9, BOTH[0]), ("green", 0.7, BOTH[1])]


def test_width_and_height_are_not_mixed_up(tmp_path):
    """A 64x32 picture's size is [64, 32] for graphs that expect the width first, else [32, 64]."""
    from detector.core.models.formats.onnx.inputs import fix_sizes
    from detector.core.models.formats.onnx.load import read_graph

    values = {}
    for name, dims in (
        ("orig_target_sizes", ["N", 2]),
        ("im_shape", [1, 2]),
        ("im_info", [1, 3]),
        ("img_shape", [1, 3]),
        ("scale_factor", [1, 4]),
        ("pixel_mask", ["N", "h", "w"]),
    ):
        path = _scaled(name, dims, "FLOAT", [0, 1, 0, 1]).save(tmp_path / "m.onnx")
        graph, _ = read_graph(Path(path))
        fix_sizes(graph, (32, 64), 2)
        values[name] = graph.value(name)
    assert values["orig_target_sizes"].tolist() == [[64, 32], [64, 32]]
    assert values["im_shape"].tolist() == [[32, 64]]
    assert values["im_info"].tolist() == [[32, 64, 1]]
    assert values["img_shape"].tolist() == [[32, 64, 3]]
    assert values["scale_factor"].tolist() == [[1, 1, 1, 1]]
    assert values["pixel_mask"].shape == (2, 32, 64)
    assert values["pixel_mask"].min() == 1


def test_unused_input_is_dropped(tmp_path):
    export = exports.anchor_free()
    export.add_input("iou_threshold", [1])
    export.add_input("im_shape", [7, 7, 7])
    assert detect(export.save(tmp_path / "yolov8n.onnx", STATED)) == GREEN


@pytest.mark.parametrize(
    ("name", "dims", "kind"),
    [
        ("iou_threshold", [1], "FLOAT"),
        ("max_output_boxes", [1, 2], "INT64"),
        ("sizes", [1, 2], "INT64"),
        ("orig_target_sizes", [1, 3], "INT64"),
        ("image_shape", [1, 2, 2], "FLOAT"),
        ("im_shape", [1, 2], "BOOL"),
        ("pixel_mask", [SIDE, SIDE], "INT64"),
        ("images2", [1, 3, SIDE, SIDE], "FLOAT"),
    ],
)
def test_refusal_of_any_other_input_mentions_its_name(tmp_path, name, dims, kind):
    path = _scaled(name, dims, kind, [0, 0, 0, 0]).save(tmp_path / "m.onnx", STATED)
    message = refusal(path)
    assert f"{name} {kind.lower()} {dims}".replace("'", "") in message or (
        name in message and str(dims) in message
    )
    assert "constant" in message


# ---- class names with commas

COMMAS = {**STATED, "names": "{0: 'red', 1: 'couch, sofa', 2: 'blue'}"}


@pytest.mark.parametrize(
    "classes",
    ['"couch, sofa"', r"couch\, sofa", 'red,"couch, sofa"', ["couch, sofa"], "1", ["red", "1"]],
)
def test_classes_option_accepts_a_class_name_with_a_comma(tmp_path, classes):
    path = exports.anchor_free().save(tmp_path / "yolov8n.onnx", COMMAS)
    assert detect(path, classes=classes) == [("couch, sofa", 0.8, box) for box in BOTH]


def test_name_split_at_its_comma_is_suggested_in_quotes(tmp_path):
    path = exports.anchor_free().save(tmp_path / "yolov8n.onnx", COMMAS)
    with pytest.raises(UsageError) as caught:
        detect(path, classes="couch, sofa")
    assert "'\"couch, sofa\"'" in str(caught.value)


OLD = {  # opset, operator, mode, factors for height and width
    "upsample 8": (8, "Upsample", "linear", (2, 2)),
    "upsample 9": (9, "Upsample", "linear", (2, 3)),
    "upsample 9, nearest": (9, "Upsample", "nearest", (1.5, 1.7)),
    "resize 10": (10, "Resize", "linear", (2, 2)),
    "resize 10, nearest": (10, "Resize", "nearest", (2, 1.5)),
}


@pytest.mark.parametrize("case", OLD)
def test_old_resizes_keep_their_results(case):
    """After conversion to opset 17, ONNX Runtime gives the same results as for the old file."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from onnxruntime import InferenceSession

    opset, operator, mode, scales = OLD[case]
    scales = np.float32([1, 1, *scales])
    given = np.random.default_rng(0).normal(size=(1, 2, 5, 7)).astype(np.float32)
    if opset > 8:
        node = helper.make_node(operator, ["x", "s"], ["y"], "n", mode=mode)
        constants = [numpy_helper.from_array(scales, "s")]
    else:
        node = helper.make_node(operator, ["x"], ["y"], "n", mode=mode, scales=scales.tolist())
        constants = []
    infos = [helper.make_tensor_value_info(one, TensorProto.FLOAT, None) for one in "xy"]
    infos[0] = helper.make_tensor_value_info("x", TensorProto.FLOAT, given.shape)
    graph = helper.make_graph([node], "g", infos[:1], infos[1:], constants)
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=5)
    raised = load._raise_opset(Path("old.onnx"), onnx.shape_inference.infer_shapes(model))
    before, after = (
        InferenceSession(one.SerializeToString()).run(None, {"x": given})[0]
        for one in (model, raised)
    )
    np.testing.assert_allclose(after, before, atol=1e-6)
