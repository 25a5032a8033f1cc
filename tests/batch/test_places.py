"""Results get their names only when they are whole, and a folder has one job at a time."""

from __future__ import annotations

import os

import pytest

from detector.batch.item import Task
from detector.batch.layout import is_running, locked
from detector.batch.listing import WHOLE, Shard
from detector.batch.places import LocalOutputs, make_output_folder, open_outputs
from detector.core.errors import OutputError, UsageError
from tests.batch.pools import place_results, record_of

TASK = Task(name="sub/a.mp4", path="/in/sub/a.mp4", version="10-1")


@pytest.fixture
def outputs(tmp_path):
    make_output_folder(str(tmp_path / "out"))
    return LocalOutputs(str(tmp_path / "out"))


def tree(outputs):
    return sorted(
        os.path.relpath(os.path.join(folder, name), outputs.place)
        for folder, _, names in os.walk(outputs.place)
        for name in names
    )


def test_results_stand_whole_with_their_marker(outputs):
    assert outputs.read_marker(TASK.name) is None
    record = place_results(TASK, outputs, "d")
    assert tree(outputs) == ["files/sub/a.mp4/detections.jsonl", "files/sub/a.mp4/done.json"]
    assert outputs.read_marker(TASK.name) == record
    assert os.listdir(outputs.place) == ["files"]


def note_disk_calls(monkeypatch) -> list[str]:
    """Record files that are synced and names that are given, from now on."""
    happened = []
    fsync, rename = os.fsync, os.rename

    def synced(file):
        fsync(file)
        path = os.readlink(f"/proc/self/fd/{file}")
        whole = os.path.isfile(path) and os.path.getsize(path) > 0
        happened.append(os.path.basename(path) if whole else "a folder")

    def renamed(source, target):
        rename(source, target)
        happened.append("renamed")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    return happened


def test_a_marker_reaches_the_disk_before_its_item_gets_its_name(outputs, monkeypatch):
    """After a power loss a name without content would be an item that is done and damaged."""
    happened = note_disk_calls(monkeypatch)
    place_results(TASK, outputs, "d")
    assert happened == ["done.json", "renamed", "a folder"]


def test_results_of_another_version_are_replaced(outputs):
    place_results(TASK, outputs, "old")
    scratch = outputs.begin(TASK.name)
    (scratch / "other.txt").write_text("x")
    assert outputs.read_marker(TASK.name).settings == "old"  # until the new ones are whole
    outputs.commit(TASK.name, scratch, record_of(TASK, "new"))
    assert tree(outputs) == ["files/sub/a.mp4/done.json", "files/sub/a.mp4/other.txt"]
    assert outputs.read_marker(TASK.name).settings == "new"


def test_what_a_killed_worker_left_is_removed_by_the_next_try(outputs):
    (outputs.begin(TASK.name) / "half").write_text("x")
    scratch = outputs.begin(TASK.name)
    assert list(scratch.iterdir()) == []
    assert tree(outputs) == []
    (scratch / "half").write_text("x")
    outputs.discard_all()
    assert os.listdir(outputs.place) == ["files"]


def test_scratch_is_as_deep_as_the_results_will_be(outputs):
    """A relative path from the results to the source, for a player, then stays valid."""
    for name in ("a.mp4", "b/a.mp4", "b/c/d/a.mp4"):
        scratch = outputs.begin(name)
        assert len(scratch.parts) == len(outputs.folder(name).parts)


def test_a_damaged_marker_is_none(outputs):
    place_results(TASK, outputs, "d")
    (outputs.folder(TASK.name) / "done.json").write_text('{"schema": 1')
    assert outputs.has_marker(TASK.name)
    assert outputs.read_marker(TASK.name) is None


def test_removing_takes_empty_folders_along(outputs):
    place_results(TASK, outputs, "d")
    place_results(Task(name="b.mp4", path="/in/b.mp4", version="1-1"), outputs, "d")
    outputs.remove(TASK.name)
    outputs.remove(TASK.name)
    assert os.listdir(os.path.join(outputs.place, "files")) == ["b.mp4"]


def test_a_place_that_cannot_be_written_is_refused():
    for place, why in (
        ("ftp://host/out", "mount"),
        ("https://host/out", "read-only"),
        ("s3://out/a::b", "chained"),
    ):
        with pytest.raises(UsageError, match=why):
            open_outputs(place)


def test_file_at_the_output_path_is_refused(tmp_path):
    (tmp_path / "out").write_text("x")
    with pytest.raises(OutputError, match="out"):
        make_output_folder(str(tmp_path / "out"))


def test_one_job_at_a_time(tmp_path):
    place = str(tmp_path)
    assert not is_running(place)
    with locked(place, WHOLE):
        assert is_running(place)
        for shard in (WHOLE, Shard(1, 2)):
            with pytest.raises(OutputError, match="running"), locked(place, shard):
                pass
    assert not is_running(place)
    with locked(place, WHOLE):
        pass


def test_shards_of_one_division_side_by_side(tmp_path):
    place = str(tmp_path)
    with locked(place, Shard(1, 3)), locked(place, Shard(2, 3)):
        assert is_running(place)
        for shard in (WHOLE, Shard(1, 3), Shard(1, 2)):
            with pytest.raises(OutputError, match="running"), locked(place, shard):
                pass
    with locked(place, Shard(1, 2)):
        pass
