"""The process that runs cases for ``running.Server``. It imports the program once, then forks.

A fork takes milliseconds; starting Python and importing OpenCV, PyAV and onnx takes most of a
second. The server has only one thread, since a lock that another thread holds during a fork would
stay locked in the child. So the server does not import the libraries of engines, which may start
threads, and checks its number of threads before it serves.

It reads requests and writes replies, each a line of JSON. Every process that a case leaves behind
becomes a child of the server (PR_SET_CHILD_SUBREAPER), which can then report and kill it.
"""

import atexit
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import pkgutil
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from tests.processes import children_of, command_line

PDEATHSIG, CAPBSET_DROP, SUBREAPER = 1, 24, 36  # options of prctl
PASS_BY_PERMISSIONS = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
MOST_PRINTED = 1 << 20  # bytes of a process's output to keep
GRACE_S = 15.0  # how long a process that a case leaves behind may take to exit
LEFT_OUT = ("detector.core.engines.torch", "detector.core.engines.trt")
NEEDED = (
    "cv2",
    "av",
    "onnx.checker",
    "onnx.shape_inference",
    "sqlite3",
    "rich.console",
    "pickletools",
)
_libc = ctypes.CDLL(None, use_errno=True)


def import_program() -> None:
    for name in NEEDED:
        importlib.import_module(name)
    package = importlib.import_module("detector")
    for info in pkgutil.walk_packages(package.__path__, "detector.", onerror=lambda _: None):
        if info.name != "detector.__main__" and not info.name.startswith(LEFT_OUT):
            with suppress(ImportError):
                importlib.import_module(info.name)


def refuse_threads() -> None:
    count = len(os.listdir("/proc/self/task"))
    if count != 1:
        names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
        raise SystemExit(f"the server has {count} threads and cannot fork safely: {names}")


