"""Test ages, capacity, masks and the figures of a run, on a fake clock."""

import re
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from detector.core.timeline.spans import INFER
from detector.core.timeline.timeline import OffTimeline, Timeline
from detector.core.types import Arrival, Detections
from detector.live.ages import PARTS, FrameAges, split_age
from detector.live.capacity import (
    CPU,
    Usage,
    capacity,
    compute_shares,
    find_busiest_stage,
    sentence,
)
from detector.live.figures import LiveStatus
from detector.live.selection import inside, keep
from detector.live.sources.base import STALLED, UNDECODED, WAITING
from tests.live.fake_feeds import MS, Bench, camera
from tests.waiting import meet


def make_arrival(arrived=0, decoded=10, taken=12, began=15, inferred=40, result=45) -> Arrival:
    return Arrival(
        "door",
        1,
        *(arrived * MS, arrived / 1e3),
        decoded_ns=decoded * MS,
        taken_ns=taken * MS,
        began_ns=began * MS,
        inferred_ns=inferred * MS,
        result_ns=result * MS,
    )


class TestAges:
    def test_parts_add_up_to_the_age(self):
        parts = split_age(make_arrival(), 52 * MS)
        of_each = {"decoding": 10, "waiting": 5, "inference": 30, "writing": 7}
        assert parts == {name: ms * MS for name, ms in of_each.items()}
        assert sum(parts.values()) == 52 * MS
        parts = split_age(make_arrival(decoded=0), 50 * MS)  # decoding time unknown
        assert (parts["decoding"], sum(parts.values())) == (0, 50 * MS)

    def test_results_parts_and_outputs_have_percentiles_of_ages(self):
        ages = FrameAges(0)
        for age in range(1, 301):
            arrival = make_arrival(result=age, inferred=age, began=0, decoded=0, taken=0)
            ages.add(arrival, {"jsonl": (age + 1) * MS}, (age + 2) * MS)
        result = ages.result()
        assert result.p50 == pytest.approx(150, rel=0.02)
        assert result.p99 == pytest.approx(297, rel=0.02)
        assert result.max == 300
        assert ages.outputs()["jsonl"].max == 301
        assert set(ages.parts()) == set(PARTS)
        assert ages.camera() is None

    def test_too_few_samples_give_no_percentile(self):
        ages = FrameAges(0)
        ages.add(make_arrival(), {}, 50 * MS)
        assert ages.result().p99 is None
        assert ages.result().max == 45

    def test_age_by_the_cameras_clock_includes_the_transit(self):
        """The camera captured the picture 200 ms before it arrived."""
        ages, arrival = FrameAges(0), make_arrival()
        arrival.captured_s = arrival.utc_s - 0.2
        ages.add(arrival, {}, 50 * MS)
        assert ages.camera().max == pytest.approx(245)

    def test_recent_ages_cover_only_the_last_seconds(self):
        ages = FrameAges(0)
        for _ in range(10):
            ages.add(make_arrival(result=500), {}, 501 * MS)
        for at in (12_000, 24_000):
            for _ in range(10):
                arrival = make_arrival(at, at, at, at, at, result=at + 20)
                ages.add(arrival, {}, (at + 21) * MS)
        assert ages.recent(24_100 * MS)[0].max == 20
        assert ages.result().max == 500, "the figures of the day have all ages"
        ages.reset()
        assert ages.result().max is None


