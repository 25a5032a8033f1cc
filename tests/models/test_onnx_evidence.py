"""Ambiguous files are read if something proves what their outputs mean; else we refuse them.

Each graph is laid out as an exporter writes it. The picture's largest red, green and blue decide
the scores (tests/models/exports.py), so boxes and scores are known.
"""

from dataclasses import replace

import cv2
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from detector import Detector
from detector.core.errors import ModelError, UsageError
from detector.core.errors.guard import guarded, refuse_kept
from detector.core.models import describe
from detector.core.models.base import ModelRequest
from detector.core.models.description import bind, read_description
from detector.core.models.formats.onnx.evidence import PixelSteps
from tests.known_answers import run_once
from tests.models import exports
from tests.models.exports import BOXES, CORNERS, IMAGENET, SIDE, STATED, Export
from tests.models.test_onnx_families import BOTH, detect, picture
from tests.networks import need_engine, open_network, refusal

FRACTIONS = tuple(tuple(v / SIDE for v in corners) for corners in CORNERS)
LIST = 20  # rows of a list of detections
RED, GREEN, BLUE = 0.6, 0.8, 0.4  # scores of test_onnx_families.picture


def red(export: Export, rows: int = LIST, filled: int = 2) -> str:
    """Return [1, rows, 1]: ``filled`` rows with the picture's largest red, then rows of zeros."""
    return export.cut(export.scores(export.colours(), filled, rows), 0, 1, axis=2)


def flat(export: Export, tensor: str, rows: int = LIST) -> str:
    return export.add("Reshape", tensor, export.ints(-1, rows))


def labels(export: Export, numbers, rows: int = LIST) -> str:
    return export.table(export.colours(), [(float(n),) for n in numbers], rows)


def zoo_ssd(numbers=(1, 3), **more) -> Export:
    """Make the ONNX zoo's SSD: corners in 0..1, labels from 1."""
    export = Export(**more)
    export.out("bboxes", export.table(export.colours(), FRACTIONS, LIST))
    number = export.add("Cast", flat(export, labels(export, numbers)), to=onnx.TensorProto.INT64)
    export.out("labels", number, None, onnx.TensorProto.INT64)
    return export.out("scores", flat(export, red(export)))


def tensorflow(**more) -> Export:
    """Make an SSD as TensorFlow exports it: boxes y x y x in 0..1, labels from 1, a count."""
    export = Export(pixels="u8-nhwc", **more)
    turned = [(y1, x1, y2, x2) for x1, y1, x2, y2 in FRACTIONS]
    export.out("detection_boxes", export.table(export.colours(), turned, LIST))
    export.out("detection_classes", flat(export, labels(export, (1, 3))))
    export.out("detection_scores", flat(export, red(export, filled=5)))
    count = export.add("Add", export.zeros(export.colours()), export.const([2.0]))
    return export.out("num_detections", export.add("Reshape", count, export.ints(1)))


def rows_of_six(order: str, boxes=CORNERS, **more) -> Export:
    """Make [1, LIST, 6]. ``order``: b, s and c for box, score and class."""
    export = Export(**more)
    parts = {
        "b": export.table(export.colours(), boxes, LIST),
        "s": red(export),
        "c": labels(export, (1, 2)),
    }
    return export.out("output0", export.add("Concat", *(parts[one] for one in order), axis=2))


def dets_and_labels(**more) -> Export:
    """Make MMDeploy's outputs: dets [1, K, 5], labels [1, K]."""
    export = Export(**more)
    boxes = export.table(export.colours(), CORNERS, LIST)
    export.out("dets", export.add("Concat", boxes, red(export), axis=2))
    number = export.add("Cast", flat(export, labels(export, (1, 2))), to=onnx.TensorProto.INT64)
    return export.out("labels", number, None, onnx.TensorProto.INT64)


def rf_detr(columns: int = 4, **more) -> Export:
    """Make RF-DETR with a GridSample: boxes in 0..1, logits. Logit 4 of 4 is the background's."""
    export = Export(**more)
    zero = export.sampled_zero()
    colours = export.add("Add", export.colours(), zero)
    export.out("dets", export.table(colours, [[v / SIDE for v in box] for box in BOXES], LIST))
    scores = export.scores(colours, 2, LIST)  # 10 x colour - 5, as for RT-DETR
    logits = export.add("Sub", export.add("Mul", scores, export.const([10.0])), export.const([5.0]))
    rest = np.full((1, LIST, columns - 3), -9.0)
    rest[..., -1] = 9.0
    return export.out("labels", export.add("Concat", logits, export.const(rest), axis=2))


