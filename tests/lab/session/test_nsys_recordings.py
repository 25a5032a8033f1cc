"""Real exports of Nsight Systems 2022.4.2, 2023.4.4 and 2024.2.3, written by scripts/nsys_check.
A JSON file next to each export has the number of calls that the run's session counted."""

import json
import lzma
from pathlib import Path

import pytest

from detector.core.errors import UsageError
from detector.lab.analysis.loop.recorded import recorded_facts
from detector.lab.session.nsys import CAMERA, NsysRun, read_nsys

FOLDER = Path(__file__).with_name("nsys")
NAMES = sorted(path.name.removesuffix(".sqlite.xz") for path in FOLDER.glob("*.xz"))

WITHOUT_CALLS = ("2023-batch", "2024-no-osrt")  # no system calls: recorded with ``-t nvtx`` only


def recording(name: str, tmp_path: Path) -> list[NsysRun]:
    export = tmp_path / f"{name}.sqlite"
    export.write_bytes(lzma.decompress((FOLDER / f"{name}.sqlite.xz").read_bytes()))
    return read_nsys(export)


def calls(run: NsysRun) -> dict[str, int]:
    columns = run.columns
    work = columns["stage"][columns["kind"] == 0].tolist()
    names = columns["stage_names"].tolist()
    return {name: work.count(at) for at, name in enumerate(names) if at in work}


def test_recordings_cover_each_version_and_kind() -> None:
    assert {name[:4] for name in NAMES} == {"2022", "2023", "2024"}
    assert {name[5:] for name in NAMES} >= {"loop", "batch", "no-osrt", "cut-off"}
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1_000_000


@pytest.mark.parametrize("name", NAMES)
def test_nvtx_ranges_equal_the_calls_of_the_session(name: str, tmp_path: Path) -> None:
    expected = json.loads((FOLDER / f"{name}.json").read_text())
    runs = recording(name, tmp_path)
    assert [calls(run) for run in runs] == [one["calls"] for one in expected]
    assert [run.open for run in runs] == [one["open"] for one in expected]


@pytest.mark.parametrize("name", NAMES)
def test_threads_queues_and_programs_are_recognised(name: str, tmp_path: Path) -> None:
    for run in recording(name, tmp_path):
        threads = [one for one in run.columns["thread_names"].tolist() if CAMERA not in one]
        assert {"reader", "writer", "worker-0"} <= set(threads)
        assert run.loop_is_known
        assert run.loop["concurrency"] == len(threads) - 2
        assert run.program == "detect-video"


@pytest.mark.parametrize("name", [name for name in NAMES if "cut-off" not in name])
def test_dependency_table_adds_up(name: str, tmp_path: Path) -> None:
    for number, _ in enumerate(recording(name, tmp_path), 1):
        facts = recorded_facts(recording(name, tmp_path), number)
        assert facts.critical_path is not None
        path = facts.critical_path
        whole = path.startup_s + path.wall_s + path.teardown_s
        assert sum(row.critical_path_s for row in facts.dependency) == pytest.approx(whole)
        assert sum(row.share for row in facts.dependency) == pytest.approx(1)
        names = {row.name for row in facts.dependency}
        system_calls = {one for one in names if one.endswith(")")}
        assert bool(system_calls) == bool(facts.blocked) == (name not in WITHOUT_CALLS)
        assert "infer" in names


def test_worker_processes_are_separate_runs(tmp_path: Path) -> None:
    runs = recording("2023-batch", tmp_path)
    assert len({run.process for run in runs}) == 2
    facts = recorded_facts(runs, 2)
    assert (facts.run, len(facts.runs)) == (2, 2)
    with pytest.raises(UsageError, match="--nsys-run 3"):
        recorded_facts(runs, 3)


def test_run_with_the_most_frames_is_shown_by_default(tmp_path: Path) -> None:
    few, many = recording("2022-loop", tmp_path)[0], recording("2023-cut-off", tmp_path)[0]
    assert many.frames > few.frames
    assert [recorded_facts(both).run for both in ([few, many], [many, few])] == [2, 1]
