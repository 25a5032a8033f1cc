"""Labels drawn with a font file: letters of any script, in reading order."""

import unicodedata
from types import SimpleNamespace

import numpy as np
import pytest

from detector.core.stages import labels
from detector.core.stages.annotate import Style, annotate
from detector.core.stages.labels import drawable, reason_against, render
from detector.core.types import Detections
from tests.fonts import CAPITAL, make_font

font_module = pytest.importorskip(
    "detector.core.stages.font", reason="machine: Pillow is not installed"
)
EM, Font = font_module.EM, font_module.Font

joining = pytest.mark.skipif(
    not font_module.can_shape(), reason="machine: libfribidi is not installed"
)
ALEF, BET = "א", "ב"
PERSON = "شخص"  # three joined letters


def bar_widths(coverage: np.ndarray) -> list[int]:
    """Return the widths of the glyphs in tenths of the em. Each glyph is a bar."""
    row = np.concatenate([[False], coverage[len(coverage) // 2] > 127, [False]])
    edges = np.flatnonzero(row[1:] != row[:-1])
    return (np.diff(edges)[::2] / EM * 10).round().astype(int).tolist()


@joining
def test_right_to_left_text_is_drawn_in_reading_order():
    font = Font(make_font({ALEF: 200, BET: 600, "0": 300}))
    runs = font.write((ALEF + BET, "0"), 1.0)
    assert [bar_widths(run.coverage) for run in runs if run.coverage.size] == [[3], [6, 2]]
    assert not font_module.runs_leftward("0 person")


@joining
def test_arabic_letters_take_their_joined_forms():
    forms = {"\ufeb7": 100, "\ufea8": 300, "\ufeba": 500}  # first, middle and last form
    font = Font(make_font({**dict.fromkeys(PERSON, 900), **forms}))
    assert bar_widths(font.write((PERSON,), 1.0)[0].coverage) == [5, 3, 1]


def test_letter_as_wide_as_its_label_is_not_cut():
    ink = font_module.Text(np.full((5, 18), 255, np.uint8), 3, 0, 10)
    font = SimpleNamespace(write=lambda *_: [ink], height=lambda _: ink)
    coverage = labels._write_in_font(font, "x", "", 1.0, 4)
    assert coverage.any(axis=0).all()


@pytest.mark.parametrize(("left", "begins"), [(0, 4), (3, 7), (-2, 2), (-9, 0), (90, 10)])
def test_ink_outside_its_text_is_cut_only_at_the_label_edge(left, begins):
    ink = font_module.Text(np.full((5, 8), 255, np.uint8), left, 0, 10)
    font = SimpleNamespace(write=lambda *_: [ink], height=lambda _: ink)
    coverage = labels._write_in_font(font, "x", "", 1.0, 4)
    assert coverage.shape == (5 + 2 * 4, 10 + 2 * 4)
    assert np.flatnonzero(coverage.any(axis=0)).tolist() == [*range(begins, begins + 8)]


def test_left_to_right_text_is_a_single_run_followed_by_the_score():
    font = Font(make_font({"行": 900, "人": 400, "0": 300}))
    runs = font.write(("行人", "0"), 1.0)
    assert [bar_widths(run.coverage) for run in runs if run.coverage.size] == [[9, 4], [3]]
    assert len(runs[0].coverage) == pytest.approx(EM * CAPITAL / 1000, abs=1)


def test_latin_letters_that_the_font_lacks_are_still_drawn():
    font = Font(make_font({"行": 900}))
    runs = font.write(("行 bus", "0.91"), 1.0)
    assert [run.coverage.any() for run in runs if run.coverage.size] == [True, True, True]
    assert bar_widths(runs[0].coverage) == [9]
    assert font.can_write("行 bus")


def test_name_without_glyphs_is_drawn_as_its_class_number():
    font = Font(make_font({"行": 900}))
    assert drawable("行", 7, font) == "行"
    assert drawable("车", 7, font) == "#7"
    assert drawable("person", 7, font) == "person"


def test_joining_script_without_fribidi_is_drawn_as_class_number(monkeypatch):
    monkeypatch.setattr(font_module, "can_shape", lambda: False)
    font = Font(make_font({**dict.fromkeys(PERSON, 900), "行": 900}))
    assert reason_against(PERSON, font) == "order"
    assert drawable(PERSON, 3, font) == "#3"
    assert reason_against("行", font) == ""


@pytest.mark.parametrize(
    ("name", "with_opencv_5"),
    [
        ("person", "person"),
        ("Mädchen", "Mädchen"),
        (unicodedata.normalize("NFD", "Mädchen"), "Mädchen"),
        ("车", "车"),
        (PERSON, "#0"),  # OpenCV would draw it backwards
        (ALEF + BET, "#0"),
        ("คนเดินเท้า", "#0"),  # OpenCV would draw "???"
        ("व्यक्ति", "#0"),
        ("a\udcffb", "#0"),
    ],
)
def test_names_that_opencv_cannot_draw_become_class_numbers(name, with_opencv_5):
    expected = with_opencv_5 if labels.MANY_SCRIPTS or name.isascii() else "#0"
    assert drawable(name, 0) == expected


@pytest.mark.parametrize("em", [16, 40])
def test_font_with_oversized_glyphs_is_refused(em):
    """A font may claim an em of 16 units and glyphs of 32,767 units."""
    with pytest.raises(OSError, match="too large"):
        Font(make_font({"行": 32000}, em=em))


def test_oversized_glyph_counts_as_missing():
    font = Font(make_font({"行": 32000, "人": 300}))
    assert not font.can_write("行")
    assert font.can_write("人")


def test_label_uses_the_font_of_the_style():
    font = Font(make_font({"行": 900, "0": 300, ".": 100, "9": 300, "1": 100}))
    detections = Detections(
        np.float32([[100, 100, 300, 300]]), np.float32([0.91]), np.array([0]), ("行",)
    )
    image = np.full((400, 400, 3), 128, np.uint8)
    plain = image.copy()
    annotate(image, detections, Style(font=font))
    annotate(plain, detections)
    assert (image != plain).any()
    label = render("行", 0.4, (0, 0, 200), (255, 255, 255), "0.91", font)
    middle = label.picture[label.height // 2]
    assert (middle[0] == (0, 0, 200)).all()  # the border has the box's colour
    assert (middle == 255).all(axis=1).sum() > 5
    assert render("行", 0.4, (0, 0, 200), (255, 255, 255), "0.91", font) is label


def test_damaged_font_is_refused_or_still_draws():
    """Cut a font or change its bytes. It is refused, or it draws the text or the class number."""
    whole = make_font({"行": 900, "0": 300})
    rng = np.random.default_rng(0)
    opened = 0
    for number in range(150):
        data = bytearray(whole)
        if number % 2:
            data = data[: rng.integers(0, len(data))]
        for _ in range(3 * (number % 3)):
            if data:
                data[rng.integers(0, len(data))] = rng.integers(0, 256)
        try:
            font = Font(bytes(data))
        except (OSError, ValueError):
            continue
        opened += 1
        text = drawable("行", 5, font)
        assert text in ("行", "#5")
        if font.can_write(text):
            render(text, 1.0, (0, 0, 0), (255, 255, 255), "0.91", font)
    assert 0 < opened < 150
