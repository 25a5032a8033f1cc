"""Sources in folders by class (--sort): which folder, what stays, links and copies."""

from __future__ import annotations

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
    path = tmp_path / "cam1" / "a.jpg"
    path.parent.mkdir()
    path.write_bytes(b"a photo")
    return path


def put(photo, wanted):
    return sort_source(photo.parents[1] / "sorted", "cam1/a.jpg", str(photo), wanted)


def files(folder):
    found = (one for one in folder.rglob("*") if one.is_file())
    return {str(one.relative_to(folder)): one.read_bytes() for one in found}


def test_other_files_stay_and_a_moved_photo_too(photo):
    place = photo.parents[1] / "sorted"
    (place / "empty/cam1").mkdir(parents=True)
    (place / "empty/cam1/a.jpg").write_bytes(b"another")
    for _ in range(2):
        assert put(photo, "empty") == "empty"
    assert files(place / "empty/cam1") == {"a.jpg": b"another", "a-2.jpg": b"a photo"}
    (place / "car/cam1").mkdir(parents=True)
    os.rename(place / "empty/cam1/a-2.jpg", place / "car/cam1/a.jpg")
    assert put(photo, "empty") == "car"
    assert len(files(place)) == 2


def test_without_links_it_is_a_whole_copy(photo, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(sorting.os, "link", refuse)
    put(photo, "car")
    copy = photo.parents[1] / "sorted/car/cam1/a.jpg"
    assert files(photo.parents[1] / "sorted") == {"car/cam1/a.jpg": b"a photo"}
    assert not os.path.samefile(copy, photo)


def test_nothing_is_sorted_through_a_link(photo):
    (photo.parents[1] / "sorted").mkdir()
    (photo.parents[1] / "sorted/car").symlink_to(photo.parent)
    with pytest.raises(OutputError, match="is a link"):
        put(photo, "car")


@pytest.mark.slow
def test_a_job_sorts_photos_and_videos(tmp_path):
    clip = os.path.join(os.path.dirname(__file__), "../../videos/street.mp4")
    street = cv2.VideoCapture(clip).read()[1]
    (tmp_path / "in/far").mkdir(parents=True)
    cv2.imwrite(str(tmp_path / "in/a.png"), street)
    cv2.imwrite(str(tmp_path / "in/far/a.png"), np.zeros_like(street))
    write_video(tmp_path / "in/b.mp4", 3)
    words = ("batch", "in", "-o", "out", "--engine", "ort", "--no-video", "--no-self-timing")
    assert detect_video(*words, "--sort", "empty,vehicle", cwd=tmp_path).returncode == 0
    place = tmp_path / "out/sorted"
    assert {"vehicle/a.png", "empty/far/a.png"} < set(files(place))
    assert os.path.samefile(place / "vehicle/a.png", tmp_path / "in/a.png")
    marker = tmp_path / "out/files/a.png/done.json"
    marker.write_text(marker.read_text().replace('"classes"', '"_"'))  # as 0.2.0 wrote it
    (place / "vehicle/a.png").unlink()
    again = detect_video(*words, "--sort", "vehicle,other", "--resume", cwd=tmp_path)
    assert again.returncode == 0
    assert {"vehicle/a.png", "empty/far/a.png"} < set(files(place))
    assert "1 kept" in again.stderr
    listed = detect_video("batch", ".", "-o", "new", "--dry-run", cwd=tmp_path)
    assert "sorted" not in listed.stdout
    assert_one_line_error(detect_video(*words, "--sort", "vehicel", "--resume", cwd=tmp_path), 2)
    away = detect_video("batch", "in", "-o", "s3://bucket/x", "--sort", "empty", cwd=tmp_path)
    assert_one_line_error(away, 2)
