"""The main job on whole clips: frames, pts, codec, and the two loops against each other."""

import json
import subprocess

import av
import cv2
import pytest

from tests.cli.command import decoded, detect_video, rows_of, summary_of
from tests.conftest import CHECKOUT, night
from tests.sources.clips import write_video

STREET = CHECKOUT / "videos/street.mp4"
QUICK = ("--engine", "ort", "--size", "160x96")
AT_NIGHT = ["traffic.mp4", "bench_720p.mp4", "person-bicycle-car-detection.mp4"]


@pytest.mark.slow
def test_whole_clip(tmp_path):
    assert check_whole(STREET, tmp_path) == 250


@pytest.mark.slow
@pytest.mark.parametrize("clip", ["people.mp4", *map(night, AT_NIGHT)])
def test_whole_clip_from_elsewhere(shared, tmp_path, clip):
    assert check_whole(shared / "data/videos" / clip, tmp_path) >= 400


def check_whole(source, tmp_path) -> int:
    """The number of its frames. They, pts and codec depend on neither preset nor size: one clip has
    the usual ones."""
    quick = () if source.name == "traffic.mp4" else ("--preset", "ultrafast", "--size", "64x64")
    process = detect_video(source, "--json", *quick, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    summary = summary_of(process)
    rows, written = (
        rows_of(tmp_path / summary["outputs"]["jsonl"]),
        decoded(tmp_path / summary["outputs"]["video"]),
    )
    with av.open(str(source)) as container:
        stream = container.streams.video[0]
        pts = [frame.pts for frame in container.decode(stream)]
        time_base = stream.time_base
    assert (
        summary["frames"]["read"]
        == summary["frames"]["written"]
        == len(rows)
        == len(written)
        == len(pts)
    )
    assert [row["pts"] for row in rows] == pts
    assert [row["frame"] for row in rows] == list(range(len(pts)))
    assert {row["time_base"] for row in rows} == {str(time_base)}
    assert [row["time_s"] for row in rows] == pytest.approx(
        [float(p * time_base) for p in pts], abs=1e-6
    )
    wanted = "-select_streams v -show_entries stream=codec_name,pix_fmt -of json".split()
    line = ["ffprobe", "-v", "error", *wanted, tmp_path / summary["outputs"]["video"]]
    probe = subprocess.run(line, capture_output=True, text=True, check=True)
    assert json.loads(probe.stdout)["streams"] == [{"codec_name": "h264", "pix_fmt": "yuv420p"}]
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []
    return len(pts)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ort", "torch"])
@pytest.mark.parametrize("settings", [[], ["--batch", "3"], ["--concurrency", "2"]])
def test_both_loops_give_byte_identical_rows(tmp_path, engine, settings):
    rows = []
    for loop in ([], ["--sync"]):
        out = tmp_path / f"{len(loop)}.jsonl"
        options = ("--engine", engine, "--size", "160x96", "--frames", 20, "-o", out)
        process = detect_video(STREET, *options, *settings, *loop, cwd=tmp_path)
        assert process.returncode == 0, process.stderr
        rows.append(out.read_bytes())
    assert rows[0] == rows[1]
    assert rows[0].count(b"\n") == 20
    assert b'"person"' in rows[0]


@pytest.mark.slow
def test_json_has_the_promised_keys(tmp_path):
    options = (*QUICK, "--frames", 30, "--no-video", "--json")
    process = detect_video(STREET, *options, cwd=tmp_path)
    summary = summary_of(process)
    assert process.stderr == ""
    promised = {
        "video": {"path", "width", "height", "fps", "frames_declared", "duration_s"},
        "frames": {"read", "written", "dropped", "bad"},
        "fps": {"end_to_end", "inference", "device"},
        "seconds": {"import", "load", "warmup", "run", "close"},
        "verdict": {"bottleneck", "sentence"},
        "detections": {"total", "by_class"},
        "exit": {"code", "reason"},
        "outputs": {"jsonl"},
    }
    for key, inner in promised.items():
        assert inner <= set(summary[key]), key
    assert {"schema", "model", "family", "engine", "precision", "batch", "model_input"} <= set(
        summary
    )
    assert set(summary["stages"]) == {
        "read",
        "preprocess",
        "infer",
        "head",
        "nms",
        "annotate",
        "write",
    }
    for stage in summary["stages"].values():
        assert {
            "thread",
            "calls",
            "busy_s",
            "cpu_s",
            "p50_ms",
            "p90_ms",
            "p99_ms",
            "max_ms",
        } <= set(stage)
    for thread in summary["threads"].values():
        parts = [thread[f"{key}_s"] for key in ("busy", "wait_input", "wait_output", "other")]
        assert sum(parts) == pytest.approx(thread["wall_s"])
    assert summary["fps"]["end_to_end"] * summary["seconds"]["run"] == pytest.approx(30, rel=1e-9)
    assert summary["model_input"] == [96, 160]
    # p50 needs 5 samples, p90 20, p99 200
    assert summary["stages"]["infer"]["p90_ms"] is not None
    assert summary["stages"]["infer"]["p99_ms"] is None
    session = tmp_path / summary["session"]
    assert json.loads((session / "summary.json").read_text()) == summary
    assert {path.name for path in session.iterdir()} == {
        "session.json",
        ".detect-video-session",
        "summary.json",
        "spans.npz",
        "detections.jsonl",
    }


@pytest.mark.slow
def test_several_sources(tmp_path):
    clips = [STREET, write_video(tmp_path / "short.mp4")]
    (tmp_path / "empty.mp4").touch()
    sources = (clips[0], tmp_path / "empty.mp4", clips[1], clips[0])
    options = ("--size", "160x96", "--frames", 5, "-o", "out/", "--json")
    process = detect_video(*sources, *options, cwd=tmp_path)
    assert process.returncode == 3
    summary = summary_of(process)
    assert "video" not in summary
    assert [source["exit"]["code"] for source in summary["sources"]] == [0, 3, 0, 0]
    assert [source["frames"]["written"] for source in summary["sources"]] == [5, 0, 5, 5]
    assert summary["frames"]["written"] == 15
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "short-detected.jsonl",
        "short-detected.mp4",
        "street-detected-2.jsonl",
        "street-detected-2.mp4",
        "street-detected.jsonl",
        "street-detected.mp4",
    ]
    session_rows = rows_of(tmp_path / summary["session"] / "detections.jsonl")
    assert [row["source"] for row in session_rows] == [str(clips[0])] * 5 + [str(clips[1])] * 5 + [
        str(clips[0])
    ] * 5


