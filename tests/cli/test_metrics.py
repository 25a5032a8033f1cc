"""The table for those who know nvprof."""

from __future__ import annotations

import pytest

from tests.cli.command import detect_video, summary_of


@pytest.mark.slow
def test_all_of_them(tmp_path):
    found = summary_of(detect_video("metrics", "--json", cwd=tmp_path))["metrics"]
    assert len(found) > 40
    assert found["achieved_occupancy"]["ncu"] == "sm__warps_active.avg.pct_of_peak_sustained_active"
    assert all(set(row) == {"ncu", "says"} and row["says"].endswith(".") for row in found.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "name"), [("gld", "gld_efficiency"), ("bank conflict", "shared_load_transactions")]
)
def test_a_word_picks(tmp_path, word, name):
    done = detect_video("metrics", word, cwd=tmp_path)
    assert name in done.stdout
    assert "achieved_occupancy" not in done.stdout
    assert "--dependency-analysis" in done.stdout


@pytest.mark.slow
def test_an_unknown_word_is_a_usage_error(tmp_path):
    done = detect_video("metrics", "achieved_ocupancy", cwd=tmp_path)
    assert done.returncode == 2
    assert "achieved_occupancy" in done.stderr
