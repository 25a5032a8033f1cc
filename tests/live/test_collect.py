"""Test which picture is next, how long a batch waits and what is counted, on a fake clock."""

import pytest

from detector.core.timeline.spans import OffTrack
from detector.core.timeline.timeline import Timeline
from detector.live.sources.base import CONNECTING, ENDED, STALLED, STOPPED, WAITING
from tests.live.fake_feeds import MS, Bench, camera


def is_accounted_for(collector) -> bool:
    """Return whether received = handed + dropped for every camera, even a removed one."""
    return all(
        member.facts().received == member.handed + sum(member.facts().dropped.values())
        for member in [*collector.members(), *collector.gone.values()]
    )


def test_pictures_of_a_camera_keep_their_order():
    bench = Bench("a", "b")
    bench.feeds["a"].arrives(5)
    bench.feeds["b"].arrives(3)
    batches = [bench.batch(2) for _ in range(5)]
    flat = [pair for batch in batches for pair in batch]
    assert [n for name, n in flat if name == "a"] == [0, 1, 2, 3, 4]
    assert [n for name, n in flat if name == "b"] == [0, 1, 2]


def test_camera_with_many_pictures_does_not_delay_others():
    """One camera has ten pictures, but every round includes all cameras."""
    bench = Bench("greedy", "a", "b")
    bench.feeds["greedy"].arrives(10)
    bench.feeds["a"].arrives(2)
    bench.feeds["b"].arrives(2)
    names = [bench.batch(1)[0][0] for _ in range(6)]
    assert sorted(names[:3]) == sorted(names[3:]) == ["a", "b", "greedy"]


def test_time_without_a_picture_is_recorded_as_wait_input():
    bench = Bench("a")
    timeline = Timeline(clock=bench.clock, cpu_clock=lambda: 0, nvtx=False)
    bench.while_waiting[30] = lambda: bench.feeds["a"].arrives()
    with timeline.track("reader") as track:
        assert bench.collector.arrive(track, 0, 0)
    assert {key: span.self_ns for key, span in track.spans.items()} == {
        ("camera", "wait_input"): 30 * MS
    }
    assert track.wall_ns == 30 * MS, "the wait is all that takes time"


def test_wait_returns_within_a_second_so_that_the_loop_can_stop():
    bench = Bench("a")
    assert not bench.collector.arrive(OffTrack(), 0, 0)
    assert 0 < bench.ms() < 1000


class TestWindow:
    """How long a batch waits for camera ``b`` (25 FPS) once a picture of ``a`` has arrived."""

    @staticmethod
    def bench(busy: float) -> Bench:
        bench = Bench("a", "b")
        for feed in bench.feeds.values():
            feed.arrives()
        bench.batch(2)
        bench.collector.pace.busy = busy
        bench.feeds["a"].arrives()
        return bench

    @pytest.mark.parametrize(("busy", "waited_ms"), [(0.95, 40), (0.0, 0)])
    def test_batch_waits_for_the_other_camera_only_if_inference_is_busy(self, busy, waited_ms):
        bench = self.bench(busy)
        assert bench.batch(2) == [("a", 1)]
        assert bench.ms() == pytest.approx(waited_ms)

    def test_full_batch_goes_immediately(self):
        bench = self.bench(0.95)
        bench.while_waiting[12] = lambda: bench.feeds["b"].arrives()
        assert bench.batch(2) == [("a", 1), ("b", 1)]
        assert bench.ms() == pytest.approx(12)

    def test_window_subtracts_the_mean_execution_time(self):
        bench = Bench("a", "b")
        bench.collector.pace.execution_ns = 25.0 * MS
        bench.collector._check_feeds(bench.clock())
        assert bench.collector.window_ns() == 15 * MS

    @pytest.mark.parametrize(
        ("fps", "execution_ms", "window_ms"),
        [(25, 38.5, 2), (25, 500, 2), (1, 0, 100), (None, 10, 2)],
        ids=["at-least", "engine-slower-than-camera", "at-most", "rate-unknown"],
    )
    def test_window_has_limits(self, fps, execution_ms, window_ms):
        bench = Bench("a", "b")
        for feed in bench.feeds.values():
            feed.fps = fps
        bench.collector.pace.execution_ns = execution_ms * MS
        bench.collector._check_feeds(bench.clock())
        assert bench.collector.window_ns() == window_ms * MS

    @pytest.mark.parametrize("silence", ["stalled", "pause"])
    def test_batch_does_not_wait_for_a_silent_camera(self, silence):
        bench = self.bench(0.95)
        if silence == "stalled":
            bench.feeds["b"].state = STALLED
        bench.clock.now += 2_000 * MS
        bench.feeds["a"].arrives()
        assert bench.batch(2) == [("a", 1), ("a", 2)]
        bench.feeds["a"].arrives()
        before = bench.ms()
        assert bench.batch(2) == [("a", 3)]
        assert bench.ms() == before

    def test_one_camera_may_fill_a_batch(self):
        bench = Bench("a")
        bench.feeds["a"].arrives(5)
        assert bench.batch(4) == [("a", 0), ("a", 1), ("a", 2), ("a", 3)]


