"""The teacher says the same on ONNX Runtime and as a torch module, at any size."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="machine: torch is not installed")

from model.teacher import Teacher, decode_yolox, focus, free_size, torch_module  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("size", [(96, 160), (128, 128)])
def test_both_ways_agree(shared, size):
    model = (shared / "data/weights/yolox_nano.onnx").read_bytes()
    images = np.random.default_rng(0).integers(0, 255, (2, *size, 3), dtype=np.uint8)
    boxes, scores = Teacher(model)(images)
    assert scores.shape == (2, sum(size[0] // s * (size[1] // s) for s in (8, 16, 32)), 2)
    bgr = torch.from_numpy(
        np.ascontiguousarray(images[..., ::-1].transpose(0, 3, 1, 2), np.float32)
    )
    with torch.no_grad():
        maps = torch_module(free_size(model))(focus(bgr))
    rows = torch.cat([m.flatten(2) for m in maps], 2).transpose(1, 2).numpy()
    other_boxes, other_scores = decode_yolox(rows, *size)
    np.testing.assert_allclose(boxes, other_boxes, atol=0.05)
    np.testing.assert_allclose(scores, other_scores, atol=1e-4)
