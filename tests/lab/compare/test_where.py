"""``compare --where`` names planted faults by stage and kind, and raises no false alarms."""

import json
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.errors import UsageError
from detector.core.models.base import InputRules, Network
from detector.core.models.graph.build import GraphBuilder, output_shapes
from detector.core.models.graph.qdq import quantised_graph, tensors_to_measure
from detector.core.stages.annotate import Style, annotate
from detector.core.stages.nms import nms
from detector.core.stages.preprocess import letterbox
from detector.core.types import Candidates, Frame
from detector.lab.commands.compare import _refuse_with_where
from detector.lab.compare.where import kinds
from detector.lab.compare.where.difference import compare_tensors, tolerance_of
from detector.lab.compare.where.graph import with_outputs
from detector.lab.compare.where.search import Differences, Side, search
from detector.lab.compare.where.words import describe, open_side, parse_words
from detector.lab.session.where import StageDifference
from tests.cli.command import assert_one_line_error, detect_video, run_ok
from tests.conftest import CHECKOUT
from tests.one_line import one_line_error

SIDE = 64
CLIP = CHECKOUT / "videos/street.mp4"


def model(loud: float = 1.0) -> onnx.ModelProto:
    """Return a network with the output [1, 256, 7]. A row is a box in pixels and three scores.
    ``loud`` multiplies the second layer's weights and divides the third layer's."""
    rng = np.random.default_rng(3)
    model = GraphBuilder("small")
    x = model.input_u8(1, SIDE, SIDE)

    def conv(name: str, x: str, ins: int, outs: int, stride: int, by: float = 1.0) -> str:
        weight = np.float32(rng.normal(size=(outs, ins, 3, 3)) * by / np.sqrt(ins * 9))
        bias = np.float32(rng.normal(size=outs) * 0.1)
        return model.conv(name, x, weight, bias, strides=[stride] * 2, pads=[1] * 4)

    x = conv("0.conv", x, 3, 8, 2, 1 / 100)
    x = model.activation("0", "silu", x)
    x = conv("1.conv", x, 8, 16, 2, loud)
    x = model.add("Relu", "1.act", [x])
    x = conv("2.conv", x, 16, 16, 1, 3 / loud)
    x = model.activation("2", "silu", x)
    x = conv("3.conv", x, 16, 7, 1, 3)
    shape = model.constant("4.shape", np.array([1, 7, 256], np.int64))
    x = model.add("Reshape", "4.rows", [x, shape])
    x = model.add("Transpose", "4.turn", [x], perm=[0, 2, 1])
    x = model.add("Sigmoid", "4.sigmoid", [x])
    scale = model.constant("4.scale", np.array([SIDE] * 4 + [1] * 3, np.float32))
    return model.model([model.add("Mul", "4.out", [x, scale])])


def network(graph: onnx.ModelProto | None = None, precision: str = "fp32") -> Network:
    graph = graph or model()
    return Network(
        name="small",
        family="test",
        graph=graph,
        input=InputRules(SIDE, SIDE, "centre"),
        batch=1,
        output_shapes=output_shapes(graph),
        head=lambda outputs, conf: head(outputs),
        dense=lambda outputs: outputs[0],
        names=("a", "b", "c"),
        precision=precision,
    )


def head(outputs) -> Candidates:
    rows = outputs[0][0]
    rows = rows[rows[:, 4:].max(1) > 0.5]
    middle, size = rows[:, :2], rows[:, 2:4] / 2
    boxes = np.concatenate([middle - size, middle + size], 1)
    return Candidates(boxes, rows[:, 4:].max(1), rows[:, 4:].argmax(1).astype(np.int64))


def frames(count: int) -> list[Frame]:
    rng = np.random.default_rng(1)
    small = [rng.integers(0, 255, (9, 16, 3), np.uint8) for _ in range(3)]
    pictures = [cv2.resize(one, (320, 180), interpolation=cv2.INTER_CUBIC) for one in small]
    return [Frame(at, at, at / 25, picture) for at, picture in enumerate(pictures[:count])]


def open_engine(network: Network, name: str = "ort", precision: str = "fp32"):
    options = EngineOptions(requests=1, concurrency=1, threads=1, precision=precision)
    return engines.open(name, network, options)


PREPROCESS = partial(letterbox, geometry="centre")
NMS = partial(nms, iou=0.45, max_det=100, names=("a", "b", "c"))
A = Side(
    name="A",
    precision="fp32",
    frames=frames,
    preprocess=PREPROCESS,
    input_shape=(SIDE, SIDE),
    network=network(),
    open=open_engine,
    head=head,
    nms=NMS,
    draw=lambda frame, result: annotate(frame.picture, result, Style()),
)


