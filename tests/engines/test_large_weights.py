"""Weights too large for one protobuf are stored in a separate file, which every engine reads."""

import numpy as np
import pytest

from detector.core.config.schema import Config, NetworkConfig, RuntimeConfig
from detector.core.engines._built import building
from detector.core.errors import ModelError
from detector.core.jobs.build import export_onnx
from detector.core.run import quantize
from tests.known_answers import run_once
from tests.models import exports
from tests.networks import open_network


@pytest.mark.parametrize(
    "engine", ["ort", "openvino", pytest.param("torch", marks=pytest.mark.slow)]
)
def test_separate_weights_are_written_once_and_read(tmp_path, monkeypatch, engine):
    pytest.importorskip(
        {"ort": "onnxruntime"}.get(engine, engine), reason=f"machine: {engine} is not installed"
    )
    path = exports.yolox().save(tmp_path / "m.onnx", exports.STATED)
    picture = np.random.default_rng(0).integers(0, 256, (1, 64, 64, 3), np.uint8)
    expected = run_once(open_network(path), picture, engine)
    monkeypatch.setattr(building, "LARGEST_MESSAGE", 5000)
    network = open_network(path)
    exported = building.export(network, tmp_path / "engines")
    (weights,) = (tmp_path / "engines").glob("*.bin")
    assert weights.stat().st_size > 5000
    before = weights.stat().st_mtime_ns
    network.path = None
    assert building.export(network, tmp_path / "engines").path == exported.path
    assert weights.stat().st_mtime_ns == before
    np.testing.assert_array_equal(run_once(network, picture, engine), expected)


def test_int8_is_refused_before_a_frame_is_read(tmp_path, monkeypatch):
    path = exports.yolox().save(tmp_path / "m.onnx", exports.STATED)
    monkeypatch.setattr(building, "LARGEST_MESSAGE", 5000)
    monkeypatch.setattr(quantize, "get_calibration", lambda *_: pytest.fail("calibrated"))
    with pytest.raises(ModelError, match=r"GiB of weights.*fp16") as caught:
        quantize.quantize_network(open_network(path), "int8-u8", Config(), tmp_path)
    assert "\n" not in str(caught.value)


def test_export_to_onnx_is_refused_and_writes_nothing(tmp_path, monkeypatch):
    path = exports.yolox().save(tmp_path / "m.onnx", exports.STATED)
    monkeypatch.setattr(building, "LARGEST_MESSAGE", 5000)
    config = Config(network=NetworkConfig(model=str(path)), runtime=RuntimeConfig(engine="ort"))
    with pytest.raises(ModelError, match="GiB of weights"):
        export_onnx(config, str(tmp_path / "out.onnx"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.onnx"]
