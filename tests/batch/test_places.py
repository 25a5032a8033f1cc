"""Output folders: results appear only when complete, and one job runs at a time."""

import os
from contextlib import ExitStack

import pytest

from detector.batch.item import Task
from detector.batch.layout import is_running, locked
from detector.batch.listing import WHOLE, Shard
from detector.batch.places import LocalOutputs, make_output_folder, open_outputs
from detector.core.errors import OutputError, UsageError
from tests.batch.pools import list_files, place_results, record_of

TASK = Task(name="sub/a.mp4", path="/in/sub/a.mp4", version="10-1")


@pytest.fixture
def outputs(tmp_path):
    make_output_folder(str(tmp_path / "out"))
    return LocalOutputs(str(tmp_path / "out"))


def test_results_and_marker_appear_together(outputs):
    assert outputs.read_marker(TASK.name) is None
    record = place_results(TASK, outputs, "d")
    assert list_files(outputs.place) == [
        "files/sub/a.mp4/detections.jsonl",
        "files/sub/a.mp4/done.json",
    ]
    assert outputs.read_marker(TASK.name) == record
    assert os.listdir(outputs.place) == ["files"]


def record_disk_calls(monkeypatch) -> list[str]:
    """Record each later fsync and rename in the returned list."""
    events = []
    fsync, rename = os.fsync, os.rename

    def synced(file):
        fsync(file)
        path = os.readlink(f"/proc/self/fd/{file}")
        whole = os.path.isfile(path) and os.path.getsize(path) > 0
        events.append(os.path.basename(path) if whole else "a folder")

    def renamed(source, target):
        rename(source, target)
        events.append("renamed")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    return events


def test_marker_is_synced_before_the_folder_is_renamed(outputs, monkeypatch):
    """Otherwise a power loss could leave an empty marker in a folder of finished results."""
    events = record_disk_calls(monkeypatch)
    place_results(TASK, outputs, "d")
    assert events == ["done.json", "renamed", "a folder"]


def test_old_results_stay_until_the_new_ones_replace_them(outputs):
    place_results(TASK, outputs, "old")
    scratch = outputs.begin(TASK.name)
    (scratch / "other.txt").write_text("x")
    assert outputs.read_marker(TASK.name).settings == "old"  # until the commit
    outputs.commit(TASK.name, scratch, record_of(TASK, "new"))
    assert list_files(outputs.place) == ["files/sub/a.mp4/done.json", "files/sub/a.mp4/other.txt"]
    assert outputs.read_marker(TASK.name).settings == "new"


def test_next_try_removes_files_of_a_killed_worker(outputs):
    (outputs.begin(TASK.name) / "half").write_text("x")
    scratch = outputs.begin(TASK.name)
    assert list(scratch.iterdir()) == []
    assert list_files(outputs.place) == []
    (scratch / "half").write_text("x")
    outputs.discard_all()
    assert os.listdir(outputs.place) == ["files"]


def test_scratch_folder_is_as_deep_as_the_results_folder(outputs):
    """A page (--save player) has a relative path to its video, which the rename must keep valid."""
    for name in ("a.mp4", "b/a.mp4", "b/c/d/a.mp4"):
        scratch = outputs.begin(name)
        assert len(scratch.parts) == len(outputs.folder(name).parts)


def test_reading_a_damaged_marker_returns_none(outputs):
    place_results(TASK, outputs, "d")
    (outputs.folder(TASK.name) / "done.json").write_text('{"schema": 1')
    assert outputs.has_marker(TASK.name)
    assert outputs.read_marker(TASK.name) is None


def test_remove_deletes_empty_parent_folders(outputs):
    place_results(TASK, outputs, "d")
    place_results(Task(name="b.mp4", path="/in/b.mp4", version="1-1"), outputs, "d")
    outputs.remove(TASK.name)
    outputs.remove(TASK.name)
    assert os.listdir(os.path.join(outputs.place, "files")) == ["b.mp4"]


def test_read_only_or_chained_address_is_refused_as_output():
    for place, reason in (
        ("ftp://host/out", "mount"),
        ("https://host/out", "read-only"),
        ("s3://out/a::b", "chained"),
    ):
        with pytest.raises(UsageError, match=reason):
            open_outputs(place)


def test_file_at_the_output_path_is_refused(tmp_path):
    (tmp_path / "out").write_text("x")
    with pytest.raises(OutputError, match="out"):
        make_output_folder(str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("running", "refused"),
    [
        ([WHOLE], [WHOLE, Shard(1, 2)]),
        ([Shard(1, 3), Shard(2, 3)], [WHOLE, Shard(1, 3), Shard(1, 2)]),
    ],
)
def test_only_different_shards_with_the_same_n_may_run_together(tmp_path, running, refused):
    place = str(tmp_path)
    assert not is_running(place)
    with ExitStack() as locks:
        for shard in running:
            locks.enter_context(locked(place, shard))
        assert is_running(place)
        for shard in refused:
            with pytest.raises(OutputError, match="running"), locked(place, shard):
                pass
    assert not is_running(place)
    with locked(place, Shard(1, 2)):
        pass
