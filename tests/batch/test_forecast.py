"""A batch job's report: forecasts for more workers, and what limits the speedup."""

from __future__ import annotations

from dataclasses import replace

import pytest

from detector.batch.documents import Ledger, SlowItem
from detector.batch.forecast import RunFacts, forecast, makespan, report_on
from detector.batch.pool import Place
from detector.batch.progress import Tally
from tests.batch.pools import report_of


def worker(load_s=1.0):
    return report_of(load_s=load_s, busy_s=10.0, idle_s=1.0)


def facts(walls, workers=2, load_s=1.0, tally=None, **more):
    slow = SlowItem(name="long.mp4", seconds=max(walls), frames=9, fps=1.0, size=1)
    return RunFacts(
        seconds=20.0,
        cores=2.0,
        workers=[worker(load_s)] * workers,
        walls=walls,
        tally=Tally(slowest=[slow], **tally or {}),
        **more,
    )


@pytest.mark.parametrize(
    ("walls", "workers", "load_s", "expected"),
    [
        ([4.0, 3.0, 2.0, 1.0], 1, 0.0, 10.0),
        ([4.0, 3.0, 2.0, 1.0], 2, 0.0, 5.0),  # 4 + 1, 3 + 2
        ([4.0, 3.0, 2.0, 1.0], 2, 0.5, 5.5),
        ([4.0, 3.0, 2.0, 1.0], 4, 0.0, 4.0),
        ([4.0, 3.0, 2.0, 1.0], 400, 1.0, 5.0),  # the longest item plus loading
        ([1.0, 1.0, 4.0], 2, 0.0, 5.0),  # items keep their order
    ],
)
def test_makespan_gives_the_next_item_to_the_first_free_worker(walls, workers, load_s, expected):
    assert makespan(walls, workers, load_s) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("run", "limits"),
    [
        (facts([60.0] + [1.0] * 240), ("long.mp4 alone", "60.0 s")),
        (facts([60.0] + [1.0] * 240, longest="part 2 of b.mp4"), ("part 2 of b.mp4 alone",)),
        (facts([0.5] * 400, load_s=30.0), ("30.0 s",)),
    ],
    ids=["long file", "long part", "loading"],
)
def test_forecast_names_what_limits_growth(run, limits):
    forecasts, limit = forecast(run)
    assert [one.workers for one in forecasts][:3] == [2, 4, 8]
    assert forecasts[0].speedup == pytest.approx(1.0)
    assert all(text in limit for text in limits)


def test_too_few_files_limit_growth():
    forecasts, limit = forecast(facts([10.0] * 8, tally={"bytes_done": 80_000_000}))
    assert "not enough files" in limit
    assert "about 8 workers" in limit
    at_8 = next(one for one in forecasts if one.workers == 8)
    assert at_8.read_mb_s == pytest.approx(80 / 11)  # 10 s for one file each, 1 s for loading


def test_sequential_steps_of_one_file_limit_growth():
    forecasts, limit = forecast(facts([5.0] * 64, chain_s=20.0, chain_of="a.mp4"))
    assert "a.mp4 takes 20.0 s" in limit
    assert forecasts[-1].seconds == pytest.approx(21.0)
    assert makespan([1.0, 1.0], 2, 0.5, 3.0) == pytest.approx(3.5)


def test_job_without_items_has_no_forecast():
    empty = RunFacts(seconds=1.0, cores=2.0, workers=[worker()])
    assert forecast(empty)[0] == []
    assert report_on(empty).forecasts == []


def test_report_has_totals_of_the_workers():
    tally = {"item_run_s": 6.5, "ledger": Ledger(cpu_s=10.0)}
    report = report_on(facts([4.0, 3.0], tally=tally))
    assert report.between_s == pytest.approx(0.5)
    assert report.cpu_share == pytest.approx(10 / 40)
    assert report.core_hours == pytest.approx(40 / 3600)
    assert report.workers[0].utilisation == pytest.approx(10 / 12)


def test_workers_that_never_loaded_add_no_loading_time():
    none = facts([4.0, 3.0, 2.0, 1.0], workers=1)
    none.workers[:] = [replace(worker(), starts=0, load_s=0.0)]
    assert forecast(none)[0][0].seconds == pytest.approx(10.0)


def test_place_adds_up_the_seconds_of_each_state():
    place = Place(number=0, since=2.0)
    assert (place.seconds("waiting", 5.0), place.seconds("working", 5.0)) == (3.0, 0.0)
    place.enter("working", 6.0)
    place.enter("idle", 7.5)
    assert [place.seconds(one, 9.0) for one in ("waiting", "working", "idle", "gone")] == [
        4.0,
        1.5,
        1.5,
        0.0,
    ]
