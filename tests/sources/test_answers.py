"""The server's response decides the kind of an address. If no server responds, the name decides."""

import socket
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest

from detector.core.sources import _answers, find_claiming
from detector.core.sources._answers import FILE, LIVE, PICTURE, PLAYLIST, REFUSED, identify
from detector.core.sources._web import WebPlace
from tests.live.servers import silent_listener
from tests.sources.clips import write_video
from tests.sources.web_server import make_certificate, web_server

pytestmark = pytest.mark.net

JPEG = cv2.imencode(".jpg", np.zeros((16, 16, 3), np.uint8))[1].tobytes()
PNG = cv2.imencode(".png", np.zeros((16, 16, 3), np.uint8))[1].tobytes()
TS = b"\x47\x40\x11\x10" + bytes(range(184)) * 40
PART = b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: 3\r\n\r\nabc\r\n"
HLS = b"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\na.ts\n"
ENDED = HLS + b"#EXT-X-ENDLIST\n"
MASTER = b"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n%s\n"
MPD = b'<?xml version="1.0"?>\n<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="%s">\n</MPD>'
PAGE = b"\n<!-- a page -->\n<!DOCTYPE html><html><title>Watch</title></html>"
BINARY = "application/octet-stream"


def box(kind: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I4s", 8 + len(content), kind) + content


FTYP = box(b"ftyp", b"isom" + bytes(12))
FRAGMENTED = FTYP + box(b"moov", box(b"mvex")) + box(b"moof")
AT_ONCE = FTYP + box(b"moov", box(b"trak", bytes(64)))
WEBM = b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67"


@pytest.fixture(autouse=True)
def forget_answers():
    _answers._known.clear()


@pytest.fixture(scope="module")
def web():
    with web_server() as server:
        yield server


@pytest.mark.parametrize(
    ("path", "kind", "data", "stated", "expected"),
    [
        # An address with a stated length and no picture's type is a file, whatever its name.
        ("/clip.mp4", "video/mp4", AT_ONCE, True, FILE),
        ("/clip", BINARY, AT_ONCE, True, FILE),
        ("/video.ts", "video/mp2t", TS, True, FILE),
        ("/x", "text/html", AT_ONCE, True, FILE),  # a server that does not know the suffix
        ("/x.mjpeg", "video/x-motion-jpeg", JPEG * 3, True, FILE),
        # An address without a stated length is live if the format states no end.
        ("/live.ts", "video/mp2t", TS, False, LIVE),
        ("/live", BINARY, FRAGMENTED, False, LIVE),
        ("/live.webm", "video/webm", WEBM + b"\x01" + b"\xff" * 7 + bytes(99), False, LIVE),
        ("/live.webm", "video/webm", WEBM + b"\xff" + bytes(99), False, LIVE),
        ("/clip.webm", "video/webm", WEBM + b"\x01" + bytes(7) + bytes(99), False, FILE),
        ("/clip", "video/mp4", AT_ONCE, False, FILE),
        ("/clip", "video/mp4", FTYP + box(b"mdat", bytes(64)), False, FILE),
        ("/clip.avi", "video/avi", b"RIFF\0\0\0\0AVI LIST", False, FILE),
        # Cameras.
        ("/video", "multipart/x-mixed-replace; boundary=frame", PART * 9, False, LIVE),
        ("/video.mp4", "multipart/x-mixed-replace; boundary=frame", b"", False, LIVE),
        ("/video", BINARY, b"\r\n" + PART * 9, False, LIVE),
        ("/cam.mjpg", "image/jpeg", JPEG * 9, False, LIVE),
        # Pictures.
        ("/a.jpg", "image/jpeg", JPEG, True, PICTURE),
        ("/snapshot.cgi", "image/jpeg", JPEG, False, PICTURE),
        ("/a.png", BINARY, PNG, True, PICTURE),
        ("/a", BINARY, JPEG, True, PICTURE),
        ("/a.tif", BINARY, b"no known signature\0", True, PICTURE),
        ("/a.jpg", "image/jpeg", AT_ONCE, True, FILE),  # a wrong type
        # Playlists.
        ("/live.m3u8", "application/vnd.apple.mpegurl", HLS, True, LIVE),
        ("/film.m3u8", "application/vnd.apple.mpegurl", ENDED, True, PLAYLIST),
        ("/film.mp4", "text/plain", b"\xef\xbb\xbf" + ENDED, True, PLAYLIST),
        ("/film.mpd", "application/dash+xml", MPD % b"static", True, REFUSED),
        ("/live.mpd", "application/dash+xml", MPD % b"dynamic", False, REFUSED),
        # No video at all.
        ("/watch", "text/html; charset=utf-8", PAGE, False, REFUSED),
        ("/video.mp4", "video/mp4", PAGE, True, REFUSED),
        ("/x", "text/html", b"<p>K\xf6ln", True, REFUSED),
        ("/x.json", "application/json", b'{"url": "http://host/a.mp4"}', True, REFUSED),
        ("/radio.m3u", "audio/x-mpegurl", b"#EXTM3U\nhttp://host/a.mp3\n", True, REFUSED),
        ("/a.mp4", "video/mp4", b"", True, REFUSED),
        ("/empty", BINARY, b"", True, REFUSED),
    ],
)
@pytest.mark.parametrize("ranges", [True, False])
def test_kind_of_an_address_follows_the_response(web, path, kind, data, stated, expected, ranges):
    url = web.put(path, data, kind=kind, length=stated, ranges=ranges and stated)
    assert identify(url).kind == expected
    source = "LiveSource" if expected == LIVE else "WebSource"
    assert find_claiming(url).__name__ == source


@pytest.mark.parametrize(("variant", "expected"), [(ENDED, PLAYLIST), (HLS, LIVE), (None, LIVE)])
def test_master_playlist_has_the_kind_of_its_first_variant(web, variant, expected):
    if variant is None:
        web.pages.pop("/low/film.m3u8", None)
    else:
        web.put("/low/film.m3u8", variant, login="me:S3cretPw")
    url = web.put("/master.m3u8", MASTER % b"low/film.m3u8", login="me:S3cretPw")
    assert identify(url.replace("//", "//me:S3cretPw@")).kind == expected


@pytest.mark.parametrize("length", [2**31 - 1, 2**63 - 1, 2**64 - 1, 9_999_999_999])
def test_address_with_an_absurd_content_length_is_live(web, length):
    url = web.put("/fake", TS, kind="video/mp2t", length=(str(length),), ranges=False)
    assert identify(url).kind == LIVE


@pytest.mark.parametrize(
    ("kind", "data", "path", "words"),
    [
        ("video/mp2t", TS, "/x", ["live stream", "video/mp2t", "no length", "detect-video -"]),
        ("video/mp4", AT_ONCE, "/x", ["a file", "no length", "--live latest"]),
        ("image/jpeg", JPEG, "/snapshot.cgi", ["one picture", "--live latest"]),
        ("image/jpeg", JPEG, "/a.jpg", []),
    ],
)
def test_ambiguous_answer_gets_a_remark(web, kind, data, path, words):
    url = web.put(path, data, kind=kind, length=False, ranges=False)
    remark = identify(f"{url}?token=T0kenPlanted").remark
    assert bool(remark) == bool(words)
    assert all(word in remark for word in words)
    assert "T0ken" not in remark


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "user or password"),
        (403, "user or password"),
        (404, "no such file"),
        (410, "no such file"),
        (500, "the server failed (HTTP 500)"),
        (503, "the server failed (HTTP 503)"),
    ],
)
def test_http_error_refuses_a_file_but_not_a_camera(web, status, words):
    refused = identify(web.put("/clip.mp4", status=status))
    assert refused.kind == REFUSED
    assert words in refused.error
    assert identify(web.put("/video", status=status)).kind == LIVE


