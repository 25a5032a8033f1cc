"""The joined outputs of a long file's parts equal the outputs of one run. Some files stay whole."""

import json
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from detector.batch.join import NotExactError, join_parts
from detector.batch.part import RESULT, ROWS, detect_part, read_result
from detector.batch.split import Part, plan_parts, why_whole
from detector.core import sinks, sources
from detector.core.config.schema import Config, OutputConfig
from detector.core.session import codec
from detector.core.sources.video import _keys
from detector.core.sources.video._container import probe
from detector.core.sources.video._part import PartSource
from detector.core.sources.video._seek import survey_packets
from detector.core.types import Detections
from tests.batch.splitting import (
    checksum_model,
    decode_all,
    make_config,
    plan,
    read_all,
    read_packets,
    run_parts,
    run_whole,
    split_at_every_gop,
    stamps_of,
    write_clip,
)
from tests.sources.oddities import ffmpeg

REFRESH = "intra-refresh=1:scenecut=0"
X265 = "log-level=none:bframes=3:keyint=12:min-keyint=12:scenecut=0"
CLIPS = {
    "closed.mp4": ("libx264", {"bf": "3"}),
    "vlc.mp4": ("libx264", {"bf": "3", "coder": "vlc"}),
    "closed.mkv": ("libx264", {"bf": "3"}),
    "open.mp4": ("libx264", {"bf": "3", "x264-params": "open-gop=1:scenecut=0"}),
    "open265.mp4": ("libx265", {"x265-params": f"{X265}:open-gop=1"}),
    "closed265.mkv": ("libx265", {"x265-params": f"{X265}:open-gop=0"}),
    "vp9.webm": ("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8"}),
    "open4.mp4": ("mpeg4", {"bf": "2", "b": "4000000"}),
    "open2.mkv": ("mpeg2video", {"bf": "2", "b": "4000000"}),
    "vp8.webm": ("libvpx", {"deadline": "realtime", "cpu-used": "8"}),
    "av1.mp4": ("libsvtav1", {"preset": "12"}),
    "jpeg.mkv": ("mjpeg", {"strict": "unofficial"}),
    "variable.mp4": ("libx264", {"bf": "3"}),
    "negative.mkv": ("libx264", {"bf": "2"}),
}
VARIABLE = [40 * n + (n * n * 7) % 23 + 900 * (n > 30) for n in range(60)]  # ms, with a pause
NOT_SPLIT = {
    "refresh.mp4": ("libx264", {"x264-params": REFRESH}, "a decoder can start"),
    "one.mp4": ("libx264", {"g": "1000"}, "it has 1 key frame,"),
    "plain.ts": ("libx264", {"bf": "2"}, "cannot seek by time (mpegts)"),
    "plain.avi": ("libx264", {"bf": "0"}, "cannot seek by time (avi)"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("split")


def clip(folder: Path, name: str) -> Path:
    """Return a clip that CLIPS or NOT_SPLIT describes. MP4 files have sound."""
    path = folder / name
    if not path.exists():
        codec_name, options = {**CLIPS, **NOT_SPLIT}[name][:2]
        times: list[int] | int = VARIABLE if name.startswith("variable") else 60
        sound = path.suffix == ".mp4"
        # An MPEG-2 stream has no time base that is finer than its frame interval.
        base = Fraction(1, 25 if codec_name == "mpeg2video" else 1000)
        write_clip(path, times, codec_name, sound=sound, base=base, **options)
    return path


def check_equal(
    path: Path, config: Config, folder: Path, most: int = 3, at_least: int = 2
) -> dict[str, Path]:
    """Run the file as a whole and in parts, and compare all rows, the times of the pictures, and
    the sound. Return the joined outputs."""
    loaded = checksum_model(config.runtime.batch)
    parts = plan(path, config, most).parts
    assert len(parts) >= at_least
    expected = run_whole(path, config, loaded, folder / "whole")
    joined = run_parts(path, config, loaded, folder, parts, expected)
    assert joined.outputs.keys() == expected.keys()
    for name, one in expected.items():
        if name not in ("video", "overlay"):
            assert read_all(joined.outputs[name]) == read_all(one), name
    if "video" in expected:
        videos = expected["video"], joined.outputs["video"]
        assert stamps_of(videos[1]) == stamps_of(videos[0])
        assert read_packets(videos[1], "audio") == read_packets(videos[0], "audio")
    return joined.outputs


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["auto", "av"])
@pytest.mark.parametrize("name", CLIPS)
def test_rows_of_joined_parts_equal_those_of_one_run(
    name: str, decoder: str, folder: Path, tmp_path: Path
) -> None:
    config = make_config("jsonl", "csv", batch=3, decoder=decoder)
    outputs = check_equal(clip(folder, name), config, tmp_path)
    rows = [json.loads(line) for line in outputs["jsonl"].read_text().splitlines()]
    assert [row["frame"] for row in rows] == list(range(60))
    assert {len(row["detections"]) for row in rows} > {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "batch"),
    [
        ({}, 1),
        ({"stride": 3}, 1),
        ({"stride": 4}, 3),  # a batch covers 12 frames, as many as a GOP
        ({"start": "0.5", "duration": "1.31"}, 2),  # no frame has either of these times
        ({"start": "0.29", "stride": 5}, 2),
        ({"frames": 37}, 4),
        ({"frames": 15, "stride": 3, "start": "0.2"}, 1),
        ({"frames": 1000}, 7),
    ],
)
def test_outputs_are_equal_with_options_that_select_frames(
    options: dict, batch: int, folder: Path, tmp_path: Path
) -> None:
    saved = ("jsonl", "csv", "coco", "mot", "yolo", "player", "video")
    config = make_config(*saved, batch=batch, **options)
    check_equal(clip(folder, "open.mp4"), config, tmp_path)


