"""The steps that workers do for an item that is split into parts. Together the steps write what a
single run writes. An item that cannot be split, or whose parts are damaged, gets a single run."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from unittest.mock import Mock

import pytest

from detector.batch import pieces, worker
from detector.batch.documents import ItemRecord
from detector.batch.item import NOT_SPLIT, OpenModel, Piece, Task, process_item
from detector.batch.listing import version_of
from detector.batch.part import ROWS
from detector.batch.places import LocalOutputs
from detector.core.errors import OutputError, SourceError
from detector.core.run.child import receive
from tests.batch.killing import list_differences, list_faults
from tests.batch.splitting import (
    checksum_model,
    make_config,
    make_long_video,
    stamps_of,
    write_clip,
)
from tests.cli.command import detect_video
from tests.waiting import wait_for

PLAN = Piece(do="plan", most=3, least_s=0.1)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("steps") / "in.mp4", sound=True)


@pytest.fixture
def model() -> Iterator[OpenModel]:
    opened = OpenModel(make_config("jsonl"), checksum_model(), "digest")
    yield opened
    opened.close()


@pytest.fixture
def outputs(tmp_path: Path) -> LocalOutputs:
    (tmp_path / "out").mkdir()
    return LocalOutputs(str(tmp_path / "out"))


def task_of(path: Path) -> Task:
    return Task(name="cam/a.mp4", path=str(path), version=version_of(path.stat()))


def do(task: Task, model: OpenModel, outputs: LocalOutputs, piece: Piece, **more) -> ItemRecord:
    return process_item(replace(task, piece=piece), model, outputs, **more)


def do_parts(task: Task, model: OpenModel, outputs: LocalOutputs, count: int) -> list[ItemRecord]:
    """Run detection on each part, the last part first. Return the records in the parts' order."""
    records = [
        do(task, model, outputs, Piece(do="part", number=number, of=count))
        for number in reversed(range(count))
    ]
    return records[::-1]


def join(count: int) -> Piece:
    return Piece(do="join", of=count)


def parts_folder(outputs: LocalOutputs) -> Path:
    (name,) = pieces.find_folders(outputs.place)
    return Path(outputs.place, name)


def rows_of(outputs: LocalOutputs) -> bytes:
    return (outputs.folder("cam/a.mp4") / "detections.jsonl").read_bytes()


def run_whole(task: Task, model: OpenModel, place: Path) -> tuple[LocalOutputs, ItemRecord]:
    place.mkdir()
    outputs = LocalOutputs(str(place))
    return outputs, process_item(task, model, outputs)


@pytest.mark.slow
def test_detection_on_parts_uses_the_canvas_of_their_file(clip, model, outputs, monkeypatch):
    """The parts use the model for the file's canvas, not the model for the default canvas."""
    fitting, paths = checksum_model(), []
    monkeypatch.setattr(OpenModel, "loaded_for", lambda _, path: paths.append(path) or fitting)
    for request in fitting.engine.requests:
        monkeypatch.setattr(request, "infer", Mock(side_effect=request.infer))
    task = task_of(clip)
    do(task, model, outputs, PLAN)
    do_parts(task, model, outputs, 3)
    assert paths == [str(clip)] * 3
    assert any(request.infer.called for request in fitting.engine.requests)
    do(task, model, outputs, join(3))
    assert rows_of(outputs)


@pytest.mark.slow
def test_joined_steps_write_what_a_single_run_writes(clip, model, outputs, tmp_path):
    model.config = make_config("jsonl", "video", "csv", batch=2)
    model.loaded = checksum_model(2)
    task, gathered = task_of(clip), []
    planned = do(task, model, outputs, PLAN)
    assert (planned.parts, planned.frames) == (3, 0)
    steps = do_parts(task, model, outputs, 3)
    assert sum(step.frames for step in steps) == 60

    def gather(name: str, rows: Path) -> None:
        gathered.append((name, rows.read_bytes()))

    joined = do(task, model, outputs, join(3), gather=gather)
    marker = outputs.read_marker(task.name)
    whole, record = run_whole(task, model, tmp_path / "whole")
    assert rows_of(outputs) == rows_of(whole)
    assert gathered == [(task.name, rows_of(whole))]
    for name in ("frames", "detections", "outputs", "key", "size", "version", "exit", "notes"):
        assert getattr(marker, name) == getattr(record, name), name
    ours, theirs = (one.folder(task.name) for one in (outputs, whole))
    assert sorted(os.listdir(ours)) == sorted(os.listdir(theirs))
    assert (ours / "detections.csv").read_bytes() == (theirs / "detections.csv").read_bytes()
    assert stamps_of(ours / "video.mp4") == stamps_of(theirs / "video.mp4")
    # The costs of the parts are added up.
    assert (joined.frames, joined.parts, marker.parts) == (0, 3, 3)
    assert marker.seconds == pytest.approx(joined.seconds + sum(one.seconds for one in steps))
    assert marker.ledger.stages["infer"].calls == sum(
        one.ledger.stages["infer"].calls for one in steps
    )
    assert marker.ledger.cpu_s >= joined.ledger.cpu_s
    assert os.listdir(outputs.place) == ["files"]


