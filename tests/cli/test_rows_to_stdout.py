"""With ``-o -``, a run writes rows or a video to standard output, and nothing else."""

import csv
import io
import json
import os
import resource
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from detector.core.config.schema import OutputConfig
from detector.core.errors import OutputError, UsageError
from detector.core.run.outputs import OutputPlan
from detector.core.sinks._stream import RowStream, StreamedRows
from detector.core.sinks.jsonl import JsonlSink
from detector.core.types import Detections, Frame, SourceInfo
from tests.cli.command import COMMAND, assert_one_line_error, detect_video, rows_of, run_ok, start
from tests.sources.clips import write_video
from tests.waiting import PATIENCE_S, wait_for


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("clip") / "in.mkv", 12)


@pytest.mark.slow
def test_stdout_contains_only_rows(tmp_path: Path, clip: Path) -> None:
    process = run_ok(clip, "--engine", "null", "-o", "-", cwd=tmp_path)
    rows = [json.loads(line) for line in process.stdout.splitlines()]
    assert [row["frame"] for row in rows] == list(range(12))
    assert "detect-video report" in process.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert rows_of(tmp_path / "runs/in-null/detections.jsonl") == rows


@pytest.mark.slow
def test_csv_of_two_sources_has_one_header(tmp_path: Path, clip: Path) -> None:
    other = write_video(tmp_path / "b.mkv", 3)
    arguments = (clip, other, "--engine", "null", "-o", "-", "--save", "csv", "--quiet")
    process = detect_video(*arguments, cwd=tmp_path)
    assert (process.returncode, process.stderr) == (0, "")
    (header,) = csv.reader(process.stdout.splitlines())
    assert header[:2] == ["source", "frame"]


@pytest.mark.slow
def test_requested_files_are_written_too(tmp_path: Path, clip: Path) -> None:
    arguments = (clip, "--engine", "null", "-o", "-", "--save", "video,jsonl", "--quiet")
    process = detect_video(*arguments, cwd=tmp_path)
    assert len(process.stdout.splitlines()) == 12
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in-null-detected.mp4", "runs"]


