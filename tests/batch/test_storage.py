"""Reading videos from a store and writing results to it, over connections that are cut, slow or
refused. The store is moto's S3 server, on this machine. Web servers are tested, too."""

import os
import re

import pytest

from detector.batch import bucket, stores
from detector.batch.bucket import BucketOutputs
from detector.batch.item import Task, process_item, spec_of
from detector.batch.listing import list_sources, look_at
from detector.batch.places import open_outputs
from detector.core.errors import OutputError, SourceError
from detector.core.sources import _ranges, _storage
from detector.core.sources import open as open_source
from detector.core.sources._addresses import parse_address
from tests.batch.pools import place_results, record_of
from tests.batch.storage import ENVIRONMENT, Wire, s3_server, small_model, task_of, use_store
from tests.cli.command import assert_one_line_error, detect_video_anew, summary_of
from tests.cli.small import write_network
from tests.sources.clips import write_video
from tests.sources.web_server import web_server

pytestmark = [pytest.mark.net, pytest.mark.slow]


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("s3fs", reason="machine: s3fs is not installed")
    pytest.importorskip("moto.server", reason="machine: moto is not installed")
    with s3_server() as port, pytest.MonkeyPatch.context() as patch:
        wire = Wire(port)
        store = use_store(patch, wire.port)
        store.mkdir("videos")
        yield wire, store
        wire.close()
    _storage._open.cache_clear()


@pytest.fixture
def wire(server, monkeypatch, tmp_path):
    wire, _ = server
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(_ranges, "PAUSES_S", (0.0, 0.0))
    wire.reset()
    yield wire
    wire.reset()


@pytest.fixture
def store(wire, server):
    _, store = server
    for key in store.find("videos"):
        store.rm_file(key)
    wire.reset()
    return store


@pytest.fixture
def model(tmp_path):
    with small_model(tmp_path) as opened:
        yield opened


def upload(store, tmp_path, name="in/a.mp4", frames=12, **options):
    path = write_video(tmp_path / name.rpartition("/")[2], frames, **options)
    store.pipe_file(f"videos/{name}", path.read_bytes())
    return path


def read_all(address, **options):
    with open_source(spec_of(str(address)), **options) as source:
        return [(frame.pts, frame.image.tobytes()) for frame in source], source


def test_version_of_an_item_changes_with_its_object(store, tmp_path):
    upload(store, tmp_path)
    upload(store, tmp_path, "in/sub/b.mp4")
    listing = list_sources(["s3://videos/in/"], "out")
    assert [(item.name, item.path) for item in listing.items] == [
        ("a.mp4", "s3://videos/in/a.mp4"),
        ("sub/b.mp4", "s3://videos/in/sub/b.mp4"),
    ]
    for item in listing.items:
        assert look_at(item.path) == (item.size, item.version)
        assert item.version.startswith(f"{item.size}-")
    before = listing.items[0].version
    data = bytearray(store.cat_file("videos/in/a.mp4"))
    data[-1] ^= 1
    store.pipe_file("videos/in/a.mp4", bytes(data))
    assert list_sources(["s3://videos/in/a.mp4"], "out").items[0].version != before


def test_skipped_objects_of_a_prefix_are_counted(store, tmp_path):
    upload(store, tmp_path)
    for key in ("b.TXT", "sub/c.txt", "sub/d.jpg", "README", ".hidden.txt", "sub/.x/e.txt"):
        store.pipe_file(f"videos/in/{key}", b"x")
    store.pipe_file("videos/in/out/files/f.txt", b"x")
    for source in ("s3://videos/in/", "s3://videos/in/**"):
        listing = list_sources([source], "s3://videos/in/out")
        assert [item.name for item in listing.items] == ["a.mp4"]
        (note,) = listing.notes()
        assert re.findall(r"\d \.?\w+", note) == ["4 skipped", "2 .txt", "1 without", "1 .jpg"]


def test_objects_are_listed_with_one_request_per_page(store, wire, monkeypatch):
    for number in range(7):
        store.pipe_file(f"videos/in/{number}.mp4", b"x")
    monkeypatch.setattr(stores, "PAGE", 3)
    wire.requests.clear()
    assert len(list_sources(["s3://videos/in/"], "out").items) == 7
    assert len(wire.requests) == 3


@pytest.mark.parametrize("pixels", ["bgr", "yuv420p"])
@pytest.mark.parametrize("at_end", [False, True], ids=["moov first", "moov last"])
def test_frames_from_a_store_equal_those_of_the_local_file(store, tmp_path, pixels, at_end):
    path = tmp_path / "a.mov" if at_end else tmp_path / "a.mp4"
    write_video(path, 24)
    store.pipe_file(f"videos/{path.name}", path.read_bytes())
    frames, source = read_all(f"s3://videos/{path.name}", pixels=pixels)
    with open_source(str(path), pixels=pixels) as local:
        assert frames == [(frame.pts, frame.image.tobytes()) for frame in local]
        assert source.pixels == local.pixels
    assert not source.damaged
    assert len(frames) == 24


