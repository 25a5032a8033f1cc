"""Each picture goes to its own camera's outputs, with the detections that the camera keeps."""

from __future__ import annotations

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


class Noted:
    def __init__(self) -> None:
        self.outputs: list[dict[str, int]] = []
        self.zones = ZoneCounts()

    def note(self, frame, detections, outputs, written_ns) -> None:
        assert all(moment <= written_ns for moment in outputs.values())
        self.outputs.append(outputs)


class Watcher:
    looks = False

    def __init__(self) -> None:
        self.shown: list[int] = []

    def wants_pictures(self, camera) -> bool:
        return self.looks

    def show(self, frame, detections) -> None:
        self.shown.append(frame.index)


def frame(name: str, index: int = 0) -> Frame:
    arrival = Arrival(name, 1, 0, 0.0)
    return Frame(index, index, 0.0, np.zeros((100, 100, 3), np.uint8), arrival=arrival)


FOUND = Detections(
    np.array([[20, 40, 30, 60], [70, 40, 80, 60]], np.float32),
    np.array([0.9, 0.8], np.float32),
    np.array([0, 1], np.int64),
    ("person", "vehicle"),
)


class Set:
    def __init__(self, drawn: bool = False) -> None:
        self.sinks: dict[str, Sink] = {}
        self.told: list[Event] = []
        self.pictures: list[int] = []
        self.hidden: list[list[int]] = []
        self.noted, self.watcher = Noted(), Watcher()

        def make(one, feed):
            sink = self.sinks[one.name] = Sink()
            return [Output("jsonl", sink, Path("live") / one.name, drawn=lambda: drawn)]

        def snapshot(event, picture):
            if event.event == APPEARS:
                self.pictures.append(int(picture()[0, 0, 0]))
            return event

        self.router = Router(
            make,
            self.noted,
            watcher=self.watcher,
            rules=Rules(),
            send=self.told.append,
            snapshot=snapshot,
            draw=lambda image, detections: image.fill(7),
            hide=lambda image, detections: self.hidden.append(detections.class_ids.tolist()),
            clock=Clock(),
        )
        self.router.open(camera("masked", masks=(LEFT,)), None, None)
        self.router.open(camera("persons"), None, frozenset({0}))

    def send(self, one: Frame) -> None:
        self.router.needs_boxes(one)
        self.router.write(one, FOUND)


def test_outputs_are_of_the_camera():
    these = Set()
    these.send(frame("masked", 3))
    these.send(frame("persons", 4))
    assert {name: sink.frames for name, sink in these.sinks.items()} == {
        "masked": [3],
        "persons": [4],
    }
    assert these.router.paths["persons"] == {"jsonl": "live/persons"}
    assert [set(output) for output in these.noted.outputs] == [{"jsonl", "events"}] * 2


def test_masks_and_classes_of_each_camera():
    router = Set().router
    assert router.keep(frame("masked"), FOUND).class_ids.tolist() == [1]
    assert router.keep(frame("persons"), FOUND).class_ids.tolist() == [0]


def test_what_a_mask_leaves_out_is_still_made_unrecognisable():
    these = Set()
    these.router.keep(frame("masked"), FOUND)
    assert these.hidden == [[0, 1]]
    these.router.open(camera("all"), None, None)
    these.router.keep(frame("all"), FOUND)
    assert these.hidden == [[0, 1]], "what is not left out is drawn, and hidden there"


@pytest.mark.parametrize(("drawn", "looks"), [(False, False), (True, False), (False, True)])
def test_pictures_are_drawn_only_for_outputs_or_viewers(drawn, looks):
    these = Set(drawn)
    these.watcher.looks = looks
    assert these.router.needs_boxes(frame("masked", 5)) == (drawn or looks)
    these.router.write(frame("masked", 5), FOUND)
    assert these.watcher.shown == ([5] if looks else [])
    assert ("page" in these.noted.outputs[0]) == looks


@pytest.mark.parametrize("drawn", [False, True])
def test_the_picture_of_what_appears_has_its_boxes(drawn):
    """Boxes are drawn once: on a copy, unless the loop has drawn them already."""
    these, one = Set(drawn), frame("masked", 1)
    these.send(one)
    these.send(frame("masked", 2))
    assert [event.event for event in these.told] == [APPEARS, LEAVES]
    assert these.pictures == ([0] if drawn else [7])
    assert not one.image.any(), "the loop's own picture is as it was"


def test_where_tracks_think_that_somebody_is_makes_no_event():
    these, one = Set(), frame("masked", 1)
    one.coasting = True
    these.send(one)
    assert these.sinks["masked"].frames == [1], "its row is written"
    assert these.told == []


def test_a_camera_that_goes_is_closed_and_told_of():
    these = Set()
    these.router.close_camera("persons")
    assert (these.sinks["persons"].closed, these.sinks["masked"].closed) == (1, 0)
    assert [(event.camera, event.event) for event in these.told] == [("persons", "gone")]
    these.send(frame("persons", 1))  # it was on its way
    assert these.sinks["persons"].frames == []
    assert len(these.noted.outputs) == 1, "and counts as processed"
    assert len(these.told) == 1, "nothing appears before a camera that is gone"
    these.router.close()
    these.router.close()
    assert these.sinks["masked"].closed == 1
    assert these.told[-1].reason == "the run ended"


def test_states_become_events():
    these = Set()
    these.router.tick({"masked": "camera_up"}, 0, 5.0)
    assert [(event.event, event.camera) for event in these.told] == [("camera_up", "masked")]
    these.router.close_camera("masked")
    these.router.tick({"masked": "camera_up"}, 0, 6.0)  # the states are of the moment before
    assert these.told[-1].event == "gone"


def test_output_counts_survive_a_reopened_camera() -> None:
    done = {"written": 0, "bytes": 0}

    def make(camera, feed):
        done.update(written=0, bytes=0)
        return [Output("jsonl", Sink(), Path("door"), counts=lambda: dict(done))]

    router = Router(make, Noted())
    router.open(camera("door"), None, None)
    done.update(written=3, bytes=300)
    assert router.counts() == {"door": {"jsonl": {"written": 3, "bytes": 300}}}
    done.update(written=5, bytes=500)
    router.close_camera("door")
    router.open(camera("door"), None, None)  # it counts from 0 again
    done.update(written=1, bytes=100)
    assert router.counts() == {"door": {"jsonl": {"written": 3, "bytes": 300}}}
    router.close()
    assert router.counts() == {"door": {"jsonl": {"written": 0, "bytes": 0}}}
