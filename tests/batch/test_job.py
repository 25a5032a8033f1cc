"""Jobs on a pool without processes: items that finish, are retried, fail, or are skipped."""

import io
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from detector.batch.documents import BatchReport, Found, ItemCounts, JobSettings
from detector.batch.job import Request, Watch
from detector.batch.layout import locked
from detector.batch.listing import Shard
from detector.batch.looking import dry_run, look
from detector.batch.manifest import Manifest
from detector.batch.places import LocalOutputs
from detector.batch.pool import Finished, Gone
from detector.batch.settings import read_settings
from detector.batch.start import default_workers, prune_batch
from detector.batch.terminal import print_result
from detector.core.config.schema import Config
from detector.core.errors import OutputError, UsageError
from detector.core.terminal.console import SafeConsole
from tests.batch.pools import FACTS, lost, make_sources, place_results, refused, run_fake_job
from tests.cli.command import rows_of


@pytest.fixture(autouse=True)
def without_dataset(monkeypatch):
    monkeypatch.setattr("detector.batch.dataset.is_installed", lambda: False)


@pytest.fixture
def job(tmp_path):
    make_sources(tmp_path / "in", "a.mp4", "bb.mp4", "ccc.mp4", "dddd.mp4")

    def run(answers=lambda task, pool: None, *, facts=FACTS, watch=None, before=None, **more):
        own = {"sources": [str(tmp_path / "in")], "flags": {}, **more}
        request = Request(output=str(tmp_path / "out"), **own)
        return run_fake_job(request, answers, watch, before, facts=facts)

    return run


def failures(tmp_path):
    return rows_of(tmp_path / "out/failures.jsonl")


def test_each_item_is_processed_once_beginning_with_the_largest(job, tmp_path):
    result, pool = job()
    assert pool.tried == ["dddd.mp4", "ccc.mp4", "bb.mp4", "a.mp4"]
    assert result.items == ItemCounts(done=4)
    assert (result.exit.code, result.frames, result.workers) == (0, 4, 2)
    assert failures(tmp_path) == []
    assert pool.closed
    assert sorted(os.listdir(tmp_path / "out/files")) == sorted(pool.tried)


def test_resume_reuses_sources_and_options_of_the_job(job):
    job(flags={"conf": 0.4})
    result, pool = job(resume=True, sources=[])
    assert result.items.skipped == 4
    result, pool = job(resume=True, sources=[], flags={"iou": 0.6})
    assert (result.items.done, pool.resolved) == (4, [True])
    assert result.settings.asked["selection"]["conf"] == 0.4
    assert result.settings.asked["selection"]["iou"] == 0.6


def test_resume_without_a_job_needs_sources(job):
    with pytest.raises(UsageError, match="no batch job"):
        job(resume=True, sources=[])
    assert job(resume=True)[0].items.done == 4


def test_resume_repeats_changed_items_and_reports_them(job, tmp_path):
    job()
    (tmp_path / "in/a.mp4").write_bytes(b"another")
    (tmp_path / "in/e.mp4").write_bytes(b"new")
    (tmp_path / "in/bb.mp4").unlink()
    messages = []
    result, pool = job(resume=True, watch=Watch(say=messages.append))
    assert sorted(pool.tried) == ["a.mp4", "e.mp4"]
    assert result.items == ItemCounts(done=2, skipped=2)
    assert "1 changed" in messages[0]
    assert "1 new" in messages[0]
    assert any("--prune" in note for note in result.notes)


@pytest.mark.parametrize(
    ("flags", "facts", "redone"),
    [
        ({"conf": 0.5}, {}, 4),
        ({"stride": 2}, {}, 4),
        ({"engine": "openvino"}, {}, 4),
        ({"threads": 3}, {}, 0),
        ({"concurrency": 2}, {}, 0),
        ({"sync": True}, {}, 0),
        ({}, {"model_sha256": "b" * 64}, 4),
        ({}, {"class_names": ["car"]}, 4),
        ({}, {"model_input": (64, 64)}, 4),
    ],
    ids=str,
)
def test_resume_repeats_items_only_if_a_change_affects_their_results(job, flags, facts, redone):
    job()
    assert job(resume=True, flags=flags, facts=replace(FACTS, **facts))[0].items.done == redone


def test_item_of_a_lost_worker_is_retried_last(job):
    def answers(task, pool):
        return lost(task) if task.name == "dddd.mp4" and task.tries == 1 else None

    result, pool = job(answers)
    assert pool.tried == ["dddd.mp4", "ccc.mp4", "bb.mp4", "a.mp4", "dddd.mp4"]
    assert result.items == ItemCounts(done=4, retried=1)
    assert result.exit.code == 0