def two_branches(words=("cv2", "cv4"), **more) -> Export:
    """Make YOLOv9 as its repository does. An auxiliary branch with other boxes comes first."""
    export = Export(**more)
    colours = export.colours()
    for name, word, boxes in zip(
        ("output0", "2731"), words, ([(9.0, 9.0, 4.0, 4.0)] * 2, BOXES), strict=True
    ):
        table = export.table(colours, boxes, exports.CELLS)
        both = export.add("Concat", table, export.scores(colours, 2, exports.CELLS), axis=2)
        turned = export.add(
            "Transpose", both, perm=[0, 2, 1], name=f"/model.22/{word}.0/{word}.0.2/Conv"
        )
        export.out(name, turned)
    return export


def keypoints(**more) -> Export:
    """Make YOLOv8-pose: a box, one score, seventeen points of x, y and visibility."""
    export = Export(**more)
    colours = export.colours()
    table = export.table(colours, BOXES, exports.CELLS)
    score = export.cut(export.scores(colours, 2, exports.CELLS), 0, 1, axis=2)
    points = export.table(colours, [[30.0, 40.0, 0.9] * 17], exports.CELLS)
    both = export.add("Concat", table, score, points, axis=2)
    return export.out("output0", export.add("Transpose", both, perm=[0, 2, 1]))


def one_piece(graph):
    """Return a function that makes ``graph`` without the Concat that shows what its columns are."""

    def made() -> Export:
        export = graph()
        last = export.nodes.pop()
        whole = export.add("Mul", last.input[0], export.const([1.0]))
        export.outputs.clear()
        return export.out("output0", whole)

    return made


def angles(angle: float = -0.7, **more) -> Export:
    """Make YOLOv8-obb: a box, three scores, an angle."""
    export = Export(**more)
    colours = export.colours()
    table = export.table(colours, BOXES, exports.CELLS)
    turned = export.table(colours, [(angle,)], exports.CELLS)
    scores = export.scores(colours, 2, exports.CELLS)
    both = export.add("Concat", table, scores, turned, axis=2)
    return export.out("output0", export.add("Transpose", both, perm=[0, 2, 1]))


READ = {
    # case: file, graph, family, detections
    "the zoo's SSD": (
        "ssd_12",
        zoo_ssd,
        "ssd-zoo",
        # The score is the normalised red: (.6 - .485) / .229.
        [("person", 0.502, BOTH[0]), ("car", 0.502, BOTH[1])],
    ),
    "TensorFlow's SSD": (
        "saved_model",
        tensorflow,
        "ssd-tensorflow",
        [("person", RED, BOTH[0]), ("car", RED, BOTH[1])],
    ),
    "YOLOv9 whose modules' names show the main branch": (
        "best",
        two_branches,
        "yolov8",
        [("class1", GREEN, box) for box in BOTH],
    ),
    "YOLOv9 with the two branches swapped": (
        "best",
        lambda: two_branches(("cv4", "cv2")),
        "yolov8",
        [("class1", GREEN, [7.0, 7.0, 11.0, 11.0])],
    ),
    "YOLOv9 named by its file": (
        "yolov9-c",
        lambda: two_branches(("a", "b")),
        "yolov9",
        [("class1", GREEN, box) for box in BOTH],
    ),
    "finished rows that a file's name explains": (
        "yolov10n-simplified",
        lambda: rows_of_six("bsc"),
        "yolov10",
        [("bicycle", RED, BOTH[0]), ("car", RED, BOTH[1])],
    ),
}


@pytest.mark.parametrize("case", READ)
def test_file_is_read_if_something_proves_its_outputs(tmp_path, case):
    name, graph, family, expected = READ[case]
    path = graph().save(tmp_path / f"{name}.onnx")
    assert open_network(path).family == family
    assert detect(path) == expected


