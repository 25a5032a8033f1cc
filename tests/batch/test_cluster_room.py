"""The cores and GPUs that a cluster's worker needs, and the cores that it claims."""

import os
import tempfile

import pytest

from detector.batch.cluster.cores import claim_cores
from detector.batch.cluster.room import Need, need_of, room_of
from detector.core.errors.machine import CORES_VARIABLE, usable_cores
from tests.batch.clusters import node


def config(**runtime):
    return {"runtime": {"engine": "ort", "device": "cpu", "threads": 0, **runtime}}


@pytest.mark.parametrize(
    ("runtime", "nodes", "workers", "need"),
    [
        ({}, [node("a", 8)], None, Need(2)),
        ({}, [node("a", 1)], None, Need(1)),  # no node has two cores
        ({}, [], None, Need(2)),  # a node may join later
        ({"threads": 4}, [node("a", 8)], None, Need(4)),
        ({}, [node("a", 4)], 3, Need(1)),
        ({}, [node("a", 4)], 2, Need(2)),
        ({"threads": 2}, [node("a", 4)], 3, Need(2)),  # --threads is never reduced
        ({"device": "auto"}, [node("a", 8)], None, Need(2)),
        ({"device": "auto"}, [node("a", 8), node("g", 48, 8)], None, Need(6, 1)),
        ({"device": "cuda"}, [node("g", 1, 2)], None, Need(1, 1)),
        ({"engine": "trt", "device": "auto"}, [], None, Need(2, 1)),
    ],
)
def test_number_of_cores_and_gpus_that_a_worker_needs(runtime, nodes, workers, need):
    assert need_of(config(**runtime), nodes, workers) == need


def test_room_is_the_number_of_workers_that_the_nodes_can_hold():
    nodes = [node("a", 5), node("b", 1), node("g", 8, 1)]
    assert room_of(Need(2), nodes) == 2 + 0 + 4
    assert room_of(Need(2), nodes, {"id-g"}) == 2
    assert room_of(Need(2, 1), nodes) == 1
    assert room_of(Need(2), []) == 0


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_workers_of_one_node_take_different_cores(temporary):
    first, locks = claim_cores(2, range(8), 8.0)
    second, others = claim_cores(3, range(8), 8.0)
    assert (first, second) == ([0, 1], [2, 3, 4])
    os.close(locks[1])
    third, more = claim_cores(2, range(8), 8.0)
    assert third == [1, 5]
    full, none = claim_cores(4, range(8), 8.0)
    assert (full, none) == (list(range(8)), [])
    for lock in (locks[0], *others, *more):
        os.close(lock)
    assert claim_cores(1, range(8), 8.0)[0] == [0]


def test_no_cores_are_claimed_if_a_quota_limits_ray_or_a_worker_needs_all_cores(temporary):
    assert claim_cores(2, range(8), 4.0) == (list(range(8)), [])  # a quota allows 4 of 8 cores
    assert claim_cores(2, [0, 1], 2.0) == ([0, 1], [])
    assert list(temporary.iterdir()) == []


def test_environment_variable_limits_the_usable_cores(monkeypatch):
    available = usable_cores()
    monkeypatch.setenv(CORES_VARIABLE, "1")
    assert usable_cores() == 1
    monkeypatch.setenv(CORES_VARIABLE, "99999")
    assert usable_cores() == available
    monkeypatch.setenv(CORES_VARIABLE, "many")
    assert usable_cores() == available
