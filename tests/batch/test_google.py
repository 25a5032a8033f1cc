"""Jobs that read and write gs:// addresses, which a local server with Google's API serves. It does
not support conditional writes, and does not ask for credentials."""

import importlib.util

import pytest

from detector.core.sources import _storage
from tests.batch.storage import google_server
from tests.cli.command import detect_video_anew, summary_of
from tests.cli.small import write_network
from tests.sources.clips import write_video

NEEDS = ("gcsfs", "gcp_storage_emulator")
pytestmark = [
    pytest.mark.net,
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, NEEDS)),
        reason="machine: gcsfs and gcp-storage-emulator are not installed",
    ),
]
SETTINGS = ("--model", "x.cfg", "--engine", "null", "--json", "--workers", "1")


@pytest.fixture
def store(monkeypatch):
    with google_server("videos") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        import gcsfs  # reads the environment when it is imported

        _storage._open.cache_clear()
        yield gcsfs.GCSFileSystem(skip_instance_cache=True, use_listings_cache=False)
    _storage._open.cache_clear()


@pytest.mark.nightly
def test_stored_results_equal_local_ones_and_resume_repeats_changed_items(store, tmp_path):
    write_network(tmp_path)
    for name in ("in/a.mp4", "in/sub/b.mp4"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        store.pipe_file(f"videos/{name}", write_video(path, 12).read_bytes())
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}

    def run(*words):
        done = detect_video_anew("batch", *words, *SETTINGS, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        return summary_of(done)["items"]

    assert run("in", "-o", "out")["done"] == 2
    assert run("gs://videos/in/", "-o", "gs://videos/out")["done"] == 2
    for name in ("a.mp4", "sub/b.mp4"):
        for file in ("detections.jsonl", "video.mp4"):
            stored = store.cat_file(f"videos/out/files/{name}/{file}")
            local = (tmp_path / "out/files" / name / file).read_bytes()
            assert stored.replace(b"gs://videos/in", str(tmp_path / "in").encode()) == local
    store.pipe_file("videos/in/a.mp4", (tmp_path / "in/sub/b.mp4").read_bytes() + bytes(8))
    again = run("-o", "gs://videos/out", "--resume")
    assert (again["done"], again["skipped"]) == (1, 1)


def test_missing_bucket_exits_3(store, tmp_path):
    done = detect_video_anew("batch", "gs://nobucket/in/", "-o", "out", cwd=tmp_path)
    assert (done.returncode, "no such bucket" in done.stderr) == (3, True)
