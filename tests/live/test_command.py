"""Test the command with real servers: RTSP, and multipart JPEG with a clock in its pictures."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import pytest

from detector import Detector
from detector.live.base import count_drops
from tests.cli.command import detect_video, start, summary_of
from tests.live.servers import http, make_clip, rtsp
from tests.live.streams import read_number
from tests.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.net, pytest.mark.slow]
NULL = ("--engine", "null", "--json")
PARTIAL = "live/door/video/*.partial.mp4"


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    return make_clip(tmp_path_factory.mktemp("clip") / "clip.mp4")


class LiveRun:
    def __init__(self, folder: Path, *arguments: object, **more) -> None:
        self.folder = folder
        self.process = start(*arguments, *NULL, cwd=folder, **more)

    def rows(self, camera: str) -> list[dict]:
        paths = sorted((self.folder / "live" / camera).glob("detections-*.jsonl"))
        lines = [line for path in paths for line in path.read_text().splitlines(keepends=True)]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for_rows(self, count: int, *cameras: str) -> None:
        before = {name: len(self.rows(name)) for name in cameras}
        for name in cameras:
            wait_for(lambda name=name: len(self.rows(name)) >= before[name] + count)

    def end(self) -> subprocess.CompletedProcess[str]:
        self.process.send_signal(signal.SIGTERM)
        output = self.process.communicate(PATIENCE_S)
        return subprocess.CompletedProcess([], self.process.returncode, *output)


@contextmanager
def live_run(folder: Path, *words: object, **more) -> Iterator[LiveRun]:
    run = LiveRun(folder, *words, **more)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.communicate(PATIENCE_S)


def streams_of(process) -> dict[str, dict]:
    streams = {stream["name"]: stream for stream in summary_of(process)["streams"]}
    for stream in streams.values():
        assert stream["received"] == stream["processed"] + sum(stream["dropped"].values())
    return streams


def test_run_with_a_missing_camera_still_counts_frames_of_the_others(tmp_path, clip):
    secret = "sw0rdf1sh"
    with rtsp({"door": clip}, login=f"admin:{secret}") as server, http() as web:
        web.fps = 50
        (tmp_path / "cameras.yaml").write_text(
            "cameras:\n"
            f"  - {{name: door, url: '{server.url('door', 'admin:${DOOR}')}'}}\n"
            f"  - {{name: yard, url: '{web.url('/mjpeg')}', rate: 5}}\n"
            f"  - {{name: dead, url: 'rtsp://admin:{secret}@127.0.0.1:9/x'}}\n"
        )
        with live_run(tmp_path, "cameras.yaml", env={"DOOR": secret}) as run:
            run.wait_for_rows(5, "door", "yard")
            process = run.end()
    assert process.returncode == 143, process.stderr
    streams = streams_of(process)
    assert {name: stream["processed"] > 0 for name, stream in streams.items()} == {
        "door": True,
        "yard": True,
        "dead": False,
    }
    assert streams["yard"]["dropped"]["rate"] > 0
    shares = [count_drops(one["dropped"], one["received"])[1] for one in streams.values()]
    assert shares == [one["dropped_share"] for one in streams.values()]
    assert count_drops({"rate": 80, "newer": 2}, 100) == (2, 0.1)
    assert "port" in streams["dead"]["error"]
    for name in ("door", "yard"):
        rows = run.rows(name)
        assert len(rows) == streams[name]["processed"]
        counts = streams[name]["output_counts"]["jsonl"]
        size = sum(path.stat().st_size for path in (tmp_path / "live" / name).glob("detections-*"))
        assert counts == {"written": len(rows), "lost": 0, "bytes": size}
        assert all(row["camera"] == name and row["age_ms"] > 0 for row in rows)
    decoding = summary_of(process)["decoding"]
    assert decoding["threads"] == 2  # the missing camera decoded nothing
    assert decoding["calls"] >= sum(stream["processed"] for stream in streams.values())
    report = detect_video("report", summary_of(process)["session"], cwd=tmp_path)
    assert report.returncode == 0, report.stderr


def test_recording_reads_record_url_and_detection_reads_url(tmp_path, clip):
    main = make_clip(tmp_path / "main.mp4", size=(640, 360))
    with rtsp({"sub": clip, "main": main}) as server:
        (tmp_path / "cameras.yaml").write_text(
            f"cameras: [{{name: door, url: '{server.url('sub')}', "
            f"record_url: '{server.url('main')}'}}]"
        )
        with live_run(tmp_path, "cameras.yaml", "--record", "copy") as run:
            wait_for(lambda: any(path.stat().st_size for path in tmp_path.glob(PARTIAL)))
            run.wait_for_rows(60, "door")
            process = run.end()
    assert process.returncode == 143, process.stderr
    assert streams_of(process)["door"]["size"] == "320x180"
    paths, pictures = [*(tmp_path / "live/door/video").glob("*.mp4")], 0
    for path in paths:  # more than one if this machine stalls for ten seconds
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            assert (stream.width, stream.height) == (640, 360)
            pictures += len(list(container.decode(stream)))
    counts = streams_of(process)["door"]["output_counts"]["recording"]
    assert pictures > 10
    assert (counts["written"], counts["files"]) == (pictures, len(paths))
    assert counts["bytes"] == sum(path.stat().st_size for path in paths)
    rows = (tmp_path / "live/door").glob("events-*.jsonl")
    rows = [json.loads(line) for path in rows for line in path.read_text().splitlines()]
    names = [event["event"] for event in rows]
    # More than one pair if this machine stalls for seconds.
    assert names == ["camera_up", "camera_down"] * (len(names) // 2)
    assert names


def test_missing_webcam_is_reported_once(tmp_path):
    process = detect_video("/dev/video99", "--duration", 4, "--engine", "null", cwd=tmp_path)
    assert process.returncode == 3
    assert not (tmp_path / "runs").exists()
    state, end = process.stderr.splitlines()
    assert "/dev/video99" in state
    assert state.endswith("; retrying in 1 s")
    assert end.startswith("detect-video: no camera")
    process = detect_video(
        *("/dev/video99", "--duration", 3, "--engine", "null", "--quiet"), cwd=tmp_path
    )
    assert process.returncode == 3
    assert process.stderr.startswith("detect-video: /dev/video99: ")


def test_age_from_python_agrees_with_the_clock_in_the_picture():
    """A picture's arrival minus the time drawn in it is its transit time. On a busy machine many
    pictures are late, so the shortest transit counts."""
    with http() as web, Detector(engine="null", nvtx=False) as detector:
        differences = []
        for frame, _ in detector.stream(web.url("/mjpeg")):
            arrival = frame.arrival
            assert arrival is not None
            burnt_s = read_number(frame.image) / 1e6
            differences.append(arrival.utc_s - burnt_s)
            assert arrival.arrived_ns <= arrival.taken_ns <= arrival.began_ns
            assert arrival.inferred_ns <= arrival.result_ns <= time.perf_counter_ns()
            if len(differences) >= 20 and (min(differences) < 0.1 or len(differences) == 1000):
                break
    assert 0 <= min(differences) < 0.1, "only encoding and the loopback take time"


def test_check_reports_all_errors_of_a_list_and_opens_no_camera(tmp_path):
    wrong = [
        "{name: a b, url: 'rtsp://u:${NOT_SET}@127.0.0.1:1/1', rate: fast}",  # three errors
        "{name: c, uri: 'rtsp://127.0.0.1:1/2'}",
        "{name: d, url: 'rtsp://127.0.0.1:1/3', classes: [persn]}",  # hidden by other errors
    ]
    more = ["{name: D, url: 'rtsp://127.0.0.1:1/4'}, {url: '0', classes: [dog], tiles: big}"]
    more_options = ["--webhook", "localhost:9000", "--mqtt", "localhost/dv", "--serve", "0.0.0.0:0"]
    cases = ((wrong, 5, []), (["0"], 0, []), (wrong[-1:], 1, []), (wrong + more, 12, more_options))
    for entries, errors, options in cases:
        events = "events: {webhok: {}}, " if options else ""
        (tmp_path / "cameras.yaml").write_text(f"{{{events}cameras: [{', '.join(entries)}]}}")
        done = detect_video("cameras.yaml", "--check", *options, cwd=tmp_path)
        assert done.returncode == (2 if errors else 0)
        lines = [line for line in done.stderr.splitlines() if line.startswith("detect-video: ")]
        assert len(lines) == errors, done.stderr
        assert bool(done.stdout) is (errors == 0)
    assert [path.name for path in tmp_path.iterdir()] == ["cameras.yaml"]
    assert detect_video("absent.yaml", "--check", cwd=tmp_path).returncode == 3
    (tmp_path / "live").mkdir()
    (tmp_path / "live/zones.yaml").write_text("lines: 3")  # drawn in an earlier run, then damaged
    (tmp_path / "cameras.yaml").write_text("cameras: ['0']")
    assert "live/zones.yaml" in detect_video("cameras.yaml", "--check", cwd=tmp_path).stderr
