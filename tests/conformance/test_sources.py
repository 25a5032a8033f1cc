"""Conformance of every source, including any added later."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detector.core import sources
from detector.core.errors import SourceError, UsageError
from detector.core.sources.base import Source
from detector.core.types import Frame
from tests.conformance.samples import FRAMES, Sample, sample_of

pytestmark = pytest.mark.slow
KINDS = ("video", "pictures", "live")
# Odd source arguments that people and shells pass.
ODD = (
    "", " ", ".", "/", "\0", "x" * 5000, "0", "-", "--", "nothing.mp4", "*.png", "[", "%04d.png",
    "%", "/dev/null", "http://", "http://[", "https://user@", "rtsp://", "s3://", "file:///etc",
    "a\nb.mp4", "\udc80.mp4", "~", "cameras.yaml",
)  # fmt: skip


@pytest.fixture(params=sources.names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kind(name: str) -> type[Source]:
    return sources.find(name)


@pytest.fixture
def sample(name: str, tmp_path: Path) -> Iterator[Sample]:
    with sample_of(name, tmp_path) as sample:
        yield sample


@contextmanager
def opened(kind: type[Source], sample: Sample, **options: Any) -> Iterator[Source]:
    defaults = {"decoder": "auto", "stride": 1, "frames": FRAMES if kind.arrives else None}
    with sample.around(), kind.open(sample.spec, **{**defaults, **options}) as source:
        yield source


def read_all(source: Source) -> list[tuple[int, int, np.ndarray]]:
    return [(frame.index, frame.pts, frame.image.copy()) for frame in source]


def test_declaration_is_valid(kind: type[Source]) -> None:
    assert "bgr" in kind.gives
    assert isinstance(kind.order, int)


def test_claiming_never_raises_and_accepts_only_specs_of_the_declared_form(
    kind: type[Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for spec in (*ODD, "HTTPS://127.0.0.1:9/a\nb.mp4", "/dev/video0", "12", "CAMERAS.YML"):
        claimed = kind.claims(spec)
        assert claimed in (True, False), spec
        assert not claimed or re.fullmatch(kind.form, spec, re.IGNORECASE | re.DOTALL), spec


def test_no_two_sources_of_equal_order_claim_a_spec(kind: type[Source], sample: Sample) -> None:
    kind.check_spec(sample.spec)
    with sample.around():
        assert sources.find_claiming(sample.spec) is kind
    claiming = [one for one in map(sources.find, sources.names()) if one.claims(sample.spec)]
    assert [one for one in claiming if one.order == kind.order] == [kind]
    assert all(one.order > kind.order for one in claiming if one is not kind)


def test_info_is_complete_before_the_first_frame(kind: type[Source], sample: Sample) -> None:
    with opened(kind, sample) as source:
        info = source.info
        assert info.kind in KINDS
        assert (info.kind == "live") == kind.arrives
        assert info.path
        assert info.width > 0
        assert info.height > 0
        assert info.time_base > 0
        assert info.fps > 0 or kind.arrives
        assert info.frames_declared is None or info.frames_declared > 0
        assert info.duration_s is None or info.duration_s > 0
        assert source.pixels in kind.gives
        assert source.decoder or kind.arrives
        assert all(isinstance(note, str) for note in source.notes)
        assert not source.damaged


def test_frames_come_in_order_and_none_follows_the_end(kind: type[Source], sample: Sample) -> None:
    with opened(kind, sample) as source:
        info, frames = source.info, list(source)
        assert len(frames) == FRAMES
        assert all(isinstance(frame, Frame) for frame in frames)
        if not kind.arrives:  # the frame numbers of a camera also count dropped frames
            assert [frame.index for frame in frames] == list(range(FRAMES))
            assert {frame.size for frame in frames} == {(info.height, info.width)}
            assert frames[0].pts == info.start_pts
        for before, frame in pairwise(frames):
            assert frame.index > before.index
            assert frame.pts >= before.pts
            assert frame.time_s >= before.time_s
        for frame in frames:
            if not kind.arrives:  # cameras have their own clocks
                assert frame.time_s == pytest.approx(float(frame.pts * info.time_base), abs=1e-6)
            assert frame.image.dtype == np.uint8
            assert frame.image.shape == (*frame.size, 3)
        assert [source.read(), source.read()] == [None, None]
        assert not source.damaged


def test_frame_keeps_its_picture_while_others_are_read(kind: type[Source], sample: Sample) -> None:
    with opened(kind, sample) as source:
        held = []
        for frame in source:
            held.append((frame.image, frame.image.copy()))
            assert not any(np.shares_memory(frame.image, image) for image, _ in held[:-1])
    for image, copy in held:
        np.testing.assert_array_equal(image, copy)


def test_buffer_is_filled_or_left_unchanged(kind: type[Source], sample: Sample) -> None:
    with opened(kind, sample) as source:
        plain = read_all(source)
        height, width = plain[0][2].shape[:2]
    for shape in ((height, width, 3), (height + 2, width, 3), (1, 1, 3)):
        with opened(kind, sample) as source:
            for at in range(FRAMES):
                buffer = np.full(shape, 7, np.uint8)
                frame = source.read(buffer)
                assert frame is not None
                if not kind.arrives:
                    np.testing.assert_array_equal(frame.image, plain[at][2])
                if frame.buffer is not buffer:
                    assert not np.shares_memory(frame.image, buffer)
                    assert (buffer == 7).all() or buffer.shape == frame.image.shape
            assert source.read(np.empty(shape, np.uint8)) is None


def test_yuv_planes_hold_the_same_pictures(kind: type[Source], sample: Sample) -> None:
    with opened(kind, sample) as source:
        plain = read_all(source)
    for pixels in set(kind.gives) - {"bgr"}:
        with opened(kind, sample, pixels=pixels) as source:
            assert source.pixels in kind.gives
            assert source.pixels == pixels or source.why_no_planes
            planes = read_all(source)
        assert [one[:2] for one in planes] == [one[:2] for one in plain]
        for (*_, image), (*_, expected) in zip(planes, plain, strict=True):
            assert np.abs(image.astype(int) - expected).mean() < 3


def test_stride_and_frame_limit_are_obeyed(kind: type[Source], sample: Sample) -> None:
    if kind.arrives:
        with pytest.raises(UsageError), opened(kind, sample, stride=2):
            pass
        return
    with opened(kind, sample) as source:
        plain = read_all(source)
    with opened(kind, sample, stride=2, frames=2) as source:
        strided = read_all(source)
    assert [one[0] for one in strided] == [0, 2]
    for (_, pts, image), expected in zip(strided, plain[::2], strict=False):
        assert pts == expected[1]
        np.testing.assert_array_equal(image, expected[2])
    with opened(kind, sample, frames=FRAMES + 10) as source:
        assert len(read_all(source)) == FRAMES


def test_part_of_a_source_gives_the_same_frames(kind: type[Source], sample: Sample) -> None:
    if kind.arrives:
        with opened(kind, sample) as source, pytest.raises(UsageError):
            source.restrict(Fraction(1), None)
        return
    with opened(kind, sample) as source:
        info, plain = source.info, read_all(source)
    start = (plain[2][1] - info.start_pts) * info.time_base
    length = (plain[4][1] - plain[2][1]) * info.time_base
    with opened(kind, sample) as source:
        try:
            source.restrict(start, length)
        except UsageError:
            return  # a source without a clock cannot be restricted
        part = read_all(source)
        assert source.read() is None
    assert [one[:2] for one in part] == [one[:2] for one in plain[2:4]]
    for (*_, image), (*_, expected) in zip(part, plain[2:4], strict=True):
        np.testing.assert_array_equal(image, expected)
    with opened(kind, sample) as source, pytest.raises(SourceError):
        source.restrict(Fraction(10**6), None)


def test_close_may_repeat_and_leaves_no_file_open(kind: type[Source], sample: Sample) -> None:
    with opened(kind, sample) as source:
        source.close()
        source.close()
    with opened(kind, sample) as source:
        assert source.read() is not None
        source.close()
        source.close()
        assert source.read() is None or kind.arrives
    before = open_files()
    with opened(kind, sample) as source:
        read_all(source)
    assert open_files() <= before


def open_files() -> int:
    """Count open files, but not pipes and sockets, which the tests' servers use."""
    folder, count = "/proc/self/fd", 0
    for number in os.listdir(folder):
        try:
            count += os.readlink(f"{folder}/{number}").startswith("/")
        except OSError:
            continue
    return count


def test_damage_is_counted_or_reported_in_one_line(kind: type[Source], sample: Sample) -> None:
    for spec in sample.damaged:
        error, source = "", None
        try:
            kind.check_spec(spec)
            with opened(kind, Sample(spec, (), sample.around)) as source:
                indices = [one[0] for one in read_all(source)]
                assert indices == sorted(indices)
        except SourceError as caught:
            error = str(caught)
        is_reported = error or (source and (source.damaged or source.notes))
        assert is_reported, f"{spec}: its damage is not reported"
        assert "\n" not in error
        assert not error or os.path.basename(spec) in error
