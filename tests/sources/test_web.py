"""Files of web servers: the same frames as local files, broken connections, logins, playlists."""

import gzip
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import pytest

from detector.core import sources
from detector.core.errors import SourceError, UsageError
from detector.core.sources import _answers, _ranges, _web
from detector.core.sources.video import _stored
from tests.sources.clips import assert_equal, read_all, write_video
from tests.sources.web_server import make_certificate, web_server
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.net
RESPONSES = {
    "ranges": {},
    "plain": {"ranges": False},
    "chunked": {"ranges": False, "length": False},
}
every_response = pytest.mark.parametrize("response", RESPONSES)


@pytest.fixture
def web(monkeypatch):
    monkeypatch.setattr(_web, "PAUSES_S", (0.01, 0.01))
    _answers._known.clear()
    with web_server() as server:
        yield server


@every_response
@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts"])
def test_web_video_gives_the_frames_of_the_file(web, tmp_path, response, suffix):
    path = write_video(tmp_path / f"clip{suffix}", 30)
    url = web.put(f"/clip{suffix}", path.read_bytes(), kind="video/x", **RESPONSES[response])
    if response == "chunked" and suffix == ".ts":  # without a length it is a live stream
        assert sources.find_claiming(url).__name__ == "LiveSource"
        return
    frames, source = read_all(url)
    expected, _ = read_all(path, decoder="av")
    assert_equal(frames, expected)
    assert (source.info.path, source.info.kind) == (url, "video")
    assert not source.damaged


def test_compressed_response_is_decoded(web, tmp_path):
    """Some servers compress unasked; then lengths and ranges count compressed bytes."""
    data = write_video(tmp_path / "clip.mp4", 30).read_bytes()
    url = web.put("/clip.mp4", gzip.compress(data), headers={"Content-Encoding": "gzip"})
    frames, source = read_all(url)
    assert (len(frames), source.damaged) == (30, False)


@every_response
def test_index_at_the_end_is_read(web, tmp_path, response):
    path = write_video(tmp_path / "clip.mov", 24)  # MOV without +faststart
    url = web.put("/clip.mov", path.read_bytes(), **RESPONSES[response])
    frames, source = read_all(url)
    assert len(frames) == 24
    assert source.info.frames_declared == 24
    assert source.info.duration_s == pytest.approx(0.96)


@pytest.mark.slow
def test_only_needed_ranges_are_requested(web, tmp_path, monkeypatch):
    monkeypatch.setattr(_ranges, "BLOCK", 1 << 12)
    path = write_video(tmp_path / "clip.mp4", 100, g="10", crf="1")
    url = web.put("/clip.mp4", path.read_bytes())
    with sources.open(url, frames=5) as source:
        assert len(list(source)) == 5
        assert source._object.received < path.stat().st_size / 2
        assert not source.damaged


def test_reopened_source_sends_no_new_request(web, tmp_path):
    url = web.put("/clip.mp4", write_video(tmp_path / "clip.mp4").read_bytes(), ranges=False)
    with sources.keep_open([url]):
        assert len(read_all(url)[0]) == len(read_all(url)[0]) == 24
    assert len(web.requests) == 2  # the first request identified the file
    assert len(read_all(url)[0]) == 24
    assert len(web.requests) == 3


@pytest.mark.parametrize("response", ["ranges", "plain"])
def test_seek_backwards_or_far_ahead_sends_a_request(web, response):
    """A small gap ahead is read without a request. Without ranges, there is only one request."""
    data, far = np.random.default_rng(0).bytes(3 * _web.MOST_SKIPPED), _web.MOST_SKIPPED
    with closing(_web.WebFile(_web.WebPlace(web.put("/x", data, **RESPONSES[response])))) as file:
        for at, requests in ((0, 1), (5, 1), (3, 2), (4 + far, 2), (6 + 2 * far, 3), (2, 4)):
            file.seek(at)
            assert file.read(1) == data[at : at + 1]
            assert len(web.requests) == (requests if response == "ranges" else 1)


