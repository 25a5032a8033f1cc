"""The table of CUDA calls on the critical path, for calls with known times and exports of nsys."""

import sqlite3
from contextlib import closing

import pytest

from detector.core.cli.printing import terminal
from detector.core.errors import UsageError
from detector.core.session.codec import from_builtins
from detector.lab.analysis.loop.calls import HAND_OVER, OTHER, PHASES, call_rows
from detector.lab.session.nsys import CudaCall, DeviceWork, read_nsys
from detector.lab.session.profile import NsysDocument
from detector.lab.terminal.profile import print_recorded
from tests.lab.session.test_nsys import LOAD, PROCESS, export, recording

MS = 1_000_000
THREAD = PROCESS + 1

# One inference: two launches, a copy back, and the wait for that copy.
CALLS = [
    CudaCall(THREAD, "cudaMalloc", 0, 40 * MS, 0),
    CudaCall(THREAD, "cudaLaunchKernel", 50 * MS, 51 * MS, 1),
    CudaCall(THREAD, "cudaLaunchKernel", 51 * MS, 52 * MS, 2),
    CudaCall(THREAD, "cudaMemcpyAsync", 52 * MS, 53 * MS, 3),
    CudaCall(THREAD, "cudaEventSynchronize", 54 * MS, 71 * MS, 0),
    CudaCall(THREAD, "cudaFree", 80 * MS, 90 * MS, 0),
]
WORKS = [
    DeviceWork(7, "conv", 53 * MS, 60 * MS, 1),
    DeviceWork(7, "relu", 60 * MS, 65 * MS, 2),
    DeviceWork(7, "[memcpy DtoH]", 66 * MS, 70 * MS, 3),
]
EDGES = [0, 50 * MS, 72 * MS, 90 * MS]


def by_phase(rows):
    by_name = {}
    for row in rows:
        path, waits = round(row.critical_path_s * 1e3, 6), round(row.waiting_s * 1e3, 6)
        by_name.setdefault(row.phase, {})[row.name] = (path, waits)
    return by_name


def test_critical_path_of_calls_with_known_times_is_the_expected_one():
    assert by_phase(call_rows(CALLS, WORKS, EDGES)) == {
        "start-up": {"cudaMalloc": (40, 0), OTHER: (10, 0)},
        "steady state": {
            "conv": (7, 0),
            "relu": (5, 0),
            "[memcpy DtoH]": (4, 0),
            HAND_OVER: (2, 0),  # from launch to kernel
            OTHER: (2, 0),  # from relu to copy, and the last ms
            "cudaLaunchKernel": (1, 0),
            "cudaEventSynchronize": (1, 16),  # the part after the copy
        },
        "tear-down": {"cudaFree": (10, 0), OTHER: (8, 0)},
    }


@pytest.mark.parametrize("works", [WORKS, []])
def test_rows_of_each_phase_add_up(works):
    rows = call_rows(CALLS, works, EDGES)
    for phase, lasted in {"start-up": 50, "steady state": 22, "tear-down": 18}.items():
        own = [row for row in rows if row.phase == phase]
        assert sum(row.critical_path_s for row in own) * 1e3 == pytest.approx(lasted)
        assert sum(row.share for row in own) == pytest.approx(1)


def test_calls_without_gpu_work_have_no_waiting_time():
    rows = call_rows(CALLS, [], EDGES)
    assert all(row.waiting_s == 0 for row in rows)
    assert by_phase(rows)["steady state"]["cudaEventSynchronize"] == (17, 0)


def test_synchronous_copy_has_waiting_time():
    """cudaMemcpyAsync to pageable memory returns only when the copy is done."""
    calls = [CudaCall(THREAD, "cudaMemcpyAsync", 0, 10 * MS, 1)]
    works = [DeviceWork(7, "[memcpy DtoH]", 2 * MS, 9 * MS, 1)]
    for at, phase in enumerate(PHASES):
        edges = [0] * (at + 1) + [10 * MS] * (3 - at)
        assert by_phase(call_rows(calls, works, edges)) == {
            # The call is on the path before and after the copy.
            phase: {"cudaMemcpyAsync": (3, 9), "[memcpy DtoH]": (7, 0)}
        }
    calls = [CudaCall(THREAD, "cudaMalloc", 0, 10 * MS, 0)]
    works = [DeviceWork(7, "conv", 1 * MS, 5 * MS, 9)]  # the call does not wait for it
    rows = by_phase(call_rows(calls, works, [0, 0, 10 * MS, 10 * MS]))["steady state"]
    assert rows == {"cudaMalloc": (10, 0)}


def test_nested_call_is_counted_as_the_outer_call():
    calls = [
        CudaCall(THREAD, "cudaMalloc", 0, 10 * MS, 0),
        CudaCall(THREAD, "cuMemAlloc", 2 * MS, 9 * MS, 0),
    ]
    assert by_phase(call_rows(calls, [], [0, 0, 10 * MS, 10 * MS])) == {
        "steady state": {"cudaMalloc": (10, 0)}
    }


