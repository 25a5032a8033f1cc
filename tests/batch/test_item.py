"""Process one item, which leaves complete results or none. Resume a job of very many items."""

import os
from unittest.mock import Mock

import pytest

from detector.batch.item import OpenModel, Task, open_model, process_item
from detector.batch.listing import version_of
from detector.batch.places import open_outputs
from detector.batch.settings import as_plain, ask
from detector.core.errors import OutputError, SourceError
from tests.batch.many import cost_of, make_sources, pretend_done
from tests.batch.pools import list_files
from tests.cli.small import write_network
from tests.sources.clips import write_video


@pytest.fixture
def model(tmp_path):
    """A model with the null engine, since these tests need no detections."""
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


@pytest.mark.slow
def test_results_and_marker_get_their_final_names_together(tmp_path, model, task):
    progress, gathered = [], []
    outputs = open_outputs(str(tmp_path / "out"))
    record = process_item(
        task,
        model,
        outputs,
        gather=lambda name, rows: gathered.append(
            (name, rows.exists(), list_files(tmp_path / "out"))
        ),
        watch=progress.append,
    )
    assert outputs.read_marker(task.name) == record
    assert progress == [1, 2, 3, 4, 5, 6]
    assert (record.frames, record.exit.code) == (6, 0)
    assert record.outputs == {"jsonl": "detections.jsonl"}
    assert record.ledger.stages["infer"].calls == 6
    assert list_files(tmp_path / "out") == [
        "files/sub/a.mp4/detections.jsonl",
        "files/sub/a.mp4/done.json",
    ]
    [(name, rows_exist, before)] = gathered
    assert (name, rows_exist) == (task.name, True)
    assert not any(path.startswith("files") for path in before)  # the dataset gets the rows first


@pytest.mark.slow
def test_source_that_changes_during_the_run_raises_and_leaves_no_result(tmp_path, model, task):
    def touch(frames):
        os.utime(task.path, ns=(frames, frames))

    with pytest.raises(SourceError, match="changed"):
        process_item(task, model, open_outputs(str(tmp_path / "out")), watch=touch)
    assert list_files(tmp_path / "out") == []


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, b"", b"text"], ids=["gone", "empty", "text"])
def test_unreadable_source_raises_and_leaves_no_result(tmp_path, model, task, content):
    os.unlink(task.path)
    if content is not None:
        (tmp_path / "a.mp4").write_bytes(content)
    with pytest.raises(SourceError):
        process_item(task, model, open_outputs(str(tmp_path / "out")))
    assert list_files(tmp_path / "out") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "error"), [("gather", OutputError("disk full")), ("watch", SystemExit(143))]
)
def test_failed_gather_or_terminated_worker_leaves_no_result(tmp_path, model, task, hook, error):
    hooks = {hook: Mock(side_effect=error)}
    with pytest.raises(type(error)):
        process_item(task, model, open_outputs(str(tmp_path / "out")), **hooks)
    assert list_files(tmp_path / "out") == []


@pytest.mark.slow
def test_model_reopened_with_its_settings_has_the_same_digest(tmp_path, model):
    opened, facts = open_model(as_plain(model.config), [], resolves=False)
    try:
        assert isinstance(opened, OpenModel)
        assert opened.digest == model.digest
        assert facts.config == as_plain(model.config)
    finally:
        opened.close()


@pytest.mark.slow
def test_resume_of_1500_items_processes_only_the_unfinished_two(tmp_path):
    write_network(tmp_path)
    make_sources(tmp_path / "in", 1500)
    write_video(tmp_path / "clip.mp4", 3)
    out, flags = str(tmp_path / "out"), ("--engine", "null", "--no-video", "--workers", "1")
    first = cost_of(
        str(tmp_path / "clip.mp4"), "-o", out, "--model", str(tmp_path / "x.cfg"), *flags
    )
    assert first.document["items"]["done"] == 1
    pretend_done(tmp_path / "in", tmp_path / "out", left=2)
    again = cost_of(str(tmp_path / "in"), "-o", out, "--resume")
    items = again.document["items"]
    assert (items["skipped"], items["done"], items["failed"]) == (1498, 0, 2)  # neither is a video
    assert again.document["exit"]["code"] == 7