@pytest.mark.parametrize("words", ["--json", "--save jsonl,csv", "--lead 3", "profile", "compare"])
def test_stdout_is_refused_with_contradicting_options_and_by_other_commands(
    words: str, tmp_path: Path, clip: Path
) -> None:
    arguments = (*words.split(), clip, "--model", "none.onnx", "-o", "-")
    process = detect_video(*arguments, cwd=tmp_path)
    assert process.stdout == ""
    assert_one_line_error(process, 2, "-")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_first_rows_are_written_before_the_input_ends(tmp_path: Path, clip: Path) -> None:
    data = clip.read_bytes()
    reading, writing = os.pipe()
    fork = start("-", "--engine", "null", "-o", "-", "--quiet", cwd=tmp_path, stdin=reading)
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as file:
        file.write(data[: len(data) * 3 // 4])
        session = tmp_path / "runs/stdin-null/source-0.partial.jsonl"
        wait_for(lambda: session.exists() and session.stat().st_size)
        file.write(data[len(data) * 3 // 4 :])
    stdout, stderr = fork.communicate(PATIENCE_S)
    assert (fork.returncode, stderr) == (0, "")
    assert len(stdout.splitlines()) == 12


# ---- readers that close the pipe, and rows that cannot be written


def streamed(descriptor: int, left: list[str]) -> StreamedRows:
    sink = StreamedRows(JsonlSink(Path("-")), RowStream(descriptor, lambda: left.append("left")))
    sink.open(SourceInfo("in.mp4", "video", 8, 8, 25, 1))  # type: ignore[arg-type]
    return sink


def frame(number: int) -> Frame:
    return Frame(number, number, float(number), None)  # type: ignore[arg-type]


def test_each_row_is_written_immediately() -> None:
    reading, writing = os.pipe()
    sink = streamed(writing, [])
    for number in range(3):
        sink.write(frame(number), Detections.empty())
        line = os.read(reading, 1 << 16)
        assert line.endswith(b"\n")
        assert json.loads(line)["frame"] == number
    os.close(reading)
    os.close(writing)


def test_pipe_closed_by_its_reader_is_reported_once() -> None:
    reading, writing = os.pipe()
    left: list[str] = []
    sink = streamed(writing, left)
    os.close(reading)
    for number in range(3):
        sink.write(frame(number), Detections.empty())
    assert left == ["left"]
    os.close(writing)


def test_file_that_reached_its_size_limit_contains_only_complete_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    sink = streamed(descriptor, [])
    resource.setrlimit(resource.RLIMIT_FSIZE, (250, limit[1]))
    try:
        with pytest.raises(OutputError, match="standard output"):
            _ = [sink.write(frame(number), Detections.empty()) for number in range(9)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
        os.close(descriptor)
    lines = path.read_text().splitlines(keepends=True)
    assert lines
    assert [json.loads(line)["frame"] for line in lines] == list(range(len(lines)))
    assert lines[-1].endswith("\n")


@pytest.mark.slow
@pytest.mark.parametrize("saved", ["", "jsonl,video", "video"])
def test_reader_that_closes_the_pipe_ends_the_run(saved: str, tmp_path: Path, clip: Path) -> None:
    """If the reader of the pipe closes it before the video arrives, the run ends quietly and still
    finishes the other requested files."""
    options = ("--save", saved) if saved else ()
    reading, writing = os.pipe()
    fork = start("-", "--engine", "null", "-o", "-", *options, cwd=tmp_path, stdin=reading)
    os.close(reading)
    fork.stop_reading()
    with os.fdopen(writing, "wb", buffering=0) as file, suppress(BrokenPipeError):
        file.write(clip.read_bytes())
    _, stderr = fork.communicate(PATIENCE_S)
    assert (fork.returncode, stderr) == (0, "")
    session = json.loads((tmp_path / "runs/stdin-null/session.json").read_text())
    assert any("standard output" in note for note in session["notes"])
    if saved == "jsonl,video":
        assert session["frames"]["written"] == 12
    assert (tmp_path / "stdin-null-detected.mp4").exists() == (saved == "jsonl,video")
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.slow
def test_video_is_written_to_a_pipe(tmp_path: Path, clip: Path) -> None:
    words = (*COMMAND, str(clip), "--save", "video", "--engine", "null", "-o", "-")
    data = subprocess.run(words, cwd=tmp_path, check=True, stdout=subprocess.PIPE).stdout
    with av.open(io.BytesIO(data)) as container:
        assert container.format.name.startswith("matroska")
        assert sum(1 for _ in container.decode(video=0)) == 12
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_two_videos_in_one_pipe_are_refused() -> None:
    config = OutputConfig(output="-", save=("video",))
    with pytest.raises(UsageError, match="2 videos"):
        OutputPlan(config, ["a.mp4", "b.mp4"], streams=True)


def test_output_that_suits_none_of_the_sources_is_refused(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((8, 8, 3), np.uint8))
    pictures, clip = str(tmp_path / "a.png"), str(write_video(tmp_path / "in.mp4", 2))
    config = OutputConfig(save=("overlay",))
    with pytest.raises(UsageError, match=r"needs a video, but .*a\.png"):
        OutputPlan(config, [pictures, pictures]).check_sources(None)
    OutputPlan(config, [pictures, clip]).check_sources(
        None
    )  # possible for the clip; the picture only causes a note
    OutputPlan(config, [clip]).check_sources(None)
    with pytest.raises(UsageError, match=r"is pictures; use --save pictures,yolo$"):
        OutputPlan(OutputConfig(save=("video", "yolo")), [pictures]).check_sources(None)


def test_error_with_the_option_json_is_a_json_document(tmp_path):
    done = detect_video("nothing-*.mp4", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["exit"]["code"] == done.returncode == 3
    assert json.loads(done.stdout)["exit"]["reason"] in done.stderr
    silent = detect_video("nothing-*.mp4", cwd=tmp_path)
    assert (silent.returncode, silent.stdout) == (3, "")
