"""The report in a real browser: it loads without errors or requests, sorts, filters, and shows the
session's figures.
"""

import json
import re
import shutil
from html import escape
from html.parser import HTMLParser

import pytest

from detector.core.tables import plain
from detector.lab.report.page import AGES, list_hows, page
from detector.lab.report.part import list_parts
from detector.lab.report.parts import network
from detector.lab.session.read import read_session
from detector.lab.why import explain
from tests.conftest import CHECKOUT
from tests.lab.report.sessions import LAYERS, PASSES, ran, with_passes

PHONE = 390
COLUMNS = [column.key for column in network.LAYERS]
BY_TIME = sorted(LAYERS, key=lambda row: -row["ms"])
KINDS = {
    "plain": {},
    "several sources": {"sources": 3},
    "batch": {"batch": 3},
    "sync": {"sync": True},
    "two requests": {"concurrency": 2},
    "one frame": {"frames": 1},
}


def column_of(key: str) -> int:
    return COLUMNS.index(key)


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    return with_passes(ran(tmp_path_factory.mktemp("full"), concurrency=2))


def texts(browser, selector: str) -> list[str]:
    return browser.run(
        f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)"
    )


def values(browser, table: str, column: int) -> list[float]:
    rows = f"[...document.getElementById('{table}').tBodies[0].rows].filter((row) => !row.hidden)"
    return browser.run(f"{rows}.map((row) => Number(row.cells[{column}].dataset.value ?? NaN))")


def assert_no_errors_or_requests(browser) -> None:
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
    pages = [url for url in browser.requests if url.startswith("file:")]
    assert len(pages) == 1, "the page requested other files"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, PHONE])
def test_page_loads_without_errors_and_fits(browser, report, width, scheme):
    browser.open(report, width, scheme=scheme)
    assert_no_errors_or_requests(browser)
    assert browser.run("document.scrollingElement.scrollWidth") <= width
    outside = (
        "[...document.querySelectorAll('body *')]"
        ".filter((e) => e.getBoundingClientRect().right > innerWidth + 1"
    )
    assert (
        browser.run(f"{outside} && !e.closest('.scroll')).map((e) => e.outerHTML.slice(0, 80))")
        == []
    )


def test_all_sections_are_in_the_documented_order(browser, report, session):
    browser.open(report)
    found = [text.replace("(how measured?)", "").strip() for text in texts(browser, "h2")]
    saved = read_session(session)
    drawn = [part for part in list_parts() if part.draw(saved)]
    titles = [one.title for one in drawn]
    first, last = ["Detections", "Next steps"], "How each number is measured"
    assert found == [*first, *titles, last]
    assert titles[:4] == ["The run", "Caveats", "Time per stage and thread", "Timeline"]
    assert texts(browser, "#timeline-part figcaption") == ["20 steady frames"]
    assert {"Critical path", "What if", "Layers", "Energy", "Passes"} <= {*titles}
    assert browser.run("document.querySelector('h1').nextElementSibling.id") == "first"
    assert texts(browser, "#machine-part pre") == ["detect-video 'the clip.mp4'"]


def test_timeline_of_a_short_run_is_complete(tmp_path):
    shown = page(read_session(ran(tmp_path, frames=1))).decode()
    assert "1 frame" in shown
    assert ">read 0, " in shown  # the timeline includes all stages


@pytest.mark.slow
def test_unreliable_figures_have_a_warning(session, tmp_path):
    shutil.copytree(session, tmp_path / "copy")
    reasons = ["the same run varied by 88% between turns", "<7> frames are few"]
    facts = {**PASSES["what_if"], "available": True}
    for facts["doubts"] in (reasons, reasons[:1]):
        (tmp_path / "copy/passes/what_if.json").write_text(json.dumps(facts))
        shown = page(read_session(tmp_path / "copy")).decode()
        assert shown.count(escape(reasons[0])) == 2  # next to the commands and next to the table
        assert (
            shown.count(escape(reasons[1])) == shown.count("and 1 more") == len(facts["doubts"]) - 1
        )


def test_gain_within_the_noise_shows_only_its_interval(browser, report):
    browser.open(report)
    gain = [row["fps_ratio"]["median"] - 1 for row in PASSES["what_if"]["changes"]]
    shown = texts(browser, "#whatif td:nth-child(2)")
    assert [text != "–" for text in shown] == [True, True, True, False, True]
    assert values(browser, "whatif", 1)[0] == pytest.approx(gain[0])
    lowest = [row["fps_ratio"]["low"] - 1 for row in PASSES["what_if"]["changes"]]
    assert values(browser, "whatif", 2) == pytest.approx(lowest)


