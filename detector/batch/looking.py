"""Report on a job without changing it: --status and --dry-run."""

from __future__ import annotations

from collections.abc import Sequence

from detector.batch.documents import (
    BatchProgress,
    BatchReport,
    BatchResult,
    DryRun,
    Failure,
    Found,
    ItemCounts,
)
from detector.batch.job import Request, exit_of
from detector.batch.layout import is_running
from detector.batch.listing import list_sources
from detector.batch.manifest import DONE, FAILED, Manifest, ManifestRow, known_names, manifests
from detector.batch.places import open_home, open_outputs
from detector.batch.plan import make_plan
from detector.batch.settings import as_plain, ask, read_settings
from detector.batch.start import given_or_kept
from detector.core.errors import EXIT_DONE, UsageError
from detector.core.errors.text import counted
from detector.core.session.document import Exit


def look(place: str) -> BatchResult:
    """Return the state of the job in a folder, whether it is running or not. ``done`` counts the
    items of all its runs. Raises UsageError if there is no job."""
    home = open_home(place)
    settings, paths = read_settings(home), manifests(home)
    if settings is None:
        raise UsageError(f"{place}: contains no batch job; check -o")
    states: dict[str, str] = {}
    failures: dict[str, Failure] = {}
    progress: list[BatchProgress] = []
    reports: list[BatchReport] = []
    items: dict[str, tuple[bool, dict[str, int] | None]] = {}
    frames, seconds = 0, 0.0
    for path in paths:
        with Manifest.reading(path) as manifest:
            for row in manifest.rows():
                # Several shards' manifests may list the same item. It is done if one says so.
                if row.state == DONE or states.get(row.name) not in (FAILED, DONE):
                    states[row.name] = row.state
            more, more_s = manifest.work()
            frames, seconds = frames + more, seconds + more_s
            for failure in manifest.failures():
                failures[failure.name or failure.source] = failure
            progress += [found] if (found := manifest.read(BatchProgress)) is not None else []
            items |= manifest.found()
            reports += [report] if (report := manifest.read(BatchReport)) is not None else []
    standing = [one for key, one in failures.items() if states.get(key, FAILED) == FAILED]
    in_all = Found.of(items)
    damaged = len(in_all.damaged)
    done = sum(state == DONE for state in states.values())
    left = sum(state not in (DONE, FAILED) for state in states.values())
    running = is_running(home)
    return BatchResult(
        output=place,
        items=ItemCounts(done=done, failed=len(standing), damaged=damaged, left=left),
        failures=standing,
        seconds=seconds,
        frames=frames,
        fps=frames / seconds if frames and seconds > 0 else None,
        workers=sum(len(one.workers) for one in progress),
        exit=_exit(running, left, done, standing, damaged),
        running=running,
        shards=[path.stem.removeprefix("manifest-") for path in paths if "-of-" in path.stem],
        settings=settings,
        progress=max(progress, key=lambda one: one.time, default=None),
        report=reports[0] if len(reports) == 1 else None,
        found=in_all,
    )


def _exit(running: bool, left: int, done: int, failures: Sequence[Failure], damaged: int) -> Exit:
    if running:
        return Exit(code=EXIT_DONE, reason="running")
    if left:
        are_left = f"{counted(left, 'item', 'is')} left"
        return Exit(code=EXIT_DONE, reason=f"not finished: {are_left}; continue with --resume")
    return exit_of(done, failures, damaged)


def dry_run(request: Request) -> DryRun:
    """Return what ``run_batch`` would do. If the settings differ from the job's, all
    done items count as changed, since ``auto`` cannot be resolved without loading a model."""
    home = open_home(request.output)
    settings = read_settings(home)
    sources, flags, config_file = given_or_kept(request, settings)
    if not sources:
        raise UsageError("no SOURCE given; give folders or files")
    asked, _ = ask(sources, flags, config_file)
    listing = list_sources(sources, request.output, known_names(home))
    same = settings is not None and settings.asked == as_plain(asked)
    digest = settings.digest if settings is not None and same else ""
    rows: list[ManifestRow] = []
    for path in manifests(home):
        with Manifest.reading(path) as manifest:
            rows += manifest.rows()
    mine = request.shard.part_of(listing)
    plan = make_plan(mine, rows, open_outputs(request.output), digest)
    return DryRun(
        output=request.output,
        planned=plan.counts(),
        bytes=sum(item.size for item, _ in plan.todo),
        items=[item.name for item, _ in plan.todo],
        refused=mine.refused,
        notes=listing.notes(),
    )
