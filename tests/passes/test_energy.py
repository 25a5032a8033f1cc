"""RAPL from a folder of files like the kernel's: what is read, what a wrap costs, why there is nothing."""

from __future__ import annotations

import pytest

from detector.passes.energy import joules_between, measure, net, rapl_counters, why_not


def domain(root, folder, name, energy, wrap=1_000_000):
    place = root / folder
    place.mkdir(parents=True)
    (place / "name").write_text(f"{name}\n")
    (place / "energy_uj").write_text(f"{energy}\n")
    (place / "max_energy_range_uj").write_text(f"{wrap}\n")
    return place / "energy_uj"


def test_domains_are_found_by_name(tmp_path):
    domain(tmp_path, "intel-rapl:0", "package-0", 5)
    domain(tmp_path, "intel-rapl:0:0", "core", 6)
    domain(tmp_path, "intel-rapl:0:1", "uncore", 7)  # not asked for
    domain(tmp_path, "intel-rapl:0:2", "dram", 8)
    assert {(counter.tag, counter.read()) for counter in rapl_counters(tmp_path)} == {
        ("package", 5), ("core", 6), ("dram", 8),
    }  # fmt: skip


def test_sockets_add_up_and_a_counter_may_wrap(tmp_path):
    first = domain(tmp_path, "intel-rapl:0", "package-0", 900_000)
    second = domain(tmp_path, "intel-rapl:1", "package-1", 100_000)

    def work():
        first.write_text("100000")  # over its end: 0.2 J
        second.write_text("600000")  # 0.5 J

    assert measure(rapl_counters(tmp_path), None, work)["joules"] == {"package": pytest.approx(0.7)}


@pytest.mark.parametrize(("before", "after", "joules"), [(0, 5_000_000, 5.0), (9_000_000, 1_000_000, 2.0), (4, 4, 0.0)])
def test_joules_between(before, after, joules):
    assert joules_between(before, after, 10_000_000) == pytest.approx(joules)


def test_idle_power_is_taken_off():
    idle = {"seconds": 2.0, "joules": {"package": 10.0}}  # 5 W
    busy = {"seconds": 4.0, "joules": {"package": 50.0, "gpu": 8.0}}
    assert net(busy, idle) == {"package": 30.0, "gpu": 8.0}


def test_what_may_not_be_read_is_no_counter_and_says_why(tmp_path):
    assert rapl_counters(tmp_path) == []
    assert "no RAPL counters" in why_not(tmp_path)
    energy = domain(tmp_path, "intel-rapl:0", "package-0", 5)
    energy.write_text("")  # root may read everything: an empty file stands for one that refuses
    assert rapl_counters(tmp_path) == []
    assert "chmod a+r" in why_not(tmp_path)
