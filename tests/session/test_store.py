"""The session's folder."""

import json

import numpy as np
import pytest

from detector.errors import OutputError
from detector.session.document import SpanCounts
from detector.session.store import Session
from detector.timeline import Timeline


def test_names_are_counted_up(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [Session.create(None, "in-ort").folder.name for _ in range(3)]
    assert folders == ["in-ort", "in-ort-2", "in-ort-3"]


def test_a_folder_used_again_holds_one_run_and_the_users_own_files(tmp_path):
    (tmp_path / "detections.jsonl").write_text("old\n")
    (tmp_path / "notes.txt").write_text("mine")
    session = Session.create(str(tmp_path), "x")
    rows = tmp_path / "a.jsonl"
    rows.write_text("1\n")
    session.adopt(rows)
    session.adopt(rows)
    assert (tmp_path / "detections.jsonl").read_text() == "1\n1\n"
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_discard_takes_back_what_was_made_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Session.create(None, "in-ort").discard()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "own").mkdir()
    Session.create("own", "x").discard()
    assert (tmp_path / "own").is_dir()


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(OutputError, match="--run-dir"):
        Session.create(str(tmp_path / "runs"), "x")


def test_json_is_whole_or_not_there(tmp_path):
    session = Session.create(str(tmp_path), "x")
    session.write_json("summary.json", {"a": 1})
    with pytest.raises(TypeError):
        session.write_json("summary.json", {"a": object()})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"a": 1}


def test_spans_can_be_read_back(tmp_path):
    clock = iter(range(0, 10_000, 10))
    timeline = Timeline(lambda: next(clock), lambda: 0, nvtx=False)
    with timeline.track("reader") as track:
        for i in range(3):
            with track.span("read", i), track.span("image", i, "wait_output"):
                pass
    session = Session.create(str(tmp_path), "x")
    assert session.write_spans([timeline]) == SpanCounts(seen=6, kept=6)
    with np.load(tmp_path / "spans.npz") as columns:
        names = columns["stage_names"][columns["stage"][columns["kind"] != 3]].tolist()
        assert sorted(set(names)) == ["image", "read"]
        assert columns["thread_names"].tolist() == ["reader"]
        covered = (columns["end_ns"] - columns["start_ns"])[
            names_are(columns, "read") | (columns["kind"] == 3)
        ].sum()
        assert covered == timeline.tracks["reader"].wall_ns, (
            "top-level spans and the gaps between them are the wall"
        )
        assert (np.diff(columns["start_ns"]) >= 0).all()


def names_are(columns, name):
    return (columns["stage"] == columns["stage_names"].tolist().index(name)) & (
        columns["kind"] != 3
    )
