"""Node names of other exporters are changed to fit our rule; metadata is never executed."""

import onnx
import pytest

from detector.core.errors import ModelError
from detector.core.models.formats.onnx.metadata import Metadata, read_metadata
from detector.core.models.formats.onnx.rewrite import RESERVED, _node_names
from detector.core.models.graph.build import good_name
from tests.models import exports
from tests.models.exports import STATED
from tests.networks import open_network


def named(*given: tuple[str, str]) -> list[str]:
    from onnx import helper

    return _node_names(
        [
            helper.make_node(operator, ["x"], [f"out{at}"], name=name)
            for at, (name, operator) in enumerate(given)
        ]
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # a node that is alone in its module gets the module's name
        ([("/model.6/m.0/cv2/conv/Conv", "Conv")], ["model.6.m.0.cv2.conv"]),
        # two nodes of one module keep different names
        (
            [
                ("/model.0/conv/Conv", "Conv"),
                ("/model.0/act/Sigmoid", "Sigmoid"),
                ("/model.0/act/Mul", "Mul"),
            ],
            ["model.0.conv", "model.0.act.Sigmoid", "model.0.act.Mul"],
        ),
        # torch 1.x: no modules
        ([("Conv_41", "Conv"), ("Mul_43", "Mul")], ["Conv_41", "Mul_43"]),
        # a node without a name gets the name of its output
        ([("", "Conv")], ["out0"]),
        # punctuation, a leading digit, keywords, an attribute of torch's modules, our prefix
        (
            [
                ("a-b c", "Conv"),
                ("2conv", "Conv"),
                ("if/else", "Conv"),
                ("forward", "Conv"),
                ("input", "Conv"),
            ],
            ["a_b_c", "n2conv", "if_.else_", "forward_", "input_"],
        ),
        # the same name twice
        ([("a", "Conv"), ("a", "Conv"), ("a", "Conv")], ["a", "a_1", "a_2"]),
        # a node's name may not be a prefix of another name
        ([("a", "Conv"), ("a/b", "Conv")], ["a", "a_1.b"]),
        ([("a/b", "Conv"), ("a", "Conv")], ["a.b", "a_1"]),
        ([("/m/x/Relu", "Relu"), ("/m/x/y/Conv", "Conv")], ["m.x.Relu", "m.x.y"]),
    ],
)
def test_node_names_follow_the_rule(given, expected):
    assert named(*given) == expected
    assert all(good_name(name) for name in expected)


def test_torchs_own_names_are_reserved():
    torch = pytest.importorskip("torch", reason="machine: torch is not installed")
    from torch import fx

    graph = fx.GraphModule(torch.nn.Module(), fx.Graph())
    own = {name for name in dir(graph) if not name.startswith("_")}
    assert own <= RESERVED, sorted(own - RESERVED)


def test_every_output_is_named_like_its_node(tmp_path):
    for make in (exports.decoded, exports.parts, exports.queries, exports.nms_inside):
        graph = open_network(make().save(tmp_path / f"{make.__name__}.onnx", STATED)).graph.graph
        for node in graph.node:
            assert good_name(node.name)
            assert node.output[0] == node.name
        names = {node.name for node in graph.node}
        assert {info.name for info in graph.output} <= names
        assert len(names) == len(graph.node)
        assert all(good_name(tensor.name) for tensor in graph.initializer)
        assert [node.op_type for node in graph.node][:2] == ["Cast", "Transpose"]