def test_analysis_ends_for_calls_without_duration():
    calls = [CudaCall(THREAD, "cudaStreamSynchronize", 5, 5, 1), CudaCall(THREAD, "a", 5, 5, 2)]
    works = [DeviceWork(0, "k", 5, 5, 1), DeviceWork(0, "l", 5, 5, 2)]
    rows = call_rows(calls, works, [0, 0, 10, 10])
    assert sum(row.critical_path_s for row in rows) == pytest.approx(10e-9)


# ---- exports in nsys's schema


def add_cuda(path, last, gpu=True):
    """Add CUDA calls that allocate memory before the run, launch kernels during it, and free memory
    after it. As in nsys's exports, their names end in the version of the API."""
    names = {
        60: "cudaMalloc_v3020",
        61: "cudaLaunchKernel_v7000",
        62: "cudaStreamSynchronize_v3020",
        63: "cudaFree_v3020",
        64: "conv_kernel",
    }
    database = sqlite3.connect(path)
    database.executemany("insert into StringIds values (?,?)", names.items())
    database.execute(
        "create table CUPTI_ACTIVITY_KIND_RUNTIME (start int, end int, eventClass int,"
        " globalTid int, correlationId int, nameId int, returnValue int, callchainId int)"
    )
    calls, kernels, copies = [(-50 * MS, -10 * MS, 1, THREAD, 1, 60, 0, None)], [], []
    for at in range(10):
        start, number = last * at // 10, 10 + 3 * at
        calls.append((start, start + MS, 1, THREAD, number, 61, 0, None))
        calls.append((start + MS, start + 4 * MS, 1, THREAD, number + 1, 62, 0, None))
        kernels.append((start + 2 * MS, start + 3 * MS, 0, 7, number, PROCESS, 64))
        copies.append((start + MS // 4, start + MS // 2, 0, 7, number + 2, PROCESS, 1, 4096))
    calls.append((last + MS, last + 31 * MS, 1, THREAD, 99, 63, 0, None))
    database.executemany("insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?,?,?,?,?,?,?,?)", calls)
    database.execute("drop table if exists CUPTI_ACTIVITY_KIND_KERNEL")
    if gpu:
        database.execute(
            "create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int, deviceId int,"
            " streamId int, correlationId int, globalPid int, shortName int)"
        )
        database.executemany(
            "insert into CUPTI_ACTIVITY_KIND_KERNEL values (?,?,?,?,?,?,?)", kernels
        )
        database.execute(
            "create table CUPTI_ACTIVITY_KIND_MEMCPY (start int, end int, deviceId int,"
            " streamId int, correlationId int, globalPid int, copyKind int, bytes int)"
        )
        database.executemany(
            "insert into CUPTI_ACTIVITY_KIND_MEMCPY values (?,?,?,?,?,?,?,?)", copies
        )
    database.commit()
    database.close()


@pytest.fixture
def export_with_cuda(tmp_path):
    def make(gpu):
        path = tmp_path / "a.sqlite"
        activities = export(path, LOAD)
        add_cuda(path, max(one.end_ns for one in activities), gpu)
        return path

    return make


@pytest.mark.parametrize("gpu", [True, False])
def test_export_with_cuda_calls_has_a_table_per_phase(export_with_cuda, gpu, capsys):
    facts = recording(export_with_cuda(gpu))
    rows = {(row["phase"], row["name"]): row for row in facts["calls"]}
    start = rows["start-up", "cudaMalloc"]
    assert start["critical_path_s"] == pytest.approx(0.04)
    assert ("steady state", "cudaMalloc") not in rows  # it was called only at start-up
    assert rows["tear-down", "cudaFree"]["critical_path_s"] == pytest.approx(0.03)
    steady = [row for row in facts["calls"] if row["phase"] == "steady state"]
    wall = facts["critical_path"]["wall_s"]
    assert sum(row["critical_path_s"] for row in steady) == pytest.approx(wall)
    waits = rows["steady state", "cudaStreamSynchronize"]
    assert (waits["waiting_s"] > 0.015) is gpu  # 2 ms in each of ten calls
    assert (("steady state", "conv_kernel") in rows) is gpu
    print_recorded(terminal(piped_width=100), from_builtins(facts, NsysDocument, "the document"))
    printed = capsys.readouterr().out
    assert all(f"by CUDA call: {one}" in printed for one in ("start-up", "steady state"))


def test_export_without_cuda_has_no_table_of_calls(tmp_path, capsys):
    export(tmp_path / "a.sqlite", LOAD)
    facts = recording(tmp_path / "a.sqlite")
    assert facts["calls"] == []
    print_recorded(terminal(piped_width=100), from_builtins(facts, NsysDocument, "it"))
    assert "by CUDA call" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("end", -90 * MS, "before"),
        ("correlationId", "'x'", "correlationId"),
        ("globalTid", "'x'", "globalTid"),
    ],
)
def test_damaged_call_is_refused(export_with_cuda, column, value, message):
    path = export_with_cuda(True)
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"update CUPTI_ACTIVITY_KIND_RUNTIME set {column} = {value}")
        database.commit()
    with pytest.raises(UsageError, match=message):
        read_nsys(path)
