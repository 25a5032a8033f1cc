"""Which items are done in parts, and what becomes of these: done, lost, refused, resumed. On a pool
without processes; what its workers really do is tested in test_steps.py."""

from __future__ import annotations

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
from detector.batch.start import prune_batch, run_batch
from detector.core.errors import UsageError
from tests.batch.pools import (
    PART_FRAMES,
    FakePool,
    lost,
    make_sources,
    place_results,
    record_of,
    refused,
)
from tests.batch.test_places import note_disk_calls

MB = 1 << 20
LONG = "long.mp4"
PARTS = [f"{LONG}, part {number} of 3" for number in (1, 2, 3)]


def items(*sizes: int) -> list[Item]:
    return [Item(str(number), "", size * MB, "") for number, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "workers", "expected"),
    [
        ([400], 2, {"0": 8}),  # a quarter of a worker's share in each part
        ([400], 1, {}),
        ([400, 400, 400], 2, {"0": 3, "1": 3, "2": 3}),
        ([100] * 8, 2, {}),  # each is just a quarter
        ([100] * 7, 2, {str(number): 2 for number in range(7)}),
        ([1000, *[10] * 100], 2, {"0": 4}),
        ([1000, *[10] * 900], 2, {}),  # it comes first, and the others last longer
        ([7, 7], 4, {}),  # too small to be looked at
        ([], 2, {}),
    ],
    ids=str,
)
def test_what_would_keep_the_others_waiting_is_looked_at(sizes, workers, expected):
    assert choose(items(*sizes), Split(), workers) == expected
    assert choose(items(*sizes), Split(off=True), workers) == {}


def test_seconds_look_at_every_item():
    every = parse_split("30")
    assert every == Split(least_s=30.0, every=True)
    assert set(choose(items(1, 100), every, 2)) == {"0", "1"}
    assert choose(items(1, 100), every, 1) == {}


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "on", "1e10"])
def test_what_split_takes(text):
    with pytest.raises(UsageError, match="--split"):
        parse_split(text)
    assert parse_split("auto") == parse_split(None) == Split()
    assert parse_split("off").off


def test_remote_item_is_not_divided():
    long = LongItems(Split(), {"a": 8}, ())
    for path, pieces_of in (("/in/a.mp4", True), ("s3://bucket/a.mp4", False)):
        task = Task(name="a", path=path, version="1-1")
        assert (long.first(task).piece is not None) == pieces_of


def test_no_more_workers_than_there_can_be_parts():
    assert count_tasks(items(1, 7), Split()) == 2
    assert count_tasks(items(1, 8, 400), Split()) == 1 + 10 + 402
    assert count_tasks(items(400), Split(off=True)) == 1
    assert count_tasks(items(1), Split(every=True)) > 1000


# ----------------------------------------------------------------------
# Jobs: one long item, and three that are not.


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setattr("detector.batch.dataset.is_installed", lambda: False)
    monkeypatch.setattr(long_items, "LEAST_BYTES", 1000)
    make_sources(tmp_path / "in", "a.mp4", "bb.mp4", "ccc.mp4")
    (tmp_path / "in" / LONG).write_bytes(bytes(3000))

    def run(answers=lambda task, pool: None, *, workers=2, parts=3, before=None, **more):
        made = []

        def make_pool(folder, stop):
            made.append(FakePool(tmp_path / "out", answers, workers=workers, parts=parts))
            if before is not None:
                made[0].before = lambda: before(stop, made[0])
            return made[0]

        watch = more.pop("watch", Watch())
        sources = [str(tmp_path / "in")]
        request = Request(sources=sources, output=str(tmp_path / "out"), flags={}, **more)
        return run_batch(request, watch, make_pool=make_pool), made[0]

    return run


def hidden(tmp_path) -> list[str]:
    return [name for name in os.listdir(tmp_path / "out") if name.startswith(pieces.PARTS)]


def is_part(task: Task, number: int | None = None) -> bool:
    piece = task.piece
    return piece is not None and piece.do == "part" and number in (None, piece.number + 1)


def does(task: Task, what: str) -> bool:
    return task.piece is not None and task.piece.do == what


def test_a_long_item_is_planned_detected_in_parts_and_joined(job, tmp_path):
    result, pool = job()
    # Two are handed out at a time.
    assert pool.tried == [LONG, "ccc.mp4", *PARTS, "bb.mp4", LONG, "a.mp4"]
    assert result.items == ItemCounts(done=4)
    assert result.frames == 3 + 3 * PART_FRAMES
    assert pool.outputs.read_marker(LONG).parts == 3
    assert hidden(tmp_path) == []
    # Every step is booked once: four items, and five steps where there would be one.
    assert result.report.ledger.cpu_s == pytest.approx(0.5 * (3 + 5))
    assert result.report.between_s == pytest.approx(0.1 * (3 + 5))
    # Loading, then planning, the longest part and joining, one after the other.
    assert result.report.forecasts[-1].seconds == pytest.approx(0.5 + 3 * 0.6)


