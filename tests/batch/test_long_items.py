"""Which items are split into parts, and how a job handles parts that are lost, fail or are resumed.
The pool here has no processes; test_steps.py tests what real workers do."""

import os
from dataclasses import replace

import pytest

from detector.batch import long_items, pieces
from detector.batch.documents import ItemCounts
from detector.batch.item import Piece, Task
from detector.batch.job import Request, Watch
from detector.batch.listing import Item, Shard
from detector.batch.long_items import LongItems, Split, choose, count_tasks, parse_split
from detector.batch.pool import Finished
from detector.batch.start import prune_batch
from detector.core.errors import UsageError
from tests.batch.pools import (
    PART_FRAMES,
    lost,
    make_sources,
    place_results,
    record_of,
    refused,
    run_fake_job,
)
from tests.batch.test_places import record_disk_calls

MB = 1 << 20
LONG = "long.mp4"
PARTS = [f"{LONG}, part {number} of 3" for number in (1, 2, 3)]


def items(*sizes: int) -> list[Item]:
    return [Item(str(number), "", size * MB, "") for number, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "workers", "expected"),
    [
        ([400], 2, {"0": 8}),  # a worker's share is 200 MB; a part is a quarter of the share
        ([400], 1, {}),
        ([400, 400, 400], 2, {"0": 3, "1": 3, "2": 3}),
        ([100] * 8, 2, {}),  # each item already is a quarter of a worker's share
        ([100] * 7, 2, {str(number): 2 for number in range(7)}),
        ([1000, *[10] * 100], 2, {"0": 4}),
        ([1000, *[10] * 900], 2, {}),  # the long item ends before the last short ones
        ([7, 7], 4, {}),  # the items are too small to divide
        ([], 2, {}),
    ],
    ids=str,
)
def test_long_items_are_divided_if_other_workers_would_wait_for_them(sizes, workers, expected):
    assert choose(items(*sizes), Split(), workers) == expected
    assert choose(items(*sizes), Split(off=True), workers) == {}


def test_option_split_with_seconds_divides_every_item():
    every = parse_split("30")
    assert every == Split(least_s=30.0, every=True)
    assert set(choose(items(1, 100), every, 2)) == {"0", "1"}
    assert choose(items(1, 100), every, 1) == {}


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "on", "1e10"])
def test_invalid_value_of_split_is_refused(text):
    with pytest.raises(UsageError, match="--split"):
        parse_split(text)
    assert parse_split("auto") == parse_split(None) == Split()
    assert parse_split("off").off


def test_remote_item_is_not_divided():
    long = LongItems(Split(), {"a": 8}, ())
    for path, divided in (("/in/a.mp4", True), ("s3://bucket/a.mp4", False)):
        task = Task(name="a", path=path, version="1-1")
        assert (long.first(task).piece is not None) == divided


def test_number_of_tasks_includes_all_possible_parts():
    assert count_tasks(items(1, 7), Split()) == 2
    assert count_tasks(items(1, 8, 400), Split()) == 1 + 10 + 402
    assert count_tasks(items(400), Split(off=True)) == 1
    assert count_tasks(items(1), Split(every=True)) > 1000


# ----------------------------------------------------------------------
# Jobs of one long item and three short ones.


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setattr("detector.batch.dataset.is_installed", lambda: False)
    monkeypatch.setattr(long_items, "LEAST_BYTES", 1000)
    make_sources(tmp_path / "in", "a.mp4", "bb.mp4", "ccc.mp4")
    (tmp_path / "in" / LONG).write_bytes(bytes(3000))

    def run(answers=lambda task, pool: None, *, watch=None, before=None, **more):
        options = {name: more.pop(name) for name in ("workers", "parts") if name in more}
        sources = [str(tmp_path / "in")]
        request = Request(sources=sources, output=str(tmp_path / "out"), flags={}, **more)
        return run_fake_job(request, answers, watch, before, **options)

    return run


def parts_folders(tmp_path) -> list[str]:
    return [name for name in os.listdir(tmp_path / "out") if name.startswith(pieces.PARTS)]


