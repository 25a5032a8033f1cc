"""A source's audio, subtitles, data tracks, tags and time code are copied into the outputs."""

import re
from fractions import Fraction
from pathlib import Path

import av
import pytest
from probing import probe

from detector.core.config.levels import resolve_config
from detector.core.run.detect import detect
from detector.core.sinks.video.file import VideoFile
from tests.sources.clips import standard_input
from tests.sources.oddities import ffmpeg

TAGS = {"title": "Yard", "location": "+48.8500+002.3500/", "creation_time": "2024-05-06T07:08:09"}
SECONDS = 3
LINES = """1
00:00:00,200 --> 00:00:00,700
first

2
00:00:01,500 --> 00:00:02,000
second
"""


def make(path: Path, *options: str, subtitles: str = "", sounds: int = 2) -> Path:
    (path.parent / "lines.srt").write_text(LINES)
    inputs = ["-f", "lavfi", "-i", f"testsrc2=size=64x48:rate=25:duration={SECONDS}"]
    for number in range(sounds):
        inputs += ["-f", "lavfi", "-i", f"sine={300 + 600 * number}:duration={SECONDS}"]
    maps = [word for number in range(1 + sounds) for word in ("-map", str(number))]
    if subtitles:
        inputs += ["-i", str(path.parent / "lines.srt")]
        maps += ["-map", str(1 + sounds), "-c:s", subtitles, "-metadata:s:s:0", "language=deu"]
    tags = [word for key, text in TAGS.items() for word in ("-metadata", f"{key}={text}")]
    names = ["-metadata:s:a:0", "language=fra", "-metadata:s:a:1", "language=eng"]
    names += ["-metadata:s:a:1", "title=Comments", "-disposition:a:0", "0"]
    names += ["-disposition:a:1", "default"]
    video = ["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p"]
    ffmpeg(*inputs, *maps, *tags, *(names if sounds == 2 else ()), *video, *options, path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    make(folder / "two.mp4", "-c:a", "aac", subtitles="mov_text")
    make(folder / "two.mkv", "-c:a", "libopus", "-ar", "48000", subtitles="srt")
    return folder


def run(source: Path | str, target: Path, **options: object) -> list[str]:
    settings = {"engine": "null", "save": "video", "output": str(target), **options}
    config = resolve_config(None, {**settings, "run_dir": str(target.parent / "run")})
    result = detect([str(source)], config)
    assert result.exit_code == 0
    return [note for note in result.summary.notes if "input of" not in note]


def tracks(path: Path, kind: str = "audio") -> list[tuple[str, str, bool]]:
    return [
        (
            stream["codec_name"],
            stream.get("tags", {}).get("language", "und"),
            bool(stream["disposition"]["default"]),
        )
        for stream in probe(path)["streams"]
        if stream["codec_type"] == kind
    ]


def tags(path: Path) -> dict[str, str]:
    stored = {key.lower(): text for key, text in probe(path)["format"]["tags"].items()}
    return {key: stored[key] for key in TAGS if key in stored}


def assert_all_tags(stored: dict[str, str]) -> None:
    assert stored.keys() == TAGS.keys()
    for key, text in TAGS.items():
        assert stored[key].startswith(text)


def packet_times(path: Path, kind: str) -> list[list[float]]:
    with av.open(str(path)) as container:
        times: dict[int, list[float]] = {
            stream.index: [] for stream in container.streams if stream.type == kind
        }
        for packet in container.demux():
            if packet.stream_index in times and packet.size and packet.pts is not None:
                times[packet.stream_index].append(float(packet.pts * packet.time_base))
    return [sorted(track) for track in times.values()]


COPIED = [
    # source, output, the output's audio codec
    ("two.mp4", "a.mp4", "aac"),
    ("two.mp4", "a.mov", "aac"),
    ("two.mp4", "a.mkv", "aac"),
    ("two.mkv", "a.mkv", "opus"),
    ("two.mkv", "a.mp4", "opus"),
    ("two.mkv", "a.webm", "opus"),
    ("two.mp4", "a.webm", "opus"),  # encoded again
]


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target", "codec"), COPIED)
def test_all_audio_tracks_keep_language_title_and_default_flag(
    source: str, target: str, codec: str, folder: Path, tmp_path: Path
) -> None:
    run(folder / source, tmp_path / target)
    out = tmp_path / target
    assert tracks(out) == [(codec, "fra", False), (codec, "eng", True)]
    assert_all_tags(tags(out))
    with av.open(str(out)) as container:
        metadata = container.streams.audio[1].metadata
    assert metadata.get("title", metadata.get("name")) == "Comments"  # MP4 stores it as a name
    if (source, target) != ("two.mp4", "a.webm"):
        (begin,) = [times[0] for times in packet_times(folder / source, "video")]
        expected = packet_times(folder / source, "audio")
        for theirs, ours in zip(expected, packet_times(out, "audio"), strict=True):
            assert len(theirs) - 1 <= len(ours) <= len(theirs)  # the priming packet may be missing
            assert ours == pytest.approx([time - begin for time in theirs[-len(ours) :]], abs=0.002)


@pytest.mark.slow
def test_subtitles_are_kept_if_the_container_can_hold_them(folder: Path, tmp_path: Path) -> None:
    supported = [("two.mp4", "a.mp4", "mov_text"), ("two.mkv", "a.mkv", "subrip")]
    for source, target, codec in supported:
        notes = run(folder / source, tmp_path / target)
        assert [track[:2] for track in tracks(tmp_path / target, "subtitle")] == [(codec, "deu")]
        assert not any("subtitle track" in note for note in notes)
    lines = packet_times(tmp_path / "a.mkv", "subtitle")[0]
    assert lines == pytest.approx([0.2, 1.5], abs=0.01)
    for source, target, codec in (("two.mkv", "b.mp4", "subrip"), ("two.mp4", "b.mkv", "mov_text")):
        suffix = Path(target).suffix
        notes = run(folder / source, tmp_path / target)
        assert tracks(tmp_path / target, "subtitle") == []
        assert f"a subtitle track ({codec}, deu) was omitted: {suffix} cannot hold {codec}" in notes


@pytest.mark.slow
def test_tracks_and_tags_that_a_format_cannot_hold_are_noted(folder: Path, tmp_path: Path) -> None:
    notes = run(folder / "two.mkv", tmp_path / "a.flv")
    assert [stream["codec_name"] for stream in probe(tmp_path / "a.flv")["streams"][1:]] == ["aac"]
    (note,) = [note for note in notes if "1 sound track" in note]
    assert "fra" in note
    assert "eng" not in note  # the default track is kept
    notes = run(folder / "two.mkv", tmp_path / "a.ts")
    assert [track[:2] for track in tracks(tmp_path / "a.ts")] == [("aac", "fra"), ("aac", "eng")]
    (note,) = [note for note in notes if "omitted tags" in note]
    assert set(TAGS) <= set(note.replace(",", "").split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "note"),
    [
        (1, "only a sound track (opus, fra) was copied: .mkv refused all tracks together"),
        (0, "no track besides the video could be copied: refused"),
    ],
)
def test_tracks_that_a_file_refuses_are_noted(most, note, folder, tmp_path, monkeypatch) -> None:
    begin_file = VideoFile._begin_file

    def begin_with_few(file: VideoFile, frame: object, tracks: int | None) -> None:
        begin_file(file, frame, tracks)
        if tracks is None or tracks > most:
            raise ValueError("refused")

    monkeypatch.setattr(VideoFile, "_begin_file", begin_with_few)
    assert note in run(folder / "two.mkv", tmp_path / "a.mkv")
    assert len(tracks(tmp_path / "a.mkv")) == most
    assert len(packet_times(tmp_path / "a.mkv", "video")[0]) == 25 * SECONDS