@pytest.mark.parametrize(("columns", "family"), [(4, "rfdetr"), (91, "rfdetr-coco")])
def test_rf_detr_gets_imagenet_pixels_and_has_no_background_class(tmp_path, columns, family):
    """Three classes and the background make four columns, as many as boxes have. COCO's 91 columns
    include no background. The network gets normalised colours: (colour - mean) / deviation."""
    path = rf_detr(columns).save(tmp_path / "inference_model.onnx")
    network = open_network(path)
    assert (network.family, network.input.geometry) == (family, "stretch")
    assert len(network.names) == (3 if columns == 4 else 91)
    image = np.full((SIDE, SIDE, 3), 0, np.uint8)
    image[..., ::-1] = np.rint(np.multiply(IMAGENET[0], 255))  # the mean: 0 in the network
    image[0, 0, 2] = 255  # except one red pixel: (1 - .485) / .229 = 2.249
    with Detector(path, engine="ort", conf=0.5) as detector:
        found = detector(image)
    if columns == 91:  # the last column is a class, too
        assert set(found.class_ids.tolist()) == {0, 90}
        return
    assert found.class_ids.tolist() == [0, 0]
    np.testing.assert_allclose(found.boxes, BOTH, atol=1e-3)
    assert found.scores == pytest.approx(1 / (1 + np.exp(-(10 * 2.2489 - 5))), abs=1e-4)


def transformer(head: str, kernel: int, **more) -> Export:
    """Make one query with logits 2, 0, 1 and a box. ``head``: how the last layer computes the box.
    The files of all families like DETR have these names and shapes.
    """
    export = Export(**more)
    stem = export.add("Conv", "images", export.const(np.zeros((1, 3, kernel, kernel))))
    seen = export.add("Reshape", export.add("GlobalMaxPool", stem), export.ints(1, 1, 1))
    colours = export.add("Add", export.colours(), export.add("Mul", seen, export.const([0.0])))
    expected = np.array(BOXES[:1]) / SIDE
    sides = export.table(colours, np.log(expected / (1 - expected)), LIST)
    if head == "linear":
        layer = export.add("MatMul", sides, export.const(np.eye(4)))
        sides = export.add("Add", layer, export.const(np.zeros(4)))
    elif head == "moved":
        centre, rest = export.add("Split", sides, axis=2, outputs=2)
        centre = export.add("Add", centre, export.const(np.zeros((1, LIST, 2))))
        sides = export.add("Concat", centre, rest, axis=2)
    elif head == "moved in place":
        places = np.stack(np.meshgrid([0], range(LIST), range(2), indexing="ij"), -1)
        sides = export.add(
            "ScatterND", sides, export.const(places, np.int64), export.cut(sides, 0, 2, axis=2)
        )
    else:
        sides = export.add("Neg", export.add("Neg", sides))
    export.out("pred_boxes", export.add("Sigmoid", sides))
    return export.out("logits", export.table(colours, [(2.0, 0.0, 1.0)], LIST))


SOFTMAX = [(0, 0.665)]  # e^2 / (e^2 + 1 + e); the last column is the background
LOGISTIC = [(0, 0.881), (2, 0.731)]  # 1 / (1 + e^-2), 1 / (1 + e^-1)


@pytest.mark.parametrize(
    ("head", "kernel", "family", "expected"),
    [
        ("linear", 7, "detr", SOFTMAX),
        ("linear", 16, "yolos", SOFTMAX),
        ("moved", 7, "conditional-detr", LOGISTIC),
        ("moved in place", 7, "conditional-detr", LOGISTIC),
    ],
)
def test_transformer_family_follows_from_how_boxes_are_computed(
    tmp_path, head, kernel, family, expected
):
    """Conditional DETR adds reference points to its boxes. After constant folding, an Add of
    constants is the only difference from DETR."""
    path = transformer(head, kernel).save(tmp_path / "model.onnx")
    network = open_network(path, batch=1 if head == "moved in place" else 2)
    assert (network.family, network.output_shapes[0][0]) == (family, network.batch)
    with Detector(path, engine="ort", conf=0.6) as detector:
        found = detector(picture())
    ids, scores = found.class_ids.tolist(), found.scores.tolist()
    assert list(zip(ids, [round(score, 3) for score in scores], strict=True)) == expected
    np.testing.assert_allclose(found.boxes, BOTH[:1] * len(expected), atol=1e-3)


def boxes_and_scores(**more) -> Export:
    """Make PP-YOLOE without its NMS: boxes [1, cells, 4], scores [1, classes, cells]."""
    export = Export(**more)
    colours = export.colours()
    export.out("output0", export.table(colours, CORNERS, exports.CELLS))
    wide = export.add("Concat", *[export.scores(colours, 2, exports.CELLS)] * 2, axis=2)
    return export.out("output1", export.add("Transpose", wide, perm=[0, 2, 1]))


