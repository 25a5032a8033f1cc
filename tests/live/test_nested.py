"""Test requests to a second host that a playlist names. Both hosts' servers log every request."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import av
import pytest

from detector.core import sources
from detector.core.errors import SourceError
from detector.core.sources import _answers
from detector.core.sources._network import nested
from detector.core.sources._network.nested import MOST_MISSING, NestedOpener, origin_of
from tests.conftest import CHECKOUT
from tests.live.servers import make_clip
from tests.live.test_network import started_feed, take
from tests.sources.web_server import WebServer, make_certificate, web_server
from tests.waiting import wait_for

pytestmark = [pytest.mark.net, pytest.mark.slow]

KEY, IV = b"0123456789abcdef", "00" * 16
LOGIN = "me:S3cretPw9"
SECRETS = {"headers": "X-Api-Key: S3cretKey9\r\n", "cookies": "token=S3cretTok9; path=/"}
PERSONAL = ("X-Api-Key", "Cookie", "Authorization")


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("segments")
    clip = make_clip(folder / "clip.mp4", 25)
    for name, how in (("a.ts", {}), ("a.mp4", {"movflags": "frag_keyframe+empty_moov"})):
        with av.open(str(clip)) as source, av.open(str(folder / name), "w", options=how) as target:
            stream = target.add_stream_from_template(source.streams.video[0])
            for packet in source.demux(video=0):
                if packet.size:
                    packet.stream = stream
                    target.mux(packet)
    plain, mp4 = (folder / "a.ts").read_bytes(), (folder / "a.mp4").read_bytes()
    cipher = ("openssl", "enc", "-aes-128-cbc", "-K", KEY.hex(), "-iv", IV)
    locked = subprocess.run(cipher, input=plain, capture_output=True, check=True).stdout
    at = mp4.index(b"moof") - 4
    return {"/a.ts": plain, "/locked.ts": locked, "/k": KEY, "/i.mp4": mp4[:at], "/a.m4s": mp4[at:]}


@pytest.fixture
def web() -> Iterator[WebServer]:
    _answers._known.clear()
    with web_server() as server:
        yield server


@pytest.fixture
def other() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


def hls(*lines: str, end: bool = True) -> bytes:
    head = ["#EXTM3U", "#EXT-X-VERSION:7", "#EXT-X-TARGETDURATION:1"]
    return "\n".join([*head, *lines, *(["#EXT-X-ENDLIST"] if end else []), ""]).encode()


def fill(segments: dict[str, bytes], *servers: WebServer, **more: str) -> None:
    for server in servers:
        for path, data in segments.items():
            server.put(path, data, **more)
        server.put("/plain.m3u8", hls("#EXTINF:1,", "a.ts"), **more)


def headers_by_path(server: WebServer) -> dict[str, dict[str, str]]:
    """Return the personal headers of all requests, by path."""
    by_path: dict[str, dict[str, str]] = {}
    for path, headers in list(server.requests):
        personal = {name: value for name, value in headers.items() if name in PERSONAL}
        by_path.setdefault(path, {}).update(personal)
    return by_path


def master(address: str, line: str = "") -> bytes:
    lines = ["#EXTM3U", *([line] if line else [])]
    media = ',AUDIO="a"' if line else ""
    return "\n".join([*lines, f"#EXT-X-STREAM-INF:BANDWIDTH=1000{media}", address, ""]).encode()


SOUND = '#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID="a",NAME="x",URI="{}"'
LOCK = '#EXT-X-KEY:METHOD=AES-128,URI="{}",IV=0x' + IV
# kind -> (playlist, paths requested from the other host). AWAY: its URL. PLACE: its host and port
PLAYLISTS = {
    "segment": (hls("#EXTINF:1,", "AWAY/a.ts"), ["/a.ts"]),
    "key of a segment": (hls(LOCK.format("AWAY/k"), "#EXTINF:1,", "locked.ts"), ["/k"]),
    "encrypted segment": (hls(LOCK.format("k"), "#EXTINF:1,", "AWAY/locked.ts"), ["/locked.ts"]),
    "initial segment": (hls('#EXT-X-MAP:URI="AWAY/i.mp4"', "#EXTINF:1,", "a.m4s"), ["/i.mp4"]),
    "variant": (master("AWAY/plain.m3u8"), ["/a.ts", "/plain.m3u8"]),
    "sound": (master("plain.m3u8", SOUND.format("AWAY/plain.m3u8")), ["/a.ts", "/plain.m3u8"]),
    "byte range": (hls("#EXTINF:1,", "#EXT-X-BYTERANGE:1880@0", "AWAY/a.ts", "#EXTINF:1,", "a.ts"),
              ["/a.ts"]),
    "address without a scheme": (hls("#EXTINF:1,", "//PLACE/a.ts"), ["/a.ts"]),
    "address with a login": (hls("#EXTINF:1,", "http://x:y@PLACE/a.ts"), ["/a.ts"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", PLAYLISTS)
def test_secrets_of_one_host_are_not_sent_to_another(
    web: WebServer, other: WebServer, segments: dict[str, bytes], kind: str
) -> None:
    """For each kind, FFmpeg without ``NestedOpener`` would send the other host all secrets."""
    fill(segments, web, other)
    playlist, requested = PLAYLISTS[kind]
    playlist = playlist.replace(b"AWAY", other.url("").encode())
    url = web.put("/list.m3u8", playlist.replace(b"PLACE", other.url("")[7:].encode()))
    with started_feed(url, options=SECRETS) as feed:
        assert len(take(feed, 20)) == 20
        feed.stop()
    assert sorted(headers_by_path(other)) == requested
    assert not any(headers_by_path(other).values())
    for path, headers in headers_by_path(web).items():
        assert headers == {"X-Api-Key": "S3cretKey9", "Cookie": "token=S3cretTok9"}, path


def test_secrets_stay_at_their_host_when_a_playlist_adds_another(
    web: WebServer, other: WebServer, segments: dict[str, bytes]
) -> None:
    fill(segments, web, other)
    url = web.put("/live.m3u8", hls("#EXTINF:1,", "a.ts", end=False))
    with started_feed(url, options=SECRETS) as feed:
        wait_for(lambda: "/a.ts" in headers_by_path(web))
        away = ["#EXTINF:1,", "a.ts", "#EXTINF:1,", other.url("/a.ts")]
        web.put("/live.m3u8", hls(*away, end=False))
        wait_for(lambda: "/a.ts" in headers_by_path(other))
        take(feed, 30)
    assert headers_by_path(other) == {"/a.ts": {}}


def test_login_and_session_cookie_stay_at_their_host(
    web: WebServer, other: WebServer, segments: dict[str, bytes]
) -> None:
    """The server redirects the playlist to another of its paths, and sets a cookie there."""
    fill(segments, web, other, login=LOGIN)
    web.put("/live.m3u8", status=302, login=LOGIN, headers={"Location": "/deep/list.m3u8"})
    session = {"Set-Cookie": "session=S3cretSes9; path=/"}
    playlist = hls("#EXTINF:1,", "../a.ts", "#EXTINF:1,", other.url("/a.ts"))
    web.put("/deep/list.m3u8", playlist, login=LOGIN, headers=session)
    with started_feed(web.url("/live.m3u8", LOGIN)) as feed:
        take(feed, 20)
        wait_for(lambda: feed.facts().error)
        assert f"{other.url('')[7:]}" in str(feed.facts().error)
    assert headers_by_path(other) == {"/a.ts": {}}
    assert headers_by_path(web)["/a.ts"].keys() == {"Authorization", "Cookie"}


@pytest.mark.parametrize("path", ["/list.m3u8", "/video"])
def test_cookie_of_a_redirect_stays_at_its_host(
    web: WebServer, other: WebServer, segments: dict[str, bytes], path: str
) -> None:
    """FFmpeg itself would send this cookie to the other host, for a segment and for a stream."""
    fill(segments, web, other)
    away = {"Location": other.url("/a.ts"), "Set-Cookie": "session=S3cretSes9; path=/"}
    web.put("/away.ts", status=302, login=LOGIN, headers=away)
    web.put("/list.m3u8", hls("#EXTINF:1,", "away.ts"), login=LOGIN)
    web.put("/video", status=302, login=LOGIN, headers=away)
    with started_feed(web.url(path, LOGIN)) as feed:
        assert len(take(feed, 20)) == 20
    assert headers_by_path(other) == {"/a.ts": {}}


def test_finished_playlist_is_read_as_a_file(
    web: WebServer, other: WebServer, segments: dict[str, bytes]
) -> None:
    fill(segments, web, login=LOGIN)
    fill(segments, other)
    session = {"Set-Cookie": "session=S3cretSes9; path=/"}
    playlist = hls("#EXTINF:1,", "a.ts", "#EXTINF:1,", other.url("/a.ts"))
    web.put("/film.m3u8", playlist, login=LOGIN, headers=session)
    with sources.open(web.url("/film.m3u8", LOGIN)) as source:
        assert len(list(source)) == 50
    assert headers_by_path(other) == {"/a.ts": {}}
    assert headers_by_path(web)["/a.ts"].keys() == {"Authorization", "Cookie"}


@pytest.mark.parametrize("login", [None, LOGIN])
def test_playlist_of_missing_segments_raises_after_the_limit(
    web: WebServer, login: str | None
) -> None:
    """No segment exists. FFmpeg may request each segment twice, first without the login."""
    lines = [line for at in range(1000) for line in ("#EXTINF:1,", f"{at}.ts")]
    web.put("/film.m3u8", hls(*lines), login=login)
    with pytest.raises(SourceError, match=f"{MOST_MISSING} segments in a row.*404"):
        sources.open(web.url("/film.m3u8", login))
    assert sum(path.endswith(".ts") for path, _ in web.requests) in (100, 200)


def test_missing_segments_are_skipped_up_to_a_limit(
    web: WebServer, segments: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(segments, web)
    away = 3 * ["#EXTINF:1,", "none.ts"]
    none, some = hls(*away, end=False), hls(*away, *3 * ["#EXTINF:1,", "a.ts"], end=False)

    def is_asked() -> bool:
        return [path for path, _ in web.requests].count("/none.ts") >= 3

    with started_feed(web.put("/live.m3u8", none)) as feed:
        wait_for(is_asked)
        web.put("/live.m3u8", some)
        take(feed, 20)
        assert feed.facts().connects == 1
    monkeypatch.setattr(nested, "MOST_MISSING", 2)
    with started_feed(web.put("/live.m3u8", none)) as feed:
        wait_for(lambda: "2 segments in a row" in str(feed.facts().error))
        web.put("/live.m3u8", some)
        take(feed, 20)


def test_secrets_for_https_are_not_sent_to_http(
    other: WebServer, segments: dict[str, bytes], tmp_path: Path
) -> None:
    fill(segments, other)
    with web_server(make_certificate(tmp_path)) as web:
        fill(segments, web)
        list_ = hls("#EXTINF:1,", web.url("/a.ts"), "#EXTINF:1,", other.url("/a.ts"))
        url = web.put("/list.m3u8", list_)
        with started_feed(url, options=SECRETS) as feed:
            take(feed, 40)
        assert headers_by_path(web)["/a.ts"].keys() == {"X-Api-Key", "Cookie"}
    assert headers_by_path(other) == {"/a.ts": {}}


def test_refusal_by_another_host_mentions_the_playlist(
    web: WebServer, other: WebServer, segments: dict[str, bytes]
) -> None:
    fill(segments, other, login=LOGIN)
    url = web.put("/list.m3u8", hls("#EXTINF:1,", other.url("/a.ts")))
    with started_feed(url, options=SECRETS) as feed:
        wait_for(lambda: feed.facts().error)
        error = str(feed.facts().error)
    assert "playlist" in error
    assert "\n" not in error


def test_playlist_address_in_latin_1_is_read_without_traceback(
    web: WebServer, segments: dict[str, bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    """If our callback raised exceptions, PyAV would print the traceback of the second one."""
    fill(segments, web)
    lines = ["#EXTINF:1,", "a.ts", "#EXTINF:1,", "http://\xff/a.ts", "#EXTINF:1,", "\xfe\xe9.ts"]
    data = hls(*lines, "#EXTINF:1,", "\xe9.ts", "#EXTINF:1,", "a.ts").decode().encode("latin-1")
    web.put("/%E9.ts", segments["/a.ts"])
    with started_feed(web.put("/list.m3u8", data), options=SECRETS) as feed:
        take(feed, 50)
    assert {"/a.ts", "/%FE%E9.ts", "/%E9.ts"} < headers_by_path(web).keys()
    assert capfd.readouterr().err == ""


def test_headers_are_sent_for_a_stream_without_a_playlist(
    web: WebServer, segments: dict[str, bytes]
) -> None:
    with started_feed(web.put("/stream", segments["/a.ts"]), options=SECRETS) as feed:
        assert len(take(feed, 20)) == 20
    assert headers_by_path(web)["/stream"].keys() == {"X-Api-Key", "Cookie"}


UNCLOSED = """
import gc, sys
import av
from detector.core.sources._network.nested import NestedOpener
options = {"protocol_whitelist": "http,tcp", "http_persistent": "0"}
opener = NestedOpener(sys.argv[1], options, 90.0)
opener.keep(av.open(sys.argv[1], format="hls", io_open=opener, options=options))
del opener
gc.collect()
print("alive")
"""


def test_unclosed_container_does_not_abort_the_process(
    web: WebServer, segments: dict[str, bytes]
) -> None:
    """Without ``keep``, the process would end with SIGABRT."""
    fill(segments, web)
    command = [sys.executable, "-c", UNCLOSED, web.url("/plain.m3u8")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT)
    assert (done.stdout, done.returncode) == ("alive\n", 0), done.stderr


@pytest.mark.parametrize(
    ("url", "is_own"),
    [
        ("http://cam.lan:8080/x.ts", True),
        ("HTTP://Cam.LAN:8080/x?y#z", True),
        ("crypto+http://cam.lan:8080/x.ts", True),
        ("crypto:http://cam.lan:8080/x.ts", True),
        ("http://me:p%40w@cam.lan:8080/x.ts", True),
        ("http://cam.lan/x.ts", False),
        ("http://cam.lan:80/x.ts", False),
        ("https://cam.lan:8080/x.ts", False),
        ("http://cam.lan:8080@evil.lan/x.ts", False),
        ("http://evil.lan#@cam.lan:8080/x.ts", False),
        ("http://evil.lan?@cam.lan:8080/x.ts", False),
        ("http://evil.lan\\@cam.lan:8080/x.ts", False),
        ("http://cam.lan:80\t80/x.ts", False),  # port 8080 in Python, 80 in FFmpeg
        ("http://cam.lan:8080x/x.ts", False),
        ("http://cam.lan:8080.evil.lan/x.ts", False),
        ("http://cam\u212a.lan:8080/x.ts", False),
        ("http://cam.lan.:8080/x.ts", False),
        ("crypto+https://cam.lan:8080/x.ts", False),
        ("httpproxy://cam.lan:8080/x.ts", False),
        ("tcp://cam.lan:8080", False),
        ("", False),
    ],
)
def test_secrets_are_sent_only_to_the_same_origin(url: str, is_own: bool) -> None:
    options = {**SECRETS, "protocol_whitelist": "http", "user_agent": "x", "rtsp_transport": "tcp"}
    opener = NestedOpener("http://cam.lan:8080/list.m3u8", options, 1.0)
    chosen = opener.options_for(url, {"offset": "5", "headers": "from FFmpeg", "key": "00"})
    expected = {"protocol_whitelist": "http", "user_agent": "x", "offset": "5", "key": "00"}
    assert chosen == expected | ({**SECRETS, "max_redirects": "0"} if is_own else {})


def test_ambiguous_address_has_no_origin() -> None:
    assert origin_of("https://[FE80::1]/a") == ("https", "[fe80::1]", 443)
    assert origin_of("http://a b/") is None
