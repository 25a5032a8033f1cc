"""Sort sources into folders by class (--sort), with links or copies."""

import os

import cv2
import numpy as np
import pytest

from detector.batch import sorting
from detector.batch.sorting import sort_source
from detector.core.errors import OutputError
from tests.cli.command import assert_one_line_error, detect_video
from tests.sources.clips import write_video


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(b"a photo")
    (tmp_path / "sorted/car").mkdir(parents=True)
    return path


def sort(photo, folder):
    return sort_source(photo.parent / "sorted", "cam1/a.jpg", str(photo), folder)


def test_source_is_copied_once_if_links_are_not_supported(photo, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(sorting.os, "link", refuse)
    assert [sort(photo, "car"), sort(photo, "empty")] == ["car", "car"]
    (copy,) = [path for path in (photo.parent / "sorted").rglob("*") if path.is_file()]
    assert (copy.name, copy.read_bytes()) == ("a.jpg", b"a photo")
    assert not os.path.samefile(copy, photo)


def test_linked_target_folder_is_refused(photo):
    (photo.parent / "sorted/car/cam1").symlink_to(photo.parent.parent)
    with pytest.raises(OutputError, match="by a link"):
        sort(photo, "car")


@pytest.mark.slow
def test_job_sorts_files_and_restores_removed_links_if_resumed(tmp_path):
    clip = os.path.join(os.path.dirname(__file__), "../../videos/street.mp4")
    street = cv2.VideoCapture(clip).read()[1]
    (tmp_path / "in/far").mkdir(parents=True)
    cv2.imwrite(str(tmp_path / "in/a.png"), street)
    cv2.imwrite(str(tmp_path / "in/far/a.png"), np.zeros_like(street))
    write_video(tmp_path / "in/b.mp4", 3)
    words = ("batch", "in", "-o", "out", "--engine", "ort", "--no-video", "--no-self-timing")
    assert detect_video(*words, "--sort", "empty, vehicle", cwd=tmp_path).returncode == 0
    vehicle, empty = (tmp_path / "out/sorted" / name for name in ("vehicle/a.png", "empty/far"))
    assert empty.exists()
    assert os.path.samefile(vehicle, tmp_path / "in/a.png")
    marker = tmp_path / "out/files/a.png/done.json"
    marker.write_text(marker.read_text().replace('"classes"', '"_"'))  # as version 0.2.0 wrote it
    vehicle.unlink()
    again = detect_video(*words, "--sort", "vehicle,other", "--resume", cwd=tmp_path)
    assert again.returncode == 0
    assert "1 kept" in again.stderr
    assert vehicle.exists()
    assert "sorted" not in detect_video("batch", ".", "-o", "x", "--dry-run", cwd=tmp_path).stdout
    assert_one_line_error(detect_video(*words, "--sort", "vehicel", "--resume", cwd=tmp_path), 2)
