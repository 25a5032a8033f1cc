"""The command ``batch`` end to end: layout, resume, documents, errors, signals."""

import json
import os
import signal

import pytest

from detector.batch.documents import ItemCounts
from detector.core.session.codec import to_builtins
from tests.batch.killing import children_of, is_worker
from tests.cli.command import assert_one_line_error, detect_video, rows_of, start, summary_of
from tests.cli.small import write_network
from tests.sources.clips import write_video
from tests.sources.oddities import ffmpeg
from tests.waiting import wait_for


@pytest.fixture
def place(tmp_path):
    for name in ("in/a.mp4", "in/sub/b.mp4"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_video(tmp_path / name, 12)
    (tmp_path / "in/text.mp4").write_text("no video")
    write_network(tmp_path)
    return tmp_path


MODEL = ("--model", "x.cfg", "--engine", "ort", "--conf", "0.1")


@pytest.mark.slow
def test_job_is_run_resumed_reported_planned_and_pruned(place):
    words = ("batch", "in", "-o", "out", *MODEL, "--workers", 2, "--one-csv")
    done = detect_video(*words, "--json", "--progress", "progress.jsonl", cwd=place)
    assert done.returncode == 7, done.stderr
    result = summary_of(done)
    assert result["items"] == to_builtins(ItemCounts(done=2, failed=1))
    (failure,) = result["failures"]
    assert failure["source"] == str(place / "in/text.mp4")
    assert (failure["tries"], failure["exit_code"]) == (1, 3)
    assert (result["frames"], result["workers"], result["exit"]["code"]) == (24, 2, 7)
    assert result["seconds"] > 0
    assert result["fps"] > 0
    report = result["report"]
    assert report["ledger"]["stages"]["infer"]["calls"] == 24
    assert sum(worker["items"] for worker in report["workers"]) == 2
    table = (place / "out/detections.csv").read_text().splitlines()
    found = result["found"]
    assert len(table) - 1 == found["classes"]["class0"] > 0
    assert (found["filled"], found["empty"], found["damaged"]) == (2, [], [])
    for name in ("a.mp4", "sub/b.mp4"):
        folder = place / "out/files" / name
        assert set(os.listdir(folder)) == {"detections.jsonl", "done.json", "video.mp4"}
        assert len(rows_of(folder / "detections.jsonl")) == 12
    last = rows_of(place / "progress.jsonl")[-1]
    assert (last["done"], last["failed"], last["left"]) == (2, 1, 0)

    # A single run with the job's settings gives the same rows.
    single = (place / "in/a.mp4", "--config", "out/settings.yaml", "-o", "single/", "--no-video")
    assert detect_video(*single, "-q", cwd=place).returncode == 0
    (rows,) = (place / "single").glob("*.jsonl")
    assert rows.read_bytes() == (place / "out/files/a.mp4/detections.jsonl").read_bytes()
    assert any(row["detections"] for row in rows_of(rows))

    again = detect_video(*words, cwd=place)
    assert_one_line_error(again, 2, "--resume")
    (place / "in/text.mp4").unlink()
    write_video(place / "in/a.mp4", 7)
    resumed = detect_video("batch", "-o", "out", "--resume", "--json", cwd=place)
    assert resumed.returncode == 0, resumed.stderr
    items = summary_of(resumed)["items"]
    assert (items["done"], items["skipped"], items["failed"]) == (1, 1, 0)
    assert len(rows_of(place / "out/files/a.mp4/detections.jsonl")) == 7

    status = summary_of(detect_video("batch", "-o", "out", "--status", "--json", cwd=place))
    assert (status["items"]["done"], status["running"]) == (2, False)
    status_text = detect_video("batch", "-o", "out", "--status", cwd=place)
    assert "2 done" in status_text.stdout
    assert "found: 57 class0\n2 files with objects, 0 empty" in status_text.stdout
    (place / "in/sub/b.mp4").unlink()
    write_video(place / "in/c.mp4", 3)
    dry = detect_video("batch", "-o", "out", "--resume", "--dry-run", "--json", cwd=place)
    planned = summary_of(dry)["planned"]
    assert (planned["new"], planned["skipped"], planned["vanished"]) == (1, 1, 1)
    pruned = detect_video("batch", "-o", "out", "--prune", cwd=place)
    assert pruned.returncode == 0, pruned.stderr
    assert not (place / "out/files/sub").exists()
    assert not (place / "out/files/c.mp4").exists()  # only --resume processes items
    (place / "in/a.mp4").unlink()
    both = detect_video("batch", "-o", "out", "--resume", "--prune", "--json", cwd=place)
    assert summary_of(both)["items"]["done"] == 1
    assert [path.name for path in (place / "out/files").iterdir()] == ["c.mp4"]


@pytest.mark.slow
def test_names_of_output_files_do_not_contain_the_name_of_the_item(place):
    save = "csv,coco,yolo,crops,overlay,player"
    done = detect_video("batch", "in/a.mp4", "-o", "out", *MODEL, "--save", save, "-q", cwd=place)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    folder = place / "out/files/a.mp4"
    names = {path.name for path in folder.iterdir()}
    rows = {f"detections.{suffix}" for suffix in ("coco.json", "coco-results.json", "csv", "jsonl")}
    assert names == {*rows, "crops", "done.json", "labels", "overlay.mkv", "player.html"}
    assert '"./../../../in/a.mp4"' in (folder / "player.html").read_text()


@pytest.mark.slow
def test_signal_leaves_no_partial_results_and_the_job_can_be_resumed(place):
    (place / "in/text.mp4").unlink()
    # The job needs minutes, so that it is unfinished when the signal arrives.
    loops = ("-stream_loop", "199", "-i", write_video(place / "short.mp4", 50), "-c", "copy")
    ffmpeg(*loops, place / "in/long.mp4")
    words = ("batch", "in", "-o", "out", "--workers", 1, "--quality", "small", "--engine", "ort")
    process = start(*words, "--progress", "progress.jsonl", cwd=place)

    def has_begun():
        assert process.poll() is None
        if not (place / "progress.jsonl").exists():
            return False
        rows = (place / "progress.jsonl").read_text().splitlines()
        return rows and json.loads(rows[-1])["frames"] > 0

    wait_for(has_begun, what="a frame")
    workers = [pid for pid in children_of(process.pid) if is_worker(pid)]
    assert len(workers) == 1
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert not any(map(is_worker, workers))
    assert not (place / "out/files/long.mp4").exists()
    assert [path for path in (place / "out").iterdir() if "item" in path.name] == []
    (place / "in/long.mp4").unlink()
    resumed = detect_video("batch", "-o", "out", "--resume", "--json", cwd=place)
    assert resumed.returncode == 0, resumed.stderr
    assert summary_of(resumed)["items"]["left"] == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("in", "-o", "https://host/out"), 2, "read-only"),
        (("in", "-o", "s3://bucket/out", "--sort", "empty"), 2, "--sort"),
        (("https://user:pass@host/in.mp4", "-o", "out"), 2, "netrc"),
        (("gone", "-o", "out"), 3, "gone"),
        (("-o", "out"), 2, "SOURCE"),
        (("in", "-o", "-"), 2, "folder"),
        (("in", "-o", "out", "--shard", "3/2"), 2, "--shard 3/2"),
        (("in", "-o", "out", "--on", "cluster"), 2, "ray://HOST:PORT"),
        (("-o", "out", "--status"), 2, "no batch job"),
        (("-o", "out", "--prune"), 2, "no batch job"),
        (("-o", "out", "--resume"), 2, "no batch job"),
        (("in", "-o", "out", "--conf", "7"), 2, "--conf"),
        (("in", "-o", "out", "--engine", "nosuch"), 2, "nosuch"),
        (("in", "-o", "out", "--model", "gone.onnx"), 4, "gone.onnx"),
        (("in", "-o", "x.cfg"), 6, "x.cfg"),
        (("rtsp://host/stream", "-o", "out"), 2, "mount"),
        (("in", "-o", "out", "--progress", "none/file"), 6, "none/file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
@pytest.mark.slow
def test_invalid_job_exits_with_a_one_line_error(place, words, code, message):
    assert_one_line_error(detect_video("batch", *words, cwd=place), code, message)
    done = detect_video("batch", *words, "--json", cwd=place)
    if code != 2 or "--conf" not in words:
        assert summary_of(done)["exit"]["code"] == code


@pytest.mark.slow
def test_progress_to_standard_error_prints_only_json(place):
    done = detect_video(
        "batch", "in/a.mp4", "-o", "out", *MODEL, "--progress", "-", "--no-video", cwd=place
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stderr.splitlines()]
    assert rows[-1]["done"] == 1
    assert "1 done" in done.stdout


@pytest.mark.parametrize("source", ["ftp://host/videos", "nowhere"])
def test_invalid_source_creates_no_output_folder(tmp_path, source):
    done = detect_video("batch", source, "-o", "job", cwd=tmp_path)
    assert done.returncode in (2, 3)
    assert source in done.stderr
    assert list(tmp_path.iterdir()) == []