def is_part(task: Task, number: int | None = None) -> bool:
    piece = task.piece
    return piece is not None and piece.do == "part" and number in (None, piece.number + 1)


def is_step(task: Task, what: str) -> bool:
    return task.piece is not None and task.piece.do == what


def test_long_item_is_planned_then_detected_in_parts_then_joined(job, tmp_path):
    result, pool = job()
    # Two workers take items in turn.
    assert pool.tried == [LONG, "ccc.mp4", *PARTS, "bb.mp4", LONG, "a.mp4"]
    assert result.items == ItemCounts(done=4)
    assert result.frames == 3 + 3 * PART_FRAMES
    assert pool.outputs.read_marker(LONG).parts == 3
    assert parts_folders(tmp_path) == []
    # The cost of every step is counted once: three short items, and five steps of the long one.
    assert result.report.ledger.cpu_s == pytest.approx(0.5 * (3 + 5))
    assert result.report.between_s == pytest.approx(0.1 * (3 + 5))


def test_label_of_a_task_names_its_step():
    task = Task(name="a.mp4", path="", version="")
    steps = [Piece(do="plan"), Piece(do="part", number=2, of=8), Piece(do="join", of=8)]
    labels = [replace(task, piece=piece).label for piece in steps]
    assert labels == ["a.mp4", "a.mp4, part 3 of 8", "a.mp4, joining"]


def test_undivided_item_is_done_by_the_worker_that_planned_it(job):
    result, pool = job(parts=0)
    assert sorted(pool.tried) == ["a.mp4", "bb.mp4", "ccc.mp4", LONG]
    assert result.items == ItemCounts(done=4)


@pytest.mark.parametrize("how", [{"workers": 1}, {"split": Split(off=True)}], ids=str)
def test_nothing_is_divided_for_one_worker_or_with_split_off(job, how):
    seen = []
    job(lambda task, pool: seen.append(task.piece), **how)
    assert seen == [None] * 4


def test_progress_counts_parts_of_the_current_items(job):
    shown = []
    job(watch=Watch(progress=shown.append), before=lambda stop, pool: None)
    assert all(one.parts_done <= one.parts <= 3 for one in shown)
    assert shown[-1].parts == 0


@pytest.mark.parametrize(
    ("step", "last"),
    [("plan", [LONG, *PARTS, LONG]), ("part", [PARTS[1], LONG]), ("join", [LONG, LONG])],
)
def test_lost_step_is_retried_last(job, step, last):
    """If the worker that plans is lost, the file must not be processed whole."""

    def answers(task, pool):
        fails = is_part(task, 2) if step == "part" else is_step(task, step)
        return lost(task) if fails and task.tries == 1 else None

    result, pool = job(answers)
    assert [name for name in pool.tried if name.startswith(LONG)][-len(last) :] == last
    assert pool.tried[-1] == LONG
    assert result.items == ItemCounts(done=4, retried=1)
    assert result.frames == 3 + 3 * PART_FRAMES


def test_item_fails_if_a_part_is_lost_twice(job, tmp_path):
    result, pool = job(lambda task, pool: lost(task, "bang") if is_part(task, 2) else None)
    assert pool.tried.count(PARTS[1]) == 2
    assert result.items == ItemCounts(done=3, failed=1, retried=1)
    (failure,) = result.failures
    assert (failure.name, failure.tries) == (LONG, 2)
    assert failure.error == "part 2 of 3: bang"
    assert result.exit.code == 7
    assert result.frames == 3  # without the frames of the failed item's other parts
    assert parts_folders(tmp_path) == []
    assert not (tmp_path / "out/files" / LONG).exists()
    assert job(resume=True)[0].items == ItemCounts(done=1, skipped=3)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_item_is_processed_whole_if_a_part_fails(job, tmp_path, number):
    whole = []

    def answers(task, pool):
        if is_part(task, number):
            return refused(task, error="is damaged")
        if is_step(task, "whole"):
            whole.append(task.piece)
        return None

    result, pool = job(answers)
    assert result.items == ItemCounts(done=4)
    assert whole == [Piece(do="whole", why=f"part {number} of 3: is damaged")]
    assert result.frames == 4
    assert pool.outputs.read_marker(LONG).parts == 0
    assert parts_folders(tmp_path) == []
    assert pool.tried.count(LONG) == 2  # planned and processed whole, not joined


