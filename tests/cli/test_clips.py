"""``detect`` on clips: all frames are read, pts and codec are right, ``--sync`` changes no row."""

import json
import subprocess

import av
import pytest

from tests.cli.command import detect_video, rows_of, run_ok, summary_of
from tests.conftest import CHECKOUT, night
from tests.sources.clips import pts_of

STREET = CHECKOUT / "videos/street.mp4"
QUICK = ("--engine", "ort", "--size", "160x96")
NIGHTLY_CLIPS = ["traffic.mp4", "bench_720p.mp4", "person-bicycle-car-detection.mp4"]


@pytest.mark.slow
def test_every_frame_of_the_packaged_clip_is_read(tmp_path):
    assert check_all_frames(STREET, tmp_path) == 250


@pytest.mark.slow
@pytest.mark.parametrize("clip", ["people.mp4", *map(night, NIGHTLY_CLIPS)])
def test_every_frame_of_the_shared_clips_is_read(shared, tmp_path, clip):
    assert check_all_frames(shared / "data/videos" / clip, tmp_path) >= 400


def check_all_frames(source, tmp_path) -> int:
    """Check frames, pts and codec of a run, and return the number of frames. Preset and size do not
    affect these, so all clips but one use a fast preset and a small size."""
    quick = () if source.name == "traffic.mp4" else ("--preset", "ultrafast", "--size", "64x64")
    summary = summary_of(run_ok(source, "--json", *quick, cwd=tmp_path))
    rows = rows_of(tmp_path / summary["outputs"]["jsonl"])
    video = tmp_path / summary["outputs"]["video"]
    with av.open(str(source)) as container:
        stream = container.streams.video[0]
        pts = [frame.pts for frame in container.decode(stream)]
        time_base = stream.time_base
    frames = summary["frames"]
    assert frames["read"] == frames["written"] == len(rows) == len(pts_of(video)) == len(pts)
    assert [row["pts"] for row in rows] == pts
    assert [row["frame"] for row in rows] == list(range(len(pts)))
    assert {row["time_base"] for row in rows} == {str(time_base)}
    times = [float(p * time_base) for p in pts]
    assert [row["time_s"] for row in rows] == pytest.approx(times, abs=1e-6)
    entries = "-select_streams v -show_entries stream=codec_name,pix_fmt -of json".split()
    line = ["ffprobe", "-v", "error", *entries, video]
    probe = subprocess.run(line, capture_output=True, text=True, check=True)
    assert json.loads(probe.stdout)["streams"] == [{"codec_name": "h264", "pix_fmt": "yuv420p"}]
    assert not [*tmp_path.glob("*partial*")]
    return len(pts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        ("ort", ()),
        ("ort", ("--batch", "3")),
        ("ort", ("--concurrency", "2")),
        ("torch", ("--batch", "3", "--concurrency", "2")),
    ],
)
def test_both_loops_give_byte_identical_rows(tmp_path, engine, settings):
    rows = []
    for loop in ([], ["--sync"]):
        out = tmp_path / f"{len(loop)}.jsonl"
        options = ("--engine", engine, "--size", "160x96", "--frames", 20, "-o", out)
        run_ok(STREET, *options, *settings, *loop, cwd=tmp_path)
        rows.append(out.read_bytes())
    assert rows[0] == rows[1]
    assert rows[0].count(b"\n") == 20
    assert b'"person"' in rows[0]


@pytest.mark.slow
def test_piped_output_has_tables_but_no_progress_line(tmp_path):
    process = detect_video(STREET, *QUICK, "--frames", 20, "-v", cwd=tmp_path)
    assert process.stderr == ""
    assert not {"\r", "\x1b"} & {*process.stdout}
    for text in ("inference FPS", "end-to-end FPS", "libraries", "output wait", "limits this run"):
        assert text in process.stdout


@pytest.mark.slow
def test_random_weights_are_reported(tmp_path):
    model = ("--model", "yolov4-tiny-person-vehicle", "--random-weights", 0)
    options = ("--frames", 3, "--save", "video,jsonl,csv")
    process = run_ok(STREET, *model, *options, cwd=tmp_path)
    assert "random weights" in process.stdout
    rows = rows_of(tmp_path / "street-detected.jsonl")
    (remark,) = {row["remark"] for row in rows}
    assert remark.startswith("random weights")
    lines = (tmp_path / "street-detected.csv").read_text().splitlines()
    assert lines[0].endswith(",remark")
    assert all(line.endswith(remark) for line in lines[1:])
