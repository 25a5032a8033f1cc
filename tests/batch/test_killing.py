"""A job whose workers and main process are killed has the same results as single runs."""

import json
import random

import pytest

from detector.batch.dataset import partition
from detector.batch.layout import FILES
from tests.batch.killing import (
    list_differences,
    list_faults,
    make_clips,
    read_dataset,
    run_with_kills,
)
from tests.conftest import CHECKOUT
from tests.sources.clips import write_sound, write_video


@pytest.mark.slow
def test_results_after_kills_equal_those_of_a_single_run(tmp_path):
    videos = tmp_path / "videos"
    (videos / "nasty").mkdir(parents=True)
    (videos / "street.mp4").symlink_to(CHECKOUT / "videos/street.mp4")
    (videos / "nasty/01_empty.mp4").touch()
    write_video(videos / "nasty/07_vfr.mp4", [0, 40, 200, 210, 900, 1000, 1700])
    write_sound(videos / "nasty/12_audio_only.mp4")
    clips = make_clips(videos, tmp_path / "in", 6, names=["street.mp4"])
    killed = run_with_kills(
        tmp_path / "in",
        tmp_path / "out",
        *"--workers 2 --engine ort --precision fp32".split(),
        worker_kills=1,
        job_kills=2,
        items=len(clips),
    )
    assert killed.jobs >= 1
    assert killed.exit_code == 7  # for an empty file, and for a file without video
    assert list_faults(tmp_path / "in", tmp_path / "out", clips) == []
    for name, rows in read_dataset(tmp_path / "out").items():
        (folder,) = [
            path.parent
            for path in (tmp_path / "out" / FILES).rglob("done.json")
            if partition("", path.parent.relative_to(tmp_path / "out" / FILES).as_posix()).name
            == name
        ]
        lines = (folder / "detections.jsonl").read_text().splitlines()
        expected = [
            (frame["frame"], detection["class"], detection["score"], detection["box"])
            for frame in map(json.loads, lines)
            for detection in frame["detections"]
        ]
        assert expected == [
            (row["frame"], row["class"], row["score"], list(row["box"].values())) for row in rows
        ]
    failed = (tmp_path / "out/failures.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["name"][:8] for line in failed) == ["nasty/01", "nasty/12"]
    names = [
        path.parent.relative_to(tmp_path / "out" / FILES).as_posix()
        for path in (tmp_path / "out" / FILES).rglob("done.json")
    ]
    (tmp_path / "single").mkdir()
    chosen = random.Random(0).sample(sorted(names), 2)
    assert list_differences(tmp_path / "out", tmp_path / "single", chosen) == []
