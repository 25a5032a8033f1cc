"""Downloads of recordings: which files are allowed, and byte ranges."""

from __future__ import annotations

import pytest

from detector.live.page.recordings import find_recording, list_recordings
from tests.live.page.conftest import Served
from tests.live.page.rehearsal import Rehearsal

VIDEO, BOXES = "20261122T120000Z.mp4", "20261122T120000Z.ass"
# The start of a file that is still being written, up to its first whole fragment.
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


def test_the_list(folder):
    found = list_recordings(folder)
    assert [(one.camera, one.kind, one.name, one.bytes) for one in found.recordings] == [
        ("gate", "video", "20261122T160000Z.partial.mp4", len(FRAGMENTS) + 6),
        ("door", "video", "20261122T130000Z.mkv", 10),
        ("gate", "video", "20261122T123000Z.mp4", 20),
        ("gate", "snapshots", "20261122T123000.250Z-appears-person.jpg", 1),
        ("door", "video", VIDEO, 1024),
    ]
    assert not found.more
    boxes = [one.boxes_url for one in found.recordings]
    assert [one.finished for one in found.recordings] == [False] + [True] * 4
    assert boxes == [None, None, None, None, f"/api/recordings/door/video/{BOXES}"]
    assert found.recordings[-1].start_utc == "2026-11-22T12:00:00.000Z"
    some = list_recordings(folder, "door", limit=1)
    assert [one.name for one in some.recordings] == ["20261122T130000Z.mkv"]
    assert some.more
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
def test_downloads(folder):
    one = Served(Rehearsal("door"))
    one.page.recordings = folder
    try:
        listed = one.client.ask("/api/recordings?limit=5").json()["recordings"]
        so_far = one.client.ask(listed[0]["url"])
        assert (so_far.status, so_far.body) == (200, FRAGMENTS)
        made = folder / "gate/video/20261122T160000Z.partial.mp4"
        made.write_bytes(b"nothing that plays")
        assert one.client.ask(listed[0]["url"]).status == 404
        made.rename(made.with_name("20261122T160000Z.mp4"))
        assert one.client.ask(listed[0]["url"]).status == 200  # it was finished meanwhile
        whole = one.client.ask(listed[-1]["url"])
        assert (whole.status, len(whole.body)) == (200, 1024)
        assert whole.headers["content-type"] == "video/mp4"
        assert whole.headers["content-disposition"] == f'attachment; filename="door-{VIDEO}"'
        boxes = one.client.ask(listed[-1]["boxes_url"])
        assert (boxes.status, boxes.body) == (200, b"boxes")
        assert boxes.headers["content-disposition"] == f'attachment; filename="door-{BOXES}"'
        assert boxes.headers["content-type"] == "text/x-ssa; charset=utf-8"
        url = f"/api/recordings/door/video/{VIDEO}"
        for asked, status, body in (
            ("bytes=0-3", 206, b"\0\1\2\3"),
            ("bytes=-2", 206, b"\xfe\xff"),
            ("bytes=1020-", 206, b"\xfc\xfd\xfe\xff"),
            ("bytes=5000-", 416, b""),
            ("bytes=" + ",".join(["0-0"] * 99), 400, None),  # long ones were slow in libraries
        ):
            answer = one.client.ask(url, headers={"Range": asked})
            assert answer.status == status, asked
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
            answer = one.client.ask(path)
            assert answer.status in (400, 404), path
            assert SECRET not in answer.body
        limit = one.client.ask("/api/recordings?limit=0")
        assert limit.status == 422
    finally:
        one.close()


def test_of_one_second_the_last_one_is_the_newest(folder):
    names = [f"20261122T170000Z{end}.mp4" for end in ("", "-2", "-10")]
    for name in names:
        (folder / "door/video" / name).write_bytes(b"x")
    assert [one.name for one in list_recordings(folder, limit=3).recordings] == names[::-1]