def test_item_fails_if_planning_is_lost_twice(job):
    result, pool = job(lambda task, pool: lost(task, "bang") if task.name == LONG else None)
    assert pool.tried.count(LONG) == 2
    assert (result.items.failed, result.failures[0].tries) == (1, 2)


def test_item_is_counted_once_if_its_worker_is_lost_after_joining(job):
    def answers(task, pool):
        if is_step(task, "join"):
            pool.do(task)
            return lost(task)
        return None

    result, pool = job(answers)
    assert pool.tried.count(LONG) == 2
    assert result.items == ItemCounts(done=4)
    assert result.frames == 3 + 3 * PART_FRAMES
    assert result.report.ledger.cpu_s == pytest.approx(0.5 * (3 + 4))


def test_join_that_falls_back_to_a_single_run_replaces_the_parts(job, tmp_path):
    """Instead of joining the parts, the worker processes the item whole and adds a note."""

    def answers(task, pool):
        if not is_step(task, "join"):
            return None
        pieces.drop(pool.outputs.place, task.name)
        record = place_results(task, pool.outputs, pool.digest)
        record = replace(record, notes=["not split: the rows of part 1 of 3 are cut off"])
        return Finished(task, 0, record, 1.0)

    result, _ = job(answers)
    assert result.items == ItemCounts(done=4)
    assert result.frames == 4
    assert any(note.startswith(f"{LONG}: not split: ") for note in result.notes)


def test_joined_results_that_were_removed_are_made_again(job, tmp_path):
    def answers(task, pool):
        if not is_step(task, "join"):
            return None
        record = pool.do(task)
        pool.outputs.remove(task.name)
        return Finished(task, 0, record, 1.0)

    result, _ = job(answers)
    assert result.items == ItemCounts(done=4)
    assert (tmp_path / "out/files" / LONG / "done.json").exists()


def test_full_disk_in_a_part_fails_the_item_with_exit_code_6(job, tmp_path):
    result, _ = job(lambda task, pool: refused(task, 6, "disk full") if is_part(task) else None)
    assert result.items.failed == 1
    assert result.failures[0].exit_code == 6


# ---- resumed jobs


def stop_after(count: int):
    def before(stop, pool):
        if len(pool.tried) >= count:
            stop.exit_code = 143
            stop.set()

    return before


@pytest.fixture
def stopped(job, tmp_path):
    result, _ = job(before=stop_after(3))
    assert result.exit.code == 143
    assert len(parts_folders(tmp_path)) == 1
    (folder,) = (tmp_path / "out" / name for name in parts_folders(tmp_path))
    done = sorted(path.name for path in folder.iterdir())
    assert done
    assert len(done) < 3
    return len(done)


@pytest.mark.parametrize("workers", [1, 2])
def test_resume_keeps_finished_parts(job, stopped, tmp_path, workers):
    """A new job with one worker would divide nothing, but a resumed job keeps the parts."""
    messages = []
    result, _ = job(resume=True, workers=workers, watch=Watch(say=messages.append))
    assert result.exit.code == 0
    assert result.items.done + result.items.skipped == 4
    assert result.frames == PART_FRAMES * (3 - stopped) + result.items.done - 1
    assert parts_folders(tmp_path) == []
    assert any("1 long file" in text for text in messages)


def test_resume_with_split_off_drops_finished_parts(job, stopped, tmp_path):
    result, pool = job(resume=True, split=Split(off=True))
    assert result.items.left == 0
    assert pool.outputs.read_marker(LONG).parts == 0
    assert parts_folders(tmp_path) == []


