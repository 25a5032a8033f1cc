"""Test whole live runs in this process, with fake cameras, the null engine and real files."""

import io
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from detector.core.analysis.ledger import stage_rows
from detector.core.config.levels import resolve_config
from detector.core.errors import EngineError, OutputError, UsageError
from detector.core.run import plan as plans
from detector.core.run import signals
from detector.core.run.loading import load_model
from detector.core.session.document import DecodingFigures, LiveMemory, Summary
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.run import print_run
from detector.lab.analysis.next_steps import next_steps
from detector.lab.report.page import page
from detector.lab.session.read import read_session
from detector.live import day as days
from detector.live import roster
from detector.live import run as live
from detector.live.base import Event
from detector.live.day import DecodingSums
from detector.live.guest import reads_cameras
from detector.live.rows import CameraRows, DayRows
from detector.live.run import Observers, detect_live
from detector.live.sources import collect
from detector.live.sources.base import LIVE, WAITING
from detector.live.sources.collect import Collector
from tests.live.fake_feeds import FakeFeed
from tests.waiting import PATIENCE_S, wait_for

PERIOD_S = 0.02


class PacedFeed(FakeFeed):
    def __init__(self, camera, wake) -> None:
        super().__init__(camera, wake, time.perf_counter_ns, latest=True)
        self.size = (64, 48)
        self.looks = 0  # how often its state was read
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._play, daemon=True)
        if camera.address.whole.endswith("dead"):
            self.state, self.connects = WAITING, 0
            self.error = f"{camera.address}: nothing listens there"
            self.next_try_ns = time.perf_counter_ns() + 5_200_000_000

    def start(self) -> None:
        super().start()
        self.thread.start()

    def _play(self) -> None:
        while self.connects and not self.over.wait(PERIOD_S):
            self.arrives()

    def utc_s(self) -> float:
        return time.time()

    def listen(self, listener) -> None:
        """Ignore the listener: this feed sends no packets."""

    def facts(self):
        self.looks += 1
        return super().facts()

    def stop(self, timeout_s: float = 1.0) -> bool:
        self.over.set()
        self.thread.join()
        return super().stop(timeout_s)


@pytest.fixture(scope="module")
def loaded():
    """Load one model for all runs: the null engine still works after a run has closed it."""
    return load_model(config())


class EventTarget:
    name, failing = "the test", False

    def __init__(self, events: list[Event]) -> None:
        self.send = events.append

    def lost(self) -> int:
        return 0

    def close(self) -> None:
        """Do nothing, because no event is queued."""


class Feeds(list[PacedFeed]):
    collector: Collector
    waits = 0  # how often the loop waited for a camera

    def wait_for_pictures(self, count: int = 2, feed: int = 0) -> None:
        wait_for(lambda: len(self) > feed)
        before = self[feed].taken
        wait_for(lambda: self[feed].taken >= before + count)

    def wait_until_idle(self) -> None:
        """Silence the first camera, and wait until the loop waits for it."""
        self.wait_for_pictures(5)
        self[0].over.set()
        before = self.waits
        wait_for(lambda: self.waits > before)


@pytest.fixture
def feeds(monkeypatch, tmp_path, loaded) -> Feeds:
    feeds = Feeds()

    def make(camera, terms, timeline, wake):
        feeds.append(PacedFeed(camera, wake))
        return feeds[-1]

    class Watched(Collector):
        def _sleep(self, ns: int) -> None:
            feeds.waits += 1
            super()._sleep(ns)

    def make_collector(*arguments, **more) -> Collector:
        feeds.collector = Watched(*arguments, **more)
        return feeds.collector

    monkeypatch.setattr(live, "make_feed", make)
    monkeypatch.setattr(roster, "Collector", make_collector)
    monkeypatch.setattr(plans, "load_model", lambda *_, **__: replace(loaded, notes=[]))
    monkeypatch.setattr(live, "MONITOR_S", 0.02)
    monkeypatch.setattr(live, "STOP_TIMEOUT_S", PATIENCE_S)  # so that stopping loses no picture
    monkeypatch.setattr(collect, "SLICE_NS", 10_000_000)  # so that the end is noticed soon
    monkeypatch.chdir(tmp_path)
    return feeds