def test_figures_are_the_same_as_in_the_session(browser, report, session):
    document = json.loads((session / "session.json").read_text())
    frames = document["frames"]["written"]
    browser.open(report)
    fps = document["fps"]
    assert [values(browser, "lab", column)[0] for column in (6, 7, 8)] == [
        fps["inference"],
        fps["end_to_end"],
        frames,
    ]
    stages = [one for one in document["stages"].values() if one["calls"]]
    assert values(browser, "ledger", 1) == pytest.approx(
        [1e3 * one["busy_s"] / frames for one in stages]
    )
    assert values(browser, "ledger", 3) == pytest.approx([one["p50_ms"] for one in stages])
    marks = texts(browser, "#latency-part svg .halo")  # two for frames, two for inferences
    assert [mark.split()[0] for mark in marks] == ["p50", "p90"] * 2
    infer = document["stages"]["infer"]
    assert marks[2:] == [f"{name} {plain(infer[f'{name}_ms'])} ms" for name in ("p50", "p90")]
    names = {"busy_s": (1,), "wait_input_s": (2,), "wait_output_s": (3,), "other_s": (4, 5)}
    for name, columns in {**names, "wall_s": (6,)}.items():
        shown = zip(*(values(browser, "threads", column) for column in columns), strict=True)
        expected = [1e3 * one[name] / frames for one in document["threads"].values()]
        assert [sum(cells) for cells in shown] == pytest.approx(expected)
    assert values(browser, "path", 1) == [0.7, 0.3]
    assert values(browser, "whatif", 4) == [
        row["fps"]["median"] for row in PASSES["what_if"]["changes"]
    ]
    for name in ("ms", "share", "gflops_s", "gbytes_s", "intensity"):
        assert values(browser, "layers", column_of(name)) == [row[name] for row in BY_TIME]
    assert values(browser, "layers", column_of("mmacs")) == [row["macs"] / 1e6 for row in BY_TIME]


def test_tables_of_passes_equal_their_facts(browser, report):
    browser.open(report)
    for table, rows in (("operators", "rows"), ("shapes", "by_shape")):
        for column, name in ((1, "calls"), (2, "self_ms"), (3, "share"), (4, "total_ms")):
            assert values(browser, table, column) == [row[name] for row in PASSES["torch"][rows]]
    assert texts(browser, "#shapes td:last-child") == [
        row["shapes"] for row in PASSES["torch"]["by_shape"]
    ]
    device = PASSES["device"]
    parts = browser.run(
        "[...document.querySelectorAll('#device-part .bar span')].map((e) => "
        "Number(e.dataset.value))"
    )
    assert parts == [device["busy_ms"], *device["idle_ms"].values()]
    assert sum(parts) == pytest.approx(device["window_ms"])
    assert values(browser, "gaps", 2) == [row["ms"] for row in device["longest_gaps"]]
    assert values(browser, "host-device", 2) == [row["self_ms"] for row in device["rows"]]
    assert values(browser, "host-device", 3) == [row["device_ms"] for row in device["rows"]]
    assert values(browser, "energy", 3) == [row["core"] for row in PASSES["energy"]["rows"]]
    folded = list(PASSES["python"]["folded"].values())
    assert values(browser, "owners", 1) == folded
    assert values(browser, "owners", 2) == pytest.approx([one / sum(folded) for one in folded])


def test_curves_have_a_point_for_each_figure(browser, report):
    browser.open(report)
    energy = browser.run(
        "[...document.querySelectorAll('#energy-part polyline')].map((e) => e.points.length)"
    )
    assert energy == [len(PASSES["energy"]["samples"])] * 2  # package and core


def test_pass_that_does_not_slow_the_run_shows_the_reason(session, tmp_path):
    shutil.copytree(session, tmp_path / "copy")
    facts = {**PASSES["critical_path"], "available": True, "undisturbed": "nothing is run again"}
    (tmp_path / "copy/passes/critical_path.json").write_text(json.dumps(facts))
    assert "nothing is run again" in page(read_session(tmp_path / "copy")).decode()


def test_utilisation_above_100_percent_is_flagged(browser, report):
    browser.open(report)
    above = [row["utilisation"] for row in BY_TIME if (row["utilisation"] or 0) > 1]
    shown = values(browser, "layers", column_of("utilisation"))
    assert [value for value in shown if value and value > 1] == above != []
    assert texts(browser, "#layers td:last-child").count("peak under-measured") == len(above)


