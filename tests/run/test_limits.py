"""Limits of the system: errors name them, and runs that cannot work within them are refused."""

import contextlib
import errno
import os
import resource
import tempfile
import threading

import cv2
import pytest

from detector.core.errors import EngineError
from detector.core.run import limits
from detector.core.run.limits import blame_limit, check_memory, check_threads, container_memory


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), 5),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), 5),
        (ImportError("libx264.so: failed to map segment from shared object"), 5),
        (RuntimeError("std::bad_alloc"), 5),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), 5),
        (ImportError("libx264.so: cannot open shared object file: Too many open files"), 5),
        (RuntimeError("can't start new thread"), 5),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), 5),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 6),
        (OSError(errno.EFBIG, os.strerror(errno.EFBIG), "a.jsonl"), 6),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/x']"), 6),
        (FileNotFoundError(errno.ENOENT, "gone", f"{tempfile.gettempdir()}/detect-video-a/1"), 6),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x.mp4"), 2),
        (RuntimeError("Could not determine home directory."), 2),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x"), None),
        (ValueError("a bug"), None),
    ],
)
def test_error_caused_by_a_limit_gets_its_exit_code(error, code):
    blamed = blame_limit(error)
    assert (blamed and blamed.exit_code) == code


def test_deleted_current_folder_exits_2(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getcwd", lambda: os.stat(tmp_path / "gone"))
    blamed = blame_limit(FileNotFoundError(errno.ENOENT, "No such file or directory"))
    assert blamed is not None
    assert blamed.exit_code == 2


def test_check_ends_the_threads_that_it_starts():
    before = threading.active_count()
    check_threads(3)
    assert threading.active_count() <= before


def test_too_few_threads_are_refused_and_no_thread_remains(monkeypatch):
    start, started, before = threading.Thread.start, [], threading.active_count()

    def start_two(thread):
        if sum(thread.is_alive() for thread in started) >= 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    check_threads(2)
    with pytest.raises(EngineError):
        check_threads(3)
    assert threading.active_count() <= before


@pytest.mark.parametrize(("value", "threads"), [("", 3), ("2", 1), ("1", 0), ("99", 3), ("x", 3)])
def test_blas_threads_follow_the_environment(monkeypatch, value, threads):
    monkeypatch.setattr(limits, "usable_cores", lambda: 4)
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert limits.blas_threads() == threads


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {"OPENBLAS_NUM_THREADS": "1"}),
        ({"OPENBLAS_NUM_THREADS": "3"}, {"OPENBLAS_NUM_THREADS": "3"}),
        ({"OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "2"}),
    ],
)
def test_blas_has_one_thread_unless_the_user_sets_it(monkeypatch, environment, expected):
    monkeypatch.setattr(limits.os, "environ", dict(environment))
    limits.keep_blas_alone()
    assert limits.os.environ == expected


@pytest.mark.parametrize(
    ("cores", "overlapped", "value", "threads"),
    [
        (2, True, None, 1),
        (1, True, None, 1),
        (3, True, None, 2),
        (2, False, None, 2),
        (2, True, "2", 2),
    ],
)
def test_opencv_threads_are_reduced_in_the_overlapped_loop(
    monkeypatch, cores, overlapped, value, threads
):
    monkeypatch.setattr(limits, "usable_cores", lambda: cores)
    monkeypatch.delenv("OPENCV_FOR_THREADS_NUM", raising=False)
    if value is not None:
        monkeypatch.setenv("OPENCV_FOR_THREADS_NUM", value)
    before = cv2.getNumThreads()
    try:
        cv2.setNumThreads(2)
        with contextlib.suppress(KeyError), limits.opencv_threads(overlapped):
            assert cv2.getNumThreads() == threads
            raise KeyError
        assert cv2.getNumThreads() == 2
    finally:
        cv2.setNumThreads(before)


@pytest.mark.parametrize("engine", ["null", "ort", "openvino", "torch", "auto", "trt", "none"])
def test_memory_limit_that_is_too_small_is_refused(monkeypatch, engine):
    no_limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(limits, "container_memory", lambda: None)
    monkeypatch.setattr(resource, "getrlimit", lambda _: no_limit)
    check_memory(engine)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (400_000_000, 400_000_000))
    with pytest.raises(EngineError):
        check_memory(engine)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 30, no_limit[1]))
    check_memory(engine)
    monkeypatch.setattr(limits, "container_memory", lambda: 40_000_000)
    with pytest.raises(EngineError):
        check_memory(engine)


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "5000"}, 5000 + 1024),
        ("0::/a/b\n", {"memory.max": "700"}, 700 + 1024),  # a container's own group is its root
        ("0::/a\n", {"a/memory.max": "max"}, None),
        ("4:memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": "900"}, 900 + 1024),
        ("", {}, None),
    ],
)
def test_memory_limit_of_a_container_is_read(tmp_path, groups, files, expected):
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(groups)
    (proc / "meminfo").write_text("MemTotal:  9 kB\nSwapTotal:       1 kB\n")
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    assert container_memory(proc, root) == expected
