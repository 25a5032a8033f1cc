"""Jobs whose sources and results are in an object store. Here, a fake replaces Google's store.
test_storage.py uses a server."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from detector.batch.bucket import BucketOutputs
from detector.batch.item import Task
from detector.batch.job import Request
from detector.batch.listing import Shard, list_sources
from detector.batch.looking import look
from detector.batch.start import prune_batch
from detector.core.errors import OutputError, UsageError
from tests.batch.pools import make_sources, place_results, record_of, refused, run_fake_job
from tests.batch.storage import fake_store

PLACE = "gs://bucket/out"
TASK = Task(name="sub/a.mp4", path="gs://bucket/in/sub/a.mp4", version="10-1")


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("detector.batch.dataset.is_installed", lambda: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return fake_store(monkeypatch)


def keys(store):
    return sorted(path.removeprefix("bucket/") for path in store.find("bucket"))


def scratch_of(tmp_path):
    return [path.name for path in tmp_path.iterdir() if path.name.startswith(".detect-video")]


def run(store, output=PLACE, sources=("gs://bucket/in/",), answers=lambda task, pool: None, **more):
    request = Request(sources=list(sources), output=output, flags={}, **more)
    return run_fake_job(request, answers)


def test_results_and_marker_are_stored_and_scratch_is_removed(store, tmp_path):
    outputs = BucketOutputs(PLACE)
    assert outputs.read_marker(TASK.name) is None
    record = place_results(TASK, outputs, "d")
    assert keys(store) == ["out/files/sub/a.mp4/detections.jsonl", "out/files/sub/a.mp4/done.json"]
    assert outputs.read_marker(TASK.name) == record
    assert BucketOutputs(PLACE).has_marker(TASK.name)
    assert not BucketOutputs(PLACE).has_marker("sub")
    assert scratch_of(tmp_path) == []


def test_marker_is_removed_before_other_objects_are_replaced(store, monkeypatch):
    outputs = BucketOutputs(PLACE)
    place_results(TASK, outputs, "old")
    markers = []

    def put(self, path, place):
        markers.append([key for key in keys(store) if key.endswith("done.json")])
        raise OSError("the wire is cut")

    monkeypatch.setattr(BucketOutputs, "_put", put)
    scratch = outputs.begin(TASK.name)
    (scratch / "other.txt").write_text("x")
    with pytest.raises(OutputError, match="wire is cut"):
        outputs.commit(TASK.name, scratch, record_of(TASK, "new"))
    assert markers == [[]]
    assert not BucketOutputs(PLACE).has_marker(TASK.name)
    outputs.discard(TASK.name)
    assert keys(store) == []


def test_commit_replaces_earlier_objects_of_the_item(store):
    outputs = BucketOutputs(PLACE)
    place_results(TASK, outputs, "old")
    scratch = outputs.begin(TASK.name)
    (scratch / "other.txt").write_text("x")
    outputs.commit(TASK.name, scratch, record_of(TASK, "new"))
    assert keys(store) == ["out/files/sub/a.mp4/done.json", "out/files/sub/a.mp4/other.txt"]
    outputs.discard(TASK.name)  # complete results stay
    assert len(keys(store)) == 2
    outputs.remove(TASK.name)
    assert keys(store) == []


def test_scratch_folders_of_killed_workers_are_removed(store, tmp_path):
    outputs = BucketOutputs(PLACE)
    outputs.begin(TASK.name)
    outputs.begin("b.mp4")
    BucketOutputs("gs://bucket/other").discard_all()
    assert len(scratch_of(tmp_path)) == 2
    outputs.begin(TASK.name)
    assert len(scratch_of(tmp_path)) == 2
    outputs.discard_all()
    assert scratch_of(tmp_path) == []


def test_job_reads_from_and_writes_to_a_store(store, tmp_path):
    for name in ("a.mp4", "sub/b.mkv", ".hidden.mp4", "notes.doc"):
        store.pipe_file(f"bucket/in/{name}", name.encode())
    result, pool = run(store)
    assert (result.items.done, result.exit.code) == (2, 0)
    assert sorted(pool.tried) == ["a.mp4", "sub/b.mkv"]
    assert "out/files/sub/b.mkv/done.json" in keys(store)
    assert {"out/job.json", "out/settings.yaml", "out/manifest.sqlite"} <= {*keys(store)}
    marker = json.loads(store.cat_file("bucket/out/files/a.mp4/done.json"))
    assert marker["path"] == "gs://bucket/in/a.mp4"
    assert not (tmp_path / "gs:").exists()
    with pytest.raises(UsageError, match="--resume"):
        run(store)
    store.pipe_file("bucket/in/c.mp4", b"new")
    again, pool = run(store, resume=True)
    assert (again.items.skipped, again.items.done, pool.tried) == (2, 1, ["c.mp4"])
    assert look(PLACE).items.done == 3


@pytest.mark.parametrize("copy", ["stored", "missing"])
def test_another_machine_can_resume_the_job(store, tmp_path, monkeypatch, copy):
    """The other machine has no local state. If the bucket has no manifest, markers are enough."""
    for name in ("a.mp4", "b.mp4"):
        store.pipe_file(f"bucket/in/{name}", b"x")
    run(store)
    if copy == "missing":
        store.pipe_file("bucket/out/manifest.sqlite", b"damaged")
        with pytest.raises(OutputError, match="and its copy in a bucket"):
            run(store, sources=(), resume=True)
        store.rm_file("bucket/out/manifest.sqlite")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    store.pipe_file("bucket/in/c.mp4", b"x")
    result, pool = run(store, sources=(), resume=True)
    assert (result.items.skipped, pool.tried) == (2, ["c.mp4"])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    back, pool = run(store, sources=(), resume=True)  # the first machine again
    assert (back.items.skipped, pool.tried) == (3, [])


def test_run_after_the_outputs_were_deleted_is_a_new_job(store):
    store.pipe_file("bucket/in/a.mp4", b"x")
    run(store)
    store.rm("bucket/out", recursive=True)
    result, pool = run(store)
    assert (result.items.done, pool.tried) == (1, ["a.mp4"])


def test_first_published_settings_are_kept(store):
    store.pipe_file("bucket/in/a.mp4", b"x")
    first, _ = run(store)
    outputs = BucketOutputs(PLACE)
    other = replace(first.settings, model="another")
    assert outputs.publish(other, first=True).model == first.settings.model
    assert outputs.publish(other, first=False).model == "another"
    store.pipe_file("bucket/out/job.json", b"newer")
    assert Path(outputs.fetch_home(), "job.json").read_bytes() == b"newer"


def test_shards_share_one_output_place(store):
    for number in range(6):
        store.pipe_file(f"bucket/in/{number}.mp4", b"x")
    _, pool = run(store, shard=Shard(1, 2))
    _, other = run(store, shard=Shard(2, 2))
    assert sorted(pool.tried + other.tried) == [f"{number}.mp4" for number in range(6)]
    assert {"out/manifest-1-of-2.sqlite", "out/manifest-2-of-2.sqlite"} <= {*keys(store)}
    assert look(PLACE).items.done == 6


def test_failures_are_written_to_the_store(store):
    store.pipe_file("bucket/in/a.mp4", b"x")
    store.pipe_file("bucket/in/b.mp4", b"x")
    result, pool = run(store, answers=lambda task, _: refused(task) if "b" in task.name else None)
    assert result.exit.code == 7
    # Failed items of a store are retried at the end, because the store may have been unreachable.
    assert pool.tried == ["a.mp4", "b.mp4", "b.mp4"]
    [failure] = map(json.loads, store.cat_file("bucket/out/failures.jsonl").splitlines())
    assert (failure["source"], failure["tries"]) == ("gs://bucket/in/b.mp4", 2)


def test_prune_removes_results_of_missing_objects(store):
    for name in ("a.mp4", "b.mp4"):
        store.pipe_file(f"bucket/in/{name}", b"x")
    run(store)
    store.rm_file("bucket/in/b.mp4")
    request = Request(sources=[], output=PLACE, flags={}, prune=True)
    assert prune_batch(request) == 1
    assert not any("b.mp4" in key for key in keys(store) if key.startswith("out/files"))


def test_job_on_local_files_writes_to_a_store(store, tmp_path):
    make_sources(tmp_path / "in", "a.mp4")
    result, _ = run(store, sources=(str(tmp_path / "in"),))
    assert result.items.done == 1
    assert "out/files/a.mp4/done.json" in keys(store)


def test_dataset_is_written_below_the_output_place(store, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet", reason="machine: pyarrow is not installed")
    monkeypatch.setattr("detector.batch.dataset.is_installed", lambda: True)
    store.pipe_file("bucket/in/sub/a.mp4", b"x")
    run(store)
    result, _ = run(store, sources=(), resume=True)  # the first run wrote no dataset
    assert result.items.skipped == 1
    [key] = [key for key in keys(store) if key.startswith("out/detections/")]
    assert key == "out/detections/source=sub%2Fa.mp4/detections.parquet"
    with store.open(f"bucket/{key}") as file:
        assert parquet.read_table(file).num_rows == 1


# Listing.


@pytest.fixture
def list_names(store, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def names(*specs, output=PLACE):
        listing = list_sources(specs, output)
        return [item.name for item in listing.items], listing

    return names


def test_objects_whose_keys_are_unsafe_file_names_are_refused(store, list_names):
    unsafe = "../up.mp4 a//b.mp4 ./a.mp4 a/../../b.mp4 c\\d.mp4 e::f.mp4".split()
    unsafe.append("a\nb.mp4")
    for key in ("good.mp4", *unsafe):
        store.store[f"/bucket/in/{key}"] = None  # fsspec's own calls refuse such paths

    def find(path, detail, maxdepth=None):
        return {name.lstrip("/"): {"size": 1, "type": "file", "etag": "x"} for name in store.store}

    store.find = find
    names, listing = list_names("gs://bucket/in/")
    assert names == ["good.mp4"]
    assert len(listing.refused) == len(unsafe)
    assert {one.exit_code for one in listing.refused} == {2}


def test_folders_and_globs_and_single_objects_are_listed(store, list_names):
    for key in ("cam1/a.mp4", "cam1/b.txt", "cam2/day/a.mp4", "x/cam3/a.mp4"):
        store.pipe_file(f"bucket/in/{key}", b"x")
    everything = ["cam1/a.mp4", "cam2/day/a.mp4", "x/cam3/a.mp4"]
    for specs, names in (
        (["in"], everything),
        (["in/"], everything),
        (["in/cam*/*.mp4"], ["cam1/a.mp4"]),
        (["in/cam?"], ["cam1/a.mp4", "cam2/day/a.mp4"]),
        (["in/**/a.mp4"], everything),
        (["in/cam2/day/a.mp4"], ["a.mp4"]),
        (["in/cam1/a.mp4", "in/cam2/"], ["a.mp4", "day/a.mp4"]),
    ):
        assert list_names(*(f"gs://bucket/{spec}" for spec in specs))[0] == names


def test_list_of_sources_may_contain_addresses_of_a_store(store, list_names, tmp_path):
    for key in ("in/cam1/a.mp4", "in/cam2/day/b.mp4"):
        store.pipe_file(f"bucket/{key}", b"x")
    make_sources(tmp_path / "here", "c.mp4")
    text = "# two\ngs://bucket/in/cam1/a.mp4\n\ngs://bucket/in/cam2/\ngs://bucket/in/none.mp4\n"
    (tmp_path / "list.txt").write_text(text + "here/c.mp4\n")
    names, listing = list_names("list.txt")
    assert names == ["cam1/a.mp4", "cam2/day/b.mp4", "c.mp4"]
    [missing] = listing.refused
    assert (missing.source, missing.exit_code) == ("gs://bucket/in/none.mp4", 3)
    store.pipe_file("bucket/list.txt", text.encode())
    assert list_names("gs://bucket/list.txt")[0] == ["cam1/a.mp4", "cam2/day/b.mp4"]
    store.pipe_file("bucket/list.txt", b"/etc/passwd.mp4\n")
    with pytest.raises(UsageError, match="only"):
        list_names("gs://bucket/list.txt")


def test_results_in_the_bucket_are_not_listed_as_sources(store, list_names):
    for key in ("a.mp4", "out/files/a.mp4/video.mp4"):
        store.pipe_file(f"bucket/{key}", b"x")
    assert list_names("gs://bucket")[0] == ["a.mp4"]


def test_home_folder_differs_per_endpoint(store, monkeypatch):
    here = BucketOutputs(PLACE).home
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://elsewhere:9000")
    assert BucketOutputs(PLACE).home != here
    assert Path(here).is_relative_to(os.environ["XDG_STATE_HOME"])
