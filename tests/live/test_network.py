"""Test network feeds and their errors on real servers at 127.0.0.1."""

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock, call

import av
import pytest

from detector.core.errors import SourceError
from detector.core.errors.addresses import Address
from detector.core.sources._network.addresses import FAST, OPENINGS, SHORT
from detector.core.sources.video._complaints import Complaints
from detector.core.timeline.spans import READ, WAIT_INPUT
from detector.core.timeline.timeline import Timeline
from detector.live.sources import hardware, network
from detector.live.sources.base import (
    CONNECTING,
    CORRUPT,
    ENDED,
    LIVE,
    NETWORK,
    STALLED,
    UNDECODED,
    WAITING,
    Camera,
    Feed,
    Picture,
    Terms,
)
from detector.live.sources.cameras import make_cameras
from detector.live.sources.decoding import PacketDecoder, prepare
from detector.live.sources.ffmpeg_log import DamageLog, LogWatch
from detector.live.sources.network import NetworkFeed
from detector.live.sources.packets import Received, Stamp
from detector.live.sources.readers import make_feed
from detector.live.sources.status import LOGIN_S, Backoff, Status
from tests.live import servers
from tests.live.fake_feeds import FullCores
from tests.live.servers import HttpServer, make_clip
from tests.live.streams import read_number
from tests.live.test_packets import Drops
from tests.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.net, pytest.mark.slow]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep connections if this machine stalls (test_status.py tests the limit)."""
    monkeypatch.setattr("detector.live.sources.status.LOST_S", PATIENCE_S)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clip(tmp_path_factory.mktemp("clips") / "clip.mp4")


class ShortBackoff(Backoff):
    def __init__(self) -> None:
        super().__init__(lambda: 0.5)
        self.waits: list[float] = []

    def wait_s(self, login: bool = False) -> float:
        self.waits.append(super().wait_s(login))
        return 0.05


@contextmanager
def started_feed(url: str, every: bool = True, **more: Any) -> Iterator[NetworkFeed]:
    options = more.pop("options", {})
    status = more.pop("status", None) or Status(time.perf_counter_ns(), ShortBackoff())
    camera = Camera("cam", NETWORK, Address(url), options=options)
    terms = {"max_age_s": PATIENCE_S, **more.pop("terms", {})}  # a slow test drops no pictures
    feed = NetworkFeed(camera, Terms(every=every, **terms), status=status, **more)
    feed.start()
    try:
        yield feed
    finally:
        feed.stop(PATIENCE_S)


def take(feed: Feed, count: int) -> list[Picture]:
    pictures: list[Picture] = []

    def enough() -> bool:
        while len(pictures) < count and (picture := feed.take()) is not None:
            pictures.append(picture)
        return len(pictures) >= count

    wait_for(enough)
    return pictures


def count_unaccounted(feed: Feed) -> int:
    facts = feed.facts()
    return facts.received - facts.taken - sum(facts.dropped.values())


def is_balanced(feed: Feed) -> bool:
    return count_unaccounted(feed) == 0


def test_rtsp_feed_survives_a_stall_and_a_restart(clip: Path) -> None:
    with servers.rtsp({"c": clip}, login="me:S3cret99") as server:
        woken: list[float] = []
        timeline = Timeline(nvtx=False)
        with started_feed(
            server.url("c", "me:S3cret99"),
            timeline=timeline,
            wake=lambda: woken.append(time.monotonic()),
        ) as feed:
            pictures = take(feed, 30)
            # No picture is lost, although the first packet, the key frame, has no pts.
            assert [picture.number for picture in pictures] == list(range(30))
            burnt = [read_number(feed.convert(picture, None)) for picture in pictures]
            assert burnt == [number % 50 for number in range(burnt[0], burnt[0] + 30)]
            assert burnt[0] == 0
            assert {picture.arrival.epoch for picture in pictures} == {1}
            assert len(woken) >= 30
            assert feed.facts().codec == "h264"

            server.signal(signal.SIGSTOP)
            wait_for(lambda: feed.facts().state == STALLED)
            server.signal(signal.SIGCONT)
            wait_for(lambda: feed.facts().state == LIVE)
            assert feed.facts().connects == 1
            assert feed.facts().stalls >= 1  # more, if this machine stalls

            server.kill()
            wait_for(lambda: feed.facts().state != LIVE)
            wait_for(lambda: "nothing listens" in (feed.facts().error or ""))
            server.start()
            last = pictures[-1].number

            def in_second_epoch() -> bool:
                picture = feed.take()
                return picture is not None and picture.arrival.epoch == 2 and picture.number > last

            wait_for(in_second_epoch)
            assert (feed.facts().connects, feed.facts().reconnects) == (2, 1)
            wait_for(lambda: feed.facts().state == LIVE)
            assert feed.stop(PATIENCE_S)
        assert feed.facts().state == ENDED
        assert is_balanced(feed)
        spans = timeline.tracks["camera cam"].spans
        assert spans[READ, "work"].calls >= 30
        assert (READ, WAIT_INPUT) in spans


def test_capture_time_comes_from_rtcp_reports(clip: Path) -> None:
    """The capture time is known after the first RTCP report. It is a few ms before the arrival."""
    with servers.rtsp({"c": clip}) as server, started_feed(server.url("c")) as feed:
        delays_ms: list[float] = []

        def one_is_early() -> bool:
            while (picture := feed.take()) is not None:
                if (captured_s := picture.arrival.captured_s) is not None:
                    delays_ms.append((picture.arrival.utc_s - captured_s) * 1000)
            return min(delays_ms, default=1000) < 35  # an error of one frame would add 40 ms

        wait_for(one_is_early)


def test_udp_pictures_may_change_size(clip: Path, tmp_path: Path) -> None:
    large = make_clip(tmp_path / "large.mp4", pictures=10, size=(480, 272))
    small = make_clip(tmp_path / "small.mp4", pictures=10)
    with (
        servers.rtsp({"c": [small, large]}) as server,
        started_feed(server.url("c"), options={"rtsp_transport": "udp"}) as feed,
    ):
        pictures = take(feed, 25)
        sizes = [(picture.width, picture.height) for picture in pictures]
        assert {(320, 180), (480, 272)} == set(sizes)
        for picture in pictures:
            image = feed.convert(picture, None)
            assert image.shape == (picture.height, picture.width, 3)


def test_connection_error_says_whether_login_or_path_or_server_is_wrong(clip: Path) -> None:
    """After a refused login, the feed waits for minutes. After other errors, it waits less."""
    with servers.rtsp({"c": clip}, login="me:S3cret99") as server:
        for url, kind in [
            (server.url("c", "me:WrongPw99"), "user or password"),
            (server.url("absent", "me:S3cret99"), "no such stream"),
            (f"rtsp://127.0.0.1:{servers.free_port()}/x", "nothing listens"),
        ]:
            backoff = ShortBackoff()
            status, states = Status(0, backoff), set()
            wake = lambda status=status, states=states: states.add(status._state)  # noqa: E731
            with started_feed(url, status=status, wake=wake) as feed:
                wait_for(lambda f=feed: f.facts().error)
                wait_for(lambda states=states: states >= {CONNECTING, WAITING})
                error = feed.facts().error or ""
                assert kind in error
                assert "99@" not in error
            assert (backoff.waits[0] == LOGIN_S) == ("password" in kind)


@pytest.mark.parametrize("spec", ["rtsp://127.0.0.1:9/x", "0"])
def test_feed_can_be_stopped_twice_and_also_before_it_starts(spec: str) -> None:
    feed = make_feed(make_cameras([spec])[0])
    assert feed.stop()
    assert feed.stop()
    assert (feed.facts().state, feed.take()) == (ENDED, None)


def test_unknown_host_and_hanging_lookup_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with started_feed("rtsp://no-such-host.invalid/x") as feed:
        wait_for(lambda: feed.facts().error)
        assert "no-such-host.invalid" in (feed.facts().error or "")
    hang = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: hang.wait(3 * PATIENCE_S))
    with started_feed("rtsp://slow.invalid/x", terms={"start_timeout_s": 0.3}) as feed:
        wait_for(lambda: feed.facts().error)
        assert "timed out" in (feed.facts().error or "")
        threads = [thread.name for thread in threading.enumerate()]
        assert threads.count("look up slow.invalid") == 1
        assert feed.stop(PATIENCE_S)
    hang.set()


@pytest.mark.parametrize("scheme", ["rtsp", "http", "rtmp"])
def test_silent_server_times_out_and_feed_can_be_stopped(scheme: str) -> None:
    with servers.silent_listener() as port:
        url = f"{scheme}://127.0.0.1:{port}/live/x"
        with started_feed(url, terms={"start_timeout_s": 0.3}) as feed:
            # An earlier attempt may have timed out while looking up the host.
            wait_for(lambda: "not answer" in (feed.facts().error or ""))
        with started_feed(url, terms={"start_timeout_s": 3 * PATIENCE_S}) as feed:
            wait_for(lambda: feed.facts().state == CONNECTING)
            time.sleep(0.1)  # by now the feed usually waits for a response
            assert feed.stop(PATIENCE_S)


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detector.live.sources.status.FROZEN_S", 0.6)
    monkeypatch.setattr("detector.live.sources.status.STALL_S", 0.4)
    monkeypatch.setattr("detector.live.sources.decoding.FINGERPRINT_NS", 100_000_000)


def check_silence(web: HttpServer, feed: NetworkFeed) -> None:
    web.silent = True
    wait_for(lambda: feed.facts().state == STALLED)
    web.silent = False
    wait_for(lambda: feed.facts().state == LIVE)
    assert feed.facts().connects == 1  # no new connection was needed


@pytest.mark.usefixtures("short_limits")
def test_mjpeg_feed_survives_a_new_size_a_frozen_picture_and_silence(web: HttpServer) -> None:
    web.login = "me:S3cret99"
    with started_feed(web.url("/mjpeg", "me:S3cret99")) as feed:
        late_us: list[float] = []

        def agree() -> bool:
            """Compare the clock in each picture with the arrival time of the picture."""
            for picture in take(feed, 5):
                burnt_us = read_number(feed.convert(picture, None))
                late_us.append(picture.arrival.utc_s * 1e6 - burnt_us)
            return min(late_us) < 40_000

        wait_for(agree)
        assert min(late_us) > -1000
        web.size = (480, 272)
        wait_for(lambda: (feed.facts().width, take(feed, 1)[0].height) == (480, 272))
        wait_for(lambda: take(feed, 1) and not feed.facts().frozen)
        web.frozen = True
        wait_for(lambda: take(feed, 1) and feed.facts().frozen and feed.facts().state == LIVE)
        web.frozen = False
        wait_for(lambda: take(feed, 1) and not feed.facts().frozen)
        check_silence(web, feed)
        web.ended = True
        wait_for(lambda: feed.facts().error)


def test_slow_loop_does_not_cause_a_reconnect(web: HttpServer) -> None:
    """A new connection must not time out merely because the decoder waits for a slow loop."""
    with started_feed(web.url("/mjpeg"), terms={"max_age_s": 3600.0}) as feed:
        wait_for(lambda: feed.facts().received >= 20)
        feed.receiving.cut()
        wait_for(lambda: feed.facts().state == CONNECTING and feed.status.has_arrivals())
        clock, tick, ticks = feed.clock, feed.status.tick, []
        feed.clock = lambda: clock() + 60 * 10**9  # three times the start timeout
        feed.status.tick = lambda now_ns: (ticks.append(now_ns), tick(now_ns))[1]
        wait_for(lambda: len(ticks) >= 5)
        assert len([path for path, _ in web.requests if path == "/mjpeg"]) == 2
        wait_for(lambda: feed.take() is not None and feed.facts().connects == 2)
    assert len(web.requests) == 2


@pytest.mark.parametrize("works", [True, False])
def test_existing_accelerator_is_used_if_requested(
    web: HttpServer, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    """A stand-in records how PyAV is asked for the accelerator. The CPU decodes."""
    refusal = None if works else av.error.PermissionError(1, "Operation not permitted")
    probed = Mock(create=Mock(side_effect=refusal))
    accelerator = Mock(side_effect=itertools.chain([probed], itertools.repeat(None)))
    monkeypatch.setattr(hardware, "HWAccel", accelerator)
    hardware._exists.cache_clear()
    with started_feed(web.url("/mjpeg"), options={"hwaccel": "cuda"}) as feed:
        take(feed, 3)
        assert feed.facts().codec == "mjpeg"
    hardware._exists.cache_clear()
    probe, *opened = accelerator.call_args_list
    assert probe == call("cuda", options={"primary_ctx": "1"})
    assert bool(opened) == works
    assert all(one.kwargs["allow_software_fallback"] for one in opened)


def test_missing_accelerator_falls_back_to_the_cpu(web: HttpServer) -> None:
    hardware._exists.cache_clear()
    for kind in ("cuda", "nonsense"):
        with started_feed(web.url("/mjpeg"), options={"hwaccel": kind}) as feed:
            assert len(take(feed, 3)) == 3


def test_feed_that_sheds_load_survives_a_stall_and_a_restart(clip: Path) -> None:
    """The test takes no picture until the second connection is up."""
    with (
        servers.rtsp({"c": clip}) as server,
        started_feed(server.url("c"), every=False, terms={"cpu_load": FullCores()}) as feed,
    ):

        def undecoded() -> int:
            return feed.facts().dropped.get(UNDECODED, 0)

        wait_for(undecoded)
        server.signal(signal.SIGSTOP)
        wait_for(lambda: feed.facts().state == STALLED)
        server.signal(signal.SIGCONT)
        wait_for(lambda: feed.facts().state == LIVE)
        before = undecoded()
        wait_for(lambda: undecoded() > before)
        assert feed.facts().connects == 1
        server.kill()
        wait_for(lambda: "nothing listens" in (feed.facts().error or ""))
        server.start()
        wait_for(lambda: feed.facts().connects == 2)
        before = undecoded()
        wait_for(lambda: undecoded() > before)
        assert take(feed, 2)[1].arrival.epoch == 2
        wait_for(lambda: feed.take() and feed._shedding.limit is None)
    assert is_balanced(feed)


@pytest.mark.usefixtures("short_limits")
def test_mjpeg_feed_that_sheds_load_survives_a_frozen_picture_and_silence(web: HttpServer) -> None:
    terms = {"cpu_load": FullCores()}
    with started_feed(web.url("/mjpeg"), every=False, terms=terms) as feed:
        wait_for(lambda: feed.facts().dropped.get(UNDECODED, 0) > 20)
        web.frozen = True
        wait_for(lambda: feed.facts().frozen)
        web.frozen = False
        wait_for(lambda: not feed.facts().frozen)
        check_silence(web, feed)
    assert is_balanced(feed)


def test_policy_latest_gives_the_newest_picture(web: HttpServer) -> None:
    web.fps = 100
    with started_feed(web.url("/mjpeg"), every=False) as feed:
        wait_for(lambda: feed.facts().received >= 30)
        assert feed.waiting() <= 1
        web.ended = True
        wait_for(lambda: feed.facts().state == WAITING)  # no more pictures arrive
        wait_for(
            lambda: count_unaccounted(feed) == feed.waiting() == 1
        )  # and none is being decoded
        newest = feed.facts().received - 1
        assert take(feed, 1)[0].number == newest
    assert is_balanced(feed)


@pytest.mark.parametrize("end", ["stop", "cut"])
def test_partial_last_picture_is_dropped(
    web: HttpServer, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """If interrupted, FFmpeg's parser returns an incomplete picture as if it were complete."""
    demux, over = network.demux, threading.Event()

    def interrupted(*arguments: Any) -> Iterator[Any]:
        try:
            for packet in demux(*arguments):
                yield packet
                if feed.facts().received == 5:
                    feed.stopping.set() if end == "stop" else feed.receiving.cut()
                    yield packet
        finally:
            over.set()

    monkeypatch.setattr(network, "demux", interrupted)
    one_try = Status(time.perf_counter_ns(), Backoff(lambda: 1000.0))
    with started_feed(web.url("/mjpeg"), status=one_try) as feed:
        assert over.wait(PATIENCE_S)
    assert feed.facts().received == 5