@pytest.mark.slow
def test_stride_and_frames(tmp_path):
    options = (*QUICK, "--frames", 7, "--stride", 3, "--json")
    process = detect_video(STREET, *options, cwd=tmp_path)
    summary = summary_of(process)
    rows = rows_of(tmp_path / summary["outputs"]["jsonl"])
    assert [row["frame"] for row in rows] == [0, 3, 6, 9, 12, 15, 18]
    assert [row["pts"] for row in rows] == [512 * i for i in range(0, 21, 3)]
    assert len(decoded(tmp_path / summary["outputs"]["video"])) == 7


@pytest.mark.slow
def test_pictures(tmp_path):
    (tmp_path / "shots").mkdir()
    capture, names = cv2.VideoCapture(str(STREET)), [f"{at}.jpg" for at in range(8)]
    for name in names:
        cv2.imwrite(f"{tmp_path}/shots/{name}", capture.read()[1])
    process = detect_video("shots", *QUICK, "--batch", 3, "--json", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    summary = summary_of(process)
    written = (tmp_path / summary["outputs"]["pictures"]).glob("[!.]*")
    assert sorted(path.name for path in written) == names
    assert len(rows_of(tmp_path / summary["outputs"]["jsonl"])) == len(names)


@pytest.mark.slow
def test_saves_and_classes(tmp_path):
    options = ("--frames", 10, "--save", "csv,jsonl,pictures", "--classes", "person,1", "--json")
    process = detect_video(STREET, *QUICK, *options, cwd=tmp_path)
    summary = summary_of(process)
    assert set(summary["outputs"]) == {"csv", "jsonl", "pictures"}
    found = [
        item
        for row in rows_of(tmp_path / summary["outputs"]["jsonl"])
        for item in row["detections"]
    ]
    assert {item["class"] for item in found} <= {"person", "vehicle"}
    assert len((tmp_path / summary["outputs"]["csv"]).read_text().splitlines()) == len(found) + 1
    assert len(list((tmp_path / summary["outputs"]["pictures"]).glob("[!.]*"))) == 10


@pytest.mark.slow
def test_config_file_and_resolved_config_in_the_session(tmp_path):
    (tmp_path / "my.yaml").write_text("conf: 0.6\nruntime: {batch: 2}\noutput: {no_video: true}\n")
    options = ("--config", "my.yaml", "--frames", 4, "--batch", 4, "--json", "--run-dir", "here")
    process = detect_video(STREET, *QUICK, *options, cwd=tmp_path)
    summary = summary_of(process)
    config = json.loads((tmp_path / "here/session.json").read_text())["config"]
    assert (
        config["selection"]["conf"],
        config["runtime"]["batch"],
        config["output"]["no_video"],
    ) == (0.6, 4, True)
    assert summary["stages"]["infer"]["calls"] == 1
    assert all(
        i["score"] >= 0.6
        for row in rows_of(tmp_path / "here/detections.jsonl")
        for i in row["detections"]
    )


@pytest.mark.slow
def test_piped_output_is_tables_without_progress_noise(tmp_path):
    process = detect_video(STREET, *QUICK, "--frames", 20, "-v", cwd=tmp_path)
    assert process.stderr == ""
    assert "\r" not in process.stdout
    assert "\x1b" not in process.stdout
    for text in (
        "inference FPS",
        "end-to-end FPS",
        "libraries",
        "output wait",
        "other",
        "limits this run",
    ):
        assert text in process.stdout


@pytest.mark.slow
def test_random_weights_say_so(tmp_path):
    model = ("--model", "yolov4-tiny-person-vehicle", "--random-weights", 0)
    options = ("--frames", 3, "--save", "video,jsonl,csv")
    process = detect_video(STREET, *model, *options, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "random weights" in process.stdout
    rows = rows_of(tmp_path / "street-detected.jsonl")
    (remark,) = {row["remark"] for row in rows}
    assert remark.startswith("random weights")
    lines = (tmp_path / "street-detected.csv").read_text().splitlines()
    assert lines[0].endswith(",remark")
    assert all(line.endswith(remark) for line in lines[1:])
