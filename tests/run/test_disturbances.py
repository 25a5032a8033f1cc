"""External disturbances of a run, read from the kernel's files."""

from pathlib import Path

import pytest

from detector.core.run import disturbances


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "group").mkdir()
    for name in ("hot-0", "hot-1"):
        (tmp_path / name).write_text("3\n")
    (tmp_path / "governor").write_text("performance\n")
    (tmp_path / "status").write_text("VmRSS:\t 9 kB\nVmSwap:\t 0 kB\n")
    (tmp_path / "cgroup").write_text("0::/group\n")
    (tmp_path / "group/cpu.stat").write_text("usage_usec 7\nthrottled_usec 1000\n")
    monkeypatch.setattr(disturbances, "HOT", f"{tmp_path}/hot-*")
    monkeypatch.setattr(disturbances, "GOVERNOR", f"{tmp_path}/governor")
    monkeypatch.setattr(disturbances, "STATUS", f"{tmp_path}/status")
    monkeypatch.setattr(disturbances, "CGROUP", f"{tmp_path}/cgroup")
    monkeypatch.setattr(disturbances, "CGROUPS", str(tmp_path))
    return tmp_path


def test_undisturbed_run_reports_no_disturbance(system: Path) -> None:
    assert disturbances.DisturbanceMonitor().end() is None


@pytest.mark.parametrize(
    ("file", "text", "field", "value"),
    [
        ("hot-1", "5", "hot", 2),
        ("governor", "powersave", "governor", "powersave"),
        ("status", "VmSwap:\t1000 kB", "swapped_mb", 1.024),
        ("group/cpu.stat", "throttled_usec 2501000", "throttled_s", 2.5),
    ],
)
def test_disturbance_during_the_run_is_reported(system, file, text, field, value) -> None:
    watch = disturbances.DisturbanceMonitor()
    (system / file).write_text(f"{text}\n")
    report = watch.end()
    assert report is not None
    assert getattr(report, field) == value


def test_system_without_these_files_reports_no_disturbance(system: Path) -> None:
    for path in (*system.glob("*[!p]"), system / "group/cpu.stat"):
        if path.is_file():
            path.unlink()
    assert disturbances.DisturbanceMonitor().end() is None
