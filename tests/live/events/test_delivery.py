"""Test that events reach a file, standard output, a webhook or a broker, or count as lost."""

from __future__ import annotations

import gc
import hashlib
import hmac
import json
import os
import queue
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from detector.core.errors import OutputError, UsageError
from detector.core.errors.secrets import redact
from detector.live.base import Event
from detector.live.camera_outputs import CameraEvents
from detector.live.config import EventsConfig
from detector.live.events import queued_target
from detector.live.events.days import EventDays
from detector.live.events.filters import EventFilters
from detector.live.events.mqtt import MqttTarget, level
from detector.live.events.queued_target import QueuedTarget, RefusedError, TryAgainError
from detector.live.events.snapshots import Snapshots
from detector.live.events.stream import EventStream
from detector.live.events.webhook import Webhook, find_address
from detector.live.events.wording import as_document
from tests.sources.web_server import Handler, Server, make_certificate, serving, web_server
from tests.waiting import PATIENCE_S, wait_for

TIME_S = 1_795_339_800.25


def event(number: int = 0, name: str = "appears", **more) -> Event:
    return Event(name, "door", TIME_S + number, TIME_S, more.pop("class_name", "person"), 2, **more)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(queued_target, "PAUSE_S", 0.001)


def test_event_document_has_names_and_utc_times():
    assert as_document(event(1, snapshot="door/snapshots/a.jpg")) == {
        "event": "appears",
        "camera": "door",
        "class": "person",
        "count": 2,
        "time_utc": "2026-11-22T09:30:01.250Z",
        "since_utc": "2026-11-22T09:30:00.250Z",
        "snapshot": "door/snapshots/a.jpg",
        "reason": None,
    }


def test_event_document_has_every_field():
    times = dict.fromkeys(("time_s", "since_s"), TIME_S)
    values = {one.name: f"<{one.name}>" for one in fields(Event) if one.name not in times}
    document = as_document(Event(**values, **times))
    assert set(values.values()) <= set(document.values())
    assert len(document) == len(fields(Event))


class Scripted(QueuedTarget):
    name = "the test"

    def __init__(self, *script: str, **more) -> None:
        self.script, self.delivered = list(script), []
        super().__init__(**more)

    def deliver(self, event: Event) -> None:
        outcome = self.script.pop(0) if self.script else "ok"
        if outcome == "later":
            raise TryAgainError("busy")
        if outcome == "never":
            raise RefusedError("no")
        self.delivered.append(event)


def test_temporary_failure_is_retried(notices):
    target = Scripted("later", "later", "ok", "never", notice=notices.append)
    for number in range(3):
        target.send(event(number))
    wait_for(lambda: len(target.delivered) == 2 and target.lost() == 1)
    target.close()
    assert [item.time_s - TIME_S for item in target.delivered] == [0, 2]
    assert (notices[0::2], len(notices)) == (["the test: busy", "the test: no"], 4)


def test_event_is_lost_after_five_tries():
    target = Scripted(*["later"] * queued_target.TRIES)
    target.send(event())
    wait_for(lambda: target.lost() == 1)
    assert target.script == []
    target.close()


def test_full_queue_drops_the_oldest_event(monkeypatch):
    monkeypatch.setattr(queued_target, "ROOM", 3)
    gate = threading.Event()

    class Slow(Scripted):
        def deliver(self, event: Event) -> None:
            gate.wait(PATIENCE_S)
            super().deliver(event)

    target = Slow()
    target.send(event(0))
    wait_for(lambda: target._in_flight)
    for number in range(1, 11):
        target.send(event(number))
    assert target.lost() == 7
    gate.set()
    target.close()
    assert [item.time_s - TIME_S for item in target.delivered] == [0, 8, 9, 10]


def test_event_after_close_is_lost():
    target = Scripted()
    target.send(event())
    target.close()
    target.send(event())
    assert (len(target.delivered), target.lost()) == (1, 1)


def test_close_does_not_wait_for_a_failing_receiver():
    target = Scripted(*["later"] * 1000)
    for number in range(20):
        target.send(event(number))
    wait_for(lambda: target.failing)
    target.close()
    assert target.lost() == 20