@pytest.mark.slow
def test_rows_are_equal_if_only_frames_with_objects_get_rows(folder: Path, tmp_path: Path) -> None:
    config = make_config("jsonl", "csv", only_detections=True)
    outputs = check_equal(clip(folder, "closed.mp4"), config, tmp_path)
    assert 0 < len(outputs["jsonl"].read_text().splitlines()) < 60


@pytest.mark.slow
@pytest.mark.parametrize("name", ["open.mp4", "variable.mp4", "closed.mkv", "open265.mp4"])
def test_rows_and_video_are_equal_with_a_part_per_gop(
    name: str, folder: Path, tmp_path: Path
) -> None:
    """The file is cut at every GOP at which a decoder can start."""
    path, config, loaded = clip(folder, name), make_config("jsonl", "video"), checksum_model()
    parts = split_at_every_gop(path, config).parts
    assert (
        [part.first for part in parts[1:]] == [24, 36, 48] if "open" in name else [12, 24, 36, 48]
    )
    expected = run_whole(path, config, loaded, tmp_path / "whole")
    outputs = run_parts(path, config, loaded, tmp_path, parts, expected).outputs
    assert outputs["jsonl"].read_bytes() == expected["jsonl"].read_bytes()
    check_video(outputs["video"], expected["video"], [part.first for part in parts], tmp_path)


def check_video(joined: Path, whole: Path, firsts: list[int], folder: Path) -> None:
    assert stamps_of(joined) == stamps_of(whole)
    assert read_packets(joined, "audio") == read_packets(whole, "audio")
    packets = read_packets(joined)
    stored = [packet[1] for packet in packets]
    assert stored == sorted(set(stored))
    shown, complaints = decode_all(joined)
    assert complaints == []
    assert [pts for pts, _ in shown] == stamps_of(whole)
    part_pictures = [
        picture
        for number in range(len(firsts))
        for path in (folder / f"part-{number}").glob("*.mp4")
        for _, picture in decode_all(path)[0]
    ]
    assert all(
        np.array_equal(one, other) for (_, one), other in zip(shown, part_pictures, strict=True)
    )
    other, _ = decode_all(whole)  # nearly equal: the encoder used other reference frames
    for (_, one), (_, two) in zip(shown, other, strict=True):
        assert np.abs(one.astype(int) - two.astype(int)).mean() < 12


@pytest.mark.slow
def test_joined_overlay_equals_that_of_one_run(folder: Path, tmp_path: Path) -> None:
    outputs = check_equal(clip(folder, "open.mp4"), make_config("overlay"), tmp_path)
    (whole,) = (tmp_path / "whole").glob("*-overlay.mkv")
    for kind in ("video", "audio", "subtitles"):
        assert read_packets(outputs["overlay"], kind) == read_packets(whole, kind)


