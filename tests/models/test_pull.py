"""``models pull`` from a local server: whole, interrupted, resumed, wrong and missing files."""

import hashlib
import re
from pathlib import Path

import pytest

from detector.core.commands import models
from detector.core.errors import ModelError
from detector.core.models import catalogue
from detector.core.models.catalogue import known, known_model
from detector.core.models.pull import pull
from tests.cli.command import cli_runner
from tests.networks import open_network, refusal
from tests.sources.web_server import web_server

CONTENT = bytes(range(256)) * 1000  # 256,000 bytes: several blocks
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server():
    with web_server() as running:
        running.put("/m.onnx", CONTENT)
        yield running


@pytest.fixture
def page(server):
    return server.pages["/m.onnx"]


def requested_ranges(server):
    return [headers.get("Range") for _, headers in server.requests]


@pytest.fixture
def describe(tmp_path, monkeypatch, server):
    (tmp_path / "cfg/models").mkdir(parents=True)
    monkeypatch.setattr(catalogue, "folder", lambda: tmp_path / "cfg")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    def write(**more: object) -> Path:
        """Write cfg/models/m.yaml; return the path to which its file is downloaded."""
        values = {
            "family": "yolox",
            "file": "m.onnx",
            "url": server.url("/m.onnx"),
            "sha256": DIGEST,
            "bytes": len(CONTENT),
            "licence": "Apache-2.0",
            **more,
        }
        lines = [f"{key}: {value}\n" for key, value in values.items() if value is not None]
        (tmp_path / "cfg/models/m.yaml").write_text("".join(lines))
        return tmp_path / "cache/detect-video/models/m.onnx"

    return write


def test_file_is_downloaded_once(describe, server):
    target, steps = describe(), []
    assert pull("m", lambda done, total: steps.append((done, total))) == (target, True)
    assert target.read_bytes() == CONTENT
    assert steps[0] == (0, len(CONTENT))
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    assert steps == sorted(steps)
    assert pull("m") == (target, False), "it is there already"
    assert requested_ranges(server) == ["bytes=0-"]
    assert [path.name for path in target.parent.iterdir()] == ["m.onnx"]


def test_licence_is_printed_before_the_download(describe, server, page):
    target = describe(licence="AGPL-3.0 (the weights)")
    page.status = 404
    failed = cli_runner().invoke(models.pull, ["m"])
    assert failed.exit_code == 4
    assert "m: AGPL-3.0 (the weights); " in failed.stdout
    assert f":{server.server_port}/m.onnx\n" in failed.stdout
    page.status = 200
    first, second = cli_runner().invoke(models.pull, ["m"]).stdout.splitlines()
    assert first == failed.stdout.rstrip()
    assert second.startswith(f"{target}: downloaded")
    assert cli_runner().invoke(models.pull, ["m", "--quiet"]).stdout == ""


def test_official_files_of_yolov5_and_yolov7_can_be_pulled():
    for name in known():
        download = known_model(name).download
        if name.startswith(("yolov5", "yolov7")):
            assert download is not None
            assert re.fullmatch("[0-9a-f]{64}", download.sha256 or ""), name
            assert download.size, name
            assert download.url.startswith("https://github.com/"), name


