"""An unusable ONNX file is refused with one line that says what is wrong, and how to fix it."""

from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from detector.core.errors import ModelError
from detector.core.models.formats.onnx.tensors import MAX_RANK, check_tensors
from tests.known_answers import run_once
from tests.models import exports
from tests.models.exports import STATED, Export
from tests.networks import open_network, refusal


def two_pictures(folder):
    export = exports.decoded()
    export.add_input("others", [1, 3, 64, 64])
    return export.out("more", export.add("Relu", "others")).save(folder / "m.onnx", STATED)


def plugin(folder):
    export = exports.decoded()
    output = export.add("EfficientNMS_TRT", "images", domain="TRT")
    return export.out("num_dets", output, [1, 1]).save(folder / "m.onnx", domains=["TRT"])


def optimised(folder):
    export = exports.decoded()
    output = export.add("QuickGelu", "images", domain="com.microsoft")
    return export.out("x", output, [1, 1]).save(folder / "m.onnx", domains=["com.microsoft"])


def unranked(folder):
    """Make an output whose number of dimensions depends on the picture."""
    export = Export()
    pooled = export.add("Reshape", export.add("GlobalMaxPool", "images"), export.ints(-1))
    places = export.add("Reshape", export.add("NonZero", pooled), export.ints(-1))
    shape = export.add("Concat", places, export.ints(3), axis=0)
    return export.out("x", export.add("Reshape", "images", shape)).save(folder / "m.onnx")


def unknown_operator(folder):
    export = exports.decoded()
    return export.out("x", export.add("Frobnicate", "images"), [1, 1]).save(folder / "m.onnx")


def raw_maps(folder):
    """Write three maps [1, 3, h, w, 8], as YOLOv7's export without --grid does."""
    export = Export()
    for stride in (8, 16, 32):
        weights = export.const(np.zeros((24, 3, stride, stride)))
        raw = export.add("Conv", "images", weights, strides=[stride] * 2)
        side = 64 // stride
        boxed = export.add("Reshape", raw, export.ints(1, 3, 8, side, side))
        export.out(f"map{stride}", export.add("Transpose", boxed, perm=[0, 1, 3, 4, 2]))
    return export.save(folder / "yolov7.onnx", STATED)


def classifier(folder):
    export = Export()
    pooled = export.add("Reshape", export.add("GlobalMaxPool", "images"), export.ints(1, 3))
    return export.out("probabilities", pooled).save(folder / "resnet.onnx")


def grey(folder):
    export = Export()
    export.inputs = [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 1, 64, 64])]
    return export.out("y", export.add("Relu", "images")).save(folder / "m.onnx")


def tokens(folder):
    export = Export()
    export.inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 77])]
    return export.out("y", export.add("Cast", "ids", to=1)).save(folder / "m.onnx")


def external(folder, location="m.onnx.data", keep=False):
    path = exports.yolox().save(folder / "m.onnx")
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="m.onnx.data", size_threshold=64)
    if location != "m.onnx.data":
        model = onnx.load(path, load_external_data=False)
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location
        onnx.save(model, path)
    if not keep:
        (folder / "m.onnx.data").unlink()
    return path


def holding(content: bytes):
    def write(folder):
        (folder / "m.onnx").write_bytes(content)
        return str(folder / "m.onnx")

    return write


def truncated(folder):
    path = exports.yolox().save(folder / "m.onnx")
    data = (folder / "m.onnx").read_bytes()
    (folder / "m.onnx").write_bytes(data[: len(data) // 2])
    return path


def changed(folder, change, graph=exports.yolox):
    path = graph().save(folder / "m.onnx", STATED)
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)
    return path


def unknown_opset(folder):
    return changed(folder, lambda model: setattr(model.opset_import[0], "version", 99))


def without_a_shape(folder):
    return changed(folder, lambda model: model.graph.input[0].type.tensor_type.ClearField("shape"))


def cyclic(folder):
    def change(model):
        first = model.graph.node[0]
        first.input[0] = model.graph.node[-2].output[0]

    return changed(folder, change)


def diverged(folder):
    def change(model):
        values = numpy_helper.to_array(model.graph.initializer[0]).copy()
        values[0, 0, 0, 0] = np.nan
        model.graph.initializer[0].CopyFrom(
            numpy_helper.from_array(values, model.graph.initializer[0].name)
        )

    return changed(folder, change)


def branching(folder):
    export = exports.decoded()
    largest = export.add("ReduceMax", "images", keepdims=0)
    condition = export.add("Greater", largest, export.const(0.5))
    info = helper.make_tensor_value_info("b", TensorProto.FLOAT, [1])
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["b"], value_floats=[1.0])], "g", [], [info]
    )
    other = helper.make_graph(
        [helper.make_node("Constant", [], ["b2"], value_floats=[2.0])],
        "h",
        [],
        [helper.make_tensor_value_info("b2", TensorProto.FLOAT, [1])],
    )
    return export.out(
        "way", export.add("If", condition, then_branch=branch, else_branch=other), [1]
    ).save(folder / "m.onnx", STATED)


