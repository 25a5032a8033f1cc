"""Test ``--serve`` on the command line, for standard input and for a file."""

import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO

import pytest

from tests.cli.command import COMMAND, detect_video
from tests.conftest import CHECKOUT
from tests.live.page.client import Client
from tests.live.servers import silent_listener
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.net
STREET = CHECKOUT / "videos/street.mp4"


@pytest.mark.slow
def test_piped_video_is_shown_and_the_page_ends_with_the_run(tmp_path):
    words = [*COMMAND, "-", "--serve", "0", "-o", "out/", "--no-video", "--conf", "0.01"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with (
        subprocess.Popen(words, cwd=tmp_path, **pipes) as process,
        raw_video(process.stdin) as end_video,
    ):
        port = int(re.search(rb"page: http://127\.0\.0\.1:(\d+)/", process.stderr.readline())[1])
        client = Client(port)
        wait_for(lambda: client.ask("/healthz").status == 200)
        [stream] = client.ask("/api/streams").json()["streams"]
        assert (stream["kind"], stream["state"], stream["size"]) == ("file", "live", "320x180")
        # The server answers 503 if no picture arrives within two seconds.
        snapshot = f"/api/streams/{stream['name']}/snapshot.jpg"
        wait_for(lambda: client.ask(snapshot).body[:2] == b"\xff\xd8")
        with client.stream("/api/events") as events:
            end_video()
            kinds = {kind for kind, _, _ in events.messages()}
        assert kinds >= {"figures", "end"}
        process.stdout.read()
        stderr = process.stderr.read()
        assert process.wait(PATIENCE_S) == 0, stderr
    assert stderr == b""
    with pytest.raises(ConnectionRefusedError):
        client.ask("/")


@contextmanager
def raw_video(pipe: IO[bytes]) -> Iterator[Callable[[], None]]:
    """Write a video to ``pipe`` from a thread; yield a function that ends the video."""
    ended = threading.Event()

    def write() -> None:
        with suppress(BrokenPipeError), pipe:
            pipe.write(b"YUV4MPEG2 W320 H180 F25:1 Ip A1:1 C420jpeg\n")
            while not ended.wait(0.04):
                pipe.write(b"FRAME\n" + bytes([90]) * (320 * 180 * 3 // 2))

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield ended.set
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
def test_wrong_serve_options_are_refused_before_a_model_is_loaded(tmp_path):
    with silent_listener() as port:
        for words, code in (
            ((str(port),), 6),
            (("0.0.0.0:0",), 2),
            (("nonsense",), 2),
            (("0", "--tls-cert", "absent.pem"), 2),
        ):
            done = detect_video(STREET, "--model", "absent.onnx", "--serve", *words, cwd=tmp_path)
            assert done.returncode == code, done.stderr
            assert done.stderr.startswith(f"detect-video: --{'tls' if len(words) > 1 else 'serve'}")
            assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