def test_parts_of_a_changed_file_are_dropped(job, stopped, tmp_path):
    (before,) = parts_folders(tmp_path)
    (tmp_path / "in" / LONG).write_bytes(bytes(4000))
    seen = []
    job(resume=True, before=lambda stop, pool: seen.append(set(parts_folders(tmp_path))))
    assert not any(before in one for one in seen)
    assert parts_folders(tmp_path) == []


def test_shard_keeps_parts_of_items_in_other_shards(job, stopped, tmp_path):
    (theirs,) = parts_folders(tmp_path)
    tried = []
    for number in (1, 2):
        result, pool = job(resume=True, shard=Shard(number, 2))
        assert result.items.left == 0
        if LONG in pool.tried:
            assert parts_folders(tmp_path) == []
        elif not tried:
            assert parts_folders(tmp_path) == [theirs]
        tried += pool.tried
    assert parts_folders(tmp_path) == []
    assert tried.count(LONG) == 2  # planned and joined by one of the shards


def test_prune_removes_parts_of_missing_sources(job, stopped, tmp_path):
    (tmp_path / "in" / LONG).unlink()
    request = Request(sources=[], output=str(tmp_path / "out"), flags={})
    prune_batch(request)
    assert parts_folders(tmp_path) == []


# ---- the folders of parts


def test_second_result_of_a_part_is_discarded(tmp_path):
    folder = tmp_path / "parts"
    for content in ("one", "two"):
        under_way = pieces.begin_part(folder, 3)
        under_way.mkdir(parents=True)
        (under_way / "rows").write_text(content)
        task = Task(name="a", path="p", version="1-1")
        pieces.finish_part(folder, 3, under_way, record_of(task, "d"))
    assert [path.name for path in folder.iterdir()] == ["part-3"]
    assert (folder / "part-3/rows").read_text() == "one"
    assert pieces.read_record(folder, 3) == record_of(task, "d")
    assert pieces.read_record(folder, 1) is None


def test_part_is_synced_before_it_is_renamed(tmp_path, monkeypatch):
    events = record_disk_calls(monkeypatch)
    under_way = pieces.begin_part(tmp_path, 0)
    under_way.mkdir()
    (under_way / "rows").write_text("x")
    task = Task(name="a", path="p", version="1-1")
    pieces.finish_part(tmp_path, 0, under_way, record_of(task, "d"))
    assert sorted(events[:2]) == sorted(["rows", pieces.RECORD])
    assert events[2:] == ["renamed", "a folder"]


def test_next_try_removes_files_of_an_unfinished_part(tmp_path):
    for number in (1, 11):
        pieces.begin_part(tmp_path, number).mkdir()
    again = pieces.begin_part(tmp_path, 1)
    assert not again.exists()
    assert [path.name.split(".")[0] for path in tmp_path.iterdir()] == ["part-11"]
    pieces.remove_under_way(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_part_with_a_damaged_record_is_not_done(tmp_path):
    (tmp_path / "part-0").mkdir()
    (tmp_path / "part-0" / pieces.RECORD).write_text("{")
    assert pieces.read_record(tmp_path, 0) is None


def test_drop_and_sweep_remove_only_the_folders_of_the_item(tmp_path):
    place = str(tmp_path)
    for name, key in [("a", "k" * 32), ("a", "l" * 32), ("b", "k" * 32)]:
        (tmp_path / pieces.folder_name(name, key)).mkdir()
    (tmp_path / "files").mkdir()
    pieces.drop(place, "a")
    assert pieces.find_folders(place) == {pieces.folder_name("b", "k" * 32)}
    assert pieces.sweep(place, (), ["a"]) == set()
    assert pieces.find_folders(place)
    assert pieces.sweep(place, {pieces.folder_name("b", "k" * 32)}, None)
    pieces.sweep(place, (), None)
    assert os.listdir(place) == ["files"]
    assert pieces.folder_of("s3://bucket/out", "a", "k") is None
    assert pieces.find_folders("s3://bucket/out") == set()