def masks(folder, graph=exports.decoded):
    """Add an output of masks like that of YOLOv5's segmentation, whose metadata states no task."""
    export = graph()
    pooled = export.add("MaxPool", "images", kernel_shape=[4, 4], strides=[4, 4])
    return export.out("output1", pooled, [1, 3, 16, 16]).save(folder / "m.onnx", STATED)


def looping(folder):
    """Write a Loop whose body states no shapes, like a Loop of a scripted module."""
    export = exports.decoded()
    infos = {
        name: helper.make_tensor_value_info(name, kind, None if kind == TensorProto.FLOAT else [])
        for name, kind in (
            ("i", TensorProto.INT64),
            ("on", TensorProto.BOOL),
            ("on2", TensorProto.BOOL),
            ("sum", TensorProto.FLOAT),
            ("sum2", TensorProto.FLOAT),
        )
    }
    nodes = [
        helper.make_node("Identity", ["on"], ["on2"]),
        helper.make_node("Add", ["sum", "sum"], ["sum2"]),
    ]
    body = helper.make_graph(
        nodes, "body", [infos["i"], infos["on"], infos["sum"]], [infos["on2"], infos["sum2"]]
    )
    times = export.add("Cast", export.add("ReduceMax", "images", keepdims=0), to=TensorProto.INT64)
    summed = export.add("Loop", times, export.const(True, bool), "images", body=body)
    return export.out("sums", export.add("Relu", summed), [1, 3, 64, 64]).save(
        folder / "m.onnx", STATED
    )


def bomb(folder):
    """Write a small file that asks for a constant of 4 TB."""
    export = exports.decoded()
    huge = export.add("ConstantOfShape", export.ints(1 << 20, 1 << 20))
    return export.out("huge", export.add("ReduceMax", huge, keepdims=0), []).save(
        folder / "m.onnx", STATED
    )


def uneven(folder):
    """Write a Slice with one end, but three starts that depend on the picture."""
    export = exports.decoded()
    colours = export.add("Reshape", export.colours(), export.ints(3))
    starts = export.add("Cast", colours, to=7)
    cut = export.add("Slice", "images", starts, export.ints(64))
    return export.out("cut", cut, [None] * 4).save(folder / "m.onnx", STATED)


