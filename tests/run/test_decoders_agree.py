"""--decoder opencv, the reader that the founding studies used, beside the others: the same frames
and the same rows of every clip that is whole.
"""

from __future__ import annotations

import json

import pytest

from detector.core.analysis.agreement import agreement
from detector.core.config.levels import resolve_config
from detector.core.run.detect import Hooks, detect
from tests.sources.test_shared_clips import HUGE, ORDINARY, WHOLE

DECODERS = ("opencv", "av", "auto")
FRAMES = 70  # more than the short clips have
AV1 = "16"  # cv2's wheel has no decoder for it


def run(place, clip, decoder, engine="null", hooks=None, **more):
    flags = {"engine": engine, "decoder": decoder, "frames": FRAMES, "no_video": True, **more}
    where = {"output": f"{place}/{decoder}.jsonl", "run_dir": f"{place}/run-{decoder}"}
    result = detect([str(clip)], resolve_config(None, {**flags, **where}), hooks=hooks or Hooks())
    assert result.errors == []
    text = (place / f"{decoder}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()], result.exit_code


def clips(shared):
    folder = shared / "data/videos"
    nasty = [next((folder / "nasty").glob(f"{number}_*")) for number in sorted(WHOLE)]
    return [one for one in nasty if not one.name.startswith((HUGE, AV1))] + [
        folder / f"{name}.mp4" for name in ORDINARY
    ]


@pytest.mark.slow
def test_rows_are_the_same_whichever_decoder_reads(shared, tmp_path):
    """Numbers, times and sizes; an engine without a network leaves no detections in them."""
    compared = 0
    for clip in clips(shared):
        place = tmp_path / clip.stem
        place.mkdir()
        found = {decoder: run(place, clip, decoder) for decoder in DECODERS}
        rows, code = found["opencv"]
        assert rows, clip.name
        for decoder in DECODERS[1:]:
            assert found[decoder] == (rows, code), (clip.name, decoder)
        compared += len(rows)
    assert compared > 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["people", "traffic"])
def test_detections_are_the_same_within_rounding(shared, tmp_path, name):
    """PyAV hands the decoder's planes to the network, cv2 its own BGR: pixels differ by a rounding,
    which moves a score near the threshold now and then. The boxes of both lie where they lay."""
    clip, found = shared / f"data/videos/{name}.mp4", {}
    for decoder in DECODERS:
        kept = found[decoder] = []
        hooks = Hooks(detected=lambda _, each, kept=kept: kept.append(each))
        flags = {"size": "320x192", "frames": 12, "threads": 1}
        run(tmp_path, clip, decoder, "ort", hooks, **flags)
    assert len(found["opencv"]) == 12
    assert sum(len(each) for each in found["opencv"]) >= 10
    for decoder in DECODERS[1:]:
        held = agreement(found["opencv"], found[decoder])
        assert held.share > 0.9
        assert held.mean_iou > 0.98
