"""What 300 idle connections of one address cost a run over a file that has a page."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import CHECKOUT

TOKEN = "idle-load-token-0123456789"
PATIENCE_S = 60.0
RETRY_S = 2.0  # sooner, and the visitors, which run here too, cost more than the page


@dataclass(slots=True)
class Pair:
    """FPS end to end of two runs in turn, and how often the idle ones came back."""

    without: float
    loaded: float
    connections: int

    @property
    def ratio(self) -> float:
        return self.loaded / self.without


def own_address() -> str:
    """This machine's, as others see it: a visitor from loopback has places of its own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, suppress(OSError):
        asked.connect(("192.0.2.1", 9))  # sends nothing
        return str(asked.getsockname()[0])
    return "127.0.0.1"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def check_idle(folder: Path, video: str, rounds: int, count: int = 300) -> list[Pair]:
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    run_once(folder, video, 0)  # whatever is built at a first run
    pairs = []
    for turn in range(rounds):
        both = {}
        for idle in (0, count) if turn % 2 == 0 else (count, 0):
            both[idle] = run_once(folder, video, idle)
        pairs.append(Pair(both[0][0], both[count][0], both[count][1]))
    return pairs


def run_once(folder: Path, video: str, count: int) -> tuple[float, int]:
    port = free_port()
    command = [
        *(sys.executable, "-m", "detector", video, "--json", "--engine", "ort", "-o", "/dev/null"),
        *("--serve", f"0.0.0.0:{port}", "--token-file", str(folder / "token")),
        *("--engines-dir", str(folder / "engines"), "--run-dir", str(folder / "run")),
    ]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "DETECT_VIDEO_SELF_TIMING": "0"}
    with (
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running,
        idle_visitors(port, count) as made,
    ):
        out, err = running.communicate(timeout=600)
    if running.returncode:
        raise RuntimeError(err)
    return float(json.loads(out)["fps"]["end_to_end"]), made[0]


@contextmanager
def idle_visitors(port: int, count: int) -> Iterator[list[int]]:
    """Connections that send nothing; one that is closed is made again."""
    over, made = threading.Event(), [0]

    def visit() -> None:
        begun = time.monotonic()
        while not over.is_set() and (made[0] or time.monotonic() - begun < PATIENCE_S):
            with suppress(OSError), socket.create_connection((own_address(), port), 5) as one:
                made[0] += 1
                one.settimeout(0.5)
                while not over.is_set():
                    with suppress(TimeoutError):
                        if not one.recv(1):
                            break
            over.wait(RETRY_S)

    threads = [threading.Thread(target=visit, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
