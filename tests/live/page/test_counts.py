"""Counts of lines and zones: page, API, metrics, MQTT, files and terminal say the same."""

from __future__ import annotations

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
OLD = "from_utc,to_utc,source,zone,class,in,out,entered,left,appeared,ended,mean,most"  # columns
SIDES = ("to the left", "to the right")
NAMES = {"name of the line": "mid", "name of the zone": "right side"}
NAMES |= {"what in is called": SIDES[0], "what out is called": SIDES[1]}
NAME = "e = document.querySelector(%s); e.value = %s; e.dispatchEvent(new Event('change'))"
SHOWN = "[...document.querySelectorAll('.now')].map((one) => one.innerText)"
IN, OUT = ("in", "entered", "appeared"), ("out", "left", "ended")


def write_counts(folder: Path, day: str, come: int, gone: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    row = f"{day}T12:00:00.000Z,{day}T12:01:00.000Z,cam,mid,person,{come},{gone},,,,,,"
    (folder / f"zone-counts-{day}.csv").write_text(f"{OLD}\n{row}\n")


def counted(client: Client) -> list[dict[str, object]]:
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
def test_all_tell_the_same_numbers(tmp_path, browser: Browser):
    need_rtsp()
    today, yesterday = format_day(time.time()), to_utc(time.time()).date() - timedelta(1)
    folder = tmp_path / "live/127-0-0-1"
    write_counts(folder, today, 5, 2)
    write_counts(folder, str(yesterday), 70, 30)
    with broker(tmp_path, "allow_anonymous true") as port, rtsp({"street": STREET}) as server:
        words = (server.url("street"), "--live", "every", "--max-age", "60", "--engine", "ort")
        words += ("--precision", "fp32", "--mqtt", f"mqtt://127.0.0.1:{port}/x")
        with running(tmp_path, *words) as (client, process), Subscriber(port) as subscriber:
            one = "/api/streams/127-0-0-1"
            browser.visit(f"http://127.0.0.1:{client.port}/", 600)
            ready = "[...tiles.values()].some((one) => one.shown && !one.lines.hidden)"
            wait_for(lambda: browser.run(ready))
            browser.run("tiles.get('127-0-0-1').lines.click()")
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
            wait_for(lambda: len(counted(client)) == 2)
            wait_for(lambda: sum(sum(one["today"].values()) for one in counted(client)[:1]) > 9)
            section = safe_load((tmp_path / "live/zones.yaml").read_text())["cameras"]["127-0-0-1"]
            section["lines"]["far"] = [[0, 1], [1, 1]]
            assert client.post(f"{one}/zones", json.dumps(section)).json()["asked"] == "far added"
            wait_for(lambda: [line["name"] for line in counted(client)][1:2] == ["far"])
            server.kill()
            wait_for(lambda: client.ask(one).json()["state"] != "live")
            wait_for(lambda: _settled(client, one))
            line, far, zone = counted(client)
            metrics = client.ask("/metrics").body.decode()
            past = client.ask("/api/counts?days=2").json()
            texts = {}
            for width in (390, 1440):
                browser.visit(f"http://127.0.0.1:{client.port}/", width)
                wait_for(lambda: "yesterday 70 / 30" in browser.run("document.body.innerText"))
                texts[width] = browser.run(SHOWN)
                assert browser.run("document.scrollingElement.scrollWidth") <= width
            assert browser.complaints == []
            wait_for(lambda: _kept(subscriber, "mid/in") + _kept(subscriber, "mid/out") > 0)
            process.send_signal(signal.SIGTERM)
            stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143, stderr

    files = [folder / f"zone-counts-{today}{more}.csv" for more in ("", "-2")]
    rows = [row for path in files for row in csv.DictReader(path.read_text().splitlines())]
    assert past["days"][-1] == str(yesterday)
    assert past["zones"][0]["sums"][-1] == {"in": 70, "out": 30}
    filed = {
        (name, side): sum(int(row[one] or 0) for row in rows if row["zone"] == name for one in kind)
        for name in ("mid", "right side")
        for side, kind in (("in", IN), ("out", OUT))
    }
    come, gone = line["today"]["in"], line["today"]["out"]
    assert come > 5, "also of this run"
    kept = _kept(subscriber, "mid/in"), _kept(subscriber, "mid/out")
    assert (come, gone) == kept == (filed["mid", "in"], filed["mid", "out"])
    assert (come, gone) == tuple(sum(one[side] for one in line["hours"]) for side in ("in", "out"))
    own = come - 5, gone - 2
    assert own == tuple(_metric(metrics, f"{side}_total", "mid") for side in ("in", "out"))
    assert own == tuple(_said(stdout + stderr, one) for one in SIDES)
    ours = rows[1:]
    assert {(row["in_name"], row["out_name"]) for row in ours if row["zone"] == "mid"} == {SIDES}
    assert {row["class"] for row in ours if row["zone"] == "mid"} == {"person", "vehicle"}
    assert all(row["from_local"] and int(row["frames"]) for row in ours)
    events = map(json.loads, (folder / f"events-{today}.jsonl").read_text().splitlines())
    assert {one["side"] for one in events if one["event"] == "crosses"} == set(SIDES)
    told = [json.loads(text) for name, text, _ in subscriber.got if name.endswith("/event")]
    first = next(at for at, one in enumerate(told) if one.get("zone"))
    assert all(one.get("zone") or one["event"].startswith("camera_") for one in told[first:])
    entered = zone["today"]["in"]
    assert entered == filed["right side", "in"] == _metric(metrics, "in_total", "right side")
    assert entered == sum(one["in"] for one in zone["classes"].values())
    assert not far["classes"]
    assert "lines and zones are in live/zones.yaml" in stderr
    inside = zone["inside"]
    assert (
        inside == _metric(metrics, "inside", "right side") == _kept(subscriber, "right side/inside")
    )
    assert inside + zone["today"]["out"] == filed["right side", "out"], "who is there ends there"
    of_zone = f"in {entered}, out {zone['today']['out']}, {inside} inside"
    of_line = f"to the left {come}, to the right {gone}"
    assert texts[390] == texts[1440] == [of_line, "in 0, out 0", of_zone]


def _settled(client: Client, one: str) -> bool:
    facts = client.ask(one).json()
    return facts["received"] == facts["processed"] + sum(facts["dropped"].values())


def _kept(subscriber: Subscriber, topic: str) -> int:
    told = [text for name, text, _ in subscriber.got if name == f"x/127-0-0-1/zone/{topic}"]
    return int(told[-1]) if told else 0


def _metric(text: str, name: str, zone: str) -> float:
    wanted = re.compile(rf'detect_video_zone_{name}{{camera="127-0-0-1".*zone="{zone}"}} (\S+)')
    return sum(float(one) for one in wanted.findall(text))


def _said(text: str, kind: str) -> int:
    (said,) = re.findall(r"mid: (.*?)right side:", text, re.DOTALL)  # over several lines
    return sum(int(one) for one in re.findall(rf"\b{kind} (\d+)", " ".join(said.split())))
