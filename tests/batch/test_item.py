"""One item: its results are placed, or nothing of it stays. Also the cost of very many items."""

from __future__ import annotations

import os

import pytest

from detector.batch.item import OpenModel, Task, open_model, process_item
from detector.batch.listing import version_of
from detector.batch.places import open_outputs
from detector.batch.settings import as_plain, ask
from detector.core.errors import OutputError, SourceError
from tests.batch.many import cost_of, make_sources, pretend_done
from tests.cli.small import write_network
from tests.sources.clips import write_video


@pytest.fixture
def model(tmp_path):
    """Use the null engine, as the tests are about what surrounds it."""
    write_network(tmp_path)
    flags = {"model": str(tmp_path / "x.cfg"), "engine": "null", "no_video": True}
    config, _ = ask([], flags, None)
    opened, facts = open_model(as_plain(config), [], resolves=True)
    assert facts.config["runtime"]["engine"] == "null"
    assert facts.config["runtime"]["threads"] >= 1
    yield opened
    opened.close()


@pytest.fixture
def task(tmp_path):
    path = write_video(tmp_path / "a.mp4", 6)
    return Task(name="sub/a.mp4", path=str(path), version=version_of(path.stat()))


def places(tmp_path):
    return sorted(
        os.path.relpath(os.path.join(folder, name), tmp_path / "out")
        for folder, _, names in os.walk(tmp_path / "out")
        for name in names
    )


@pytest.mark.slow
def test_results_come_into_place_with_their_marker(tmp_path, model, task):
    seen, gathered = [], []
    outputs = open_outputs(str(tmp_path / "out"))
    record = process_item(
        task,
        model,
        outputs,
        gather=lambda name, rows: gathered.append((name, rows.exists(), places(tmp_path))),
        watch=seen.append,
    )
    assert outputs.read_marker(task.name) == record
    assert seen == [1, 2, 3, 4, 5, 6]
    assert (record.frames, record.exit.code, record.outputs) == (
        6,
        0,
        {"jsonl": "detections.jsonl"},
    )
    assert record.ledger.stages["infer"].calls == 6
    assert places(tmp_path) == ["files/sub/a.mp4/detections.jsonl", "files/sub/a.mp4/done.json"]
    [(name, there, before)] = gathered
    assert (name, there) == (task.name, True)
    assert not any(path.startswith("files") for path in before)  # rows come before the marker


@pytest.mark.slow
def test_source_that_changes_during_the_run_raises_and_leaves_no_result(tmp_path, model, task):
    def touch(frames):
        os.utime(task.path, ns=(frames, frames))

    with pytest.raises(SourceError, match="changed"):
        process_item(task, model, open_outputs(str(tmp_path / "out")), watch=touch)
    assert places(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, b"", b"text"], ids=["gone", "empty", "text"])
def test_nothing_stays_of_what_cannot_be_read(tmp_path, model, task, content):
    os.unlink(task.path)
    if content is not None:
        (tmp_path / "a.mp4").write_bytes(content)
    with pytest.raises(SourceError):
        process_item(task, model, open_outputs(str(tmp_path / "out")))
    assert places(tmp_path) == []


@pytest.mark.slow
def test_nothing_stays_where_the_dataset_cannot_be_written(tmp_path, model, task):
    def fail(name, rows):
        raise OutputError("disk full")

    with pytest.raises(OutputError, match="disk full"):
        process_item(task, model, open_outputs(str(tmp_path / "out")), gather=fail)
    assert places(tmp_path) == []


@pytest.mark.slow
def test_nothing_stays_of_a_worker_that_is_ended(tmp_path, model, task):
    def leave(frames):
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        process_item(task, model, open_outputs(str(tmp_path / "out")), watch=leave)
    assert places(tmp_path) == []


@pytest.mark.slow
def test_a_model_that_is_opened_again_with_its_settings_has_their_digest(tmp_path, model):
    opened, facts = open_model(as_plain(model.config), [], resolves=False)
    try:
        assert isinstance(opened, OpenModel)
        assert opened.digest == model.digest
        assert facts.config == as_plain(model.config)
    finally:
        opened.close()


@pytest.mark.slow
def test_very_many_items_are_counted_and_only_what_is_left_is_done(tmp_path):
    """Times and memory are what scripts/batch_check shows."""
    write_network(tmp_path)
    make_sources(tmp_path / "in", 1500)
    write_video(tmp_path / "clip.mp4", 3)
    out, flags = str(tmp_path / "out"), ("--engine", "null", "--no-video", "--workers", "1")
    first = cost_of(
        str(tmp_path / "clip.mp4"), "-o", out, "--model", str(tmp_path / "x.cfg"), *flags
    )
    assert first.document["items"]["done"] == 1
    pretend_done(tmp_path / "in", tmp_path / "out", but=2)
    again = cost_of(str(tmp_path / "in"), "-o", out, "--resume")
    items = again.document["items"]
    assert (items["skipped"], items["done"], items["failed"]) == (1498, 0, 2)  # not videos
    assert again.document["exit"]["code"] == 7
