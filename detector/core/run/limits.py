"""Check the system's limits: memory, cores, threads, open files, file sizes, deleted folders.
Little memory may be left, so this module imports nothing large."""

from __future__ import annotations

import errno
import os
import re
import resource
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from detector.core.errors import DetectVideoError, EngineError, OutputError, UsageError
from detector.core.errors.machine import CGROUPS, PROC, container_limit, usable_cores

NO_THREAD = ("can't start new thread", "Resource temporarily unavailable", "pthread_create")
NO_FILE = ("Too many open files",)


class Least(NamedTuple):
    """The least memory that a run with an engine may need, in MB (10^6 bytes)."""

    address_mb: int  # address space, most of it never touched
    anonymous_mb: int  # resident memory that no file backs, so it cannot be dropped


# For these engines, bisection found 525, 628, 812 and 1146 MB as the smallest `ulimit -v`. RssAnon
# was at most 75, 103, 109 and 253 MB. This was measured in November 2026 on Linux x86-64, with the
# model street, 640x384, one thread, --sync, --no-video, OPENBLAS_NUM_THREADS=1 and constraints.txt.
# The table has lower values, because other versions and models may need less.
LEAST = {
    "null": Least(450, 50),
    "ort": Least(540, 70),
    "openvino": Least(700, 75),
    "torch": Least(980, 170),
}
LEAST_FILES = 5  # open files of a run besides the standard streams; no run worked with 4
FEW_CORES = 2  # with more cores OpenCV keeps its threads: we have not measured that case
# More threads would not help: drawing 19 boxes takes 1 ms and holds the GIL nearly all the time.
DRAWING_THREADS = 2
OPENCV_THREADS = "OPENCV_FOR_THREADS_NUM"  # a variable that OpenCV reads on import
# Variables that set OpenBLAS's number of threads. The first variable that is set counts.
BLAS_SETTINGS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
BLAS_THREADS = 64  # most threads that the OpenBLAS in wheels can start
NO_MEMORY = (
    "Cannot allocate memory",
    "cannot allocate memory",
    "failed to map segment",
    "bad_alloc",
    "MemoryError",
)


def blame_limit(error: BaseException) -> DetectVideoError | None:
    """If a system limit caused ``error``, return an error that says what to do; otherwise None."""
    code = error.errno if isinstance(error, OSError) else None
    where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
    text = str(error)

    def says(*words: str) -> bool:
        return any(word in text for word in words)

    if isinstance(error, MemoryError) or code == errno.ENOMEM or says(*NO_MEMORY):
        return EngineError(
            f"out of memory{_describe_memory_limit()}; try a smaller --batch or --size"
        )
    if code in (errno.EMFILE, errno.ENFILE) or says(*NO_FILE):
        return _no_files()
    if code == errno.EAGAIN or says(*NO_THREAD):
        return _no_threads()
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
        return OutputError(f"{where}cannot be written: {os.strerror(code)}; choose another with -o")
    if code == errno.ENAMETOOLONG:
        return UsageError(f"{where}the name is too long; use at most 255 bytes")
    is_refused, ours = isinstance(error, FileNotFoundError | PermissionError), "/detect-video-"
    if is_refused and ("temporary directory" in text or f"{tempfile.tempdir}{ours}" in where):
        return OutputError(
            "no folder for temporary files is writable; set TMPDIR to one that is: TMPDIR=DIR"
        )
    if isinstance(error, FileNotFoundError) and folder_is_gone():
        return UsageError("the path cannot be used")
    if isinstance(error, RuntimeError) and says("home directory"):
        return UsageError(
            "the home folder, where built files go, is unknown; set HOME, or use --engines-dir DIR"
        )
    return None


