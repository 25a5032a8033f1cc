"""The report's section for ``--save tracks``: links of its pictures, and damaged rows."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from detector.lab.report.parts.tracks import contact_sheet
from detector.lab.session.read import SavedSession, read_session
from tests.lab.report.sessions import ran

PICTURE = cv2.imencode(".jpg", np.zeros((4, 4, 3), np.uint8))[1].tobytes()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> SavedSession:
    return read_session(ran(tmp_path_factory.mktemp("run"), frames=1))


def sheet(plain: SavedSession, folder: Path, *texts: str, **outputs: str) -> str:
    (folder / "tracks").mkdir()
    (folder / "tracks/0.jsonl").write_text("".join(f"{text}\n" for text in texts))
    document = replace(plain.document, outputs=outputs)
    return contact_sheet(replace(plain, folder=folder, document=document))


def row(track: int, **more: object) -> str:
    fields = {
        "track": track, "name": "a & b", "first_s": 1.0, "last_s": 2.0, "frames": 9,
        "best_frame": 3, "best_s": 1.5, "score": 0.9, "file": f"{track:06d}-a.jpg", "at_s": 0.5,
        "jpeg": base64.b64encode(PICTURE).decode(),
    }  # fmt: skip
    return json.dumps({**fields, **more})


def test_link_of_a_picture_opens_its_moment_in_the_video_or_else_its_file(plain, tmp_path):
    outputs = {"tracks": str(tmp_path / "out #1"), "video": str(tmp_path / "a b.mp4")}
    for number, own in enumerate((outputs, {"tracks": outputs["tracks"]})):
        folder = tmp_path / str(number)
        folder.mkdir()
        drawn = sheet(plain, folder, row(1), row(2, at_s=12.346), **own)
        links = re.findall('href="([^"]+)"', drawn)
        assert drawn.count("<img") == 2
        assert "a &amp; b" in drawn
        where = "a%20b.mp4#t=" if number == 0 else "out%20%231/00000"
        assert all(where in link for link in links), links
    assert len(links) == 2


@pytest.mark.parametrize(
    ("text", "pictures"),
    [
        (row(1, jpeg="!"), 1),
        (row(1, jpeg=base64.b64encode(b"<svg/>").decode()), 1),
        (row(1, name="<script>"), 2),
        ("{", 0),  # if one row is invalid, no picture of the source is shown
        (row(0), 0),
        (row(1, first_s="x"), 0),
    ],
)
def test_damaged_pictures_are_omitted_and_names_are_escaped(text, pictures, plain, tmp_path):
    drawn = sheet(plain, tmp_path, row(2), text, tracks="t")
    assert drawn.count("<img") == pictures
    assert drawn
    assert "<script>" not in drawn
    assert "<svg" not in drawn