def config(**options):
    return resolve_config(None, {"engine": "null", "nvtx": False, **options})


NOBODY = Observers()


def run(*specs: str, around: Observers = NOBODY, **options):
    return detect_live(list(specs), config(**options), command=["test"], around=around)


def run_during(
    feeds: Feeds,
    action: Callable[[], object],
    *specs: str,
    around: Observers = NOBODY,
    ends: bool = True,
    **options,
):
    """Call ``action`` during a run. If ``ends``, end the source afterwards, as --duration does."""
    failed: list[BaseException] = []

    def act() -> None:
        try:
            wait_for(lambda: feeds and feeds[0].started)
            action()
        except BaseException as error:
            failed.append(error)
        if ends or failed:
            feeds.collector.end_after(0)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    result = run(*specs, around=around, **options)
    thread.join()
    if failed:
        raise failed[0]
    return result


def rows_of_a() -> list[dict]:
    paths = sorted(Path("live/a").glob("detections-*.jsonl"))  # one a day
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def is_accounted_for(stream) -> bool:
    return stream.received == stream.processed + sum(stream.dropped.values())


def test_missing_camera_is_reported_once_per_error(feeds):
    """A new error is printed. If only the time of the next attempt changes, nothing is printed."""
    lines: list[str] = []

    def change() -> None:
        wait_for(lambda: len(lines) == 1)
        feeds[0].next_try_ns += 600_000_000_000
        looks = feeds[0].looks
        wait_for(lambda: feeds[0].looks >= looks + 10)
        feeds[0].error = "a: wrong password"
        wait_for(lambda: len(lines) == 2)

    around = Observers(state=lines.append)
    result = run_during(feeds, change, "rtsp://a/dead", around=around, wait=True)
    assert (result.exit_code, result.errors_shown) == (3, True)
    texts = [re.fullmatch(r"a: (.+); retrying in (\d+) s", line).groups() for line in lines]
    errors, (first, second) = [text for text, _ in texts], [int(s) for _, s in texts]
    assert errors == ["rtsp://a/dead: nothing listens there", "a: wrong password"]
    assert 1 <= first <= 5 < 400 < second <= 605  # also if this machine stalls


def test_unreported_error_is_reported_at_the_end(feeds, monkeypatch):
    monkeypatch.setattr(live, "MONITOR_S", 60.0)
    result = run("rtsp://a/dead", duration="0.05")
    assert (result.exit_code, result.errors_shown) == (3, False)
    assert "nothing listens there" in str(result.errors[0])


def test_run_with_a_missing_camera_exits_0(feeds):
    """One camera was live: all its pictures are processed or dropped, and it has rows."""
    result = run_during(feeds, feeds.wait_for_pictures, "rtsp://a/door", "rtsp://b/dead")
    assert (result.exit_code, result.errors) == (0, [])
    door, dead = result.summary.streams
    assert (door.received, dead.received) == (feeds[0].received, 0)
    assert door.processed
    assert is_accounted_for(door)
    assert dead.error == "rtsp://b/dead: nothing listens there"
    rows = rows_of_a()
    assert len(rows) == door.processed
    assert {row["camera"] for row in rows} == {"a"}
    assert [row["frame"] for row in rows] == sorted({row["frame"] for row in rows})
    dropped = sum(door.dropped.values())
    frames = result.summary.frames
    assert (frames.read, frames.written, frames.dropped) == (door.received, door.processed, dropped)
    assert read_session(result.session).document.frames == frames


def test_the_session_is_readable_and_its_ledger_adds_up(feeds):
    result = run_during(feeds, feeds.wait_until_idle, "rtsp://a/door")
    assert result.session is not None
    assert result.session.parent == Path("runs/live")
    session = read_session(result.session)  # which checks the sums
    assert session.document.streams == result.summary.streams
    assert session.document.threads["reader"].waits["camera"] > 0
    assert session.document.video.kind == "live"


