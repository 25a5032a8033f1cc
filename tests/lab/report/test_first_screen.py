"""The first screen of a report in a browser shows the main results, uncut, with escaped names."""

import json
import re
import shutil
from html import unescape

import pytest

from detector.lab.report.page import page
from detector.lab.report.parts import network
from detector.lab.report.parts.network import MAX_LAYERS
from detector.lab.session.read import read_session
from tests.lab.report.sessions import LAYERS, PASSES, ran, with_passes

DESKTOP, HEIGHT, PHONE = 1400, 1000, 400
SHOWN = (
    "[...document.querySelectorAll('#{} tbody tr')]"
    ".filter((row) => row.getClientRects().length).length"
)

COLUMNS = [column.key for column in network.LAYERS]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = with_passes(ran(tmp_path_factory.mktemp("first")))
    document = json.loads((folder / "session.json").read_text())
    frames = document["frames"]["written"]
    with (folder / "detections.jsonl").open("w") as rows:
        for at in range(frames):
            classes = ["person"] * (1 + at % 3) + ["vehicle"] * 2
            found = [{"class": name} for name in classes]
            row = {"source": "street.mp4", "time_s": at / 25, "detections": found}
            rows.write(json.dumps(row) + "\n")
    document["detections"] = {
        "total": 4 * frames,
        "by_class": {"person": 2 * frames, "vehicle": 2 * frames},
        "cut_by_max_det": 0,
    }
    document["outputs"] = {"video": f"{document['session']}/street #1-detected.mp4"}
    document["config"]["output"]["save"] = None
    (folder / "session.json").write_text(json.dumps(document))
    slow = [
        {"frame": at, "ms": 9.0, "stage": "infer", "stage_ms": 7.0, "file": "frames/none.jpg"}
        for at in range(6)
    ]
    (folder / "passes/frames.json").write_text(json.dumps({"available": True, "rows": slow}))
    return folder


def changed_page(session_folder, copy, **keys):
    copy = shutil.copytree(session_folder, copy / "copy")
    document = json.loads((copy / "session.json").read_text()) | keys
    (copy / "session.json").write_text(json.dumps(document))
    return page(read_session(copy)).decode()


@pytest.mark.slow
def test_first_screen_contains_the_main_results(browser, report):
    browser.open(report, DESKTOP, HEIGHT)
    last_step = "#next tbody tr:last-child"
    for selector in (".cards", ".verdict", "#found", "#found-part svg", last_step):
        element = f"document.querySelector({json.dumps(selector)})"
        assert 0 < browser.run(f"{element}.getBoundingClientRect().bottom") <= HEIGHT, selector


def test_figures_on_the_first_screen_are_the_same_as_in_the_session(browser, report, session):
    document = json.loads((session / "session.json").read_text())
    browser.open(report, DESKTOP, HEIGHT)
    cards = browser.run("[...document.querySelectorAll('.card b')].map((e) => e.dataset.value)")
    rates, detections = document["fps"], document["detections"]
    expected = [rates["end_to_end"], rates["inference"], detections["total"]]
    assert [*map(float, cards)] == expected
    cells = "[...document.querySelectorAll('#found tbody tr')].map((r) => r.cells[{}].{})"
    names = browser.run(cells.format(0, "textContent"))
    counts = map(int, browser.run(cells.format(1, "dataset.value")))
    assert dict(zip(names, counts, strict=True)) == detections["by_class"]
    figures = browser.run(
        "[...document.querySelectorAll('#next td.said b')].map((e) => Number(e.dataset.value))"
    )
    assert figures
    assert set(figures) <= {row["fps"]["median"] for row in PASSES["what_if"]["changes"]}


@pytest.mark.slow
def test_video_link_is_relative_to_the_page(report, session, tmp_path):
    assert 'href="street%20%231-detected.mp4"' in report.read_text()
    beside = {"session": "runs/street", "outputs": {"video": "../out/street.mp4"}}
    assert 'href="../../../out/street.mp4"' in changed_page(session, tmp_path / "a", **beside)
    apart = {"session": "runs/street", "outputs": {"video": "/out/street.mp4"}}
    assert "<a href" not in changed_page(session, tmp_path / "b", **apart)


def test_first_screen_fits_with_a_long_command_and_many_classes(browser, session, tmp_path):
    path = "videos/" + "a-long-name" * 9 + ".mp4"
    source = json.loads((session / "session.json").read_text())["video"]
    classes = {f"traffic light {at}": 1 for at in range(80)}
    file = tmp_path / "page.html"
    file.write_text(
        changed_page(
            session,
            tmp_path,
            command=["detect-video", "profile", path],
            video=source | {"path": path},
            detections={"total": 80, "by_class": classes, "cut_by_max_det": 0},
        )
    )
    browser.open(file, DESKTOP, HEIGHT)
    shown = browser.run("document.querySelector('#next-part').textContent")
    assert shown.count(path) == 1
    last = "document.querySelector('#next tbody tr:last-child').getBoundingClientRect().bottom"
    assert browser.run(last) <= HEIGHT
    wide = "(e) => e.scrollWidth > e.clientWidth + 1"
    found = f"[...document.querySelectorAll('#first .scroll')].filter({wide}).length"
    assert browser.run(found) == 0


