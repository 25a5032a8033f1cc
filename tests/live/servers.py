"""Cameras for tests and scripts: real servers at 127.0.0.1, as context managers.

with rtsp({"door": make_clip(folder)}) as server: server.url("door")
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import av
import cv2
import pytest
from av.bitstream import BitStreamFilterContext

from tests.live.streams import burn_number, draw_picture, make_stream
from tests.sources.clips import encode_once
from tests.sources.web_server import Handler, Server, basic, serving

RTSP_SERVER = Path(__file__).with_name("rtsp_server.py")
SYSTEM_PYTHON = "/usr/bin/python3"  # gi has no wheel
STEADY = {"preset": "ultrafast", "tune": "zerolatency"}


# Clips.


def make_clip(
    path: Path,
    pictures: int = 50,
    fps: int = 25,
    size: tuple[int, int] = (320, 180),
    gop: int = 10,
    b_frames: int = 0,
    codec: str = "libx264",
    options: Mapping[str, str] = STEADY,
    noise: bool = False,
) -> Path:
    """Make a video whose pictures show their numbers. ``noise``: add noise, for a larger file."""
    kind = ("clip", pictures, fps, size, gop, b_frames, codec, *sorted(options.items()), noise)

    def encode() -> None:
        chosen = {"preset": "ultrafast"} if b_frames else options
        make_stream(
            path, count=pictures, fps=fps, size=size, gop=gop, b_frames=b_frames, codec=codec,
            options=chosen if codec == "libx264" else {}, noise=noise,
        )  # fmt: skip

    return encode_once(path, kind, encode)


def _write_units(clip: Path) -> Path:
    """Write files for the RTSP server: the clip's access units in Annex B, and their offsets."""
    target = clip.with_suffix(".annexb")
    if target.exists():
        return target
    with av.open(str(clip)) as container, target.open("wb") as file:
        stream = container.streams.video[0]
        name = {"h264": "h264", "hevc": "hevc"}[stream.codec_context.name]
        to_annex_b = BitStreamFilterContext(f"{name}_mp4toannexb", stream)
        units, offset, first = [], 0, None
        for packet in container.demux(stream):
            if not packet.size:
                continue
            times = (packet.pts, packet.dts if packet.dts is not None else packet.pts)
            for unit in to_annex_b.filter(packet):
                data = bytes(unit)
                first = times[1] if first is None else first
                pts, dts = (round((t - first) * stream.time_base * 10**9) for t in times)
                units.append((offset, len(data), pts, dts))
                file.write(data)
                offset += len(data)
        duration = round(len(units) * 10**9 / stream.average_rate)
    codec = {"h264": "h264", "hevc": "h265"}[name]
    index = {"codec": codec, "units": units, "duration": duration}
    Path(f"{target}.json").write_text(json.dumps(index))
    return target


# Ports.


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def silent_listener() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


# RTSP.


def need_rtsp() -> None:
    probe = "import gi; gi.require_version('GstRtspServer', '1.0')"
    if (
        not os.path.exists(SYSTEM_PYTHON)
        or subprocess.run([SYSTEM_PYTHON, "-c", probe], capture_output=True, check=False).returncode
    ):
        pytest.skip("no RTSP server: apt install gir1.2-gst-rtsp-server-1.0 python3-gi")


