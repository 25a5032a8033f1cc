"""Files written by ``build`` need no option besides ``--model``, and keep their model's head."""

import json
from functools import partial

import numpy as np
import onnx
import pytest

from detector import Detector
from detector.core.config.levels import resolve_config
from detector.core.errors import ModelError
from detector.core.jobs.build import export_onnx
from detector.core.models.layouts import decoders
from detector.core.models.own_files import KEY, describe, write_description
from tests.known_answers import plus_one, run_once
from tests.models import exports
from tests.models.exports import STATED
from tests.networks import cfg_text, open_network, refusal

CFG = cfg_text(
    "net width=64 height=32 channels=3",
    "convolutional filters=14 size=3 stride=8 pad=1 activation=linear",
    "yolo mask=1,2 anchors=5,7,10,14,23.5,27 classes=2 scale_x_y=1.05",
)


def darknet(folder):
    path = folder / "tiny.cfg"
    path.write_text(CFG)
    path.with_suffix(".names").write_text("red one\nblue\n")
    return str(path), {"random_weights": 3}


def exported(make, name="m", **more):
    def save(folder):
        return make(**more).save(folder / f"{name}.onnx", STATED), {}

    return save


MODELS = {
    "darknet-yolo": darknet,
    "anchor-maps": lambda folder: ("yolov5n", {"random_weights": 1, "size": "64"}),
    "decoded-rows": exported(exports.decoded),
    "yolox": exported(exports.yolox, "yolox_nano"),
    "anchor-free": exported(exports.anchor_free),
    "end-to-end": exported(exports.finished),
    "queries": exported(exports.queries, "rtdetr"),
    "corners": exported(exports.corners),
}