def test_label_names_part_or_joining():
    task = Task(name="a.mp4", path="", version="")
    pieces_of = [Piece(do="plan"), Piece(do="part", number=2, of=8), Piece(do="join", of=8)]
    labels = [replace(task, piece=piece).label for piece in pieces_of]
    assert labels == ["a.mp4", "a.mp4, part 3 of 8", "a.mp4, joining"]


def test_parts_come_before_shorter_items(job):
    _, pool = job()
    last_part = max(pool.tried.index(label) for label in PARTS)
    assert last_part < pool.tried.index("a.mp4")


def test_undivided_item_is_done_by_the_worker_that_planned_it(job):
    result, pool = job(parts=0)
    assert sorted(pool.tried) == ["a.mp4", "bb.mp4", "ccc.mp4", LONG]
    assert result.items == ItemCounts(done=4)


@pytest.mark.parametrize("how", [{"workers": 1}, {"split": Split(off=True)}], ids=str)
def test_nothing_is_divided_for_one_worker_or_where_it_is_off(job, how):
    seen = []
    job(lambda task, pool: seen.append(task.piece), **how)
    assert seen == [None] * 4


def test_progress_counts_parts(job):
    shown = []
    job(watch=Watch(progress=shown.append), before=lambda stop, pool: None)
    assert all(one.parts_done <= one.parts <= 3 for one in shown)
    assert shown[-1].parts == 0


def test_a_lost_part_is_tried_again_at_the_end(job):
    result, pool = job(
        lambda task, pool: lost(task) if is_part(task, 2) and task.tries == 1 else None
    )
    assert pool.tried.count(PARTS[1]) == 2
    assert pool.tried[-2:] == [PARTS[1], LONG]  # then all are joined
    assert result.items == ItemCounts(done=4, retried=1)
    assert result.frames == 3 + 3 * PART_FRAMES


def test_a_part_that_is_lost_twice_sets_its_item_aside(job, tmp_path):
    result, pool = job(lambda task, pool: lost(task, "bang") if is_part(task, 2) else None)
    assert pool.tried.count(PARTS[1]) == 2
    assert result.items == ItemCounts(done=3, failed=1, retried=1)
    (failure,) = result.failures
    assert (failure.name, failure.tries) == (LONG, 2)
    assert failure.error == "part 2 of 3: bang"
    assert result.exit.code == 7
    assert result.frames == 3  # frames of its other parts do not count
    assert hidden(tmp_path) == []
    assert not (tmp_path / "out/files" / LONG).exists()
    assert job(resume=True)[0].items == ItemCounts(done=1, skipped=3)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_part_that_refuses_its_file_has_it_done_whole(job, tmp_path, number):
    whole = []

    def answers(task, pool):
        if is_part(task, number):
            return refused(task, error="is damaged")
        if does(task, "whole"):
            whole.append(task.piece)
        return None

    result, pool = job(answers)
    assert result.items == ItemCounts(done=4)
    assert whole == [Piece(do="whole", why=f"part {number} of 3: is damaged")]
    assert result.frames == 4
    assert pool.outputs.read_marker(LONG).parts == 0
    assert hidden(tmp_path) == []
    assert len([label for label in pool.tried if label == LONG]) == 2  # not joined


def test_an_item_whose_worker_is_lost_while_it_plans_is_planned_again(job):
    """One lost worker must not turn a file of ten hours into a single run."""
    result, pool = job(
        lambda task, pool: lost(task) if does(task, "plan") and task.tries == 1 else None
    )
    assert pool.tried[-5:] == [LONG, *PARTS, LONG]
    assert result.items == ItemCounts(done=4, retried=1)
    assert result.frames == 3 + 3 * PART_FRAMES


def test_poison_that_is_long_is_tried_twice(job):
    result, pool = job(lambda task, pool: lost(task, "bang") if task.name == LONG else None)
    assert pool.tried.count(LONG) == 2
    assert (result.items.failed, result.failures[0].tries) == (1, 2)


def test_a_lost_worker_whose_join_stands_is_not_counted_twice(job):
    def answers(task, pool):
        if does(task, "join"):
            pool.do(task)
            return lost(task)
        return None

    result, pool = job(answers)
    assert pool.tried.count(LONG) == 2
    assert result.items == ItemCounts(done=4)
    assert result.frames == 3 + 3 * PART_FRAMES
    assert result.report.ledger.cpu_s == pytest.approx(0.5 * (3 + 4))


def test_a_lost_join_is_tried_again(job):
    result, pool = job(
        lambda task, pool: lost(task) if does(task, "join") and task.tries == 1 else None
    )
    assert pool.tried.count(LONG) == 3
    assert result.items == ItemCounts(done=4, retried=1)


