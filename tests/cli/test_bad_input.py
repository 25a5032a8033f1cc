"""Bad input gives the documented exit code, and one line that says what is wrong and how to fix it.

No incomplete file remains under its final name.
"""

import os
import shutil
import signal
import subprocess

import pytest

from tests.cli.command import (
    PATIENCE_S,
    assert_one_line_error,
    detect_video,
    detect_video_anew,
    rows_of,
    run_ok,
    start,
    summary_of,
)
from tests.cli.small import write_network
from tests.conftest import CHECKOUT, night
from tests.sources.clips import count_by_ffmpeg, pts_of, write_video
from tests.sources.nasty import DAMAGED, HUGE, REFUSED, WHOLE, make
from tests.sources.oddities import ffmpeg
from tests.waiting import wait_for

STREET = CHECKOUT / "videos" / "street.mp4"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("inputs")


@pytest.fixture(scope="module")
def model(folder):
    (folder / "x.names").write_text("person\nvehicle\n")
    return write_network(folder)


@pytest.fixture(scope="module")
def clip(folder):
    return write_video(folder / "clip.mp4", 60)


@pytest.fixture(scope="module")
def long_clip(folder):
    ffmpeg("-stream_loop", "3", "-i", STREET, "-c", "copy", folder / "long.mp4")
    return folder / "long.mp4"


def final_files(folder):
    return sorted(p.name for p in folder.iterdir() if "partial" not in p.name and p.name != "runs")


def check_clip(source, model, folder):
    """Run the command on a clip. Check its outputs, and that its peak memory is below 3 GB."""
    number = source.name[:2]
    code = 3 if number in REFUSED else 7 if number in DAMAGED else 0
    frames = WHOLE[number] if number in WHOLE else 0 if code == 3 else count_by_ffmpeg(source)
    line = [source, "--model", model, "--json"]
    fork = start(*line, cwd=folder)
    process = subprocess.CompletedProcess(line, 0, *fork.communicate(PATIENCE_S))
    process.returncode = fork.returncode
    assert 0 < fork.peak_kb < 3_000_000
    summary = summary_of(process)
    assert process.returncode == summary["exit"]["code"] == code, process.stderr
    if code == 3:
        assert_one_line_error(process, 3, source.name)
        assert list(folder.iterdir()) == [], "a source without a frame leaves nothing behind"
        return
    assert process.stderr == "", "a library wrote to standard error"
    assert summary["frames"]["written"] == summary["frames"]["read"] == frames
    assert len(rows_of(folder / summary["outputs"]["jsonl"])) == frames
    pts = pts_of(folder / summary["outputs"]["video"])
    assert len(pts) == frames
    assert pts[0] == 0
    assert pts == sorted(set(pts))


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [night(one) if one == HUGE else one for one in sorted([*REFUSED, *DAMAGED, *WHOLE])]
)
def test_damaged_or_unusual_clip_is_read_or_refused(folder, model, tmp_path, number):
    check_clip(make(folder, number), model, tmp_path)


@pytest.mark.slow
@pytest.mark.nightly  # tests/sources/test_nasty_clips.py reads these clips by day, too
def test_shared_damaged_or_unusual_clips_are_read_or_refused(shared, model, tmp_path):
    clips = sorted((shared / "data/videos/nasty").glob("[012]*"))
    assert len(clips) == 29
    for source in clips:
        if not source.name.startswith(HUGE):
            (tmp_path / source.name[:2]).mkdir()
            check_clip(source, model, tmp_path / source.name[:2])


@pytest.mark.slow
@pytest.mark.parametrize(("size", "numbers_found"), [(300, 70), (360, 85)])
def test_weights_of_a_wrong_length_are_refused(model, clip, tmp_path, size, numbers_found):
    weights = model.with_suffix(".weights").read_bytes() + bytes(4)
    (tmp_path / "some.weights").write_bytes(weights[:size])
    process = detect_video(clip, "--model", model, "--weights", "some.weights", cwd=tmp_path)
    assert_one_line_error(process, 4, "some.weights", "84", str(numbers_found))
    assert final_files(tmp_path) == ["some.weights"]


