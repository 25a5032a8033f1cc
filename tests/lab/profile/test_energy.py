"""Energy from a fake RAPL folder and a fake NVML module: readings, wrapped counters, samples over
time, and the reasons for missing figures.
"""

import csv
import itertools
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from detector.core.config.levels import resolve_config
from detector.core.errors.machine import NotHereError
from detector.core.session.codec import to_builtins
from detector.core.session.store import Session
from detector.lab.analysis.energy import (
    MOST_SAMPLES,
    SUMMED,
    Metered,
    energy_samples,
    subtract_idle,
)
from detector.lab.profile import energy
from detector.lab.profile.base import Occasion
from detector.lab.profile.energy import (
    EnergyMeter,
    explain_absence,
    joules_between,
    open_gpu,
    rapl_counters,
)
from detector.lab.report.tables import csv_files
from detector.lab.session.read import read_session
from tests.lab.report.sessions import CLIP, FRAMES, ran

SECOND = 1_000_000_000


def domain(root, folder, name, energy, wrap=1_000_000):
    folder = root / folder
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{energy}\n")
    (folder / "max_energy_range_uj").write_text(f"{wrap}\n")
    return folder / "energy_uj"


def write(file, value):
    """Replace the file in one step, so that readers never see half of it."""
    new = file.with_name("next")
    new.write_text(f"{value}\n")
    os.replace(new, file)


def test_rapl_domains_are_found_by_name(tmp_path):
    domain(tmp_path, "intel-rapl:0", "package-0", 5)
    domain(tmp_path, "intel-rapl:0:0", "core", 6)
    domain(tmp_path, "intel-rapl:0:1", "uncore", 7)  # a domain that we do not measure
    domain(tmp_path, "intel-rapl:0:2", "dram", 8)
    assert {(counter.tag, counter.read()) for counter in rapl_counters(tmp_path)} == {
        ("package", 5),
        ("core", 6),
        ("dram", 8),
    }


def test_package_listed_twice_is_counted_once(tmp_path):
    """Laptops have two interfaces to the same package: through registers and through memory."""
    for way in ("intel-rapl-mmio", "intel-rapl"):
        domain(tmp_path, f"{way}:0", "package-0", 5)
        domain(tmp_path, f"{way}:0:{len(way)}", "dram", 6)
    found = rapl_counters(tmp_path)
    assert [counter.tag for counter in found] == ["package", "dram"]
    assert all("mmio" not in str(counter.path) for counter in found)


def test_sockets_are_summed_and_wrapped_counters_are_corrected(tmp_path):
    first = domain(tmp_path, "intel-rapl:0", "package-0", 900_000)
    second = domain(tmp_path, "intel-rapl:1", "package-1", 100_000)
    with EnergyMeter(rapl_counters(tmp_path), None) as meter:
        write(first, 100_000)  # the counter wrapped: 0.2 J more
        write(second, 600_000)  # 0.5 J more
    assert meter.metered().total() == {"package": pytest.approx(0.7)}


@pytest.mark.parametrize(
    ("before", "after", "joules"), [(0, 5_000_000, 5.0), (9_000_000, 1_000_000, 2.0), (4, 4, 0.0)]
)
def test_joules_between_two_readings_are_right_if_the_counter_wrapped(before, after, joules):
    assert joules_between(before, after, 10_000_000) == pytest.approx(joules)


