"""Counts of detections over time, and the rows that they are read from."""

import json
import os

import pytest

from detector.lab.analysis.detection_counts import BINS, CURVES, OTHERS, count_over_time
from detector.lab.session import rows as rows_module
from detector.lab.session.rows import ClassCounts, SessionRows, read_rows


def row_line(frame: int, *classes: str, source: str = "a.mp4") -> str:
    detections = [
        {"class": name, "class_id": 0, "score": 0.5, "box": [0, 0, 1, 1]} for name in classes
    ]
    row = {"source": source, "frame": frame, "time_s": frame / 25, "detections": detections}
    return json.dumps(row) + "\n"


def test_rows_are_counted_by_class(tmp_path):
    text = row_line(0, "car", "car", "dog") + row_line(1)
    (tmp_path / "detections.jsonl").write_text(text)
    assert read_rows(tmp_path) == SessionRows(
        [ClassCounts("a.mp4", 0.0, {"car": 2, "dog": 1}), ClassCounts("a.mp4", 0.04, {})]
    )


def test_reason_is_given_if_a_session_has_no_rows(tmp_path):
    rows = read_rows(tmp_path)
    assert rows.frames == []
    assert rows.left_out is not None


@pytest.mark.parametrize(
    "damage",
    [
        b"{",
        b"\xff\xfe\n",
        b"[]\n",
        b'{"source":1,"time_s":0,"detections":[]}\n',
        b'{"source":"a","time_s":0,"detections":[{"class":null}]}\n',
        b'{"source":"a","time_s":0,"detections":' + b"[" * 100_000 + b"\n",
    ],
)
def test_rows_before_a_damaged_one_are_counted(tmp_path, damage):
    (tmp_path / "detections.jsonl").write_bytes(row_line(0, "car").encode() + damage)
    rows = read_rows(tmp_path)
    assert [one.by_class for one in rows.frames] == [{"car": 1}]
    assert "line 2" in (rows.left_out or "")


def test_long_file_of_rows_is_read_only_partly(tmp_path, monkeypatch):
    (tmp_path / "detections.jsonl").write_text("".join(row_line(at, "car") for at in range(50)))
    monkeypatch.setattr(rows_module, "MAX_BYTES", 1000)
    part = read_rows(tmp_path)
    assert 0 < len(part.frames) < 50
    assert part.left_out is not None
    monkeypatch.undo()
    monkeypatch.setattr(rows_module, "MAX_ROWS", 10)
    assert len(read_rows(tmp_path).frames) == 10


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_folder_or_pipe_instead_of_rows_is_skipped_without_waiting(tmp_path, kind):
    path = tmp_path / "detections.jsonl"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    assert read_rows(tmp_path).left_out is not None


def frames(count: int, **by_class: int) -> list[ClassCounts]:
    return [ClassCounts("a.mp4", at / 25, dict(by_class)) for at in range(count)]


@pytest.mark.parametrize("count", [1, 7, BINS, BINS + 1, 1000])
def test_curve_has_the_mean_of_each_bin(count):
    curves_of_run = count_over_time(SessionRows(frames(count, car=3, dog=1)))
    assert curves_of_run.unit == "s"
    assert list(curves_of_run.curves) == ["car", "dog"]
    for name, expected in (("car", 3), ("dog", 1)):
        points = curves_of_run.curves[name]
        assert len(points) == min(BINS, count)
        assert {value for _, value in points} == {expected}
        assert [when for when, _ in points] == sorted(when for when, _ in points)


def test_means_of_bins_add_up_to_the_detections():
    rows = [ClassCounts("a.mp4", at / 25, {"car": at % 5}) for at in range(2 * BINS)]
    points = count_over_time(SessionRows(rows)).curves["car"]
    total = sum(row.by_class["car"] for row in rows)
    assert sum(value for _, value in points) * 2 == pytest.approx(total)


def test_rare_classes_share_a_curve():
    many = {f"class {at}": 1 for at in range(80)}
    curves_of_run = count_over_time(SessionRows([ClassCounts("a.mp4", 0.0, many)]))
    assert len(curves_of_run.curves) == CURVES + 1
    assert curves_of_run.curves[OTHERS] == [(0.0, 80 - CURVES)]


def test_curve_of_several_sources_is_over_frames_instead_of_seconds():
    rows = frames(5, car=1) + [ClassCounts("b.mp4", at / 25, {"car": 1}) for at in range(5)]
    curves_of_run = count_over_time(SessionRows(rows))
    assert curves_of_run.unit == "frame"
    assert [when for when, _ in curves_of_run.curves["car"]] == [*map(float, range(10))]


def test_session_without_rows_has_no_curves():
    assert count_over_time(SessionRows()).curves == {}