def test_state_of_a_receiver_has_its_lost_events():
    good, bad = Scripted(), Scripted("never")
    events = CameraEvents(None, EventsConfig(), print, EventFilters(), [good, bad])
    bad.name = "bad"
    events.send(event())
    wait_for(lambda: bad.failing)
    assert events.states() == {("", "the test"): (False, 0), ("", "bad"): (True, 1)}
    events.send(event(1, "leaves"))
    wait_for(lambda: bad.delivered)
    events.close()
    assert events.states()["", "bad"] == (False, 1)


# Files and pipes.


def test_event_file_is_appended_to(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text("before\n")
    target = EventStream.open(str(path))
    for number in range(3):
        target.send(event(number))
    target.close()
    lines = path.read_text().splitlines()
    assert lines[0] == "before"
    assert [json.loads(line)["time_utc"][17:19] for line in lines[1:]] == ["00", "01", "02"]


@pytest.mark.parametrize("kind", ["folder", "missing", "pipe"])
def test_unwritable_event_file_is_refused(tmp_path, kind):
    path = tmp_path / "x"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path = tmp_path / "no/x"
    with pytest.raises(OutputError, match="cannot be written"):
        EventStream.open(str(path))


def test_full_disk_loses_whole_lines_only(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    room = [40]
    write = os.write

    def limited(descriptor, data):
        if room[0] <= 0:
            raise OSError(28, "No space left on device")
        taken = write(descriptor, bytes(data[: room[0]]))
        room[0] -= taken
        return taken

    target = EventStream.open(str(path))
    monkeypatch.setattr("detector.live.events.stream.os.write", limited)
    target.send(event(0))
    target.send(event(1))
    wait_for(lambda: target.lost() == 1)
    room[0] = 10**6
    target.send(event(2))
    wait_for(lambda: path.read_text().count("\n") == 2)
    target.close()
    seconds = [json.loads(line)["time_utc"][17:19] for line in path.read_text().splitlines()]
    assert (seconds, target.lost()) == (["00", "02"], 1)


def test_closed_event_stream_loses_events_without_blocking():
    reading, writing = os.pipe()
    target = EventStream("standard output", writing)
    os.close(reading)
    target.send(event())
    wait_for(lambda: target.lost() == 1)
    target.close()


# Webhooks.


class Receiver(Server):
    def __init__(self) -> None:
        self.posts: queue.Queue = queue.Queue()
        self.answers: list[int] = []
        self.drip = False
        super().__init__(Answers)


class Answers(Handler):
    server: Receiver

    def do_POST(self) -> None:  # noqa: N802
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.put((self.path, dict(self.headers), body))
        status = self.server.answers.pop(0) if self.server.answers else 200
        if self.server.drip:
            for sign in chain(b"HTTP/1.1 200 OK\r\nX-Slow: ", repeat(ord("y"))):
                try:
                    self.wfile.write(bytes([sign]))
                except OSError:
                    return
                time.sleep(0.05)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", self.server.url("/elsewhere"))
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def receiver():
    server = Receiver()
    with serving(server):
        yield server, server.url("")


def post_and_lose(url: str, notices: list[str]) -> None:
    """Send an event to a webhook that fails."""
    target = Webhook(url, notice=notices.append)
    target.send(event())
    wait_for(lambda: target.lost() == 1)
    target.close()


def test_webhook_sends_login_and_signature():
    with receiver() as (server, url):
        target = Webhook(url.replace("//", "//me:p%40ss@") + "/hook?token=abcdef", "the-secret-key")
        target.send(event(1))
        path, headers, body = server.posts.get(timeout=PATIENCE_S)
        target.close()
    assert path == "/hook?token=abcdef"
    assert json.loads(body)["camera"] == "door"
    assert headers["Authorization"] == "Basic bWU6cEBzcw=="
    signed = headers["X-Detect-Video-Time"].encode() + b"." + body
    digest = hmac.new(b"the-secret-key", signed, hashlib.sha256).hexdigest()
    assert headers["X-Detect-Video-Signature"] == f"sha256={digest}"
    assert target.lost() == 0


def test_webhook_retries_an_overloaded_receiver():
    with receiver() as (server, url):
        server.answers = [503, 429, 200]
        target = Webhook(url)
        target.send(event())
        wait_for(lambda: server.posts.qsize() == 3)
        target.close()
    assert target.lost() == 0


@pytest.mark.parametrize("status", [302, 404])
def test_webhook_neither_follows_a_redirect_nor_retries_a_404(status, notices):
    with receiver() as (server, url):
        server.answers = [status]
        post_and_lose(f"{url}/first", notices)
        paths = [server.posts.get()[0] for _ in range(server.posts.qsize())]
    assert paths == ["/first"]
    assert str(status) in notices[0]


def test_webhook_gives_up_on_a_slow_response(monkeypatch, notices):
    monkeypatch.setattr(queued_target, "TRIES", 1)
    with receiver() as (server, url):
        server.drip = True
        monkeypatch.setattr("detector.live.events.webhook.DEADLINE_S", 0.2)
        post_and_lose(url, notices)
    assert "no response within 0.2 s" in notices[0]


def test_notice_of_an_unreachable_webhook_hides_its_key(notices):
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        post_and_lose(f"http://127.0.0.1:{reserved.getsockname()[1]}/?key=verysecret", notices)
    assert notices == ["webhook: Connection refused"]


@pytest.mark.parametrize(
    ("make", "option", "urls"),
    [
        (Webhook, "--webhook", "ftp://host/x|file:///etc/passwd|host/x|http://|http://h:99999/"),
        (Webhook, "--webhook", "http://h/a b|http://h/\r\nX: y|http://hö/"),
        (MqttTarget, "--mqtt", "http://h/x|mqtt://h|mqtt://h/|mqtt://h/a/#|mqtt:///x|mqtt://h:x/y"),
        (MqttTarget, "--mqtt", "mqtt://h/$SYS"),
    ],
)
def test_invalid_address_of_a_receiver_is_refused(make, option, urls):
    for url in urls.split("|"):
        with pytest.raises(UsageError, match=option):
            make(url)


def test_webhook_address_is_read_from_file_or_environment(tmp_path):
    (tmp_path / "hook").write_text("https://h/S3cretPath\n")
    assert find_address(f"@{tmp_path}/hook") == "https://h/S3cretPath"
    assert find_address("env:HOOK", {"HOOK": "https://h/S3cretEnv"}) == "https://h/S3cretEnv"
    assert find_address("https://h/x") == "https://h/x"
    assert redact("S3cretPath S3cretEnv") == "*** ***"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("@absent", "absent: cannot be read: No such file or directory"),
        ("@empty", "--webhook @empty: the file is empty; write"),
        ("@two", "--webhook: a space or control character in the address"),
        ("@bytes", "not text in UTF-8, so it is not the address of a webhook"),
        ("@.", "Is a directory"),
        ("env:NOT_SET", "--webhook env:NOT_SET: this environment variable is not set"),
        ("env:", "--webhook env:: this environment variable"),
        ("env:EMPTY", "is not set; set it"),
    ],
)
def test_file_or_variable_without_an_address_is_refused(tmp_path, monkeypatch, value, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "two").write_text("https://h/S3cretA\nhttps://h/S3cretB\n")
    (tmp_path / "bytes").write_bytes(b"https://h/S3cret\xff")
    with pytest.raises(UsageError) as refused:
        Webhook(find_address(value, {"EMPTY": ""}))
    assert message in str(refused.value)
    assert "S3cret" not in str(refused.value)


