"""What a wing can do for the command ``detect``: take some runs over, and watch the others."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from detector.core.config.schema import Config
from detector.core.engines.base import BuildProgress
from detector.core.run.detect import Live, Result, Watcher
from detector.core.terminal.console import SafeConsole
from detector.core.terminal.progress import LiveLine


class Around(Protocol):
    """What surrounds one run of ``detect`` while it lasts, such as a page."""

    def watch(self, line: LiveLine | None) -> tuple[Watcher | None, Live | None]:
        """Return what receives the frames of a run over files, and what shows its progress."""


class Guest(Protocol):
    """What a wing does for ``detect``."""

    def takes(self, specs: Sequence[str], config: Config, given: Container[str]) -> bool:
        """Whether it runs these sources itself. ``given``: options on the command line. Raises
        UsageError for sources that do not go together, and for options that nothing would read."""

    def check(self, specs: Sequence[str], config: Config) -> None:
        """Raise everything that is wrong with sources that it runs, without opening one."""

    def around(
        self, config: Config, say: Callable[[str], None]
    ) -> AbstractContextManager[Around]: ...

    def detect(
        self,
        specs: Sequence[str],
        config: Config,
        around: Around,
        *,
        command: Sequence[str],
        console: SafeConsole | None,
        say: Callable[[str], None],
        told: bool,
        building: BuildProgress | None,
    ) -> Result:
        """Run the sources. ``console``: a terminal to draw on, or None. ``told``: whether to print
        a line for each source that comes or goes."""
