"""A model that is not there: what to type instead."""

from __future__ import annotations

import pytest

from detector.core.errors import ModelError
from detector.core.models.catalogue import absent_model, known_model


@pytest.mark.parametrize("name", ["yolov8n.pt", "yolo11s-seg.pt", "a/YOLOv10x.pt", "rtdetr-l.pt"])
def test_newer_checkpoints_are_exported(name):
    assert f"yolo export model={name.rpartition('/')[2]} format=onnx" in str(absent_model(name))


@pytest.mark.parametrize("name", ["yolov5n.pt", "yolov7.pt", "x.onnx", "yolov8n.onnx"])
def test_others_are_not(name):
    text = str(absent_model(name))
    assert "export" not in text
    assert "detect-video models" in text


def test_several_models_are_for_compare():
    with pytest.raises(ModelError, match="compare --model A,B"):
        known_model("street,street-1")