@pytest.mark.net
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Exception ignored")  # paho leaves its socket open
@pytest.mark.parametrize("kind", ["https", "mqtts"])
def test_notice_of_an_untrusted_certificate_mentions_ssl_cert_file(tmp_path, kind, notices):
    pytest.importorskip("paho.mqtt")
    with web_server(make_certificate(tmp_path)) as server:
        url = f"{kind}://localhost:{server.server_port}/topic"
        make = Webhook if kind == "https" else MqttTarget
        target = make(url, notice=notices.append)
        target.send(event())
        wait_for(lambda: notices)
        target.close()
    del target
    gc.collect()
    assert "(self-signed certificate); give" in notices[0]
    assert "SSL_CERT_FILE" in notices[0]


# MQTT.

BROKER = "/usr/sbin/mosquitto"


@contextmanager
def broker(folder: Path, *lines: str, port: int = 0):
    pytest.importorskip("paho.mqtt")
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))
        port = free.getsockname()[1]
    configuration = folder / "broker.conf"
    configuration.write_text("\n".join([f"listener {port} 127.0.0.1", *lines, ""]))
    process = subprocess.Popen(
        [BROKER, "-c", str(configuration)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: can_connect(port))
        yield port
    finally:
        process.kill()
        process.wait()


def can_connect(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


class Subscriber:
    def __init__(self, port: int) -> None:
        import paho.mqtt.client as paho
        from paho.mqtt.enums import CallbackAPIVersion

        self.messages: list[tuple[str, str, bool]] = []
        self.ready = threading.Event()
        self.client = paho.Client(CallbackAPIVersion.VERSION2)
        self.client.on_connect = lambda client, *_: client.subscribe("#", qos=1)
        self.client.on_subscribe = lambda *_: self.ready.set()
        self.client.on_message = lambda client, data, message: self.messages.append(
            (message.topic, message.payload.decode(errors="replace"), message.retain)
        )
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        assert self.ready.wait(PATIENCE_S)

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def test_value_that_changed_during_a_publication_is_published_again(monkeypatch):
    pytest.importorskip("paho.mqtt")
    monkeypatch.setattr("detector.live.events.broker.Client", MagicMock())
    target, sent = MqttTarget("mqtt://127.0.0.1/x"), []

    def publish(topic, payload, **_):
        sent.append(payload)
        target._latest[topic] = "2"  # as if another thread had sent "2" just before "1"
        return SimpleNamespace(rc=0)

    target._client.publish = publish
    target._latest["t"], target._outdated = "1", {"t"}
    target._on_publish(None, None, 1, SimpleNamespace(is_failure=False), None)
    assert sent == ["1", "2"]


needs_broker = pytest.mark.skipif(
    not os.path.exists(BROKER), reason=f"{BROKER} is not installed: apt install mosquitto"
)


@needs_broker
@pytest.mark.net
def test_broker_retains_the_newest_values_after_an_outage(tmp_path, monkeypatch, notices):
    monkeypatch.setattr("detector.live.events.mqtt.ROOM", 3)
    with broker(tmp_path, "allow_anonymous true") as port:
        target = MqttTarget(f"mqtt://127.0.0.1:{port}/x", notice=notices.append)
        target.send(event(0, "camera_up", class_name=None))
        wait_for(lambda: not target.failing and not target._pending)
    wait_for(lambda: target.failing)
    for second in range(1, 9):
        target.send(event(second, class_name="car"))
    target.send(event(9, "leaves", class_name="car"))
    target.send(event(9, "camera_down", class_name=None))
    with broker(tmp_path, "allow_anonymous true", port=port):
        wait_for(lambda: target._client.is_connected() and not target._pending)
        with Subscriber(port) as subscriber:
            wait_for(lambda: len(subscriber.messages) == 3)
        target.close()
    assert [line.rpartition(": ")[2] for line in notices][1:] == ["connected again"]
    retained = {topic: payload for topic, payload, retains in subscriber.messages if retains}
    assert retained == {"x/available": "online", "x/door/state": "down", "x/door/count/car": "0"}


@needs_broker
@pytest.mark.net
def test_broker_receives_states_counts_and_events(tmp_path):
    with broker(tmp_path, "allow_anonymous true") as port:
        target = MqttTarget(f"mqtt://127.0.0.1:{port}/home/detect")
        with Subscriber(port) as subscriber:
            target.send(event(0, "camera_up", class_name=None))
            target.send(event(1, class_name="car/+#"))
            target.send(event(2, "leaves", class_name="car/+#"))
            wait_for(lambda: len(subscriber.messages) == 7)
            target.close()
            wait_for(lambda: ("home/detect/available", "offline", False) in subscriber.messages)
    topics = {(topic, payload) for topic, payload, _ in subscriber.messages if "event" not in topic}
    assert topics == {
        ("home/detect/available", "online"),
        ("home/detect/door/state", "up"),
        ("home/detect/door/count/car%2F%2B%23", "2"),
        ("home/detect/door/count/car%2F%2B%23", "0"),
        ("home/detect/available", "offline"),
    }
    payloads = [payload for topic, payload, _ in subscriber.messages if "event" in topic]
    events = [json.loads(payload)["event"] for payload in payloads]
    assert (events, target.lost()) == (["camera_up", "appears", "leaves"], 0)


@needs_broker
@pytest.mark.net
def test_camera_down_event_is_published_even_if_the_run_ends_immediately(tmp_path, monkeypatch):
    """The run ends while the connection to the broker is still being made."""
    # How long the target waits for acknowledgements after its end: a busy machine needs more time.
    monkeypatch.setattr("detector.live.events.mqtt.LAST_MOMENT_S", 30.0)
    with broker(tmp_path, "allow_anonymous true") as port, Subscriber(port) as subscriber:
        target = MqttTarget(f"mqtt://127.0.0.1:{port}/home/detect")
        target.send(event(0, "camera_down", class_name=None))
        target.close()
        wait_for(lambda: ("home/detect/available", "offline", False) in subscriber.messages)
    states = [payload for topic, payload, _ in subscriber.messages if topic.endswith("/state")]
    assert (states, target.lost()) == (["down"], 0)


@needs_broker
@pytest.mark.net
def test_wrong_broker_login_is_reported_and_loses_the_event(tmp_path, notices):
    with broker(tmp_path, "allow_anonymous false") as port:
        target = MqttTarget(
            f"mqtt://127.0.0.1:{port}/x", "me", "wrongpassword", notice=notices.append
        )
        target.send(event())
        wait_for(lambda: any("refused the" in message for message in notices))
        target.close()
    assert len(notices) <= 2, "on a busy machine, a lost connection may be reported first"
    assert "wrongpassword" not in notices[0]
    assert target.lost() == 2  # the event, and the count of its class


def test_acknowledgement_while_publishing_does_not_deadlock():
    """paho's thread calls ``_on_publish`` while it holds the lock for which ``publish`` waits."""
    pytest.importorskip("paho.mqtt")
    target = MqttTarget("mqtt://127.0.0.1:1/x")
    client, ended = target._client, []

    def publish(*arguments, **options):
        thread = threading.Thread(
            target=target._on_publish, args=(None, None, 7, SimpleNamespace(is_failure=False), None)
        )
        thread.start()
        thread.join(30)
        ended.append(not thread.is_alive())
        return SimpleNamespace(rc=0, mid=7)

    target._client = SimpleNamespace(publish=publish)
    target.send(event())
    target._client = client
    target.close()
    assert ended
    assert all(ended)
    assert target.lost() == 0


def test_topic_level_escapes_special_characters():
    assert level("a/b+c#d\0e ü") == "a%2Fb%2Bc%23d%00e %C3%BC"


# Snapshots.


def test_snapshot_is_named_after_time_event_and_class(tmp_path):
    snapshots = Snapshots(tmp_path)
    result = snapshots.add_to(event(class_name="../../é/x"), np.zeros((9, 16, 3), np.uint8))
    snapshots.close()
    assert result.snapshot == "door/snapshots/20261122T093000.250Z-appears-________x.jpg"
    assert (tmp_path / result.snapshot).read_bytes()[:2] == b"\xff\xd8"


def test_events_of_one_moment_share_a_snapshot(tmp_path):
    snapshots, image = Snapshots(tmp_path), np.zeros((9, 16, 3), np.uint8)
    moments = [(0, "person"), (0, "vehicle"), (1, "vehicle")]
    paths = [snapshots.add_to(event(at, class_name=name), image).snapshot for at, name in moments]
    other = snapshots.add_to(replace(event(1), camera="gate"), image).snapshot
    snapshots.close()
    assert paths[0] == paths[1] != paths[2]
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.jpg")}
    assert written == {*paths, other}
    assert len(written) == 3


def test_unwritable_snapshot_is_reported_once(tmp_path, notices):
    (tmp_path / "door").write_text("in the way")
    snapshots = Snapshots(tmp_path, notices.append)
    for number in range(2):
        snapshots.add_to(event(number), np.zeros((9, 16, 3), np.uint8))
    snapshots.close()
    assert (len(notices), snapshots.lost(), snapshots.failing) == (1, 2, True)


def test_snapshots_of_the_same_time_get_a_number(tmp_path):
    """The clock is set back, so the same time occurs again."""
    snapshots, paths = Snapshots(tmp_path), []
    for at in (0, 1, 0):
        paths.append(snapshots.add_to(event(at), np.zeros((9, 16, 3), np.uint8)).snapshot)
        wait_for((tmp_path / paths[-1]).exists)
    snapshots.close()
    assert len(set(paths)) == 3
    assert paths[2] == paths[0].replace(".jpg", "-2.jpg")


def test_number_of_remembered_event_files_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr("detector.live.events.days.MOST_CREATED", 3)
    days = EventDays(tmp_path)
    for day in range(5):
        days.deliver(event(day * 86_400))
    assert len(days._created) == 3
    days.remove_created()
    assert len(list((tmp_path / "door").iterdir())) == 2