def test_each_byte_is_requested_about_once_and_no_copy_is_stored(
    store, wire, tmp_path, model, monkeypatch
):
    monkeypatch.setattr(_ranges, "BLOCK", 1 << 14)
    monkeypatch.setattr(_ranges, "CACHED_BLOCKS", 6)
    path = upload(store, tmp_path, frames=100, crf="10")
    size = path.stat().st_size
    assert size > 20 << 14  # the file is larger than the cache
    path.unlink()
    progress = []
    outputs = open_outputs(str(tmp_path / "out"))
    wire.received = 0
    task = task_of("s3://videos/in/a.mp4")
    most = [0]

    def watch(frames):
        files = [os.path.join(at, name) for at, _, names in os.walk(tmp_path) for name in names]
        most[0] = max(most[0], *(os.path.getsize(file) for file in files))
        progress.append(frames)

    record = process_item(task, model, outputs, watch=watch)
    assert (record.frames, record.exit.code, record.size) == (100, 0, size)
    assert most[0] < size / 2
    assert wire.received < 1.5 * size
    ranges = [line for line in wire.requests if line.startswith(b"GET /videos/in/a.mp4")]
    assert len(ranges) <= size / (1 << 14) + 12


@pytest.mark.parametrize("cuts", [1, 1000], ids=["once", "for ever"])
def test_lost_connection_is_retried_and_then_reported(
    store, wire, tmp_path, model, cuts, monkeypatch
):
    monkeypatch.setattr(_ranges, "BLOCK", 1 << 14)
    monkeypatch.setattr(_ranges, "CACHED_BLOCKS", 4)
    upload(store, tmp_path, frames=60, crf="10")
    outputs = open_outputs(str(tmp_path / "out"))
    task = task_of("s3://videos/in/a.mp4")

    def cut(frames):
        if frames == 5:
            wire.cut_at, wire.cuts = 1 << 13, cuts

    if cuts == 1:
        record = process_item(task, model, outputs, watch=cut)
        assert (record.frames, record.exit.code) == (60, 0)
        assert wire.cuts == 0
        return
    with pytest.raises(SourceError, match="connection"):
        process_item(task, model, outputs, watch=cut)
    assert list(tmp_path.glob("out/files/*")) == []


def test_slow_connection_delivers_all_frames(store, wire, tmp_path):
    upload(store, tmp_path, frames=30)
    wire.pause_s = 0.02
    assert len(read_all("s3://videos/in/a.mp4")[0]) == 30


def test_source_that_changes_during_the_run_raises(store, tmp_path, model):
    upload(store, tmp_path, frames=30)
    task = task_of("s3://videos/in/a.mp4")

    def change(frames):
        if frames == 3:
            store.pipe_file("videos/in/a.mp4", store.cat_file("videos/in/a.mp4") + b"\0")

    with pytest.raises(SourceError, match="changed"):
        process_item(task, model, open_outputs(str(tmp_path / "out")), watch=change)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("s3://videos/gone.mp4", "no such"),
        ("s3://nobucket/a.mp4", "no such"),
        ("s3://nobucket/", "no such"),
        ("s3://videos/empty/", "no video"),
    ],
)
def test_missing_object_or_bucket_raises_source_error(store, source, message):
    with pytest.raises(SourceError, match=message):
        list_sources([source], "out")


def test_playlist_in_a_store_opens_no_other_file(store, wire, tmp_path):
    clip = write_video(tmp_path / "secret.ts", 3)
    for target in (str(clip), f"http://127.0.0.1:{wire.port}/videos/other.ts"):
        playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{target}\n#EXT-X-ENDLIST\n"
        concat = f"ffconcat version 1.0\nfile '{target}'\n"
        for name, text in (("a.m3u8", playlist), ("a.mp4", playlist), ("a.ffconcat", concat)):
            store.pipe_file(f"videos/{name}", text.encode())
            wire.requests.clear()
            with pytest.raises(SourceError):
                read_all(f"s3://videos/{name}")
            assert not any(b"other.ts" in line for line in wire.requests)


def test_large_results_are_uploaded_in_parts(store, wire, tmp_path, monkeypatch):
    monkeypatch.setattr(bucket, "PART_BYTES", 5 << 20)  # the minimum of S3
    outputs = BucketOutputs("s3://videos/out")
    task = Task(name="a.mp4", path="s3://videos/a.mp4", version="1-x")
    scratch = outputs.begin(task.name)
    (scratch / "video.mp4").write_bytes(bytes(12 << 20))
    wire.requests.clear()
    outputs.commit(task.name, scratch, record_of(task, "d"))
    assert store.size("videos/out/files/a.mp4/video.mp4") == 12 << 20
    assert sum(b"partNumber" in line for line in wire.requests) >= 2
    assert outputs.read_marker("a.mp4").settings == "d"


