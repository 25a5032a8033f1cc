"""Video from standard input: frames, sound and damage as in a file, refusals, and no hang."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from detector import Detector
from detector.core import sources
from detector.core.config.levels import resolve_config
from detector.core.errors import SourceError, UsageError
from detector.core.run.detect import detect
from detector.core.run.reading import SourceReading
from detector.core.sources import _standard_input
from detector.core.sources._standard_input import StandardInput
from tests.cli.command import (
    assert_one_line_error,
    detect_video,
    handles_signals,
    rows_of,
    start,
    summary_of,
)
from tests.conftest import CHECKOUT
from tests.waiting import PATIENCE_S, wait_for

from .clips import beeping_clip, cut, flash_and_beep, pts_of, write_sound, write_video
from .nasty import make

STREET = CHECKOUT / "videos" / "street.mp4"


@contextmanager
def fed(data: bytes, *, silent: bool = False) -> Iterator[int]:
    """Yield the reading end of a pipe with ``data``. ``silent``: the pipe stays open."""
    reading, writing = os.pipe()
    over = threading.Event()

    def feed() -> None:
        try:
            with os.fdopen(writing, "wb", buffering=0) as file:
                file.write(data)
                if silent:
                    over.wait()
        except BrokenPipeError:
            pass

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield reading
    finally:
        over.set()
        os.close(reading)
        thread.join()


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Any:
    @contextmanager
    def make(data: bytes, **options: Any) -> Iterator[StandardInput]:
        with fed(data, **options) as descriptor:
            standard_input = StandardInput(descriptor)
            monkeypatch.setattr(_standard_input, "_current", standard_input)
            yield standard_input

    return make


def remux(path: Path, name: str, *options: str) -> Path:
    target = path.parent / name
    command = ["ffmpeg", "-v", "error", "-y", "-i", path, "-c", "copy", *options, target]
    subprocess.run(command, check=True)
    return target


def read(spec: str | Path, **options: Any) -> tuple[list[tuple[int, int, bytes]], sources.Source]:
    with SourceReading.of(resolve_config(None, options)).open(str(spec)) as source:
        frames = [(f.index, f.pts, hashlib.md5(f.image).digest()) for f in source]
    return frames, source


def box(name: bytes, length: int, *, wide: bool = False) -> bytes:
    """Return an MP4 box; ``wide``: its size has 64 bits."""
    head = length.to_bytes(4, "big") + name
    if wide:
        head = b"\0\0\0\x01" + name + length.to_bytes(8, "big")
    return head + bytes(length - len(head))


@pytest.mark.parametrize("wide", [False, True])
def test_mp4_with_its_index_after_the_pictures_is_refused(wide: bool) -> None:
    before = box(b"ftyp", 24) + box(b"free", 8) + box(b"free", 40, wide=wide)
    with fed(before + box(b"mdat", 64)) as descriptor, pytest.raises(SourceError, match="index"):
        StandardInput(descriptor).rewind()
    with fed(before + box(b"moov", 64) + box(b"mdat", 64)) as descriptor:
        StandardInput(descriptor).rewind()


def test_content_of_an_endless_box_is_not_parsed() -> None:
    head = b"\0\0\0\x01free" + ((1 << 56) + 40).to_bytes(8, "big")
    with fed(head + bytes(24) + box(b"mdat", 64)) as descriptor:
        StandardInput(descriptor).rewind()


CONTAINERS = {
    "a.mkv": (),
    "a.ts": (),
    "a.h264": (),
    "faststart.mp4": ("-movflags", "+faststart"),
    "fragments.mp4": ("-movflags", "frag_keyframe+empty_moov"),
}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("pipe") / "in.mkv", 24, bf="2")


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTAINERS)
def test_standard_input_gives_the_frames_of_the_file(name: str, clip: Path, pipe: Any) -> None:
    path = remux(clip, name, *CONTAINERS[name])
    expected, file_source = read(path, decoder="av")
    with pipe(path.read_bytes()) as standard_input:
        frames, source = read("-")
        assert frames == expected
        assert len(frames) == 24
        assert standard_input.sha256() == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (source.counts, source.decoder) == (file_source.counts, "av")


@pytest.mark.parametrize(
    ("name", "codec"), [("a.webm", "libvpx-vp9"), ("a.y4m", "wrapped_avframe"), ("a.gif", "gif")]
)
def test_other_formats_are_read(name: str, codec: str, clip: Path, pipe: Any) -> None:
    path = clip.with_name(name)
    speed = ["-deadline", "realtime", "-cpu-used", "8"] if codec == "libvpx-vp9" else []
    command = ["ffmpeg", "-v", "error", "-y", "-i", clip, "-c:v", codec, *speed, path]
    subprocess.run(command, check=True)
    with pipe(path.read_bytes()):
        frames, source = read("-")
    assert (frames, source.damaged) == (read(path, decoder="av")[0], False)
    assert len(frames) > 15


@pytest.mark.slow
def test_damage_is_counted_as_in_files(tmp_path: Path, pipe: Any) -> None:
    """Read healthy and damaged clips that need no seeking."""
    for number in ("04", "05", "06", "07", "08", "10", "15", "19", "22", "23", "25", "29"):
        path = make(tmp_path, number)
        expected, file_source = read(path, decoder="av")
        with pipe(path.read_bytes()):
            frames, source = read("-")
        assert (frames, source.counts) == (expected, file_source.counts), path.name


def test_truncated_standard_input_is_noted(clip: Path, pipe: Any) -> None:
    with pipe(cut(clip, 0.7).read_bytes()):
        frames, source = read("-")
    assert 10 < len(frames) < 24
    assert source.damaged
    assert any("standard input" in note for note in source.notes)


def test_source_can_be_reopened_until_the_second_frame(clip: Path, pipe: Any) -> None:
    """A source is opened first for its size, and then for the run."""
    with pipe(clip.read_bytes()) as standard_input:
        for _ in range(2):
            with sources.open("-") as source:
                assert source.info.width == 96
        frames, _ = read("-")
        assert len(frames) == 24
        assert not standard_input._kept  # a long video would fill the memory
        with pytest.raises(SourceError):
            sources.open("-")


def test_endless_header_is_refused_before_it_fills_memory(
    pipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_standard_input, "MOST_KEPT", 100_000)
    box = b"\0\0\0\x18ftypisom\0\0\2\0isomiso2" + (1 << 30).to_bytes(4, "big") + b"free"
    with pipe(box + bytes(1 << 20)) as standard_input, pytest.raises(SourceError, match="0 MB"):
        sources.open("-")
    assert standard_input.size < 500_000


@pytest.mark.parametrize("sync", [False, True])
def test_leaving_a_stream_does_not_wait_for_the_pipe(sync: bool, clip: Path, pipe: Any) -> None:
    with pipe(clip.read_bytes(), silent=True), Detector(engine="null", sync=sync) as detector:
        for frame, _ in detector.stream("-"):
            assert frame.index == 0
            break


UNREADABLE = {
    "moov at the end": (lambda clip: remux(clip, "end.mp4").read_bytes(), "matroska"),
    "nothing": (lambda clip: b"", "empty"),
    "text": (lambda clip: b"hello\n" * 100, "text"),
    "a playlist": (lambda clip: f"#EXTM3U\n#EXTINF:1,\n{clip}\n".encode(), "a playlist"),
    "a complete playlist": (
        lambda clip: (
            b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:1,\xe9\n"
            + f"{clip}\n#EXT-X-ENDLIST\n".encode()
        ),
        "-: ",
    ),
    # FFmpeg's concat demuxer recognizes such a list by its first line, and opens the files in it.
    "a list of files": (lambda clip: f"ffconcat version 1.0\nfile {clip.name}\n".encode(), "-: "),
    "noise": (lambda clip: np.random.default_rng(1).bytes(300_000), "FFmpeg"),
    "raw pictures": (lambda clip: bytes(range(256)) * 2000, "raw video .* -f matroska"),
    "sound alone": (lambda clip: write_sound(clip.with_name("s.ts")).read_bytes(), "no video"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_unreadable_input_is_refused(
    case: str, clip: Path, pipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, word = UNREADABLE[case]
    monkeypatch.chdir(clip.parent)
    with pipe(make(clip)), pytest.raises(SourceError, match=word):
        sources.open("-")


def test_terminal_is_refused(tmp_path: Path) -> None:
    own, terminal = pty.openpty()
    try:
        process = detect_video("-", "--model", "none.onnx", cwd=tmp_path, stdin=terminal)
    finally:
        os.close(own)
        os.close(terminal)
    assert_one_line_error(process, 2, "terminal", "ffmpeg")


@pytest.mark.parametrize(
    "arguments",
    [
        ("-", "-", "--engine", "null"),
        ("-", "--decoder", "opencv", "--engine", "null"),
        ("profile", "-", "--engine", "null"),
        ("compare", "-", "--engine", "null"),
    ],
    ids=" ".join,
)
def test_commands_that_need_several_passes_refuse_a_pipe(
    arguments: tuple[str, ...], tmp_path: Path, clip: Path
) -> None:
    with fed(clip.read_bytes()) as stdin:
        process = detect_video(*arguments, cwd=tmp_path, stdin=stdin)
    assert_one_line_error(process, 2, "-: ")
    assert list(tmp_path.iterdir()) == []


def test_calibration_refuses_a_pipe(pipe: Any) -> None:
    with pytest.raises(UsageError):
        sources.refuse_pipe("-", "")
    sources.refuse_pipe("./-", "")


def test_output_cannot_overwrite_the_input(tmp_path: Path, clip: Path) -> None:
    """The command is ``detect-video - -o own.mkv < own.mkv``."""
    path = remux(clip, "own.mkv")
    before = path.read_bytes()
    with path.open("rb") as stdin:
        arguments = ("-", "--engine", "null", "-o", path)
        process = detect_video(*arguments, cwd=tmp_path, stdin=stdin.fileno())
    assert_one_line_error(process, 2, "own.mkv")
    assert path.read_bytes() == before


@pytest.mark.parametrize("spec", ["frame_%04d.jpg", "none*.jpg", "empty"])
def test_missing_pictures_are_refused_before_the_model_loads(spec: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    process = detect_video(spec, "--model", "none.onnx", cwd=tmp_path)
    assert_one_line_error(process, 3, spec)


@pytest.mark.slow
def test_run_of_standard_input_equals_a_run_of_the_file(tmp_path: Path) -> None:
    """Rows and frames are equal. Only the names differ. The session has the digest of the input."""
    path = remux(STREET, str(tmp_path / "in.mkv"), "-t", "1")
    for _ in range(2):
        with fed(path.read_bytes()) as stdin:
            process = detect_video("-", "--engine", "null", "--json", cwd=tmp_path, stdin=stdin)
        assert (process.returncode, process.stderr) == (0, "")
    second = summary_of(process)["outputs"]
    assert second["video"] == "stdin-null-detected-2.mp4"  # the first output is kept
    detect_video(path, "--engine", "null", cwd=tmp_path)
    file_rows = rows_of(tmp_path / "in-null-detected.jsonl")
    pipe_rows = rows_of(tmp_path / second["jsonl"])
    assert [{**row, "source": "-"} for row in file_rows] == pipe_rows
    assert pts_of(tmp_path / second["video"]) == pts_of(tmp_path / "in-null-detected.mp4")
    session = json.loads((tmp_path / "runs/stdin-null-2/session.json").read_text())
    assert session["clip_sha256"] == {"-": hashlib.sha256(path.read_bytes()).hexdigest()}


SOUNDS = [
    ("aac.mkv", ("-c:a", "aac"), {}),
    ("aac.ts", ("-c:a", "aac"), {"start": "2.5"}),  # its clock starts at 1.4 s
    ("vorbis.mkv", ("-c:a", "libvorbis"), {"frames": "90"}),
    ("opus.webm.mkv", ("-c:a", "libopus"), {"start": "2.5", "duration": "2"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sound", "window"), SOUNDS, ids=[row[0] for row in SOUNDS])
def test_sound_is_written_like_that_of_a_file(
    name: str, sound: tuple[str, ...], window: dict[str, str], tmp_path: Path, pipe: Any
) -> None:
    """A file is opened a second time for its sound, but a pipe can be read only once."""
    path, results = beeping_clip(tmp_path / name, *sound), {}
    for spec in (str(path), "-"):
        out = tmp_path / f"out{len(results)}.mp4"
        options = {"engine": "null", "output": str(out), "run_dir": str(tmp_path / "run")}
        with pipe(path.read_bytes()):
            result = detect([spec], resolve_config(None, {**options, **window}))
        assert result.exit_code == 0
        assert not any("audio" in note for note in result.summary.notes)
        with av.open(str(out)) as file:
            video, audio = file.streams.video[0], file.streams.audio[0]
            results[spec] = (video.frames, audio.codec_context.name, audio.frames)
        results[f"beep of {spec}"] = flash_and_beep(out)
    assert results["-"] == results[str(path)]
    assert results["beep of -"] == pytest.approx(results[f"beep of {path}"], abs=0.001)


@pytest.mark.slow
@pytest.mark.parametrize("sync", [(), ("--sync",)], ids=["threads", "sync"])
@pytest.mark.parametrize("share", [0.0, 0.6], ids=["silent", "stalled"])
def test_signal_ends_a_silent_pipe(
    share: float, sync: tuple[str, ...], tmp_path: Path, clip: Path
) -> None:
    data = clip.read_bytes()
    with fed(data[: int(share * len(data))], silent=True) as stdin:
        process = start(
            "-", "--engine", "null", "--save", "jsonl", *sync, cwd=tmp_path, stdin=stdin
        )
        rows = tmp_path / "stdin-null-detected.partial.jsonl"
        if share:
            wait_for(lambda: rows.exists() and rows.stat().st_size)
        else:
            wait_for(lambda: handles_signals(process.pid))
            time.sleep(0.6)  # we cannot observe the wait for the pipe; by now it has usually begun
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(PATIENCE_S)
    assert process.returncode == 143
    assert "Traceback" not in stderr
    assert (tmp_path / "stdin-null-detected.jsonl").exists() == bool(share)
    assert not list(tmp_path.glob("*.partial.*"))