CASES = [
    # arguments after SOURCE and --model, exit code, parts of the message
    (["--batch", "0"], 2, ["--batch", "at least 1"]),
    (["--size", "abc"], 2, ["--size abc", "640x384"]),
    (["--save", "vidoe"], 2, ["--save", "video"]),
    (["--config", "none.yaml"], 2, ["none.yaml"]),
    (["-o", "x.wmv"], 2, ["x.wmv", ".mp4"]),
    (["--run-dir", "/proc/nowhere"], 6, ["/proc/nowhere", "--run-dir"]),
    (["-o", "/proc/nowhere/"], 6, ["/proc/nowhere"]),
    (["-o", "-", "--json"], 2, ["standard output", "--json"]),
    (["--names", "none.names"], 4, ["none.names"]),
    (["--model", "WEIGHTS"], 4, ["x.cfg"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "words"), CASES, ids=[" ".join(case[0]) for case in CASES]
)
def test_wrong_arguments_are_refused_in_one_line(model, clip, tmp_path, arguments, code, words):
    weights = model.with_suffix(".weights")
    arguments = [weights if word == "WEIGHTS" else word for word in arguments]
    process = detect_video(clip, "--model", model, "--frames", 5, *arguments, cwd=tmp_path)
    assert_one_line_error(process, code, *words)
    assert final_files(tmp_path) == []


@pytest.mark.slow
def test_file_name_that_is_too_long_is_refused(tmp_path):
    assert_one_line_error(detect_video("x" * 5000, cwd=tmp_path), 3, "more than 255 bytes")
    write_video(tmp_path / f"{'ü' * 125}.mp4", 3)  # 254 bytes, so the session gets a shorter name
    process = detect_video(f"{'ü' * 125}.mp4", "--engine", "null", "-o", "short.mp4", cwd=tmp_path)
    assert (process.returncode, process.stderr) == (0, "")
    assert final_files(tmp_path) == ["short.jsonl", "short.mp4", f"{'ü' * 125}.mp4"]


@pytest.mark.slow
def test_file_name_that_is_not_utf_8_is_read(folder, model, tmp_path):
    """Such a name crashes cv2's binding."""
    name = os.fsdecode(b"bad\xff name.mp4")
    shutil.copy(make(folder, "11"), tmp_path / name)
    process = run_ok(name, "--model", model, "--json", cwd=tmp_path)
    assert summary_of(process)["frames"]["written"] == 1
    assert (tmp_path / os.fsdecode(b"bad\xff name-detected.mp4")).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["srt://camera:1/x"], 3, "SRT"),
        (["rtsp://camera/1", "CLIP"], 2, "--loop"),
        (["rtsp://camera/1", "--save", "csv"], 2, "--save"),
        (["rtsp://camera/1", "--events", "-", "--json"], 2, "standard output"),
        (["profile", "rtsp://camera/1"], 2, "a file"),
        (["compare", "rtsp://camera/1"], 2, "a file"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_wrong_options_for_cameras_are_refused(model, clip, tmp_path, arguments, code, part):
    words = [clip if word == "CLIP" else word for word in arguments]
    process = detect_video(*words, "--model", model, cwd=tmp_path)
    assert process.returncode == code, process.stderr
    assert part in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.slow
def test_error_for_a_missing_engine_contains_the_install_command(model, clip, tmp_path):
    """Hide torch from the module finder, as on a machine without it."""
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        "real = PathFinder.find_spec\n"
        "def find_spec(name, *rest):\n"
        "    return None if name == 'torch' else real(name, *rest)\n"
        "PathFinder.find_spec = find_spec\n"
    )
    hidden = {"PYTHONPATH": str(tmp_path)}
    line = (clip, "--model", model, "--frames", 3, "--quiet")
    process = detect_video_anew(*line, "--engine", "torch", cwd=tmp_path, env=hidden)
    assert_one_line_error(process, 5, "pip install", "torch")
    process = detect_video_anew(*line, cwd=tmp_path, env=hidden)
    assert (process.returncode, process.stderr) == (0, ""), "the default engine needs no torch"


@pytest.mark.slow
def test_existing_file_is_replaced_only_by_a_complete_one(folder, model, clip, tmp_path):
    target = tmp_path / "out.mp4"
    target.write_bytes(b"precious")
    line = ("--model", model, "-o", target, "--frames", 3)
    assert detect_video(make(folder, "03"), *line, cwd=tmp_path).returncode == 3
    assert target.read_bytes() == b"precious"
    assert detect_video(clip, *line, cwd=tmp_path).returncode == 0
    assert len(pts_of(target)) == 3


def start_and_wait_for_rows(arguments, cwd):
    process = start(*arguments, cwd=cwd)

    def has_rows() -> bool:
        rows = list(cwd.glob("*.partial.jsonl"))
        return bool(rows) and rows[0].read_bytes().count(b"\n") > 20

    try:
        wait_for(has_rows)
    except AssertionError:
        process.kill()
        raise AssertionError(process.communicate()) from None
    return process


@pytest.mark.slow
@pytest.mark.parametrize("loop", [[], ["--sync"]])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_written_files_are_complete_after_a_signal(model, long_clip, tmp_path, number, code, loop):
    process = start_and_wait_for_rows([long_clip, "--model", model, "--json", *loop], tmp_path)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stderr) == (code, "")
    summary = summary_of(subprocess.CompletedProcess([], code, stdout, stderr))
    assert summary["exit"]["code"] == code
    assert "interrupted" in summary["exit"]["reason"]
    written = summary["frames"]["written"]
    assert 20 < len(rows_of(tmp_path / summary["outputs"]["jsonl"])) == written < 1000
    assert len(pts_of(tmp_path / summary["outputs"]["video"])) == written
    assert list(tmp_path.glob("*partial*")) == []


@pytest.mark.slow
def test_kill_9_leaves_no_file_under_a_final_name(model, long_clip, tmp_path):
    process = start_and_wait_for_rows([long_clip, "--model", model], tmp_path)
    process.kill()
    process.communicate()
    assert final_files(tmp_path) == []
    [rows] = tmp_path.glob("*.partial.jsonl")
    assert rows.read_bytes().endswith(b"\n")
    assert len(rows_of(rows)) > 20
