"""Test that page, API, metrics, MQTT, files and terminal show the same counts."""

import csv
import json
import re
import signal
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from yaml import safe_load

from detector.live.base import format_day, to_utc
from tests.conftest import CHECKOUT
from tests.lab.report.browser import Browser
from tests.live.events.test_delivery import Subscriber, broker, needs_broker
from tests.live.page.client import Client
from tests.live.page.conftest import running
from tests.live.servers import need_rtsp, rtsp
from tests.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.net, pytest.mark.slow]
STREET = CHECKOUT / "videos/street.mp4"
LINE, ZONE = [(0.5, 0.01), (0.5, 0.99)], [(0.5, 0.2), (0.99, 0.2), (0.99, 0.99), (0.5, 0.99)]
OLD_COLUMNS = "from_utc,to_utc,source,zone,class,in,out,entered,left,appeared,ended,mean,most"
SIDES = ("to the left", "to the right")
NAMES = {"name of the line": "mid", "name of the zone": "right side"}
NAMES |= {"what in is called": SIDES[0], "what out is called": SIDES[1]}
NAME = "e = document.querySelector(%s); e.value = %s; e.dispatchEvent(new Event('change'))"
SHOWN = "[...document.querySelectorAll('.now')].map((one) => one.innerText)"
IN, OUT = ("in", "entered", "appeared"), ("out", "left", "ended")


def write_counts(folder: Path, day: str, ins: int, outs: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    row = f"{day}T12:00:00.000Z,{day}T12:01:00.000Z,cam,mid,person,{ins},{outs},,,,,,"
    (folder / f"zone-counts-{day}.csv").write_text(f"{OLD_COLUMNS}\n{row}\n")


def zones_of(client: Client) -> list[dict[str, object]]:
    return client.ask("/api/streams").json()["streams"][0]["zones"]


def draw(browser: Browser, points: Sequence[tuple[float, float]]) -> None:
    browser.run("board = document.querySelector('.board'); board.scrollIntoView({block: 'center'})")
    for x, y in points:
        box = browser.run("board.getBoundingClientRect().toJSON()")
        at = {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]}
        for kind in ("mousePressed", "mouseReleased"):
            browser.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)


