"""The main job on the shared clips: frames, pts, codec, and the two loops against each other."""

import json
import subprocess

import av
import pytest

from tests.cli.command import decoded, detect_video, rows_of, summary_of
from tests.conftest import night

CLIPS = ["people.mp4"]
AT_NIGHT = ["traffic.mp4", "bench_720p.mp4", "person-bicycle-car-detection.mp4"]


def model(shared, name="yolo-fastest-1.1"):
    return shared / "data/weights" / f"{name}.cfg"


@pytest.mark.slow
@pytest.mark.parametrize("clip", [*CLIPS, *map(night, AT_NIGHT)])
def test_whole_clip(shared, tmp_path, clip):
    """Frames, pts and codec depend on neither preset nor size: one clip has the usual ones."""
    source = shared / "data/videos" / clip
    quick = () if clip == "traffic.mp4" else ("--preset", "ultrafast", "--size", "64x64")
    process = detect_video(source, "--model", model(shared), "--json", *quick, cwd=tmp_path)
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
    probe = subprocess.run(
        [
            "ffprobe",
            "-v",
            "error",
            "-select_streams",
            "v",
            "-show_entries",
            "stream=codec_name,pix_fmt",
            "-of",
            "json",
            tmp_path / summary["outputs"]["video"],
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(probe.stdout)["streams"] == [{"codec_name": "h264", "pix_fmt": "yuv420p"}]
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ort", "torch"])
@pytest.mark.parametrize("settings", [[], ["--batch", "3"], ["--concurrency", "2"]])
def test_both_loops_give_byte_identical_rows(shared, tmp_path, engine, settings):
    source = shared / "data/videos/people.mp4"
    rows = []
    for loop in ([], ["--sync"]):
        out = tmp_path / f"{len(loop)}.jsonl"
        arguments = [
            source,
            "--model",
            model(shared),
            "--engine",
            engine,
            "--frames",
            20,
            "-o",
            out,
            *settings,
            *loop,
        ]
        process = detect_video(*arguments, cwd=tmp_path)
        assert process.returncode == 0, process.stderr
        rows.append(out.read_bytes())
    assert rows[0] == rows[1]
    assert rows[0].count(b"\n") == 20
    assert b'"person"' in rows[0]


@pytest.mark.slow
def test_json_has_the_promised_keys(shared, tmp_path):
    process = detect_video(
        shared / "data/videos/traffic.mp4",
        "--model",
        model(shared),
        "--frames",
        30,
        "--no-video",
        "--json",
        cwd=tmp_path,
    )
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
    assert summary["model_input"] == [320, 320]
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
def test_several_sources(shared, tmp_path):
    clips = [shared / "data/videos" / name for name in ("traffic.mp4", "people.mp4")]
    process = detect_video(
        clips[0],
        tmp_path / "absent.mp4",
        clips[1],
        clips[0],
        "--model",
        model(shared),
        "--frames",
        5,
        "-o",
        "out/",
        "--json",
        cwd=tmp_path,
    )
    assert process.returncode == 3
    summary = summary_of(process)
    assert "video" not in summary
    assert [source["exit"]["code"] for source in summary["sources"]] == [0, 3, 0, 0]
    assert [source["frames"]["written"] for source in summary["sources"]] == [5, 0, 5, 5]
    assert summary["frames"]["written"] == 15
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "people-detected.jsonl",
        "people-detected.mp4",
        "traffic-detected-2.jsonl",
        "traffic-detected-2.mp4",
        "traffic-detected.jsonl",
        "traffic-detected.mp4",
    ]
    session_rows = rows_of(tmp_path / summary["session"] / "detections.jsonl")
    assert [row["source"] for row in session_rows] == [str(clips[0])] * 5 + [str(clips[1])] * 5 + [
        str(clips[0])
    ] * 5


@pytest.mark.slow
def test_stride_and_frames(shared, tmp_path):
    process = detect_video(
        shared / "data/videos/traffic.mp4",
        "--model",
        model(shared),
        "--frames",
        7,
        "--stride",
        3,
        "--json",
        cwd=tmp_path,
    )
    summary = summary_of(process)
    rows = rows_of(tmp_path / summary["outputs"]["jsonl"])
    assert [row["frame"] for row in rows] == [0, 3, 6, 9, 12, 15, 18]
    assert [row["pts"] for row in rows] == [500 * i for i in range(0, 21, 3)]
    assert len(decoded(tmp_path / summary["outputs"]["video"])) == 7


@pytest.mark.slow
def test_pictures(shared, tmp_path):
    process = detect_video(
        shared / "data/photos",
        "--model",
        model(shared, "yolo-fastest-1.1-xl"),
        "--batch",
        3,
        "--json",
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    summary = summary_of(process)
    names = sorted(path.name for path in (shared / "data/photos").iterdir())
    assert (
        sorted(path.name for path in (tmp_path / summary["outputs"]["pictures"]).glob("[!.]*"))
        == names
    )
    assert len(rows_of(tmp_path / summary["outputs"]["jsonl"])) == len(names)


@pytest.mark.slow
def test_saves_and_classes(shared, tmp_path):
    process = detect_video(
        shared / "data/videos/people.mp4",
        "--model",
        model(shared),
        "--frames",
        10,
        "--save",
        "csv,jsonl,pictures",
        "--classes",
        "person,2",
        "--json",
        cwd=tmp_path,
    )
    summary = summary_of(process)
    assert set(summary["outputs"]) == {"csv", "jsonl", "pictures"}
    found = [
        item
        for row in rows_of(tmp_path / summary["outputs"]["jsonl"])
        for item in row["detections"]
    ]
    assert {item["class"] for item in found} <= {"person", "car"}
    assert len((tmp_path / summary["outputs"]["csv"]).read_text().splitlines()) == len(found) + 1
    assert len(list((tmp_path / summary["outputs"]["pictures"]).glob("[!.]*"))) == 10


@pytest.mark.slow
def test_config_file_and_resolved_config_in_the_session(shared, tmp_path):
    (tmp_path / "my.yaml").write_text("conf: 0.6\nruntime: {batch: 2}\noutput: {no_video: true}\n")
    process = detect_video(
        shared / "data/videos/people.mp4",
        "--model",
        model(shared),
        "--config",
        "my.yaml",
        "--frames",
        4,
        "--batch",
        4,
        "--json",
        "--run-dir",
        "here",
        cwd=tmp_path,
    )
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
def test_piped_output_is_tables_without_progress_noise(shared, tmp_path):
    process = detect_video(
        shared / "data/videos/people.mp4",
        "--model",
        model(shared),
        "--frames",
        20,
        "-v",
        cwd=tmp_path,
    )
    assert process.stderr == ""
    assert "\r" not in process.stdout
    assert "\x1b" not in process.stdout
    for text in (
        "inference FPS",
        "end-to-end FPS",
        "library threads",
        "wait for output",
        "other",
        "limits this run",
    ):
        assert text in process.stdout


@pytest.mark.slow
def test_random_weights_say_so(shared, tmp_path):
    process = detect_video(
        shared / "data/videos/people.mp4",
        "--model",
        "yolov4-tiny-person-vehicle",
        "--random-weights",
        0,
        "--frames",
        3,
        "--save",
        "video,jsonl,csv",
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    assert "random weights" in process.stdout
    rows = rows_of(tmp_path / "people-detected.jsonl")
    (remark,) = {row["remark"] for row in rows}
    assert remark.startswith("random weights")
    lines = (tmp_path / "people-detected.csv").read_text().splitlines()
    assert lines[0].endswith(",remark")
    assert all(line.endswith(remark) for line in lines[1:])
