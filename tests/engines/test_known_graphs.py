"""Built graphs and lists of executed layers are reused until the model, options or code change."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest

from detector.core import engines
from detector.core.engines._built import building, sealing, store
from detector.core.engines._built.building import export
from detector.core.engines._built.store import Graphs
from detector.core.engines.base import EngineOptions, LayerExecution
from detector.core.errors import OutputError
from detector.core.models.base import Network
from detector.core.models.formats.darknet import build as darknet_build
from detector.core.models.formats.darknet import layers as darknet_layers
from detector.core.models.formats.yolo import network as yolo
from detector.core.models.graph.halves import sensitive_nodes
from detector.core.run import executed
from detector.core.session.outcome import ExecutedLayer
from detector.lab.peaks import kernels
from tests.known_answers import plus_one, run_once
from tests.networks import cfg_text, open_network

CFG = cfg_text(
    "net width=32 height=32 channels=3",
    "convolutional filters=18 size=3 stride=32 pad=1 activation=linear",
    "yolo mask=0,1,2 anchors=10,14,23,27,37,58 classes=1 num=3",
)


@pytest.fixture
def cfg(tmp_path: Path) -> Path:
    path = tmp_path / "x.cfg"
    path.write_text(CFG)
    (tmp_path / "x.names").write_text("thing\n")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "engines"


def opened(cfg: Path, folder: Path, **options) -> Network:
    options.setdefault("random_seed", 1)
    return open_network(str(cfg), graphs=Graphs(folder), **options)


def refuse(*_, **__):
    raise AssertionError("the graph is built again")


def test_graph_is_built_once(cfg, folder, monkeypatch):
    first = opened(cfg, folder)
    assert first.peak_bytes is None
    exported = export(first, folder)
    monkeypatch.setattr(darknet_build.DarknetGraph, "model", refuse)
    monkeypatch.setattr(darknet_layers, "read_architecture", refuse)
    second = opened(cfg, folder)
    of_graph = {name: vars(second)[name] for name in ("graph", "path", "peak_bytes", "sensitive")}
    assert second.head.keywords == second.dense.keywords == first.head.keywords
    assert vars(second) == {**vars(first), **of_graph, "head": second.head, "dense": second.dense}
    assert second.path == exported.path
    assert second.sensitive == sensitive_nodes(first.graph) != set()
    assert export(second, folder) == (exported.path, False, ())
    pictures = np.full((1, 32, 32, 3), 90, np.uint8)
    for one, other in zip(run_once(first, pictures), run_once(second, pictures), strict=True):
        np.testing.assert_array_equal(one, other)
    assert second.graph == onnx.load(exported.path)


def test_cfg_is_parsed_if_its_stored_description_is_invalid_or_outdated(cfg, folder, monkeypatch):
    path = Path(export(opened(cfg, folder), folder).path).with_suffix(".json")
    proved = path.read_text()
    manifest = json.loads(proved)
    path.write_text(
        json.dumps({**manifest, "description": {**manifest["description"], "parameters": 1}})
    )
    assert opened(cfg, folder).parameters == manifest["parameters"] != 1
    path.write_text(json.dumps(sealing.seal(path.name, {**manifest, "description": {}})))
    monkeypatch.setattr(darknet_layers, "read_architecture", refuse)
    with pytest.raises(AssertionError, match="built again"):
        opened(cfg, folder)
    path.write_text(proved)
    monkeypatch.setenv("DETECT_VIDEO_MODEL_LIMITS", "2")
    with pytest.raises(AssertionError, match="built again"):
        opened(cfg, folder)


def test_cfg_with_warnings_is_parsed_each_time(cfg, folder):
    cfg.write_text(CFG.replace("num=3", "num=3\ncolour=1"))
    export(first := opened(cfg, folder), folder)
    assert "colour" in first.warnings[0]
    assert opened(cfg, folder).warnings == first.warnings


@pytest.mark.slow
def test_yolo_graph_is_built_once(tmp_path, folder, monkeypatch):
    options = {"random_seed": 3, "size": (64, 64), "graphs": Graphs(folder)}
    first = open_network("yolov5n.yaml", **options)
    path = export(first, folder).path
    monkeypatch.setattr(yolo.YoloGraph, "model", refuse)
    assert open_network("yolov5n.yaml", **options).path == path
    with pytest.raises(AssertionError, match="built again"):
        open_network("yolov5n.yaml", **{**options, "batch": 2})


@pytest.mark.parametrize("options", [{"random_seed": 2}, {"size": (64, 32)}, {"batch": 2}], ids=str)
def test_graph_is_not_reused_for_another_seed_size_or_batch(cfg, folder, options):
    export(opened(cfg, folder), folder)
    assert opened(cfg, folder, **options).path is None


def test_graph_is_not_reused_if_the_cfg_or_class_names_or_code_change(cfg, folder, monkeypatch):
    export(opened(cfg, folder), folder)
    cfg.with_suffix(".names").write_text("other\n")
    assert opened(cfg, folder).path is None
    cfg.with_suffix(".names").write_text("thing\n")
    assert opened(cfg, folder).path is not None
    cfg.write_text(CFG.replace("linear", "leaky"))
    assert opened(cfg, folder).path is None
    cfg.write_text(CFG)
    monkeypatch.setattr(store, "code_of", lambda folder: "another state")
    assert opened(cfg, folder).path is None


@pytest.mark.parametrize(
    "change",
    [{"output_shapes": "no"}, {"macs": None}, {"peak_bytes": "x"}, {"sensitive": None}],
    ids=str,
)
def test_invalid_sealed_manifest_is_ignored(cfg, folder, change):
    path = Path(export(opened(cfg, folder), folder).path).with_suffix(".json")
    manifest = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps(sealing.seal(path.name, manifest)))
    assert opened(cfg, folder).path is None


def test_graph_is_not_reused_without_a_folder(cfg, tmp_path):
    assert opened(cfg, tmp_path / "nowhere").path is None
    assert open_network(str(cfg), random_seed=1).path is None


def test_network_with_a_replaced_graph_has_no_path(cfg, folder):
    export(opened(cfg, folder), folder)
    network = opened(cfg, folder)
    changed = replace(network, graph=onnx.ModelProto(), path=None)
    assert changed.graph != network.graph
    assert changed.path is None


VIDEO = Path(__file__).parents[2] / "videos/street.mp4"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "engine", "precision", "needs"),
    [(VIDEO, "ort", "fp32", "av"), (VIDEO, "openvino", "bf16", "av"), ("x.png", "ort", "fp32", "")],
)
def test_second_run_imports_only_what_it_needs(tmp_path, source, engine, precision, needs):
    pytest.importorskip(engines.find(engine).library)
    code = (
        "import sys\n"
        "from detector.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as done: assert not done.code, done.code\n"
        "print(*{'av', 'onnx', 'openvino.tools.ovc', 'torch'} & {*sys.modules})"
    )
    cv2.imwrite(str(tmp_path / "x.png"), np.zeros((360, 640, 3), np.uint8))
    command = [sys.executable, "-c", code, str(source), "--engine", engine]
    command += ["--precision", precision, "--frames", "2", "--quiet", "--engines-dir", "engines"]
    first, second = (
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert "onnx" in first
    assert second.strip() == needs


# ---- layers


class FakeEngine:
    """An engine with one layer. It counts how often it is asked for its layers."""

    name, device = "ort", "cpu"

    def __init__(self, precision: str = "fp32") -> None:
        self.precision, self.asked = precision, 0

    def execution(self):
        self.asked += 1
        return [LayerExecution("0.conv", "Conv", self.precision)]


def layers_of(engine: FakeEngine, path: str | None, own=None):
    return executed.find_layers(plus_one(), engine, path, own or {})


@pytest.mark.slow
@pytest.mark.skipif(engines.why_unusable()["ort"] is not None, reason="machine: no onnxruntime")
def test_macs_of_a_quantised_output_belong_to_its_convolution():
    """The DequantizeLinear node after the convolution has the output's name, but no MACs."""
    plain = kernels.make_chain()
    ran = kernels._convert(plain, engines.graph_precision_for("ort", "int8", "cpu"))
    with engines.open("ort", ran, EngineOptions(requests=1, precision="int8")) as engine:
        types = {layer.name: layer.type for layer in engine.execution()}
        layers = executed.executed_layers(plain, engine, ran)
    of_output = [one for one in layers if one.macs == 64 // 4 * 64 // 4 * 512 * 8]
    assert len(of_output) == 1
    assert types[of_output[0].name] != "DequantizeLinear"
    assert of_output[0].precision == "int8"
    assert not [one for one in layers if types[one.name] == "DequantizeLinear" and one.macs]


def test_engine_is_asked_for_layers_once(tmp_path):
    path, engine = str(tmp_path / "x.onnx"), FakeEngine()
    first = layers_of(engine, path)
    assert first == (ExecutedLayer("0.conv", "fp32", first[0].macs, first[0].elements),)
    assert layers_of(engine, path) == first
    assert engine.asked == 1


def test_engine_is_asked_again_if_its_version_precision_or_options_change(tmp_path, monkeypatch):
    path = str(tmp_path / "x.onnx")
    layers_of(FakeEngine(), path)
    other, own, later = FakeEngine("int8"), FakeEngine(), FakeEngine()
    assert layers_of(other, path)[0].precision == "int8"
    layers_of(own, path, {"level": "2"})
    monkeypatch.setattr(executed, "library_version", lambda name: "onnxruntime 99")
    layers_of(later, path)
    assert (other.asked, own.asked, later.asked) == (1, 1, 1)
    assert len(json.loads((tmp_path / "x.layers.json").read_text())["executed"]) == 4


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": 2, "executed": 5}', '{"schema": 2, "executed": {"KEY": 5}}']
)
def test_invalid_layers_file_is_replaced_after_asking_the_engine_once(tmp_path, text):
    engine, path = FakeEngine(), str(tmp_path / "x.onnx")
    key = executed._hash_settings(engine, {})
    text = text.replace("KEY", key)
    if text.startswith("{"):
        text = json.dumps(sealing.seal("x.layers.json", json.loads(text)))
    (tmp_path / "x.layers.json").write_text(text)
    assert len(layers_of(engine, path)) == 1
    assert engine.asked == 1
    assert len(layers_of(engine, path)) == 1
    assert engine.asked == 1


def test_layers_file_keeps_a_limited_number_of_entries(tmp_path):
    path = str(tmp_path / "x.onnx")
    for number in range(executed.KEPT + 3):
        layers_of(FakeEngine(), path, {"level": str(number)})
    entries = json.loads((tmp_path / "x.layers.json").read_text())["executed"]
    assert len(entries) == executed.KEPT


def test_layers_are_not_stored_for_a_gpu_or_without_a_graph_file(tmp_path):
    gpu = FakeEngine()
    gpu.device = "cuda:0"
    for engine, path in ((gpu, str(tmp_path / "x.onnx")), (FakeEngine(), None)):
        for _ in range(2):
            layers_of(engine, path)
        assert engine.asked == 2
    assert list(tmp_path.iterdir()) == []


def test_layers_are_returned_even_if_they_cannot_be_saved(tmp_path, monkeypatch):
    def full(*_):
        raise OutputError("the disk is full")

    monkeypatch.setattr(building, "rewrite", full)
    assert len(layers_of(FakeEngine(), str(tmp_path / "x.onnx"))) == 1
