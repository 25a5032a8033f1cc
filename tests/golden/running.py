"""Run command lines, two at a time, each in a folder of its own with copies of its inputs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.cli.command import detect_video, detect_video_anew
from tests.golden.commands import COMMANDS, Command
from tests.golden.inputs import put
from tests.lab.profile.budgets import with_short_budgets

BY_NAME = {command.name: command for command in COMMANDS}
# For each command and each engine, one run uses a new interpreter. The other runs are forks of a
# process that has imported everything (tests/forked.py).
NEW_INTERPRETER = {
    "default-outputs", "engine-torch", "engine-openvino", "engine-null", "profile", "compare",
    "eval", "report-html", "diff", "build", "models-list", "doctor",
    "version", "no-argument", "text-as-video",
}  # fmt: skip

# These commands spend seconds on measuring. Short budgets suffice, because figures are masked.
MEASURING = {"profile-layers"}


@dataclass(frozen=True)
class RunResult:
    command: Command
    exit_code: int
    stdout: str
    stderr: str
    folder: Path
    before: frozenset[str]  # files that existed before the run


def files_in(folder: Path) -> frozenset[str]:
    return frozenset(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class Runner:
    """Runs commands in the background: ``start`` begins them, and ``result`` waits for one.

    It is a context manager, which waits for running commands at its end.
    """

    def __init__(self, root: Path, at_once: int = 2) -> None:
        self.root = root
        self._futures: dict[str, Future[RunResult]] = {}
        self._pool = ThreadPoolExecutor(at_once)
        # An empty cache, without the developer's downloaded models.
        self._environment = {"XDG_CACHE_HOME": str(root / "cache"), "COLUMNS": "100"}
        (root / "engines").mkdir(parents=True)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def start(self, commands: Iterable[Command]) -> None:
        """Start the commands in the given order, each after the command that it depends on.

        So a command in the pool waits only for one that is running or done: the pool cannot block.
        """
        for command in commands:
            if command.after is not None:
                self.start([BY_NAME[command.after]])
            if command.name not in self._futures:
                self._futures[command.name] = self._pool.submit(self._run, command)

    def result(self, command: Command) -> RunResult:
        self.start([command])
        return self._futures[command.name].result()

    def _run(self, command: Command) -> RunResult:
        folder = self.root / command.name
        if command.after is None:
            folder.mkdir()
        else:
            shutil.copytree(self._futures[command.after].result().folder, folder)
        # A new clip would have another sha256, so a command with ``after`` uses the copied clip.
        for name in command.inputs if command.after is None else ():
            put(name, folder)
        before = files_in(folder)
        argv = [word.replace("{engines}", str(self.root / "engines")) for word in command.argv]
        environment = dict(self._environment)
        if command.name in MEASURING:
            environment |= with_short_budgets(self.root)
        run = detect_video_anew if command.name in NEW_INTERPRETER else detect_video
        done = run(*argv, cwd=folder, env=environment)
        return RunResult(command, done.returncode, done.stdout, done.stderr, folder, before)
