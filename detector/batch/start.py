"""Start a job: make a pool, a plan and a run from the command line and from what OUT contains."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detector.batch import dataset
from detector.batch.documents import BatchResult, JobSettings
from detector.batch.job import LOCAL, Job, Request, Watch
from detector.batch.layout import FILES, ROWS, locked, named
from detector.batch.listing import WHOLE, list_sources
from detector.batch.local import Limits, LocalPool, share_cores
from detector.batch.long_items import count_tasks
from detector.batch.manifest import DONE, MANIFEST, known_names, open_manifest
from detector.batch.places import Outputs, make_output_folder, open_home, open_outputs
from detector.batch.plan import make_plan, prune
from detector.batch.pool import Pool
from detector.batch.settings import as_plain, ask, read_settings, settle, write_settings
from detector.batch.sorting import check_order, sort_sources
from detector.core.config.schema import Config
from detector.core.engines.base import NVIDIA_DRIVER
from detector.core.errors import UsageError
from detector.core.errors.text import counted
from detector.core.errors.writing import temporary_folder
from detector.core.run.signals import Stop, stop_on_signals
from detector.core.sources._addresses import is_address, local_path

PICTURES = 20  # at most this many sources are tried, in order, to find the network input's shape
TOKEN = ".detect-video-cluster"  # a hidden file in OUT: a node that can read it sees the same OUT
UNWATCHED = Watch()

MakePool = Callable[[Path, Stop], Pool]


def run_batch(
    request: Request, watch: Watch = UNWATCHED, *, make_pool: MakePool | None = None
) -> BatchResult:
    """Process all items. Raises DetectVideoError, and Stopped on a signal before the first item."""
    if request.on != LOCAL:
        from detector.batch.cluster.pool import check_on

        check_on(request.on)
    if (request.one_csv or request.sort) and is_address(local_path(request.output)):
        raise UsageError("--one-csv and --sort need a folder on this machine as -o; omit them")
    home = open_home(request.output)
    settings = check_begin(request, home)
    sources, flags, config_file = given_or_kept(request, settings)
    asked, flags = ask(sources, flags, config_file)
    # A new job lists its sources before OUT is made, so that a wrong SOURCE creates no folder.
    listed = list_sources(sources, request.output) if settings is None else None
    make_output_folder(request.output)
    with stop_on_signals() as stop, locked(home, request.shard):
        settings = check_begin(request, home)  # again: another process may have started the job
        outputs = open_outputs(request.output)
        if request.shard == WHOLE:
            outputs.discard_all()
        if listed is not None and settings is None:
            listing = listed
        else:
            listing = list_sources(sources, request.output, known_names(home))
        if request.prune:
            removed = prune(listing, outputs)
            watch.say(f"{counted(removed, 'result')} removed")
        with temporary_folder("detect-video-batch-") as folder:
            pool = (make_pool or _pool_of(request, asked, outputs.place))(folder, stop)
            try:
                fresh = settings is None or settings.asked != as_plain(asked)
                if settings is not None and fresh and request.shard != WHOLE:
                    raise _other_settings(request.output)
                config = as_plain(asked) if settings is None or fresh else settings.config
                pictures = [item.path for item in listing.items[:PICTURES]]
                facts = pool.load_first(config, pictures, resolves=fresh)
                check_order(request.sort, facts.class_names, (item.path for item in listing.items))
                found = settle(sources, flags, config_file, asked, facts)
                in_force = _agree(request, outputs, settings, found)
                with open_manifest(home, request.shard) as manifest:
                    mine = request.shard.part_of(listing)
                    plan = make_plan(mine, manifest.rows(), outputs, in_force.digest)
                    if plan.todo:
                        most = count_tasks([item for item, _ in plan.todo], request.split)
                        pool.start(in_force.config, in_force.digest, most)
                    job = Job(request, in_force, mine, plan, manifest, outputs, pool, watch)
                    job.begin(stop)
                    result = job.run(stop)
                    done = [row for row in manifest.rows() if row.state == DONE]
                    if request.sort and not stop.is_set():
                        watch.say(sort_sources(outputs, done, request.sort))
                    if request.one_csv and not stop.is_set():
                        rows = ((one.name, Path(home, FILES, one.name, ROWS)) for one in done)
                        table = Path(home, named("detections", ".csv", request.shard))
                        dataset.write_csv(table, rows)
                        watch.say(f"wrote {table}")
                outputs.keep_home(request.shard, last=True)
                return result
            finally:
                pool.close()


def prune_batch(request: Request) -> int:
    """Remove results whose source no longer exists; return how many. Raises UsageError."""
    home = open_home(request.output)
    settings = read_settings(home)
    if settings is None:
        raise UsageError(f"{request.output}: contains no batch job; check -o")
    with locked(home, WHOLE):
        outputs = open_outputs(request.output)
        sources = list(request.sources) or settings.sources
        listing = list_sources(sources, request.output, known_names(home))
        removed = prune(listing, outputs)
        outputs.keep_home(WHOLE, last=True)
        return removed


def _agree(
    request: Request, outputs: Outputs, settings: JobSettings | None, found: JobSettings
) -> JobSettings:
    if settings is None or request.shard == WHOLE:
        written = write_settings(outputs.home, found, first=settings is None)
        return outputs.publish(written, first=settings is None)
    if settings.digest != found.digest:
        raise _other_settings(request.output)
    return settings


def _other_settings(place: str) -> UsageError:
    return UsageError(
        f"{place}: the settings or the model differ from those that the job started with, which "
        "all shards must use; change them in a run without --shard, or choose another folder with "
        "-o"
    )


def _pool_of(request: Request, config: Config, place: str) -> MakePool:
    def make_pool(folder: Path, stop: Stop) -> Pool:
        if request.on == LOCAL:
            return _local_pool(request, config, place, folder, stop)
        from detector.batch.cluster.pool import ClusterPool

        return ClusterPool(
            request.on,
            folder,
            place,
            token_name=named(TOKEN, "", request.shard),
            workers=request.workers,
            item_timeout=request.item_timeout,
            gathers=dataset.is_installed(),
            stop=stop,
        )

    return make_pool


def _local_pool(
    request: Request, config: Config, place: str, folder: Path, stop: Stop
) -> LocalPool:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    return LocalPool(
        folder,
        place,
        share_cores(cores, request.workers or default_workers(len(cores), config)),
        Limits(item=request.item_timeout),
        dataset.is_installed(),
        stop=stop,
    )


def default_workers(cores: int, config: Config) -> int:
    """Return one worker per two cores, but 1 with a GPU: each worker would load a model onto it."""
    runtime = config.runtime
    on_gpu = runtime.engine == "trt" or runtime.device.startswith("cuda")
    if on_gpu or (runtime.device == "auto" and NVIDIA_DRIVER.exists()):
        return 1
    return max(1, cores // 2)


def check_begin(request: Request, home: str) -> JobSettings | None:
    settings = read_settings(home)
    own = Path(home, named(MANIFEST, ".sqlite", request.shard))
    if settings is None:
        if request.resume and not request.sources:
            raise UsageError(
                f"{request.output}: contains no batch job to continue; give SOURCES, or check -o"
            )
        return None
    if request.prune and request.shard != WHOLE:
        raise UsageError("--prune checks all results; use it without --shard")
    joins = request.shard != WHOLE and not own.exists()
    for path in Path(home).glob(f"{MANIFEST}*.sqlite"):  # all manifests must have this shard's N
        joins = joins and path.stem.endswith(f"-of-{request.shard.of}")
    if not (request.resume or joins):
        raise UsageError(
            f"{request.output}: already contains a batch job; add --resume to continue it (what "
            "is done is skipped), or choose another folder with -o"
        )
    return settings


def given_or_kept(
    request: Request, settings: JobSettings | None
) -> tuple[list[str], dict[str, Any], str | None]:
    """Return sources, flags and --config. The job supplies what the command line lacks, but no
    flags if --config is given."""
    given = {name: value for name, value in request.flags.items() if value is not None}
    sources, config_file = list(request.sources), request.config_file
    if settings is None:
        return sources, given, config_file
    kept = settings.flags if config_file is None else {}
    return sources or settings.sources, {**kept, **given}, config_file or settings.config_file
