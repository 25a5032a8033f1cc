"""Test the lists of formats and of protocols that FFmpeg may use. Tests fail if a list is missing.

Some sources below use only allowed protocols, so only the list of formats refuses them.
"""

import base64
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from detector.core.errors import SourceError
from detector.core.errors.addresses import Address
from detector.core.sources._web import WebPlace
from detector.core.sources.video._listed import open_listed
from detector.live.sources.base import Camera
from detector.live.sources.readers import make_feed
from detector.live.sources.status import Backoff, Status
from tests.live import servers
from tests.live.servers import HttpServer
from tests.live.test_nested import LOGIN, SECRETS, hls, segments
from tests.live.test_network import started_feed, take
from tests.sources.web_server import web_server
from tests.waiting import wait_for

pytestmark = [pytest.mark.net, pytest.mark.slow]

__all__ = ["segments"]  # a fixture
CONCAT = b"ffconcat version 1.0\nfile a.ts\n"
SDP = (
    b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nt=0 0\nm=video 5004 RTP/AVP 96\na=rtpmap:96 H264/90000\n"
)
LIST = "application/vnd.apple.mpegurl"
SOON = {"start_timeout_s": 0.5}


@pytest.fixture
def segment(segments: dict[str, bytes], tmp_path: Path) -> Path:
    (tmp_path / "a.ts").write_bytes(segments["/a.ts"])
    return tmp_path / "a.ts"


def test_hls_plays(web: HttpServer, segment: Path) -> None:
    playlist = LIST, hls("#EXTINF:2,", "a.ts")
    web.pages = {"/a.m3u8": playlist, "/a.ts": ("video/mp2t", segment.read_bytes())}
    with started_feed(web.url("/a.m3u8")) as feed:
        assert len(take(feed, 20)) == 20


@pytest.mark.parametrize("options", [{}, SECRETS], ids=["plain", "guarded"])
@pytest.mark.parametrize(
    "leads_to",
    ["file://{path}", "concat:{path}|{path}", "subfile,,start,0,end,9999,,:{path}",
     "data:video/mp2t;base64,{data}", "crypto+file://{path}", "cache:{path}"],
)  # fmt: skip
def test_playlist_from_the_network_opens_no_file(
    web: HttpServer, segment: Path, leads_to: str, options: dict[str, str]
) -> None:
    """Without the list of protocols, each playlist would play (see test_hls_plays)."""
    data = base64.b64encode(segment.read_bytes()).decode()
    playlist = hls("#EXTINF:2,", leads_to.format(path=segment, data=data))
    web.pages["/a.m3u8"] = LIST, playlist
    with started_feed(web.url("/a.m3u8"), options=options, terms=SOON) as feed:
        wait_for(lambda: feed.facts().error)
        assert feed.facts().received == 0


@pytest.mark.parametrize("options", [{}, SECRETS], ids=["plain", "guarded"])
@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("application/sdp", SDP),
        ("text/plain", b"ffconcat version 1.0\nfile '%(path)s'\n"),
        ("text/plain", CONCAT),
    ],
)
def test_page_that_is_a_list_of_files_is_not_followed(
    web: HttpServer, segment: Path, kind: str, content: bytes, options: dict[str, str]
) -> None:
    """Such a list could name a local file, a port, or another page of the server."""
    content = content.replace(b"%(path)s", bytes(segment))
    web.pages = {"/list": (kind, content), "/a.ts": ("video/mp2t", segment.read_bytes())}
    with started_feed(web.url("/list"), terms=SOON, options=options) as feed:
        wait_for(lambda: feed.facts().error)
        assert feed.facts().received == 0
    assert {path for path, _ in web.requests} == {"/list"}


def test_local_playlist_opens_no_network(web: HttpServer, segment: Path, tmp_path: Path) -> None:
    web.pages["/a.ts"] = ("video/mp2t", segment.read_bytes())
    playlist = tmp_path / "a.m3u8"
    playlist.write_bytes(hls("#EXTINF:2,", web.url("/a.ts")))
    with pytest.raises(av.error.FFmpegError):
        av.open(str(playlist), timeout=(2, 2))
    cv2.VideoCapture(str(playlist)).release()
    with pytest.raises(SourceError):
        make_feed(Camera("c", "file", Address(str(playlist))))
    assert web.requests == []


@contextmanager
def listening(*answers: bytes) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            left = list(answers)
            while True:
                try:
                    client = server.accept()[0]
                except OSError:
                    return
                with client:
                    client.sendall(left.pop(0) if len(left) > 1 else left[0])

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_tcp_stream_that_is_a_list_is_not_followed(segments: dict[str, bytes]) -> None:
    """Without the list of formats, ``a.ts`` would be read from this server, which sends a video."""
    one_try = Status(0, Backoff(lambda: 1000.0))  # a second attempt would get the video
    with (
        listening(CONCAT, segments["/a.ts"], CONCAT) as port,
        started_feed(f"tcp://127.0.0.1:{port}", status=one_try, terms=SOON) as feed,
    ):
        wait_for(lambda: feed.facts().error)
        assert feed.facts().received == 0


def test_udp_accepts_only_mpeg_ts() -> None:
    """Without the list of formats, JPEGs in datagrams would play as Motion JPEG."""
    noise = np.random.default_rng(1).integers(0, 255, (96, 128, 3), np.uint8)
    jpeg = cv2.imencode(".jpg", noise)[1].tobytes()
    port, ended = servers.free_port(), threading.Event()

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            while not ended.wait(0.002):
                sender.sendto(jpeg, ("127.0.0.1", port))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        with started_feed(f"udp://127.0.0.1:{port}") as feed:
            wait_for(lambda: feed.facts().error or feed.facts().received)
            assert feed.facts().received == 0
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("login", [None, LOGIN])
@pytest.mark.parametrize("kind", ["a list of pages", "data", "file"])
def test_playlist_of_a_finished_video_opens_only_its_own_segments(
    segment: Path, kind: str, login: str | None
) -> None:
    inline = f"data:video/mp2t;base64,{base64.b64encode(segment.read_bytes()).decode()}"
    content = {
        "a list of pages": CONCAT,
        "data": hls("#EXTINF:1,", inline),
        "file": hls("#EXTINF:1,", f"file://{segment}"),
    }
    with web_server() as server:
        server.put("/a.ts", segment.read_bytes(), login=login)
        server.put("/film.m3u8", content[kind], login=login)
        with pytest.raises(SourceError):
            open_listed(WebPlace(server.url("/film.m3u8", login)), 1, None, "bgr")
        assert "/a.ts" not in {path for path, _ in server.requests}