@pytest.mark.parametrize("name", NOT_SPLIT)
def test_reason_is_given_for_a_file_that_cannot_be_split(name: str, folder: Path) -> None:
    result = plan(clip(folder, name), make_config("jsonl"))
    assert result.parts == ()
    assert NOT_SPLIT[name][2] in result.why_whole


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (make_config("jsonl", skip_still="1%"), "--skip-still"),
        (make_config("video", only_detections=True), "--only-detections"),
        (Config(output=OutputConfig(save=("jsonl",), save_times=True)), "--save-times"),
        (Config(output=OutputConfig(save=("video",), encoder="nvenc")), "--encoder nvenc"),
        (make_config("jsonl", "crops"), "--save crops"),
        (make_config("jsonl", "pictures"), "--save pictures"),
        (make_config("jsonl").with_options({"repeat": True}), "only video files"),
    ],
)
def test_file_is_not_divided_with_some_options(config: Config, reason: str, folder: Path) -> None:
    path = clip(folder, "closed.mp4")
    assert reason in why_whole(str(path), config)
    assert reason in plan(path, config).why_whole


def test_short_file_is_not_surveyed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detector.batch.split.survey_packets", None)  # a call would raise
    result = plan_parts(str(clip(folder, "closed.mp4")), make_config("jsonl"), 4)
    assert "two parts" in result.why_whole


