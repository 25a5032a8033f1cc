"""Test how the page shows runs of files: names, progress, rates and drawn pictures."""

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import pytest

from detector.core.timeline.spans import INFER, READ
from detector.core.timeline.timeline import Timeline
from detector.core.types import Detections, SourceInfo
from detector.live.hub import Hub
from detector.live.watched_files import WatchedFiles, make_stream_name
from detector.tracks.book import Scene
from detector.tracks.counting import ZoneEvent
from tests.live.page.fake_run import frame, picture

NOTHING = SimpleNamespace(read=0, written=0, reused=0, coasted=0)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def ns(self) -> int:
        return round(self.now_s * 1e9)


def info(path: str, frames: int | None = None) -> SourceInfo:
    return SourceInfo(path, "video", 64, 48, Fraction(25), Fraction(1, 25), frames_declared=frames)


@pytest.mark.parametrize(
    ("path", "taken", "expected"),
    [
        ("in.mp4", set(), "in"),
        ("a/b c/Straße 1.tar.mp4", set(), "Stra-e-1-tar"),
        ("shots/", set(), "shots"),
        ("in.mp4", {"in"}, "in-2"),
        ("IN.mp4", {"in", "in-2"}, "IN-3"),
        ("<script>.mp4", set(), "script"),
        ("…", set(), "file"),
        ("x" * 99, set(), "x" * 40),
        ("x" * 99, {"x" * 40}, "x" * 38 + "-2"),
        (".mp4", set(), "mp4"),
    ],
)
def test_stream_name_is_safe_and_unique(path, taken, expected):
    assert make_stream_name(path, taken) == expected


def test_figures_of_two_files_in_turn():
    clock, hub = Clock(), Hub()
    watched = WatchedFiles(hub, cores=2, clock=clock)
    assert hub.figures().streams == ()
    progress = SimpleNamespace(read=0, written=0, reused=0, coasted=0)
    timeline = Timeline(clock=clock.ns, nvtx=False)
    clock.now_s += 1
    watched.start(info("a/in.mp4", 100), progress, timeline, 80)
    first = hub.figures()
    assert [
        (stream.name, stream.state, stream.kind, stream.expected) for stream in first.streams
    ] == [("in", "live", "file", 80)]
    assert first.end_to_end_fps is None  # no time has passed
    with timeline.track("worker") as track:
        with track.span(INFER, 0):
            clock.now_s += 0.375
        with track.span(READ, 0):
            clock.now_s += 0.125
    progress.read, progress.written, progress.reused, progress.coasted = 50, 40, 4, 6
    now = hub.figures()
    assert now.end_to_end_fps == 80.0
    assert now.inference_fps == pytest.approx(30 / 0.375)
    assert now.busy == {"infer": 0.75, "read": 0.25}
    assert "infer is the busiest stage: busy 75%" in now.bottleneck
    assert now.engine_age_s == 0.0
    clock.now_s += 0.1
    assert hub.figures() is now  # figures are reused for half a second
    clock.now_s += 0.9
    assert hub.figures().engine_age_s == pytest.approx(1.0)
    watched.stop()
    watched.start(info("b/in.mp4"), NOTHING, timeline, None)
    streams = hub.figures().streams
    assert [(stream.name, stream.state, stream.processed) for stream in streams] == [
        ("in", "ended", 40),
        ("in-2", "live", 0),
    ]


def test_pictures_and_counts_have_the_name_of_their_file():
    hub, yard = Hub(), SimpleNamespace(name="yard", is_line=False)
    watched = WatchedFiles(hub)
    watched.start(info("in.mp4"), NOTHING, Timeline(nvtx=False), None)
    hub.request_picture("in")
    shown = frame("", picture(3))
    shown.arrival = None
    assert watched.wants_pictures("in.mp4")
    enters = ZoneEvent(9.0, "yard", "enters", "", "cat", 1, 2, 3)
    stays, ends = enters._replace(event="stays"), enters._replace(event="ends")
    last = Scene((), (ends,), (), None)
    book = SimpleNamespace(finish=lambda: last, shapes=lambda: [yard])
    watched.show(shown, replace(Detections.empty(), scene=Scene((), (stays, enters), (), book)))
    assert hub.newest("in").number == 1
    (counts,) = hub.figures().streams[0].zones
    assert (counts.today, counts.inside) == ((1, 0), 1)
    watched.stop()  # objects that are still inside count as out
    (counts,) = hub.figures().streams[0].zones
    assert (counts.today, counts.inside, counts.counts) == ((1, 1), 0, {"cat": (1, 1)})


def test_start_and_stop_are_passed_on_to_the_terminal_line():
    calls = []
    line = SimpleNamespace(start=lambda *a: calls.append(a[3]), stop=lambda: calls.append("stop"))
    watched = WatchedFiles(Hub(), line)
    watched.start(info("in.mp4"), NOTHING, Timeline(nvtx=False), 7)
    watched.stop()
    assert calls == [7, "stop"]
