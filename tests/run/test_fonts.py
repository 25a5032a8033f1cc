"""``--font``: invalid fonts are refused early, and a note lists names that cannot be drawn."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from detector import Detections
from detector.core.config.levels import resolve_config
from detector.core.errors import UsageError
from detector.core.errors.guard import guarded, refuse_kept
from detector.core.run import drawing
from detector.core.run.detect import detect
from detector.core.run.drawing import note_names, open_font
from tests.conftest import CHECKOUT
from tests.fonts import make_font, opencv_4

pytest.importorskip("PIL", reason="machine: Pillow is not installed")
CLIP = CHECKOUT / "videos" / "street.mp4"


@pytest.fixture
def font(tmp_path: Path) -> Path:
    path = tmp_path / "bars.ttf"
    path.write_bytes(make_font({"行": 900, "人": 400}))
    return path


def make_invalid_fonts(folder: Path) -> dict[str, Path]:
    names = ("text.ttf", "empty.otf", "cut.ttf", "pipe.ttf", "dir", "absent")
    paths = {name: folder / name for name in names}
    paths["text.ttf"].write_text("person\nvehicle\n")
    paths["empty.otf"].write_bytes(b"")
    paths["cut.ttf"].write_bytes(make_font({"行": 900})[:200])
    os.mkfifo(paths["pipe.ttf"])
    paths["dir"].mkdir()
    return {**paths, "device": Path("/dev/zero")}


@pytest.mark.parametrize(
    "kind", ["text.ttf", "empty.otf", "cut.ttf", "pipe.ttf", "dir", "absent", "device"]
)
def test_invalid_font_is_refused_before_a_model_is_loaded(tmp_path, monkeypatch, kind):
    path = make_invalid_fonts(tmp_path)[kind]
    monkeypatch.setattr("detector.core.run.plan.load_model", lambda *_, **__: pytest.fail("loaded"))
    config = resolve_config(None, {"font": str(path), "output": f"{tmp_path}/"})
    with pytest.raises(UsageError) as caught:
        detect([str(CLIP)], config)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_font_above_the_size_limit_is_refused(font, monkeypatch):
    monkeypatch.setattr(drawing, "FONT_BYTES", 100)
    with pytest.raises(UsageError, match="larger"):
        open_font(str(font))


def test_error_without_pillow_says_what_to_install(font, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "PIL"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "detector.core.stages.font", raising=False)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match=r"detect-video\[font\]"):
        open_font(str(font))


def test_font_is_cached_until_it_changes(font):
    first = open_font(str(font))
    assert open_font(str(font)) is first
    font.write_bytes(make_font({"行": 500}))
    assert open_font(str(font)) is not first
    assert open_font(None) is None


def test_output_cannot_overwrite_the_font(font):
    with guarded():
        open_font(str(font))
        with pytest.raises(UsageError, match="font"):
            refuse_kept(font)


def test_detections_are_drawn_with_the_font(font):
    detections = Detections(
        np.float32([[20, 60, 200, 200]]), np.float32([0.9]), np.array([0]), ("行人",)
    )
    image = np.full((220, 220, 3), 128, np.uint8)
    assert (detections.draw(image, font=font) != detections.draw(image)).any()
    with pytest.raises(UsageError, match="absent"):
        detections.draw(image, font=font.with_name("absent"))


def test_names_that_cannot_be_drawn_are_noted_once(font):
    names = ("人", "车", "person", *"面包汽火")
    opened = open_font(str(font))
    (note,) = note_names(names, [1, 0, 2, 3, 4, 5, 999], opened)
    assert "车 (#1), 面 (#3), 包 (#4) and 1 more" in note
    assert "--font" in note
    assert note_names(names, [0, 2], opened) == []


@pytest.mark.slow
def test_run_notes_names_that_cannot_be_drawn(tmp_path, font):
    (tmp_path / "names.txt").write_text("行人\n行\n", encoding="utf-8")
    settings = {"names": str(tmp_path / "names.txt"), "engine": "ort", "frames": 1}
    notes = {}
    for save, file in (("pictures", None), ("csv", None), ("pictures", str(font))):
        out = tmp_path / f"{save}-{file is None}"
        options = {**settings, "save": (save,), "font": file, "output": f"{out}/"}
        with opencv_4():
            result = detect([str(CLIP)], resolve_config(None, {**options, "run_dir": f"{out}/run"}))
        assert result.exit_code == 0
        notes[save, file is None] = [n for n in result.summary.notes if "labels" in n]
    assert len(notes["pictures", True]) == 1
    assert "行 (#1)" in notes["pictures", True][0]
    assert notes["csv", True] == notes["pictures", False] == []
