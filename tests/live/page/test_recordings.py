"""Test the list and download of recordings: which files are allowed, and byte ranges."""

import pytest

from detector.live.page.recordings import find_recording, list_recordings
from tests.live.page.conftest import Served
from tests.live.page.fake_run import FakeRun

VIDEO, BOXES = "20261122T120000Z.mp4", "20261122T120000Z.ass"
# The start of a file that is still being written, with one complete fragment.
FRAGMENTS = b"".join(bytes([0, 0, 0, 12]) + kind + b"1234" for kind in (b"moov", b"moof", b"mdat"))
SECRET = b"not for the world"


@pytest.fixture
def folder(tmp_path):
    live = tmp_path / "live"
    for place in ("door/video", "gate/video", "door/other", "bad name/video", "gate/snapshots"):
        (live / place).mkdir(parents=True)
    (live / "door/video" / VIDEO).write_bytes(bytes(range(256)) * 4)
    (live / "door/video" / BOXES).write_bytes(b"boxes")
    (live / "door/video/20261122T130000Z.mkv").write_bytes(b"x" * 10)
    (live / "gate/video/20261122T123000Z.mp4").write_bytes(b"y" * 20)
    (live / "gate/snapshots/20261122T123000.250Z-appears-person.jpg").write_bytes(b"z")
    (live / "gate/video/20261122T160000Z.partial.mp4").write_bytes(FRAGMENTS + b"\0\0\0\x40mo")
    for other in (
        "token",
        "door/token",
        "door/detections-2026-11-22.jsonl",
        "door/video/20261122T160000Z.partial.mkv",
        "door/video/20261122T160000Z.partial.ass",
        "door/video/20261322T120000Z.mp4",  # no month 13
        "door/video/20261122T120000Z.mp4.txt",
        "door/other/20261122T120000Z.mp4",
        "bad name/video/20261122T120000Z.mp4",
    ):
        (live / other).write_bytes(SECRET)
    (tmp_path / "secret.mp4").write_bytes(SECRET)
    (live / "door/video/20261122T140000Z.mp4").symlink_to(tmp_path / "secret.mp4")
    (live / "link").symlink_to(live / "door")
    (live / "yard").mkdir()
    (live / "yard/video").symlink_to(live / "door/video")
    (live / "door/video/20261122T150000Z.mp4").mkdir()
    return live


def test_list_has_only_recordings_newest_first(folder):
    listing = list_recordings(folder)
    assert [(one.camera, one.kind, one.name, one.bytes) for one in listing.recordings] == [
        ("gate", "video", "20261122T160000Z.partial.mp4", len(FRAGMENTS) + 6),
        ("door", "video", "20261122T130000Z.mkv", 10),
        ("gate", "video", "20261122T123000Z.mp4", 20),
        ("gate", "snapshots", "20261122T123000.250Z-appears-person.jpg", 1),
        ("door", "video", VIDEO, 1024),
    ]
    assert not listing.more
    boxes = [recording.boxes_url for recording in listing.recordings]
    assert [recording.finished for recording in listing.recordings] == [False] + [True] * 4
    assert boxes == [None, None, None, None, f"/api/recordings/door/video/{BOXES}"]
    assert listing.recordings[-1].start_utc == "2026-11-22T12:00:00.000Z"
    limited = list_recordings(folder, "door", limit=1)
    assert [recording.name for recording in limited.recordings] == ["20261122T130000Z.mkv"]
    assert limited.more
    assert len(list_recordings(folder, kind="snapshots").recordings) == 1
    assert list_recordings(folder / "absent").recordings == []
    assert list_recordings(None).recordings == []


@pytest.mark.parametrize(
    ("camera", "kind", "name"),
    [
        ("door", "video", "../token"),
        ("door", "video", "token"),
        ("door", "..", "token"),
        ("..", "live", "token"),
        ("door", "other", VIDEO),
        ("link", "video", VIDEO),
        ("yard", "video", VIDEO),
        ("door", "video", "20261122T140000Z.mp4"),
        ("door", "video", "20261122T160000Z.partial.ass"),
        ("door", "video", "20261122T150000Z.mp4"),
        ("bad name", "video", VIDEO),
        ("DOOR", "video", VIDEO),
        ("door", "video", "20261122T120000Z.mp4\0.txt"),
        ("", "", ""),
    ],
)
def test_path_that_is_not_a_recording_is_not_found(folder, camera, kind, name):
    assert find_recording(folder, camera, kind, name) is None


@pytest.mark.net
def test_only_recordings_can_be_downloaded(folder):
    with Served(FakeRun("door")) as served:
        served.page.recordings = folder
        listed = served.client.ask("/api/recordings?limit=5").json()["recordings"]
        partial = served.client.ask(listed[0]["url"])
        assert (partial.status, partial.body) == (200, FRAGMENTS)
        file = folder / "gate/video/20261122T160000Z.partial.mp4"
        file.write_bytes(b"not a video")
        assert served.client.ask(listed[0]["url"]).status == 404
        file.rename(file.with_name("20261122T160000Z.mp4"))
        assert served.client.ask(listed[0]["url"]).status == 200  # finished since the list was made
        whole = served.client.ask(listed[-1]["url"])
        assert (whole.status, len(whole.body)) == (200, 1024)
        assert whole.headers["content-type"] == "video/mp4"
        assert whole.headers["content-disposition"] == f'attachment; filename="door-{VIDEO}"'
        boxes = served.client.ask(listed[-1]["boxes_url"])
        assert (boxes.status, boxes.body) == (200, b"boxes")
        assert boxes.headers["content-disposition"] == f'attachment; filename="door-{BOXES}"'
        assert boxes.headers["content-type"] == "text/x-ssa; charset=utf-8"
        url = f"/api/recordings/door/video/{VIDEO}"
        for byte_range, status, body in (
            ("bytes=0-3", 206, b"\0\1\2\3"),
            ("bytes=-2", 206, b"\xfe\xff"),
            ("bytes=1020-", 206, b"\xfc\xfd\xfe\xff"),
            ("bytes=5000-", 416, b""),
            ("bytes=" + ",".join(["0-0"] * 99), 400, None),  # long headers made some libraries slow
        ):
            answer = served.client.ask(url, headers={"Range": byte_range})
            assert answer.status == status, byte_range
            assert body is None or answer.body == body
        for path in (
            "/api/recordings/door/video/../token",
            "/api/recordings/door/video/..%2Ftoken",
            "/api/recordings/door/video/%2e%2e%2ftoken",
            "/api/recordings/door/..%2F..%2Fsecret.mp4",
            "/api/recordings/..%2F..%2F/video/secret.mp4",
            "/api/recordings/door%2F..%2F..%2Fsecret.mp4",
            "/api/recordings//etc/passwd",
            "/api/recordings/door/video/%00",
            "/../token",
            "/site/../../token",
            "//token",
            "/%2e%2e/token",
        ):
            answer = served.client.ask(path)
            assert answer.status in (400, 404), path
            assert SECRET not in answer.body
        limit = served.client.ask("/api/recordings?limit=0")
        assert limit.status == 422


def test_recordings_that_begin_in_the_same_second_are_ordered_by_number(folder):
    names = [f"20261122T170000Z{end}.mp4" for end in ("", "-2", "-10")]
    for name in names:
        (folder / "door/video" / name).write_bytes(b"x")
    listed = list_recordings(folder, limit=3).recordings
    assert [recording.name for recording in listed] == names[::-1]