def test_parts_that_do_not_fit_are_counted_as_the_whole(job, tmp_path):
    """The worker that joins does the item in one run, and says why."""

    def answers(task, pool):
        if not does(task, "join"):
            return None
        pieces.drop(pool.outputs.place, task.name)
        record = place_results(task, pool.outputs, pool.digest)
        record = replace(record, notes=["not split: the rows of part 1 of 3 are cut off"])
        return Finished(task, 0, record, 1.0)

    result, _ = job(answers)
    assert result.items == ItemCounts(done=4)
    assert result.frames == 4
    assert any(note.startswith(f"{LONG}: not split: ") for note in result.notes)


def test_removed_joined_results_are_made_again(job, tmp_path):
    def answers(task, pool):
        if not does(task, "join"):
            return None
        record = pool.do(task)
        pool.outputs.remove(task.name)
        return Finished(task, 0, record, 1.0)

    result, _ = job(answers)
    assert result.items == ItemCounts(done=4)
    assert (tmp_path / "out/files" / LONG / "done.json").exists()


def test_a_full_disk_is_not_the_fault_of_a_part(job, tmp_path):
    """One item alone: it is tried twice and set aside, as one that is done whole."""
    result, _ = job(lambda task, pool: refused(task, 6, "disk full") if is_part(task) else None)
    assert result.items.failed == 1
    assert result.failures[0].exit_code == 6


# ---- stopped, and gone on with


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
    assert len(hidden(tmp_path)) == 1
    (folder,) = (tmp_path / "out" / name for name in hidden(tmp_path))
    done = sorted(path.name for path in folder.iterdir())
    assert done
    assert len(done) < 3
    return len(done)


@pytest.mark.parametrize("workers", [1, 2])
def test_resume_goes_on_with_the_parts_that_are_done(job, stopped, tmp_path, workers):
    """This holds even if nothing would be divided now."""
    said = []
    result, _ = job(resume=True, workers=workers, watch=Watch(say=said.append))
    assert result.exit.code == 0
    assert result.items.done + result.items.skipped == 4
    assert result.frames == PART_FRAMES * (3 - stopped) + result.items.done - 1
    assert hidden(tmp_path) == []
    assert any("1 long file" in text for text in said)


def test_resume_without_parts_drops_finished_parts(job, stopped, tmp_path):
    result, pool = job(resume=True, split=Split(off=True))
    assert result.items.left == 0
    assert pool.outputs.read_marker(LONG).parts == 0
    assert hidden(tmp_path) == []


def test_parts_of_another_version_of_the_file_are_dropped(job, stopped, tmp_path):
    (before,) = hidden(tmp_path)
    (tmp_path / "in" / LONG).write_bytes(bytes(4000))
    seen = []
    job(resume=True, before=lambda stop, pool: seen.append(set(hidden(tmp_path))))
    assert not any(before in one for one in seen)
    assert hidden(tmp_path) == []


def test_a_shard_leaves_the_parts_of_others_alone(job, stopped, tmp_path):
    (theirs,) = hidden(tmp_path)
    tried = []
    for number in (1, 2):
        result, pool = job(resume=True, shard=Shard(number, 2))
        assert result.items.left == 0
        if LONG in pool.tried:
            assert hidden(tmp_path) == []
        elif not tried:
            assert hidden(tmp_path) == [theirs]
        tried += pool.tried
    assert hidden(tmp_path) == []
    assert tried.count(LONG) == 2  # planned and joined, by one of them


def test_prune_removes_parts_of_what_is_gone(job, stopped, tmp_path):
    (tmp_path / "in" / LONG).unlink()
    request = Request(sources=[], output=str(tmp_path / "out"), flags={})
    prune_batch(request)
    assert hidden(tmp_path) == []


# ---- the folders of parts


def test_a_part_comes_into_place_once(tmp_path):
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


def test_all_of_a_part_reaches_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    happened = note_disk_calls(monkeypatch)
    under_way = pieces.begin_part(tmp_path, 0)
    under_way.mkdir()
    (under_way / "rows").write_text("x")
    task = Task(name="a", path="p", version="1-1")
    pieces.finish_part(tmp_path, 0, under_way, record_of(task, "d"))
    assert sorted(happened[:2]) == sorted(["rows", pieces.RECORD])
    assert happened[2:] == ["renamed", "a folder"]


def test_what_was_under_way_is_removed_by_the_next_try(tmp_path):
    for number in (1, 11):
        pieces.begin_part(tmp_path, number).mkdir()
    again = pieces.begin_part(tmp_path, 1)
    assert not again.exists()
    assert [path.name.split(".")[0] for path in tmp_path.iterdir()] == ["part-11"]
    pieces.remove_under_way(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_part_without_its_record_is_not_done(tmp_path):
    (tmp_path / "part-0").mkdir()
    (tmp_path / "part-0" / pieces.RECORD).write_text("{")
    assert pieces.read_record(tmp_path, 0) is None


def test_each_item_has_folders_of_its_own(tmp_path):
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
