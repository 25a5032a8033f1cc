"""Tampered folders of jobs, and the checks that detect the tampering.

``scripts/batch_check tampered`` runs hundreds of random cases.
"""

import errno
import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from detector.batch import dataset, layout, pieces
from detector.batch.documents import Failure
from detector.batch.item import Task
from detector.batch.layout import MARKER, ROWS, SCRATCH, locked
from detector.batch.listing import WHOLE
from detector.batch.manifest import SUPER_JOURNAL, Manifest
from detector.batch.places import LocalOutputs, make_output_folder
from detector.core.errors import OutputError
from detector.core.session.codec import to_json
from detector.core.sinks._partial import explain
from tests.batch import tampering
from tests.batch.pools import place_results

TASK = Task(name="sub/a.mp4", path="/in/sub/a.mp4", version="10-1")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    pytest.importorskip("pyarrow", reason="machine: pyarrow is not installed")
    return tampering.make_job(tmp_path_factory.mktemp("tampered") / "job")


# Regressions: each of these cases once failed.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "seed"),
    [
        (tampering.results_cut, 0),
        (tampering.results_swapped, 4),
        (tampering.scratch_linked, 7),
        (tampering.dataset_linked, 26),
    ],
)
def test_resume_repeats_damaged_items_and_writes_nothing_elsewhere(job, harm, seed):
    result = tampering.try_harm(job, harm, seed)
    assert result.faults == []


# ---- markers and results


@pytest.fixture
def outputs(tmp_path):
    make_output_folder(str(tmp_path / "out"))
    outputs = LocalOutputs(str(tmp_path / "out"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/kept.txt").write_text("mine")
    return outputs


@pytest.fixture
def record(outputs):
    record = place_results(TASK, outputs, "d")
    size = (outputs.folder(TASK.name) / ROWS).stat().st_size
    record = replace(record, sizes={"jsonl": size})
    (outputs.folder(TASK.name) / MARKER).write_text(to_json(record))
    assert outputs.is_done(TASK.name, record.key)
    return record


def change(record, folder, **changes):
    (folder / MARKER).write_text(to_json(replace(record, **changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "b.mp4"},
        {"key": "other"},
        {"schema": 99},
        {"outputs": {}},
        {"outputs": {"jsonl": ROWS, "csv": "absent.csv"}},
        {"outputs": {"jsonl": ROWS, "csv": f"../a.mp4/{ROWS}"}},
        {"outputs": {"jsonl": ROWS, "csv": "/etc/passwd"}},
        {"outputs": {"jsonl": ROWS, "csv": "a\0b"}},
        {"sizes": {"jsonl": 1}},
    ],
)
def test_marker_that_does_not_match_its_item_is_ignored(outputs, record, changes):
    change(record, outputs.folder(TASK.name), **changes)
    assert not outputs.is_done(TASK.name, record.key)


@pytest.mark.parametrize("replacement", ["pipe", "folder", "link", "huge", "rows", "above"])
def test_marker_or_rows_not_written_by_the_job_do_not_count_as_done(
    outputs, record, replacement, tmp_path
):
    folder = outputs.folder(TASK.name)
    marker = folder / MARKER
    if replacement == "huge":
        os.truncate(marker, 1 << 32)
    elif replacement == "rows":
        shutil.move(folder / ROWS, tmp_path / ROWS)
        (folder / ROWS).symlink_to(tmp_path / ROWS)
    elif replacement == "above":
        shutil.move(folder.parent, tmp_path / "elsewhere/sub")
        folder.parent.symlink_to(tmp_path / "elsewhere/sub")
    else:
        shutil.move(marker, tmp_path / MARKER)
        {"pipe": os.mkfifo, "folder": os.mkdir}.get(
            replacement, lambda path: os.symlink(tmp_path / MARKER, path)
        )(marker)
    assert not outputs.is_done(TASK.name, record.key)


def list_elsewhere(tmp_path):
    return sorted(path.name for path in (tmp_path / "elsewhere").rglob("*"))


def test_links_in_place_of_scratch_and_parts_folders_are_replaced(outputs, tmp_path):
    (tmp_path / "out" / outputs._scratch(TASK.name)).symlink_to(tmp_path / "elsewhere")
    place_results(TASK, outputs, "d")
    assert not list((tmp_path / "out").glob(f"{SCRATCH}*"))
    parts = tmp_path / "out" / pieces.folder_name(TASK.name, "k")
    parts.symlink_to(tmp_path / "elsewhere")
    assert pieces.sweep(outputs.place, {parts.name}, None) == set()
    assert not parts.is_symlink()
    assert list_elsewhere(tmp_path) == ["kept.txt"]


def test_results_are_not_written_or_removed_through_a_link(outputs, tmp_path):
    (tmp_path / "out/files/sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="files/sub"):
        place_results(TASK, outputs, "d")
    with pytest.raises(OutputError, match="is a link"):
        outputs.remove(TASK.name)
    assert list_elsewhere(tmp_path) == ["kept.txt"]


def test_partition_is_not_written_or_removed_through_a_link(outputs, record, tmp_path):
    pytest.importorskip("pyarrow", reason="machine: pyarrow is not installed")
    (tmp_path / "elsewhere/detections.parquet").write_text("mine")
    place = dataset.partition(outputs.place, TASK.name)
    place.parent.mkdir()
    place.symlink_to(tmp_path / "elsewhere")
    dataset.remove(outputs.place, TASK.name)
    place.symlink_to(tmp_path / "elsewhere")
    assert dataset.missing(outputs.place, [TASK.name]) == [TASK.name]
    outputs.gather(TASK.name, outputs.folder(TASK.name) / ROWS)
    assert dataset.missing(outputs.place, [TASK.name]) == []
    assert (tmp_path / "elsewhere/detections.parquet").read_text() == "mine"


@pytest.mark.parametrize("name", ["job.json", "manifest.sqlite", "failures-1-of-2.jsonl", "files"])
def test_job_refuses_links_in_place_of_its_own_files(outputs, tmp_path, name):
    shutil.rmtree(tmp_path / "out/files")
    (tmp_path / "out" / name).symlink_to(tmp_path / "elsewhere/kept.txt")
    with pytest.raises(OutputError, match=f"{name}: is a link"), locked(outputs.place, WHOLE):
        pass
    with pytest.raises(OutputError, match=name):  # the link may also appear after the first check
        layout._open_lock(outputs.place, name)


# ---- the manifest


@pytest.fixture
def manifest(tmp_path):
    path = tmp_path / "manifest.sqlite"
    opened = Manifest.open(path)
    opened.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "INSERT INTO items (name, path, size, version, key, state) VALUES "
            "('a.mp4', '/in/a.mp4', 1, 'v', 'k', 'done')"
        )
        connection.commit()
    Manifest.open(path).close()
    return path


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE items SET name = '../../a.mp4'",
        "UPDATE items SET name = '/etc/x'",
        "UPDATE items SET name = 'a/./b'",
        "UPDATE items SET name = x'ff'",
        "UPDATE items SET name = 'a' || char(0)",
        "UPDATE items SET path = x'ff'",
        "UPDATE items SET size = 'x'",
        "UPDATE items SET tries = -1",
        "UPDATE items SET exit_code = 256",
        "UPDATE items SET seconds = 'x'",
        "UPDATE items SET state = 'other'",
        "UPDATE items SET error = 5.5, finished = 'x'",
        "INSERT INTO items SELECT 'b.mp4', path, size, version, key, state, tries, frames, "
        "seconds, damaged, error, exit_code, finished FROM items",
        "INSERT INTO items SELECT 'a.mp4/b.mp4', '/in/b.mp4', size, version, key, state, tries, "
        "frames, seconds, damaged, error, exit_code, finished FROM items",
        "INSERT INTO refused VALUES ('x', x'ff', 1)",
        "INSERT INTO facts VALUES ('settings', x'ff')",
        "CREATE TRIGGER t BEFORE INSERT ON items BEGIN SELECT RAISE(IGNORE); END",
        "ALTER TABLE items ADD COLUMN more TEXT",
        "DROP TABLE refused",
        "CREATE VIEW more AS SELECT 1",
    ],
)
def test_manifest_with_invalid_content_is_refused(manifest, statement):
    with closing(sqlite3.connect(manifest)) as connection:
        connection.execute(statement)
        connection.commit()
    with pytest.raises(OutputError, match="--resume"):
        Manifest.open(manifest)
    with pytest.raises(OutputError, match="--resume"), Manifest.reading(manifest):
        pass


