"""Conformance of every sink of the program, including any added later."""

import os
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from detector.core import sinks, sources
from detector.core.errors import OutputError
from detector.core.sinks.base import DRAWN, Sink
from detector.core.stages.annotate import Style
from detector.core.types import Detections, Frame, SourceInfo
from tests.conftest import CHECKOUT

STREET = CHECKOUT / "videos/street.mp4"
NAMES = ("person", 'a "quoted", <b>name</b>', "视频 é")
OPTIONS = {"remark": "weights are random", "style": Style()}
# Every sink with each of its suffixes, for each kind of source whose results it can write.
CASES = [
    pytest.param(name, suffix, kind, id=f"{name}{suffix}-{kind}")
    for name in sinks.names()
    for suffix in sinks.find(name).suffixes
    for kind in sinks.find(name).kinds
]
FIRST = [case for case in CASES if case.values[1] == sinks.find(str(case.values[0])).suffixes[0]]
every_suffix = pytest.mark.parametrize(("name", "suffix", "kind"), CASES)
every_sink = pytest.mark.parametrize(("name", "suffix", "kind"), FIRST)
pytestmark = pytest.mark.slow


def make_detections(count: int) -> Detections:
    boxes = np.array([[i, 2 * i, i + 20.5, 2 * i + 30] for i in range(count)], np.float32)
    scores = np.linspace(0.9, 0.3, count, dtype=np.float32)
    return Detections(boxes.reshape(-1, 4), scores, np.arange(count) % len(NAMES), NAMES)


@pytest.fixture
def folder_of_pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "shots"
    folder.mkdir()
    for n in range(3):
        cv2.imwrite(str(folder / f"{n}.png"), np.full((90, 120, 3), 60 * n, np.uint8))
    return folder


@pytest.fixture
def spec(kind: str, folder_of_pictures: Path) -> str:
    return str(STREET) if kind == "video" else str(folder_of_pictures)


def opened(name: str, path: Path, info: SourceInfo) -> Sink:
    kind = sinks.find(name)
    names = {"names": sinks._naming.FrameNames()} if "names" in kind.options else {}
    options = {key: value for key, value in OPTIONS.items() if key in kind.options}
    sink = kind(path, **names, **options)
    sink.open(info)
    return sink


def frames(spec: str, name: str, suffix: str, count: int = 3) -> Iterator[Frame]:
    count = 1 if suffix in sinks.find(name).one_picture else count
    with sources.open(spec, frames=count) as source:
        yield from source


def info_of(spec: str) -> SourceInfo:
    with sources.open(spec) as source:
        return source.info


def write(sink: Sink, frame: Frame, detections: Detections) -> None:
    if sink.pictures == "plain":
        sink.see(frame.image, detections)
    sink.write(frame, detections)


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@every_suffix
@pytest.mark.parametrize("counts", [(0, 0, 0), (2, 0, 5)], ids=["nothing found", "some found"])
def test_output_appears_only_when_complete(
    name: str, suffix: str, kind: str, spec: str, place: Path, counts: tuple[int, ...]
) -> None:
    target = place / f"out{suffix}"
    sink = opened(name, target, info_of(spec))
    for frame, count in zip(frames(spec, name, suffix), counts, strict=False):
        before = np.array(frame.image, copy=True)
        write(sink, frame, make_detections(count))
        assert np.array_equal(frame.image, before), "the sink changed the loop's picture"
        assert not target.is_file(), "only close may give the final name"
    path = sink.close()
    assert path == target
    assert sink.close() == target
    assert target.exists(), "close returned a path that does not exist"
    assert all(isinstance(note, str) for note in sink.notes)
    others = {str(other.relative_to(place)) for other in sink.beside}
    written = read_files(place)
    assert written, "nothing was written"
    assert all(n.startswith(target.name) or n in others for n in written), list(written)
    assert sink.abort() is None
    assert read_files(place) == written, "abort after close removed something"


@every_sink
def test_close_without_frames_succeeds_or_leaves_no_file(
    name: str, suffix: str, kind: str, spec: str, place: Path
) -> None:
    sink = opened(name, place / f"out{suffix}", info_of(spec))
    try:
        sink.close()
    except OutputError:
        sink.abort()
        assert not (place / f"out{suffix}").is_file()


def test_declarations_are_consistent() -> None:
    for sink in sinks.find_all():
        assert sink.pictures in (*DRAWN, "plain", "none")
        assert sink.order >= 0
        assert not (sink.untouched and sink.pictures in DRAWN)
        assert set(sink.one_picture) <= set(sink.suffixes)
        assert len(set(map(os.path.normcase, sink.suffixes))) == len(sink.suffixes)
