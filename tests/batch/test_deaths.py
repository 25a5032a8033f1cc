"""Jobs with items that crash or kill the process that opens them."""

import importlib.util

import pytest

from tests.batch import deaths


@pytest.mark.slow
def test_items_that_kill_their_worker_are_tried_twice_and_others_finish(tmp_path):
    deadly = deaths.make_items(tmp_path, 12, deaths.WAYS_TO_DIE)
    ended = deaths.run_job(tmp_path, "--workers", "2")
    assert deaths.list_faults(tmp_path, ended, 12, deadly) == []
    for name, reason in zip(deadly, ("SIGABRT", "memory ran out", "out of memory"), strict=True):
        assert reason in deaths.error_of(ended, name)
    again = deaths.run_job(tmp_path, "--workers", "2", "--resume")
    assert deaths.list_faults(tmp_path, again, 12, deadly) == []
    assert again.result["items"]["skipped"] == 9


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="machine: ray is not installed")
def test_job_ends_if_its_node_has_no_memory_for_a_worker(tmp_path):
    """Ray's memory monitor kills each worker, and the job must not start workers forever."""
    deaths.make_items(tmp_path, 3, ())
    limit = {"RAY_memory_usage_threshold": "0.01", "RAY_memory_monitor_refresh_ms": "100"}
    ended = deaths.run_job(tmp_path, "--on", "ray", "--workers", "1", env=limit)
    assert ended.code == 5, ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "ran low" in ended.stderr
