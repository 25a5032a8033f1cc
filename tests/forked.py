"""Run detect-video in a fork of a server that has already done the imports.

A short run spends most of its time on imports. A server (``python -m tests.forked``) does them once
and starts no thread. A process of pytest has one server without torch, and may start one with
torch. Every command line runs in a fork of a server. A fork is like ``python -m detector``: a
process with its own exit status, streams, folder, environment, signals and memory. But modules and
the packaged YAML are already loaded.

A fork cannot test imports: which modules a command loads, and what they read from the environment
while they load. ``tests/cli/command.py`` starts a new interpreter for such tests.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import re
import runpy
import select
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

CHECKOUT = Path(__file__).parents[1]
LIBRARIES = ("click", "numpy", "yaml", "cv2", "av", "onnx", "rich.console", "nvtx")
# onnxruntime is not listed, because it starts a thread. Only TORCH_SERVER imports torch, since runs
# on other engines must not find torch imported.
TORCH = "torch"
NEED_TORCH = "detector.core.engines.torch."
LENGTH = struct.Struct("!Q")
MEASURED = "COVERAGE_PROCESS_START"  # if set, each fork measures coverage, for scripts/branches
AT_START = dict(os.environ)
# These variables may differ in a fork, since no import reads them. If another variable differs, a
# new interpreter is needed. ``become`` handles PYTHONPATH.
READ_LATE = re.compile(
    "HOME|XDG_.*|TMPDIR|COLUMNS|LINES|PYTHONPATH|NVTX_(?!DISABLE).*|FORGE_.*|DETECT_VIDEO_.*|PYTEST_.*"
    "|KINETO_LOG_LEVEL"  # set by a pass of ``profile``
    "|_DETECT_VIDEO_COMPLETE|COMP_WORDS|COMP_CWORD"  # set by shells for completion
)


# ---- in the test's process


def suits(environment: Mapping[str, str]) -> bool:
    """Return whether a fork is equivalent to a new interpreter with this environment."""
    by_imports = LIGHT_SERVER.set_by_imports()
    return all(
        READ_LATE.fullmatch(name)
        or environment.get(name) in (AT_START.get(name), {**AT_START, **by_imports}.get(name))
        for name in {*environment, *AT_START}
    )


class Server:
    def __init__(self, libraries: tuple[str, ...]) -> None:
        self.cpu_s = 0.0  # CPU time of all command lines that have ended
        self._libraries = libraries
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._path = ""
        self._set_by_imports: dict[str, str] = {}

    def set_by_imports(self) -> dict[str, str]:
        """Return the variables that are set by importing ``detector`` and its libraries."""
        self._ensure_running()
        return self._set_by_imports

    def start(
        self, argv: list[str], cwd: str, environment: dict[str, str], stdin: int | None = None
    ) -> Fork:
        self._ensure_running()
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        return Fork(self, connection, argv, cwd, environment, stdin)

    def count(self, cpu_s: float) -> None:
        with self._lock:
            self.cpu_s += cpu_s

    def _ensure_running(self) -> None:
        with self._lock:
            if self._process is None:
                self._start()

    def _start(self) -> None:
        self._path = f"{tempfile.mkdtemp(prefix='forked-')}/socket"
        # The server ends when its stdin is closed, which happens however this process ends.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked", self._path, *self._libraries],
            cwd=CHECKOUT,
            env={name: value for name, value in AT_START.items() if name != MEASURED},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        atexit.register(self._process.communicate)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server of forks did not start: see its message above"
        self._set_by_imports = json.loads(line)


class Fork:
    """A running command line, with the methods of ``subprocess.Popen``."""

    def __init__(
        self,
        server: Server,
        connection: socket.socket,
        argv: list[str],
        cwd: str,
        environment: dict[str, str],
        stdin: int | None,
    ) -> None:
        self.returncode: int | None = None
        self.peak_kb = 0  # peak resident memory, known after the end
        self._server, self._connection, self._argv = server, connection, argv
        request = json.dumps({"argv": argv, "cwd": cwd, "environment": environment}).encode()
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        streams = [out_end, err_end, *([] if stdin is None else [stdin])]
        socket.send_fds(connection, [LENGTH.pack(len(request))], streams)
        connection.sendall(request)
        os.close(out_end)
        os.close(err_end)
        self._streams = _Reader(out), _Reader(err)
        self.pid: int = json.loads(self._line())

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def errors_so_far(self) -> str:
        return self._streams[1].data.decode(errors="replace")

    def stop_reading(self) -> None:
        """Close our end of the command's stdout, as ``| head`` does. Return once it is closed."""
        self._streams[0].leave()

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        # A failed test may leave this socket open. The warning about it would fail a later test.
        self._connection.close()

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self.communicate()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                status, cpu_s, self.peak_kb = json.loads(self._line())
            except TimeoutError:
                raise subprocess.TimeoutExpired(self._argv, timeout or 0.0) from None
            self._connection.close()
            self.returncode = os.waitstatus_to_exitcode(status)
            self._server.count(cpu_s)
        out, err = self._streams
        return out.text(), err.text()

    def _line(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            more = self._connection.recv(1)
            assert more, "the server of forks is gone"
            line += more
        return line.decode()


class _Reader(threading.Thread):
    """Read one end of a pipe until the other end is closed."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(daemon=True)
        self._file = os.fdopen(descriptor, "rb")
        self.data = b""
        self._left = threading.Event()
        self.start()

    def run(self) -> None:
        with self._file:
            while not self._left.is_set():
                if select.select([self._file], [], [], 0.1)[0]:
                    block = os.read(self._file.fileno(), 1 << 16)
                    self.data += block
                    if not block:
                        return

    def leave(self) -> None:
        self._left.set()
        self.join()

    def text(self) -> str:
        self.join()
        # If we stopped reading in the middle, the text may end inside a character.
        data = self.data.decode(errors="replace" if self._left.is_set() else "strict")
        return data.replace("\r\n", "\n").replace("\r", "\n")


LIGHT_SERVER, TORCH_SERVER = Server(LIBRARIES), Server((*LIBRARIES, TORCH))


def cpu_seconds() -> float:
    """Return the CPU time of all forks that have ended. They are not children of this process."""
    return LIGHT_SERVER.cpu_s + TORCH_SERVER.cpu_s


# ---- in the server


def serve(path: str) -> dict[str, Any]:
    """Serve until stdin is closed. In every fork, return the request that the fork must run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for pytest
    signal.signal(signal.SIGCHLD, lambda *_: None)  # needed for set_wakeup_fd
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    running: dict[int, socket.socket] = {}
    selector = selectors.DefaultSelector()
    for one in (0, listener, woken):
        selector.register(one, selectors.EVENT_READ)
    print(json.dumps(_set_by_imports()), flush=True)
    while True:
        ready = [key.fileobj for key, _ in selector.select()]
        if woken in ready:
            woken.recv(4096)
            _report(running)
        if listener in ready:
            connection, _ = listener.accept()
            request, streams = _receive(connection)
            pid = fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                selector.close()
                for one in (connection, listener, woken, waker, *running.values()):
                    one.close()
                _take(streams)
                return request
            for descriptor in streams:
                os.close(descriptor)
            running[pid] = connection
            with suppress(OSError):  # the client may be gone
                connection.sendall(b"%d\n" % pid)
        if 0 in ready:
            _leave(running, path)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, streams, _, _ = socket.recv_fds(connection, LENGTH.size, 3)
    (length,) = LENGTH.unpack(head)
    request = b""
    while len(request) < length:
        request += connection.recv(length - len(request))
    return json.loads(request), list(streams)


def _report(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as connection, suppress(OSError):
            cpu_s = usage.ru_utime + usage.ru_stime
            ended = [status, cpu_s, usage.ru_maxrss]
            connection.sendall(f"{json.dumps(ended)}\n".encode())


def _leave(running: dict[int, socket.socket], path: str) -> NoReturn:
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(Path(path).parent)
    sys.exit()


def fork() -> int:
    """Call ``os.fork`` without its warning about threads: ``main`` checks that there are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _take(streams: list[int]) -> None:
    stdin = streams[2] if len(streams) > 2 else os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((stdin, *streams[:2])):
        os.dup2(descriptor, number)
        os.close(descriptor)


def become(request: dict[str, Any]) -> None:
    """Make this fork equivalent to a new interpreter, and run the command in it."""
    for number in (signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    set_by_imports = _set_by_imports()
    os.environ.clear()
    os.environ.update(set_by_imports | request["environment"])
    os.chdir(request["cwd"])
    tempfile.tempdir = None  # tempfile must choose again, since the environment may differ
    sys.path[0] = os.getcwd()
    sys.argv = ["detector", *request["argv"]]
    _run_site_customisation()
    if MEASURED in os.environ:
        importlib.import_module("coverage").process_startup()
    runpy.run_module("detector", run_name="__main__", alter_sys=True)


def _set_by_imports() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if value != AT_START.get(name)}


def _run_site_customisation() -> None:
    """Import sitecustomize, as ``site`` does in a new interpreter that has a PYTHONPATH."""
    places = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[1:1] = places
    if any(Path(place, "sitecustomize.py").exists() for place in places):
        sys.modules.pop("sitecustomize", None)
        __import__("sitecustomize")


def main(path: str, libraries: list[str]) -> None:
    import detector

    for name in libraries:
        importlib.import_module(name)
    for module in pkgutil.walk_packages(detector.__path__, "detector."):
        needs_torch = module.name.startswith(NEED_TORCH) and TORCH not in libraries
        if not needs_torch and module.name != "detector.__main__":
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:  # a library of an extra that is not installed
                if str(error.name).startswith("detector"):
                    raise
    assert (TORCH in sys.modules) == (TORCH in libraries)
    parse_packaged()
    gc.collect()
    gc.freeze()  # keeps the pages of these objects shared between forks
    # OpenBLAS starts threads on import, ends them before a fork, and restarts them when needed, so
    # fork once. A fork would lack the threads of other libraries, and might wait for them.
    if fork() == 0:
        os._exit(0)
    os.wait()
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{', '.join(libraries)}: {threads - 1} threads, so no fork is safe"
    try:
        become(serve(path))
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise  # the code is a text, which the interpreter prints
        leave(end.code or 0, libraries)
    leave(0, libraries)


def parse_packaged() -> None:
    """Parse the packaged YAML in advance: parsing takes most of a short command's time."""
    from detector.core.errors.yaml_parsing import parse_yaml
    from detector.core.models.catalogue import folder

    for file in (folder() / "default.yaml", *(folder() / "models").glob("*.yaml")):
        parse_yaml(file.read_text(encoding="utf-8"), file)


def leave(code: int, libraries: list[str]) -> None:
    """End this fork like an interpreter, but without destroying every module.

    Destroying the modules would take most of a short command's time: it writes to each object that
    was imported before the fork, so the system must first copy the object's page. The rest is done:
    threads are joined, exit functions run, cycles are collected, streams are flushed, and the
    libraries' destructors run (except torch's, which would take equally long). Tests that start a
    new interpreter cover the full exit of each command and each engine.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()  # if it fails, the interpreter prints its usual message
    sys.stderr.flush()
    if TORCH in libraries:
        os._exit(code & 0xFF)
    ctypes.PyDLL(None).exit(code & 0xFF)  # keeps the GIL, so no other Python thread runs again


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
