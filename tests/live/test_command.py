"""The command on real servers: RTSP, and multipart JPEG with a clock in its pictures."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import av
import pytest

from detector import Detector
from tests.cli.command import detect_video, summary_of
from tests.live.servers import http, make_clip, read_clock, rtsp

pytestmark = [pytest.mark.net, pytest.mark.slow]
NULL = ("--engine", "null", "--json")


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    return make_clip(tmp_path_factory.mktemp("clip") / "clip.mp4")


def streams_of(process) -> dict[str, dict]:
    streams = {stream["name"]: stream for stream in summary_of(process)["streams"]}
    for stream in streams.values():
        assert stream["received"] == stream["processed"] + sum(stream["dropped"].values())
    return streams


def test_three_cameras_one_of_them_dead_and_no_word_of_the_password(tmp_path, clip):
    """Rows of both others, exit 0, a session that ``report`` reads; the password is nowhere."""
    secret = "sw0rdf1sh"
    with rtsp({"door": clip}, login=f"admin:{secret}") as server, http() as web:
        (tmp_path / "cameras.yaml").write_text(
            "cameras:\n"
            f"  - {{name: door, url: '{server.url('door', 'admin:${DOOR}')}'}}\n"
            f"  - {{name: yard, url: '{web.url('/mjpeg')}', rate: 5}}\n"
            f"  - {{name: dead, url: 'rtsp://admin:{secret}@127.0.0.1:9/x'}}\n"
        )
        process = detect_video(
            *("cameras.yaml", "--duration", 4, *NULL), cwd=tmp_path, env={"DOOR": secret}
        )
    assert process.returncode == 0, process.stderr
    streams = streams_of(process)
    assert {name: stream["processed"] > 0 for name, stream in streams.items()} == {
        "door": True,
        "yard": True,
        "dead": False,
    }
    assert streams["yard"]["dropped"]["rate"] > 0
    assert "port" in streams["dead"]["error"]
    for name in ("door", "yard"):
        (path,) = (tmp_path / "live" / name).glob("detections-*.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert len(rows) == streams[name]["processed"]
        counts = streams[name]["output_counts"]["jsonl"]
        assert counts == {"written": len(rows), "lost": 0, "bytes": path.stat().st_size}
        assert all(row["camera"] == name and row["age_ms"] > 0 for row in rows)
    decoding = summary_of(process)["decoding"]
    assert decoding["threads"] == 2  # the dead one decoded nothing
    assert decoding["calls"] >= sum(stream["processed"] for stream in streams.values())
    report = detect_video("report", summary_of(process)["session"], cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    (tmp_path / "cameras.yaml").unlink()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 5
    assert not [path for path in written if secret.encode() in path.read_bytes()]
    assert secret not in process.stdout + process.stderr


def test_a_camera_that_loses_its_power_comes_back(tmp_path, clip):
    """The other one sees nothing of it."""
    with rtsp({"door": clip}) as server, http() as web:
        (tmp_path / "cameras.yaml").write_text(
            "cameras:\n"
            f"  - {{name: door, url: '{server.url('door')}'}}\n"
            f"  - {{name: yard, url: '{web.url('/mjpeg')}'}}\n"
        )

        def cut_power() -> None:
            """When rows of it are there."""
            while not any(path.stat().st_size for path in tmp_path.glob("live/door/detections*")):
                time.sleep(0.05)
            server.kill()
            server.start()

        thread = threading.Thread(target=cut_power, daemon=True)
        thread.start()
        process = detect_video("cameras.yaml", "--duration", 9, *NULL, cwd=tmp_path)
        thread.join(1)
    assert process.returncode == 0, process.stderr
    door, yard = streams_of(process).values()
    assert door["reconnects"] >= 1
    assert door["processed"] > 0
    assert (yard["reconnects"], yard["stalls"]) == (0, 0)


def test_the_main_stream_is_recorded_while_the_smaller_one_is_detected(tmp_path, clip):
    main = make_clip(tmp_path / "main.mp4", size=(640, 360))
    with rtsp({"sub": clip, "main": main}) as server:
        (tmp_path / "cameras.yaml").write_text(
            f"cameras: [{{name: door, url: '{server.url('sub')}', "
            f"record_url: '{server.url('main')}'}}]"
        )
        process = detect_video(
            *("cameras.yaml", "--record", "copy", "--duration", 5, *NULL), cwd=tmp_path
        )
    assert process.returncode == 0, process.stderr
    assert streams_of(process)["door"]["size"] == "320x180"
    (path,) = (tmp_path / "live/door/video").glob("*.mp4")
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height) == (640, 360)
        pictures = len(list(container.decode(stream)))
    counts = streams_of(process)["door"]["output_counts"]["recording"]
    assert pictures > 10
    assert (counts["written"], counts["files"]) == (pictures, 1)
    assert counts["bytes"] == path.stat().st_size
    events = (tmp_path / "live/door").glob("events-*.jsonl")
    told = [json.loads(line) for path in events for line in path.read_text().splitlines()]
    assert [event["event"] for event in told] == ["camera_up", "camera_down"]


def test_no_camera_at_all(tmp_path):
    process = detect_video("rtsp://127.0.0.1:9/x", "--duration", 2, *NULL, cwd=tmp_path)
    assert process.returncode == 3
    assert "rtsp://127.0.0.1:9/x" in process.stderr + process.stdout
    assert not (tmp_path / "runs").exists()


def test_a_webcam_that_is_not_there_is_told_once(tmp_path):
    process = detect_video("/dev/video99", "--duration", 1, "--engine", "null", cwd=tmp_path)
    assert process.returncode == 3
    state, end = process.stderr.splitlines()
    assert "there is no webcam /dev/video99" in state
    assert state.endswith("; trying again in 1 s")
    assert end == "detect-video: no camera sent a picture"
    process = detect_video(
        *("/dev/video99", "--duration", 1, "--engine", "null", "--quiet"), cwd=tmp_path
    )
    assert process.returncode == 3
    assert process.stderr.startswith("detect-video: /dev/video99: there is no webcam")


def test_a_looped_file_beside_a_camera(tmp_path, clip):
    """It is a clip of a second or two, and goes on."""
    with http() as web:
        process = detect_video(
            *(clip, web.url("/mjpeg"), "--loop", "--duration", 4, *NULL), cwd=tmp_path
        )
    assert process.returncode == 0, process.stderr
    streams = streams_of(process)
    assert streams["clip"]["processed"] > 0
    assert len(streams) == 2


def test_age_from_python_agrees_with_the_clock_in_the_picture():
    """The age by arrival is that by the burnt clock, but for what the way here takes."""
    with http() as web, Detector(engine="null", nvtx=False) as detector:
        differences = []
        for frame, _ in detector.stream(web.url("/mjpeg")):
            arrival = frame.arrival
            assert arrival is not None
            burnt_s = read_clock(frame.image) / 1e6
            differences.append(arrival.utc_s - burnt_s)
            assert arrival.arrived_ns <= arrival.taken_ns <= arrival.began_ns
            assert arrival.inferred_ns <= arrival.result_ns <= time.perf_counter_ns()
            if len(differences) == 20:
                break
    differences.sort()
    assert 0 <= differences[10] < 0.1, "encoding and the way through the loopback"
