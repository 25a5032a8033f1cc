"""Reading saved sessions, and the errors of damaged ones."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from detector.core.errors import UsageError
from detector.core.session.codec import SCHEMA, to_json
from detector.core.session.store import Session
from detector.core.timeline.rows import NOT_KNOWN
from detector.core.timeline.spans import KINDS
from detector.core.timeline.timeline import Timeline
from detector.lab.session.columns import COLUMNS, THREAD_TIMES
from detector.lab.session.read import read_session
from tests.attacks.sessions import npz_of_headers
from tests.session.documents import DOCUMENT, STAGE, document

TRILLION = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,), }\n"


def save_session(folder):
    timeline = Timeline(nvtx=False)
    with timeline.track("main") as track, track.span("read", 0):
        pass
    session = Session.create(str(folder), "x")
    session.write_spans([timeline])
    session.write_json("session.json", document())
    session.write_pass("memory", {"available": False, "reason": "made by hand"})
    return folder


def test_session_equals_itself_after_writing_and_reading(tmp_path):
    session = read_session(save_session(tmp_path / "run"))
    assert session.document == document()
    assert session.spans["stage_names"].tolist() == ["read"]
    assert len(session.spans["start_ns"]) == len(session.spans["kind"])


def test_written_document_keeps_key_order_and_omits_absent_keys():
    written = json.loads(to_json(document()))
    assert [key for key in written if key in DOCUMENT] == list(DOCUMENT)
    assert {key: written[key] for key in DOCUMENT}["frames"] == DOCUMENT["frames"]
    assert "sources" not in written
    assert "kind" not in written["video"]


def test_session_of_an_older_version_is_read(tmp_path):
    folder = save_session(tmp_path / "run")
    for names in (("fps", "device"), ("environment",), ("model_sha256",), ("pid",)):
        without(*names)(folder / "session.json")
    document_read = read_session(folder).document
    assert (
        document_read.fps.device,
        document_read.model_sha256,
        document_read.environment.cpu.model,
    ) == (None, None, None)


def test_loop_of_a_source_that_failed_to_open_is_empty():
    assert document(loop=[*DOCUMENT["loop"], {}]).loop[1] == {}


def truncate(path):
    path.write_bytes(path.read_bytes()[:20])


def write_other_columns(path):
    np.savez(path, a=np.zeros(3))


def shorten_column(path):
    with np.load(path) as file:
        columns = dict(file)
    columns["thread"] = columns["thread"][:-1]
    np.savez(path, **columns)


def with_column(name, column):
    def change(path):
        with np.load(path) as file:
            columns = dict(file)
        np.savez(path, **{**columns, name: column})

    return change


def with_header(name, header):
    def change(path):
        with np.load(path) as file:
            columns = dict(file)
        path.write_bytes(npz_of_headers(columns, name, header, bytes(8)))

    return change


def with_invalid_letter(code):
    """Write a thread name that is one letter with this code point, which may be invalid."""
    return with_column("thread_names", np.array([code], np.uint32).view("U1"))


def write_frame_that_ends_before_it_is_read(path):
    numbers = {"thread": 0, "kind": 0, "source": 0, "index": 3}
    columns = {name: np.full(2, number) for name, number in numbers.items()}
    columns |= {"stage": np.array([1, 0]), "start_ns": np.array([10, 40])}
    columns |= {"end_ns": columns["start_ns"] + 5, "stage_names": np.array(["read", "write"])}
    columns |= {"thread_names": np.array(["main"]), "kind_names": np.array(KINDS)}
    columns |= {name: np.full(2, NOT_KNOWN) for name in THREAD_TIMES}
    np.savez(path, **columns)


def write_zip_bomb(path):
    zeros = np.zeros(800_000, np.int64)
    np.savez_compressed(path, **{name: zeros for name in COLUMNS})


def with_value(group, name, value):
    def change(path):
        content = json.loads(path.read_text())
        content[group][name] = value
        path.write_text(json.dumps(content))

    return change


def without(*names):
    def change(path):
        content = json.loads(path.read_text())
        *groups, last = names
        place = content
        for name in groups:
            place = place[name]
        del place[last]
        path.write_text(json.dumps(content))

    return change


DAMAGES = [
    ("session.json", lambda path: path.unlink(), "no session.json in it"),
    ("session.json", truncate, "not valid JSON"),
    ("session.json", lambda path: path.write_text("[1]"), "no 'schema'"),
    ("session.json", lambda path: path.write_text('{"stages": {}}'), "no 'schema'"),
    ("session.json", lambda path: path.write_text('{"schema": 99}'), "schema 99"),
    ("session.json", lambda path: path.write_bytes(b"\xff\xfe\x00"), "not valid JSON"),
    (
        "session.json",
        lambda path: path.write_text(json.dumps({"stages": {}, "schema": SCHEMA})),
        "missing required field `model`",
    ),
    ("session.json", with_value("frames", "written", "80"), r"\$.frames.written"),
    ("session.json", with_value("stages", "read", 5), r"\$.stages"),
    ("session.json", with_value("fps", "inference", float("nan")), "NaN is not a JSON number"),
    ("session.json", without("cpu"), "`cpu`"),
    ("session.json", without("clocks", "unix_ns"), "`unix_ns`.*clocks"),
    ("session.json", without("loop", 0, "results"), r"loop\[0\].*'results'"),
    ("session.json", without("threads", "reader"), "threads.*'reader'"),
    ("session.json", without("video"), "lacks 'sources'"),
    ("session.json", without("outputs"), "lacks 'outputs'"),
    ("passes/memory.json", truncate, "damaged"),
    (
        "passes/memory.json",
        lambda path: path.write_text('{"rows": []}'),
        "memory.json: .*`available`",
    ),
    (
        "passes/memory.json",
        lambda path: path.write_text('{"available": true, "start_mb": 1.0}'),
        r"memory\.json: .*missing",
    ),
    ("spans.npz", lambda path: path.write_text("neither"), "damaged or missing"),
    ("spans.npz", lambda path: path.unlink(), "damaged or missing"),
    ("spans.npz", truncate, "damaged or missing"),
    ("spans.npz", write_other_columns, "damaged or missing"),
    ("spans.npz", shorten_column, "its columns differ in length"),
    ("spans.npz", with_column("thread", np.array(0)), "'thread'"),
    ("spans.npz", with_column("start_ns", np.array([0.5])), "'start_ns'"),
    ("spans.npz", with_column("index", np.array([{}], object)), "'index'"),
    ("spans.npz", with_column("thread", np.array([0, 7, 0])), "'thread'"),
    ("spans.npz", with_column("source", np.array([0, 1, 0])), "'source'"),
    ("spans.npz", with_column("end_ns", np.array([9, -5, 9])), "'end_ns'"),
    ("spans.npz", with_column("kind_names", np.array(["work"])), "'kind_names'"),
    ("spans.npz", with_column("thread_names", np.array(["somebody"])), "thread_names"),
    ("spans.npz", with_invalid_letter(0x110000), "'thread_names' has invalid"),
    ("spans.npz", with_invalid_letter(0xD800), "'thread_names' has invalid"),
    ("spans.npz", with_header("end_ns", TRILLION), "'end_ns'"),
    ("spans.npz", with_header("end_ns", b"("), "'end_ns'"),
    ("spans.npz", write_zip_bomb, "claim to expand to"),
    (
        "spans.npz",
        write_frame_that_ends_before_it_is_read,
        "'index': frame 3 ends before it is read",
    ),
    ("session.json", with_value("seconds", "run", -1.0), r"\$.seconds"),
    ("session.json", with_value("seconds", "run", 1e300), r"\$.seconds.run"),
    ("session.json", with_value("clocks", "unix_ns", 10**300), "digits"),
    ("session.json", with_value("cpu", "cores", 0), r"\$.cpu.cores"),
    ("session.json", with_value("frames", "written", 9), "frames.read"),
    ("session.json", with_value("threads", "thread-9", None), r"\$.threads"),
    (
        "session.json",
        with_value("stages", "Sleep <b>", {**STAGE, "thread": "", "busy_s": 0, "cpu_s": 0}),
        "'Sleep <b>'",
    ),
    ("session.json", with_value("detections", "total", 9), "detections.total"),
    ("session.json", lambda path: path.write_text("[" * 200_000), "nested more than"),
    ("session.json", lambda path: path.write_text("[" * 99 + "]" * 99), "nested"),
    ("session.json", lambda path: path.write_text('{"schema": 1, "a": 1e999}'), r"\$\.a"),
]


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGES)
def test_damaged_session_is_a_one_line_error(tmp_path, name, damage, message):
    folder = save_session(tmp_path / "run")
    damage(folder / name)
    with pytest.raises(UsageError, match=message) as caught:
        read_session(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_report_without_a_name_uses_the_last_run(tmp_path, monkeypatch):
    """A source has sessions ``runs/in`` and ``runs/in-2``. ``--engine`` adds ``runs/in-ENGINE``."""
    from detector.lab.commands import report

    monkeypatch.chdir(tmp_path)
    folders = []

    def read(folder):
        folders.append(folder)
        raise UsageError("seen")

    monkeypatch.setattr("detector.lab.session.read.read_session", read)
    for at, name in enumerate(("in-null", "in-2", "in")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "session.json").write_text("{}")
        os.utime(tmp_path / "runs" / name / "session.json", (1000 + at, 1000 + at))
        assert CliRunner().invoke(report.command, []).exit_code == 2
        assert folders.pop() == str(Path("runs", name))
    assert not folders