class TestCapacity:
    def load(self, **more):
        usage = {
            "cameras": 2,
            "stages": {"infer": 0.45, "read": 0.1, "nms": 0.05},
            "cpu": 0.3,
            "decoding": 0.1,
            "processed": 1.0,
        }
        return Usage(**{**usage, **more})

    def test_busiest_group_limits_the_capacity(self):
        assert capacity(self.load()) == pytest.approx(4.0)
        assert "Inference is the busiest part: busy 50%" in sentence(self.load())
        assert "4.0 such cameras" in sentence(self.load())
        assert find_busiest_stage(self.load()) == "infer"
        assert find_busiest_stage(self.load(stages={"infer": 0.2, "write": 0.3})) == "write"
        assert find_busiest_stage(self.load(stages={})) is None

    def test_cpu_may_limit_the_capacity(self):
        assert capacity(self.load(cpu=0.8)) == pytest.approx(2.5)
        assert sentence(self.load(cpu=0.8)).startswith(CPU)

    def test_half_of_the_cameras_are_possible_if_half_of_the_pictures_are_dropped(self):
        load = self.load(stages={"infer": 1.0}, processed=0.5, dropped=0.5)
        assert capacity(load) == pytest.approx(1.0)
        assert "50% of the frames" in sentence(load)

    @pytest.mark.parametrize("busy", [0.0, 0.3, 0.59, 1.0])
    def test_capacity_is_below_the_number_of_cameras_if_pictures_are_dropped(self, busy):
        """35% of the frames are dropped, although busy times suggest room for more."""
        load = self.load(
            cameras=1, stages={"infer": busy}, cpu=0.1, decoding=0.05, processed=0.65, dropped=0.35
        )
        assert capacity(load) <= 0.65
        assert "35% of the frames" in sentence(load)
        stated = float(re.search(r"could handle about ([\d.]+) such", sentence(load))[1])
        assert stated == pytest.approx(capacity(load), abs=0.051)
        assert stated < load.cameras

    def test_picture_in_flight_does_not_count_as_dropped(self):
        """The camera has 1 FPS: 4 of 5 pictures are written, and the last one is in inference."""
        load = self.load(cameras=1, stages={"infer": 0.2}, cpu=0.1, processed=0.8)
        assert "dropped" not in sentence(load)
        assert capacity(load) == pytest.approx(4.0)

    def test_capacity_includes_decoding_of_dropped_pictures(self):
        needed = compute_shares(self.load(cpu=0.9, decoding=0.5, processed=0.5))
        assert needed[CPU] == pytest.approx(0.5 + 0.4 / 0.5)

    @pytest.mark.parametrize("saved", [0.5, 0.9])
    def test_capacity_includes_decoding_that_was_skipped(self, saved):
        """Compare two cameras. One decodes all pictures, the other skips a share of them."""
        decoding = 0.6
        more = {"stages": {}, "processed": 0.2}
        whole = self.load(cpu=decoding + 0.1, decoding=decoding, **more)
        share = decoding * (1 - saved)
        shed = self.load(cpu=share + 0.1, decoding=share, decoded=1 - saved, **more)
        assert compute_shares(shed)[CPU] == pytest.approx(compute_shares(whole)[CPU])
        assert capacity(shed) == pytest.approx(capacity(whole))

    @pytest.mark.parametrize("more", [{"cameras": 0}, {"processed": 0.0}])
    def test_capacity_is_unknown_without_cameras_or_pictures(self, more):
        assert capacity(self.load(**more)) is None
        assert "capacity is unknown" in sentence(self.load(**more))


class TestSelection:
    TRIANGLE = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))

    def detections(self):
        """Return boxes with centres (25, 50) and (75, 50) in a picture of 100 x 100."""
        return Detections(
            np.array([[20, 40, 30, 60], [70, 40, 80, 60]], np.float32),
            np.array([0.9, 0.8], np.float32),
            np.array([0, 1], np.int64),
            ("person", "vehicle"),
        )

    def test_detections_are_not_copied_without_need(self):
        detections = self.detections()
        assert keep(detections, 100, 100, [], None) is detections
        assert keep(detections, 100, 100, [((0.9, 0.9), (1, 0.9), (1, 1))], None) is detections

    @pytest.mark.parametrize(
        ("x", "y", "is_inside"), [(0.2, 0.2, True), (0.6, 0.6, False), (0.1, 0.85, True)]
    )
    def test_points_inside_a_polygon_are_found(self, x, y, is_inside):
        assert inside(np.array([[x, y]], np.float32), self.TRIANGLE).tolist() == [is_inside]


