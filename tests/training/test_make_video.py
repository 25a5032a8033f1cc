"""training/make_video: the same seed gives the same street, and the boxes fit the frames."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SIZE = (320, 180)


def make(target: Path, *options: str) -> dict:
    command = [
        sys.executable,
        str(ROOT / "training/make_video"),
        "-o",
        str(target),
        "--size",
        "320x180",
        "--seconds",
        "0.2",
    ]
    subprocess.run([*command, *options], check=True, capture_output=True, timeout=120)
    return json.loads(target.with_suffix(".json").read_text())


def frames(video: Path) -> list[np.ndarray]:
    with av.open(str(video)) as container:
        return [frame.to_ndarray(format="bgr24") for frame in container.decode(video=0)]


def digest(video: Path) -> str:
    return hashlib.sha256(np.stack(frames(video)).tobytes()).hexdigest()


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("street") / "street.mp4"
    make(target, "--seed", "4")
    return target


@pytest.mark.slow
def test_the_same_seed_gives_the_same_street(clip: Path, tmp_path: Path) -> None:
    make(tmp_path / "street.mp4", "--seed", "4")
    assert (tmp_path / "street.json").read_bytes() == clip.with_suffix(".json").read_bytes()
    assert digest(tmp_path / "street.mp4") == digest(clip)


@pytest.mark.slow
def test_another_seed_gives_another_street(clip: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "street.mp4", "--seed", "5")
    assert other["annotations"] != json.loads(clip.with_suffix(".json").read_text())["annotations"]
    here, there = frames(clip)[0].astype(int), frames(tmp_path / "street.mp4")[0].astype(int)
    assert np.abs(here - there).mean() > 10


@pytest.mark.slow
def test_truth_fits_the_video(clip: Path) -> None:
    truth = json.loads(clip.with_suffix(".json").read_text())
    pictures = frames(clip)
    assert (
        [i["frame_index"] for i in truth["images"]] == list(range(len(pictures))) == list(range(5))
    )
    assert {(i["width"], i["height"]) for i in truth["images"]} == {SIZE}
    assert pictures[0].shape == (SIZE[1], SIZE[0], 3)
    assert {c["name"]: c["id"] for c in truth["categories"]} == {"person": 1, "vehicle": 2}
    assert [a["id"] for a in truth["annotations"]] == list(range(1, len(truth["annotations"]) + 1))
    for row in truth["annotations"]:
        x, y, w, h = row["bbox"]
        assert x >= 0 <= y
        assert x + w <= SIZE[0]
        assert y + h <= SIZE[1]
        assert 0 < row["area"] <= w * h
        assert 0 < row["visibility"] <= 1
        assert row["iscrowd"] == row["ignore"] == int(row["visibility"] < 0.25 or w < 4 or h < 10)


@pytest.mark.slow
def test_tracks_keep_their_number_and_move_little(clip: Path) -> None:
    truth = json.loads(clip.with_suffix(".json").read_text())
    tracks: dict[int, list[dict]] = {}
    for row in truth["annotations"]:
        tracks.setdefault(row["track_id"], []).append(row)
    whole = [t for t in tracks.values() if len(t) == 5 and all(r["visibility"] > 0.9 for r in t)]
    assert len(whole) >= 3
    for track in whole:
        assert len({r["category_id"] for r in track}) == 1
        feet = [r["bbox"][1] + r["bbox"][3] for r in track]
        assert max(feet) - min(feet) < 20


def test_the_committed_clip_and_its_truth() -> None:
    truth = json.loads((ROOT / "videos/street.json").read_text())
    video = ROOT / "videos/street.mp4"
    assert video.stat().st_size < 2_000_000
    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.width, stream.height) == ("h264", 960, 540)
        assert stream.frames == len(truth["images"]) == 250
    assert {a["category_id"] for a in truth["annotations"]} == {1, 2}
