"""The interface of wings to ``detect``: they take over some runs, and observe other runs."""

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
    """What a wing keeps open during one run of ``detect``, such as the server of its page."""

    def watch(self, line: LiveLine | None) -> tuple[Watcher | None, Live | None]:
        """Return an observer of the frames of a run on files, and a display of its progress.
        ``line``: the progress line of the terminal, if any."""


class Guest(Protocol):
    """A wing's part in the command ``detect``."""

    def takes(self, specs: Sequence[str], config: Config, given: Container[str]) -> bool:
        """Return whether this wing runs these sources itself. ``given``: options on the command
        line. Raises UsageError for sources that cannot be combined, or options without effect."""

    def check(self, specs: Sequence[str], config: Config) -> None:
        """Raise a UsageError that lists all faults of the wing's sources. Open no source."""

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