def mmyolo() -> Export:
    """Make the outputs of MMYOLO's NMS, which are the same for several families."""
    export = exports.parts()
    for node in export.nodes:
        for old, new in (("det_", ""), ("classes", "labels")):
            node.output[:] = [name.replace(old, new) for name in node.output]
    for info in export.outputs:
        info.name = info.name.replace("det_", "").replace("classes", "labels")
    return export


REFUSED = {
    # case: file, graph, words of the message
    "an objectness above 1": (
        "best",
        lambda: exports.decoded(objectness=7.0),
        ("the objectness has values of 7", "0..1"),
    ),
    "separate boxes and scores": ("model", boxes_and_scores, ("not certain", "models describe")),
    "rows that begin with the class": (
        "model",
        lambda: rows_of_six("csb"),
        ("output0 [1, 20, 6]", "--family"),
    ),
    "rows in 0..1 in a file named yolov10n": (
        "yolov10n",
        lambda: rows_of_six("bsc", FRACTIONS),
        ("looks like yolov10", "within one pixel", "models describe yolov10n.onnx"),
    ),
    "rows that nothing explains": (
        "model",
        lambda: rows_of_six("bsc"),
        ("not certain", "models describe model.onnx"),
    ),
    "MMDeploy": (
        "end2end",
        dets_and_labels,
        ("mmdet-caffe, mmdet-resnet, mmdet-rtmdet, mmdet-ssd, mmdet-yolox", "--family"),
    ),
    "MMYOLO": (
        "best",
        mmyolo,
        ("mmyolo-ppyoloe or mmyolo-rtmdet or mmyolo-yolo or mmyolo-yolox", "--family"),
    ),
    "two branches without known names": (
        "best",
        lambda: two_branches(("a", "b")),
        ("2 outputs of the same shape", "--family yolov9"),
    ),
    "keypoints": ("best", keypoints, ("yolov8", "are 4 + 1 + 51", "the last 51", "keypoints")),
    "keypoints named by the file": ("yolov8n-pose", keypoints, ("keypoints",)),
    "keypoints in one piece": ("best", one_piece(keypoints), ("scores of 40", "0..1", "keypoints")),
    "a transformer with another head": (
        "model",
        lambda: transformer("unknown", 7),
        ("Name its family",),
    ),
    "rotated boxes": ("yolov8n-obb", angles, ("are 4 + 3 + 1", "an angle")),
    "rotated boxes in 0..1": ("best", lambda: angles(0.7), ("are 4 + 3 + 1", "an angle")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_ambiguous_file_is_refused_with_advice(tmp_path, case):
    name, graph, words = REFUSED[case]
    path = graph().save(tmp_path / f"{name}.onnx")
    text = refusal(path)
    for word in words:
        assert word in text, text


@pytest.mark.parametrize("case", [*REFUSED, "a quote in a name"])
def test_template_for_a_refused_file_can_be_read_as_a_description(monkeypatch, tmp_path, case):
    monkeypatch.chdir(tmp_path)
    name, graph, _ = REFUSED.get(case, ('a"b: {', lambda: rows_of_six("csb"), ()))
    text = describe(ModelRequest(graph().save(tmp_path / f"{name}.onnx")))
    assert "This is a template" in text
    (tmp_path / "template.yaml").write_text(text)
    assert read_description(tmp_path / "template.yaml").family == name


def test_files_reported_by_users_are_read_or_refused(shared):
    """The ONNX zoo's SSD is read; PaddleDetection's rows, with the class first, are refused."""
    found = detect(str(shared / "data/reports/zoo_ssd12.onnx"), picture(side=320), conf=0.01)
    assert {name for name, _, _ in found} == {"person", "bicycle", "car"}
    assert max(max(box) for _, _, box in found) > 100
    assert min(box[2] - box[0] for _, _, box in found) > 1
    with pytest.raises(ModelError, match=r"output0 \[1, "):
        open_network(str(shared / "data/reports/rows_cls_first.onnx"))


def test_mmyolo_file_gives_known_detections(shared):
    (_, score, _), *more = detect(
        str(shared / "data/reports2/models/rtmdet_tiny.onnx"),
        cv2.imread(str(shared / "data/photos/bus.jpg")),
    )
    assert (len(more), score) == (99, pytest.approx(0.974, abs=1e-3))


def test_families_with_common_output_names_are_not_suggested(tmp_path):
    """Any exporter may call a table output0, so this name does not suggest a family."""
    assert "names and shapes of" not in refusal(rows_of_six("csb").save(tmp_path / "model.onnx"))


@pytest.mark.parametrize(
    ("name", "option", "family", "pixel"),
    [
        ("rtmdet_tiny", None, "mmyolo-rtmdet", (-103.53 / 57.375, (255 - 123.675) / 58.395)),
        ("best", "mmyolo-rtmdet", "mmyolo-rtmdet", (-103.53 / 57.375, (255 - 123.675) / 58.395)),
        ("yolox_s", None, "mmyolo-yolox", (0, 255)),
        ("yolov5s", None, "mmyolo-yolo", (1, 0)),
        ("ppyoloe_s", None, "mmyolo-ppyoloe", ((1 - 0.485) / 0.229, -0.406 / 0.225)),
    ],
)
def test_mmyolo_family_decides_the_pixels(tmp_path, name, option, family, pixel):
    """``pixel``: the first and last channel of a red pixel, as the network gets them."""
    network = open_network(mmyolo().save(tmp_path / f"{name}.onnx"), family=option)
    assert network.family == family
    assert f"COCO's {len(network.names)} names are assumed" in network.warnings[-1]
    graph = network.graph.graph
    read = next(node.input[0] for node in graph.node if node.op_type == "GlobalMaxPool")
    graph.output.append(onnx.helper.make_empty_tensor_value_info(read))
    network.output_shapes.append((1, 3, SIDE, SIDE))
    image = np.zeros(network.input_shape, np.uint8)
    image[..., 0] = 255
    *_, seen = run_once(network, image)
    assert (seen[0, 0, 0, 0], seen[0, -1, 0, 0]) == pytest.approx(pixel, abs=1e-4)


def test_user_names_the_family_of_an_ambiguous_file(tmp_path):
    path = dets_and_labels().save(tmp_path / "end2end.onnx")
    network = open_network(path, family="mmdet-yolox")
    assert (network.family, network.input.geometry) == ("mmdet-yolox", "top-left")
    rtmdet = open_network(path, family="mmdet-rtmdet")
    assert rtmdet.input.pad_value == 114
    with pytest.raises(ModelError, match="no output"):
        open_network(path, family="ssd-zoo")


@pytest.mark.parametrize(
    "pixels", ["baked", "u8", "u8-nhwc", "chw", "normalised", "turned", "flipped"]
)
@pytest.mark.parametrize("engine", ["ort", "openvino", "torch"])
def test_preprocessing_in_the_graph_is_not_repeated(tmp_path, pixels, engine):
    if (pixels, engine) == ("flipped", "torch"):  # torch has no slices with negative steps
        return
    need_engine(engine)
    path = exports.anchor_free(pixels=pixels).save(tmp_path / "m.onnx", STATED)
    assert detect(path, engine=engine) == [("green", GREEN, box) for box in BOTH]


def test_mean_subtracted_in_the_graph_is_not_subtracted_again(tmp_path):
    """The family needs ImageNet's mean. One of the two exports subtracts the mean itself."""
    description = tmp_path / "d.yaml"
    description.write_text(
        "family: x\n"
        "input: {mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225]}\n"
        "outputs:\n"
        "  boxes: {tensor: output0, columns: 0-3, form: cxcywh, axis: first}\n"
        "  scores: {tensor: output0, columns: 4-, axis: first}\n"
    )
    found = {}
    for pixels in ("", "normalised"):
        path = exports.anchor_free(pixels=pixels).save(tmp_path / f"m{pixels}.onnx", STATED)
        found[pixels] = open_network(path, describe=description).graph.graph
    assert "input.shift" in [node.name for node in found[""].node]
    assert "input.shift" not in [node.name for node in found["normalised"].node]


@pytest.mark.parametrize(
    ("factor", "divides"),
    [
        ([1.0], False),
        ([1 / 255], False),
        ([4.0], True),  # one deviation for all channels
        ([1 / 58], True),
        ([1.0, 1.0, 1.1], True),  # a deviation for each channel
        ([1 / 255, 1 / 255, 1 / 127], True),
    ],
)
def test_scaling_to_fractions_is_not_normalisation(factor, divides):
    inside = PixelSteps(np.array(factor), np.zeros(1))
    assert (inside.divides, inside.normalises) == (divides, divides)


def test_mean_is_subtracted_if_the_graph_only_divides(tmp_path):
    """The graph divides all channels by 57, the deviation. The mean is 51, or 0.2 of 255."""
    export = Export()
    divided = export.add("Div", export.picture, export.const([57.0]))
    positive = export.add("Relu", divided)
    export.picture = export.add("Mul", positive, export.const([57 / 255]))
    colours = export.colours()
    export.out("boxes", export.table(colours, CORNERS, LIST))
    export.out("scores", export.scores(colours, 2, LIST))
    path = export.save(tmp_path / "m.onnx")
    text = (
        "family: x\ninput: {scale: 1, mean: [51, 51, 51], fit: stretch}\n"
        "outputs: {boxes: {tensor: boxes}, scores: {tensor: scores}}\n"
    )
    found = detect(path, describe=str(described(tmp_path, text)))
    assert found == [("class1", 0.6, box) for box in BOTH]


def branches_on_boxes(nothing: float = 1.0, branch: bool = True) -> Export:
    """Make a detector like torchvision's that finds one box or none. To keep classes apart, its NMS
    moves boxes by the largest coordinate. For an empty list, a branch skips this."""
    export = Export()
    colours = export.colours()
    kept = export.add("Greater", export.add("ReduceMax", colours, axes=[2]), export.const([0.5]))
    at = export.add("Transpose", export.add("NonZero", kept), perm=[1, 0])
    first = export.add("Gather", at, export.const(0, np.int64), axis=1)
    boxes = export.add(
        "Gather", export.const(np.reshape(CORNERS[0], (1, 4))), first, axis=0
    )  # one box, or none
    count = export.add("ReduceProd", export.add("Shape", boxes), keepdims=0)
    empty = export.add("Equal", count, export.const(0, np.int64))
    found = export.add("If", empty, **branches(export, boxes, nothing)) if branch else boxes
    score = export.add("Gather", export.add("Reshape", colours, export.ints(3)), first)
    number = export.add("Add", first, export.const(1, np.int64))
    export.out("boxes", found, [None, 4])
    export.out("scores", score, [None])
    return export.out("labels", number, [None], onnx.TensorProto.INT64)


def branches(export: Export, boxes: str, nothing: float) -> dict:
    """Return the branches of an If: an empty constant, and the boxes moved away and back."""

    def graph(name, nodes, output):
        info = helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)
        return helper.make_graph(nodes, name, [], [info])

    empty = numpy_helper.from_array(np.zeros((0 if nothing else 1, 4), np.float32))
    none = helper.make_node("Constant", [], ["none"], value=empty, name="/none")
    steps = [
        helper.make_node("ReduceMax", [boxes], ["most"], keepdims=0, name="/most"),
        helper.make_node("Add", [boxes, "most"], ["moved"], name="/moved"),
        helper.make_node("Sub", ["moved", "most"], ["back"], name="/back"),
    ]
    return {
        "then_branch": graph("then", [none], "none"),
        "else_branch": graph("else", steps, "back"),
    }


def test_branch_for_pictures_without_boxes_is_removed(tmp_path):
    path = branches_on_boxes().save(tmp_path / "ssd300.onnx")
    network = open_network(path, family="torchvision")
    assert "If" not in [node.op_type for node in network.graph.graph.node]
    found = detect(path, family="torchvision")
    assert [row[2] for row in found] == [BOTH[0]]
    assert detect(path, picture((0, 0, 0)), family="torchvision") == []


def squeezes(columns: int) -> Export:
    """Make an export like DAMO-YOLO's end2end. torch squeezes a part of each row only if the part
    has one column, so the file branches on the part's width."""
    export = branches_on_boxes(branch=False)
    rows = export.nodes[-1].input[0]  # rows of the labels: [K]
    wide = export.add("Unsqueeze", rows, export.ints(1))
    parts = [wide] if columns == 1 else [wide, wide]
    table = export.add("Concat", *parts, wide, axis=1)
    part = export.add("Split", table, export.ints(columns, 1), axis=1, outputs=2)[0]
    width = export.add("Gather", export.add("Shape", part), export.const(1, np.int64))
    one = export.add("Equal", width, export.const(1, np.int64))

    def graph(name, operator, *more):
        info = helper.make_tensor_value_info(name, onnx.TensorProto.INT64, None)
        node = helper.make_node(operator, [part, *more], [name], name=f"/{name}")
        return helper.make_graph([node], name, [], [info])

    axis = export.ints(1)
    flat = export.add(
        "If",
        one,
        then_branch=graph("narrow", "Squeeze", axis),
        else_branch=graph("same", "Identity"),
    )
    [at] = [at for at, node in enumerate(export.nodes) if node.output[0] == "labels"]
    end = export.nodes.pop(at)
    end.input[0] = flat
    export.nodes.append(end)
    return export


def test_branch_that_depends_on_a_known_width_is_resolved(tmp_path):
    path = squeezes(1).save(tmp_path / "m.onnx")
    names = [node.name for node in open_network(path, family="torchvision").graph.graph.node]
    assert "narrow" in names
    assert [row[2] for row in detect(path, family="torchvision")] == [BOTH[0]]
    wide = squeezes(2).save(tmp_path / "two.onnx")
    names = [node.name for node in open_network(wide, family="torchvision").graph.graph.node]
    assert "narrow" not in names


def test_any_other_branch_is_refused(tmp_path):
    path = branches_on_boxes(nothing=0.0).save(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="holds If nodes, "):
        open_network(path, family="torchvision")


# Descriptions


def described(folder, text: str):
    path = folder / "model.yaml"
    path.write_text(text)
    return path


WHOLE = """
version: 1
family: mine
input: {colour: bgr, scale: 1, fit: letterbox, align: top-left, pad: [1, 2, 3]}
outputs:
  boxes: {tensor: output0, columns: 2-5}
  scores: {tensor: output0, columns: 1}
  classes: {tensor: output0, column: 0, first: 1}
  nms: inside
names: [one, two, three]
"""


def test_any_list_can_be_described(tmp_path):
    path = rows_of_six("csb", pixels="baked").save(tmp_path / "m.onnx")
    network = open_network(path, describe=described(tmp_path, WHOLE))
    assert (network.family, network.names) == ("mine", ("one", "two", "three"))
    assert (network.input.geometry, network.input.pad_value) == ("top-left", (1, 2, 3))
    found = detect(path, describe=str(tmp_path / "model.yaml"))
    assert found == [("one", BLUE, BOTH[0]), ("two", BLUE, BOTH[1])]  # BGR: red is read as blue


def test_description_changes_the_digest_of_the_model(tmp_path):
    path = rows_of_six("csb").save(tmp_path / "m.onnx")
    one = open_network(path, describe=described(tmp_path, WHOLE)).sha256
    two = open_network(path, describe=described(tmp_path, WHOLE.replace("mine", "mien"))).sha256
    assert one != two


def test_boxes_may_be_fractions_of_the_picture_in_its_letterbox(tmp_path):
    """A 64x32 picture is in a 64x64 input; y in 0..1 is a fraction of the picture's 32 rows."""
    path = rows_of_six("bsc", FRACTIONS).save(tmp_path / "m.onnx")
    text = WHOLE.replace("2-5}", "0-3, unit: fraction, of: picture}").replace(
        "columns: 1", "columns: 4"
    )
    text = text.replace("column: 0, first: 1", "column: 5").replace("bgr, scale: 1", "rgb")
    description = described(tmp_path, text)
    image = np.zeros((32, 64, 3), np.uint8)
    image[0, 0, 2] = 153
    with Detector(path, engine="ort", describe=str(description)) as detector:
        found = detector(image)
    expected = [[x1, y1 / 2, x2, y2 / 2] for x1, y1, x2, y2 in CORNERS]
    np.testing.assert_allclose(found.boxes, expected, atol=1e-3)


WRONG = {
    "family: x\noutputs: 3": "Expected `object | null`, got `int` - at `$.outputs`",
    "family: x\ncolor: rgb": "unknown field `color`",
    "family: x\ninput: {colour: red}": "Invalid enum value 'red' - at `$.input.colour`",
    "family: x\ninput: {scale: a/b}": "input.scale: 'a/b': write a factor",
    "input: {}": "missing required field `family`",
    "family: x": "lacks the key 'outputs'",
    "family: x\nlayouts: [grid, nope]": "layouts: 'nope' is not one of",
    "family: x\nsigns: {words: '" + "(" * 3000 + "a{999999999999}'}": "lacks the key 'outputs'",
    "- 1": "holds no keys",
    WHOLE.replace("scale: 1", "scale: 1/0"): "input.scale: '1/0'",
    WHOLE.replace("columns: 2-5", "columns: 2-9"): "has no columns 2-9",
    WHOLE.replace("columns: 2-5", "columns: last 9"): "columns last 9: there are only 6",
    WHOLE.replace("column: 0", "column: -5"): "`$.outputs.classes.column`",
    WHOLE.replace("columns: 2-5", "columns: x"): "columns: x: write 0-3",
    WHOLE.replace("tensor: output0, columns: 2-5", "tensor: boxes"): "has no output named boxes",
    WHOLE.replace("pad: [1, 2, 3]", "pad: 256"): "input.pad: 256 is not 0 to 255",
    WHOLE.replace("scale: 1,", "scale: 1, deviation: [0, 1, 1],"): "would divide by zero",
}


@pytest.mark.parametrize("text", WRONG)
def test_refusal_of_a_wrong_description_mentions_the_key(tmp_path, text):
    path = rows_of_six("csb").save(tmp_path / "m.onnx")
    assert WRONG[text] in refusal(path, describe=described(tmp_path, text))


def test_last_columns_are_refused_if_the_number_of_columns_is_unknown(tmp_path):
    text = WHOLE.replace("columns: 2-5", "columns: last 4")
    outputs = read_description(described(tmp_path, text)).outputs
    why = bind(outputs, {"output0": (1, 20, None)}, (SIDE, SIDE))
    assert why == "columns last 4: the number of columns is unknown"


def test_command_describe_does_not_overwrite_the_files_of_the_model(tmp_path):
    path = rows_of_six("csb").save(tmp_path / "m.onnx")
    with guarded():
        describe(ModelRequest(path))
        with pytest.raises(UsageError, match="is the model file itself"):
            refuse_kept(path)


def test_corrected_template_runs(tmp_path):
    path = rows_of_six("csb").save(tmp_path / "m.onnx")
    text = describe(ModelRequest(path))
    for line, correct in {
        "columns: 0-3": "columns: 2-5",
        "columns: 4-": "columns: 1",
        "# classes": "classes",
        "column: 5": "column: 0",
        "nms: needed": "nms: inside",
    }.items():
        assert line in text
        text = text.replace(line, correct)
    found = detect(path, describe=str(described(tmp_path, text)))
    assert [row[1:] for row in found] == [(RED, BOTH[0]), (RED, BOTH[1])]


@pytest.mark.parametrize(
    "graph",
    [
        exports.decoded,
        exports.anchor_free,
        exports.yolox,
        exports.queries,
        exports.corners,
        zoo_ssd,
    ],
)
def test_known_file_is_read_the_same_way_with_a_description(tmp_path, graph):
    path = graph().save(tmp_path / "m.onnx", {} if graph is zoo_ssd else STATED)
    text = describe(ModelRequest(path))
    assert "is recognised as" in text
    description = described(tmp_path, text)
    known, again = open_network(path), open_network(path, describe=description)
    assert detect(path, conf=0.0) == detect(path, conf=0.0, describe=str(description)) != []
    assert replace(known.input, stride=32) == replace(again.input, stride=32)
    assert again.needs_nms == known.needs_nms


def detection_output(**more) -> Export:
    """Make Caffe's DetectionOutput [1, 1, K, 7]: picture, class from 1, score, corners in 0..1."""
    export = Export(**more)
    zero = export.table(export.colours(), [(0.0,)], LIST)
    boxes = export.table(export.colours(), FRACTIONS, LIST)
    rows = export.add("Concat", zero, labels(export, (7, 15)), red(export), boxes, axis=2)
    return export.out("detection_out", export.add("Unsqueeze", rows, export.ints(1)))


DETECTION_OUTPUT = """
family: mobilenet-ssd
input: {fit: stretch}
outputs:
  boxes: {tensor: detection_out, columns: 3-6, unit: fraction}
  scores: {tensor: detection_out, columns: 2}
  classes: {tensor: detection_out, column: 1, first: 1}
  nms: inside
"""


def test_caffe_detection_output_is_refused_unless_described(tmp_path):
    path = detection_output().save(tmp_path / "ssd.onnx")
    with pytest.raises(ModelError, match="its family was not recognised"):
        open_network(path)
    description = described(tmp_path, DETECTION_OUTPUT)
    found = detect(path, describe=str(description))
    assert [row[2] for row in found] == BOTH
    assert [row[0] for row in found] == ["train", "bird"]
