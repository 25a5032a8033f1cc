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
# In a new interpreter: one run of every command, and one on every engine, with its imports. The
# others are forks of a process that has imported everything (tests/forked.py).
ANEW = {
    "default-outputs", "engine-torch", "engine-openvino", "engine-null", "profile", "compare",
    "eval", "report-html", "diff", "build", "models-list", "metrics", "doctor", "infer-raw",
    "version", "no-argument", "text-as-video",
}  # fmt: skip

# Measures layers and peaks for seconds; the figures are masked, and their sums hold at any length.
MEASURING = {"profile-layers"}


@dataclass(frozen=True)
class Ran:
    command: Command
    exit_code: int
    stdout: str
    stderr: str
    folder: Path
    before: frozenset[str]  # files that existed before


def files_in(folder: Path) -> frozenset[str]:
    return frozenset(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class Runner:
    """``start`` what will be asked for, ``result`` waits for one.

    A context: waits for what runs.
    """

    def __init__(self, root: Path, at_once: int = 2) -> None:
        self.root = root
        self._futures: dict[str, Future[Ran]] = {}
        self._pool = ThreadPoolExecutor(at_once)
        # The cache of its own holds no model that somebody pulled.
        self._environment = {"XDG_CACHE_HOME": str(root / "cache"), "COLUMNS": "100"}
        (root / "engines").mkdir(parents=True)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def start(self, commands: Iterable[Command]) -> None:
        """Start the commands in the order of the table.

        A command starts after the one it depends on, so no two wait for each other.
        """
        for command in commands:
            if command.after is not None:
                self.start([BY_NAME[command.after]])
            if command.name not in self._futures:
                self._futures[command.name] = self._pool.submit(self._run, command)

    def result(self, command: Command) -> Ran:
        self.start([command])
        return self._futures[command.name].result()

    def _run(self, command: Command) -> Ran:
        folder = self.root / command.name
        if command.after is None:
            folder.mkdir()
        else:
            shutil.copytree(self._futures[command.after].result().folder, folder)
        # A clip made again has another sha256.
        for name in command.inputs if command.after is None else ():
            put(name, folder)
        before = files_in(folder)
        argv = [word.replace("{engines}", str(self.root / "engines")) for word in command.argv]
        environment = dict(self._environment)
        if command.name in MEASURING:
            environment |= with_short_budgets(self.root)
        run = detect_video_anew if command.name in ANEW else detect_video
        done = run(*argv, cwd=folder, env=environment)
        return Ran(command, done.returncode, done.stdout, done.stderr, folder, before)