def test_reports_show_the_cameras(feeds):
    """The report and the summary show the cameras, and suggest only options for cameras."""
    providers: list = []

    def act() -> None:
        wait_for(lambda: providers)
        wait_for(lambda: providers[0]().capacity)  # known after a few turns of the monitor

    around = Observers(figures_to=providers.append)
    result = run_during(feeds, act, "rtsp://a/door", "rtsp://b/dead", around=around)
    session = read_session(result.session)
    html = page(session).decode()
    for text in ("<h2>Cameras", "rtsp://a/door", "nothing listens there", "result: inference"):
        assert text in html
    assert not {"compare", "--stride", "--calibrate"} & {
        word for step in next_steps(session) for word in step.command
    }
    printed = text_of(result.summary)
    assert re.search(r"such\s+cameras?\b", printed)  # "1.0 such camera" on a busy machine
    assert f"a: {result.summary.streams[0].processed} pictures" in printed
    assert "outputs: live/CAMERA/" in printed
    assert "decoding" not in printed.partition("ledger of")[2], "these feeds decode nothing"
    streams = [replace(stream, reconnects=7, stalls=2) for stream in result.summary.streams]
    frames = replace(result.summary.frames, written=0)
    memory = LiveMemory(start_mb=100.0, end_mb=112.5, peak_mb=112.5, minutes=[])
    bad_day = {"streams": streams, "frames": frames, "memory": memory, "session": None}
    printed = text_of(replace(result.summary, **bad_day))
    assert "7 reconnects, 2 stalls" in printed
    assert "112 MB at the peak" in printed
    assert "session: " not in printed
    printed = text_of(replace(result.summary, **bad_day), verbose=False)
    assert "end to end" not in printed, "no picture was processed, so there are no rates"


def text_of(summary: Summary, verbose: bool = True) -> str:
    console = SafeConsole(file=io.StringIO(), width=100)
    print_run(console, summary, verbose=verbose)
    return console.file.getvalue()


def test_cost_of_decoding_is_printed_after_the_ledger(feeds):
    summary = run_during(feeds, feeds.wait_for_pictures, "rtsp://a/door").summary
    frames = summary.frames.written
    beside = DecodingFigures(threads=2, calls=9, busy_s=frames * 0.00325, cpu_s=frames * 0.002)
    text = text_of(replace(summary, decoding=beside))
    (line,) = [line for line in text.splitlines() if " decoding " in line]
    assert line.split() == ["decoding", "3.25", "2.00", "2", "cameras"]
    rows = stage_rows(replace(summary, decoding=beside), frames)
    assert [row.stage for row in rows] == [row.stage for row in stage_rows(summary, frames)]


def test_cost_of_decoding_on_a_day_excludes_earlier_days():
    first = DecodingSums({"a": 5, "b": 3}, 4_000_000_000, 2_000_000_000)
    second = DecodingSums({"a": 9, "b": 3, "c": 1}, 5_000_000_000, 2_500_000_000)
    day = second.since(first)
    assert (day.threads, day.calls, day.busy_s, day.cpu_s) == (2, 5, 1.0, 0.5)


def test_run_with_sync_counts_its_waits_for_cameras(feeds):
    result = run_during(feeds, feeds.wait_until_idle, "rtsp://a/door", sync=True)
    assert result.exit_code == 0
    assert is_accounted_for(result.summary.streams[0])
    assert result.summary.threads["main"].waits["camera"] > 0


