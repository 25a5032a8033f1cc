"""The command and the API with URLs of videos, pictures, web pages and cameras."""

import json
import os
import re
from contextlib import suppress
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from detector import Detector
from detector.core.config.levels import COMMAND_LINE, merge_levels
from detector.core.errors import SourceError, UsageError
from detector.core.run.outputs import stem_of
from detector.live.guest import reads_cameras
from tests.cli.command import detect_video, run_ok
from tests.live.servers import free_port, http, make_clip, mpeg_ts
from tests.sources.clips import write_video
from tests.sources.web_server import web_server
from tests.waiting import wait_for

pytestmark = pytest.mark.net
NULL = ("--engine", "null", "--json")
TOKEN = "T0kenPlanted"
JPEG = cv2.imencode(".jpg", np.full((40, 60, 3), 90, np.uint8))[1].tobytes()
PAGE = b"<!doctype html><title>x</title>"


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> bytes:
    return write_video(tmp_path_factory.mktemp("www") / "clip.mp4", 50).read_bytes()


@pytest.fixture
def web(clip):
    with web_server() as server:
        server.put("/clip.mp4", clip)
        server.put("/a.jpg", JPEG, kind="image/jpeg")
        server.put("/watch", PAGE, kind="text/html", length=False, ranges=False)
        yield server


@pytest.fixture
def out(tmp_path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def summary(process) -> dict:
    return json.loads(process.stdout)


def assert_hidden(secret: str, folder: Path, *texts: str) -> None:
    assert not any(secret in text for text in texts)
    for path in folder.rglob("*"):
        assert secret not in path.name
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


@pytest.mark.slow
def test_outputs_of_a_video_url_are_named_after_the_url(web, out):
    web.put("/a%20b/caf%C3%A9.mp4", web.pages["/clip.mp4"].data)
    url = f"{web.url('/a%20b/caf%C3%A9.mp4')}?token={TOKEN}&sig={TOKEN}2"
    process = run_ok(url, "--start", "0.4", "--duration", "1", *NULL, cwd=out)
    document = summary(process)
    assert document["frames"]["written"] == 25
    assert document["video"]["path"] == web.url("/a%20b/caf%C3%A9.mp4")
    assert (document["video"]["frames_declared"], document["video"]["duration_s"]) == (50, 2.0)
    assert document["outputs"] == {
        "jsonl": "café-null-detected.jsonl",
        "video": "café-null-detected.mp4",
    }
    with av.open(str(out / "café-null-detected.mp4")) as container:
        assert len(list(container.decode(video=0))) == 25
    rows = (out / "café-null-detected.jsonl").read_text().splitlines()
    assert [json.loads(row)["frame"] for row in rows] == list(range(10, 35))
    assert_hidden(TOKEN, out, process.stdout, process.stderr)
    # A second run may choose another name for its outputs.
    assert detect_video(url, "-o", "x.mp4", *NULL, cwd=out).returncode == 0
    assert (out / "x.jsonl").exists()


@pytest.mark.slow
def test_picture_url_gives_one_file(web, out):
    process = run_ok(f"{web.url('/a.jpg')}?token={TOKEN}", *NULL, cwd=out)
    document = summary(process)
    assert (document["frames"]["written"], document["video"]["kind"]) == (1, "pictures")
    assert document["outputs"]["pictures"] == "a-null-detected.jpg"
    assert cv2.imread(str(out / "a-null-detected.jpg")).shape == (40, 60, 3)
    assert_hidden(TOKEN, out, process.stdout, process.stderr)
    process = run_ok(web.url("/a.jpg"), "-o", "one.jpg", *NULL, cwd=out)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/watch?v=T0kenPlanted", ["web page", "yt-dlp"]),
        ("/none.mp4", ["no such file"]),
        ("/guarded.mp4", ["user or password"]),
        ("/broken.mp4", ["HTTP 500"]),
        ("/empty.mp4", ["0 bytes"]),
        *((f"/length/{stated}", ["Content-Length"]) for stated in (10**30, -5, "abc", "17 18")),
        ("/range.mp4", [str(10**30)]),
    ],
)
def test_address_without_a_video_file_exits_3_with_one_line(web, out, path, words):
    web.put("/guarded.mp4", status=401)
    web.put("/broken.mp4", status=500)
    web.put("/empty.mp4")
    web.put("/range.mp4", status=206, headers={"Content-Range": f"bytes 0-1/{10**30}"})
    if path.startswith("/length/"):
        stated, path = tuple(path.removeprefix("/length/").split()), "/clip.mp4"
        web.put(path, web.pages[path].data, length=stated, ranges=False)
    process = detect_video(web.url(path), "--engine", "null", cwd=out)
    assert process.returncode == 3
    (line,) = process.stderr.splitlines()
    assert all(word in line for word in words)
    assert TOKEN not in line
    assert os.listdir(out) == []


@pytest.mark.slow
def test_broken_connection_exits_7_and_keeps_the_frames(web, out):
    page = web.pages["/clip.mp4"]
    page.cut = len(page.data) // 2
    process = detect_video(web.url("/clip.mp4"), *NULL, cwd=out)
    assert process.returncode == 7, process.stderr
    document = summary(process)
    assert 0 < document["frames"]["written"] < 50
    assert any("beyond byte" in note for note in document["notes"])
    with av.open(str(out / document["outputs"]["video"])) as container:
        assert len(list(container.decode(video=0))) == document["frames"]["written"]


