"""An unreadable source gets a one-line error that says what was found and what to do."""

import builtins
import os
import subprocess
import sys

import cv2
import pytest

from detector.core import sources
from detector.core.errors import EXIT_SOURCE, SourceError

from .clips import picture, write_sound, write_video


def refused(spec, **options):
    with pytest.raises(SourceError) as caught:
        sources.open(str(spec), **options)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 400
    assert text.startswith(f"{spec}: ")
    assert caught.value.exit_code == EXIT_SOURCE
    return text


@pytest.mark.parametrize(
    "spec", ["0", "2", "/dev/video0", "rtsp://camera/stream", "http://host.invalid/mjpeg"]
)
def test_cameras_are_claimed_by_the_live_source(spec):
    assert sources.find_claiming(spec).__name__ == "LiveSource"


@pytest.mark.parametrize("spec", ["srt://host:1/x", "gopher://host/x", "rtsp://"])
def test_unsupported_address_is_refused(spec):
    refused(spec)


@pytest.mark.parametrize("decoder", ["auto", "opencv", "av"])
@pytest.mark.parametrize("name", ["./0", "tcp:1 [x].mp4"])
def test_file_named_like_a_camera_or_an_address_is_opened(name, decoder, tmp_path, monkeypatch):
    write_video(tmp_path / "a.mp4").rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert len(list(sources.open(name, decoder=decoder))) == 24
    assert sources.find_claiming("0").__name__ == "LiveSource"


def test_error_for_a_missing_file_suggests_a_similar_name(tmp_path):
    (tmp_path / "holiday.mp4").touch()
    assert f"{tmp_path}/holiday.mp4?" in refused(tmp_path / "holyday.mp4")
    assert "no such file" in refused(tmp_path / "zzz.mkv")
    assert "the folder" in refused(tmp_path / "no" / "x.mp4")
    with pytest.raises(SourceError, match="an empty name"):
        sources.open("")


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.m3u8", b"#EXTM3U\n#EXTINF:2,\nhttp://h/a.ts\n", "give the address of the stream"),
        ("a.mp4", bytes(range(256)) * 9, "ffprobe"),
        ("a.jpg", b"", "picture"),
        ("a.png", b"\x89PNG\r\n\x1a\n" + bytes(64), "picture"),
    ],
)
@pytest.mark.parametrize("decoder", ["auto", "opencv", "av"])
def test_file_without_a_video_is_refused(tmp_path, name, data, words, decoder, capfd):
    (tmp_path / name).write_bytes(data)
    assert words in refused(tmp_path / name, decoder=decoder)
    assert capfd.readouterr() == ("", "")


def test_sound_file_with_a_cover_is_refused(tmp_path):
    sound, cover = (
        write_sound(tmp_path / "a.m4a"),
        write_video(tmp_path / "cover.avi", 1, "mjpeg", strict="unofficial"),
    )
    covered = tmp_path / "song.mp4"
    attach = ["-map", "0", "-map", "1", "-c", "copy", "-disposition:v", "attached_pic"]
    subprocess.run(
        ["ffmpeg", "-v", "error", "-i", sound, "-i", cover, *attach, covered], check=True
    )
    assert "(found: a cover picture, audio)" in refused(covered)


def test_folder_or_glob_without_pictures_is_refused(tmp_path):
    assert "no files at all" in refused(tmp_path)
    assert "no picture" in refused(tmp_path)
    assert ".mp4" in refused(tmp_path)
    write_video(tmp_path / "a.mp4")
    assert "1 video" in refused(tmp_path)
    assert f"{tmp_path}/a.mp4" in refused(tmp_path / "a*")
    write_video(tmp_path / "b.mp4")
    several = f"2 videos, but no picture; give them by name, unquoted: {tmp_path}/*.mp4"
    assert several in refused(tmp_path)
    assert "no files at all" in refused(tmp_path / "*.jpg")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").touch()
    assert "1 skipped: 1 .txt" in refused(tmp_path / "notes")


def test_broken_link_is_refused(tmp_path):
    (tmp_path / "dead.mp4").symlink_to("absent.mp4")
    (tmp_path / "loop.png").symlink_to("loop.png")
    assert "(to absent.mp4)" in refused(tmp_path / "dead.mp4")
    assert "(to loop.png)" in refused(tmp_path / "loop.png")
    cv2.imwrite(str(tmp_path / "a.png"), picture(0))
    assert len(list(sources.open(str(tmp_path)))) == 1


def test_pipe_and_unreadable_file_are_refused(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    assert "pipe" in refused(tmp_path / "pipe")
    path = write_video(tmp_path / "a.mp4")

    def denied(name, *_):
        raise PermissionError(13, "Permission denied", name)

    monkeypatch.setattr(builtins, "open", denied)  # chmod does not stop root
    assert "Permission denied" in refused(path)


def test_import_loads_no_decoder():
    code = "import sys, detector.core.sources; print({'cv2', 'av'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
        == "set()\n"
    )