@pytest.mark.slow
def test_all_tracks_are_cut_to_the_window(folder: Path, tmp_path: Path) -> None:
    run(folder / "two.mkv", tmp_path / "a.mkv", start="1", duration="1.2")
    first, second = packet_times(tmp_path / "a.mkv", "audio")
    for times in (first, second):
        assert 0 <= times[0] < 0.03
        assert 1.15 < times[-1] < 1.2
    assert packet_times(tmp_path / "a.mkv", "subtitle") == [[pytest.approx(0.5, abs=0.01)]]


@pytest.mark.slow
def test_undecodable_track_is_noted_and_the_others_are_kept(tmp_path: Path) -> None:
    source = make(tmp_path / "in.mkv", "-c:a:0", "flac", "-c:a:1", "aac")
    data = source.read_bytes()
    assert data.count(b"A_FLAC") == 1
    source.write_bytes(data.replace(b"A_FLAC", b"A_XXXX"))
    notes = run(source, tmp_path / "a.mp4")
    assert tracks(tmp_path / "a.mp4") == [("aac", "eng", True)]
    assert any("there is no decoder" in note for note in notes)


@pytest.mark.slow
def test_subtitles_without_audio_are_kept(tmp_path: Path) -> None:
    source = make(tmp_path / "in.mkv", subtitles="ass", sounds=0)
    run(source, tmp_path / "a.mkv")
    kinds = [stream["codec_type"] for stream in probe(tmp_path / "a.mkv")["streams"]]
    assert sorted(kinds) == ["subtitle", "video"]
    assert packet_times(tmp_path / "a.mkv", "subtitle")[0] == pytest.approx([0.2, 1.5], abs=0.01)