def test_pace_counts_each_batch_once():
    """Two batches of two pictures take 30 ms each, with a pause of 10 ms between them."""
    bench = Bench("a")
    bench.feeds["a"].arrives(4)
    arrivals = [bench.collector.read().arrival for _ in range(4)]
    for at, arrival in enumerate(arrivals):
        arrival.began_ns = 100 * MS + (at // 2) * 40 * MS
        arrival.inferred_ns = arrival.began_ns + 30 * MS
    pace = bench.collector.pace
    pace.update()
    assert pace.execution_ns == 30 * MS
    assert pace.busy == pytest.approx(0.1 * 30 / 40)


class TestEnd:
    def test_run_ends_after_a_duration(self):
        bench = Bench("a")
        bench.collector.end_after(0.1)
        assert bench.collector.read() is None
        assert bench.ms() == pytest.approx(100)

    def test_run_ends_after_a_number_of_frames(self):
        bench = Bench("a", frames=2)
        bench.feeds["a"].arrives(3)
        assert [bench.collector.read() is None for _ in range(3)] == [False, False, True]

    def test_run_ends_when_every_camera_has_ended(self):
        bench = Bench("a", "b")
        bench.feeds["a"].arrives()
        for feed in bench.feeds.values():
            feed.state = ENDED
        assert bench.collector.read() is not None, "received pictures are still read"
        assert bench.collector.read() is None

    def test_run_continues_when_one_camera_has_ended(self):
        bench = Bench("a", "b")
        bench.feeds["a"].state = ENDED
        bench.while_waiting[400] = lambda: bench.feeds["b"].arrives()
        frame = bench.collector.read()
        assert frame is not None
        assert frame.arrival.camera == "b"

    def test_stop_counts_every_picture(self):
        bench = Bench("a", "b")
        bench.feeds["a"].arrives(3)
        bench.feeds["b"].arrives(1)
        bench.collector.read()
        bench.collector.arrive(OffTrack(), 0, 0)  # taken, but never read
        assert bench.collector.stop() == []
        assert is_accounted_for(bench.collector)
        assert bench.collector.stop() == []
        assert is_accounted_for(bench.collector), "a second stop counts nothing twice"
        assert bench.collector.read() is None

    def test_stop_names_the_cameras_that_did_not_end_in_time(self):
        bench = Bench("a", "b")
        bench.feeds["b"].ends_in_time = False
        assert bench.collector.stop() == ["b"]

    def test_pictures_in_the_decoder_count_as_stopped(self):
        bench = Bench("a")
        bench.feeds["a"].received += 2  # only the feed knows of them
        bench.collector.stop()
        (member,) = bench.collector.members()
        assert member.facts().dropped == {STOPPED: 2}


class TestAddAndRemove:
    def test_returning_camera_continues_its_counts_and_others_keep_their_feeds(self):
        bench = Bench("a", "b")
        other = bench.feeds["b"]
        bench.feeds["a"].arrives(3)
        assert bench.collector.read().index == 0
        bench.collector.remove("a")
        bench.collector.add(camera("a"))
        assert bench.feeds["a"].started == 1
        bench.feeds["a"].arrives()
        frame = bench.collector.read()
        assert (frame.index, frame.arrival.epoch) == (3, 2)
        members = {member.camera.name: member for member in bench.collector.members()}
        facts = members["a"].facts()
        assert (facts.received, facts.taken, facts.dropped) == (4, 2, {STOPPED: 2})
        assert is_accounted_for(bench.collector)
        assert bench.feeds["b"] is other
        assert (other.started, other.stopped) == (1, 0)

    def test_taken_picture_of_a_removed_camera_is_counted(self):
        bench = Bench("a", "b")
        bench.feeds["a"].arrives()
        assert bench.collector.arrive(OffTrack(), 0, 0)
        bench.collector.remove("a")
        bench.feeds["b"].arrives()
        assert bench.collector.read().arrival.camera == "b"
        assert is_accounted_for(bench.collector)


def test_buffers_are_reused_for_each_picture_size():
    bench = Bench("small", "large")
    bench.feeds["large"].size = (16, 8)
    ids, buffers = set(), []
    into = None
    for _ in range(8):
        for feed in bench.feeds.values():
            feed.arrives()
        for _ in range(2):
            frame = bench.collector.read(into)
            buffers.append((id(frame.image), frame.image))  # kept alive, so that ids are unique
            ids.add(id(frame.image))
            into = frame.image
    assert {image.shape for _, image in buffers} == {(8, 8, 3), (8, 16, 3)}
    assert len(ids) <= 3, "pictures of alternating sizes reuse buffers"


class TestGivingUp:
    """The source ends if every camera misses the time limit for its first picture."""

    @staticmethod
    def bench(*names: str, give_up_s: float | None = 20.0) -> Bench:
        bench = Bench(*names, give_up_s=give_up_s)
        for feed in bench.feeds.values():
            feed.state, feed.connects, feed.error = WAITING, 0, "nothing listens"
        return bench

    @staticmethod
    def ends_at_s(bench: Bench, most_s: float = 100.0) -> float | None:
        while bench.ms() < most_s * 1000:
            if bench.collector.arrive(OffTrack(), 0, 0):
                assert bench.collector.read() is None
                return bench.ms() / 1000
        return None

    @pytest.mark.parametrize("names", ["a", "abc"])
    def test_ends_if_no_camera_sends_a_picture(self, names):
        """The message has each camera's error, or the address of a camera without an error."""
        bench = self.bench(*names)
        bench.feeds["a"].error = None
        assert self.ends_at_s(bench) == pytest.approx(20.0, abs=0.5)
        failures = bench.collector.failures()
        assert "rtsp://cam/a" in failures
        assert failures.count("nothing listens") == len(names) - 1
        assert failures.endswith("; a run with --wait keeps trying")

    @pytest.mark.parametrize("is_removed", [False, True])
    def test_does_not_end_if_one_camera_was_live(self, is_removed):
        bench = self.bench("a", "b")
        bench.feeds["b"].connects = 1
        if is_removed:
            bench.collector.remove("b")
        assert self.ends_at_s(bench) is None

    def test_never_ends_without_a_time_limit(self):
        assert self.ends_at_s(self.bench("a", "b", give_up_s=None)) is None

    def test_connection_attempt_in_progress_may_finish(self):
        bench = self.bench("a")
        bench.feeds["a"].state = CONNECTING
        bench.while_waiting[31_000] = lambda: setattr(bench.feeds["a"], "state", WAITING)
        assert self.ends_at_s(bench) == pytest.approx(31.0, abs=0.5)

    def test_does_not_end_if_a_camera_connects_in_time(self):
        bench = self.bench("a")
        bench.while_waiting[19_000] = lambda: setattr(bench.feeds["a"], "connects", 1)
        assert self.ends_at_s(bench) is None

    def test_camera_added_later_has_its_own_time_limit(self):
        bench = self.bench("a")

        def add_camera() -> None:
            bench.collector.add(camera("b"))
            bench.feeds["b"].state, bench.feeds["b"].connects = WAITING, 0

        bench.while_waiting[15_000] = add_camera
        assert self.ends_at_s(bench) == pytest.approx(35.0, abs=0.5)