def test_bars_add_up_to_the_times_of_threads_and_stages(browser, report, session):
    document = json.loads((session / "session.json").read_text())
    browser.open(report)
    bars = browser.run(
        "[...document.querySelectorAll('#ledger-part .bar')].map((bar) => "
        "[...bar.children].map((part) => [part.className, Number(part.dataset.value), "
        "part.getBoundingClientRect().width / bar.getBoundingClientRect().width]))"
    )
    frames = document["frames"]["written"]
    walls = [1e3 * one["wall_s"] / frames for one in document["threads"].values()]
    # If the kernel reports how long threads waited for a core, each has a second bar for this time.
    has_split = any(one["busy_split"] for one in document["threads"].values())
    walls = [wall for wall in walls for _ in range(1 + has_split)]
    assert [sum(value for _, value, _ in bar) for bar in bars] == pytest.approx(walls)
    for name, stage in document["stages"].items():
        shown = sum(value for bar in bars for kind, value, _ in bar if kind == name)
        assert shown == pytest.approx(1e3 * stage["busy_s"] / frames), name
    for bar, wall in zip(bars, walls, strict=True):
        assert [width for *_, width in bar] == pytest.approx(
            [value / wall for _, value, _ in bar], abs=0.002
        )


def test_click_on_a_heading_sorts_and_a_second_click_reverses(browser, report):
    browser.open(report)
    head = f"#layers th:nth-child({column_of('ms') + 1}) button"
    expected = sorted(row["ms"] for row in LAYERS)
    browser.click(head)
    assert values(browser, "layers", column_of("ms")) == expected
    browser.click(head)
    assert values(browser, "layers", column_of("ms")) == expected[::-1]
    browser.click("#layers th:nth-child(1) button")
    names = texts(browser, "#layers tbody td:first-child")
    assert names == browser.run(
        f"{json.dumps([row['name'] for row in LAYERS])}.sort((a, b) => a.localeCompare(b))"
    )
    assert browser.run("document.querySelectorAll('#layers th[aria-sort]').length") == 1


def test_missing_values_are_sorted_last(browser, report):
    browser.open(report)
    for _ in range(2):
        number = column_of("utilisation") + 1
        browser.click(f"#layers th:nth-child({number}) button")
        assert texts(browser, f"#layers tbody tr:last-child td:nth-child({number})") == ["–"]


def test_filter_hides_other_rows(browser, report):
    browser.open(report)
    browser.click("input.filter")
    browser.type("maxpool")
    assert values(browser, "layers", column_of("ms")) == [
        row["ms"] for row in BY_TIME if row["type"] == "MaxPool"
    ]
    browser.type("x")
    assert values(browser, "layers", column_of("ms")) == []


def test_colour_schemes_differ_and_paper_is_white(browser, report):
    look = (
        "['background-color', 'color']"
        ".map((name) => getComputedStyle(document.body).getPropertyValue(name))"
    )
    browser.open(report, scheme="light")
    light = browser.run(look)
    browser.scheme("dark")
    dark = browser.run(look)
    assert light[0] == "rgb(255, 255, 255)"
    ground, ink = (sum(map(int, re.findall(r"\d+", colour))) for colour in dark)
    assert ground < 100 < 600 < ink
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.call("Emulation.setEmulatedMedia", media="print", features=features)
    assert browser.run(look) == light
    assert browser.run("getComputedStyle(document.querySelector('.zooming')).display") == "none"
    assert browser.pdf().startswith(b"%PDF")
    browser.call("Emulation.setEmulatedMedia", media="")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_on_bars_has_enough_contrast(browser, report, scheme):
    browser.open(report, scheme=scheme)
    pairs = browser.run(
        "[...document.querySelectorAll('.bar span')].filter((part) => part.firstChild)"
        ".map((part) => [getComputedStyle(part).backgroundColor, "
        "getComputedStyle(part.firstChild).color])"
    )
    assert len(pairs) > 8
    for ground, ink in pairs:
        assert contrast(ground, ink) >= 4, (ground, ink)


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_timeline_zooms_and_resets(browser, report):
    browser.open(report)
    views = "[...document.querySelectorAll('svg.zoom svg')].map((e) => e.getAttribute('viewBox'))"
    (whole, device), ticks = browser.run(views), texts(browser, "svg.zoom .ticks text")
    browser.click("button[data-zoom='0.5']")
    zoomed, _ = browser.run(views)
    assert float(zoomed.split()[2]) == pytest.approx(float(whole.split()[2]) / 2)
    assert texts(browser, "svg.zoom .ticks text") != ticks
    browser.click("button[data-zoom='0']")
    assert browser.run(views) == [whole, device]
    browser.click("#device-part button[data-zoom='0.5']")
    run, zoomed_device = browser.run(views)
    assert run == whole, "zooming one timeline changed another"
    assert zoomed_device != device


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_has_a_report(browser, tmp_path, kind):
    folder = ran(tmp_path, **KINDS[kind])
    content = page(read_session(folder)).decode()
    assert re.findall('(?i)[">]-?(nan|inf)["< ]', content.split("<script>")[0]) == []
    file = tmp_path / "elsewhere/report.html"
    file.parent.mkdir()
    file.write_text(content)
    shutil.rmtree(folder)  # the page needs no file of the session
    browser.open(file, PHONE)
    assert_no_errors_or_requests(browser)
    assert browser.run("document.scrollingElement.scrollWidth") <= PHONE
    shown = texts(browser, "h2")
    assert any(text.startswith("Time per stage") for text in shown)
    of_passes = ("Layers", "What if", "Critical path", "Passes")
    assert not any(text.startswith(of_passes) for text in shown)


