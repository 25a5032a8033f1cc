"""Read and write peaks.json, which stores this machine's peaks in the folder of built engines."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from detector.core.config.schema import Config
from detector.core.engines._built import building, store
from detector.core.errors import OutputError, UsageError
from detector.core.run.measurements import library_version, this_machine
from detector.core.session.codec import from_builtins, to_builtins, to_json
from detector.lab.peaks import caches, kernels
from detector.lab.session.network import Bandwidth, Peaks

FILE = "peaks.json"
# Increase this number if the measurement changes, so that older figures are ignored.
SCHEMA = 3
KEPT = 50  # records
ALIKE = ("machine", "threads", "looked")  # records that agree in these have the same bandwidths


def make_key(engine: str, precision: str, threads: int, own: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts that determine a peak, among them the limits of its measurement."""
    return {
        "machine": to_builtins(this_machine()),
        "engine": engine,
        "library": library_version(engine),
        "precision": precision,
        "threads": threads,
        "own": dict(own),
        "looked": [caches.EACH_S, caches.LARGEST, kernels.BUDGET_S],
    }


def find(config: Config, key: Mapping[str, Any]) -> Peaks | None:
    same = [peaks for known, peaks in _read_records(config) if known == key]
    return same[-1] if same else None


def find_curve(config: Config, key: Mapping[str, Any]) -> Sequence[Bandwidth] | None:
    """Find the newest bandwidths of this machine for this number of threads, with any engine."""
    matching = [peaks for known, peaks in _read_records(config) if _agree(known, key, ALIKE)]
    return (matching[-1].bandwidths or None) if matching else None


def find_alike(config: Config, key: Mapping[str, Any], types: Collection[str]) -> Iterator[Peaks]:
    """Yield the other records of this thread count, without GFLOP/s of other engines or types."""
    for known, peaks in _read_records(config):
        if known == key or not _agree(known, key, ALIKE):
            continue
        same = types if _agree(known, key, ("engine", "library", "own")) else ()
        yield replace(
            peaks,
            gflops_s={name: one for name, one in peaks.gflops_s.items() if name in same},
            instructions={n: one for n, one in peaks.instructions.items() if n in same},
        )


def _read_records(config: Config) -> Iterator[tuple[dict[str, Any], Peaks]]:
    """Yield the key and the peaks of each readable record, the oldest first."""
    folder = store.choose_folder(config.runtime.engines_dir)
    for entry in _entries(store.read_kept(folder, FILE)):
        if isinstance(known := entry.get("key"), dict):
            with suppress(UsageError):
                yield known, from_builtins(entry.get("peaks"), Peaks, FILE)


def _agree(one: Mapping[str, Any], other: Mapping[str, Any], names: Sequence[str]) -> bool:
    return all(one.get(name) == other[name] for name in names)


def keep(config: Config, key: Mapping[str, Any], peaks: Peaks) -> None:
    """Store peaks in place of older peaks with this key. Do nothing if the folder is unwritable."""
    folder = store.choose_folder(config.runtime.engines_dir)
    record = {"key": key, "peaks": to_builtins(peaks)}

    def add(before: dict[str, Any] | None) -> bytes:
        others = [one for one in _entries(before) if one.get("key") != key]
        return to_json({"schema": SCHEMA, "records": [*others, record][-KEPT:]}).encode()

    with suppress(OutputError):
        building.rewrite(folder, FILE, add)


def _entries(document: dict[str, Any] | None) -> list[dict[str, Any]]:
    records = document.get("records") if document and document.get("schema") == SCHEMA else None
    return [one for one in records if isinstance(one, dict)] if isinstance(records, list) else []