class RtspServer:
    """A server process that can be killed and started repeatedly, always on the same port.
    ``prefix``: the start of its command line, such as ``ip netns exec NAME``."""

    def __init__(
        self,
        mounts: Mapping[str, Path | Sequence[Path]],
        login: str | None,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        self.port, self._login = 0, login
        self._host, self._prefix = host, prefix
        self._mounts = []
        for name, clips in mounts.items():
            files = [clips] if isinstance(clips, Path) else clips
            self._mounts.append(f"{name}={'+'.join(str(_write_units(file)) for file in files)}")
        self._process: subprocess.Popen[str] | None = None

    def url(self, name: str, login: str | None = None) -> str:
        return f"rtsp://{login + '@' if login else ''}{self._host}:{self.port}/{name}"

    def start(self) -> None:
        login = ["--user", self._login] if self._login else []
        self._process = subprocess.Popen(
            [
                *(*self._prefix, SYSTEM_PYTHON, str(RTSP_SERVER), str(self.port), *self._mounts),
                *("--address", self._host, *login),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        status, port = self._process.stdout.readline().split()
        self.port = int(port)
        assert (status, self.port > 0) == ("ready", True)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


@contextmanager
def rtsp(
    mounts: Mapping[str, Path | Sequence[Path]], login: str | None = None
) -> Iterator[RtspServer]:
    need_rtsp()
    server = RtspServer(mounts, login)
    with socket.socket() as reserved:  # so that no other program takes the port after a kill
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        server.port = reserved.getsockname()[1]
        try:
            server.start()
            yield server
        finally:
            server.kill()


# HTTP.


class HttpServer(Server):
    """Serves ``pages`` (path -> content type and bytes), ``redirects`` and a stream of pictures."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__(_Handler, host)
        self.pages: dict[str, tuple[str, bytes]] = {}
        self.redirects: dict[str, str] = {}
        self.login: str | None = None
        # Settings of the MJPEG stream at /mjpeg, which tests may change while it plays.
        self.fps = 25.0
        self.size = (320, 180)
        self.frozen = False
        self.silent = False
        self.ended = False
        self.sent = 0

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Handler(Handler):
    server: HttpServer

    def do_GET(self) -> None:  # noqa: N802
        server = self.server
        path = self.path.partition("?")[0]
        server.requests.append((self.path, dict(self.headers.items())))
        if server.login and self.headers.get("Authorization") != basic(server.login):
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="camera"')
            self.end_headers()
        elif path in server.redirects:
            self.send_response(302)
            self.send_header("Location", server.redirects[path])
            self.end_headers()
        elif path == "/mjpeg":
            self._stream()
        elif path in server.pages:
            kind, content = server.pages[path]
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        else:
            self.send_error(404)

    def do_POST(self) -> None:  # noqa: N802
        """Record the request for the test, and refuse it."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.path, dict(self.headers.items())))
        self.send_error(501)

    def _stream(self) -> None:
        server = self.server
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
        self.end_headers()
        due, jpeg = time.monotonic(), b""
        while not server.ended:
            due += 1 / server.fps
            time.sleep(max(0.0, due - time.monotonic()))
            if server.silent:
                continue
            if not (server.frozen and jpeg):
                image = draw_picture(server.sent, *server.size)
                burn_number(image, round(time.time() * 1e6))
                jpeg = cv2.imencode(".jpg", image)[1].tobytes()
            self.wfile.write(
                b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n%s\r\n"
                % (len(jpeg), jpeg)
            )
            server.sent += 1


@contextmanager
def http(host: str = "127.0.0.1") -> Iterator[HttpServer]:
    server = HttpServer(host)
    with serving(server):
        try:
            yield server
        finally:
            server.ended = True


# MPEG-TS, by ffmpeg.


@contextmanager
def lossy_relay(to_port: int, lost: float, seed: int = 1) -> Iterator[int]:
    """Relay datagrams to ``to_port``. Drop a random share, ``lost``. Yield the port to send to."""
    random = Random(seed)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as relay:
        relay.bind(("127.0.0.1", 0))
        relay.settimeout(0.1)
        ended = threading.Event()

        def run() -> None:
            while not ended.is_set():
                with suppress(TimeoutError):
                    datagram = relay.recv(65536)
                    if random.random() >= lost:
                        relay.sendto(datagram, ("127.0.0.1", to_port))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield relay.getsockname()[1]
        finally:
            ended.set()
            thread.join()


@contextmanager
def mpeg_ts(clip: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """Let ffmpeg play the clip endlessly to ``udp://127.0.0.1:P``, or to the one client of
    ``http://127.0.0.1:P/x``."""
    if shutil.which("ffmpeg") is None:
        pytest.skip("machine: ffmpeg is not installed")
    listen = ["-listen", "1"] if url.startswith("http") else []
    process = subprocess.Popen(
        [
            *("ffmpeg", "-loglevel", "quiet", "-re", "-stream_loop", "-1", "-i", str(clip)),
            *("-c", "copy", "-f", "mpegts", *listen, url),
        ],
        stdin=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
