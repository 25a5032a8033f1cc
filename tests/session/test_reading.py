"""A session read back, and what is wrong with one that cannot be."""

from __future__ import annotations

import json

import numpy as np
import pytest

from detector.errors import UsageError
from detector.session.read import FIELDS, complete, read_session
from detector.session.store import SCHEMA, Session
from detector.timeline import Timeline


def saved(folder):
    timeline = Timeline(nvtx=False)
    with timeline.track("main") as track, track.span("read", 0):
        pass
    session = Session.create(str(folder), "x")
    session.write_spans([timeline])
    session.write_json(
        "session.json", {"schema": SCHEMA} | {name: kind() for name, kind in FIELDS.items()}
    )
    session.write_pass("memory", {"available": False, "reason": "made by hand"})
    return folder


def test_what_was_written_is_read(tmp_path):
    found = read_session(saved(tmp_path / "run"))
    assert found.document["schema"] == SCHEMA
    assert found.spans["stage_names"].tolist() == ["read"]
    assert len(found.spans["start_ns"]) == len(found.spans["kind"])


def cut(path):
    path.write_bytes(path.read_bytes()[:20])


def other_columns(path):
    np.savez(path, a=np.zeros(3))


def uneven(path):
    with np.load(path) as file:
        columns = dict(file)
    columns["thread"] = columns["thread"][:-1]
    np.savez(path, **columns)


def with_value(group, name, value):
    def change(path):
        document = json.loads(path.read_text())
        document[group][name] = value
        path.write_text(json.dumps(document))

    return change


BROKEN = [
    ("session.json", lambda path: path.unlink(), "no session.json in it"),
    ("session.json", cut, "damaged, or no session of this program"),
    ("session.json", lambda path: path.write_text("[1]"), "lacks the stages"),
    (
        "session.json",
        lambda path: path.write_text(json.dumps({"stages": {}, "schema": 99})),
        "schema 99",
    ),
    ("session.json", lambda path: path.write_bytes(b"\xff\xfe\x00"), "damaged, or no session"),
    (
        "session.json",
        lambda path: path.write_text(json.dumps({"stages": {}, "schema": SCHEMA})),
        "'model' is missing",
    ),
    ("session.json", with_value("frames", "written", "80"), "its 'frames.written' is wrong"),
    ("session.json", with_value("stages", "read", 5), "its 'stages.read' is wrong"),
    ("session.json", with_value("fps", "inference", float("nan")), "NaN is no number"),
    ("passes/memory.json", cut, "damaged"),
    (
        "passes/memory.json",
        lambda path: path.write_text('{"rows": []}'),
        "memory.json: .*`available`",
    ),
    ("spans.npz", lambda path: path.write_text("neither"), "no archive of columns"),
    ("spans.npz", lambda path: path.unlink(), "damaged or missing"),
    ("spans.npz", cut, "damaged or missing"),
    ("spans.npz", other_columns, "damaged or missing"),
    ("spans.npz", uneven, "its columns have"),
]


@pytest.mark.parametrize(("name", "breaking", "message"), BROKEN)
def test_a_broken_session_is_one_line(tmp_path, name, breaking, message):
    folder = saved(tmp_path / "run")
    breaking(folder / name)
    with pytest.raises(UsageError, match=message) as caught:
        read_session(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_figure_that_is_not_there_is_one_line(tmp_path):
    found = read_session(saved(tmp_path / "run"))
    with (
        pytest.raises(UsageError, match="it lacks 'nothing'; read it with the version"),
        complete(found),
    ):
        found.document["nothing"]
