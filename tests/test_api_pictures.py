"""Pictures that Detector accepts, and its errors for other values; no model is needed."""

import io

import cv2
import numpy as np
import pytest

from detector import DetectVideoError
from detector.core.api.pictures import as_image
from detector.core.errors import UsageError

IMAGE = np.random.default_rng(1).integers(0, 256, (48, 64, 3), np.uint8)


def test_array_is_returned_unchanged():
    assert as_image(IMAGE) is IMAGE


def test_path_of_a_picture_is_read(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), IMAGE)
    for path in (tmp_path / "a.png", str(tmp_path / "a.png")):
        np.testing.assert_array_equal(as_image(path), IMAGE)


def test_error_for_a_glob_or_video_or_camera_suggests_stream(tmp_path):
    for name in "ab":
        cv2.imwrite(str(tmp_path / f"{name}.png"), IMAGE)
    writer = cv2.VideoWriter(str(tmp_path / "c.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 25, (64, 48))
    writer.write(IMAGE)
    writer.release()
    for source in (tmp_path / "*.png", tmp_path / "c.avi", "rtsp://u:secret@h/x"):
        with pytest.raises(UsageError, match=r"stream\(") as caught:
            as_image(source)
        assert "secret" not in str(caught.value)


def test_pil_pictures_are_converted_or_refused():
    pil = pytest.importorskip("PIL.Image", reason="machine: pillow is not installed")
    picture = pil.fromarray(IMAGE[:, :, ::-1])
    np.testing.assert_array_equal(as_image(picture), IMAGE)
    grey = as_image(picture.convert("L"))
    assert grey.shape == IMAGE.shape
    assert (grey[..., 0] == grey[..., 2]).all()
    file = io.BytesIO()
    picture.save(file, "PNG")
    cut = pil.open(io.BytesIO(file.getvalue()[:-1000]))
    for wrong in (pil.new("I;16", (4, 4)), pil.new("F", (4, 4)), pil.new("RGB", (0, 0)), cut):
        with pytest.raises(UsageError, match="PIL"):
            as_image(wrong)


@pytest.mark.parametrize(
    "thing", [None, 3, [IMAGE], IMAGE[..., 0], IMAGE[:0], IMAGE.astype(np.float32), IMAGE[..., :2]]
)
def test_invalid_picture_is_refused(thing):
    with pytest.raises(DetectVideoError, match="uint8 BGR"):
        as_image(thing)
