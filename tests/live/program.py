"""Run the program on a list of cameras, as a user does, and watch it through /proc."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class UnavailableError(Exception):
    """Raised if this machine cannot run a check; the text says why."""


class ProgramEndedError(Exception):
    """Raised if the program did not start, run or end as it should. The text says why."""


@dataclass
class Sample:
    at_s: float  # Unix time
    rss_mb: float
    threads: int
    descriptors: int
    cpu_s: float


class Program:
    """A running detect-video with its own folder. ``prefix``: words before the command, such as
    ``ip netns exec NAME``. ``environment``: additional variables. Unless ``options`` contain
    ``--json``, the program prints each change of a camera's state to standard error."""

    def __init__(
        self,
        folder: Path,
        cameras: Path,
        options: Sequence[str],
        *,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.out, self.runs = folder / "live", folder / "run"
        command = [*prefix, sys.executable, "-m", "detector", str(cameras), "-o", f"{self.out}/"]
        command += ["--run-dir", str(self.runs), *options]
        variables = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
        self._stderr = folder / "stderr.txt"
        with (folder / "stdout.txt").open("w") as stdout, self._stderr.open("w") as stderr:
            self.process = subprocess.Popen(
                command, cwd=folder, env=variables, stdout=stdout, stderr=stderr
            )
        self.samples: list[Sample] = []
        self.exit_code: int | None = None
        self.end_s = 0.0  # seconds from SIGTERM to the exit

    def sample(self) -> Sample:
        place = Path(f"/proc/{self.process.pid}")
        try:
            status = dict(
                line.split(":", 1) for line in (place / "status").read_text().splitlines()
            )
            ticks = (place / "stat").read_text().rsplit(")", 1)[1].split()
            sample = Sample(
                time.time(),
                int(status["VmRSS"].split()[0]) / 1024,
                int(status["Threads"]),
                len(os.listdir(place / "fd")),
                (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK"),
            )
        except (OSError, KeyError) as error:
            raise ProgramEndedError(f"the program is gone: {self.errors()}") from error
        self.samples.append(sample)
        return sample

    def watch(self, seconds: float, every_s: float = 1.0) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.sample()
            time.sleep(min(every_s, left))

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> float | None:
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            if condition():
                return time.monotonic() - start
            self.sample()
            time.sleep(0.25)
        return None

    def wait_for_cameras(self, names: Sequence[str], seconds: float = 90) -> float:
        took = self.wait_until(
            lambda: all(self.last_event(name, "camera_up") for name in names), seconds
        )
        if took is None:
            up = [name for name in names if self.last_event(name, "camera_up")]
            raise ProgramEndedError(f"only {up} of {list(names)} came up: {self.errors()}")
        return took

    def error_lines(self) -> list[str]:
        return self._stderr.read_text().splitlines()

    def errors(self) -> str:
        return "\n".join(self.error_lines())[-2000:].strip()

    def end(self) -> dict[str, Any]:
        requested_s = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.exit_code = self.process.wait(60)
        except subprocess.TimeoutExpired as error:
            raise ProgramEndedError(f"still running 60 s after SIGTERM: {self.errors()}") from error
        self.end_s = time.monotonic() - requested_s
        try:
            last = max(self.summaries(), key=lambda path: path.stat().st_mtime_ns)
            document: dict[str, Any] = json.loads(last.read_text())
        except ValueError as error:
            raise ProgramEndedError(f"it left no summary: {self.errors()}") from error
        return document

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def summaries(self) -> list[Path]:
        return list(self.runs.glob("*/summary.json"))

    def lines(self, camera: str, kind: str) -> Iterator[dict[str, Any]]:
        for path in sorted((self.out / camera).glob(f"{kind}-*.jsonl")):
            with path.open() as file:
                for line in file:
                    if line.endswith("\n"):
                        yield json.loads(line)

    def last_event(self, camera: str, event: str) -> float:
        times = [
            in_seconds(row["time_utc"])
            for row in self.lines(camera, "events")
            if row["event"] == event
        ]
        return max(times, default=0.0)


def in_seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def write_cameras(
    path: Path, urls: Mapping[str, str], rate: float | None = None, **options: str
) -> None:
    """Write cameras.yaml in JSON, which is valid YAML. ``options``: camera -> rtsp_transport."""
    entries = []
    for name, url in urls.items():
        entry: dict[str, Any] = {"name": name, "url": url}
        if rate is not None:
            entry["rate"] = rate
        if name in options:
            entry["options"] = {"rtsp_transport": options[name]}
        entries.append(entry)
    path.write_text(json.dumps({"cameras": entries}, indent=1))