def serve() -> None:
    _libc.prctl(SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ``running.Server`` ends this process
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    os.close(null)
    import_program()
    refuse_threads()
    gc.collect()
    gc.freeze()  # a collection in a child would copy the pages of every object
    answers.write("ready\n")
    answers.flush()
    for line in requests:
        answer = run_case(json.loads(line), requests.fileno(), answers.fileno())
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class Copy:
    """One running process of a case, and its output so far.

    Its output goes into pipes, since the case may limit the size of files.
    """

    def __init__(self, request: Mapping[str, Any], number: int, own: tuple[int, ...]) -> None:
        pipes = [os.pipe(), os.pipe()]
        self.began, begin_end = os.pipe()  # the child closes its end when the command begins
        self.started = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            inherited = (*own, self.began, pipes[0][0], pipes[1][0])
            _child(request, (pipes[0][1], pipes[1][1]), begin_end, inherited)
        os.close(begin_end)
        self.fd = os.pidfd_open(self.pid)
        self.printed: dict[int, bytearray] = {}  # in the order stdout, stderr
        for reader, writer in pipes:
            os.close(writer)
            os.set_blocking(reader, False)
            self.printed[reader] = bytearray()

    def drain(self) -> None:
        for reader, printed in self.printed.items():
            with suppress(BlockingIOError):
                while piece := os.read(reader, 1 << 16):
                    printed += piece[: MOST_PRINTED - len(printed)]

    def end(self, seen: Path, number: int) -> dict[str, Any]:
        _, status, used = os.wait4(self.pid, 0)
        wall_s = time.monotonic() - self.started
        self.drain()
        for (reader, kept), name in zip(self.printed.items(), ("stdout", "stderr"), strict=True):
            (seen / f"{name}-{number}.txt").write_bytes(kept)
            os.close(reader)
        os.close(self.fd)
        os.close(self.began)
        return {
            "code": os.waitstatus_to_exitcode(status),
            "wall_s": wall_s,
            "cpu_s": used.ru_utime + used.ru_stime,
            "memory_mb": used.ru_maxrss / 1024,
        }


def run_case(request: dict[str, Any], *own: int) -> dict[str, Any]:
    started, seen = time.monotonic(), Path(request["seen"])
    copies: dict[int, tuple[int, Copy]] = {}  # pidfd -> (number, copy)
    poll = select.poll()
    for number in range(request["copies"]):
        inherited = [
            fd for _, other in copies.values() for fd in (other.fd, other.began, *other.printed)
        ]
        copy = Copy(request, number, (*own, *inherited))
        copies[copy.fd] = number, copy
        for fd in (copy.fd, *copy.printed):
            poll.register(fd, select.POLLIN)
    ended: list[dict[str, Any]] = [{} for _ in copies]
    for _, copy in copies.values():
        os.read(copy.began, 1)
    began = time.monotonic()
    signals = sorted((began + after, number) for after, number in request["signals"])
    deadline = started + request["limits"]["wall_s"]
    hang = False
    while copies:
        now = time.monotonic()
        while signals and signals[0][0] <= now:
            _send(copies, signals.pop(0)[1])
        if now >= deadline:
            # SIGABRT first, which makes faulthandler print every thread's stack.
            _send(copies, signal.SIGKILL if hang else signal.SIGABRT)
            hang, deadline = True, now + 5
        until = min([deadline, *(at for at, _ in signals[:1])]) - time.monotonic()
        for fd, _ in poll.poll(max(0, until * 1000)):
            if fd not in copies:
                if not any(fd in copy.printed and _drain(copy, fd) for _, copy in copies.values()):
                    with suppress(KeyError):
                        poll.unregister(fd)  # the pipe is at its end, or its copy has ended
                continue
            number, copy = copies.pop(fd)
            for one in (fd, *copy.printed):
                with suppress(KeyError):
                    poll.unregister(one)
            ended[number] = copy.end(seen, number)
    return {"copies": ended, "hang": hang, "left": collect_left()}


def _drain(copy: Copy, fd: int) -> bool:
    """Read what the pipe has. Return False at its end."""
    try:
        piece = os.read(fd, 1 << 16)
    except BlockingIOError:
        return True
    copy.printed[fd] += piece[: MOST_PRINTED - len(copy.printed[fd])]
    return bool(piece)


def _send(copies: Mapping[int, Any], number: int) -> None:
    for fd in copies:
        signal.pidfd_send_signal(fd, number)


def collect_left() -> list[str]:
    """Wait for the processes that the case left behind. After GRACE_S, kill and name the rest."""
    deadline, named, ended = time.monotonic() + GRACE_S, [], set[int]()
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return named
        if pid:
            continue
        if time.monotonic() > deadline:
            for child in children_of(os.getpid()):
                if child not in ended:
                    named.append(command_line(child))
                ended.add(child)
                with suppress(OSError):
                    os.kill(child, signal.SIGKILL)
            deadline = time.monotonic() + GRACE_S
        time.sleep(0.01)


def _child(
    request: Mapping[str, Any], streams: tuple[int, int], begin_end: int, own: tuple[int, ...]
) -> NoReturn:
    code = 70  # the case could not be started
    try:
        os.setsid()
        _libc.prctl(PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(_opened(request["stdout"], streams[0]), 1)
        os.dup2(streams[1], 2)
        for fd in (*own, *streams):
            os.close(fd)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["env"])
        if request["plain_user"] and os.geteuid() == 0:
            for right in PASS_BY_PERMISSIONS:  # the process loses them at the exec
                _libc.prctl(CAPBSET_DROP, right)
        _limit(request["limits"])
        for fd in request["closed"]:
            os.close(fd)
        if request["fresh"]:
            command = [sys.executable, "-m", "detector", *request["argv"]]
            os.execve(sys.executable, command, dict(os.environ))
        code = _run(request["argv"], begin_end)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _opened(kind: str, pipe: int) -> int:
    if kind == "broken":
        reader, writer = os.pipe()
        os.close(reader)
        return writer
    return os.open("/dev/full", os.O_WRONLY) if kind == "full" else pipe


def _limit(limits: Mapping[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, limit, unit in (
        ("address_space_mb", resource.RLIMIT_AS, 1 << 20),
        ("file_bytes", resource.RLIMIT_FSIZE, 1),
        ("open_files", resource.RLIMIT_NOFILE, 1),
        ("stack_kb", resource.RLIMIT_STACK, 1 << 10),
    ):
        if limits[name] is not None:
            resource.setrlimit(limit, (limits[name] * unit,) * 2)


def _run(argv: list[str], begin_end: int) -> int:
    """Run the command in this process, and clean up like the interpreter. Return the exit code."""
    faulthandler.enable(2)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        for number, mode, errors in (
            (0, "r", "strict"),
            (1, "w", "strict"),
            (2, "w", "backslashreplace"),
        )
    )
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.argv = ["detect-video", *argv]
    code, interrupted = 1, False
    try:
        from detector.__main__ import main
        from detector.core.run.signals import leave_on_signals

        leave_on_signals()  # like main, but before the test may send a signal
        os.close(begin_end)
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        interrupted = True
    except BaseException:
        sys.excepthook(*sys.exc_info())
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        code = 120
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code & 0xFF


if __name__ == "__main__":
    serve()
