"""The table of nvprof's metrics and their successors."""

from __future__ import annotations

import pytest

from detector.core.config.levels import read_level
from detector.core.models.catalogue import folder
from tests.cli.command import detect_video, run_ok, summary_of

# Metrics that a lab of 2022 gave to ``nvprof --metrics`` and wrote about, on a GPU of 2014.
LAB = {
    "shared_load_transactions_per_request": None,
    "warp_execution_efficiency": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "double_precision_fu_utilization": (
        "smsp__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active"
    ),
    "single_precision_fu_utilization": (
        "smsp__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active"
    ),
    "shared_efficiency": "smsp__sass_average_data_bytes_per_wavefront_mem_shared.pct",
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "local_load_requests": "l1tex__t_requests_pipe_lsu_mem_local_op_ld.sum",
    "local_memory_overhead": None,
    "flop_sp_efficiency": (
        "smsp__sass_thread_inst_executed_ops_fadd_fmul_ffma_pred_on.avg"
        ".pct_of_peak_sustained_elapsed"
    ),
    "flop_dp_efficiency": (
        "smsp__sass_thread_inst_executed_ops_dadd_dmul_dfma_pred_on.avg"
        ".pct_of_peak_sustained_elapsed"
    ),
}


@pytest.mark.slow
def test_all_of_them(tmp_path):
    document = summary_of(detect_video("metrics", "--json", cwd=tmp_path))
    found, events = document["metrics"], document["events"]
    assert found["achieved_occupancy"] == {
        "ncu": "sm__warps_active.avg.pct_of_peak_sustained_active",
        "nearest": None,
        "says": "Warps resident on a multiprocessor, of the most it can hold.",
    }
    assert events["active_cycles"]["ncu"] == "sm__cycles_active.sum"
    assert events["divergent_branch"]["ncu"] is None


def test_every_row_is_whole():
    """The table has all names of NVIDIA's guide, and the names of older cards."""
    _, known = read_level(folder() / "nvprof_metrics.yaml")
    names = {*known["metrics"], *known["events"]}
    for rows in known.values():
        assert list(rows) == sorted(rows)
        for name, row in rows.items():
            assert row["says"].endswith("."), name
            assert row["ncu"] is None or "__" in row["ncu"], name
            assert ("nearest" in row) <= (row["ncu"] is None), name
            # A nearest that is a name of the table leads to a row that says how it is measured.
            near = row.get("nearest") or ""
            assert near not in names - {name} or known_way(near, known), name


def known_way(name, known):
    row = known["metrics"].get(name) or known["events"][name]
    return row["ncu"] is not None or row.get("nearest") is not None


@pytest.mark.slow
@pytest.mark.parametrize("words", [[",".join(LAB)], list(LAB)], ids=["with commas", "apart"])
def test_the_names_of_a_lab(tmp_path, words):
    found = summary_of(detect_video("metrics", *words, "--json", cwd=tmp_path))
    assert {name: row["ncu"] for name, row in found["metrics"].items()} == LAB
    assert found["events"] == {}
    assert found["metrics"]["shared_load_transactions_per_request"]["nearest"] == (
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum / "
        "smsp__inst_executed_op_shared_ld.sum"
    )
    done = detect_video("metrics", *words, cwd=tmp_path)
    assert all(name in done.stdout for name in LAB)
    assert "no counterpart" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("gld", "gld_efficiency"),
        ("bank conflict", "shared_load_transactions"),
        ("Warp Execution Efficiency", "warp_execution_efficiency"),
        ("branch-efficiency", "branch_efficiency"),
        ("l1_cache_global_hit_rate", "l1_cache_global_hit_rate"),  # of cards before 2014
        ("divergent_branch", "divergent_branch"),  # an event
    ],
)
def test_a_word_picks(tmp_path, word, name):
    done = run_ok("metrics", word, cwd=tmp_path)
    assert name in done.stdout
    assert "achieved_occupancy" not in done.stdout
    assert "--dependency-analysis" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("words", [["achieved_ocupancy"], ["ipc", "achieved_ocupancy"]])
def test_an_unknown_word_is_a_usage_error(tmp_path, words):
    """An unknown name in a list is an error too."""
    done = detect_video("metrics", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert "achieved_occupancy" in done.stderr
    assert "ipc or" not in done.stderr