@pytest.mark.parametrize("kind", ["FLOAT", "FLOAT16"])
def test_tensors_named_like_our_first_nodes_do_not_collide_with_them(tmp_path, kind):
    """Our names, such as input.cast, do not collide with attributes of torch's modules, either."""
    export = exports.yolox(kind=kind)
    names = dict(zip(export.nodes[0].output, ["input.transpose"], strict=True)) | {
        export.constants[0].name: "images"
    }
    export.constants[0].name = "images"
    export.inputs[0].name = "x"
    for node in export.nodes:
        node.input[:] = ["x" if name == "images" else names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    graph = open_network(export.save(tmp_path / "m.onnx")).graph
    onnx.checker.check_model(graph, full_check=True)
    prefix = [node.name for node in graph.graph.node if node.name.startswith("input.")]
    assert prefix[:2] == ["input.cast", "input.transpose"]
    assert not RESERVED & {name.removeprefix("input.") for name in prefix}


# ---- metadata


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({}, Metadata()),
        ({"names": "{0: 'a', 1: 'b'}"}, Metadata(names=("a", "b"))),
        ({"names": '["a", "b"]'}, Metadata(names=("a", "b"))),
        ({"names": '{"0": "a", "1": "b"}'}, Metadata(names=("a", "b"))),  # JSON
        ({"names": "{1: 'b', 0: 'a'}"}, Metadata(names=("a", "b"))),
        ({"names": "{0: 'a', 2: 'c'}"}, Metadata()),  # 1 is missing
        ({"names": "{0: 'a\\x07\\n'}"}, Metadata(names=("a",))),  # names are printed and drawn
        ({"names": "{0: ''}"}, Metadata(names=("class0",))),
        ({"names": "__import__('os').system('touch hacked')"}, Metadata()),
        ({"names": "[" * 100_000}, Metadata()),
        ({"names": "[]"}, Metadata()),
        ({"imgsz": "[384, 640]"}, Metadata(imgsz=(384, 640))),
        ({"imgsz": "640"}, Metadata(imgsz=(640, 640))),
        ({"imgsz": "[0, 640]"}, Metadata()),
        ({"imgsz": "[640, 640, 3]"}, Metadata()),
        ({"imgsz": "[1e3, 'x']"}, Metadata()),
        ({"stride": "32"}, Metadata(stride=32)),
        ({"stride": "[8, 16, 32]"}, Metadata(stride=32)),
        ({"stride": "-1"}, Metadata()),
        ({"end2end": "True"}, Metadata(end2end=True)),
        ({"args": "{'nms': True, 'batch': 1}"}, Metadata(nms=True)),
        ({"nms": "True"}, Metadata(nms=True)),
        ({"args": "nonsense("}, Metadata()),
        ({"task": "detect"}, Metadata()),
    ],
)
def test_metadata_is_parsed_or_ignored(entries, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_metadata("m.onnx", entries) == expected
    assert list(tmp_path.iterdir()) == []


def test_nms_or_end2end_in_the_metadata_means_final_boxes():
    stated = ({}, {"nms": "True"}, {"end2end": "True"}, {"nms": "True", "end2end": "True"})
    found = [read_metadata("m.onnx", entries).finished for entries in stated]
    assert found == [False, True, True, True]


@pytest.mark.parametrize("task", ["segment", "pose", "obb", "classify"])
def test_refusal_of_another_task_names_the_task(task):
    with pytest.raises(ModelError, match=f"'{task}'"):
        read_metadata("m.onnx", {"task": task})


@pytest.mark.parametrize(
    ("description", "family"),
    [
        ("Ultralytics YOLOv8n model trained on coco.yaml", "yolov8"),
        ("Ultralytics YOLO11n model trained on coco.yaml", "yolo11"),
        ("Ultralytics YOLO12s model", "yolo12"),
        ("Ultralytics YOLOv9c model", "yolov9"),
        ("Ultralytics YOLOv5nu model", "yolov5"),
        ("a model", "yolov8"),
    ],
)
def test_description_in_the_metadata_names_the_family(tmp_path, description, family):
    path = exports.anchor_free().save(
        tmp_path / "best.onnx", {**STATED, "description": description}
    )
    network = open_network(path)
    assert network.family == family
    assert ("from the metadata" in network.warnings[0]) is (description != "a model")
