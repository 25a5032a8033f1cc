"""Test that each picture and its detections go to the outputs of its camera."""

from pathlib import Path

import numpy as np
import pytest

from detector.core.types import Arrival, Detections, Frame
from detector.live.base import APPEARS, LEAVES, Event
from detector.live.routing import Output, Router
from detector.live.zone_counts import ZoneCounts
from tests.live.fake_feeds import Clock, camera

LEFT = ((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0))


class Sink:
    def __init__(self) -> None:
        self.frames: list[int] = []
        self.closed = 0

    def write(self, frame, detections) -> None:
        self.frames.append(frame.index)

    def close(self) -> None:
        self.closed += 1


class Rules:
    def update(self, frame, detections):
        name = {1: APPEARS, 2: LEAVES}.get(frame.index)
        return [] if name is None else [Event(name, frame.arrival.camera, 0.0, 0.0, "person", 1)]

    def feed_changed(self, camera, facts, now_ns, now_s):
        return [Event(facts, camera, now_s, now_s)]

    def forget(self, camera, now_ns, now_s, why="taken out"):
        return [Event("gone", camera, now_s, now_s, reason=why)]


class FakeStatus:
    def __init__(self) -> None:
        self.outputs: list[dict[str, int]] = []
        self.zones = ZoneCounts()

    def note(self, frame, detections, outputs, written_ns) -> None:
        assert all(moment <= written_ns for moment in outputs.values())
        self.outputs.append(outputs)


class Watcher:
    wanted = False

    def __init__(self) -> None:
        self.shown: list[int] = []

    def wants_pictures(self, camera) -> bool:
        return self.wanted

    def show(self, frame, detections) -> None:
        self.shown.append(frame.index)


def frame(name: str, index: int = 0) -> Frame:
    arrival = Arrival(name, 1, 0, 0.0)
    return Frame(index, index, 0.0, np.zeros((100, 100, 3), np.uint8), arrival=arrival)


DETECTIONS = Detections(
    np.array([[20, 40, 30, 60], [70, 40, 80, 60]], np.float32),
    np.array([0.9, 0.8], np.float32),
    np.array([0, 1], np.int64),
    ("person", "vehicle"),
)


class Outputs:
    def __init__(self, drawn: bool = False) -> None:
        self.sinks: dict[str, Sink] = {}
        self.events: list[Event] = []
        self.pictures: list[int] = []
        self.hidden: list[list[int]] = []
        self.status, self.watcher = FakeStatus(), Watcher()

        def make(camera_config, feed):
            sink = self.sinks[camera_config.name] = Sink()
            return [Output("jsonl", sink, Path("live") / camera_config.name, drawn=lambda: drawn)]

        def snapshot(event, picture):
            if event.event == APPEARS:
                self.pictures.append(int(picture()[0, 0, 0]))
            return event

        self.router = Router(
            make,
            self.status,
            watcher=self.watcher,
            rules=Rules(),
            send=self.events.append,
            snapshot=snapshot,
            draw=lambda image, detections: image.fill(7),
            hide=lambda image, detections: self.hidden.append(detections.class_ids.tolist()),
            clock=Clock(),
        )
        self.router.open(camera("masked", masks=(LEFT,)), None, None)
        self.router.open(camera("persons"), None, frozenset({0}))

    def process(self, shown: Frame) -> None:
        self.router.needs_boxes(shown)
        self.router.write(shown, DETECTIONS)


def test_pictures_go_to_the_outputs_of_their_camera():
    outputs = Outputs()
    outputs.process(frame("masked", 3))
    outputs.process(frame("persons", 4))
    assert {name: sink.frames for name, sink in outputs.sinks.items()} == {
        "masked": [3],
        "persons": [4],
    }
    assert outputs.router.paths["persons"] == {"jsonl": "live/persons"}
    assert [set(output) for output in outputs.status.outputs] == [{"jsonl", "events"}] * 2


