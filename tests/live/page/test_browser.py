"""The page in a real browser: pictures move, a camera's death shows, texts stay texts, it fits."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from detector.core.config.cameras import PageConfig
from detector.live.base import APPEARS, Event, ZoneFigures
from detector.live.page.binding import TOKEN
from detector.live.page.sampler import EVERY_S
from detector.tracks.zones_file import Shape
from tests.lab.report.browser import started
from tests.live.page.conftest import Served
from tests.live.page.rehearsal import Pictures, Rehearsal
from tests.live.page.test_security import RIGHT
from tests.live.page.test_streams import Switches
from tests.waiting import wait_for

pytestmark = [pytest.mark.net, pytest.mark.browser, pytest.mark.slow]
# The times of all figures until the page showed the camera's death.
NOTE_DEATH = """(() => {
  const card = document.querySelector("#camera-gate");
  new MutationObserver(() => {
    if (!window.death && card.innerText.includes("no connection"))
      window.death = [...history.times];
  }).observe(card, {childList: true, subtree: true, characterData: true});
})()"""
# The tops of counts, pictures, figures and events; the colour next to the bottleneck.
TOPS = """['.zones', '.board', '#numbers', '#lower'].map((one) =>
  document.querySelector(one).getBoundingClientRect().top)"""
EDGE = "getComputedStyle(document.querySelector('#bottleneck')).borderLeftColor"
HOSTILE = "<img src=x onerror=document.title='owned'>"


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    yield from started(tmp_path_factory.mktemp("chromium"))


@pytest.fixture
def browser(chrome):
    yield chrome
    chrome.visit("about:blank")  # or the page of this test complains in the next that it is alone


def shown(browser, camera: str) -> int:
    return browser.run(f"tiles.get({json.dumps(camera)})?.shown ?? 0")


def text(browser, selector: str) -> str:
    return browser.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")


def pixels(browser, camera: str) -> str:
    return browser.run(f"document.querySelector('#camera-{camera} canvas').toDataURL()")


@pytest.mark.parametrize("width", [1400, 390])
def test_pictures_move_and_a_death_shows_within_three_seconds(browser, width):
    one = Served(Rehearsal("door", "gate"))
    one.page.sampler.every_s = EVERY_S
    one.page.controls = switches = Switches()
    line = Shape("line", ((0.5, 0.0), (0.5, 1.0)), True)
    one.run.set("door", zones=(ZoneFigures(line, {"person": (2, 1)}, None, ((2, 1),)),))
    one.hub.send(Event(APPEARS, "door", time.time(), time.time(), HOSTILE, 2))
    try:
        with Pictures(one.run, fps=12):
            browser.visit(one.server.address, width, scheme="dark" if width < 600 else "light")
            wait_for(lambda: shown(browser, "door") > 2)
            if width < 600:  # the second one lies below, and is not asked for
                browser.run("document.querySelector('#camera-gate').scrollIntoView()")
            wait_for(lambda: shown(browser, "gate") > 2)
            first = pixels(browser, "gate")
            wait_for(lambda: pixels(browser, "gate") != first)
            wait_for(lambda: text(browser, "#health") == "healthy")
            assert browser.run("document.scrollingElement.scrollWidth") <= width
            assert "in 2, out 1" in text(browser, ".zones")
            assert (tops := browser.run(TOPS)) == sorted(tops), "counts first"
            edge = browser.run(EDGE)
            one.run.run = replace(one.run.run, capacity=0.6)
            wait_for(lambda: browser.run(EDGE) != edge)  # as frames are dropped

            assert EVERY_S == 1.0
            browser.run(NOTE_DEATH)
            one.run.set("gate", state="waiting", error=HOSTILE, next_try_s=7.0)
            before = one.page.sampler.at_s
            wait_for(lambda: browser.run("window.death"))
            # Figures come once a second: it showed with the third of them at the latest.
            assert browser.run(f"window.death.filter((t) => t > {before}).length") <= 3
            assert browser.run("document.querySelector('#camera-gate').matches('.out')")
            assert "1 of 2 down" in text(browser, "#health")
            assert HOSTILE in text(browser, "#camera-gate .why")
            assert HOSTILE in text(browser, "#events li .what")
            assert browser.run("document.title") != "owned"

            browser.click("#camera-door .foot button")
            wait_for(lambda: switches.said == [("stop", "door")])
            assert "stopped" in text(browser, "#camera-yard")
            browser.click("#camera-yard .foot button")
            wait_for(lambda: switches.said[-1] == ("start", "yard"))
            browser.click("#camera-door .view")
            wait_for(lambda: browser.run("document.querySelector('.big canvas').width") == 320)
        assert browser.complaints == []
        assert [url for url in browser.requests if not url.startswith(one.server.address)] == []
    finally:
        one.close()
    wait_for(lambda: text(browser, "#health") == "the run has ended")
    assert "the run has ended" in text(browser, "#camera-door")


def test_a_hidden_page_costs_nothing(browser):
    one = Served(Rehearsal("door"))
    try:
        with Pictures(one.run):
            browser.visit(one.server.address)
            wait_for(lambda: one.hub.watchers() == 1)
            browser.run(
                "Object.defineProperty(document, 'hidden', {value: true, configurable: true}); "
                "document.dispatchEvent(new Event('visibilitychange'))"
            )
            wait_for(lambda: one.hub.watchers() == 0)
    finally:
        one.close()


def test_the_login(browser, monkeypatch):
    monkeypatch.setenv(TOKEN, RIGHT)
    one = Served(Rehearsal("door"), PageConfig(serve="0"))
    try:
        browser.visit(one.server.address)
        assert browser.run("location.pathname") == "/login"
        browser.run("document.querySelector('#token').focus()")
        browser.type("wrong-" * 5)
        browser.click("button")
        wait_for(lambda: "Wrong token" in text(browser, ".wrong"))
        wait_for(lambda: browser.run("document.readyState") == "complete")
        browser.run("document.querySelector('#token').focus()")
        browser.type(RIGHT)
        wait_for(lambda: browser.run("document.querySelector('#token').value") == RIGHT)
        browser.click("button")
        wait_for(lambda: text(browser, "#health") == "healthy")
        assert RIGHT not in browser.run("document.cookie + location.href")
        browser.click("header form button")
        wait_for(lambda: browser.run("location.pathname") == "/login")
    finally:
        one.close()