def test_item_that_ends_two_workers_fails(job, tmp_path):
    result, pool = job(lambda task, pool: lost(task, "bang") if task.name == "bb.mp4" else None)
    assert pool.tried.count("bb.mp4") == 2
    assert result.items == ItemCounts(done=3, failed=1, retried=1)
    assert result.exit.code == 7
    (failure,) = result.failures
    assert (failure.source, failure.tries) == (str(tmp_path / "in/bb.mp4"), 2)
    assert failures(tmp_path)[0]["error"] == "bang"
    assert not (tmp_path / "out/files/bb.mp4").exists()


def test_exit_code_is_that_of_the_first_failure_if_all_items_fail(job):
    result, _ = job(lambda task, pool: refused(task, 3 if task.name == "dddd.mp4" else 2))
    assert (result.exit.code, result.items.failed) == (3, 4)


def test_unreadable_item_is_retried_only_with_resume(job, tmp_path):
    result, pool = job(lambda task, pool: refused(task) if task.name == "bb.mp4" else None)
    assert pool.tried.count("bb.mp4") == 1
    assert (result.exit.code, result.failures[0].tries) == (7, 1)
    result, pool = job(resume=True)
    assert pool.tried == ["bb.mp4"]
    assert result.items == ItemCounts(done=1, skipped=3)
    assert (result.exit.code, result.failures, failures(tmp_path)) == (0, [], [])


def test_item_with_a_damaged_source_is_done_and_the_job_exits_7(job, tmp_path):
    def answers(task, pool):
        if task.name != "bb.mp4":
            return None
        return Finished(task, 0, place_results(task, pool.outputs, pool.digest, code=7), 0.1)

    result, _ = job(answers)
    assert result.items == ItemCounts(done=4, damaged=1)
    assert result.exit.code == 7
    resumed, pool = job(resume=True)
    assert (resumed.items, resumed.exit.code) == (ItemCounts(skipped=4), 7)
    assert (pool.tried, pool.resolved) == ([], [False])
    for one in (result, resumed, look(str(tmp_path / "out"))):
        assert one.found == Found(classes={"person": 4}, filled=4, damaged=["bb.mp4"])
        out = io.StringIO()
        print_result(SafeConsole(file=out, width=80), one)
        assert {"bb.mp4"} < {*out.getvalue().split()}
        assert "found: 4 person\n4 files with objects, 0 empty" in out.getvalue()


def test_summary_names_items_without_objects():
    items = {"a": (False, {}), "b": (True, {"car": 2}), "c": (False, None)}
    sums = Found(classes={"car": 2}, filled=1, empty=["a"], damaged=["b"], unknown=1)
    assert Found.of(items) == sums


def test_results_are_kept_if_the_worker_dies_before_it_reports_them(job):
    def answers(task, pool):
        if task.name == "bb.mp4":
            place_results(task, pool.outputs, pool.digest)
            return lost(task)
        return None

    result, pool = job(answers)
    assert pool.tried.count("bb.mp4") == 1
    assert result.items == ItemCounts(done=4)


@pytest.mark.parametrize(("fail", "retried"), [(lost, 1), (refused, 0)])
def test_old_results_of_a_changed_item_that_fails_are_removed(job, tmp_path, fail, retried):
    job()
    (tmp_path / "in/bb.mp4").write_bytes(b"another")
    result, pool = job(lambda task, pool: fail(task), resume=True)
    assert pool.tried == ["bb.mp4"] * (1 + retried)
    assert result.items == ItemCounts(skipped=3, failed=1, retried=retried)
    assert not (tmp_path / "out/files/bb.mp4").exists()


@pytest.mark.parametrize(
    ("missing", "tried"), [("manifest.sqlite", []), ("files/bb.mp4/done.json", ["bb.mp4"])]
)
def test_resume_trusts_markers_and_rebuilds_a_missing_manifest(job, tmp_path, missing, tried):
    job()
    (tmp_path / "out" / missing).unlink()
    result, pool = job(resume=True)
    assert pool.tried == tried
    assert result.items == ItemCounts(done=len(tried), skipped=4 - len(tried))
    assert look(str(tmp_path / "out")).items == ItemCounts(done=4)