# The function that writes a file -> words in the message that refuses the file.
BAD = {
    two_pictures: ("2 inputs", "images float [1, 3, 64, 64]", "others float [1, 3, 64, 64]"),
    optimised: ("QuickGelu (com.microsoft)", "QDQ"),
    unranked: ("its outputs at 64x64 are x [", "models describe"),
    plugin: ("EfficientNMS_TRT (TRT)", "runtime-specific"),
    unknown_operator: ("operators", "Frobnicate"),
    uneven: ("(Slice)", "match: {'starts': 3, 'ends': 1}", "damaged"),
    raw_maps: (
        "yolov7",
        "at 64x64 are map8 [1, 3, 8, 8, 8], map16 [1, 3, 4, 4, 8], map32 [1, 3, 2, 2, 8]",
        "raw maps",
        "--grid",
    ),
    classifier: (
        "family was not recognised",
        "probabilities [1, 3]",
        "models describe",
        "--family",
    ),
    grey: ("input images is float [1, 1, 64, 64]", "[batch, 3, height, width]"),
    tokens: ("input ids is int64 [1, 77]", "[batch, 3, height, width]"),
    external: ("m.onnx.data", "not next to it"),
    lambda folder: external(folder, "../m.onnx.data", True): ("'../m.onnx.data'", "outside"),
    lambda folder: external(folder, "x/../m.onnx.data", True): ("outside", "refused"),
    lambda folder: external(folder, "/etc/passwd", True): ("'/etc/passwd'", "outside", "refused"),
    holding(b"plain text\n" * 40): ("not an ONNX file", "damaged"),
    holding(b""): ("is empty; download it again",),
    truncated: ("not an ONNX file", "damaged", "download"),
    holding(b"version https://git-lfs.github.com/spec/v1\n"): ("Git LFS", "download it again"),
    holding(b"\n<!DOCTYPE html><title>404</title>\n"): ("web page", "download it again"),
    unknown_opset: ("opset 99", "pip install -U onnx", "opset 17"),
    without_a_shape: ("input images has no shape", "[batch, 3, height, width]"),
    cyclic: ("ONNX checker rejects it: Nodes in a graph must be topologically sorted",),
    diverged: ("weights of", "not finite numbers", "damaged", "training diverged"),
    masks: (
        "segmentation",
        "at 64x64 are output0 [1, 252, 8], output1 [1, 3, 16, 16]",
        "output1 holds masks",
        "only detection is supported",
    ),
    lambda folder: masks(folder, exports.anchor_free): ("is a model for segmentation",),
    looping: ("holds Loop", "the picture", "branch"),
    branching: ("holds If", "the picture", "branch"),
    lambda folder: exports.decoded(side="side").save(folder / "m.onnx"): (
        "its input is float [1, 3, side, side]",
        "--size 640",
    ),
    lambda folder: exports.decoded(side="s").save(folder / "m.onnx", {"imgsz": "['a', 1]"}): (
        "--size",
    ),
    lambda folder: exports.decoded().save(folder / "m.onnx", {"task": "segment"}): (
        "task 'segment'",
        "only detection is supported",
    ),
    lambda folder: exports.decoded().save(folder / "m.onnx", {"names": "{0: 'a', 1: 'b'}"}): (
        "2 names",
        "3 classes",
        "--names FILE",
    ),
}


@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_bad_file_is_refused_with_the_expected_words(tmp_path, make):
    path = make(tmp_path)
    message = refusal(path)
    assert [fact for fact in BAD[make] if fact not in message] == []


@pytest.mark.parametrize("spelling", ["sides", "outputs", "domain"])
def test_spellings_that_runtimes_accept_are_accepted(tmp_path, spelling):
    """Accept sides of -1, outputs without a shape, and the long name of ONNX's domain."""

    def change(model):
        if spelling == "sides":
            for at in (0, 2, 3):
                model.graph.input[0].type.tensor_type.shape.dim[at].dim_value = -1
        elif spelling == "outputs":
            model.graph.output[0].type.tensor_type.ClearField("shape")
        else:
            for node in model.graph.node:
                node.domain = "ai.onnx"

    network = open_network(
        changed(tmp_path, change, lambda: exports.anchor_free(batch="b", side="side")),
        size=(64, 64),
        batch=2,
    )
    assert (network.family, network.output_shapes) == ("yolov8", [(2, 7, 84)])


def test_second_opset_of_the_same_domain_is_ignored(tmp_path):
    def change(model):
        model.opset_import.add(domain="ai.onnx", version=99)

    path = changed(tmp_path, change, exports.anchor_free)
    assert open_network(path).graph.ir_version == 8  # the version for opset 17


def test_huge_constant_is_not_evaluated(tmp_path):
    """Only an output that we do not read needs the constant, so engines never get the constant."""
    network = open_network(bomb(tmp_path))
    assert "ConstantOfShape" not in {node.op_type for node in network.graph.graph.node}


@pytest.mark.parametrize("cut", range(0, 4000, 194))
def test_damaged_bytes_never_crash(tmp_path, cut):
    exports.decoded(count=252).save(tmp_path / "m.onnx", STATED)
    data = bytearray((tmp_path / "m.onnx").read_bytes())
    data[cut % len(data)] ^= 0x55
    data[(cut * 7) % len(data)] ^= 0x81
    (tmp_path / "m.onnx").write_bytes(bytes(data))
    with suppress(ModelError):  # any other exception fails the test
        assert open_network(str(tmp_path / "m.onnx")).names


