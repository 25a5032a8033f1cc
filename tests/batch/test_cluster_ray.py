"""A job on a real Ray, in which a worker is killed."""

import importlib.util
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from detector.batch.cluster.pool import OPENING_S
from detector.batch.places import SCRATCH
from tests.batch.killing import is_worker
from tests.batch.processes import listening
from tests.cli.command import detect_video, start, summary_of
from tests.cli.small import write_network
from tests.conftest import CHECKOUT
from tests.processes import all_pids, children_of, command_line, descendants
from tests.sources.clips import write_video
from tests.waiting import PATIENCE_S, wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="machine: ray is not installed"
    ),
]
MODEL = ("--model", "x.cfg", "--engine", "ort", "--conf", "0.1")
NAMES = ("a.mp4", "sub/b.mp4", "long.mp4")
# With Ray's default niceness of 15, the test took 146 to 411 s on a busy machine, and 28 s on an
# idle machine.
NORMAL_PRIORITY = {"RAY_worker_niceness": "0"}


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder with a short path, since Ray puts sockets into it, whose paths must be short."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_results_after_an_actor_is_killed_equal_those_of_the_local_pool(tmp_path, temporary):
    (tmp_path / "in/sub").mkdir(parents=True)
    for name, frames in zip(NAMES, (12, 9, 1200), strict=True):
        write_video(tmp_path / "in" / name, frames)
    (tmp_path / "in/text.mp4").write_text("no video")
    write_network(tmp_path)

    words = ("batch", "in", *MODEL, "--no-video", "--workers", 1, "--json")
    environment = {**NORMAL_PRIORITY, "TMPDIR": str(temporary)}
    process = start(*words, "-o", "ray", "--on", "ray", cwd=tmp_path, env=environment)

    def has_begun() -> bool:
        assert process.poll() is None, process.communicate()
        return any((tmp_path / "ray").glob(f"{SCRATCH}*"))

    wait_for(has_begun, OPENING_S + PATIENCE_S, "an item")
    (folder,) = temporary.glob("dv-ray-*")
    (worker,) = [pid for pid in filter(is_worker, all_pids()) if str(folder) in command_line(pid)]
    os.kill(worker, signal.SIGSTOP)  # keep the item unfinished until the actor is killed
    started = descendants(process.pid)
    (actor,) = [pid for pid in started if command_line(pid).startswith("ray::Worker")]
    assert worker in children_of(actor)
    addresses = listening(started)
    os.kill(actor, signal.SIGKILL)
    with suppress(ProcessLookupError):  # Ray may have killed the worker already
        os.kill(worker, signal.SIGCONT)
    stdout, stderr = process.communicate(240)
    assert process.returncode == 7, stderr
    done = json.loads(stdout)
    assert done["items"]["done"] == 3
    assert done["items"]["retried"] == 1
    (failure,) = done["failures"]
    assert (failure["name"], failure["exit_code"]) == ("text.mp4", 3)
    assert [one["starts"] for one in done["report"]["workers"]] == [2]
    assert "Traceback" not in stderr
    assert set(addresses) == {"127.0.0.1"}

    wait_for(
        lambda: not any(map(command_line, [worker, *started])), what="the end of the processes"
    )
    assert list(temporary.glob("dv-ray-*")) == []
    assert [path.name for path in (tmp_path / "ray").iterdir() if "cluster" in path.name] == []

    local = detect_video(*words, "-o", "local", cwd=tmp_path)
    assert local.returncode == 7, local.stderr
    assert summary_of(local)["settings"]["digest"] == done["settings"]["digest"]
    for name in NAMES:
        one, other = (tmp_path / out / "files" / name for out in ("ray", "local"))
        rows = (one / "detections.jsonl").read_bytes()
        assert rows == (other / "detections.jsonl").read_bytes()
        assert rows


def test_cluster_file_matches_the_schema_of_ray():
    import jsonschema

    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    schema = json.loads((Path(spec.origin).parent / "autoscaler/ray-schema.json").read_text())
    document = yaml.safe_load((CHECKOUT / "deploy/ray-cluster.yaml").read_text())
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "max_workers": "two"}, schema)
