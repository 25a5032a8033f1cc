"""YOLOv5 and YOLOv7 through the whole program: files, messages, exit codes."""

from __future__ import annotations

import pytest

from tests.checkpoints import call, zipped
from tests.cli.command import detect_video, rows_of, summary_of
from tests.cli.test_clips import AT_NIGHT, CLIPS
from tests.conftest import night

MODELS = [
    ["yolov5n.pt"],
    ["yolov7-tiny-random.pt"],
    ["yolov5n6.yaml", "--random-weights", "0"],
    ["yolov5s-5.0.yaml", "--random-weights", "0"],
    ["yolov7-tiny.yaml", "--random-weights", "0"],
]


def arguments(shared, model):
    name, *more = model
    return ["--model", shared / "data/weights" / name if name.endswith(".pt") else name, *more]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ort", "torch"])
@pytest.mark.parametrize("model", MODELS)
def test_a_clip(shared, tmp_path, model, engine):
    options = [
        *arguments(shared, model),
        "--engine",
        engine,
        "--size",
        "320x192",
        "--frames",
        "6",
        "--json",
    ]
    process = detect_video(shared / "data/videos/people.mp4", *options, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    summary = summary_of(process)
    assert summary["frames"]["written"] == 6
    assert summary["model_input"] == [192, 320]
    rows = rows_of(tmp_path / summary["outputs"]["jsonl"])
    if model == ["yolov5n.pt"]:
        assert all(any(found["class"] == "person" for found in row["detections"]) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("clip", [*CLIPS, *map(night, AT_NIGHT)])
def test_whole_clips(shared, tmp_path, clip):
    """The size is small, since it is the frames that count here: a row each. What becomes of them
    in an annotated copy is in test_clips.py.
    """
    model = shared / "data/weights/yolov5n.pt"
    process = detect_video(
        shared / "data/videos" / clip,
        "--model",
        model,
        "--size",
        "96x64",
        "--no-video",
        "--batch",
        "4",
        "--json",
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    summary = summary_of(process)
    rows = rows_of(tmp_path / summary["outputs"]["jsonl"])
    assert [row["frame"] for row in rows] == list(range(len(rows)))
    assert summary["frames"]["read"] == summary["frames"]["written"] == len(rows) >= 400
    assert summary["family"] == "yolov5"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (
            ["--model", "evil.pt"],
            4,
            "evil.pt: refused, nothing of it was run: its pickle names os.system",
        ),
        (["--model", "cut.pt"], 4, "cut.pt: truncated or damaged"),
        (["--model", "yolov5n.yaml"], 4, "give --weights FILE or --random-weights SEED"),
        (
            ["--model", "yolov5n.yaml", "--random-weights", "0", "--size", "330"],
            4,
            "both sides must be multiples of 32, the network's stride",
        ),
        (
            ["--model", "yolov5n.yaml", "--random-weights", "0", "--names", "two"],
            4,
            "two: holds 2 names",
        ),
        (
            ["--model", "yolov5n.yaml", "--random-weights", "0", "--weights", "cut.pt"],
            2,
            "exclude each other",
        ),
    ],
)
def test_bad_input_is_one_line(shared, tmp_path, options, code, message):
    zipped(tmp_path / "evil.pt", call("os", "system", "touch ran"))
    (tmp_path / "cut.pt").write_bytes((shared / "data/weights/yolov5n.pt").read_bytes()[:100_000])
    (tmp_path / "two").write_text("a\nb\n")
    process = detect_video(shared / "data/videos/people.mp4", *options, cwd=tmp_path)
    assert process.returncode == code
    assert message in process.stderr
    assert len(process.stderr.strip().splitlines()) == 1
    assert "Traceback" not in process.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.pt", "evil.pt", "two"]
