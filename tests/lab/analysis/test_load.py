"""Comparing two runs during which other programs used different amounts of CPU time."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import to_builtins

from detector.core.session.document import CpuTime, LibraryThreads, StageFigures
from detector.lab.analysis.compare import compare_variants
from detector.lab.analysis.load import (
    SHARED_CACHES,
    CpuChange,
    compare_cpu,
    compare_load,
    most_grown,
)
from detector.lab.session.comparison import About
from tests.cli.command import detect_video
from tests.lab.analysis.test_compare import variant
from tests.session.documents import document


def run_with_load(others, write_ms=4.0, process_s=None, cores=2):
    base = document()
    frames = base.frames.written
    seconds = {"wall_s": 2.0, "process_s": 1.0, "unknown_s": 0.0}
    seconds["others_s"] = None if others is None else others * 2.0
    libraries = LibraryThreads(**seconds, stages={})
    write = StageFigures(
        thread="writer",
        calls=frames,
        busy_s=1.0,
        cpu_s=write_ms * frames / 4e3,
        library_cpu_s=write_ms * frames * 3 / 4e3,
    )
    cpu = CpuTime(
        cores=cores,
        process_s=(10 + write_ms) * frames / 1e3 if process_s is None else process_s,
        our_threads_s=1.0,
        library_threads_s=0.0,
        stages_include_libraries=False,
        libraries=libraries,
    )
    return replace(base, cpu=cpu, stages={"write": write})


@pytest.mark.parametrize(
    ("before", "after", "differs", "crowded"),
    [
        (0.0, 0.8, True, False),
        (1.2, 0.0, True, True),
        (0.5, 0.55, False, False),
        (1.2, 1.25, True, True),  # nearly equal, but too high for a fair comparison
        (0.0, 0.0, False, False),
    ],
)
def test_loads_of_other_programs_are_compared(before, after, differs, crowded):
    load = compare_load(run_with_load(before), run_with_load(after))
    cores = {"before_cores": before, "after_cores": after, "cores": 2}
    assert load
    assert load.as_json() == {**cores, "differs": differs, "crowded": crowded}


def test_unknown_load_is_not_compared():
    assert compare_load(run_with_load(None), run_with_load(1.0)) is None
    assert compare_load(run_with_load(0.0, cores=4), run_with_load(1.0)) is None


def test_cpu_time_of_a_stage_includes_library_threads():
    rows = {row.what: row for row in compare_cpu(run_with_load(0), run_with_load(1, write_ms=6.0))}
    assert (rows["write"].before, rows["write"].after) == pytest.approx((4.0, 6.0))
    assert (rows["the whole process"].before, rows["the whole process"].after) == pytest.approx(
        (14.0, 16.0)
    )


@pytest.mark.parametrize(
    ("before", "after", "fails"),
    [
        (10, 10 * (1.05 + SHARED_CACHES) - 0.01, False),
        (10, 10 * (1.05 + SHARED_CACHES) + 0.01, True),
        (0.1, 0.3, False),  # three times as much, but still negligible
        (10, 5, False),
    ],
)
def test_cpu_growth_within_the_effect_of_shared_caches_is_allowed(before, after, fails):
    assert CpuChange("write", before, after, 14.0).regresses(0.05) is fails


def test_most_grown_prefers_a_stage_to_the_whole_process():
    whole, write, read = (
        CpuChange(what, 4.0, after, 14.0)
        for what, after in (("the whole process", 20.0), ("write", 9.0), ("read", 6.0))
    )
    assert most_grown([whole, read, write], 0.05) is write
    assert most_grown([whole], 0.05) is whole
    assert most_grown([CpuChange("read", 4.0, 4.1, 14.0)], 0.05) is None


@pytest.fixture
def two_runs(tmp_path):
    from tests.lab.report.sessions import ran

    run = ran(tmp_path / "run", frames=30)

    def save(name, **about):
        folder = Path(shutil.copytree(run, tmp_path / name))
        path = folder / "session.json"
        saved = json.loads(path.read_text())
        frames = saved["frames"]["written"]
        loaded = to_builtins(run_with_load(**about))
        saved["cpu"] = loaded["cpu"]
        saved["cpu"]["process_s"] *= frames / loaded["frames"]["written"]
        path.write_text(json.dumps(saved))
        return folder

    return save


def set_frame_times(folder, frame_ms):
    """Rewrite the spans so that a frame ends every ``frame_ms``, plus or minus 1%."""
    with np.load(folder / "spans.npz") as saved:
        columns = dict(saved)
    written = columns["stage"] == list(columns["stage_names"]).index("write")
    ends = np.sort(columns["end_ns"][written & (columns["kind"] == 0)])
    steps = frame_ms * 1e6 * np.random.default_rng(0).uniform(0.99, 1.01, len(ends))
    for name in ("start_ns", "end_ns"):
        columns[name] = np.interp(columns[name], ends, np.cumsum(steps)).astype(np.int64)
    np.savez(folder / "spans.npz", **columns)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "code"),
    [
        ({"others": 0.8}, 0),  # other programs slowed the run down
        ({"others": 0.8, "process_s": 0.4}, 8),  # the run itself used more CPU time, too
        ({"others": 1.2, "process_s": 0.4}, 0),  # too much load: the runs are not judged
        ({"others": 0.0}, 8),
    ],
)
def test_gate_fails_only_if_the_run_itself_became_slower(two_runs, tmp_path, after, code):
    first = two_runs("first", others=0.0)
    second = two_runs("second", **after)
    set_frame_times(first, 10.0)
    set_frame_times(second, 25.0)
    argv = ("diff", str(first), str(second), "--max-regression", "50%")
    is_judged = after["others"] < 1
    for options in ((), ("--json",)):
        judged = detect_video(*argv, *options, cwd=tmp_path)
        assert judged.returncode == code
        assert ("not judged" in judged.stderr) != is_judged
    gate = json.loads(judged.stdout)["gate"]
    assert is_judged or detect_video(*argv, "--strict", cwd=tmp_path).returncode == 8
    outcome = ("failed" if code else "passed") if is_judged else "not judged"
    assert (gate["outcome"], gate["limit"], bool(gate["reason"])) == (outcome, 0.5, True)
    result = json.loads(detect_video(*argv[:3], "--json", cwd=tmp_path).stdout)
    assert result["others"]["differs"] == bool(after["others"])
    assert {row["what"] for row in result["cpu"]} >= {"the whole process"}
    assert ("slower" in detect_video(*argv[:3], cwd=tmp_path).stdout) == (not after["others"])


def test_rows_with_different_loads_are_not_comparable():
    def beside(name, *others):
        made = variant(name, 10, 12, 11)
        made.rounds = [
            replace(turn, others=one, cores=2)
            for turn, one in zip(made.rounds, others, strict=True)
        ]
        return made

    def compared(*variants):
        return compare_variants(variants, About(source="in.mp4", rounds=3, budget=0.95))

    calm, busy = beside("a", 0.0, 0.1, 0.0), beside("b", 0.0, 1.2, 1.3)
    found = compared(calm, busy)
    assert (found.comparable, len(found.warnings)) == (False, 1)
    assert "1.2 during b" in found.warnings[0]
    once = beside("b", 0.0, 1.2, 0.0)  # busy in one round of three
    assert compared(calm, once).comparable is True
    alike = compared(busy, beside("c", 1.2, 1.2, 1.2))
    assert alike.comparable is True
    assert all("other programs used 1.2 of 2" in row.notes[0] for row in alike.rows)
    assert compared(calm, beside("c", None, None, None)).comparable is True