@pytest.mark.slow
def test_tracks_of_standard_input_equal_those_of_the_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with standard_input(folder / "two.mkv", monkeypatch):
        run("-", tmp_path / "piped.mkv")
    run(folder / "two.mkv", tmp_path / "read.mkv")
    assert tracks(tmp_path / "piped.mkv") == [("opus", "fra", False), ("opus", "eng", True)]
    for kind in ("audio", "subtitle"):
        times = packet_times(tmp_path / "piped.mkv", kind)
        assert times == packet_times(tmp_path / "read.mkv", kind)
    assert_all_tags(tags(tmp_path / "piped.mkv"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "subtitles"), [("two.mp4", []), ("two.mkv", [("subrip", "deu", False)])]
)
def test_overlay_keeps_tracks_flags_languages_and_tags(
    source: str, subtitles: list[tuple[str, str, bool]], folder: Path, tmp_path: Path
) -> None:
    notes = run(folder / source, tmp_path / "a.mkv", save="overlay")
    assert [track[1:] for track in tracks(tmp_path / "a.mkv")] == [("fra", False), ("eng", True)]
    assert tracks(tmp_path / "a.mkv", "subtitle") == [*subtitles, ("ass", "und", True)]
    assert any("mov_text" in note for note in notes) == (not subtitles)
    assert_all_tags(tags(tmp_path / "a.mkv"))
    # b.mkv has boxes in its pictures, so it must not have the subtitles that draw them.
    run(tmp_path / "a.mkv", tmp_path / "b.mkv")
    with av.open(str(tmp_path / "b.mkv")) as container:
        titles = [stream.metadata.get("title") for stream in container.streams.subtitles]
    assert "Detections" not in titles


@pytest.mark.slow
def test_overlay_has_the_video_track_that_was_read(folder: Path, tmp_path: Path) -> None:
    preview = tmp_path / "small.mp4"
    ffmpeg("-i", folder / "two.mp4", "-an", "-sn", "-vf", "scale=32:24", "-c:v", "libx264", preview)
    both = tmp_path / "both.mkv"
    maps = ("-map", "0:v", "-map", "1:v", "-map", "1:a", "-c", "copy")
    flags = ("-disposition:v:0", "0", "-disposition:v:1", "default")
    ffmpeg("-i", preview, "-i", folder / "two.mp4", *maps, *flags, both)
    for options, width in (({}, 64), ({"video_track": 1}, 32)):
        notes = run(both, tmp_path / "a.mkv", save="overlay", **options)
        streams = probe(tmp_path / "a.mkv")["streams"]
        assert [s["width"] for s in streams if s["codec_type"] == "video"] == [width]
        assert any(note.startswith("1 other") for note in notes)
        (tmp_path / "a.mkv").unlink()


@pytest.mark.slow
def test_joined_parts_have_all_tracks(folder: Path, tmp_path: Path) -> None:
    from tests.batch.splitting import checksum_model, make_config, plan, run_parts, run_whole

    source = make(tmp_path / "in.mkv", "-c:a", "aac", "-g", "10", "-output_ts_offset", "100")
    config = make_config("jsonl", "video", start="0.5", duration="2")
    parts = plan(source, config, 3).parts
    assert len(parts) > 1
    loaded = checksum_model()
    expected = run_whole(source, config, loaded, tmp_path / "whole")
    joined = run_parts(source, config, loaded, tmp_path / "parts", parts, expected).outputs
    assert Path(joined["jsonl"]).read_text() == Path(expected["jsonl"]).read_text()
    assert tracks(joined["video"]) == [("aac", "fra", False), ("aac", "eng", True)]
    assert packet_times(joined["video"], "audio") == packet_times(expected["video"], "audio")
    assert_all_tags(tags(joined["video"]))