def test_external_data_is_read_and_part_of_the_digest(tmp_path):
    (tmp_path / "a").mkdir()
    whole = open_network(exports.yolox().save(tmp_path / "m.onnx"))
    apart = open_network(external(tmp_path / "a", keep=True))
    given = np.random.default_rng(0).integers(0, 256, (1, 64, 64, 3), np.uint8)
    np.testing.assert_array_equal(run_once(apart, given), run_once(whole, given))
    assert apart.sha256 != whole.sha256
    data = bytearray((tmp_path / "a/m.onnx.data").read_bytes())
    data[3] ^= 1
    (tmp_path / "a/m.onnx.data").write_bytes(data)
    assert open_network(str(tmp_path / "a/m.onnx")).sha256 != apart.sha256


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "rtdetr"}, "[batch, queries, 4 + classes], or ["),
        ({"names": "two.txt"}, "holds 2 names, but m.onnx has 3 classes"),
        ({"size": (96, 96)}, "the file is fixed at 64x64"),
    ],
)
def test_options_that_do_not_fit_the_file_are_refused(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.txt").write_text("a\nb\n")
    exports.anchor_free().save(tmp_path / "m.onnx", STATED)
    assert message in refusal("m.onnx", **options)


@pytest.mark.parametrize(("side", "fixed"), [(2, "width 64"), (3, "height 64")])
def test_message_for_one_dynamic_side_states_only_the_fixed_side(tmp_path, side, fixed):
    path = changed(
        tmp_path,
        lambda model: setattr(
            model.graph.input[0].type.tensor_type.shape.dim[side], "dim_param", "any"
        ),
        exports.anchor_free,
    )
    reason = refusal(path, size=(96, 96))
    assert fixed in reason
    assert "x0" not in reason
    assert "0x" not in reason


def test_user_may_name_the_family(tmp_path):
    """[1, 84, 8] could be YOLOX without decoding, but this graph decodes. YOLOv8 has 7 columns."""
    path = exports.decoded(count=84).save(tmp_path / "m.onnx", STATED)
    with pytest.raises(ModelError, match="family was not"):
        open_network(path)
    network = open_network(path, family="yolov5")
    assert (network.family, network.details["layout"]) == ("yolov5", "decoded")
    assert "--family" in network.warnings[0]
    assert (
        open_network(exports.anchor_free().save(tmp_path / "a.onnx"), family="yolov11").family
        == "yolo11"
    )


def test_named_family_does_not_make_finished_boxes_raw(tmp_path):
    """With any --family, [1, 300, 6] is read as finished boxes, never as raw rows. But [1, 7, 90]
    is read as YOLOv8 if the user says so, although YOLOv8 has 84 cells at 64x64."""
    path = exports.finished().save(tmp_path / "m.onnx")
    for family in ("yolov5", "yolov7", "yolov8", "yolox"):
        assert open_network(path, family=family).details["layout"] == "end-to-end"
    few = exports.anchor_free(cells=90).save(tmp_path / "few.onnx")
    with pytest.raises(ModelError, match="family was not"):
        open_network(few)
    network = open_network(few, family="yolov8")
    assert (network.details["layout"], len(network.names)) == ("anchor-free", 3)


def test_class_names_come_from_the_first_source_that_has_some(tmp_path):
    """The order is: given names, names in the file, names in a neighbouring file, numbers. If the
    number of classes is unknown, COCO's names are taken, with a warning."""
    path = exports.decoded().save(tmp_path / "m.onnx", STATED)
    assert open_network(path).names == ("red", "green", "blue")
    (tmp_path / "given.txt").write_text("a\nb\nc\n")
    assert open_network(path, names=str(tmp_path / "given.txt")).names == ("a", "b", "c")
    bare = exports.decoded().save(tmp_path / "bare.onnx")
    assert open_network(bare).names == ("class0", "class1", "class2")
    finished = open_network(exports.finished().save(tmp_path / "finished-yolov10.onnx"))
    assert finished.names[:2] == ("person", "bicycle")
    assert "COCO's 80 names are assumed" in finished.warnings[-1]
    assert open_network(
        str(tmp_path / "finished-yolov10.onnx"), names=str(tmp_path / "given.txt")
    ).names == ("a", "b", "c")


@pytest.mark.parametrize(("rank", "fits"), [(MAX_RANK, True), (MAX_RANK + 1, False)])
def test_number_of_dimensions_is_limited(rank, fits):
    one = helper.make_tensor("one", TensorProto.FLOAT, [1] * rank, [0.0])
    model = helper.make_model(helper.make_graph([], "g", [], [], [one]))
    with nullcontext() if fits else pytest.raises(ModelError, match="shape"):
        check_tensors(Path("m.onnx"), model)