def test_discard_removes_unfinished_uploads_of_the_item(store):
    outputs = BucketOutputs("s3://videos/out")
    place_results(Task(name="b.mp4", path="x", version="1-x"), outputs, "d")
    for key in ("out/files/a.mp4/video.mp4", "elsewhere/a.mp4"):
        store.call_s3("create_multipart_upload", Bucket="videos", Key=key)
    store.pipe_file("videos/out/files/a.mp4/detections.jsonl", b"{}")
    outputs.discard("a.mp4")
    outputs.discard("b.mp4")
    uploads = store.call_s3("list_multipart_uploads", Bucket="videos").get("Uploads", [])
    assert [one["Key"] for one in uploads] == ["elsewhere/a.mp4"]
    assert sorted(store.find("videos/out")) == [
        "videos/out/files/b.mp4/detections.jsonl",
        "videos/out/files/b.mp4/done.json",
    ]


def test_second_create_does_not_overwrite_the_settings_file(store):
    outputs = BucketOutputs("s3://videos/out")
    place = parse_address("s3://videos/out/job.json")
    assert outputs._create(place, b"first")
    assert not outputs._create(place, b"second")
    assert store.cat_file("videos/out/job.json") == b"first"


def test_error_names_the_endpoint_variable_if_the_store_is_unreachable(store, wire):
    wire.dead = True
    with pytest.raises(SourceError, match=r"connection.*AWS_ENDPOINT_URL"):
        look_at("s3://videos/in/a.mp4")
    with pytest.raises(OutputError, match="connection"):
        BucketOutputs("s3://videos/out").fetch_home()


def test_command_reads_and_writes_a_store_and_refuses_missing_credentials(store, wire, tmp_path):
    write_network(tmp_path)
    for name in ("in/a.mp4", "in/sub/b.mp4"):
        upload(store, tmp_path, name)
    store.pipe_file("videos/in/text.mp4", b"no video")
    words = (*"batch s3://videos/in/ -o s3://videos/out --model x.cfg --engine null".split(),)
    environment = {
        **ENVIRONMENT,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{wire.port}",
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    done = detect_video_anew(*words, "--json", "--workers", "1", cwd=tmp_path, env=environment)
    assert done.returncode == 7, done.stderr
    result = summary_of(done)
    assert (result["items"]["done"], result["items"]["failed"]) == (2, 1)
    assert result["failures"][0]["tries"] == 2
    keys = {key.removeprefix("videos/out/") for key in store.find("videos/out")}
    assert {"files/a.mp4/done.json", "files/a.mp4/video.mp4", "job.json"} <= keys
    assert {"files/sub/b.mp4/detections.jsonl", "manifest.sqlite", "failures.jsonl"} <= keys
    everything = b"".join(store.cat_file(key) for key in store.find("videos/out"))
    assert ENVIRONMENT["AWS_SECRET_ACCESS_KEY"].encode() not in everything
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment[name] = ""
    environment["HOME"] = str(tmp_path)
    refused = detect_video_anew(
        *words[:2], "-o", "other", *words[4:], cwd=tmp_path, env=environment
    )
    assert_one_line_error(refused, 3, "AWS_PROFILE")


# Web servers.


DATE = "Sun, 22 Nov 2026 10:00:00 GMT"


@pytest.fixture
def web():
    with web_server() as server:
        yield server


def test_web_file_is_listed_and_processed(web, tmp_path, model):
    data = write_video(tmp_path / "c d.mp4", 20).read_bytes()
    url = web.put("/a%20b/c%20d.mp4", data, headers={"Last-Modified": DATE})
    lines = f"{url}\n{web.url('/gone.mp4')}\n"
    (tmp_path / "list.txt").write_text(lines)
    for spec in (url, str(tmp_path / "list.txt"), web.put("/list.txt", lines.encode())):
        listing = list_sources([spec], "out")
        [item] = listing.items
        assert item.name in ("c d.mp4", "a b/c d.mp4")
        assert item.version == f"{len(data)}-{DATE}"
    assert [one.exit_code for one in listing.refused] == [3]
    task = Task(name=item.name, path=item.path, version=item.version)
    record = process_item(task, model, open_outputs(str(tmp_path / "out")))
    assert (record.frames, record.version) == (20, item.version)


def test_web_server_without_ranges_is_read_in_one_request(web, tmp_path, monkeypatch):
    monkeypatch.setattr(_ranges, "BLOCK", 1 << 12)
    path = write_video(tmp_path / "a.mp4", 20, crf="10")
    frames, _ = read_all(web.put("/a.mp4", path.read_bytes(), ranges=False))
    assert frames == read_all(path)[0]
    assert len(web.requests) == 1


def test_missing_web_file_or_server_raises_source_error(web):
    with pytest.raises(SourceError, match="no such file"):
        look_at(web.url("/gone.mp4"))
    with pytest.raises(SourceError, match="connection"):
        look_at("http://127.0.0.1:9/a.mp4")
