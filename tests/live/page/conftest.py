"""Fixtures that serve the page of a fake run or of a real one."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from detector.live.config import PageConfig
from detector.live.page import serve
from detector.live.page.binding import LIBRARIES
from tests.cli.command import COMMAND
from tests.lab.report.browser import Browser, started
from tests.live.page.client import Client
from tests.live.page.fake_run import FakeRun
from tests.waiting import PATIENCE_S, wait_for


def skip_without_libraries() -> None:
    for library in LIBRARIES:
        pytest.importorskip(library, reason=f"machine: {library} is not installed")


class Served:
    def __init__(self, run: FakeRun, config: PageConfig | None = None, **more: object) -> None:
        skip_without_libraries()
        self.run, self.hub = run, run.hub
        self.server = serve(run.hub, config or PageConfig(serve="0"), **more)
        self.client = Client(self.server.port)
        self.page.sampler.every_s = 0.05
        wait_for(lambda: self.page.sampler.newest is not None or not run.streams)

    @property
    def page(self):
        return self.server.page

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.server.close()  # returns after two seconds even if its thread is stuck
        self.server._thread.join(PATIENCE_S)
        assert not self.server._thread.is_alive()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    yield from started(tmp_path / "chromium")


@contextmanager
def running(folder: Path, *options: str) -> Iterator[tuple[Client, subprocess.Popen[str]]]:
    """Start a command that serves a page, with output ``live/``. Yield a client and the process."""
    skip_without_libraries()
    call = [*COMMAND, *options, "--serve", "0", "-o", "live/", "--run-dir", "run"]
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(call, cwd=folder, text=True, **pipes) as process:
        try:
            output = ""
            while not (address := re.search(r"page: http://127\.0\.0\.1:(\d+)/", output)):
                line = process.stderr.readline()
                assert line, output
                output += line
            yield Client(int(address[1])), process
        finally:
            process.kill()


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """Do not report a run as unresponsive if this machine stalls for a few seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("detector.live.page.sampler.TIMEOUT_S", PATIENCE_S)
        yield


@pytest.fixture
def served():
    with Served(FakeRun("door", "gate")) as served:
        yield served