@pytest.mark.parametrize("probing", [SHORT, FAST])
def test_mpeg_ts_over_udp_is_probed_long_enough(
    clip: Path, probing: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With FAST, the first probe finds no codec, so a longer one follows."""
    monkeypatch.setitem(OPENINGS, "udp", replace(OPENINGS["udp"], probing=probing))
    url = f"udp://127.0.0.1:{servers.free_port()}"
    with servers.mpeg_ts(clip, url), started_feed(url) as feed:
        pictures = take(feed, 10)
        burnt = [read_number(feed.convert(picture, None)) for picture in pictures]
        assert burnt == [(burnt[0] + at) % 50 for at in range(10)]


def test_damaged_picture_is_counted_and_not_shown(clip: Path) -> None:
    """Half of a key frame is overwritten. FFmpeg conceals the damage without an error."""
    dropped = Drops()
    decoder, shown = PacketDecoder("c", dropped.drop, time.perf_counter_ns), []
    with av.open(str(clip)) as container, DamageLog() as damage_log:
        stream = container.streams.video[0]
        prepare(stream.codec_context)
        for number, packet in enumerate(p for p in container.demux(stream) if p.size):
            if number == 20:
                data = bytearray(bytes(packet))
                data[len(data) // 2 :] = Random(1).randbytes(len(data) - len(data) // 2)
                damaged = av.Packet(bytes(data))
                damaged.pts, damaged.dts = packet.pts, packet.dts
                damaged.time_base = packet.time_base
                packet = damaged
            received = Received(packet, Stamp(number, 1, 0, 0.0), stream.codec_context, True, 1)
            shown += [picture.number for picture, _ in decoder.decode(received, damage_log)]
    assert 20 not in shown
    assert dropped[CORRUPT] >= 1
    assert len(shown) + dropped[CORRUPT] == 50


@pytest.mark.parametrize("lost", [0.01, 0.05])
def test_lost_datagrams_damage_pictures_but_end_no_connection(tmp_path: Path, lost: float) -> None:
    """A noisy picture fills dozens of datagrams, so most losses damage the middle of a picture."""
    noisy = make_clip(tmp_path / "noisy.mp4", size=(640, 360), noise=True)
    port = servers.free_port()
    with (
        servers.lossy_relay(port, lost) as relay,
        started_feed(f"udp://127.0.0.1:{port}", every=False) as feed,
        servers.mpeg_ts(noisy, f"udp://127.0.0.1:{relay}?pkt_size=1316"),
    ):
        wait_for(lambda: feed.take() and feed.facts().dropped.get(CORRUPT, 0) >= 3)
        wait_for(lambda: feed.take() and feed.facts().state == LIVE)
        assert feed.facts().connects == 1
    assert is_balanced(feed)


def test_ffmpeg_log_is_taken_over_and_given_back(clip: Path) -> None:
    """``LogWatch`` must know whether it gets FFmpeg's messages, because they show redirects."""
    messages: list[str] = []
    with LogWatch(messages.append) as watch:
        complaints = Complaints()
        assert not watch.receives_messages()
        complaints.close()
        av.logging.set_level(None)
        assert watch.receives_messages()
        av.logging.set_level(None)
        with DamageLog() as damage_log:
            damage_log.restore_level()
        assert av.logging.get_level() == av.logging.INFO
    assert av.logging.get_level() is None


@pytest.mark.parametrize("wants_login", [False, True])
def test_http_login_stays_at_its_host(web: HttpServer, clip: Path, wants_login: bool) -> None:
    with servers.http() as other:
        web.login = "me:S3cret99"
        other.login = web.login if wants_login else None
        other.pages["/a.ts"] = ("video/mp4", clip.read_bytes())
        web.redirects["/r"] = other.url("/a.ts", host="localhost")
        with started_feed(web.url("/r", "me:S3cret99")) as feed:
            wait_for(lambda: feed.facts().error or feed.facts().received)
        assert other.requests
        assert all("Authorization" not in headers for _, headers in other.requests)


@pytest.mark.parametrize("option", ["headers", "cookies"])
def test_secret_headers_stay_at_their_host(web: HttpServer, option: str) -> None:
    with servers.http() as other:
        web.redirects["/r"] = other.url("/mjpeg")
        value = "X-Key: S3cret99\r\n" if option == "headers" else "k=S3cret99; path=/"
        with started_feed(web.url("/r"), options={option: value}) as feed:
            wait_for(lambda: feed.facts().error)
        assert other.requests == []
        assert len(web.requests) >= 1


class RtspStub(threading.Thread):
    def __init__(self, answer: Callable[[str], list[str]]) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.answer, self.requests = answer, list[str]()
        self.start()

    def run(self) -> None:
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.talk, args=(connection,), daemon=True).start()

    def talk(self, connection: socket.socket) -> None:
        data = b""
        with connection, suppress(ConnectionError):  # the client may hang up
            while block := connection.recv(4096):
                data += block
                while b"\r\n\r\n" in data:
                    request, _, data = data.partition(b"\r\n\r\n")
                    self.requests.append(request.decode())
                    number = re.search(r"CSeq: (\d+)", self.requests[-1])
                    assert number
                    status, *headers = self.answer(self.requests[-1])
                    lines = [f"RTSP/1.0 {status}", f"CSeq: {number[1]}", *headers, "", ""]
                    connection.sendall("\r\n".join(lines).encode())

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def test_rtsp_login_stays_at_its_host() -> None:
    """Without our code, FFmpeg sends the password to a redirect's host: ``av.open`` shows this."""
    refuse = ["401 Unauthorized", 'WWW-Authenticate: Basic realm="x"']

    def redirect(request: str) -> list[str]:
        if request.startswith("OPTIONS"):
            return ["200 OK", "Public: DESCRIBE, SETUP, PLAY"]
        if "Authorization" not in request:
            return refuse
        return ["302 Moved", f"Location: rtsp://127.0.0.1:{other.port}/y"]

    with closing(RtspStub(lambda _: refuse)) as other, closing(RtspStub(redirect)) as first:
        url = f"rtsp://me:S3cret99@localhost:{first.port}/x"
        with pytest.raises(av.error.FFmpegError):
            av.open(url, timeout=(PATIENCE_S, PATIENCE_S), options={"rtsp_transport": "tcp"})
        assert any("Authorization" in request for request in other.requests)
        other.requests.clear()
        backoff = ShortBackoff()
        with started_feed(url, status=Status(0, backoff)) as feed:
            wait_for(lambda: len(backoff.waits) >= 3)
            assert "127.0.0.1" in (feed.facts().error or "")
        assert other.requests == []


