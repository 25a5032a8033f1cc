"""Connects this wing to ``detect``: runs cameras, and lets the page show runs that read files."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from detector.core import sources
from detector.core.config.schema import Config, flag_of
from detector.core.errors import SourceError, UsageError
from detector.core.errors.addresses import Address
from detector.core.run.inputs import is_camera
from detector.core.sources._forms import STANDARD_INPUT, is_live, is_web
from detector.live.config import EventsConfig, LiveConfig, PageConfig, RecordConfig

if TYPE_CHECKING:
    from detector.core.engines.base import BuildProgress
    from detector.core.run.detect import Live, RunResult, Watcher
    from detector.core.terminal.console import SafeConsole
    from detector.core.terminal.progress import LiveLine
    from detector.live.hub import Controls, Hub
    from detector.live.page.server import Server


class Cameras:
    def takes(self, specs: Sequence[str], config: Config, given: Container[str]) -> bool:
        takes = reads_cameras(specs, config, given)
        if not takes:
            refuse_camera_options(specs, config, given)
        return takes

    def check(self, specs: Sequence[str], config: Config) -> None:
        from detector.live.run import check_live

        check_live(specs, config)

    @contextmanager
    def around(self, config: Config, say: Callable[[str], None]) -> Iterator[LivePage]:
        """Serve the run's page during the ``with`` block, if --serve is given."""
        if config.of(PageConfig).serve is None:
            yield LivePage()
            return
        from detector.live.hub import Hub
        from detector.live.page import serve

        hub = Hub()
        # Serve before a model is loaded, so that an occupied port is reported immediately.
        server = serve(hub, config.of(PageConfig), say=lambda text: say(f"detect-video: {text}"))
        say(f"page: {server.address}")
        try:
            yield LivePage(hub, server)
        finally:
            server.close()

    def detect(
        self,
        specs: Sequence[str],
        config: Config,
        around: LivePage,
        *,
        command: Sequence[str],
        console: SafeConsole | None,
        say: Callable[[str], None],
        report_changes: bool,
        building: BuildProgress | None,
    ) -> RunResult:
        from detector.live.run import Observers, detect_live

        def echo(text: str) -> None:
            say(f"detect-video: {text}")

        table = None
        if console is not None:
            from detector.live.terminal.cameras import CameraTable

            table = CameraTable(console)
        state = echo if report_changes else lambda line: None
        observers = Observers(table, say=echo, state=state)
        if (hub := around.hub) is not None:
            observers = replace(
                observers,
                watcher=hub,
                figures_to=hub.figures_from,
                controls_to=around.control,
                events_to=(hub,),
            )
        result = detect_live(specs, config, command=command, around=observers, building=building)
        if report_changes and result.errors_shown:  # each camera's error has been printed already
            from detector.live.sources.collect import GAVE_UP

            for at, error in enumerate(result.errors):
                if isinstance(error, SourceError):  # its text may hold an address
                    end = GAVE_UP if str(error).endswith(GAVE_UP) else ""
                    result.errors[at] = SourceError(f"no camera sent a frame{end}")
        return result


@dataclass(frozen=True, slots=True)
class LivePage:
    hub: Hub | None = None
    server: Server | None = None

    def control(self, controls: Controls, recordings: Path | None) -> None:
        """Let the page change the run and serve its recordings."""
        if self.server is not None and (page := self.server.page) is not None:
            page.controls, page.recordings = controls, recordings

    def watch(self, line: LiveLine | None) -> tuple[Watcher | None, Live | None]:
        if self.hub is None:
            return None, line
        from detector.core.errors.machine import usable_cores
        from detector.live.watched_files import WatchedFiles

        watched = WatchedFiles(self.hub, line, usable_cores())
        return watched, watched


def reads_cameras(specs: Sequence[str], config: Config, given: Container[str] = ()) -> bool:
    """Return whether these sources need a live run. Raises UsageError and SourceError."""
    if config.of(LiveConfig).repeat:
        return True
    if next(_camera_flags(config, given), None) is not None:
        live = [spec for spec in specs if is_live(spec) or is_camera(spec)]
    else:
        if len(addresses := [spec for spec in specs if is_web(spec)]) > 1:
            from detector.core.sources._answers import identify_all

            identify_all(addresses)
        live = [spec for spec in specs if is_camera(spec)]
    if live and len(live) < len(specs):
        file = next(spec for spec in specs if spec not in live)
        if file == STANDARD_INPUT:
            raise UsageError(f"{file}: standard input and cameras do not mix; run it on its own")
        if is_web(file):
            sources.check(file)  # raises SourceError for a web page
            raise UsageError(
                f"{Address(file)}: files cannot be mixed with cameras; use --live latest to "
                "treat all of them as cameras, or run this file on its own"
            )
        raise UsageError(
            f"{file}: files cannot be mixed with cameras; add --loop to play it as a camera, or "
            "run it on its own"
        )
    return bool(live)


def refuse_camera_options(specs: Sequence[str], config: Config, given: Container[str] = ()) -> None:
    """Raise UsageError for an option that has no effect on files. ``given``: names of options."""
    for flag in _camera_flags(config, given):
        if all(os.path.isfile(spec) for spec in specs):
            files = "the file as a camera" if len(specs) == 1 else "the files as cameras"
            raise UsageError(f"{flag} is for cameras; add --loop to play {files}, or remove {flag}")
        raise UsageError(f"{flag} is for cameras, not for files; remove it")


def _camera_flags(config: Config, given: Container[str]) -> Iterator[str]:
    """Yield the camera options that are given, except --loop, which makes cameras of files."""
    for kind in (LiveConfig, RecordConfig, EventsConfig):
        for leaf in fields(kind):
            value = getattr(config.of(kind), leaf.name)
            is_given = value != leaf.default or (leaf.name in given and value is not False)
            if is_given and leaf.name != "repeat":
                yield flag_of(leaf)
