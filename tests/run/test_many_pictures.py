"""Pictures given by name, by pattern or among videos: sources, outputs and reduced decoding."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from msgspec import UNSET

from detector.core import sources
from detector.core.analysis.agreement import agreement
from detector.core.config.levels import resolve_config
from detector.core.errors import SourceError, UsageError
from detector.core.models import ModelRequest, open_network
from detector.core.run.detect import Hooks, RunResult, detect
from detector.core.run.inputs import gather_sources
from detector.core.run.outputs import SETTINGS, stem_of
from detector.core.run.tiling import Tiling
from detector.core.types import Detections, Frame
from tests.conftest import CHECKOUT

pytestmark = pytest.mark.usefixtures("place")

CLIP = CHECKOUT / "videos" / "street.mp4"


def picture(path: str, level: int = 90) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(path, np.full((48, 64, 3), level, np.uint8))
    return path


def run(*typed: str, **options: object) -> RunResult:
    settings = {"engine": "null", "frames": 3, **options}
    return detect(gather_sources(typed), resolve_config(None, settings))


def written(folder: str) -> list[str]:
    files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    return [str(path.relative_to(folder)) for path in files if path.name[0] != "."]


def outputs(result: RunResult) -> list[dict[str, str]]:
    assert result.exit_code == 0
    return [dict(source.outputs) for source in result.summary.each]


def test_pictures_of_a_pattern_expanded_by_the_shell_are_one_source() -> None:
    typed = [picture(f"P/img{n}.png") for n in (1, 10, 2)]
    (paths,) = outputs(run(*typed))
    assert paths == {"pictures": "P-null-detected", "jsonl": "P-null-detected.jsonl"}
    assert written("P-null-detected") == ["img1.png", "img10.png", "img2.png"]
    rows = Path("P-null-detected.jsonl").read_text().splitlines()
    assert [row.split('"')[3] for row in rows] == ["P/img1.png", "P/img2.png", "P/img10.png"]
    assert run(*typed, conf=1.0, no_video=True).summary.detections.empty == 3
    assert run(str(CLIP), conf=1.0, no_video=True).summary.detections.empty is UNSET


GATHERED = [
    # arguments -> sources
    (["P/a.png", "P/b.png"], ["P"]),
    (["P/a.png"], ["P/a.png"]),
    (["v.mp4", "P/a.png", "w.mp4", "P/b.png"], ["v.mp4", "P", "w.mp4"]),
    (["P"], ["P", "P/v.mp4", "P/w.MOV"]),
    (["P/*"], ["P/*", "P/v.mp4", "P/w.MOV"]),
    (["P/*.png"], ["P/*.png"]),
    (["V"], ["V/v.mp4"]),
    (["empty"], ["empty"]),
    (["rtsp://x/?a"], ["rtsp://x/?a"]),
]


@pytest.mark.parametrize(("typed", "texts"), GATHERED, ids=[" ".join(row[0]) for row in GATHERED])
def test_arguments_are_gathered_into_sources(typed: Sequence[str], texts: Sequence[str]) -> None:
    for name in ("P/a.png", "P/b.png"):
        picture(name)
    for name in ("v.mp4", "w.mp4", "P/v.mp4", "P/w.MOV", "P/notes.txt", "V/v.mp4"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    Path("empty").mkdir()
    assert gather_sources(typed) == texts
    with pytest.raises(SourceError, match="none: no such file"):
        gather_sources([*typed, "none"])


def test_folder_with_pictures_and_videos_is_two_sources(place: Path) -> None:
    picture("P/a.png")
    (place / "P/v.mp4").symlink_to(CLIP)
    first, second = outputs(run("P", save="jsonl"))
    assert first == {"jsonl": "P-null-detected.jsonl"}
    assert second == {"jsonl": "v-null-detected.jsonl"}


def test_videos_written_by_runs_are_not_gathered(place: Path) -> None:
    picture("P/a.png")
    (place / "P/v-ort-detected.mp4").touch()
    try:
        os.setxattr("P/v-ort-detected.mp4", SETTINGS, b"x")
    except OSError:
        pytest.skip("machine: the folder for tests has no extended attributes")
    assert gather_sources(["P"]) == ["P"]


@pytest.mark.slow
def test_pictures_with_equal_names_keep_their_folders() -> None:
    typed = [picture("in/left/1.png"), picture("in/right/1.png"), picture("in/right/2.png")]
    expected = ["2.png", "left/1.png", "right/1.png"]
    outputs(run(*typed, save="pictures,yolo"))
    assert written("in-null-dataset/images") == expected
    assert "left/1.txt" in written("in-null-dataset/labels")
    outputs(run(*typed[:2], save="pictures", output="again/"))
    outputs(run(*typed, save="pictures", output="again/", line_width=3))
    assert written("again/in-null-detected") == ["left/1.png", "right/1.png"]
    assert written("again/in-null-detected-2") == expected
    outputs(run("in/**/*.png", save="pictures", output="glob/"))
    (folder,) = Path("glob").iterdir()
    assert written(str(folder)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".jpg", ".PNG", ".webp"])
def test_one_picture_is_written_to_one_file(suffix: str) -> None:
    a = picture("P/a.png", 200)
    assert outputs(run(a, output=f"out{suffix}")) == [{"pictures": f"out{suffix}"}]
    assert abs(int(cv2.imread(f"out{suffix}").mean()) - 200) < 3
    assert sorted(os.listdir()) == ["P", f"out{suffix}", "runs"]
    outputs(run(picture("P/b.png", 10), output=f"out{suffix}"))
    assert cv2.imread(f"out{suffix}").mean() < 20
    outputs(run("P/b.png", output=f"both{suffix}", save="pictures,jsonl"))
    assert Path("both.jsonl").is_file()


def test_several_pictures_into_one_file_are_refused(place: Path) -> None:
    a, b = picture("P/a.png"), picture("P/b.png")
    (place / "v.mp4").symlink_to(CLIP)
    for typed in ((a, b), ("P",), ("P/*.png",), ("P/%d.png", a), ("v.mp4",)):
        with pytest.raises(UsageError):
            run(*typed, output="out.jpg")
    with pytest.raises(UsageError):
        run(a, output=a)
    outputs(run(a, b, output="out.jsonl"))  # one source, one file of rows
    assert sorted(os.listdir()) == ["P", "out.jsonl", "runs", "v.mp4"]


def test_run_on_other_pictures_of_a_folder_keeps_earlier_outputs() -> None:
    a, b, c = (picture(f"P/{name}.png") for name in "abc")
    outputs(run(a, b, save="pictures"))
    outputs(run(a, c, save="pictures"))
    if Path("P-null-detected-2").exists():  # if the file system has extended attributes
        assert written("P-null-detected") == ["a.png", "b.png"]
        assert written("P-null-detected-2") == ["a.png", "c.png"]


NUMBERED = [
    ("frame_%04d.png", ["frame_0002.png", "frame_0010.png", "frame_10000.png"]),
    ("frame_%d.png", ["frame_7.png", "frame_10000.png"]),
    ("50%% %02d.png", ["50% 01.png"]),
]


@pytest.mark.parametrize(("pattern", "names"), NUMBERED, ids=[row[0] for row in NUMBERED])
def test_numbered_pattern_reads_matching_pictures(pattern: str, names: list[str]) -> None:
    for name in ("frame_0002", "frame_0010", "frame_10000", "frame_7", "frame_00003", "x_0001"):
        picture(f"P/{name}.png")
    picture("P/50% 01.png")
    with sources.open(f"P/{pattern}") as source:
        assert [Path(str(frame.path)).name for frame in source] == names
    assert stem_of(f"P/{pattern}") == "P"


@pytest.mark.parametrize("missing", ["P/none_%04d.png", "nowhere/a_%d.jpg"])
def test_numbered_pattern_without_pictures_is_refused(missing: str) -> None:
    picture("P/a.png")
    with pytest.raises(SourceError):
        sources.open(missing)
    with pytest.raises(SourceError):  # raised before a model is loaded
        run(missing)


def test_existing_file_named_like_a_pattern_is_read() -> None:
    picture("a_%04d.png")
    picture("a_0001.png")
    with sources.open("a_%04d.png") as source:
        assert [frame.path for frame in source] == ["a_%04d.png"]


PHOTO = (957, 1277)  # odd height and width, more than twice the network's 608x352


def photos(folder: str) -> None:
    os.mkdir(folder)
    with sources.open(str(CLIP), frames=2, stride=40) as source:
        for frame in source:
            large = cv2.resize(frame.image, PHOTO[::-1], interpolation=cv2.INTER_CUBIC)
            cv2.imwrite(f"{folder}/{frame.index}.jpg", large)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"save": ["jsonl", "yolo", "coco"]}, False),
        ({"save": ["csv"], "tiles": "2x2", "size": "256x160"}, False),
        ({"save": ["csv"], "rect": True}, False),
        ({"no_video": True}, False),
        ({}, True),  # annotated pictures
        ({"save": ["crops"]}, True),
        ({"save": ["csv"], "track": "sort"}, True),
        ({"save": ["csv"], "full_decode": True}, True),
    ],
    ids=str,
)
def test_jpegs_are_reduced_unless_an_output_shows_them(
    options: dict[str, object], shown: bool
) -> None:
    photos("P")
    model = {"size": "320x192"} if "rect" not in options else {"size": "320"}
    check_decoding("P", {**model, **options}, shown)


def check_decoding(spec: str, options: dict[str, object], shown: bool) -> None:
    """Check the decoded size, and compare the detections with those of --full-decode."""
    results: list[list[Detections]] = []
    for full_decode in (False, True):
        per_frame: list[Detections] = []
        decoded: list[tuple[int, ...]] = []

        def see(
            frame: Frame, detections: Detections, log: Any = per_frame, to: Any = decoded
        ) -> None:
            log.append(detections)
            to.append((*frame.size, frame.size[0] - frame.image.shape[0]))

        settings = {"engine": "ort", "full_decode": full_decode, **options}
        hooks = Hooks(detected=see)
        result = detect(gather_sources([spec]), resolve_config(None, settings), hooks=hooks)
        is_noted = any("--full-decode" in note for note in result.summary.notes)
        assert is_noted != (full_decode or shown)
        assert {*decoded} == {(*PHOTO, PHOTO[0] // 2 if is_noted else 0)}
        results.append(per_frame)
    reduced, whole = results
    matches = agreement(whole, reduced, iou=0.8)
    assert matches.reference > 10
    assert matches.share > 0.85


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, False),
        ({"decoder": "av", "stride": 3}, False),
        ({"start": "0.1"}, False),
        ({"decoder": "opencv"}, True),
        ({"full_decode": True}, True),
        ({"save": ["csv", "video"]}, True),
    ],
    ids=str,
)
def test_motion_jpeg_is_reduced_unless_an_output_shows_it(
    options: dict[str, object], shown: bool
) -> None:
    photos("P")
    Path("a.mjpeg").write_bytes(b"".join(file.read_bytes() for file in Path("P").iterdir()) * 2)
    check_decoding("a.mjpeg", {"save": ["csv"], "size": "320x192", **options}, shown)


@pytest.mark.parametrize(
    ("picture", "tiles", "turns", "factor"),
    [
        ((4000, 3000), None, False, 4),  # 3000 / 352 / 1.5 (SPARE) = 5.7, so 4
        ((3000, 4000), None, False, 4),  # 4000 / 352 / 1.5 = 7.6, so 4
        ((8000, 4500), None, False, 8),
        ((1280, 1062), None, False, 2),
        ((4000, 3000), (2, 2), False, 2),
        ((16000, 12000), (2, 2), False, 2),  # tiles begin at even pixels, so at most 2
        ((3000, 4000), None, True, 4),  # turned, the input is 608 high: 4000 / 608 / 1.5 = 4.4
        ((2000, 3600), None, True, 2),
    ],
)
def test_reduction_of_a_photo_follows_size_and_tiles(
    picture: tuple[int, int], tiles: tuple[int, int] | None, turns: bool, factor: int
) -> None:
    network = open_network(ModelRequest("street"))
    assert (network.input.width, network.input.height) == (608, 352)
    assert Tiling(tiles).reduction(network, turns)(*picture) == factor