def test_finished_part_is_not_repeated(clip, model, outputs):
    task = task_of(clip)
    do(task, model, outputs, PLAN)
    first = do(task, model, outputs, Piece(do="part", number=1, of=3))
    assert first.frames > 0
    assert 0 < first.ledger.infer_s < first.seconds
    written = (parts_folder(outputs) / "part-1" / ROWS).stat()
    # A resumed job plans again, and gets the stored plan.
    assert do(task, model, outputs, replace(PLAN, most=2)).parts == 3
    again = do(task, model, outputs, Piece(do="part", number=1, of=3))
    assert (again.frames, again.parts, again.ledger.cpu_s) == (0, 3, 0.0)
    assert (parts_folder(outputs) / "part-1" / ROWS).stat() == written


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["rows", "record", "plan"])
def test_damaged_parts_fall_back_to_a_single_run(clip, model, outputs, tmp_path, damage):
    task = task_of(clip)
    do(task, model, outputs, PLAN)
    do_parts(task, model, outputs, 3)
    folder = parts_folder(outputs)
    if damage == "rows":
        rows = folder / "part-1" / ROWS
        rows.write_bytes(rows.read_bytes()[:-3])
    elif damage == "record":
        (folder / "part-1" / pieces.RECORD).unlink()
    else:
        (folder / pieces.PLAN).write_text("{}")
    record = do(task, model, outputs, join(3))
    assert (record.parts, record.frames) == (0, 60)
    (note,) = record.notes
    assert note.startswith(NOT_SPLIT)
    whole, _ = run_whole(task, model, tmp_path / "whole")
    assert rows_of(outputs) == rows_of(whole)


@pytest.mark.parametrize(
    ("piece", "options", "reason"),
    [
        (replace(PLAN, least_s=60.0), {}, ""),  # no note, since this is the usual case
        (replace(PLAN, most=0), {}, ""),
        (PLAN, {"skip_still": "1%"}, "--skip-still"),
        (Piece(do="whole", why="it is so"), {}, "it is so"),
    ],
    ids=["too short", "too few parts", "skip-still", "job says whole"],
)
def test_item_that_is_not_split_needs_only_one_step(clip, model, outputs, piece, options, reason):
    model.config = make_config("jsonl", **options)
    record = do(task_of(clip), model, outputs, piece)
    assert (record.parts, record.frames) == (0, 60)
    noted = [note for note in record.notes if note.startswith(NOT_SPLIT)]
    assert len(noted) == bool(reason)
    assert all(reason in note for note in noted)
    assert os.listdir(outputs.place) == ["files"]


def test_changed_source_raises_and_leaves_no_part(clip, model, outputs, tmp_path):
    path = tmp_path / "changing.mp4"
    path.write_bytes(clip.read_bytes())
    task = task_of(path)
    do(task, model, outputs, PLAN)

    def touch(frames):
        os.utime(path, ns=(frames, frames))

    with pytest.raises(SourceError, match="changed"):
        do(task, model, outputs, Piece(do="part", number=1, of=3), watch=touch)
    with pytest.raises(SourceError, match="changed"):
        do(task, model, outputs, Piece(do="part", number=1, of=3))
    assert [path.name for path in parts_folder(outputs).iterdir()] == [pieces.PLAN]
    # A file that changed since it was listed is not divided: the worker processes it whole.
    assert do(task, model, outputs, PLAN).frames == 60


def test_terminated_part_leaves_no_files(clip, model, outputs):
    task = task_of(clip)
    do(task, model, outputs, PLAN)

    def leave(frames):
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        do(task, model, outputs, Piece(do="part", number=0, of=3), watch=leave)
    assert [path.name for path in parts_folder(outputs).iterdir()] == [pieces.PLAN]


def test_parts_are_kept_if_the_join_cannot_be_written(clip, model, outputs):
    task = task_of(clip)
    do(task, model, outputs, PLAN)
    do_parts(task, model, outputs, 3)

    def fail(name, rows):
        raise OutputError("disk full")

    with pytest.raises(OutputError, match="disk full"):
        do(task, model, outputs, join(3), gather=fail)
    assert [path.name for path in Path(outputs.place).iterdir()] == [parts_folder(outputs).name]
    assert do(task, model, outputs, join(3)).parts == 3
    assert outputs.read_marker(task.name).frames == 60


def test_planning_and_joining_report_progress(clip, model, outputs):
    task, heartbeats = task_of(clip), []
    do(task, model, outputs, PLAN, watch=heartbeats.append)
    assert heartbeats
    assert set(heartbeats) == {0}
    do_parts(task, model, outputs, 3)
    planned = len(heartbeats)
    do(task, model, outputs, join(3), watch=heartbeats.append)
    assert len(heartbeats) > planned
    assert set(heartbeats) == {0}


def test_worker_sends_heartbeats_while_it_has_no_frames(monkeypatch):
    monkeypatch.setattr(worker, "BEAT_S", 0.01)
    parent, own = Pipe()
    reporter = worker._Reporter(own)
    wait_for(lambda: reporter.watch(0) or parent.poll(), what="a heartbeat")
    answer = receive(parent, worker.PoolReply)
    assert (answer.kind, answer.frames) == ("frames", 0)


@pytest.mark.slow
def test_two_workers_on_one_file_give_the_rows_of_a_single_run(tmp_path):
    path = make_long_video(tmp_path / "in/long.mp4", 6.0, 160, 30)
    done = detect_video(
        *("batch", tmp_path / "in", "-o", tmp_path / "out", "--json", "--workers", 2),
        *("--split", 1, "--engine", "ort", "--precision", "fp32", "--size", "128x96"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["items"]["done"], result["frames"]) == (1, 150)
    assert result["workers"] == 2
    assert json.loads((tmp_path / "out/files/long.mp4/done.json").read_text())["parts"] > 2
    assert list_faults(tmp_path / "in", tmp_path / "out", [path]) == []
    (tmp_path / "single").mkdir()
    assert list_differences(tmp_path / "out", tmp_path / "single", ["long.mp4"]) == []