def folder_is_gone() -> bool:
    """Return whether the current folder was deleted, so that no relative path can be used."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def check_threads(count: int) -> None:
    """Raise EngineError if this process cannot start ``count`` more threads. Several limits apply,
    so we try it, before OpenBLAS does: it may raise SIGINT if it cannot start a thread."""
    gate = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=gate.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise _no_threads() from error
    finally:
        gate.set()
        for thread in started:
            thread.join()


def check_memory(engine: str) -> None:
    """Raise EngineError if a limit allows less memory than this engine's smallest run needs."""
    least = LEAST.get(engine, LEAST["null"])
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY and space < least.address_mb * 1e6:
        raise EngineError(
            f"the address space limit is too low: ulimit -v is {space >> 10}, but engine "
            f"{engine} needs more than {least.address_mb * 1000} for the smallest run; raise it: "
            "ulimit -v unlimited"
        )
    memory = container_memory()
    if memory is not None and memory < least.anonymous_mb * 1e6:
        raise EngineError(
            f"the container is limited to {memory / 1e6:.0f} MB of memory, but engine {engine} "
            f"needs more than {least.anonymous_mb} MB for the smallest run; raise the limit"
        )


def container_memory(proc: Path = PROC, root: Path = CGROUPS) -> int | None:
    """Return the bytes that our cgroup allows plus all swap, or None if the cgroup has no limit."""
    if (limit := container_limit(proc, root)) is None:
        return None
    try:
        meminfo = (proc / "meminfo").read_text()
    except OSError:
        return limit
    swap = re.findall(r"^SwapTotal:\s*(\d+)", meminfo, re.MULTILINE)
    return limit + sum(map(int, swap)) * 1024


def keep_blas_alone() -> None:
    """Keep OpenBLAS from starting threads, which would only spin. Call this before numpy loads
    OpenBLAS. On two cores, three frames took 0.88 s of CPU with these threads, 0.63 s without."""
    if not any(name in os.environ for name in BLAS_SETTINGS):
        os.environ[BLAS_SETTINGS[0]] = "1"


def trim_heap() -> None:
    """Return freed memory to the system: 8 MB after the default model has been loaded."""
    # Import ctypes late: libffi 3.5 keeps a file open, which must not become descriptor 0, 1 or 2.
    import ctypes

    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def blas_threads() -> int:
    """Return how many threads OpenBLAS starts when it is imported."""
    for name in BLAS_SETTINGS:
        if (value := os.environ.get(name, "")).isdecimal() and int(value):
            return min(int(value), usable_cores()) - 1
    return min(usable_cores(), BLAS_THREADS) - 1


@contextmanager
def opencv_threads(overlapped: bool) -> Iterator[None]:
    """On at most two cores, limit OpenCV to the calling thread if the loop is overlapped. A second
    thread would make the reader wait at every resize (docs/settings.md). A number in
    OPENCV_FOR_THREADS_NUM takes precedence."""
    import cv2

    before = cv2.getNumThreads()
    if overlapped and usable_cores() <= FEW_CORES and OPENCV_THREADS not in os.environ:
        cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before)


def drawing_threads() -> int:
    """Return how many threads draw ahead of the writer. On two cores none do: the writer draws,
    because reader, workers and encoder already keep both cores busy."""
    return max(0, min(DRAWING_THREADS, usable_cores() - FEW_CORES))


def check_files(count: int) -> None:
    """Raise EngineError if this process cannot open ``count`` more files."""
    opened: list[int] = []
    try:
        while len(opened) < count:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise _no_files() from error
    finally:
        for file in opened:
            os.close(file)


def _no_files() -> EngineError:
    return EngineError(
        f"too many open files: ulimit -n is {_read_limit(resource.RLIMIT_NOFILE)}; raise it: "
        "ulimit -n 1024"
    )


def _no_threads() -> EngineError:
    return EngineError(
        "cannot start another thread: this account or its container has reached its limit "
        f"(ulimit -u is {_read_limit(resource.RLIMIT_NPROC)}{_describe_memory_limit(', ')}); raise "
        "the limit"
    )


def _describe_memory_limit(separator: str = ": ") -> str:
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return "" if soft == resource.RLIM_INFINITY else f"{separator}ulimit -v is {soft >> 10}"


def _read_limit(which: int) -> str:
    soft = resource.getrlimit(which)[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