def test_resume_writes_the_dataset_after_pyarrow_was_installed(job, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow", reason="machine: pyarrow is not installed")
    result, _ = job()
    assert any("pyarrow" in note for note in result.notes)
    monkeypatch.setattr("detector.batch.dataset.is_installed", lambda: True)
    (tmp_path / "in/a.mp4").write_bytes(b"another")
    result, _ = job(resume=True)
    names = {path.name for path in (tmp_path / "out/detections").iterdir()}
    assert names == {f"source={name}" for name in ("bb.mp4", "ccc.mp4", "dddd.mp4")}
    assert not any("pyarrow" in note for note in result.notes)


def test_manifest_stores_settings_and_report(job, tmp_path):
    result, _ = job()
    with Manifest.reading(tmp_path / "out/manifest.sqlite") as manifest:
        assert manifest.read(JobSettings) == result.settings
        assert manifest.read(BatchReport) == result.report


@pytest.mark.parametrize("content", [b"", b"no database at all, but long enough to be read"])
def test_empty_manifest_is_rebuilt_and_a_damaged_one_is_refused(job, tmp_path, content):
    job()
    (tmp_path / "out/manifest.sqlite").write_bytes(content)
    if not content:
        assert job(resume=True)[0].items == ItemCounts(skipped=4)
        return
    for read in (lambda: job(resume=True), lambda: look(str(tmp_path / "out"))):
        with pytest.raises(OutputError, match=r"move it \(and its copy in a bucket\) away"):
            read()


def test_signal_drops_the_current_item_and_resume_processes_it(job, tmp_path):
    """The signal arrives at the job's third wait for events."""
    waits = []

    def before(stop, pool):
        waits.append(1)
        if len(waits) == 3:
            stop.exit_code = 143
            stop.set()

    result, pool = job(before=before)
    assert result.exit.code == 143
    assert (result.items.done, result.items.left) == (3, 1)
    assert pool.closed
    assert len(os.listdir(tmp_path / "out/files")) == 3
    rest, pool = job(resume=True)
    assert rest.items == ItemCounts(done=1, skipped=3)


def test_job_ends_after_max_failures(job):
    result, _ = job(lambda task, pool: refused(task), most_failures=1)
    assert result.exit.code == 3
    assert (result.items.failed, result.items.left) == (3, 1)  # the third was already running
    assert job(resume=True)[0].items.done == 4


def test_full_disk_ends_the_job_without_failed_items(job, tmp_path):
    result, _ = job(lambda task, pool: refused(task, 6, "disk full"))
    assert result.exit.code == 6
    assert result.items.failed == 0
    assert result.items.left == 4
    assert failures(tmp_path) == []
    assert job(resume=True)[0].items.done == 4


def test_job_continues_if_one_item_cannot_be_written(job):
    result, _ = job(
        lambda task, pool: refused(task, 6, "name too long") if task.name == "bb.mp4" else None
    )
    assert result.items == ItemCounts(done=3, failed=1, retried=1)


def test_job_ends_if_no_worker_is_left(job):
    def answers(task, pool):
        if not pool.alive:
            return lost(task)  # the item that was queued when the last worker ended
        pool.alive = False
        pool._queue.append(task)
        return Gone(0, "no engine", 5)

    result, _ = job(answers)
    assert result.exit.code == 5
    assert result.items.done == 0


def test_items_with_refused_names_count_as_failed(job, tmp_path):
    (tmp_path / "in" / "x\ny.mp4").write_bytes(b"x")
    result, pool = job()
    assert len(pool.tried) == 4
    assert (result.items.failed, result.exit.code) == (1, 7)
    assert failures(tmp_path)[0]["tries"] == 0


def test_second_job_in_the_same_folder_is_refused(job, tmp_path):
    job()
    with locked(str(tmp_path / "out"), Shard(1, 2)), pytest.raises(OutputError, match="another"):
        job(resume=True)


def test_job_killed_during_a_transaction_can_be_resumed(job, tmp_path):
    """SQLite leaves a journal, from which the next reader restores the manifest."""
    job()
    path = tmp_path / "out/manifest.sqlite"
    code = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "c.execute('PRAGMA cache_size = 1'); c.execute('BEGIN IMMEDIATE'); "
        "c.execute(\"UPDATE items SET state = 'todo', error = hex(randomblob(100000))\"); "
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert path.with_name("manifest.sqlite-journal").stat().st_size > 0
    assert look(str(tmp_path / "out")).items == ItemCounts(done=4)
    assert job(resume=True)[0].items == ItemCounts(skipped=4)


@pytest.mark.parametrize(
    ("runtime", "cores", "workers"),
    [
        ({"device": "cpu"}, 8, 4),
        ({"device": "cpu"}, 1, 1),
        ({"device": "cuda:0"}, 8, 1),
        ({"engine": "trt", "device": "cpu"}, 8, 1),
    ],
    ids=str,
)
def test_default_number_of_workers(runtime, cores, workers):
    config = Config(runtime=replace(Config().runtime, **runtime))
    assert default_workers(cores, config) == workers


# Shards.


def test_shards_process_each_item_once_with_shared_settings(job, tmp_path):
    done, tried = 0, []
    for number in (1, 2, 3):
        result, pool = job(shard=Shard(number, 3), facts=replace(FACTS, engine_reason=str(number)))
        done += result.items.done
        tried += pool.tried
    assert done == 4
    assert sorted(tried) == ["a.mp4", "bb.mp4", "ccc.mp4", "dddd.mp4"]
    assert read_settings(str(tmp_path / "out")).engine_reason == "1"
    names = {path.name for path in (tmp_path / "out").glob("manifest*")}
    assert names == {f"manifest-{n}-of-3.sqlite" for n in (1, 2, 3)}
    status = look(str(tmp_path / "out"))
    assert status.items == ItemCounts(done=4)
    assert len(status.shards) == 3
    whole, pool = job(resume=True)
    assert (whole.items.skipped, pool.tried) == (4, [])
    assert look(str(tmp_path / "out")).items == ItemCounts(done=4)


def test_refused_name_is_counted_by_one_shard(job, tmp_path):
    (tmp_path / "in" / "x\ny.mp4").write_bytes(b"x")
    failed = [job(shard=Shard(number, 2))[0].items.failed for number in (1, 2)]
    assert sorted(failed) == [0, 1]
    assert look(str(tmp_path / "out")).items == ItemCounts(done=4, failed=1)


def test_repeated_shard_or_another_number_of_shards_needs_resume(job):
    job(shard=Shard(1, 2))
    for shard in (Shard(1, 2), Shard(1, 3)):
        with pytest.raises(UsageError, match="--resume"):
            job(shard=shard)
    with pytest.raises(UsageError, match="--resume"):
        job()
    job(shard=Shard(2, 2))
    assert job(shard=Shard(1, 2), resume=True)[0].items.done == 0


def test_shard_with_other_settings_is_refused(job):
    job(shard=Shard(1, 2))
    for other in ({"flags": {"conf": 0.5}}, {"facts": replace(FACTS, model_sha256="c" * 64)}):
        with pytest.raises(UsageError, match="without --shard"):
            job(shard=Shard(2, 2), **other)


# Status and dry runs.


def test_status_of_an_unfinished_job_suggests_resume(job, tmp_path):
    job(lambda task, pool: refused(task), most_failures=1)
    status = look(str(tmp_path / "out"))
    assert (status.items.failed, status.items.left, status.running) == (3, 1, False)
    assert "--resume" in status.exit.reason
    with pytest.raises(UsageError, match="no batch job"):
        look(str(tmp_path / "in"))


def test_status_shows_that_a_job_is_running(job, tmp_path):
    status = []
    job(before=lambda stop, pool: status.append(look(str(tmp_path / "out"))))
    assert all(one.running for one in status)
    assert status[0].items.left == 4


def test_dry_run_lists_items_and_writes_nothing(job, tmp_path):
    request = Request(sources=[str(tmp_path / "in")], output=str(tmp_path / "out"), flags={})
    plan = dry_run(request)
    assert (plan.planned.new, len(plan.items)) == (4, 4)
    assert not (tmp_path / "out").exists()
    job()
    (tmp_path / "in/a.mp4").write_bytes(b"another")
    plan = dry_run(request)
    assert (plan.planned.changed, plan.planned.skipped, plan.items) == (1, 3, ["a.mp4"])
    assert dry_run(replace(request, flags={"conf": 0.5})).planned.changed == 4


# Pruning.


def test_prune_removes_results_whose_source_is_missing(job, tmp_path):
    job()
    (tmp_path / "in/bb.mp4").unlink()
    request = Request(sources=[], output=str(tmp_path / "out"), flags={})
    assert prune_batch(request) == 1
    assert not (tmp_path / "out/files/bb.mp4").exists()
    assert look(str(tmp_path / "out")).items == ItemCounts(done=3)
    (tmp_path / "in/a.mp4").unlink()
    result, _ = job(resume=True, prune=True)
    assert result.items == ItemCounts(skipped=2)
    assert not (tmp_path / "out/files/a.mp4").exists()


def test_prune_is_refused_if_a_whole_source_is_missing(job, tmp_path):
    make_sources(tmp_path / "disk", "x.mp4")
    job(sources=[str(tmp_path / "in"), str(tmp_path / "disk")])
    (tmp_path / "disk/x.mp4").unlink()
    with pytest.raises(UsageError, match="mounted"):
        prune_batch(Request(sources=[], output=str(tmp_path / "out"), flags={}))
    assert LocalOutputs(str(tmp_path / "out")).has_marker("x.mp4")