def after_letterbox(change):
    def preprocess(picture, slot):
        fit = PREPROCESS(picture, slot)
        slot[:] = change(slot.copy())
        return fit

    return replace(A, preprocess=preprocess)


def half_a_pixel(slot):
    moved = np.float32([[1, 0, 0.5], [0, 1, 0]])
    return cv2.warpAffine(slot, moved, (SIDE, SIDE), borderMode=cv2.BORDER_REPLICATE)


def resized_by_area():
    def preprocess(picture, slot):
        fit = PREPROCESS(picture, slot)
        top, height = round(fit.pad_y), round(fit.height * fit.scale_y)
        small = cv2.resize(picture, (SIDE, height), interpolation=cv2.INTER_AREA)
        slot[top : top + height] = small[..., ::-1]
        return fit

    return replace(A, preprocess=preprocess)


def with_engine(change):
    """Return a side whose engine gives ``change(output, previous)`` instead of ``output``.
    ``previous`` is the output of the engine's previous call. Other tensors are unchanged."""

    @contextmanager
    def open_changed(network):
        with open_engine(network) as engine:
            request, last = engine.requests[0], []

            def infer(n):
                out, *others = [output.copy() for output in request.infer(n)]
                last.append(out)
                if network.graph.graph.output[0].name != "4.out":
                    return [out, *others]
                before = last[-2] if len(last) > 1 else np.zeros_like(out)
                return [change(out, before), *others]

            yield SimpleNamespace(requests=[SimpleNamespace(slot=request.slot, infer=infer)])

    return replace(A, open=open_changed)


def with_node(after: str, operator: str, graph: onnx.ModelProto | None = None, **attributes):
    changed = onnx.ModelProto()
    changed.CopyFrom(graph or model())
    nodes = list(changed.graph.node)
    at = next(i for i, node in enumerate(nodes) if after in node.output)
    nodes[at].output[0] = f"{after}_before"
    nodes.insert(at + 1, helper.make_node(operator, [f"{after}_before"], [after], after))
    nodes[at].name = f"{after}_before"
    del changed.graph.node[:], changed.graph.value_info[:]
    changed.graph.node.extend(nodes)
    onnx.checker.check_model(changed)
    changed = onnx.shape_inference.infer_shapes(changed)
    return replace(A, network=network(changed))


def transposed_head(outputs):
    result = head(outputs)
    return result._replace(boxes=result.boxes[:, [1, 0, 3, 2]])


def int8(factor: float = 1.0) -> Side:
    """Return a side with an int8 graph. ``factor`` multiplies the weight scale of ``2.conv``."""
    graph = model()
    ranges = {}
    for tensor in tensors_to_measure(graph):
        if tensor == "images":
            ranges[tensor] = (0.0, 255.0)
            continue
        with open_engine(with_outputs(network(graph), [tensor], cut=True)) as engine:
            PREPROCESS(frames(1)[0].picture, engine.requests[0].slot[0])
            (result,) = engine.requests[0].infer(1)
            ranges[tensor] = (float(result.min()), float(result.max()))
    made = quantised_graph(graph, ranges, (), "int8-u8")
    node = next(one for one in made.graph.node if one.name == "2.conv")
    pair = next(one for one in made.graph.node if node.input[1] in one.output)
    scale = next(one for one in made.graph.initializer if one.name == pair.input[1])
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * factor, scale.name))
    return replace(A, precision="int8", network=network(made, "int8-u8"))


def overflowing() -> tuple[Side, Side]:
    """Return two sides. Their second layer has large values, which overflow float16 in B."""
    graph = model(loud=1e6)
    half = onnx.ModelProto()
    half.CopyFrom(graph)
    nodes = list(half.graph.node)
    at = next(i for i, node in enumerate(nodes) if node.name == "1.conv")
    nodes[at].output[0] = "1.wide"
    casts = [
        helper.make_node("Cast", ["1.wide"], ["1.half"], "1.half", to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["1.half"], ["1.conv"], "1.back", to=TensorProto.FLOAT),
    ]
    nodes[at + 1 : at + 1] = casts
    del half.graph.node[:], half.graph.value_info[:]
    half.graph.node.extend(nodes)
    half = onnx.shape_inference.infer_shapes(half)
    one = replace(A, network=network(graph))
    return one, replace(one, precision="fp16", network=network(half))


