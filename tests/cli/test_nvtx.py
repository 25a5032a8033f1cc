"""NVTX ranges of the real command, recorded by an injection library."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.cli.command import detect_video, summary_of
from tests.conftest import CHECKOUT
from tests.nvtx_log import build_probe, probe_env, read_log

STAGES = ("read", "preprocess", "infer", "head", "nms", "annotate", "write")


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    return build_probe(tmp_path_factory.mktemp("probe"))


def run(tmp_path, probe, *more):
    log = tmp_path / "nvtx.log"
    process = detect_video(
        CHECKOUT / "videos/street.mp4",
        *("--size", "160x96", "--frames", 25, "--json", *more),
        cwd=tmp_path,
        env=probe_env(probe, log),
    )
    return process, log


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [[], ["--batch", 4], ["--concurrency", 1], ["--concurrency", 2], ["--sync"]],
    ids=lambda more: str(more),
)
def test_each_call_of_a_stage_has_one_range(tmp_path, probe, more):
    process, log = run(tmp_path, probe, *more)
    assert process.returncode == 0, process.stderr
    summary = summary_of(process)
    ranges = read_log(log)  # also checks that ranges are nested and closed
    work = [found for found in ranges if found.category == "work"]
    assert Counter(found.name for found in work) == {
        name: summary["stages"][name]["calls"] for name in STAGES
    }
    assert {found.category for found in ranges} <= {"work", "wait_input", "wait_output"}
    for name in ("preprocess", "head", "nms", "annotate", "write"):
        assert sorted(found.payload for found in work if found.name == name) == list(range(25))
    batches = summary["stages"]["infer"]["calls"]
    assert sorted(found.payload for found in work if found.name == "infer") == list(range(batches))
    if "--sync" in more:
        assert len({found.thread for found in work}) == 1
    else:
        threads_of = {stage: {one.thread for one in work if one.name == stage} for stage in STAGES}
        assert threads_of["read"] == threads_of["preprocess"]
        assert threads_of["head"] == threads_of["nms"] == threads_of["infer"]
        assert threads_of["annotate"] == threads_of["write"]
        assert not threads_of["infer"] & (threads_of["read"] | threads_of["write"])
        assert len(threads_of["read"]) == len(threads_of["write"]) == 1
        assert threads_of["read"] != threads_of["write"]
        # By default, the number of workers depends on the number of cores. A worker that starts
        # late may find no work left.
        assert 1 <= len(threads_of["infer"]) <= summary["concurrency"]


@pytest.mark.slow
def test_ranges_are_closed_when_a_stage_raises(tmp_path, probe):
    log = tmp_path / "nvtx.log"
    (tmp_path / "sitecustomize.py").write_text(
        "import detector.core.engines.null as null\n"
        "from detector.core.errors import EngineError\n"
        "calls = 0\n"
        "def infer(self, n, real=null.NullRequest.infer):\n"
        "    global calls\n"
        "    calls += 1\n"
        "    if calls > 6:\n"
        "        raise EngineError('engine null: planted failure')\n"
        "    return real(self, n)\n"
        "null.NullRequest.infer = infer\n"
    )
    process = detect_video(
        CHECKOUT / "videos/street.mp4",
        *("--engine", "null"),
        cwd=tmp_path,
        env={**probe_env(probe, log), "PYTHONPATH": str(tmp_path)},
    )
    assert process.returncode == 5, process.stderr
    assert "planted failure" in process.stderr
    ranges = read_log(log)
    # The first call is the warm-up, which has no range. The six others belong to the run. The last
    # call fails, but its range is closed.
    assert sorted(found.payload for found in ranges if found.name == "infer") == list(range(6))


@pytest.mark.slow
def test_nvtx_can_be_disabled(tmp_path, probe):
    (tmp_path / "off.yaml").write_text("loop: {nvtx: false}\n")
    process, log = run(tmp_path, probe, "--config", "off.yaml")
    assert process.returncode == 0
    assert not log.exists() or read_log(log) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calls", "complaint"),
    [
        ("d.push_range(d.get_event_attributes(message='left'))", "left open"),
        ("d.pop_range()", "had not opened"),
    ],
)
def test_probe_detects_unbalanced_ranges(tmp_path, probe, calls, complaint):
    program = f"import nvtx; d = nvtx.get_domain('detect-video'); {calls}"
    env = {**os.environ, **probe_env(probe, tmp_path / "log.tsv")}
    subprocess.run([sys.executable, "-c", program], env=env, check=True, timeout=240)
    with pytest.raises(AssertionError, match=complaint):
        read_log(tmp_path / "log.tsv")