@pytest.mark.slow
def test_unreachable_server_is_judged_by_the_address(monkeypatch):
    monkeypatch.setattr(_answers, "SILENT_S", 0.3)
    monkeypatch.setattr(_answers, "QUICK_S", 0.3)
    with silent_listener() as port:
        assert identify(f"http://127.0.0.1:{port}/video").kind == LIVE
        assert "timed out" in identify(f"http://127.0.0.1:{port}/clip.mp4").error
    with socket.socket() as unused:  # reserves a port on which nothing listens
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert identify(f"http://127.0.0.1:{port}/video.mjpg").kind == LIVE
        assert identify(f"http://127.0.0.1:{port}/video").kind == LIVE
        assert "refused" in identify(f"http://127.0.0.1:{port}/clip.mp4").error
    assert "no-such-host.invalid" in identify("http://no-such-host.invalid/clip.mp4").error


@pytest.mark.slow
def test_certificate_is_required_for_files_only(tmp_path: Path):
    """If a certificate is not trusted, we ask again without checking it, but send no secret."""
    data = write_video(tmp_path / "a.mp4").read_bytes()
    with web_server(make_certificate(tmp_path)) as web:
        web.put("/a", data)
        web.put("/video", PART * 9, kind="multipart/x-mixed-replace; boundary=frame", length=False)
        url = web.url("/a", "me:S3cretPw", "localhost")
        refused = identify(f"{url}?token=T0kenPlanted")
        assert refused.kind == REFUSED
        assert "certificate" in refused.error
        assert "SSL_CERT_FILE" in refused.error
        assert identify(web.url("/video", host="localhost")).kind == LIVE
        assert [path for path, _ in web.requests] == ["/a", "/video"]
        assert not any("Authorization" in headers for _, headers in web.requests)


@pytest.mark.parametrize(
    ("address", "shown", "name"),
    [
        ("http://h/clip.mp4?token=T0kenPlanted", "http://h/clip.mp4", "clip.mp4"),
        ("http://h/clip.mp4#t=T0kenPlanted", "http://h/clip.mp4", "clip.mp4"),
        ("https://me:S3cretPw@h:81/a/b.mp4", "https://h:81/a/b.mp4", "b.mp4"),
        ("http://h/a%20b/c%2Fd%0A.mp4", "http://h/a%20b/c%2Fd%0A.mp4", "c_d_.mp4"),
        ("http://h/caf%C3%A9.mp4", "http://h/caf%C3%A9.mp4", "café.mp4"),
        ("http://h/folder/", "http://h/folder/", "folder"),
        ("http://h", "http://h", "h"),
        ("http://h/token=T0kenPlanted", "http://h/token=***", "token="),
    ],
)
def test_address_and_name_contain_no_secret(address, shown, name):
    place = WebPlace(address)
    assert (str(place), place.name) == (shown, name)
    assert "S3cret" not in repr(place)
    assert "T0ken" not in repr(place)
