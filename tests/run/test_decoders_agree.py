"""--decoder opencv, the reader that the founding studies used, finds the same objects as the others
in every undamaged clip. tests/sources compare the frames.
"""

from __future__ import annotations

import pytest

from detector.core import sources
from detector.core.analysis.agreement import agreement
from detector.core.config.levels import resolve_config
from detector.core.run.plan import resolve
from tests.sources.nasty import AV1, DAMAGED, clips

FEW = 20


def some_clips(shared, request):
    """Whole ones. cv2's wheel has no decoder for AV1."""
    some = [clip for clip in clips("real", request) if not clip.name.startswith((*DAMAGED, AV1))]
    return some + sorted((shared / "data/videos").glob("*.mp4"))


@pytest.mark.slow
@pytest.mark.nightly  # tests/sources/test_nasty_clips.py compares pixels by day
def test_detections_are_the_same_within_rounding(request, shared):
    """Without such outputs PyAV hands the decoder's planes to the network, and cv2 its own BGR:
    pixels differ by a rounding, which moves a score near the threshold now and then. A detector of
    80 classes finds some 1,200 objects in all clips; the boxes of both lie where they lay."""
    flags = {"model": str(shared / "data/weights/yolov5n.pt"), "engine": "ort", "size": "320x192"}
    plan = resolve(resolve_config(None, flags))
    several = ("opencv", "auto")  # auto is av here
    found = {name: [] for name in several}
    with plan.loaded:
        for clip in some_clips(shared, request):
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