@pytest.mark.slow
def test_pictures_of_the_slowest_frames_are_embedded(browser, tmp_path):
    import cv2
    import numpy as np

    folder = with_passes(ran(tmp_path))
    # Pictures of noise make the largest files.
    noise = np.random.default_rng(0).integers(0, 255, (270, 480, 3), np.uint8)
    (folder / "frames").mkdir()
    frames = [one.frame for one in explain(read_session(folder), None, 7).frames]
    times = {"ms": 9.5, "stage": "infer", "stage_ms": 7.25}
    rows = [{"frame": frame, "file": f"frames/{frame:06}.jpg", **times} for frame in frames]
    for row in rows[:6]:  # the picture of the last frame is missing
        cv2.imwrite(str(folder / row["file"]), noise)
    (folder / "passes/frames.json").write_text(json.dumps({"available": True, "rows": rows}))
    content = page(read_session(folder))
    assert len(content) < 3e6
    shutil.move(folder, tmp_path / "away")
    file = tmp_path / "report.html"
    file.write_bytes(content)
    browser.open(file)
    assert_no_errors_or_requests(browser)
    assert browser.run("[...document.images].map((one) => one.naturalWidth)") == [480] * 6
    heads = texts(browser, "#why-part summary")
    assert all(any(f"frame {frame}:" in head for head in heads) for frame in frames[:6])


@pytest.mark.parametrize("file", ["../secret.jpg", "{secret}", "link.jpg", "text.jpg", "a\0b", "."])
def test_page_embeds_only_pictures_of_the_session(session, tmp_path, file):
    """Otherwise, an untrusted session could embed any file that the user may read."""
    folder = shutil.copytree(session, tmp_path / "run")
    secret = tmp_path / "secret.jpg"
    secret.write_bytes(b"\xff\xd8 a secret")
    (folder / "link.jpg").symlink_to(secret)
    (folder / "text.jpg").write_text("no picture")
    place = file.format(secret=secret)
    frame = explain(read_session(folder), None, 1).frames[0].frame
    row = {"frame": frame, "ms": 9.0, "stage": "infer", "stage_ms": 7.0, "file": place}
    (folder / "passes/frames.json").write_text(json.dumps({"available": True, "rows": [row]}))
    shown = page(read_session(folder)).decode()
    assert "<img" not in shown
    assert "Its picture is omitted" in shown


def test_stage_names_are_escaped(session, tmp_path):
    folder = shutil.copytree(session, tmp_path / "run")
    facts = json.loads((folder / "passes/critical_path.json").read_text())
    facts["stages"][0]["name"] = '"><script>alert(1)</script>\x1b\u202e\udc80'
    (folder / "passes/critical_path.json").write_text(json.dumps(facts))
    shown = page(read_session(folder)).decode("utf-8")
    assert "<script>alert" not in shown
    assert "\\x1b\\u202e\\udc80" in shown


def test_layer_names_are_escaped(report):
    found = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            found.append(tag)

    Reader().feed(report.read_text())
    assert "conv<3>" not in found
    assert "lambda" not in found
    assert "&lt;lambda&gt;" in report.read_text()


def test_unavailable_pass_shows_the_reason(browser, report):
    browser.open(report)
    assert f"not available: {PASSES['counters']['reason']}" in texts(browser, "#others td")


@pytest.mark.slow
def test_every_explanation_links_to_a_documented_heading(report):
    content = report.read_text()
    for one in list_hows():
        assert f"\n## {one.heading}\n" in (CHECKOUT / one.file).read_text(), one.heading
    linked = set(re.findall(r'href="#how-(\w+)"', content))
    absent = {AGES.name, "zones"}  # this session has neither cameras nor lines
    assert linked == {one.name for one in list_hows()} - absent
    assert linked == set(re.findall(r'<dt id="how-(\w+)"', content))
