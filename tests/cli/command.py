"""Runs the real command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import av

COMMAND = [sys.executable, "-m", "detector"]


def detect_video(*arguments: Any, cwd: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """Finished process with text output. stdin is closed: nothing may ask."""
    environment = {**os.environ, **more.pop("env", {})}
    patience_s = more.pop("timeout", 240)
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=patience_s,
        **more,
    )


def summary_of(process: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one JSON document on stdout."""
    document: dict[str, Any] = json.loads(process.stdout)
    return document


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def decoded(path: Path) -> list[int]:
    """pts of every frame, by decoding them."""
    with av.open(str(path)) as container:
        return [frame.pts for frame in container.decode(video=0)]


def assert_one_line_error(
    process: subprocess.CompletedProcess[str], code: int, *parts: str
) -> None:
    assert process.returncode == code, process.stderr
    lines = process.stderr.strip().splitlines()
    assert len(lines) == 1, process.stderr
    assert "Traceback" not in process.stderr
    for part in parts:
        assert part in lines[0], lines[0]