@every_response
def test_permanently_broken_connection_keeps_received_frames(web, tmp_path, response):
    path = write_video(tmp_path / "clip.mp4", 50, g="5")
    data = path.read_bytes()
    url = web.put("/clip.mp4", data, cut=len(data) * 2 // 3, **RESPONSES[response])
    frames, source = read_all(url)
    expected, _ = read_all(path, decoder="av")
    assert 20 < len(frames) < 50
    assert_equal(frames[:20], expected[:20])
    assert source.counts.ended_early
    assert any(f"{len(data) * 2 // 3}" in note for note in source.notes)


@pytest.mark.parametrize("response", ["ranges", "plain"])
def test_broken_connection_is_reopened(web, tmp_path, response):
    path = write_video(tmp_path / "clip.mp4", 50, g="5")
    data = path.read_bytes()
    url = web.put("/clip.mp4", data, cut=len(data) // 2, **RESPONSES[response])
    _answers.identify(url)
    web.pages["/clip.mp4"].cuts = 2
    frames, source = read_all(url)
    assert_equal(frames, read_all(path, decoder="av")[0])
    assert not source.damaged


def test_short_responses_are_continued(web, tmp_path):
    """Each connection ends early, but delivers a fifth of the file."""
    data = write_video(tmp_path / "clip.mp4", 50).read_bytes()
    url, length = web.put("/clip.mp4", data), len(data) // 5

    class CutFromStart(int):
        """A cut at the same distance from the start of each response."""

        def __sub__(self, start):
            return length

    web.pages["/clip.mp4"].cut = CutFromStart(length)
    frames, source = read_all(url)
    assert (len(frames), source.damaged) == (50, False)
    assert len(web.requests) > 5


def test_video_without_a_readable_frame_is_refused(web, tmp_path):
    data = write_video(tmp_path / "clip.mp4", 50).read_bytes()
    url = web.put("/clip.mp4", data, cut=100)
    with pytest.raises(SourceError, match="beyond byte 100"):
        sources.open(url)
    url = web.put("/lie.mp4", bytes(range(256)) * 20)
    with pytest.raises(SourceError, match="FFmpeg cannot read"):
        sources.open(url)


def test_reading_stops_if_the_file_is_replaced(web, monkeypatch):
    monkeypatch.setattr(_ranges, "BLOCK", 1 << 12)
    data = bytes(range(256)) * 100
    url = web.put("/clip.mp4", data, headers={"ETag": '"first"'})
    stored = _web.open_web(_web.WebPlace(url))
    assert stored.read(0, 10) == data[:10]
    web.pages["/clip.mp4"].headers["ETag"] = '"second"'
    stored._file._drop()
    assert stored.read(1 << 13, 10) == b""
    assert "changed" in str(stored.error)
    assert stored.read(0, 10) == data[:10]
    stored.close()


def test_stopping_run_does_not_wait_for_the_server(web, monkeypatch):
    monkeypatch.setattr(_web, "CHECK_S", 0.02)
    url, silent = web.put("/clip.mp4", bytes(1000)), threading.Event()
    web.pages["/clip.mp4"].cut, web.pages["/clip.mp4"].silent = 100, silent
    with closing(_web.open_web(_web.WebPlace(url))) as stored:
        monkeypatch.setattr(stored, "stopped", lambda: stored.received >= 100)
        assert stored.read(0, 1000) == bytes(100)
        assert "timed out" not in str(stored.error)
    silent.set()


def test_finished_run_does_not_stop_the_stream_of_another(web):
    place = _web.WebPlace(web.put("/clip.mp4", bytes(9)))
    with _web.keep_open():
        with _web.cut_when(lambda: True):
            opened = _web.open_web(place)
            assert opened.stopped()
        assert _web.open_web(place) is opened
        with _web.cut_when(lambda: True):
            assert not opened.stopped()
    opened.end()


def test_streams_of_two_threads_stop_separately(web):
    place, both = _web.WebPlace(web.put("/clip.mp4", bytes(9))), threading.Barrier(2)

    def opened(stops):
        with _web.cut_when(lambda: stops):
            both.wait(PATIENCE_S)
            with closing(_web.open_web(place)) as stored:
                return stored.stopped()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(opened, [True, False])) == [True, False]


def test_two_threads_read_addresses_that_differ_in_the_query(web, tmp_path, monkeypatch):
    both, probe = threading.Barrier(2), _stored.probe

    def probed(*arguments):
        both.wait(PATIENCE_S)
        return probe(*arguments)

    monkeypatch.setattr(_stored, "probe", probed)
    clips = {count: write_video(tmp_path / f"{count}.mp4", count) for count in (5, 9)}
    urls = [web.put(f"/clip.mp4?of={n}", clip.read_bytes()) for n, clip in clips.items()]
    with ThreadPoolExecutor(2) as pool:
        assert [len(frames) for frames, _ in pool.map(read_all, urls)] == [5, 9]


def test_password_is_sent_only_to_the_host_of_the_address(web, tmp_path):
    data = write_video(tmp_path / "clip.mp4").read_bytes()
    web.put("/clip.mp4", data, login="me:S3cretPw")
    url = web.url("/clip.mp4", "me:S3cretPw")
    assert len(read_all(url)[0]) == 24
    with web_server() as other:
        other.put("/open", data)
        other.put("/guarded", data, login="me:S3cretPw")
        for path, target in (("/a.mp4", "/open"), ("/b.mp4", "/guarded")):
            away = {"Location": other.url(target, host="localhost") + "?sig=Sign4turePlanted"}
            web.put(path, status=302, login="me:S3cretPw", headers=away)
        assert len(read_all(web.url("/a.mp4", "me:S3cretPw"))[0]) == 24
        with pytest.raises(SourceError, match="user or password") as refused:
            sources.check(web.url("/b.mp4", "me:S3cretPw"))
        assert not any("Authorization" in headers for _, headers in other.requests)
    assert "S3cret" not in str(refused.value)
    assert "Sign4ture" not in str(refused.value)


def test_login_is_read_from_netrc(web, tmp_path, monkeypatch):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password S3cretPw\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    web.put("/clip.mp4", write_video(tmp_path / "clip.mp4").read_bytes(), login="me:S3cretPw")
    assert len(read_all(web.url("/clip.mp4"))[0]) == 24


def test_redirect_to_a_local_file_is_refused(web):
    url = web.put("/a.mp4", status=302, headers={"Location": "file:///etc/passwd"})
    with pytest.raises(SourceError, match="not allowed"):
        sources.check(url)


@pytest.mark.slow
def test_trusted_certificate_is_accepted(tmp_path, monkeypatch):
    _answers._known.clear()
    data = write_video(tmp_path / "clip.mp4").read_bytes()
    certificate = make_certificate(tmp_path)
    with web_server(certificate) as web:
        web.put("/clip.mp4", data)
        url = web.url("/clip.mp4", host="localhost")
        with pytest.raises(SourceError, match="certificate"):
            sources.open(url)
        _answers._known.clear()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert len(read_all(url)[0]) == 24


@every_response
def test_web_picture_is_read(web, response):
    picture = np.random.default_rng(1).integers(0, 255, (40, 60, 3), np.uint8)
    data = cv2.imencode(".png", picture)[1].tobytes()
    url = web.put("/a b.png".replace(" ", "%20"), data, kind="image/png", **RESPONSES[response])
    assert sources.pictures_of(url) == [url]
    with sources.open(f"{url}?token=T0kenPlanted") as source:
        (frame,) = list(source)
    np.testing.assert_array_equal(frame.image, picture)
    assert (frame.path, frame.name, source.info.path) == (url, "a b.png", url)
    assert (source.info.kind, source.info.width, source.info.height) == ("pictures", 60, 40)


def test_note_of_a_picture_names_its_address(web, tmp_path):
    pages = [np.full((40, 60, 3), level, np.uint8) for level in (10, 200)]
    cv2.imwritemulti(str(tmp_path / "a.tiff"), pages)
    url = web.put("/a.tiff", (tmp_path / "a.tiff").read_bytes(), kind="image/tiff")
    _, source = read_all(url)
    assert [note for note in source.notes if url in note]


def test_incomplete_picture_is_refused(web):
    data = cv2.imencode(".png", np.zeros((40, 60, 3), np.uint8))[1].tobytes()
    with pytest.raises(SourceError, match="beyond byte 50"):
        sources.open(web.put("/a.png", data, cut=50))
    with pytest.raises(SourceError, match=r"/b\.png"):
        sources.open(web.put("/b.png", data[:30] + bytes(90), kind="image/png"))


def make_hls(clip: Path, folder: Path, *more: str) -> None:
    subprocess.run(
        [
            *("ffmpeg", "-loglevel", "error", "-i", str(clip), "-c", "copy", "-hls_time", "1"),
            *("-hls_playlist_type", "vod", *more, str(folder / "film.m3u8")),
        ],
        check=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("-hls_segment_type", "fmp4")])