@pytest.mark.parametrize("spec", ["srt://h:1", "gopher://h/", "rtsp://", "rtsp://h:x/"])
def test_unreadable_address_is_refused_immediately(spec: str) -> None:
    with pytest.raises(SourceError):
        make_feed(Camera("c", NETWORK, Address(spec)))


def test_twenty_restarts_leak_no_threads_or_files(clip: Path) -> None:
    def threads_and_files() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    with servers.rtsp({"c": clip}) as server, started_feed(server.url("c"), every=False) as feed:
        before = None
        for round_ in range(1, 21):
            wait_for(lambda n=round_: feed.facts().connects == n)
            before = before or threads_and_files()
            server.kill()
            wait_for(lambda: feed.facts().state == WAITING)
            server.start()
        wait_for(lambda: feed.facts().connects == 21)
        threads_before, files_before = before or (0, 0)

        def as_before() -> bool:
            threads, files = threads_and_files()
            return threads <= threads_before and files <= files_before + 1

        wait_for(as_before)


def test_ffmpeg_log_contains_no_secrets(
    web: HttpServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is printed unless the user turns on PyAV's log."""
    url = web.url("/absent?token=T0kenPlanted", "me:S3cretPlanted")
    with started_feed(url) as feed:
        wait_for(lambda: feed.facts().error)
    assert capfd.readouterr() == ("", "")
    level = av.logging.get_level()
    av.logging.set_level(av.logging.VERBOSE)
    try:
        caplog.set_level(1, "libav")
        caplog.set_level(1)
        with started_feed(url) as feed:
            wait_for(lambda: feed.facts().error)
    finally:
        av.logging.set_level(level)
    assert "Planted" not in caplog.text
    assert caplog.records


def test_process_ends_although_a_feed_still_runs() -> None:
    with servers.silent_listener() as port:
        code = (
            "from detector.live.sources.readers import make_feed\n"
            "from detector.live.sources.cameras import make_cameras\n"
            f"feed = make_feed(make_cameras(['rtsp://127.0.0.1:{port}/x'])[0])\n"
            "feed.start(); import time; time.sleep(0.2); print(feed.facts().state)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "connecting\n", "")