@pytest.mark.slow
def test_several_urls_have_separate_outputs(web, out):
    process = detect_video(
        *(web.url("/a.jpg"), web.url("/clip.mp4"), web.url("/gone.mp4")), *NULL, cwd=out
    )
    assert process.returncode == 3  # the same code as for a missing file
    assert [one["frames"]["written"] for one in summary(process)["sources"]] == [1, 50, 0]
    assert {"a-null-detected.jpg", "clip-null-detected.mp4"} <= set(os.listdir(out))


@pytest.mark.slow
def test_outputs_that_need_a_file_are_refused(web, out):
    process = detect_video(web.url("/clip.mp4"), "--save", "overlay", *NULL, cwd=out)
    assert process.returncode == 2
    assert "local file" in process.stderr


# Files and cameras.


def config(**given):
    return merge_levels((COMMAND_LINE, given)), given


def test_camera_option_prevents_any_request_to_the_address(web):
    for given in ({"policy": "latest"}, {"record": "copy"}, {"wait": True}, {"repeat": True}):
        assert reads_cameras([web.url("/clip.mp4"), web.url("/watch")], *config(**given))
    assert web.requests == []
    assert not reads_cameras([web.url("/clip.mp4")], *config())
    assert len(web.requests) == 1


def test_files_and_web_pages_among_cameras_are_refused(web):
    with http() as cameras:
        video = cameras.url("/mjpeg")
        assert reads_cameras([video], *config())
        with pytest.raises(UsageError, match="--live latest"):
            reads_cameras([video, web.url("/clip.mp4")], *config())
        with pytest.raises(SourceError, match="web page"):
            reads_cameras([video, web.url("/watch")], *config())


@pytest.mark.slow
def test_video_url_is_looped_at_the_frame_rate_of_the_video(tmp_path, out):
    clip = make_clip(tmp_path / "clip.mp4", pictures=25)
    with web_server() as web:
        url = web.put("/street.mp4", clip.read_bytes())
        process = detect_video(url, "--loop", "--frames", 40, *NULL, cwd=out)
    assert process.returncode == 0, process.stderr
    (stream,) = summary(process)["streams"]
    assert (stream["name"], stream["reconnects"]) == ("street", 0)
    assert summary(process)["frames"]["read"] >= 40  # more than the clip has
    assert stream["camera_fps"] == pytest.approx(25, rel=0.3)


@pytest.mark.slow
def test_stream_without_a_length_is_reported_as_live(tmp_path, out):
    clip = make_clip(tmp_path / "clip.ts", pictures=100)
    with web_server() as web:
        url = web.put("/live", clip.read_bytes() * 20, length=False, ranges=False, kind="video/x")
        process = detect_video(url, "--frames", 5, "--engine", "null", cwd=out)
    assert process.returncode == 0, process.stderr
    assert "live stream" in process.stderr
    assert "detect-video -" in process.stderr


@pytest.mark.slow
def test_server_for_a_single_client_gets_only_one_connection(tmp_path, out):
    """``ffmpeg -listen 1`` ends when its client disconnects, so we must not probe it first."""
    clip = make_clip(tmp_path / "clip.mp4")
    url = f"http://127.0.0.1:{free_port()}/x"
    with mpeg_ts(clip, url) as server:
        wait_for(lambda: listens(server.pid))
        process = detect_video(url, "--frames", 20, *NULL, cwd=out)
    assert process.returncode == 0, process.stderr
    (stream,) = summary(process)["streams"]
    assert (stream["processed"], stream["reconnects"]) == (20, 0)


def listens(pid: int) -> bool:
    """Return whether the process has a socket. We must not connect: it serves one client only."""
    with suppress(FileNotFoundError):  # the process closed a file meanwhile
        folder = Path(f"/proc/{pid}/fd")
        return any(os.readlink(one).startswith("socket:") for one in folder.iterdir())
    return False


def test_output_name_is_the_last_part_of_the_address():
    assert stem_of(f"http://h/a/clip.mp4?x={TOKEN}.mp4") == "clip"
    assert stem_of("http://h/get?file=a/b.mp4") == "get"
    assert stem_of("https://h:81/") == "h:81"
    assert len(os.fsencode(stem_of(f"http://h/{'é' * 300}.mp4"))) <= 200


# The Python API.


@pytest.mark.slow
def test_detector_reads_urls(web):
    with Detector(engine="null", nvtx=False) as detector:
        assert len(detector(f"{web.url('/a.jpg')}?token={TOKEN}")) == 0
        assert len(detector([web.url("/a.jpg")] * 2)) == 2
        with pytest.raises(UsageError, match=r"use stream\(") as refused:
            detector(f"{web.url('/clip.mp4')}?token={TOKEN}")
        assert TOKEN not in str(refused.value)
        with pytest.raises(SourceError, match="web page"):
            detector(web.url("/watch"))
        with http() as cameras, pytest.raises(UsageError, match=r"stream\("):
            detector(cameras.url("/mjpeg"))
        frames = [frame for frame, _ in detector.stream(f"{web.url('/clip.mp4')}?token={TOKEN}")]
        assert [frame.index for frame in frames] == list(range(50))
        assert frames[0].source.path == web.url("/clip.mp4")
        assert [frame.name for frame, _ in detector.stream(web.url("/a.jpg"))] == ["a.jpg"]
        with pytest.raises(SourceError, match="web page"):
            next(detector.stream(web.url("/watch")))


def test_stream_of_an_unreachable_camera_raises():
    for patience_s in (1.0, 10.0, 60.0):  # a slow machine needs longer to find the reason
        with (
            Detector(engine="null", nvtx=False, start_timeout=patience_s) as detector,
            pytest.raises(SourceError) as ended,
        ):
            next(detector.stream("http://127.0.0.1:9/video"))
        if "nothing listens" in str(ended.value):
            break
    assert re.search(r"nothing listens.*wait", str(ended.value)), ended.value
