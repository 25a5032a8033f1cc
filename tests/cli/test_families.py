"""``detect`` with models of YOLOv5 and YOLOv7: files, messages and exit codes."""

import itertools

import pytest

from tests.checkpoints import call, random_checkpoint, zipped
from tests.cli.command import assert_one_line_error, detect_video, rows_of, run_ok, summary_of
from tests.conftest import CHECKOUT

STREET = CHECKOUT / "videos/street.mp4"
MODELS = [
    ["yolov5n.pt"],
    ["yolov7-tiny.pt"],
    ["yolov5n6.yaml", "--random-weights", "0"],
    ["yolov5s-5.0.yaml", "--random-weights", "0"],
    ["yolov7-tiny.yaml", "--random-weights", "0"],
]


def run(source, folder, model, *options):
    process = run_ok(source, "--model", *model, *options, "--json", cwd=folder)
    summary = summary_of(process)
    return summary, rows_of(folder / summary["outputs"]["jsonl"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "engine"), [*zip(MODELS, itertools.cycle(["ort", "torch"]), strict=False)]
)
def test_run_reports_family_and_input_size(tmp_path, model, engine):
    if model[0].endswith(".pt"):
        random_checkpoint(tmp_path / model[0])
    options = "--engine", engine, "--size", "320x192", "--frames", "6"
    summary, rows = run(STREET, tmp_path, model, *options)
    assert summary["frames"]["written"] == len(rows) == 6
    assert summary["model_input"] == [192, 320]
    assert summary["family"] == model[0][:6]
    assert (summary["random_weights"] is None) == (len(model) == 1)


@pytest.mark.slow
def test_published_checkpoint_detects_people(shared, tmp_path):
    model, clip = shared / "data/weights/yolov5n.pt", shared / "data/videos/people.mp4"
    _, rows = run(clip, tmp_path, [model], "--engine", "ort", "--size", "320x192", "--frames", "6")
    assert all(any(found["class"] == "person" for found in row["detections"]) for row in rows)


RANDOM = ["--model", "yolov5n.yaml", "--random-weights", "0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--model", "evil.pt"], 4, "refused before running any of it: its pickle names os.system"),
        (["--model", "cut.pt"], 4, "cut.pt: truncated or damaged"),
        (["--model", "yolov5n.yaml"], 4, "give --weights FILE or --random-weights SEED"),
        ([*RANDOM, "--size", "330"], 4, "both sides must be multiples of 32, the network's stride"),
        ([*RANDOM, "--names", "two"], 4, "two: holds 2 names"),
        ([*RANDOM, "--weights", "cut.pt"], 2, "cannot be combined"),
    ],
)
def test_bad_input_gives_a_one_line_error(tmp_path, options, code, message):
    zipped(tmp_path / "evil.pt", call("os", "system", "touch ran"))
    whole = random_checkpoint(tmp_path / "yolov5n.pt")
    (tmp_path / "cut.pt").write_bytes(whole.read_bytes()[:100_000])
    whole.unlink()
    (tmp_path / "two").write_text("a\nb\n")
    assert_one_line_error(detect_video(STREET, *options, cwd=tmp_path), code, message)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.pt", "evil.pt", "two"]
