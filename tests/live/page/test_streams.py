"""Test the page's pictures, events, figures and controls over a real socket."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import cv2
import msgspec
import numpy as np
import pytest

from detector.core.errors import OutputError, UsageError
from detector.core.errors.secrets import keep_secret
from detector.core.session.document import AgeFigures
from detector.live.base import APPEARS, Event, LiveFigures
from detector.live.config import PageConfig
from detector.live.events.wording import as_document
from detector.live.hub import Hub
from detector.live.page import documents, serve
from detector.live.page.openapi import description, text
from detector.live.page.sampler import Sampler
from tests.conftest import CHECKOUT
from tests.live.page.client import Client
from tests.live.page.conftest import Served, skip_without_libraries
from tests.live.page.fake_run import FakeRun, show_pictures, stream
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.net


def test_streams_document_has_the_figures_of_all_cameras(served):
    live = msgspec.json.decode(
        served.client.ask("/api/streams").body, type=documents.LiveDocument, strict=True
    )
    assert live.healthy
    assert [gate.name for gate in live.streams] == ["door", "gate"]
    assert live.streams[0].dropped == {"newer": 9, "corrupt": 1}
    gate = served.client.ask("/api/streams/gate").json()
    assert gate == json.loads(msgspec.json.encode(live.streams[1]))
    assert served.client.ask("/api/streams/gat").status == 404


def test_many_requests_read_the_figures_once_a_second():
    with Served(FakeRun("door")) as served:
        served.page.sampler.every_s = 3600.0  # an interval that no slow machine exceeds
        before = served.run.reads
        for _ in range(40):
            assert served.client.ask("/api/streams").status == 200
            assert served.client.ask("/metrics").status == 200
        assert served.run.reads - before <= 2  # a read that had begun, and a read in this interval


def test_a_snapshot_is_the_next_picture(served, monkeypatch):
    monkeypatch.setattr("detector.live.page.streams.SNAPSHOT_S", PATIENCE_S)
    monkeypatch.setattr("detector.live.page.streams.FRESH_NS", 0)
    with show_pictures(served.run):
        first = served.client.ask("/api/streams/door/snapshot.jpg?width=100")
        second = served.client.ask("/api/streams/door/snapshot.jpg")
    assert first.headers["content-type"] == "image/jpeg"
    assert int(second.headers["x-number"]) > int(first.headers["x-number"])
    assert cv2.imdecode(np.frombuffer(second.body, np.uint8), cv2.IMREAD_COLOR).shape[1] == 320
    assert first.headers["cache-control"] == "no-store"


def test_concurrent_snapshots_share_one_encoding(served, monkeypatch):
    monkeypatch.setattr("detector.live.page.streams.SNAPSHOT_S", PATIENCE_S)
    requested, ask = [], served.hub.request_picture
    monkeypatch.setattr(
        served.hub, "request_picture", lambda camera: (ask(camera), requested.append(camera))[0]
    )
    with ThreadPoolExecutor(6) as pool:
        path = "/api/streams/door/snapshot.jpg"
        asked = [pool.submit(served.client.ask, path) for _ in range(6)]
        wait_for(lambda: len(requested) == 6)  # all requests wait
        assert served.run.step("door")
    answers = [one.result() for one in asked]
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body for answer in answers}) == 1
    assert served.hub.encoded == 1


def test_a_dead_camera_has_no_snapshot(served, monkeypatch):
    monkeypatch.setattr("detector.live.page.streams.SNAPSHOT_S", 0.1)
    answer = served.client.ask("/api/streams/door/snapshot.jpg")
    assert answer.status == 503
    assert answer.headers["retry-after"]


def test_mjpeg_stream_sends_pictures_in_order_and_stops_watching(served):
    with served.client.stream("/api/streams/door/stream.mjpg?width=320") as stream:
        assert "multipart/x-mixed-replace; boundary=" in stream.head
        wait_for(lambda: served.hub.watchers() == 1)
        with show_pictures(served.run):
            parts = stream.parts()
            numbers = [next(parts)[1] for _ in range(4)]
    assert numbers == sorted(set(numbers))
    wait_for(lambda: served.hub.watchers() == 0)
    assert not served.run.step("door")


def test_pictures_of_all_cameras_come_in_one_response(served):
    with served.client.stream("/api/pictures?width=320&rate=20") as stream:
        wait_for(lambda: served.hub.watchers() == 1)
        with show_pictures(served.run):
            parts = stream.parts()
            cameras = {next(parts)[0] for _ in range(6)}
    assert cameras == {"door", "gate"}


def test_http_head_request_for_a_stream_ends(served):
    for path in ("/api/events", "/api/pictures", "/api/streams/door/stream.mjpg"):
        answer = served.client.ask(path, "HEAD")
        assert (answer.status, answer.body) == (200, b"")
    assert served.page.streams.open == served.hub.watchers() == 0


def test_two_viewers_share_each_encoded_picture(served):
    with (
        served.client.stream("/api/streams/door/stream.mjpg") as first,
        served.client.stream("/api/streams/door/stream.mjpg") as second,
    ):
        wait_for(lambda: served.hub.watchers() == 2)
        streams = [first.parts(), second.parts()]
        for number in range(1, 4):
            wait_for(lambda: served.run.step("door"))
            assert [next(stream)[1] for stream in streams] == [number, number]
    assert served.hub.encoded == 3


def test_stalled_reader_skips_pictures_and_is_cut_off(served):
    noise = np.random.default_rng(0).integers(0, 255, (720, 1280, 3), np.uint8)
    served.server.page.gate.stalled_s = PATIENCE_S
    with served.client.stream("/api/streams/door/stream.mjpg", 4096):
        for _ in range(20):
            wait_for(lambda: served.run.step("door", noise))
        # Kernel buffers hold the encoded pictures. Later pictures were not even encoded.
        assert served.hub.encoded <= 4
    wait_for(lambda: served.hub.watchers() == 0)
    served.server.page.gate.stalled_s = 0.6
    with served.client.stream("/api/streams/door/stream.mjpg", 4096):
        wait_for(lambda: (served.run.step("door", noise), served.server.connections.cut)[1])
        assert (served.hub.watchers(), served.server.connections.cut) == (0, 1)
    wait_for(lambda: len(served.server.connections) == 0)


@pytest.mark.slow
def test_event_stream_sends_events_and_figures(served, monkeypatch):
    samples, waiting = threading.Semaphore(0), threading.Event()

    def figures():
        waiting.set()
        samples.acquire(timeout=PATIENCE_S)
        return served.run.figures()

    # From here on, the page gets figures only when this test releases them.
    monkeypatch.setattr("detector.live.page.sampler.TIMEOUT_S", 2 * PATIENCE_S)
    reads = served.run.reads
    wait_for(lambda: served.run.reads >= reads + 2)
    served.hub.figures_from(figures)
    assert waiting.wait(PATIENCE_S)
    event = Event(APPEARS, "door", 1.5, 1.0, "person", 2, track=7, zone="yard")
    served.hub.send(event)
    with served.client.stream("/api/events") as stream:
        assert ": text/event-stream" in stream.head
        messages = stream.messages()
        kind, document, number = next(messages)
        assert (kind, number) == ("event", 1)
        assert document == as_document(event), "every receiver gets the same document"
        assert next(messages)[0] == "figures"
        samples.release()
        assert next(messages)[0] == "figures"
        served.run.set("door", state="waiting", error="refused")
        served.hub.send(Event(APPEARS, "gate", 2.0, 2.0, "vehicle", 1))
        samples.release()
        received = [next(messages) for _ in range(2)]
        # The next figures after the loss of a camera show the loss.
        [streams] = [one["streams"] for kind, one, _ in received if kind == "figures"]
        assert {camera["state"] for camera in streams} == {"waiting", "live"}
        assert [document["camera"] for kind, document, _ in received if kind == "event"] == ["gate"]
        samples.release(10**6)
    again = Client(served.server.port, {"Last-Event-ID": "1"})
    with again.stream("/api/events") as stream:
        assert next(stream.messages())[2] == 2


def test_history_has_ages_and_rates(served):
    wait_for(lambda: len(served.page.sampler._samples) > 2)
    served.run.set("gate", state="stalled", dropped={"newer": 10, "rate": 999}, received=1249)
    samples = len(served.page.sampler._samples)
    wait_for(lambda: len(served.page.sampler._samples) > samples + 1)
    history = msgspec.json.decode(
        served.client.ask("/api/history").body, type=documents.HistoryDocument, strict=True
    )
    assert len(history.times_s) == len(history.age_ms["door"]) == len(history.dropped_fps["gate"])
    assert history.age_ms["door"][-1] == 61.0
    assert history.age_ms["gate"][0] == 61.0
    assert history.age_ms["gate"][-1] is None  # a camera that is not live has no age
    assert history.processed_fps["door"][0] is None
    # Pictures that a camera's ``rate`` skips do not count as dropped.
    assert 0 <= max(filter(None, history.dropped_fps["gate"]), default=0) < 100
    assert history.processed_fps["door"][-1] == 0.0


def test_rates_are_unaffected_by_a_jump_of_the_wall_clock(monkeypatch):
    wall = [0.0, 1.0, 3602.0, 3.0]
    sampler = Sampler(lambda: None, clock=lambda: wall.pop(0))
    for second in range(3):
        monkeypatch.setattr(time, "monotonic", lambda: 50.0 + second)  # noqa: B023
        sampler._keep(LiveFigures((stream("door", processed=25 * second),), 0.0, None, None))
    assert sampler.history().processed_fps["door"] == [None, 25.0, 25.0]


def test_closing_server_sends_end_and_closes_streams():
    served = Served(FakeRun("door"))
    with (
        served.client.stream("/api/events") as events,
        served.client.stream("/api/streams/door/stream.mjpg") as pictures,
    ):
        wait_for(lambda: served.hub.watchers() == 1)
        served.close()
        assert [kind for kind, _, _ in events.messages()][-1] == "end"
        assert list(pictures.parts()) == []
    served.close()  # closing again is harmless


@pytest.mark.parametrize(
    ("facts", "ok"),
    [
        ({}, True),
        ({"streams": 0}, False),
        ({"state": "waiting"}, False),
        ({"engine_age_s": 29.0}, True),
        ({"engine_age_s": 31.0}, False),
        ({"engine_age_s": None}, True),  # unknown
        ({"outputs": {("door", "recording"): (True, 9)}}, False),
        ({"outputs": {("door", "recording"): (False, 9), ("", "webhook"): (True, 9)}}, True),
    ],
)
def test_health_depends_on_cameras_engine_and_disk(facts, ok):
    run = FakeRun("door", "gate")
    for name in ("door", "gate") if "state" in facts else ():
        run.set(name, state=facts["state"])
    about_run = {key: facts[key] for key in ("engine_age_s", "outputs") if key in facts}
    run.run = replace(run.run, **about_run)
    if facts.get("streams") == 0:
        run.streams = {}
    assert documents.is_healthy(run.figures()) is ok


def test_healthz_answers_only_ok_or_not_ok(served):
    answer = served.client.ask("/healthz")
    assert (answer.status, answer.body) == (200, b"ok\n")
    served.run.set("door", state="stalled")
    served.run.set("gate", state="ended")
    wait_for(lambda: served.client.ask("/healthz").status == 503)
    assert served.client.ask("/healthz").body == b"not ok\n"


def test_run_that_does_not_answer_is_unhealthy(served, monkeypatch):
    monkeypatch.setattr("detector.live.page.sampler.TIMEOUT_S", 0.1)
    hangs = threading.Event()

    def figures():
        hangs.wait(3 * PATIENCE_S)
        return served.run.figures()

    reads = served.run.reads
    wait_for(lambda: served.run.reads >= reads + 2)  # the first read may have the old timeout
    served.hub.figures_from(figures)
    try:
        wait_for(lambda: served.client.ask("/healthz").status == 503)
        assert served.client.ask("/api/streams").status == 503  # the page itself still responds
    finally:
        hangs.set()
    wait_for(lambda: served.client.ask("/healthz").status == 200)


def test_numpy_values_are_sent_as_numbers(served):
    ages = AgeFigures(p50=np.float64(1.234), p90=np.float32(2), p99=3, max=4)
    served.run.set("door", age_ms=ages)
    wait_for(lambda: served.client.ask("/api/streams/door").json()["age_ms"]["p50"] == 1.23)


DRAWING = '{"size": [9, 9], "lines": {"mid": [[1, 1], [8, 8]]}}'


class FakeControls:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def cameras(self):
        return ("door", "yard")

    def start(self, camera: str) -> None:
        self.calls.append(("start", camera))

    def stop(self, camera: str) -> None:
        if self.calls and self.calls[-1] == ("stop", camera):
            raise UsageError("door is stopped already")
        self.calls.append(("stop", camera))

    def draw(self, camera: str, drawing: str):
        if drawing != DRAWING:
            raise UsageError(f"{camera}: two points") if drawing else OutputError("no disk")
        self.calls.append(("draw", camera))
        return "mid added", "zones.yaml"


def test_control_of_cameras_needs_a_known_name_and_json(served):
    client = served.client
    assert client.post("/api/streams/door/stop").status == 409  # a run without cameras.yaml
    switches = served.page.controls = FakeControls()
    answer = client.post("/api/streams/door/stop")
    assert (answer.status, answer.json()) == (202, {"schema": 1, "camera": "door", "asked": "stop"})
    again = client.post("/api/streams/door/stop")
    assert again.status == 409
    assert "door " in again.json()["error"]
    assert client.post("/api/streams/door/start", "").status == 202
    assert switches.calls == [("stop", "door"), ("start", "door")]
    shown = client.ask("/api/streams").json()
    assert [stream["controllable"] for stream in shown["streams"]] == [True, False]
    assert shown["stopped"] == ["yard"]  # yard has no figures, and can be started
    for path, body, status in (
        ("/api/streams/gate/stop", "{}", 404),  # not in cameras.yaml
        ("/api/streams/rtsp:%2F%2Fx/start", "{}", 404),
        ("/api/streams/door/start", '{"url": "rtsp://x"}', 422),
        ("/api/streams/door/run", "{}", 404),
    ):
        assert client.post(path, body).status == status
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for path in ("/api/streams/door/stop", drawn := "/api/streams/door/zones"):
        assert client.ask(path).status == 405  # GET changes nothing
        assert client.ask(path, "POST", DRAWING, form).status == 415
        assert client.post(path, DRAWING, Origin="http://elsewhere.example").status == 403
    assert len(switches.calls) == 2
    assert client.ask(drawn, "POST", DRAWING, {"Content-Type": "application/yaml"}).status == 202
    accepted = {"schema": 1, "camera": "door", "asked": "mid added", "file": "zones.yaml"}
    assert client.post(drawn, DRAWING).json() == accepted
    assert switches.calls[2:] == [("draw", "door")] * 2
    refused = client.post(drawn)
    assert (refused.status, refused.json()["error"]) == (422, "door: two points")
    assert client.post(drawn, "").status == 409
    assert client.post("/api/streams/yard/zones", DRAWING).status == 404


def test_page_hides_secrets(served):
    keep_secret("opensesame-42")
    url, error = "rtsp://u:opensesame-42@x", "401 for opensesame-42"
    served.run.set("door", url=url, state="waiting", error=error)
    served.hub.send(Event("camera_down", "door", 1.0, 1.0, reason="u:opensesame-42 refused"))
    wait_for(lambda: b"401" in served.client.ask("/api/streams").body)
    with served.client.stream("/api/events") as stream:
        messages = stream.messages()
        sent = json.dumps([next(messages) for _ in range(2)])
    sent += served.client.ask("/api/streams").body.decode()
    sent += served.client.ask("/metrics").body.decode()
    assert "***" in sent
    assert "opensesame" not in sent


def test_openapi_document_is_current_and_lists_every_path(served):
    """After a change, run: python -m detector.live.page.openapi docs/openapi.json"""
    assert (CHECKOUT / "docs/openapi.json").read_text(encoding="utf-8") == text()
    assert served.client.ask("/openapi.json").json() == description()
    documented = set(description()["paths"])
    for_browsers = {"/login", "/logout", "/page.css", "/page.js", "/draw.js", "/icon.svg"}
    assert {route.path for route in served.page.app().routes} == documented | for_browsers


def test_metrics_follow_the_rules_of_prometheus(served, monkeypatch):
    from prometheus_client.parser import text_string_to_metric_families

    monkeypatch.setattr("detector.live.page.streams.SNAPSHOT_S", PATIENCE_S)
    failing = {("", "webhook"): (True, 3), ("door", "jsonl"): (False, 5)}
    served.run.run = replace(served.run.run, outputs=failing)
    served.run.set("door", name="door")
    with show_pictures(served.run):
        served.client.ask("/api/streams/door/snapshot.jpg")
    wait_for(lambda: served.client.ask("/api/streams").json()["failing"] == ["webhook"])
    answer = served.client.ask("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    read = text_string_to_metric_families(answer.body.decode())
    families = {family.name: family for family in read}
    ours = {name for name in families if not name.startswith("process_")}
    assert all(name.startswith("detect_video_") for name in ours)
    assert all(families[name].documentation for name in ours)
    assert all(families[name].samples for name in ours)
    # Prometheus's own linter allows quantiles only in a summary.
    samples = [(family, sample) for family in families.values() for sample in family.samples]
    quantiled = {family.type for family, sample in samples if "quantile" in sample.labels}
    assert quantiled == {"summary"}
    values = {(sample.name, *sample.labels.values()): sample.value for _, sample in samples}
    assert values["detect_video_stream_received_pictures_total", "door"] == 250
    assert values["detect_video_stream_dropped_pictures_total", "gate", "newer"] == 9
    assert values["detect_video_stream_age_seconds", "door", "0.5"] == pytest.approx(0.061)
    assert values["detect_video_stream_state", "door", "live"] == 1
    assert values["detect_video_stream_state", "door", "waiting"] == 0
    assert values["detect_video_healthy",] == 1
    assert values["detect_video_output_failing", "", "webhook"] == 1
    assert values["detect_video_output_lost_total", "door", "jsonl"] == 5
    assert values["detect_video_page_encoded_pictures_total",] == 1
    assert values["process_resident_memory_bytes",] > 1e6


def test_page_loads_nothing_from_other_hosts(served):
    page = served.client.ask("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "unsafe-inline" not in page.headers["content-security-policy"]
    for name in ("/", "/page.css", "/page.js", "/icon.svg"):
        body = served.client.ask(name).body.decode()
        outside = body.replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in outside
        assert "https:" not in outside
    # The content security policy would block these attributes.
    assert " style=" not in page.body.decode()
    assert " onclick" not in page.body.decode()
    assert "innerHTML" not in served.client.ask("/page.js").body.decode()


def test_page_answers_before_the_run_begins():
    skip_without_libraries()
    server = serve(Hub(), PageConfig(serve="0"))
    client = Client(server.port)
    try:
        assert client.ask("/healthz").status == 503
        assert client.ask("/api/streams").status == 503
        assert client.ask("/metrics").status == 200
        assert client.ask("/").status == 200
        assert client.ask("/api/history").json()["times_s"] == []
        with client.stream("/api/events") as stream:
            assert next(stream.messages())[0] == "silent"
    finally:
        server.close()