def test_finished_playlist_is_read_like_a_file(web, tmp_path, more):
    clip = write_video(tmp_path / "clip.mp4", 100, g="25")
    (tmp_path / "hls").mkdir()
    make_hls(clip, tmp_path / "hls", *more)
    for path in (tmp_path / "hls").iterdir():
        web.put(f"/{path.name}", path.read_bytes())
    frames, source = read_all(web.url("/film.m3u8"))
    for frame, expected in zip(frames, read_all(clip)[0], strict=True):  # timestamps differ
        np.testing.assert_array_equal(frame.image, expected.image)
    assert (source.info.kind, source.info.duration_s) == ("video", 4.0)
    assert not source.damaged


@pytest.mark.slow
def test_playlist_with_missing_segments_is_damaged(web, tmp_path):
    clip = write_video(tmp_path / "clip.mp4", 100, g="25", sc_threshold="0")
    make_hls(clip, tmp_path)
    for path in tmp_path.iterdir():
        web.put(f"/{path.name}", path.read_bytes())
    for name in ("film2.ts", "film3.ts"):
        web.put(f"/{name}", status=404)
    frames, source = read_all(web.url("/film.m3u8"))
    assert len(frames) == 50
    assert source.counts.ended_early
    assert any("ends at 2.0 of 4.0 s" in note for note in source.notes)


def test_web_page_and_opencv_reader_are_refused(web, tmp_path):
    url = web.put("/watch", b"<!doctype html><title>x</title>", kind="text/html")
    with pytest.raises(SourceError, match=r"web page.*yt-dlp") as refused:
        sources.check(f"{url}?v=T0kenPlanted")
    assert "T0ken" not in str(refused.value)
    url = web.put("/clip.mp4", write_video(tmp_path / "clip.mp4").read_bytes())
    with pytest.raises(UsageError, match="opencv reads files"):
        sources.open(url, decoder="opencv")
