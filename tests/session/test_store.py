"""The session: a run's folder, with its results."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from detector.core.errors import OutputError
from detector.core.session.document import SpanCounts
from detector.core.session.store import LIST, Session
from detector.core.timeline.timeline import Timeline
from tests.conftest import CHECKOUT
from tests.session.documents import document


def test_taken_session_name_gets_a_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [Session.create(None, "in-ort").folder.name for _ in range(3)]
    assert folders == ["in-ort", "in-ort-2", "in-ort-3"]


def test_reused_folder_holds_one_run_and_keeps_the_users_files(tmp_path):
    rows = tmp_path / "a.jsonl"
    for text in ("old\n", "1\n"):
        rows.write_text(text)
        (tmp_path / "notes.txt").write_text("mine")
        session = Session.create(str(tmp_path), "x")
        session.begin()
        session.adopt(rows)
        assert not (tmp_path / "detections.jsonl").exists()
        session.adopt(rows)
        session.finish_rows()
        session.write_json("session.json", {})
        session.release()
        assert len(session.notes) == (text == "1\n")  # the second run says what it replaced
    assert (tmp_path / "detections.jsonl").read_text() == "1\n1\n"
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_empty_rows_leave_no_file(tmp_path):
    """The file is empty if ``adopt`` failed to copy any rows, because it undoes a failed copy."""
    session = Session.create(str(tmp_path / "r"), "x")
    rows = tmp_path / "a.jsonl"
    rows.write_text("")
    session.adopt(rows)
    session.finish_rows()
    assert not list((tmp_path / "r").rglob("*.jsonl*"))


def test_claim_raises_if_its_folder_cannot_be_created(tmp_path):
    session = Session.create(str(tmp_path / "r"), "x")
    session.begin()
    (tmp_path / "r/layers").write_text("a file in the folder's place")
    with pytest.raises(OutputError, match=r"layers/a\.json"):
        session.claim("layers/a.json")


def test_discard_removes_only_the_folders_it_created(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        Session.create(None, "in-ort").discard()
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "own").mkdir()
    Session.create("own", "x").discard()
    assert (tmp_path / "own").is_dir()
    Session.create("own/deep/er", "x").discard()
    assert list((tmp_path / "own").iterdir()) == []
    (tmp_path / "runs").mkdir()  # empty, but created by the user
    Session.create(None, "in-ort").discard()
    assert (tmp_path / "runs").is_dir()


def test_output_error_is_raised_if_the_runs_folder_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("")
    with pytest.raises(OutputError) as caught:
        Session.create(None, "x")
    assert "9999" not in str(caught.value)


def test_run_dir_that_is_a_file_raises_output_error(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(OutputError, match="--run-dir"):
        Session.create(str(tmp_path / "runs"), "x")


def test_failed_json_write_keeps_the_earlier_file(tmp_path):
    session = Session.create(str(tmp_path), "x")
    session.write_json("summary.json", {"a": 1})
    with pytest.raises(TypeError):
        session.write_json("summary.json", {"a": object()})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"a": 1}


def test_written_spans_can_be_read_back(tmp_path):
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
            spans_of(columns, "read") | (columns["kind"] == 3)
        ].sum()
        assert covered == timeline.tracks["reader"].wall_ns, (
            "top-level spans and the gaps between them add up to the wall time"
        )
        assert (np.diff(columns["start_ns"]) >= 0).all()


def spans_of(columns, name):
    return (columns["stage"] == columns["stage_names"].tolist().index(name)) & (
        columns["kind"] != 3
    )


# Several runs and one folder


def test_folder_in_use_is_refused_with_the_pid_of_the_run_that_uses_it(tmp_path):
    first = Session.create(str(tmp_path / "r"), "x")
    with pytest.raises(OutputError, match=rf"process {os.getpid()}\b"):
        Session.create(str(tmp_path / "r"), "x")
    first.release()
    Session.create(str(tmp_path / "r"), "x").release()


@pytest.mark.slow
def test_session_of_a_killed_run_is_replaced(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from detector.core.session.store import Session\n"
        "session = Session.create(sys.argv[1], 'x')\n"
        "session.begin()\n"
        "session.write_text('summary.json', '{}')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "r")], cwd=CHECKOUT)
    assert killed.returncode == -signal.SIGKILL
    session = Session.create(str(tmp_path / "r"), "x")
    session.begin()
    assert [path.name for path in session.folder.iterdir()] == [LIST]


def test_reopening_a_folder_that_another_run_took_is_refused(tmp_path):
    session = Session.create(str(tmp_path / "r"), "x")
    session.release()
    with Session.reopened(tmp_path / "r") as again:
        again.write_text("evaluation.json", "{}")
    with (tmp_path / "r" / LIST).open("a") as file:
        file.write("pid 1\n")
    with pytest.raises(OutputError, match=r"process 1\b"), Session.reopened(tmp_path / "r"):
        pass


def test_file_that_the_user_created_is_not_overwritten(tmp_path):
    session = Session.create(str(tmp_path / "r"), "x")
    (tmp_path / "r/evaluation.json").write_text("mine")
    with pytest.raises(OutputError):
        session.write_text("evaluation.json", "{}")
    assert (tmp_path / "r/evaluation.json").read_text() == "mine"


@pytest.mark.parametrize("kind", ["pipe", "zeros", "deep"])
def test_odd_file_in_a_session_is_refused_without_blocking(tmp_path, kind):
    session = Session.create(str(tmp_path / "run"), "x")
    session.write_json("session.json", document())
    session.write_pass("memory", {"available": False, "reason": ""})
    session.release()
    path = session.folder / f"passes/{kind}.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zeros":
        path.symlink_to("/dev/zero")
    else:
        path.write_text("[" * 100_000)
    with pytest.raises(OutputError, match=path.name):
        Session.create(str(tmp_path / "run"), "x")
