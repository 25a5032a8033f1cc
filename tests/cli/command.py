"""Run the real command in a process of its own.

``detect_video`` forks a process that has already imported the libraries (tests/forked.py).
``detect_video_anew`` starts a new interpreter, for tests of imports and of the environment.
"""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from detector.core.cli.group import cli
from tests.forked import LIGHT_SERVER, TORCH_SERVER, Fork, suits

COMMAND = [sys.executable, "-m", "detector"]
PATIENCE_S = 240.0


def detect_video(
    *arguments: Any,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    timeout: float = PATIENCE_S,
    stdin: int | None = None,
    imports_torch: bool = False,
    **more: Any,
) -> subprocess.CompletedProcess[str]:
    """Run the command and return its text output and exit code. stdin is empty unless given.

    ``imports_torch``: the command imports torch although its arguments do not contain that word.
    ``more``: options of ``subprocess.run``; they need a new interpreter.
    """
    environment = {**os.environ, **(env or {})}
    if more or not suits(environment):
        assert stdin is None
        return detect_video_anew(*arguments, cwd=cwd, env=env, timeout=timeout, **more)
    process = start(*arguments, cwd=cwd, env=environment, stdin=stdin, imports_torch=imports_torch)
    try:
        stdout, stderr = process.communicate(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert process.returncode is not None
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


def run_ok(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command as ``detect_video`` does, and assert that it succeeds."""
    process = detect_video(*arguments, **options)
    assert process.returncode == 0, process.stderr
    return process


def start(
    *arguments: Any,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: int | None = None,
    imports_torch: bool = False,
) -> Fork:
    words = list(map(str, arguments))
    imports_torch = imports_torch or any("torch" in word for word in words)
    imports_torch = imports_torch and find_spec("torch") is not None
    server = TORCH_SERVER if imports_torch else LIGHT_SERVER
    return server.start(words, str(cwd), {**os.environ, **(env or {})}, stdin)


def detect_video_anew(
    *arguments: Any,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    timeout: float = PATIENCE_S,
    **more: Any,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout,
        **more,
    )


def cli_runner() -> CliRunner:
    """Return a runner that separates stdout and stderr. Before click 8.2, this needs an option."""
    mixes = "mix_stderr" in inspect.signature(CliRunner).parameters
    return CliRunner(**({"mix_stderr": False} if mixes else {}))


def invoke(*arguments: object) -> Result:
    """Run the command in this process. Assert that it raises nothing and prints no traceback."""
    result = cli_runner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.stderr
    return result


@contextmanager
def interruptible() -> Iterator[None]:
    """Let interpreters started in this block die from SIGINT and SIGHUP, even if pytest runs in the
    background or under nohup. A child process inherits ignored signals, but not handlers."""
    interrupted = signal.signal(signal.SIGINT, signal.default_int_handler)
    hung_up = signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupted)
        signal.signal(signal.SIGHUP, hung_up)


def handles_signals(pid: int) -> bool:
    """Return whether the process handles SIGTERM yet, as it does after the first line of main."""
    status = Path(f"/proc/{pid}/status").read_text()
    [caught] = re.findall(r"SigCgt:\s*([0-9a-f]+)", status)
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def summary_of(process: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(process.stdout)
    return document


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def assert_one_line_error(
    process: subprocess.CompletedProcess[str], code: int, *parts: str
) -> None:
    assert process.returncode == code, process.stderr
    lines = process.stderr.strip().splitlines()
    assert len(lines) == 1, process.stderr
    assert "Traceback" not in process.stderr
    for part in parts:
        assert part in lines[0], lines[0]