def test_full_disk_is_reported_as_disk_full(tmp_path):
    with closing(Manifest.open(tmp_path / "m.sqlite")) as opened:
        opened._connection.execute("PRAGMA max_page_count = 1")  # the file cannot grow
        with pytest.raises(OutputError, match=r"disk full: .*m\.sqlite needs more space"):
            opened.refuse([Failure(source="x", error="y" * 1_000_000, tries=0)])


def test_error_for_too_many_open_files_names_the_limit_to_raise(tmp_path):
    message = explain(OSError(errno.EMFILE, "Too many open files"), tmp_path / "x")
    assert message.endswith("Too many open files; raise the limit: ulimit -n 4096")


def test_journal_that_names_another_file_is_refused(manifest, tmp_path):
    """SQLite would delete the named file while it rolls back the transaction of the journal."""
    manifest.with_name("manifest.sqlite-journal").write_bytes(b"x" * 600 + SUPER_JOURNAL)
    with pytest.raises(OutputError, match="another file"):
        Manifest.open(manifest)


@pytest.mark.parametrize("suffix", ["", "-journal", "-wal"])
@pytest.mark.parametrize("replacement", ["link", "pipe"])
def test_manifest_that_is_a_link_or_pipe_is_refused(manifest, tmp_path, suffix, replacement):
    path = manifest.with_name(f"manifest.sqlite{suffix}")
    path.unlink(missing_ok=True)
    os.mkfifo(path) if replacement == "pipe" else path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputError, match="not a regular file"):
        Manifest.open(manifest)
    assert not (tmp_path / "nowhere").exists()