def draw_without_labels(frame, result):
    annotate(frame.picture, result, Style(labels=False))


FAULTS = {
    "bgr for rgb": (lambda: after_letterbox(lambda s: s[..., ::-1]), "letterbox", kinds.SWAPPED),
    "padding of another colour": (
        lambda: replace(A, preprocess=partial(PREPROCESS, pad_value=0)),
        *("letterbox", kinds.PADDING),
    ),
    "padding on one side": (
        lambda: replace(A, preprocess=partial(letterbox, geometry="top-left")),
        *("letterbox", kinds.PADDING),
    ),
    "shifted by half a pixel": (lambda: after_letterbox(half_a_pixel), "letterbox", kinds.SHIFTED),
    "second sigmoid at the end": (
        lambda: with_node("4.sigmoid", "Sigmoid"),
        "graph",
        kinds.SIGMOID,
    ),
    "second sigmoid by the engine": (
        lambda: with_engine(sigmoid_of_scores),
        *("outputs", kinds.SIGMOID),
    ),
    "boxes transposed by the engine": (
        lambda: with_engine(lambda rows, before: rows[..., [1, 0, 3, 2, 4, 5, 6]]),
        *("outputs", kinds.TRANSPOSED),
    ),
    "boxes transposed by the head": (
        lambda: replace(A, head=transposed_head),
        *("candidates", kinds.TRANSPOSED),
    ),
    "nms over all classes": (
        lambda: replace(A, nms=partial(NMS, agnostic=True)),
        *("nms", kinds.AGNOSTIC),
    ),
    "nms at another threshold": (lambda: replace(A, nms=partial(NMS, iou=0.8)), "nms", None),
    "scale of one int8 layer": (lambda: int8(2.0), "graph", kinds.SCALED),
    "resized by another method": (resized_by_area, "letterbox", kinds.RESIZED),
    "stale outputs": (lambda: with_engine(lambda now, before: before), "outputs", kinds.STALE),
    "float16 overflow": (overflowing, "graph", kinds.OVERFLOW),
    "drawn without labels": (lambda: replace(A, draw=draw_without_labels), "annotate", None),
    "decoded darker": (
        lambda: replace(A, frames=lambda n: [dimmed(one) for one in frames(n)]),
        *("decode", None),
    ),
}
LAYER = {
    "second sigmoid at the end": "4.sigmoid",
    "scale of one int8 layer": "2.conv",
    "float16 overflow": "1.conv",
}


def dimmed(frame: Frame) -> Frame:
    return replace(frame, picture=(frame.picture * 0.9).astype(np.uint8))


def sigmoid_of_scores(rows, before):
    return np.concatenate([rows[..., :4], 1 / (1 + np.exp(-rows[..., 4:]))], -1)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_named(fault):
    build, stage, kind = FAULTS[fault]
    sides = build()
    side_a, side_b = sides if isinstance(sides, tuple) else (A, sides)
    result = search(side_a, side_b, 3)
    assert result.first is not None
    assert (result.first.stage, kind or result.first.kind) == (stage, result.first.kind)
    if fault in LAYER:
        assert LAYER[fault] in result.first.what


def test_fault_on_a_side_branch_is_found():
    """The layers of the main branch agree. The search must go back to the branch with the fault."""
    rng = np.random.default_rng(5)
    graph_builder = GraphBuilder("branches")
    x = graph_builder.input_u8(1, SIDE, SIDE)

    def conv(name: str, x: str) -> str:
        weight = np.float32(rng.normal(size=(3, 3, 1, 1)) / 3)
        bias = np.float32(rng.normal(size=3))
        return graph_builder.conv(name, x, weight, bias, strides=[1, 1], pads=[0] * 4)

    fault = conv("0.conv", x)
    for at in range(1, 7):
        x = conv(f"{at}.conv", x)
    graph = graph_builder.model(
        [graph_builder.add("Relu", "8.act", [graph_builder.add("Add", "7.add", [fault, x])])]
    )
    nothing = Candidates(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, int))
    other = with_node("0.conv", "Sigmoid", graph).network
    side_a = replace(A, head=lambda outputs: nothing, network=network(graph))
    result = search(side_a, replace(side_a, network=other), 1)
    assert result.first is not None
    assert (result.first.stage, result.first.what) == ("graph", "Conv 0.conv")
    assert [probe.tensor for probe in result.probes if not probe.differs]