def test_run_exits_3_with_down_events_if_no_camera_answers(feeds, tmp_path):
    """The event targets get the events, and no file but the events file remains."""
    events: list[Event] = []
    around = Observers(events_to=[EventTarget(events)])
    result = run("rtsp://a/dead", "rtsp://b/dead", around=around, start_timeout=1.0, events="ev")
    assert (result.exit_code, result.session) == (3, None)
    (error,) = result.errors
    for text in ("--wait", "rtsp://a/dead: nothing listens", "rtsp://b/dead: nothing listens"):
        assert text in str(error)
    down = [("camera_down", "a"), ("camera_down", "b")]
    assert [(event.event, event.camera) for event in events] == down
    rows = [json.loads(line) for line in Path("ev").read_text().splitlines()]
    assert [(row["event"], row["camera"]) for row in rows] == down
    assert os.listdir() == ["ev"]


def test_dead_camera_sends_a_down_event_and_later_an_up_event(feeds):
    events: list[Event] = []

    def come() -> None:
        wait_for(lambda: any(event.camera == "b" for event in events))
        feeds[1].connects, feeds[1].state, feeds[1].error = 1, LIVE, None
        wait_for(lambda: sum(event.camera == "b" for event in events) == 2)

    around = Observers(events_to=[EventTarget(events)])
    result = run_during(feeds, come, "rtsp://a/door", "rtsp://b/dead", around=around)
    assert result.exit_code == 0
    of_b = [(event.event, event.reason) for event in events if event.camera == "b"]
    assert of_b == [
        ("camera_down", "rtsp://b/dead: nothing listens there"),
        ("camera_up", None),
        ("camera_down", "the run ended"),
    ]
    files = sorted(Path("live/b").glob("events-*.jsonl"))  # two if midnight passed
    lines = [line for path in files for line in path.read_text().splitlines()]
    assert [json.loads(line)["event"] for line in lines] == [event for event, _ in of_b]


def test_option_wait_disables_the_start_timeout(feeds):
    result = run("rtsp://a/dead", start_timeout=1.0, wait=True, duration="1.5")
    assert result.exit_code == 3
    assert "--wait" not in str(result.errors[0])


def test_refused_run_keeps_the_folders_of_the_running_one(feeds, loaded, monkeypatch):
    """Both runs start before either of them has created the camera's folder."""
    both, first = threading.Barrier(2), []

    def load(*_, **__):
        both.wait(PATIENCE_S)
        if threading.current_thread() is not threading.main_thread():
            wait_for(lambda: feeds and feeds[0].started)
            first.append(feeds.collector)
        return replace(loaded, notes=[])

    def check() -> None:
        assert isinstance(refused.exception(PATIENCE_S), OutputError)
        assert Path("out/a/video").is_dir()
        with pytest.raises(OutputError, match="another run"):
            CameraRows(Path("out"), feeds[0].camera, print)
        feeds.collector = first[0]

    monkeypatch.setattr(plans, "load_model", load)
    monkeypatch.setattr(PacedFeed, "listen", lambda *_: None)
    options = {"wait": True, "record": "copy", "output": "out/"}
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(run, "rtsp://a/dead", **options)
        run_during(feeds, check, "rtsp://a/dead", **options)


def test_existing_empty_folders_are_kept(feeds):
    Path("out/a").mkdir(parents=True)
    run("rtsp://a/dead", "rtsp://b/dead", duration="0.1", output="out/")
    assert [sorted(os.listdir(place)) for place in (".", "out", "out/a")] == [["out"], ["a"], []]


def fail_an_inference(loaded, monkeypatch) -> None:
    calls = iter(range(1000))

    def infer(request, n):
        if next(calls) == 5:
            raise EngineError("the engine failed")
        return real(request, n)

    real = type(loaded.engine.requests[0]).infer
    monkeypatch.setattr(type(loaded.engine.requests[0]), "infer", infer)


def test_failed_engine_ends_the_run_with_every_picture_counted(feeds, loaded, monkeypatch):
    fail_an_inference(loaded, monkeypatch)
    result = run("rtsp://a/door")
    assert result.exit_code == 5
    (stream,) = result.summary.streams
    assert is_accounted_for(stream)
    assert stream.received == feeds[0].received
    assert feeds[0].stopped == 1


