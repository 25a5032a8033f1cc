"""``metrics``: nvprof's metrics and their successors in Nsight Compute."""

from __future__ import annotations

import pytest

from detector.core.config.levels import read_level
from detector.core.models.catalogue import folder
from tests.cli.command import detect_video, run_ok, summary_of

# Metrics that a lab course of 2022 collected with ``nvprof --metrics`` on a GPU of 2014.
COURSE = {
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
def test_all_metrics_are_listed(tmp_path):
    document = summary_of(detect_video("metrics", "--json", cwd=tmp_path))
    metrics, events = document["metrics"], document["events"]
    assert metrics["achieved_occupancy"] == {
        "ncu": "sm__warps_active.avg.pct_of_peak_sustained_active",
        "nearest": None,
        "says": "Warps resident on a multiprocessor, of the most it can hold.",
    }
    assert events["active_cycles"]["ncu"] == "sm__cycles_active.sum"
    assert events["divergent_branch"]["ncu"] is None


def test_every_row_of_the_table_is_complete():
    """The table contains all names of NVIDIA's guide and those of older cards."""
    _, table = read_level(folder() / "nvprof_metrics.yaml")
    names = {*table["metrics"], *table["events"]}
    for rows in table.values():
        assert list(rows) == sorted(rows)
        for name, row in rows.items():
            assert row["says"].endswith("."), name
            assert row["ncu"] is None or "__" in row["ncu"], name
            assert ("nearest" in row) <= (row["ncu"] is None), name
            # If ``nearest`` is a name in the table, that row says how to measure it.
            nearest = row.get("nearest") or ""
            assert nearest not in names - {name} or has_measurement(nearest, table), name


def has_measurement(name, table):
    row = table["metrics"].get(name) or table["events"][name]
    return row["ncu"] is not None or row.get("nearest") is not None


@pytest.mark.slow
@pytest.mark.parametrize("names", [[",".join(COURSE)], list(COURSE)], ids=["with commas", "apart"])
def test_metrics_of_a_course_have_successors(tmp_path, names):
    metrics = summary_of(detect_video("metrics", *names, "--json", cwd=tmp_path))
    assert {name: row["ncu"] for name, row in metrics["metrics"].items()} == COURSE
    assert metrics["events"] == {}
    assert metrics["metrics"]["shared_load_transactions_per_request"]["nearest"] == (
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum / "
        "smsp__inst_executed_op_shared_ld.sum"
    )
    process = detect_video("metrics", *names, cwd=tmp_path)
    assert all(name in process.stdout for name in COURSE)
    assert "no counterpart" in process.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("gld", "gld_efficiency"),
        ("bank conflict", "shared_load_transactions"),
        ("Warp Execution Efficiency", "warp_execution_efficiency"),
        ("branch-efficiency", "branch_efficiency"),
        ("l1_cache_global_hit_rate", "l1_cache_global_hit_rate"),  # on cards before 2014
        ("divergent_branch", "divergent_branch"),  # an event
    ],
)
def test_word_selects_matching_metrics(tmp_path, word, name):
    process = run_ok("metrics", word, cwd=tmp_path)
    assert name in process.stdout
    assert "achieved_occupancy" not in process.stdout
    assert "--dependency-analysis" in process.stdout


@pytest.mark.slow
@pytest.mark.parametrize("names", [["achieved_ocupancy"], ["ipc", "achieved_ocupancy"]])
def test_unknown_metric_is_a_usage_error(tmp_path, names):
    process = detect_video("metrics", *names, cwd=tmp_path)
    assert process.returncode == 2
    assert "achieved_occupancy" in process.stderr
    assert "ipc or" not in process.stderr
