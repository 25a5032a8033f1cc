"""Measure this computer's peaks: bandwidths of caches and memory, and the speed of kernels.

The first measurement takes three seconds for each number of threads (1, 2, 4, ... up to the run's),
and one or two seconds for each engine and precision. If layers are faster than these peaks allow,
we measure again and keep the higher rates, since a disturbance can only lower a measured peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from detector.core.config.schema import Config
from detector.lab.peaks import caches, kernels, records
from detector.lab.session.network import Bandwidth, Peaks, keep_higher_peaks


@dataclass(frozen=True)
class PeakSetup:
    engine: str
    precision: str
    threads: int
    own: Mapping[str, str]


def find_peaks(setup: PeakSetup, config: Config) -> Peaks:
    key = records.make_key(setup.engine, setup.precision, setup.threads, setup.own)
    peaks = records.find(config, key)
    if peaks is None:
        peaks = measure_peaks(setup, records.find_curve(config, key))
        records.keep(config, key, peaks)
    for other in records.find_alike(config, key, peaks.gflops_s):
        peaks = keep_higher_peaks(other, peaks)
    return peaks


def measure_again(setup: PeakSetup, config: Config, before: Peaks) -> Peaks:
    key = records.make_key(setup.engine, setup.precision, setup.threads, setup.own)
    peaks = keep_higher_peaks(before, measure_peaks(setup))
    records.keep(config, key, peaks)
    return peaks


def measure_peaks(setup: PeakSetup, known: Sequence[Bandwidth] | None = None) -> Peaks:
    """Measure the peaks, without reading stored ones. ``known``: bandwidths to reuse."""
    reached = kernels.measure(setup.engine, setup.precision, setup.threads, setup.own)
    curve = known or caches.measure(setup.threads)
    levels = caches.find_levels(curve, setup.threads)
    return Peaks(
        gflops_s={name: one.gflops_s for name, one in reached.items()},
        by={name: one.by for name, one in reached.items()},
        spread={name: one.spread for name, one in reached.items()},
        instructions={name: kernels.find_instructions(name) for name in reached},
        threads=setup.threads,
        bandwidth_gbytes_s=levels[-1].gbytes_s,
        bandwidths=curve,
        levels=levels,
        measured=date.today().isoformat(),
    )