def test_session_is_written_if_the_engine_fails_to_close(feeds, loaded, monkeypatch):
    """An inference fails. Then freeing the device's memory raises an error of another library."""

    def close(engine):
        raise RuntimeError("cudaFree: an illegal memory access")

    fail_an_inference(loaded, monkeypatch)
    monkeypatch.setattr(type(loaded.engine), "close", close)
    result = run("rtsp://a/door", run_dir="session")
    assert (result.exit_code, [str(error) for error in result.errors]) == (5, ["the engine failed"])
    (day,) = Path("session").iterdir()
    session = read_session(day)
    assert len(rows_of_a()) == session.document.frames.written > 0
    assert any("cudaFree" in note for note in session.document.notes)


def test_camera_may_change_its_size(feeds):
    def change() -> None:
        feeds.wait_for_pictures()
        feeds[0].size = (32, 24)
        feeds.wait_for_pictures()

    result = run_during(feeds, change, "rtsp://a/door")
    (stream,) = result.summary.streams
    assert (result.exit_code, stream.size) == (0, "32x24")
    assert is_accounted_for(stream)
    assert len(rows_of_a()) == stream.processed


def test_frames_option_ends_the_run(feeds):
    result = run("rtsp://a/door", frames=3)
    assert result.summary.frames.written == 3
    assert is_accounted_for(result.summary.streams[0])


