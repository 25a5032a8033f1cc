"""What a wing can do for the command ``detect``: take over some runs, and observe the others."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from detector.core.config.schema import Config
from detector.core.engines.base import BuildProgress
from detector.core.run.detect import Live, RunResult, Watcher
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.progress import LiveLine


class Surroundings(Protocol):
    """What is open during one run of ``detect``, such as the server of its page."""

    def watch(self, line: LiveLine | None) -> tuple[Watcher | None, Live | None]:
        """Return an observer of the frames of a run on files, and a display of its progress.
        ``line``: the terminal's progress line, if it has one."""


class Guest(Protocol):
    """What a wing does for ``detect``."""

    def takes(self, specs: Sequence[str], config: Config, given: Container[str]) -> bool:
        """Return whether this wing runs these sources itself. ``given``: options on the command
        line. Raises UsageError for sources that cannot be combined, and for unused options."""

    def check(self, specs: Sequence[str], config: Config) -> None:
        """Raise UsageError that lists all faults of sources that the wing runs; open no source."""

    def around(
        self, config: Config, say: Callable[[str], None]
    ) -> AbstractContextManager[Surroundings]: ...

    def detect(
        self,
        specs: Sequence[str],
        config: Config,
        around: Surroundings,
        *,
        command: Sequence[str],
        console: SafeConsole | None,
        say: Callable[[str], None],
        report_changes: bool,
        building: BuildProgress | None,
    ) -> RunResult:
        """Run the sources. ``console``: a terminal to draw on, or None. ``report_changes``: print a
        line when a source connects or disconnects."""