def test_picture_is_not_split(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    assert "only video files" in why_whole(str(tmp_path), make_config("jsonl"))


def damage(path: Path, target: Path, at: int, size: int, byte: bytes = b"") -> Path:
    data = bytearray(path.read_bytes())
    data[at : at + size] = byte * size or np.random.default_rng(3).bytes(size)
    target.write_bytes(data)
    return target


def test_file_with_damaged_packets_is_not_split(folder: Path, tmp_path: Path) -> None:
    path = clip(folder, "closed.mp4")
    damaged = damage(path, tmp_path / "damaged.mp4", path.stat().st_size // 2, 4000)
    assert plan(damaged, make_config("jsonl")).why_whole.endswith("damaged")


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["auto", "av"])
def test_damage_found_while_decoding_prevents_the_join(
    decoder: str, folder: Path, tmp_path: Path
) -> None:
    """Only decoding reveals damage inside a picture.

    The clip uses CAVLC, in which a run of zeros is invalid. A CABAC decoder may accept any bytes.
    """
    path, config = clip(folder, "vlc.mp4"), make_config("jsonl", decoder=decoder)
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        key = [packet for packet in packets if packet.is_keyframe][3]
        middle = key.pos + key.size // 2
    damaged = damage(path, tmp_path / "damaged.mp4", middle, 400, b"\0")
    parts, loaded = plan(damaged, config).parts, checksum_model()
    assert parts
    folders = [tmp_path / f"{part.number}" for part in parts]
    for part, place in zip(parts, folders, strict=True):
        detect_part(str(damaged), config, loaded, part, place)
    with pytest.raises(NotExactError, match="is damaged"):
        join_parts(str(damaged), config, parts, folders, {"jsonl": tmp_path / "out.jsonl"})


@pytest.mark.slow
@pytest.mark.parametrize("options", [["-ss", "0.9"], ["-movflags", "frag_keyframe+empty_moov"]])
def test_file_with_an_edit_list_or_fragments_gives_equal_rows(
    options: list[str], folder: Path, tmp_path: Path
) -> None:
    """With -ss, ffmpeg writes an edit list, which hides a GOP's first frames. Fragments replace the
    file's index."""
    path = tmp_path / "in.mp4"
    before, after = (options, []) if options[0] == "-ss" else ([], options)
    ffmpeg(*before, "-i", clip(folder, "closed.mp4"), "-c", "copy", *after, path)
    check_equal(path, make_config("jsonl", "video"), tmp_path)


@pytest.mark.slow
def test_av1_parts_are_joined(folder: Path, tmp_path: Path) -> None:
    path, loaded = clip(folder, "closed.mp4"), checksum_model()
    config = make_config("video")
    config = replace(config, output=replace(config.output, encoder="svtav1"))
    parts = plan(path, config).parts
    whole = run_whole(path, config, loaded, tmp_path / "whole")
    outputs = run_parts(path, config, loaded, tmp_path, parts, whole).outputs
    check_video(outputs["video"], whole["video"], [part.first for part in parts], tmp_path)


@pytest.mark.slow
def test_video_whose_picture_size_changes_is_not_split(tmp_path: Path) -> None:
    for size in ("64x48", "96x64"):
        pictures = f"testsrc2=size={size}:rate=25:duration=2"
        ffmpeg(
            "-f", "lavfi", "-i", pictures, "-c:v", "libx264", "-g", "12", tmp_path / f"{size}.ts"
        )
    both = b"".join(file.read_bytes() for file in sorted(tmp_path.glob("*.ts")))
    (tmp_path / "both.ts").write_bytes(both)
    ffmpeg("-i", tmp_path / "both.ts", "-c", "copy", tmp_path / "both.mkv")
    result = plan(tmp_path / "both.mkv", make_config("jsonl"))
    assert "parameters" in result.why_whole


@pytest.mark.parametrize("name", ["closed.mp4", "open.mp4", "variable.mp4"])
@pytest.mark.parametrize("decoder", ["auto", "av"])
def test_decoding_starts_at_most_two_gops_before_the_part(
    name: str, decoder: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, grabbed = clip(folder, name), []
    part = plan(path, make_config("jsonl", decoder=decoder), 3).parts[-1]
    with sources.open(str(path), decoder=decoder) as opened:
        inner = opened.grab  # type: ignore[attr-defined]
        monkeypatch.setattr(opened, "grab", lambda: grabbed.append(1) or inner())
        source = PartSource(opened, part.stretch)
        assert [frame.index for frame in source] == list(range(36, 60))
    assert 24 <= len(grabbed) <= 24 + 24 + 2


def test_part_equals_itself_after_a_json_round_trip(folder: Path) -> None:
    for part in plan(clip(folder, "open.mp4"), make_config("jsonl")).parts:
        line = json.dumps(codec.to_builtins(part))
        assert codec.from_builtins(json.loads(line), Part, "a line") == part


def test_number_and_length_of_parts_are_limited(folder: Path) -> None:
    path, config = clip(folder, "closed.mp4"), make_config("jsonl")
    for least_s, most, expected in [(0, 2, [0, 24]), (0.9, 9, [0, 24]), (1.3, 2, []), (0, 1, [])]:
        parts = plan(path, config, most, least_s).parts
        assert [part.first for part in parts] == expected
        assert sum(part.frames for part in parts) in (0, 60)
    assert "requested" in plan(path, make_config("jsonl", start="9")).why_whole


def test_parts_start_at_multiples_of_the_batch(folder: Path) -> None:
    config = make_config("jsonl", batch=7, stride=2)
    for part in split_at_every_gop(clip(folder, "closed.mp4"), config).parts:
        assert part.first % 14 == 0


# ----------------------------------------------------------------------
# Errors found when parts are joined.


@pytest.fixture(scope="module")
def detected(folder: Path) -> tuple[Path, Config, tuple[Part, ...], Path]:
    path, config, loaded = clip(folder, "closed.mp4"), make_config("jsonl"), checksum_model()
    parts = plan(path, config, 2).parts
    for part in parts:
        detect_part(str(path), config, loaded, part, folder / f"done-{part.number}")
    return path, config, parts, folder


def join_changed(
    detected, tmp_path: Path, part: int, kept: int | None, changes: dict[str, object]
) -> None:
    """Change one part's result, truncate the part's rows to ``kept`` bytes, and join all parts."""
    path, config, parts, folder = detected
    folders = [folder / f"done-{part.number}" for part in parts]
    changed = tmp_path / "changed"
    changed.mkdir()
    result = replace(read_result(folders[part]), **changes)
    (changed / RESULT).write_text(codec.to_json(result))
    (changed / ROWS).write_bytes((folders[part] / ROWS).read_bytes()[:kept])
    folders[part] = changed
    join_parts(str(path), config, parts, folders, {"jsonl": tmp_path / "out.jsonl"})


def test_join_of_unchanged_results_writes_the_rows(detected, tmp_path: Path) -> None:
    join_changed(detected, tmp_path, 1, None, {})
    assert (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("part", "kept", "changes", "reason"),
    [
        (1, None, {"first_digest": "0"}, "the first frame of part 2 differently"),
        (0, None, {"behind_digest": ""}, "differently"),
        (1, None, {"corrupt": 1}, "is damaged"),
        (1, None, {"frames": 11}, "gave 11 frames"),
        (1, None, {"width": 98}, "another frame size"),
        (1, None, {"number": 0}, "is stored as part 1 of"),
        (1, 0, {}, "rows"),
        (1, 50, {}, "rows"),
        (1, -3, {}, "rows"),
    ],
)
def test_join_refuses_changed_results_and_truncated_rows(
    part: int, kept: int | None, changes: dict[str, object], reason: str, detected, tmp_path
) -> None:
    with pytest.raises(NotExactError, match=reason):
        join_changed(detected, tmp_path, part, kept, changes)
    assert not list(tmp_path.glob("out*"))  # also no partial file


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["auto", "av"])
def test_part_with_unusable_key_frames_is_decoded_from_the_beginning(
    decoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test lets frames of a periodic refresh count as key frames. A decoder that starts at such
    a frame shows nothing at first, so the part is decoded from the file's beginning."""
    monkeypatch.setattr(_keys.KeyReader, "_judge_h264", lambda *_: _keys.Promise.CLEAN)
    path = write_clip(tmp_path / "in.mp4", **{"bf": "0", "x264-params": REFRESH})
    check_equal(path, make_config("jsonl", decoder=decoder), tmp_path)


@pytest.mark.slow
def test_joined_video_keeps_its_times_in_each_container(folder: Path, tmp_path: Path) -> None:
    path, config, loaded = clip(folder, "closed.mp4"), make_config("video"), checksum_model()
    parts = plan(path, config, 2).parts
    folders = [tmp_path / f"{part.number}" for part in parts]
    for part, place in zip(parts, folders, strict=True):
        detect_part(str(path), config, loaded, part, place)
    for suffix in (".mp4", ".mov", ".mkv", ".ts", ".flv"):
        expected, target = tmp_path / f"whole{suffix}", tmp_path / f"joined{suffix}"
        with sources.open(str(path)) as opened:
            sink = sinks.open("video", expected)
            sink.open(opened.info)
            for frame in opened:
                sink.write(frame, Detections.empty())
            sink.close()
        join_parts(str(path), config, parts, folders, {"video": target})
        assert stamps_of(target) == stamps_of(expected), suffix
        audio = [
            [(packet[0], packet[4]) for packet in read_packets(file, "audio")]
            for file in (target, expected)
        ]
        assert audio[0] == audio[1], suffix
        assert decode_all(target)[1] == [], suffix


def test_survey_finds_key_frames_and_the_display_number_of_frames(folder: Path) -> None:
    video = probe(str(clip(folder, "open.mp4")))
    survey = survey_packets(video)
    assert len(survey.shown) == 60
    assert [survey.number(key.pts) for key in survey.keys] == [0, 12, 24, 36, 48]
    assert all(key.leads < key.pts for key in survey.keys[1:])  # the GOPs are open
    assert survey.find_landing(survey.shown[12]) is None
    landing = survey.find_landing(survey.shown[30])
    assert landing is not None
    assert landing.number(landing.key_pts) == 12  # one GOP before that of frame 30
    assert landing.safe_pts < survey.shown[24]
    assert landing.number(landing.wanted_pts) == 30
    assert landing.number(landing.wanted_pts + 1) is None
    assert Fraction(video.info.time_base) > 0


@pytest.mark.slow
def test_split_check_succeeds_on_a_video_of_six_seconds() -> None:
    """By default ``scripts/split_check`` uses a video of twenty minutes."""
    options = "--minutes 0.1 --gop 30 --width 160 --engine ort --precision fp32 --size 256x160"
    script = Path(__file__).parents[2] / "scripts" / "split_check"
    command = [sys.executable, script, *options.split(), "--batch", "4"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GOP boundaries" in done.stdout