@pytest.mark.parametrize(
    ("name", "precision"),
    [("ort", "fp32"), ("openvino", "fp32"), ("openvino", "bf16"), ("torch", "fp32")],
)
def test_rounding_of_another_engine_is_not_a_fault(name, precision):
    if engines.why_unusable()[name] is not None or engines.find(name).refusal(precision, "cpu"):
        pytest.skip("machine: the engine is not here")
    other = replace(
        A, precision=precision, open=partial(open_engine, name=name, precision=precision)
    )
    assert search(A, other, 2).first is None


def test_rounding_to_int8_is_not_a_fault():
    assert search(A, int8(), 2).first is None


def test_wrong_score_is_found_although_boxes_have_much_larger_values():
    rows = np.concatenate([np.full((1, 50, 4), 300.0), np.full((1, 50, 3), 0.01)], -1)
    rows[0, :, 0] += np.arange(50)
    changed = rows.copy()
    changed[0, 7, 5] = 0.9
    for one, other in ((rows, changed), (rows.swapaxes(1, 2), changed.swapaxes(1, 2))):
        assert compare_tensors(one, other, tolerance_of("fp32")).differs
        assert not compare_tensors(one, one + 1e-7, tolerance_of("fp32")).differs


@pytest.mark.slow
def test_command_finds_the_first_difference(tmp_path):
    short = ("--frames", 2, "--engines-dir", tmp_path / "e", "--size", "128x64", "--quiet")
    done = detect_video(
        "compare", CLIP, *short, "--where", "ort", "ort agnostic size=64x64", "--json", cwd=tmp_path
    )
    assert done.returncode == 8, done.stderr
    document = json.loads(done.stdout)
    assert document["first"]["stage"] == "letterbox"
    same = run_ok("compare", CLIP, *short, "--where", "ort", "ort", "--json", cwd=tmp_path)
    assert json.loads(same.stdout)["first"] is None


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("ort", "orrt"), 2),
        (("ort", "conf"), 2),
        (("ort", ""), 2),
        (("ort", "'"), 2),
        (("ort openvino", "ort"), 2),
        (("ort", "agnostic=perhaps"), 2),
        (("ort", "ort", "--engine", "ort"), 2),
        (("ort", "ort", "--use"), 2),
        (("ort", "x.onnx"), 4),
    ],
)
def test_wrong_options_of_a_side_are_refused(words, code, tmp_path):
    assert_one_line_error(detect_video("compare", CLIP, "--where", *words, cwd=tmp_path), code)


@pytest.mark.parametrize(
    ("option", "advice"),
    [("engine", "inside A or B"), ("batch", "inside A or B"), ("use", "omit"), ("labels", "omit")],
)
def test_option_that_conflicts_with_where_is_refused_with_advice(option, advice):
    with one_line_error(UsageError, f"--{option} ", advice):
        _refuse_with_where({option: "x"})


def test_config_file_inside_a_side_conflicts_with_the_config_flag():
    with pytest.raises(UsageError, match="--config"):
        parse_words("ort a.yaml", "b.yaml", {})


def test_description_names_what_could_not_be_compared():
    equal = StageDifference("nms", "boxes")
    absent = replace(equal, untold="no such tensor")
    assert "no such tensor" in describe(Differences([equal, absent]))
    assert "could" not in describe(Differences([equal]))


@pytest.mark.slow
def test_wrong_int8_scale_inside_the_default_model_is_found(tmp_path):
    """Correct int8 is not a fault, but a changed scale of one layer's weights is."""
    flags = {"engines_dir": str(tmp_path), "size": "224x128"}
    one, other = (
        open_side(words, parse_words(words, None, flags), str(CLIP))
        for words in ("ort", "ort int8")
    )
    assert search(one, other, 1).first is None
    graph = onnx.ModelProto()
    graph.CopyFrom(other.network.graph)
    convolutions = [node for node in graph.graph.node if node.op_type == "Conv"]
    node = convolutions[len(convolutions) // 3]
    pair = next(made for made in graph.graph.node if node.input[1] in made.output)
    scale = next(tensor for tensor in graph.graph.initializer if tensor.name == pair.input[1])
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * 3, scale.name))
    result = search(one, replace(other, network=replace(other.network, graph=graph, path=None)), 1)
    assert result.first is not None
    assert (result.first.stage, result.first.kind) == ("graph", kinds.SCALED)
    assert result.first.what.split()[-1] in (node.name, node.name.replace("conv", "act"))
    assert len(result.probes) < 20  # of several hundred tensors