def metered(seconds, **watts):
    times = np.arange(0, seconds * SECOND + 1, SECOND // 10)
    return Metered(1000.0, times, {tag: times / SECOND * value for tag, value in watts.items()})


def test_idle_power_is_subtracted():
    used = {"package": 50.0, "gpu": 8.0}
    assert subtract_idle(used, 4.0, metered(2, package=5.0)) == pytest.approx(
        {"package": 30.0, "gpu": 8.0}
    )
    # Below the idle power, the difference is 0 and not negative.
    assert subtract_idle(used, 4.0, metered(2, package=50.0))["package"] == 0


def test_samples_add_up_to_the_total():
    written = np.arange(1, 201) * SECOND // 20 - 1
    measured = metered(10, package=7.0, dram=1.0, core=2.0)
    rows = energy_samples(measured, "run sample", written)
    assert len(rows) == 100
    assert {tag: sum(row.joules(tag) for row in rows) for tag in measured.joules} == pytest.approx(
        measured.total()
    )
    assert sum(row.duration for row in rows) == pytest.approx(10)
    assert [row.timestamp for row in rows[:2]] == pytest.approx([1000.0, 1000.1])
    assert rows[5].joules_per_frame == pytest.approx(0.4)  # cores are part of their package
    assert all(row.joules_per_frame is None for row in energy_samples(measured, "idle sample"))


def test_long_series_is_merged_into_fewer_samples():
    measured = metered(10 * MOST_SAMPLES // 10 + 7, package=7.0)
    rows = energy_samples(measured, "run sample")
    assert len(rows) <= MOST_SAMPLES
    assert sum(row.package for row in rows) == pytest.approx(measured.total()["package"])


# Each reading adds these joules, however much time has passed.
STEPS = {"package": 2.0, "core": 1.5, "dram": 0.2}
GPU_STEP = 3.0


@pytest.fixture
def powered(tmp_path, monkeypatch):
    """Fake counters that advance with each reading. The package's counter wraps after 5 J."""
    root = tmp_path / "powercap"
    wraps = {"package": 5_000_000, "core": 10**12, "dram": 10**12}
    places = {"package": "intel-rapl:0", "core": "intel-rapl:0:0", "dram": "intel-rapl:0:1"}
    files = {
        tag: domain(root, folder, tag + "-0" * (tag == "package"), 0, wraps[tag])
        for tag, folder in places.items()
    }
    read = energy.RaplCounter.read

    def step(counter):
        write(
            files[counter.tag], int(read(counter) + STEPS[counter.tag] * 1e6) % wraps[counter.tag]
        )
        return read(counter)

    monkeypatch.setattr(energy.RaplCounter, "read", step)
    gpu = itertools.count(1)

    def total(handle):
        assert handle == "GPU 0"
        return next(gpu) * GPU_STEP * 1e3

    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda at: f"GPU {at}",
        nvmlDeviceGetTotalEnergyConsumption=total,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(energy, "POWERCAP", root)
    monkeypatch.setattr(energy, "IDLE_S", 0.4)
    return root


def occasion(folder):
    session = ran(folder)
    config = resolve_config(
        None, {"engine": "null", "frames": FRAMES, "save": "jsonl", "no_video": True}
    )
    return Occasion(str(CLIP), config, Session(session), read_session(session))


@pytest.mark.slow
def test_fake_counters_give_the_energy_of_a_run(tmp_path, powered):
    occasion_with_counters = occasion(tmp_path)
    facts = to_builtins(energy.meter_energy(occasion_with_counters))
    assert facts["counters"] == ["core", "dram", "gpu", "package"]
    idle, run = facts["rows"]
    assert (idle["tag"], run["tag"]) == ("idle", "run")
    assert idle["joules_per_frame"] is None
    assert facts["joules_per_frame"] == pytest.approx(sum(run[tag] for tag in SUMMED) / FRAMES)
    rows = facts["samples"]
    busy = [row for row in rows if row["tag"] == "run sample"]
    assert [row["timestamp"] for row in rows] == sorted(row["timestamp"] for row in rows)
    # This includes samples in which the counter wrapped.
    assert all(row["package"] >= 0 and row["duration"] > 0 for row in rows)
    steps = {**STEPS, "gpu": GPU_STEP}
    for measured in (idle, {tag: sum(row[tag] for row in busy) for tag in steps}):
        assert measured["gpu"] >= GPU_STEP
        assert {tag: measured[tag] / steps[tag] for tag in steps} == pytest.approx(
            dict.fromkeys(steps, measured["gpu"] / 3)
        )
    assert facts["idle_watts"]["core"] == pytest.approx(idle["core"] / idle["duration"])
    seconds = run["duration"]
    assert all(run[tag] >= 0 for tag in steps)
    assert run["core"] <= sum(row["core"] for row in busy)
    assert 0 < seconds <= sum(row["duration"] for row in busy)
    per_frame = [row for row in busy if row["joules_per_frame"]]
    assert per_frame
    assert (
        sum(round(sum(row[t] for t in SUMMED) / row["joules_per_frame"]) for row in per_frame)
        == FRAMES
    )
    occasion_with_counters.session.write_pass(
        "energy", {"available": True, "reason": None, **facts}
    )
    table = csv_files(read_session(occasion_with_counters.session.folder))["energy.csv"]
    assert table.splitlines()[0] == (
        "timestamp,tag,duration,package,core,dram,gpu,joules_per_frame"
    )
    assert len(list(csv.DictReader(table.splitlines()))) == 2 + len(rows)


@pytest.mark.slow
def test_energy_is_measured_if_only_the_gpu_has_a_counter(tmp_path, powered, monkeypatch):
    monkeypatch.setattr(energy, "POWERCAP", tmp_path / "nothing")
    facts = energy.meter_energy(occasion(tmp_path))
    assert facts.counters == ["gpu"]
    assert "package" not in to_builtins(facts.rows[1])


def test_energy_counter_that_vanishes_during_a_run_is_an_error(tmp_path):
    file = domain(tmp_path, "intel-rapl:0", "package-0", 5)
    with EnergyMeter(rapl_counters(tmp_path), None) as meter:
        file.unlink()
    with pytest.raises(NotHereError, match="a counter stopped answering"):
        meter.metered()


def test_unreadable_energy_counter_is_skipped_with_the_reason(tmp_path, monkeypatch):
    assert rapl_counters(tmp_path) == []
    assert "no RAPL counters" in explain_absence(tmp_path)
    file = domain(tmp_path, "intel-rapl:0", "package-0", 5)
    file.write_text("")  # stands for an unreadable file, which root could read
    assert rapl_counters(tmp_path) == []
    assert "chmod a+r" in explain_absence(tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpu("auto") is None
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    with pytest.raises(NotHereError, match=r"chmod a\+r"):
        energy.meter_energy(SimpleNamespace(config=resolve_config(None, {})))