def test_each_camera_has_its_own_masks_and_classes():
    router = Outputs().router
    assert router.keep(frame("masked"), DETECTIONS).class_ids.tolist() == [1]
    assert router.keep(frame("persons"), DETECTIONS).class_ids.tolist() == [0]


def test_objects_that_are_not_kept_are_still_blurred():
    outputs = Outputs()
    outputs.router.keep(frame("masked"), DETECTIONS)
    assert outputs.hidden == [[0, 1]]
    outputs.router.open(camera("all"), None, None)
    outputs.router.keep(frame("all"), DETECTIONS)
    assert outputs.hidden == [[0, 1]], "if all objects are kept, drawing blurs them"


@pytest.mark.parametrize(("drawn", "wanted"), [(False, False), (True, False), (False, True)])
def test_pictures_are_drawn_only_for_outputs_or_viewers(drawn, wanted):
    outputs = Outputs(drawn)
    outputs.watcher.wanted = wanted
    assert outputs.router.needs_boxes(frame("masked", 5)) == (drawn or wanted)
    outputs.router.write(frame("masked", 5), DETECTIONS)
    assert outputs.watcher.shown == ([5] if wanted else [])
    assert ("page" in outputs.status.outputs[0]) == wanted


@pytest.mark.parametrize("drawn", [False, True])
def test_snapshot_of_an_event_has_boxes(drawn):
    """Boxes are drawn on a copy, unless the loop has drawn them already."""
    outputs, shown = Outputs(drawn), frame("masked", 1)
    outputs.process(shown)
    outputs.process(frame("masked", 2))
    assert [event.event for event in outputs.events] == [APPEARS, LEAVES]
    assert outputs.pictures == ([0] if drawn else [7])
    assert not shown.image.any(), "the loop's own picture is unchanged"


def test_coasting_frame_sends_no_event():
    outputs, coasting = Outputs(), frame("masked", 1)
    coasting.coasting = True
    outputs.process(coasting)
    assert outputs.sinks["masked"].frames == [1], "its row is written"
    assert outputs.events == []


def test_removed_camera_is_closed_and_reported():
    outputs = Outputs()
    outputs.router.close_camera("persons")
    assert (outputs.sinks["persons"].closed, outputs.sinks["masked"].closed) == (1, 0)
    assert [(event.camera, event.event) for event in outputs.events] == [("persons", "gone")]
    outputs.process(frame("persons", 1))  # a frame in flight
    assert outputs.sinks["persons"].frames == []
    assert len(outputs.status.outputs) == 1, "the frame counts as processed"
    assert len(outputs.events) == 1, "a removed camera sends no events"
    outputs.router.close()
    outputs.router.close()
    assert outputs.sinks["masked"].closed == 1
    assert outputs.events[-1].reason == "the run ended"


def test_camera_states_become_events():
    outputs = Outputs()
    outputs.router.tick({"masked": "camera_up"}, 0, 5.0)
    assert [(event.event, event.camera) for event in outputs.events] == [("camera_up", "masked")]
    outputs.router.close_camera("masked")
    outputs.router.tick({"masked": "camera_up"}, 0, 6.0)  # a state from before the removal
    assert outputs.events[-1].event == "gone"


def test_counts_since_the_last_call_include_those_of_a_closed_output() -> None:
    done = {"written": 0, "bytes": 0}

    def make(camera, feed):
        done.update(written=0, bytes=0)
        return [Output("jsonl", Sink(), Path("door"), counts=lambda: dict(done))]

    router = Router(make, FakeStatus())
    router.open(camera("door"), None, None)
    done.update(written=3, bytes=300)
    assert router.counts() == {"door": {"jsonl": {"written": 3, "bytes": 300}}}
    done.update(written=5, bytes=500)
    router.close_camera("door")
    router.open(camera("door"), None, None)  # the new output counts from 0
    done.update(written=1, bytes=100)
    assert router.counts() == {"door": {"jsonl": {"written": 3, "bytes": 300}}}
    router.close()
    assert router.counts() == {"door": {"jsonl": {"written": 0, "bytes": 0}}}