def test_size_and_sha256_of_yolov5n_are_those_of_the_real_file(shared):
    download = known_model("yolov5n").download
    assert download is not None
    data = (shared / "data/weights/yolov5n.pt").read_bytes()
    assert (download.size, download.sha256) == (len(data), hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize(
    ("name", "licence"),
    [*((f"yolov5{size}", "AGPL-3.0") for size in "nsmlx"), ("yolov7", "GPL-3.0")],
)
def test_copyleft_weights_state_their_licence(name, licence):
    assert known_model(name).licence.startswith(licence)


@pytest.mark.slow
def test_damaged_file_is_downloaded_again(describe):
    target = describe()
    target.parent.mkdir(parents=True)
    target.write_bytes(b"?" * len(CONTENT))
    assert pull("m") == (target, True)
    assert target.read_bytes() == CONTENT
    assert target.with_name("m.onnx.replaced").read_bytes() == b"?" * len(CONTENT)


@pytest.mark.parametrize("ranges", [True, False])
def test_interrupted_download_resumes(describe, server, page, ranges):
    """A server that cannot resume sends the whole file again."""
    target = describe()
    page.cut, page.ranges = 100_000, ranges
    with pytest.raises(ModelError, match="m: the connection ended after 100000 of 256000 bytes"):
        pull("m")
    assert not target.exists(), "no partial file under the final name"
    page.cut = None
    assert pull("m") == (target, True)
    assert target.read_bytes() == CONTENT
    assert requested_ranges(server) == ["bytes=0-", "bytes=100000-"]


WRONG = CONTENT[:-1] + b"?"
MISMATCH = f"256000 bytes .*{hashlib.sha256(WRONG).hexdigest()} .* 256000 bytes .*{DIGEST}"


@pytest.mark.parametrize(
    ("content", "message"), [(WRONG, MISMATCH), (CONTENT * 50, "256001 bytes")]
)
def test_wrong_or_too_long_download_is_removed(describe, page, content, message):
    target = describe()
    page.data = content
    with pytest.raises(ModelError, match=message):
        pull("m")
    assert list(target.parent.iterdir()) == []


def test_download_restarts_if_the_partial_file_is_too_long(describe, server, page):
    """The server has another file now, refuses the range, and gets a request for the whole file."""
    target = describe()
    target.parent.mkdir(parents=True)
    target.with_name("m.onnx.partial").write_bytes(b"?" * 200_000)
    page.data = CONTENT[:100_000]
    with pytest.raises(ModelError, match="100000 of 256000 bytes"):
        pull("m")
    assert requested_ranges(server) == ["bytes=200000-", None]


@pytest.mark.parametrize("reason", ["HTTP 404 Not Found", "Connection refused"])
def test_failed_download_says_where_to_put_the_file(describe, reason, page):
    target = describe()
    if reason.startswith("HTTP"):
        page.status = 404
    else:
        describe(url="http://127.0.0.1:9/m.onnx")  # the discard port, where no server listens
    with pytest.raises(ModelError) as caught:
        pull("m")
    assert f"{target} yourself (sha256 {DIGEST})" in str(caught.value)
    assert reason in str(caught.value)
    assert "try again" in str(caught.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"sha256": None}, r"m: .* checksum .* needs m.onnx, which is missing: put "),
        ({"url": "file:///etc/passwd"}, "file:///etc/passwd: only http and https"),
        ({"url": None}, "m: nothing to pull: it is part of the package"),
    ],
)
def test_error_for_a_model_that_cannot_be_pulled_says_why(describe, more, message):
    describe(**more)
    with pytest.raises(ModelError, match=message):
        pull("m")


def test_second_pull_at_the_same_time_is_refused(describe):
    import fcntl

    target = describe()
    target.parent.mkdir(parents=True)
    with target.with_name("m.onnx.partial").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ModelError, match="m: another process"):
            pull("m")


def test_error_for_a_missing_model_says_how_to_pull_it(describe):
    target = describe()
    reason = refusal("m")
    assert "models pull m" in reason
    assert str(target) in reason


@pytest.mark.slow
def test_weights_of_a_packaged_cfg_are_found_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelError, match="models pull yolov4-tiny"):
        open_network("yolov4-tiny")
    weights = tmp_path / "detect-video/models/yolov4-tiny.weights"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"\0" * 100)
    with pytest.raises(ModelError, match=r"yolov4-tiny.weights"):  # found, but too short
        open_network("yolov4-tiny")
    assert open_network("yolov4-tiny", random_seed=1).parameters * 4 + 20 == 24251276, (
        "the stated size"
    )
