"""The peaks of this computer: what its caches and memory move, and what an engine's kernels reach.

A first measurement takes three seconds for each thread count up to that of the run (1, 2, 4, ...),
and one to two for each engine and precision. A peak is a maximum, so another measurement, made if
layers come out above the roof, only raises peaks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from detector.core.config.schema import Config
from detector.lab.peaks import caches, kept, kernels
from detector.lab.session.network import Bandwidth, Peaks, keep_higher_peaks


@dataclass(frozen=True)
class PeaksOf:
    engine: str
    precision: str
    threads: int
    own: Mapping[str, str]


def find_peaks(wanted: PeaksOf, config: Config) -> Peaks:
    key = kept.key_of(wanted.engine, wanted.precision, wanted.threads, wanted.own)
    peaks = kept.find(config, key)
    if peaks is None:
        peaks = measure_peaks(wanted, kept.find_curve(config, key))
        kept.keep(config, key, peaks)
    for other in kept.find_alike(config, key, peaks.gflops_s):
        peaks = keep_higher_peaks(other, peaks)
    return peaks


def measure_again(wanted: PeaksOf, config: Config, before: Peaks) -> Peaks:
    key = kept.key_of(wanted.engine, wanted.precision, wanted.threads, wanted.own)
    peaks = keep_higher_peaks(before, measure_peaks(wanted))
    kept.keep(config, key, peaks)
    return peaks


def measure_peaks(wanted: PeaksOf, known: Sequence[Bandwidth] | None = None) -> Peaks:
    """Now, whatever was kept. ``known``: the bandwidths, which no engine changes."""
    found = kernels.measure(wanted.engine, wanted.precision, wanted.threads, wanted.own)
    curve = known or caches.measure(wanted.threads)
    return Peaks(
        gflops_s={name: one.gflops_s for name, one in found.items()},
        by={name: one.by for name, one in found.items()},
        spread={name: one.spread for name, one in found.items()},
        instructions={name: kernels.instructions_of(name) for name in found},
        threads=wanted.threads,
        bandwidth_gbytes_s=caches.of_memory(curve, wanted.threads),
        bandwidths=curve,
        levels=caches.levels(curve, wanted.threads),
        measured=date.today().isoformat(),
    )