def build(folder, kind, **more):
    model, options = MODELS[kind](folder)
    config = resolve_config(None, {"model": model, "engine": "ort", **options, **more})
    facts = export_onnx(config, str(folder / "built.onnx"))
    assert facts["built"]
    request = {"random_seed": options["random_weights"]} if "random_weights" in options else {}
    size = (64, 64) if "size" in options else None
    return open_network(model, size=size, **request), str(folder / "built.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("layout", MODELS)
def test_built_file_has_the_same_head(tmp_path, layout):
    network, path = build(tmp_path, layout)
    again = open_network(path)
    for head, other in ((network.head, again.head), (network.dense, again.dense)):
        if isinstance(head, partial):
            assert (head.func, head.keywords) == (other.func, other.keywords)
        else:
            assert other.func is head
    assert (again.names, again.input) == (network.names, network.input)
    assert (again.needs_nms, again.random_seed) == (network.needs_nms, network.random_seed)
    assert (again.parameters, again.macs) == (network.parameters, network.macs)
    rows = np.random.default_rng(0).integers(0, 256, network.input_shape, np.uint8)
    for one, other in zip(run_once(network, rows), run_once(again, rows), strict=True):
        np.testing.assert_array_equal(one, other)
    assert again.names not in ([], ())
    # Building the built file would write the same description. Its arguments
    # are not compared here: they are those of the head, which are compared above.
    assert json.loads(describe(again)) == json.loads(describe(network)) | {
        "arguments": json.loads(describe(again))["arguments"]
    }


@pytest.mark.slow
def test_built_file_gives_the_same_detections_at_another_size_and_batch(tmp_path):
    export_onnx(resolve_config(None, {"model": "street"}), str(tmp_path / "s.onnx"))
    picture = np.random.default_rng(0).integers(0, 256, (120, 200, 3), np.uint8)
    for options in ({}, {"size": "128x64"}, {"batch": 2}):
        found = []
        for model in ("street", tmp_path / "s.onnx"):
            with Detector(model, engine="ort", conf=0.001, **options) as detector:
                found.append(detector(picture))
        assert len(found[0]) > 0
        np.testing.assert_array_equal(found[0].boxes, found[1].boxes)
        np.testing.assert_array_equal(found[0].scores, found[1].scores)


def test_graph_exported_for_an_engine_can_be_opened_as_a_model(tmp_path):
    from detector.core.engines._built.building import export

    model, _ = darknet(tmp_path)
    network = open_network(model, random_seed=3)
    again = open_network(export(network, tmp_path).path)
    assert again.names == ("red one", "blue")
    assert again.head.keywords == network.head.keywords


def changed(tmp_path, change):
    _, path = build(tmp_path, "darknet-yolo")
    model = onnx.load(path)
    [entry] = [entry for entry in model.metadata_props if entry.key == KEY]
    content = json.loads(entry.value)
    text = change(content)
    entry.value = text if isinstance(text, str) else json.dumps(content)
    onnx.save(model, path)
    return path


def of_layer(key, value):
    return lambda content: content["arguments"]["layers"][0].update({key: value})


WRONG = {
    "text": (lambda content: "{", "JSON"),
    "list": (lambda content: "[]", "version None"),
    "version": (lambda content: content.update(version=1), "version 1"),
    "newer version": (lambda content: content.update(version=9), "newer detect-video"),
    "kind": (lambda content: content.update(kind="eval"), "kind 'eval'"),
    "geometry": (lambda content: content.update(geometry=3), "`$.geometry`"),
    "stride": (lambda content: content.update(stride=10**9), "`$.stride`"),
    "names": (lambda content: content.update(names=["a", "\x1b[2J"]), "names"),
    "fewer names": (lambda content: content.update(names=["a"]), "do not fit its darknet-yolo"),
    "head of another kind": (lambda content: content.update(kind="rows"), "arguments"),
    "incomplete list": (lambda content: content.update(kind="list", arguments={}), "reading"),
    "no layers": (lambda content: content["arguments"].update(layers=[]), "layers []"),
    "nested too deeply": (lambda content: "[" * 100_000, "nested more than"),
    "anchors": (of_layer("anchors", [[1, "x"], [1, 2]]), "anchors"),
    "infinite anchor": (of_layer("anchors", [[1e400, 1], [1, 2]]), "Infinity"),
    "one anchor": (of_layer("anchors", [[1, 2]]), "do not fit its darknet-yolo"),
    "other number of classes": (of_layer("classes", 3), "do not fit its darknet-yolo"),
    "other cell width": (of_layer("cell_width", 4), "do not fit its darknet-yolo"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_damaged_description_is_refused(tmp_path, case):
    change, words = WRONG[case]
    path = changed(tmp_path, change)
    reason = refusal(path)
    assert path in reason
    assert words in reason


@pytest.mark.slow
def test_models_of_this_file_have_every_kind_of_head(tmp_path):
    built = set()
    for layout in MODELS:
        (tmp_path / layout).mkdir()
        built.add(json.loads(describe(build(tmp_path / layout, layout)[0]))["kind"])
    assert built == set(decoders())


def test_foreign_graph_with_our_description_is_refused(tmp_path):
    path = exports.decoded().save(
        tmp_path / "m.onnx", {KEY: describe(build(tmp_path, "darknet-yolo")[0])}
    )
    with pytest.raises(ModelError, match="changed after the build"):
        open_network(path)


def test_built_file_takes_names_but_no_family(tmp_path):
    _, path = build(tmp_path, "darknet-yolo")
    with pytest.raises(ModelError, match="omit the option"):
        open_network(path, family="yolov5")
    (tmp_path / "other.names").write_text("x\ny\n")
    assert open_network(path, names=tmp_path / "other.names").names == ("x", "y")
    assert "random weights (seed 3)" in open_network(path).warnings[0]


def test_only_our_own_metadata_is_removed_if_the_head_cannot_be_described():
    network = plus_one()
    network.graph.metadata_props.add(key="author", value="somebody")
    network.graph.metadata_props.add(key=KEY, value="of another graph")
    write_description(network)
    assert [(one.key, one.value) for one in network.graph.metadata_props] == [
        ("author", "somebody")
    ]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_half_precision_graph_warns(tmp_path, precision):
    from detector.core.engines._built.building import export
    from detector.core.models.graph.halves import convert_to_halves

    network = open_network(darknet(tmp_path)[0], random_seed=3)
    if precision != "fp32":
        network = convert_to_halves(network, precision)
    notes = [one for one in open_network(export(network, tmp_path).path).warnings if "fp16" in one]
    assert len(notes) == (precision == "fp16")