def status_of(bench: Bench, **clocks) -> LiveStatus:
    half = {"clock": bench.clock, "cpu_clock": lambda: bench.clock() // 2}
    return LiveStatus(bench.collector, 2, **half, **clocks)


def start_status(bench: Bench, **clocks) -> LiveStatus:
    status = status_of(bench, **clocks)
    status.begin_day(OffTimeline())
    status.sample()
    return status


def process(bench: Bench, status: LiveStatus, count: int = 1, took_ms: float = 0) -> None:
    for _ in range(count):
        frame = bench.collector.read()
        bench.clock.now += round(took_ms * MS)
        frame.arrival.inferred_ns = frame.arrival.result_ns = bench.clock()
        status.note(frame, Detections.empty(("person",)), {}, bench.clock())


def run_live(bench: Bench, status: LiveStatus, times: int, detected: int) -> None:
    """Repeat ``times`` times: let two pictures arrive, process ``detected`` of them, wait 0.5 s."""
    for _ in range(times):
        bench.feeds["a"].arrives(2)
        process(bench, status, detected)
        bench.clock.now += 500 * MS
        status.sample()


class TestStatus:
    def test_two_threads_that_note_a_new_camera_share_one_tally(self):
        bench, both = Bench("a"), Barrier(2)
        status = status_of(bench)
        bench.feeds["a"].arrives(1)
        noted = bench.collector.read(), Detections.empty(("person",)), {}, 0
        status._clock = lambda: meet(both) or 0  # called for each new tally
        with ThreadPoolExecutor(2) as pool:
            for _ in range(2):
                pool.submit(status.note, *noted)
        assert status._tallies["a"].processed == 2

    def test_rates_cover_the_last_seconds(self):
        bench = Bench("a")
        status = start_status(bench)
        run_live(bench, status, 20, 2)  # 10 s
        figures = status.figures()
        (stream,) = figures.streams
        assert stream.processed_fps == pytest.approx(4)
        assert figures.end_to_end_fps == pytest.approx(4)
        assert (stream.received, stream.processed, stream.camera_fps) == (40, 40, 25)

    def test_averages_exclude_outages(self):
        """The camera is live for 10 s with 4 pictures per second, then lost for 30 s."""
        bench = Bench("a")
        status = start_status(bench)
        run_live(bench, status, 20, 2)
        bench.feeds["a"].state = WAITING
        for _ in range(60):
            bench.clock.now += 500 * MS
            status.sample()
        figures = status.figures()
        assert figures.streams[0].processed_fps is None
        assert figures.end_to_end_fps is None
        (summary,) = status.summaries((), {})
        assert summary.live_s == pytest.approx(10)
        assert summary.processed_fps == pytest.approx(4)
        assert summary.camera_fps == pytest.approx(25)
        assert status.live_ns == 10_000 * MS

    def test_capacity_is_halved_if_half_of_the_pictures_are_dropped(self):
        """When two pictures arrive together, only the newer one is processed."""
        bench = Bench("a", latest=True)
        status = start_status(bench)
        run_live(bench, status, 10, 1)
        figures = status.figures()
        assert "50% of the frames" in figures.bottleneck
        assert figures.capacity == pytest.approx(0.5)

    def test_undecoded_pictures_count_as_dropped_for_capacity(self):
        """Each half second, one picture is processed and three are dropped undecoded. Half of
        the time, the program keeps one of two cores busy. Half of its CPU time is decoding."""
        bench = Bench("a", latest=True)
        status = start_status(
            bench, decoding=lambda: bench.clock() // 4, machine_clock=lambda: None
        )
        for _ in range(10):
            bench.feeds["a"].arrives()
            bench.feeds["a"].received += 3
            bench.feeds["a"].dropped[UNDECODED] += 3
            process(bench, status)
            bench.clock.now += 500 * MS
            status.sample()
        figures = status.figures()
        assert "75% of the frames" in figures.bottleneck
        load = status.load_of_day()
        assert (load.decoded, load.dropped) == (pytest.approx(0.25), pytest.approx(0.75))
        assert compute_shares(load)[CPU] == pytest.approx(0.125 * 4 + 0.125 * 4)
        assert figures.capacity == pytest.approx(0.25)

    def test_every_received_picture_is_processed_or_dropped(self):
        bench = Bench("a", "b", latest=True)
        status = start_status(bench)
        bench.feeds["a"].arrives(5)
        bench.feeds["b"].arrives(1)
        process(bench, status, 2)
        bench.feeds["a"].arrives(1)
        bench.collector.stop()
        for summary in status.summaries((), {}):
            feed = bench.feeds[summary.name]
            assert summary.received == feed.received
            assert summary.received == summary.processed + sum(summary.dropped.values())

    def test_busy_shares_of_stages_cover_the_sampled_time(self):
        """One worker infers for 300 of 1000 ms; what precedes the first sample does not count."""
        bench = Bench("a")
        status = status_of(bench)
        timeline = Timeline(clock=bench.clock, cpu_clock=lambda: 0, nvtx=False)
        status.begin_day(timeline)
        with timeline.track("worker-0") as track:
            with track.span(INFER, 0):
                bench.clock.now += 100 * MS
            status.sample()
            bench.feeds["a"].arrives(1)
            with track.span(INFER, 1):
                bench.clock.now += 300 * MS
            process(bench, status)
            bench.clock.now += 700 * MS
        status.sample()
        figures = status.figures()
        assert figures.busy == {INFER: pytest.approx(0.3)}
        assert figures.inference_fps == pytest.approx(1 / 0.3)
        assert figures.cpu_share == pytest.approx(0.25), "half of one of two cores"
        assert figures.capacity == pytest.approx(1 / 0.3)

    @pytest.mark.parametrize(
        ("used", "share"),
        [(lambda now: now * 3 // 2, 0.75), (lambda now: 0, 0.25), (lambda now: None, None)],
    )
    def test_computer_share_is_at_least_the_share_of_this_program(self, used, share):
        """This program uses half of one of the two cores."""
        bench = Bench("a")
        status = start_status(bench, machine_clock=lambda: used(bench.clock()))
        bench.clock.now += 1_000 * MS
        status.sample()
        figures = status.figures()
        assert figures.cpu_share == pytest.approx(0.25)
        assert figures.computer_share == (share and pytest.approx(share))

    def test_engine_age_grows_only_with_a_picture_in_flight(self):
        bench = Bench("a")
        status = status_of(bench)
        bench.clock.now += 60_000 * MS
        assert status.figures().engine_age_s == 0
        status.sample()
        bench.feeds["a"].arrives(1)
        bench.collector.read()  # in flight, and never finished
        bench.clock.now += 7_000 * MS
        status.sample()
        assert status.figures().engine_age_s == 7

    def test_figures_have_state_and_error(self):
        bench = Bench("a", "b")
        bench.feeds["b"].state, bench.feeds["b"].error = STALLED, "nothing arrives"
        streams = status_of(bench).figures().streams
        assert [stream.state for stream in streams] == ["live", "stalled"]
        assert streams[1].error == "nothing arrives"

    def test_removed_camera_is_in_the_summary(self):
        bench = Bench("a", "b")
        status = status_of(bench)
        bench.feeds["a"].arrives(2)
        process(bench, status, 1)
        bench.collector.remove("a")
        assert sorted(summary.name for summary in status.summaries((), {})) == ["a", "b"]
        assert [stream.name for stream in status.figures().streams] == ["b"]
        bench.collector.add(camera("a"))
        assert sorted(one.name for one in status.summaries((), {})) == ["a", "b"]