def timecode_of(path: Path) -> str:
    """Return the time code with two digits per number. QuickTime writes fewer at some rates."""
    probed = probe(path)
    places = [probed["format"], *probed["streams"]]
    stored = {key.lower(): text for place in places for key, text in place.get("tags", {}).items()}
    return ":".join(f"{int(part):02}" for part in re.split("[:;]", stored.get("timecode", "0")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "begins", "start", "expected"),
    [
        ("25", "10:11:12:03", None, "10:11:12:03"),
        ("10", "10:11:12:03", "1.5", "10:11:13:08"),
        ("24000/1001", "23:59:59:00", "1.5", "00:00:00:12"),
        ("30000/1001", "10:58:59;20", "1.5", "10:59:01:07"),  # 10:59:00;00 and ;01 do not exist
        ("30000/1001", "10:59:59;20", "1.5", "11:00:01:05"),
        ("60000/1001", "00:00:59;20", "1.5", "00:01:00:54"),
    ],
)
def test_time_code_is_that_of_the_first_frame(rate, begins, start, expected, tmp_path) -> None:
    scene = ("-f", "lavfi", "-i", f"testsrc2=size=64x48:rate={rate}:duration=2")
    ffmpeg(*scene, "-c:v", "libx264", "-g", "1", "-timecode", begins, tmp_path / "in.mov")
    for suffix in (".mp4", ".mov", ".mkv", ".webm", ".avi", ".flv"):
        notes = run(tmp_path / "in.mov", tmp_path / f"a{suffix}", start=start)
        assert timecode_of(tmp_path / f"a{suffix}") == expected
        assert not any("timecode" in note or "data" in note for note in notes)
    run(tmp_path / "in.mov", tmp_path / "o.mkv", start=start, save="overlay")
    assert timecode_of(tmp_path / "o.mkv") == expected
    for suffix in (".ts", ".gif"):
        notes = run(tmp_path / "in.mov", tmp_path / f"a{suffix}", start=start)
        assert any("timecode" in note for note in notes)


def test_unsupported_time_code_is_noted(tmp_path: Path) -> None:
    make(tmp_path / "in.mkv", "-metadata", "timecode=10:11:12;03", sounds=0)
    assert any("timecode" in note for note in run(tmp_path / "in.mkv", tmp_path / "a.mp4"))
    assert not any("timecode" in note for note in run(tmp_path / "in.mkv", tmp_path / "b.mkv"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "kind", "kept"), [("a.ts", "klv", ".ts"), ("a.ts", "timed_id3", ".ts"),
                                 ("a.mp4", "bin_data", ".mp4")]
)  # fmt: skip
def test_data_tracks_are_kept_or_noted(source, kind, kept, tmp_path: Path) -> None:
    """Drones (KLV) and action cameras (GPMF in MP4) write such tracks."""
    with av.open(str(tmp_path / source), "w") as file:
        video = file.add_stream("libx264", rate=10)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        data = file.add_data_stream(kind)
        for number in range(20):
            file.mux(video.encode(av.VideoFrame(64, 48, "yuv420p")))
            packet = av.Packet(b"\x06\x0e\x2b\x34" + bytes([number] * 20))
            packet.stream, packet.time_base = data, Fraction(1, 10)
            packet.pts = packet.dts = number
            file.mux(packet)
        file.mux(video.encode(None))
    expected = data_of(tmp_path / source)
    assert len(expected) >= 19
    for suffix in (".mp4", ".ts", ".mov", ".mkv", ".gif"):
        notes = run(tmp_path / source, tmp_path / f"out{suffix}")
        assert data_of(tmp_path / f"out{suffix}") == (expected if suffix == kept else [])
        assert any("omitted" in note for note in notes) == (suffix != kept)
    assert any(kind in note for note in run(tmp_path / source, tmp_path / "o.mkv", save="overlay"))


def data_of(path: Path) -> list[bytes]:
    with av.open(str(path)) as file:
        return [bytes(p) for p in file.demux() if p.size and p.stream.type == "data"]
