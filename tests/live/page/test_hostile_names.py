"""Test runs with markup, formulas and control codes in the names of classes and files.

A model file's author chooses the class names. Page, report, events, rows and terminal show them.
"""

import csv
import json
import re
import signal

import onnx
import pytest

from tests.attacks.inputs import content
from tests.cli.command import detect_video
from tests.golden import inputs
from tests.lab.report.browser import Browser
from tests.live.page.conftest import running
from tests.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.net, pytest.mark.browser, pytest.mark.slow]
WRITTEN = (
    "<script>owned=1</script>\"><img src=x onerror='owned=1'>",
    "=cmd()|'/C calc'!A0 &amp; \x1b[31m\x1b]0;t\x07 \u202e</script>",
    "-->a\nb\0c${owned=1}'\"{{owned=1}}]]><svg onload=owned=1>",
)
# Reading a model removes control characters and marks of text direction.
NAMES = tuple(re.sub("[\x00-\x1f\u202e]", "", name) for name in WRITTEN)
CONTROLS = re.compile("[\x00\x07\x1b\u202e]")
CLIP = "<img src=x onerror=owned=1>.mp4"
RUN = ("--model", "dots.onnx", "--engine", "ort", "--threads", "1", "--conf", "0.01")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("names")
    inputs.dots(folder / "dots.onnx")
    model = onnx.load(folder / "dots.onnx")
    for entry in model.metadata_props:
        if entry.key == "names":
            entry.value = repr(dict(enumerate(WRITTEN)))
    onnx.save(model, folder / "dots.onnx")
    (folder / CLIP).write_bytes(content("long.mp4"))
    return folder


def check_page(browser: Browser) -> None:
    """Check that no name became a script, an element or a request."""
    assert browser.run("typeof owned") == "undefined"
    assert browser.run("document.querySelectorAll('img[src=x], [onload], [onerror]').length") == 0
    assert not [url for url in browser.requests if url.endswith("/x")]
    assert browser.complaints == []


def test_live_page_shows_hostile_names_as_text(folder, browser):
    with running(folder, CLIP, "--loop", *RUN) as (client, process):
        browser.visit(f"http://127.0.0.1:{client.port}/")
        for name in NAMES:
            wait_for(lambda name=name: name in browser.run("document.body.textContent"), what=name)
        check_page(browser)
        assert browser.run("[...document.scripts].every((one) => one.src)")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143, err
    assert not CONTROLS.search(out + err)
    events = [
        json.loads(line)
        for path in folder.glob("live/*/events-*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert {event["class"] for event in events} == {*NAMES, None}


def test_report_and_files_keep_hostile_names_as_text(folder, browser):
    done = detect_video(
        CLIP, *RUN, "--frames", "9", "--save", "csv,player", "-o", "out/", "--run-dir", "once",
        cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not CONTROLS.search(done.stdout + done.stderr)
    for words in (("table",), ("html", "-o", "r.html")):
        drawn = detect_video("report", "once", "--format", *words, cwd=folder)
        assert drawn.returncode == 0, drawn.stderr
        assert not CONTROLS.search(drawn.stdout + drawn.stderr)
    [player] = (folder / "out").glob("*.html")
    for page in (folder / "r.html", player):
        browser.open(page)
        check_page(browser)
    [rows] = (folder / "out").glob("*.csv")
    with rows.open(newline="") as file:
        fields = [field for row in csv.reader(file) for field in row]
    assert NAMES[0] in fields
    assert f"'{NAMES[1]}" in fields  # with the apostrophe it is no formula
    assert not [field for field in fields if field.startswith(("=", "+", "@"))]
