"""Items that end the process which opens them: all others are done, and each is named."""

from __future__ import annotations

import importlib.util

import pytest

from tests.batch import deaths


@pytest.mark.slow
def test_what_ends_its_worker_costs_two_processes_and_nothing_else(tmp_path):
    deadly = deaths.make_items(tmp_path, 12, deaths.ENDS)
    ended = deaths.run_job(tmp_path, "--workers", "2")
    assert deaths.list_faults(tmp_path, ended, 12, deadly) == []
    for name, says in zip(deadly, ("SIGABRT", "memory ran out", "out of memory"), strict=True):
        assert says in deaths.told_of(ended, name)
    again = deaths.run_job(tmp_path, "--workers", "2", "--resume")
    assert deaths.list_faults(tmp_path, again, 12, deadly) == []
    assert again.result["items"]["skipped"] == 9


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="machine: ray is not installed")
def test_a_node_whose_memory_lets_no_worker_live_ends_the_job(tmp_path):
    """Ray's memory monitor kills each worker; the job must not keep starting new ones."""
    deaths.make_items(tmp_path, 3, ())
    limit = {"RAY_memory_usage_threshold": "0.01", "RAY_memory_monitor_refresh_ms": "100"}
    ended = deaths.run_job(tmp_path, "--on", "ray", "--workers", "1", env=limit)
    assert ended.code == 5, ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "ran low" in ended.stderr