@pytest.mark.parametrize(
    "name", ["javascript:alert(1)", '"><script>alert(1)</script>', "\ud800.mp4", "a\0b", "%2e"]
)
def test_names_from_outside_are_escaped(session, tmp_path, name):
    frames = json.loads((session / "session.json").read_text())["frames"]["written"]
    shown = changed_page(
        session,
        tmp_path,
        session="runs/street",
        outputs={"video": name},
        command=["detect-video", name],
        detections={"total": frames, "by_class": {name: frames}, "cut_by_max_det": 0},
    )
    assert "<script>alert" not in shown
    assert not re.search(r'href="\s*javascript', unescape(shown))


def test_classes_of_rows_cannot_become_markup(session, tmp_path):
    folder = shutil.copytree(session, tmp_path / "copy")
    row = {"source": "a", "time_s": 0, "detections": [{"class": "<img src=x>"}]}
    (folder / "detections.jsonl").write_text(json.dumps(row))
    shown = page(read_session(folder)).decode()
    assert "<img src=x" not in shown
    assert "&lt;img src=x&gt;" in shown


@pytest.mark.parametrize("rows", [None, "damaged", ""])
def test_page_without_rows_explains_the_missing_curve(session, tmp_path, rows):
    folder = shutil.copytree(session, tmp_path / "copy")
    (folder / "detections.jsonl").unlink()
    if rows is not None:
        (folder / "detections.jsonl").write_text(rows)
    shown = page(read_session(folder)).decode()
    assert 'id="found"' in shown
    assert ("detections.jsonl" in shown.split('id="next-part"')[0]) == (rows != "")


def test_no_table_is_cut_off_on_a_desktop(browser, report):
    browser.open(report, DESKTOP, HEIGHT)
    cut = browser.run(
        "[...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth + 1"
        " && !e.querySelector('pre.tree')).map((e) => e.firstElementChild.id)"
    )
    assert cut == []


def test_first_screen_fits_the_width_of_a_phone(browser, report):
    browser.open(report, PHONE, 900)
    wide = browser.run(
        "[...document.querySelectorAll('#first .scroll, #next-part .scroll')]"
        ".filter((e) => e.scrollWidth > e.clientWidth + 1).length"
    )
    assert wide == 0


def test_layers_beyond_fifteen_are_folded_and_searchable(browser, report):
    browser.open(report, DESKTOP, HEIGHT)
    shown = SHOWN.format("layers")
    assert browser.run(shown) == MAX_LAYERS < len(LAYERS)
    times = browser.run(
        "[...document.querySelectorAll('#layers tbody tr')]"
        f".map((row) => Number(row.cells[{COLUMNS.index('ms')}].dataset.value))"
    )
    assert times == sorted((row["ms"] for row in LAYERS), reverse=True)
    browser.click("button.more[data-table=layers]")
    assert browser.run(shown) == len(LAYERS)
    browser.click("button.more[data-table=layers]")
    assert browser.run(shown) == MAX_LAYERS
    shortest = min(LAYERS, key=lambda row: row["ms"])["name"]
    browser.click("input.filter[data-table=layers]")
    browser.type(shortest)
    assert browser.run(shown) == 1
    browser.open(report, DESKTOP, HEIGHT)
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.run(shown) == len(LAYERS)  # on paper, all rows are printed
    browser.call("Emulation.setEmulatedMedia", media="")


def test_no_cell_has_more_than_two_decimals(report):
    cells = re.findall(r"<td[^>]*data-value[^>]*>([^<]*)</td>", report.read_text())
    assert len(cells) > 200
    assert [one for one in cells if re.search(r"\.\d{3}", one)] == []


def test_noisy_rate_has_no_decimals(session, tmp_path):
    folder = shutil.copytree(session, tmp_path / "copy")
    for rounds in ([20.0, 20.0001], [20.0, 40.0]):
        facts = {"available": True, **PASSES["loop"], "on_ms": rounds}
        (folder / "passes/loop.json").write_text(json.dumps(facts))
        shown = page(read_session(folder)).decode()
        rate = re.search(r'class="card"><b[^>]*>([^<]*)</b>end-to-end FPS', shown)
        assert rate is not None
        assert ("." in rate[1]) == (rounds[1] < 30)


def test_slow_frames_show_where_their_time_went(browser, report):
    browser.open(report, DESKTOP, HEIGHT)
    frames = browser.run(
        "[...document.querySelectorAll('#why-part details')].map((e) => "
        "[...e.querySelectorAll('.bar span')].map((part) => part.title.split(' (')[0]))"
    )
    assert len(frames) >= 6
    for parts in frames:
        text = " ".join(parts)
        assert "wait before" in text
        assert all(stage in text for stage in ("read", "preprocess", "infer", "head", "nms"))
