"""--decoder opencv, the reader that the founding studies used, beside the others: the same frames
and the same rows of every clip that is whole.
"""

from __future__ import annotations

import json

import pytest

from detector.core import sources
from detector.core.analysis.agreement import agreement
from detector.core.config.levels import resolve_config
from detector.core.run.detect import Hooks, detect
from detector.core.run.plan import resolve
from tests.conftest import CHECKOUT
from tests.sources.nasty import AV1, DAMAGED, KINDS, clips

DECODERS = ("opencv", "av", "auto")
FRAMES = 30
FEW = 20


def run(place, clip, decoder, engine="null", hooks=None, **more):
    flags = {"engine": engine, "decoder": decoder, "frames": FRAMES, "no_video": True, **more}
    where = {"output": f"{place}/{decoder}.jsonl", "run_dir": f"{place}/run-{decoder}"}
    result = detect([str(clip)], resolve_config(None, {**flags, **where}), hooks=hooks or Hooks())
    assert result.errors == []
    text = (place / f"{decoder}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()], result.exit_code


def some_clips(kind, request):
    """Whole ones. cv2's wheel has no decoder for AV1."""
    some = [clip for clip in clips(kind, request) if not clip.name.startswith((*DAMAGED, AV1))]
    videos = CHECKOUT / "videos"
    if kind == "real":
        videos = request.getfixturevalue("shared") / "data/videos"
    return some + sorted(videos.glob("*.mp4"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_the_same_whichever_decoder_reads(request, tmp_path, kind):
    """Numbers, times and sizes; an engine without a network leaves no detections in them."""
    compared = 0
    for clip in some_clips(kind, request):
        place = tmp_path / clip.stem
        place.mkdir()
        found = {decoder: run(place, clip, decoder) for decoder in DECODERS}
        rows, code = found["opencv"]
        assert rows, clip.name
        for decoder in DECODERS[1:]:
            assert found[decoder] == (rows, code), (clip.name, decoder)
        compared += len(rows)
    assert compared > 500


@pytest.mark.slow
@pytest.mark.nightly  # tests/sources/test_nasty_clips.py compares pixels by day
def test_detections_are_the_same_within_rounding(request, shared):
    """Without such outputs PyAV hands the decoder's planes to the network, and cv2 its own BGR:
    pixels differ by a rounding, which moves a score near the threshold now and then. A detector of
    80 classes finds some 1,200 objects in all clips; the boxes of both lie where they lay."""
    flags = {"model": str(shared / "data/weights/yolov5n.pt"), "engine": "ort", "size": "320x192"}
    plan = resolve(resolve_config(None, flags))
    several = ("opencv", "auto")  # auto is av here: the rows above show it
    found = {name: [] for name in several}
    with plan.loaded:
        for clip in some_clips("real", request):
            for name in several:
                found[name] += detections(plan, clip, name)
    assert len(found["opencv"]) > 400
    assert sum(map(len, found["opencv"])) > 1000
    held = agreement(found["opencv"], found["auto"])
    assert held.share > 0.96
    assert held.mean_iou > 0.98


def detections(plan, clip, decoder):
    from detector.core.loop.parts import Progress
    from detector.core.timeline import OffTimeline

    with sources.open(str(clip), decoder=decoder, frames=FEW, pixels="yuv420p") as source:
        pairs = plan.loop.frames(plan.parts(source), OffTimeline(), Progress())
        return [each for _, each in pairs]
