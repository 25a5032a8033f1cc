"""One Detector and many threads: every order that a test forces, by events of the threads."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest

from detector import Detector, DetectVideoError
from detector.core import api
from detector.core.errors import UsageError
from tests.conftest import CHECKOUT
from tests.waiting import PATIENCE_S, wait_for

CLIP = str(CHECKOUT / "videos/street.mp4")
PICTURE = np.zeros((48, 64, 3), np.uint8)


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        cv2.imwrite(str(tmp_path / f"{number}.png"), PICTURE + number)
    return tmp_path


@pytest.fixture
def detector():
    with Detector(engine="null", frames=12) as opened:
        yield opened


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def is_closed(detector):
    try:
        next(detector.stream(93))
    except DetectVideoError as error:
        return "this Detector is closed" in str(error)


class Held:
    """Holds each inference until ``go``, and notes whether the engine was closed during one."""

    def __init__(self, detector):
        self.begun, self.go, self.computing, self.overlapped = [], threading.Event(), 0, False
        engine = detector._plan.loaded.engine
        close = engine.close

        def closing():
            self.overlapped |= self.computing > 0
            close()

        engine.close = closing
        for request in engine.requests:
            request.infer = self.holding(request.infer)

    def holding(self, infer):
        def held(n):
            self.computing += 1
            self.begun.append(n)
            assert self.go.wait(PATIENCE_S)
            self.computing -= 1
            return infer(n)

        return held


def start_two_streams(detector, sources, threads, monkeypatch):
    """The second thread asks for its stream while the first one lists its source."""
    gather, first_lists, second_has_answer = api._gather, threading.Event(), threading.Event()

    def gathered(specs):
        if first_lists.is_set():
            second_has_answer.set()
        else:
            first_lists.set()
            assert second_has_answer.wait(PATIENCE_S)
        return gather(specs)

    def second():
        assert first_lists.wait(PATIENCE_S)
        try:
            return [found.boxes.tolist() for _, found in detector.stream(sources[1])]
        except UsageError as error:
            return str(error)
        finally:
            second_has_answer.set()

    monkeypatch.setattr(api, "_gather", gathered)
    refused = threads.submit(second)
    found = [found.boxes.tolist() for _, found in detector.stream(sources[0])]
    return found, refused.result()


@pytest.mark.parametrize("kind", ["folder", "video", "list", "glob"])
def test_of_two_streams_that_start_at_once_one_is_refused(
    kind, detector, folder, threads, monkeypatch
):
    source, count = {
        "folder": (folder, 3),
        "video": (CLIP, 12),
        "list": ([folder, CLIP], 15),
        "glob": (folder / "*.png", 3),
    }[kind]
    found, refused = start_two_streams(detector, [source, source], threads, monkeypatch)
    assert len(found) == count
    assert "already streaming" in refused


@pytest.mark.slow
def test_streams_that_start_at_once_do_not_get_each_others_detections(
    tmp_path, threads, monkeypatch
):
    reader, sources = cv2.VideoCapture(CLIP), [tmp_path / "plain", tmp_path / "mirrored"]
    for source, step in zip(sources, (1, -1), strict=True):
        source.mkdir()
        for number in range(6):
            cv2.imwrite(str(source / f"{number}.png"), reader.read()[1][:, ::step])
    with Detector(engine="ort", size="160x96") as detector:
        alone = [found.boxes.tolist() for _, found in detector.stream(sources[0])]
        found, _ = start_two_streams(detector, sources, threads, monkeypatch)
    assert any(alone)
    assert found == alone


def test_a_source_that_cannot_be_listed_does_not_keep_the_next_stream_out(detector, folder):
    for _ in range(2):
        with pytest.raises(DetectVideoError, match=r"none\.png"):
            list(detector.stream([folder / "none.png"]))
    assert len(list(detector.stream(folder))) == 3


@pytest.mark.parametrize("entry", ["picture", "list", "stream"])
def test_close_waits_for_what_the_engine_computes(entry, detector, folder, threads):
    held = Held(detector)
    calls = {
        "picture": lambda: detector(PICTURE),
        "list": lambda: detector([PICTURE] * 3),
        "stream": lambda: list(detector.stream(folder)),
    }
    running = threads.submit(calls[entry])
    wait_for(lambda: held.begun)
    closing = threads.submit(detector.close)
    wait_for(lambda: is_closed(detector))
    held.go.set()
    closing.result()
    assert not held.overlapped
    if entry == "picture":
        assert len(running.result()) == 0
    else:  # which had more to compute
        with pytest.raises(DetectVideoError, match="closed"):
            running.result()


def test_a_call_that_waits_for_another_one_is_refused_after_close(detector, threads):
    held = Held(detector)
    calls = [threads.submit(detector, PICTURE) for _ in range(3)]
    wait_for(lambda: held.begun)
    closing = threads.submit(detector.close)
    wait_for(lambda: is_closed(detector))
    held.go.set()
    closing.result()
    assert len([call for call in calls if call.exception() is None]) == len(held.begun) == 1


def test_a_stream_whose_detector_is_closed_does_not_end_as_if_it_were_whole(detector):
    stream = detector.stream(CLIP)
    next(stream)
    detector.close()
    with pytest.raises(DetectVideoError, match="closed"):
        list(stream)


def test_a_handler_of_a_signal_may_close_during_an_inference(detector):
    request = detector._plan.loaded.engine.requests[-1]
    request.infer = lambda n: signal.raise_signal(signal.SIGUSR1)
    before = signal.signal(signal.SIGUSR1, lambda *_: detector.close())
    try:
        with pytest.raises(TypeError):  # it has no results
            detector(PICTURE)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert is_closed(detector)


BEGIN = f"""
import os, sys, threading
from detector import Detector
detector = Detector(engine=sys.argv[1], size="160x96", concurrency=2)
it = iter(detector.stream({CLIP!r}))
next(it)
"""
IN_A_THREAD = """
began = threading.Event()
def follow():
    for _ in it:
        began.set()
    print("the stream ended as if it were whole")
threading.Thread(target=follow, daemon=True).start()
began.wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "script"),
    [("null", ""), ("ort", ""), ("openvino", ""), ("torch", ""), ("ort", IN_A_THREAD)],
    ids=["null", "ort", "openvino", "torch", "thread"],
)
def test_a_script_may_end_while_it_holds_a_stream(engine, script):
    if engine not in ("null", "ort"):
        pytest.importorskip(engine)
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script, engine],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
