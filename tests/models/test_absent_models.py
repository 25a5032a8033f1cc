"""The advice for a missing model."""

import pytest

from detector.core.errors import ModelError
from detector.core.models.catalogue import absent_model, known_model


@pytest.mark.parametrize("name", ["yolov8n.pt", "yolo11s-seg.pt", "a/YOLOv10x.pt", "rtdetr-l.pt"])
def test_error_for_a_missing_newer_checkpoint_advises_to_export_it(name):
    assert f"yolo export model={name.rpartition('/')[2]} format=onnx" in str(absent_model(name))


@pytest.mark.parametrize("name", ["yolov5n.pt", "yolov7.pt", "x.onnx", "yolov8n.onnx"])
def test_error_for_other_missing_models_advises_to_list_the_known_ones(name):
    text = str(absent_model(name))
    assert "export" not in text
    assert "detect-video models" in text


def test_error_for_several_models_advises_to_use_compare():
    with pytest.raises(ModelError, match="compare --model A,B"):
        known_model("street,street-1")