def test_lines_drawn_in_an_earlier_run_are_used_for_counting(feeds, tmp_path):
    folder, said = tmp_path / "counts", []
    folder.mkdir()
    (folder / "zones.yaml").write_text("lines: {gate: [[0.5, 0], [0.5, 1]]}")
    around = Observers(say=said.append)
    options = {"around": around, "output": f"{folder}/"}
    result = run_during(feeds, feeds.wait_for_pictures, "rtsp://a/door", **options)
    assert [zone.name for zone in result.summary.each[0].zones] == ["gate"]
    assert [line for line in said if "drawn earlier" in line]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_signal_ends_the_run_with_its_exit_code(feeds, number, code, monkeypatch):
    # A signal soon after another one counts as its repetition, so each case has its own history.
    monkeypatch.setattr(signals, "_history", signals._SignalHistory())

    def kill() -> None:
        feeds.wait_for_pictures()
        # If the signal came before the run handles signals, the signal would end the tests.
        wait_for(lambda: signal.getsignal(number) != signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    signal.signal(number, signal.SIG_DFL)  # in case pytest was started with this signal ignored
    try:
        result = run_during(feeds, kill, "rtsp://a/door", ends=False)
    finally:
        signal.signal(number, before)
    assert result.exit_code == code
    assert is_accounted_for(result.summary.streams[0])
    assert feeds[0].stopped == 1
    assert read_session(result.session).document.exit.code == code


class TestList:
    def write(self, *names: str) -> None:
        lines = [f"  - {{name: {name}, url: 'rtsp://{name}/x'}}\n" for name in names]
        Path("new.yaml").write_text("cameras:\n" + "".join(lines))
        os.replace("new.yaml", "cameras.yaml")

    @pytest.mark.parametrize("how", ["mtime", "signal"])
    def test_changed_list_adds_and_removes_cameras(self, feeds, how, monkeypatch, notices):
        if how == "signal":
            monkeypatch.setattr(roster.Roster, "lists_changed", lambda self: False)
        self.write("a", "b")

        def change() -> None:
            feeds.wait_for_pictures(feed=0)
            feeds.wait_for_pictures(feed=1)
            self.write("b", "c")
            if how == "signal":
                os.kill(os.getpid(), signal.SIGUSR1)
            feeds.wait_for_pictures(feed=2)
            wait_for(lambda: notices)

        result = run_during(feeds, change, "cameras.yaml", around=Observers(say=notices.append))
        streams = {stream.name: stream for stream in result.summary.streams}
        assert sorted(streams) == ["a", "b", "c"]
        assert all(map(is_accounted_for, streams.values()))
        assert all(stream.processed for stream in streams.values())
        cameras = [feed.camera.name for feed in feeds]
        assert cameras == ["a", "b", "c"], "b kept its feed"
        assert [re.findall(r"\d", line) for line in notices] == [["1", "1", "0"]]

    def test_list_that_changed_during_loading_is_read_again(self, feeds, loaded, monkeypatch):
        self.write("a")

        def load(*_, **__):
            self.write("a", "b")
            return replace(loaded, notes=[])

        monkeypatch.setattr(plans, "load_model", load)
        run_during(feeds, lambda: feeds.wait_for_pictures(feed=1), "cameras.yaml")
        assert [feed.camera.name for feed in feeds] == ["a", "b"]

    def test_invalid_new_list_is_ignored(self, feeds, notices):
        self.write("a")

        def change() -> None:
            feeds.wait_for_pictures()
            Path("cameras.yaml").write_text("cameras: [{name: 'a b'}]")
            wait_for(lambda: notices)
            feeds.wait_for_pictures()

        result = run_during(feeds, change, "cameras.yaml", around=Observers(say=notices.append))
        assert result.exit_code == 0
        assert len(feeds) == 1
        assert any("current cameras" in line for line in notices)

    def test_the_page_starts_and_stops_cameras(self, feeds):
        self.write("a", "b")
        received: list = []

        def press() -> None:
            wait_for(lambda: received)
            controls = received[0]
            feeds.wait_for_pictures(feed=0)
            assert controls.cameras() == ["a", "b"]
            controls.stop("a")
            controls.stop("a")  # stopping twice is harmless
            controls.start("a")
            with pytest.raises(UsageError):
                controls.start("nobody")
            feeds.wait_for_pictures(feed=2)

        around = Observers(controls_to=lambda controls, folder: received.append(controls))
        result = run_during(feeds, press, "cameras.yaml", around=around)
        assert [feed.camera.name for feed in feeds] == ["a", "b", "a"]
        assert all(map(is_accounted_for, result.summary.streams))
        first = next(stream for stream in result.summary.streams if stream.name == "a")
        assert (first.received, first.reconnects) == (feeds[0].received + feeds[2].received, 0)
        numbers = [row["frame"] for row in rows_of_a()]
        assert numbers == sorted(set(numbers)), "frame numbers never restart"


def test_new_day_gets_its_own_session(feeds, monkeypatch):
    """Feeds and outputs continue; the figures of each session add up separately."""
    day = ["2026-11-22"]
    monkeypatch.setattr(days, "today", lambda: day[0])

    def turn() -> None:
        feeds.wait_for_pictures()
        day[0] = "2026-11-23"
        wait_for(lambda: len(list(Path("runs/live").iterdir())) == 2)
        feeds.wait_for_pictures(3)

    result = run_during(feeds, turn, "rtsp://a/door")
    assert len(feeds) == 1
    folders = sorted(Path("runs/live").iterdir())
    sessions = [read_session(folder).document for folder in folders]
    assert len(sessions) == 2
    streams = [session.streams[0] for session in sessions]
    assert all(map(is_accounted_for, streams))
    assert sum(stream.received for stream in streams) == feeds[0].received
    assert all(stream.processed for stream in streams)
    assert str(result.session) == "runs/live/2026-11-23"
    with pytest.raises(UsageError, match="runs/live/2026-11-23"):
        read_session("runs/live")


@pytest.mark.slow
def test_clock_jump_loses_no_picture(feeds, monkeypatch):
    """The clock jumps ahead and back by a day, an hour and a year."""
    real, ahead, events = time.time, [0.0], []
    monkeypatch.setattr(time, "time", lambda: real() + ahead[0] * 3600)

    def jump() -> None:
        for hours in (24, 0, 1, 0, 8766, 0, -8766, 0):
            feeds.wait_for_pictures(3)
            ahead[0] = hours
        feeds.wait_for_pictures(3)

    around = Observers(events_to=[EventTarget(events)])
    run_during(feeds, jump, "rtsp://a/door", around=around, record="annotated", keep_days=0.5)
    numbers = [row["frame"] for row in rows_of_a()]
    sessions = [read_session(path).document for path in Path("runs/live").iterdir()]
    streams = [session.streams[0] for session in sessions]
    assert all(map(is_accounted_for, streams))
    assert len(set(numbers)) == len(numbers) == sum(stream.processed for stream in streams)
    files = sum(stream.output_counts["recording"]["files"] for stream in streams)
    assert files == len(list(Path("live/a/video").glob("*Z*.mp4"))) >= 1
    assert [event.event for event in events] == ["camera_up", "camera_down"]


def test_lost_rows_are_in_the_figures_and_the_closing_notes(feeds, monkeypatch):
    monkeypatch.setattr(DayRows, "_append", lambda self, *_: self._pause(OSError(28, "full")))
    around = Observers(figures_to=(figures := []).append)

    def wait() -> None:
        wait_for(lambda: figures and figures[0]().outputs.get(("a", "jsonl"), ()) > (True, 2))

    result = run_during(feeds, wait, "rtsp://a/door", around=around)
    lost = result.summary.streams[0].output_counts["jsonl"]["lost"]
    assert f"a jsonl: {lost} lost" in result.summary.notes


def test_internal_error_is_logged_once(feeds, monkeypatch):
    """The error recurs four times a second, and must not fill the disk."""
    met = []
    monkeypatch.setattr(live.CameraLines, "report", lambda *_: met.append(1) or {}["gone"])
    result = run_during(feeds, lambda: wait_for(lambda: len(met) > 3), "rtsp://a/door")
    assert (result.session / "error.log").read_text().count("Traceback") == 1


def test_run_with_output_dev_null_writes_only_the_session(feeds, tmp_path):
    result = run_during(feeds, feeds.wait_for_pictures, "rtsp://a/door", output="/dev/null")
    assert result.exit_code == 0
    assert os.listdir(tmp_path) == ["runs"]


@pytest.mark.parametrize(
    "options",
    [
        {"save": ["jsonl"]},
        {"rect": True},
        {"save_times": True},
        {"no_video": True},
        {"start": "5"},
        {"stride": 2},
        {"decoder": "av"},
        {"output": "out.mp4"},
        {"output": "-"},
        {"blur": ["person"], "record": "copy"},
        {"blur": ["person"], "clips": True},
    ],
    ids=str,
)
def test_options_that_do_not_fit_cameras_are_refused(feeds, options, tmp_path):
    with pytest.raises(UsageError):
        run("rtsp://a/door", **options)
    assert (feeds, os.listdir(tmp_path)) == ([], [])


def test_unknown_class_of_a_camera_is_refused(feeds, tmp_path):
    Path("cameras.yaml").write_text("cameras: [{name: a, url: 'rtsp://a/x', classes: [zebra]}]")
    with pytest.raises(UsageError, match="camera a: classes zebra"):
        run("cameras.yaml")
    assert feeds == []
    assert os.listdir() == ["cameras.yaml"]


def test_addresses_webcams_lists_and_looped_files_count_as_cameras(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("cams.yaml").write_text("cameras: [rtsp://a/b]")
    Path("model.yaml").write_text("model: street")
    Path("0").touch()
    plain, loop = config(), config(repeat=True)
    for spec in ("0", "/dev/video0", "rtsp://a/b", "http://a/x.mjpg", "udp://1", "cams.yaml"):
        assert reads_cameras([spec], plain), spec
    for spec in ("./0", "in.mp4", "model.yaml", "shots/"):
        assert not reads_cameras([spec], plain), spec
        assert reads_cameras([spec], loop), spec
    assert reads_cameras(["rtsp://a/b", "in.mp4"], loop)
    for spec, message in (("in.mp4", r"in\.mp4.*--loop"), ("-", "standard input and cameras")):
        with pytest.raises(UsageError, match=message):
            reads_cameras(["rtsp://a/b", spec], plain)
