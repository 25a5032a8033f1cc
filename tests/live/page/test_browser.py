"""Test the page in a real browser: moving pictures, a lost camera, escaped text, small screens."""

import json
import time
from dataclasses import replace

import pytest

from detector.live.base import APPEARS, Event, ZoneFigures
from detector.live.config import PageConfig
from detector.live.page.binding import TOKEN
from detector.live.page.sampler import EVERY_S
from detector.tracks.zones_file import Shape
from tests.lab.report.browser import started
from tests.live.page.conftest import Served
from tests.live.page.fake_run import FakeRun, show_pictures
from tests.live.page.test_security import RIGHT
from tests.live.page.test_streams import FakeControls
from tests.waiting import wait_for

pytestmark = [pytest.mark.net, pytest.mark.browser, pytest.mark.slow]
# window.death: the times of all figures that came until the page showed the lost camera.
NOTE_LOSS = """(() => {
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
    chrome.visit("about:blank")  # else this page would report a lost server in the next test


def shown_pictures(browser, camera: str) -> int:
    return browser.run(f"tiles.get({json.dumps(camera)})?.shown ?? 0")


def text(browser, selector: str) -> str:
    return browser.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")


def pixels(browser, camera: str) -> str:
    return browser.run(f"document.querySelector('#camera-{camera} canvas').toDataURL()")


@pytest.mark.parametrize("width", [1400, 390])
def test_page_shows_pictures_and_reports_a_lost_camera_within_three_seconds(browser, width):
    line = Shape("line", ((0.5, 0.0), (0.5, 1.0)), True)
    with Served(FakeRun("door", "gate")) as served:
        served.page.sampler.every_s = EVERY_S
        served.page.controls = controls = FakeControls()
        served.run.set("door", zones=(ZoneFigures(line, {"person": (2, 1)}, None, ((2, 1),)),))
        served.hub.send(Event(APPEARS, "door", time.time(), time.time(), HOSTILE, 2))
        with show_pictures(served.run, fps=12):
            browser.visit(served.server.address, width, scheme="dark" if width < 600 else "light")
            wait_for(lambda: shown_pictures(browser, "door") > 2)
            if width < 600:  # the second camera is below the fold, so the page does not request it
                browser.run("document.querySelector('#camera-gate').scrollIntoView()")
            wait_for(lambda: shown_pictures(browser, "gate") > 2)
            first = pixels(browser, "gate")
            wait_for(lambda: pixels(browser, "gate") != first)
            wait_for(lambda: text(browser, "#health") == "healthy")
            assert browser.run("document.scrollingElement.scrollWidth") <= width
            wait_for(lambda: "in 2, out 1" in text(browser, ".zones"))
            assert (tops := browser.run(TOPS)) == sorted(tops), "wrong order of the page's parts"
            edge = browser.run(EDGE)
            failing = {("front-door", name): (True, 1) for name in ("jsonl", "zones", "snapshots")}
            served.run.run = replace(served.run.run, capacity=0.6, outputs=failing)
            wait_for(lambda: browser.run(EDGE) != edge)  # the colour of a run that drops frames
            wait_for(lambda: "front-door snapshots" in text(browser, "#health"))
            right = "document.querySelector('#health').getBoundingClientRect().right"
            assert browser.run(right) <= width

            assert EVERY_S == 1.0
            browser.run(NOTE_LOSS)
            served.run.set("gate", state="waiting", error=HOSTILE, next_try_s=7.0)
            before = served.page.sampler.at_s
            wait_for(lambda: browser.run("window.death"))
            # Figures come once a second. After at most three, the page must show the lost camera.
            assert browser.run(f"window.death.filter((t) => t > {before}).length") <= 3
            assert browser.run("document.querySelector('#camera-gate').matches('.out')")
            assert "1 of 2 down" in text(browser, "#health")
            assert HOSTILE in text(browser, "#camera-gate .why")
            assert HOSTILE in text(browser, "#events li .what")
            assert browser.run("document.title") != "owned"

            browser.click("#camera-door .foot button")
            wait_for(lambda: controls.calls == [("stop", "door")])
            assert "stopped" in text(browser, "#camera-yard")
            browser.click("#camera-yard .foot button")
            wait_for(lambda: controls.calls[-1] == ("start", "yard"))
            browser.click("#camera-door .view")
            wait_for(lambda: browser.run("document.querySelector('.big canvas').width") == 320)
        assert browser.complaints == []
        assert [url for url in browser.requests if not url.startswith(served.server.address)] == []
    wait_for(lambda: text(browser, "#health") == "the run has ended")
    assert "the run has ended" in text(browser, "#camera-door")


def test_hidden_page_requests_no_pictures(browser):
    with Served(FakeRun("door")) as served, show_pictures(served.run):
        browser.visit(served.server.address)
        wait_for(lambda: served.hub.watchers() == 1)
        browser.run(
            "Object.defineProperty(document, 'hidden', {value: true, configurable: true}); "
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        wait_for(lambda: served.hub.watchers() == 0)


def test_login_and_logout(browser, monkeypatch):
    monkeypatch.setenv(TOKEN, RIGHT)
    with Served(FakeRun("door"), PageConfig(serve="0")) as served:
        browser.visit(served.server.address)
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
