"""Test JPEGs in malformed multipart streams, and still pictures that are requested repeatedly."""

import io
import itertools
from random import Random

import cv2
import pytest

from detector.core.errors.addresses import Address
from detector.live.sources import jpegs
from detector.live.sources.base import NETWORK, Camera, Terms
from detector.live.sources.jpegs import Jpegs
from detector.live.sources.network import NetworkFeed
from tests.live.servers import HttpServer
from tests.live.streams import draw_picture
from tests.waiting import PATIENCE_S, wait_for


def encode(number: int, *more: int) -> bytes:
    return cv2.imencode(".jpg", draw_picture(number, 64, 48), more)[1].tobytes()


PICTURES = [encode(i) for i in range(5)]
THUMBNAIL = b"\xff\xe1" + (len(PICTURES[0]) + 2).to_bytes(2, "big") + PICTURES[0]  # in APP1
WITH_THUMBNAIL = PICTURES[1][:2] + THUMBNAIL + PICTURES[1][2:]
MULTIPART = "multipart/x-mixed-replace; boundary=frame"


def part(jpeg: bytes, kind: str = "image/jpeg", off: int = 0, mark: str = "--frame") -> bytes:
    lines = (mark, f"Content-Type: {kind}", f"Content-Length: {len(jpeg) + off}")
    return "\r\n".join([*lines, "\r\n"]).encode() + jpeg + b"\r\n"


def parts(**how: object) -> bytes:
    return b"".join(part(jpeg, **how) for jpeg in PICTURES)  # type: ignore[arg-type]


ODD = {
    "no delimiter first": parts().removeprefix(b"--frame\r\n"),
    "delimiter without dashes": parts(mark="frame"),
    "image/jpg": parts(kind="image/jpg"),
    "type with a charset": parts(kind="image/jpeg; charset=utf-8"),
    "length too small": parts(off=-40),
    "length too large": parts(off=40),
    "length much too large": parts(off=10**6),
    "text before the first part": b"This is multipart.\r\n\r\n" + parts(),
    "sound between pictures": b"".join(
        part(one) + part(b"\xff\xd8 tone" * 40, "audio/basic") for one in PICTURES
    ),
    "parts without headers": b"\r\n".join(PICTURES),
}


class Chunks(io.BytesIO):
    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self._most = most

    def read(self, length: int | None = -1) -> bytes:
        return super().read(min(self._most, length or 0))


def read_all(data: bytes, most: int = 1 << 16) -> list[bytes]:
    answers = iter([Chunks(data, most)])
    stream = Jpegs(lambda: next(answers, None), 0.0, bool)  # type: ignore[arg-type,return-value]
    assert stream.find_first()
    read = b"".join(iter(lambda: stream.read(1 << 20), b""))
    return [piece.partition(b"\r\n\r\n")[2][:-2] for piece in read.split(b"--frame\r\n")[1:]]


@pytest.mark.parametrize("most", [1, 997, 1 << 16])
@pytest.mark.parametrize("name", ODD)
def test_pictures_are_found_by_jpeg_markers(name: str, most: int) -> None:
    assert read_all(ODD[name], most) == PICTURES


@pytest.mark.parametrize(
    "jpeg",
    [
        WITH_THUMBNAIL,
        encode(1, cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
        encode(1, cv2.IMWRITE_JPEG_RST_INTERVAL, 2),
        PICTURES[1][:2] + b"\xff\xff\xff" + PICTURES[1][3:],  # fill bytes before a marker
    ],
)
def test_every_kind_of_jpeg_is_read_completely(jpeg: bytes) -> None:
    assert read_all(PICTURES[0] + jpeg + PICTURES[2], 100) == [PICTURES[0], jpeg, PICTURES[2]]


def test_truncated_picture_does_not_affect_others() -> None:
    data = b"--frame\r\n".join([PICTURES[0], PICTURES[1][:-20], PICTURES[2], PICTURES[3][:-20]])
    assert read_all(data) == [PICTURES[0], PICTURES[2]]


def test_search_in_endless_data_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpegs, "MOST_BYTES", 100_000)
    for piece in (b"\0" * 1000, Random(1).randbytes(1000), b"\xff\xd8\xff\xda\0\2" + b"\0" * 1000):
        taken = itertools.count()

        class Endless(io.BytesIO):
            def read(self, length: int | None = -1) -> bytes:
                return piece if next(taken) < 20_000 else b""  # noqa: B023

        stream = Jpegs(Endless, 0.0, bool)  # type: ignore[arg-type]
        assert not stream.find_first()
        assert next(taken) < 1200, "it gives up after MOST_PREAMBLE, a megabyte"
        assert len(stream._data) < 200_000


def start_feed(web: HttpServer, path: str, rate: int | None = None) -> NetworkFeed:
    feed = NetworkFeed(Camera("cam", NETWORK, Address(web.url(path)), rate=rate), Terms())
    feed.start()
    return feed


@pytest.mark.net
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ODD if name != "parts without headers"])
def test_malformed_multipart_is_read_with_a_note(web: HttpServer, name: str) -> None:
    web.pages["/odd"] = MULTIPART, ODD[name]
    feed = start_feed(web, "/odd")
    try:
        wait_for(lambda: feed.facts().received >= 12)
        facts = feed.facts()
        assert (facts.connects, facts.error) == (1, None)
        if name != "length much too large":  # the response ends before FFmpeg complains
            assert "by JPEG's own markers" in facts.note
    finally:
        feed.stop(PATIENCE_S)


@pytest.mark.net
@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "kind"),
    [("/snap.jpg", "image/jpeg"), ("/cgi", "application/octet-stream"), ("/jpg", "image/jpg")],
)
def test_picture_is_requested_at_the_cameras_rate(web: HttpServer, path: str, kind: str) -> None:
    web.pages[path] = kind, PICTURES[0]
    feed = start_feed(web, path, rate=20)
    try:
        wait_for(lambda: feed.facts().received >= 15)
        facts = feed.facts()
        assert (facts.connects, facts.stalls, facts.error, facts.note) == (1, 0, None, "")
        assert len(web.requests) <= facts.received + 4
        del web.pages[path]
        wait_for(lambda: feed.facts().error)
        web.pages[path] = kind, PICTURES[1]
        wait_for(lambda: feed.facts().connects == 2)
    finally:
        feed.stop(PATIENCE_S)