@needs_broker
@pytest.mark.browser
def test_all_outputs_show_the_same_counts(tmp_path, browser: Browser):
    need_rtsp()
    today, yesterday = format_day(time.time()), to_utc(time.time()).date() - timedelta(1)
    folder = tmp_path / "live/127-0-0-1"
    write_counts(folder, today, 5, 2)
    write_counts(folder, str(yesterday), 70, 30)
    with broker(tmp_path, "allow_anonymous true") as port, rtsp({"street": STREET}) as server:
        options = (server.url("street"), "--live", "every", "--max-age", "60", "--engine", "ort")
        options += ("--precision", "fp32", "--mqtt", f"mqtt://127.0.0.1:{port}/x")
        with running(tmp_path, *options) as (client, process), Subscriber(port) as subscriber:
            path = "/api/streams/127-0-0-1"
            browser.visit(f"http://127.0.0.1:{client.port}/", 600)
            ready = "[...tiles.values()].some((one) => one.shown && !one.drawButton.hidden)"
            wait_for(lambda: browser.run(ready))
            browser.run("tiles.get('127-0-0-1').drawButton.click()")
            draw(browser, LINE[:1])
            browser.click(".drawing .save")
            wait_for(lambda: "2 points, this one has 1" in browser.run("document.body.innerText"))
            draw(browser, LINE[1:])
            browser.click(".draw-zone")
            draw(browser, ZONE)
            for label, name in NAMES.items():
                where = f'.drawing [aria-label="{label}"]'
                browser.run(NAME % (json.dumps(where), json.dumps(name)))
            browser.click(".drawing .save")
            wait_for(lambda: len(zones_of(client)) == 2)
            wait_for(lambda: sum(zones_of(client)[0]["today"].values()) > 9)
            section = safe_load((tmp_path / "live/zones.yaml").read_text())["cameras"]["127-0-0-1"]
            section["lines"]["far"] = [[0, 1], [1, 1]]
            assert client.post(f"{path}/zones", json.dumps(section)).json()["asked"] == "far added"
            wait_for(lambda: [line["name"] for line in zones_of(client)][1:2] == ["far"])
            server.kill()
            wait_for(lambda: client.ask(path).json()["state"] != "live")
            wait_for(lambda: _is_settled(client, path))
            line, far, zone = zones_of(client)
            metrics = client.ask("/metrics").body.decode()
            history = client.ask("/api/counts?days=2").json()
            texts = {}
            for width in (390, 1440):
                browser.visit(f"http://127.0.0.1:{client.port}/", width)
                wait_for(lambda: "yesterday 70 / 30" in browser.run("document.body.innerText"))
                texts[width] = browser.run(SHOWN)
                assert browser.run("document.scrollingElement.scrollWidth") <= width
            assert browser.complaints == []
            wait_for(lambda: _retained(subscriber, "mid/in") + _retained(subscriber, "mid/out") > 0)
            process.send_signal(signal.SIGTERM)
            stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143, stderr

    files = [folder / f"zone-counts-{today}{more}.csv" for more in ("", "-2")]
    rows = [row for path in files for row in csv.DictReader(path.read_text().splitlines())]
    assert history["days"][-1] == str(yesterday)
    assert history["zones"][0]["sums"][-1] == {"in": 70, "out": 30}
    in_files = {
        (name, side): sum(
            int(row[column] or 0) for row in rows if row["zone"] == name for column in columns
        )
        for name in ("mid", "right side")
        for side, columns in (("in", IN), ("out", OUT))
    }
    ins, outs = line["today"]["in"], line["today"]["out"]
    assert ins > 5, "the run has added to the 5 in the file"
    retained = _retained(subscriber, "mid/in"), _retained(subscriber, "mid/out")
    assert (ins, outs) == retained == (in_files["mid", "in"], in_files["mid", "out"])
    assert (ins, outs) == tuple(sum(hour[side] for hour in line["hours"]) for side in ("in", "out"))
    own = ins - 5, outs - 2
    assert own == tuple(_metric(metrics, f"{side}_total", "mid") for side in ("in", "out"))
    assert own == tuple(_printed(stdout + stderr, side) for side in SIDES)
    ours = rows[1:]
    assert {(row["in_name"], row["out_name"]) for row in ours if row["zone"] == "mid"} == {SIDES}
    assert {row["class"] for row in ours if row["zone"] == "mid"} == {"person", "vehicle"}
    assert all(row["from_local"] and int(row["frames"]) for row in ours)
    events = map(json.loads, (folder / f"events-{today}.jsonl").read_text().splitlines())
    assert {event["side"] for event in events if event["event"] == "crosses"} == set(SIDES)
    texts_sent = [text for name, text, _ in subscriber.messages if name.endswith("/event")]
    sent = [json.loads(text) for text in texts_sent]
    first = next(at for at, event in enumerate(sent) if event.get("zone"))
    assert all(one.get("zone") or one["event"].startswith("camera_") for one in sent[first:])
    entered = zone["today"]["in"]
    assert entered == in_files["right side", "in"] == _metric(metrics, "in_total", "right side")
    assert entered == sum(counts["in"] for counts in zone["classes"].values())
    assert not far["classes"]
    assert "lines and zones are in live/zones.yaml" in stderr
    inside = zone["inside"]
    assert inside == _metric(metrics, "inside", "right side")
    assert inside == _retained(subscriber, "right side/inside")
    ended = in_files["right side", "out"]  # when the run ends, objects still inside count as out
    assert inside + zone["today"]["out"] == ended
    of_zone = f"in {entered}, out {zone['today']['out']}, {inside} inside"
    of_line = f"to the left {ins}, to the right {outs}"
    assert texts[390] == texts[1440] == [of_line, "in 0, out 0", of_zone]


def _is_settled(client: Client, path: str) -> bool:
    facts = client.ask(path).json()
    return facts["received"] == facts["processed"] + sum(facts["dropped"].values())


def _retained(subscriber: Subscriber, topic: str) -> int:
    payloads = {name: text for name, text, _ in subscriber.messages}  # the last of each topic
    return int(payloads.get(f"x/127-0-0-1/zone/{topic}", 0))


def _metric(text: str, name: str, zone: str) -> float:
    pattern = re.compile(rf'detect_video_zone_{name}{{camera="127-0-0-1".*zone="{zone}"}} (\S+)')
    return sum(float(value) for value in pattern.findall(text))


def _printed(text: str, kind: str) -> int:
    (line,) = re.findall(r"mid: (.*?)right side:", text, re.DOTALL)  # over several lines
    return sum(int(number) for number in re.findall(rf"\b{kind} (\d+)", " ".join(line.split())))
