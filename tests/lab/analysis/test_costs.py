"""What the replay stands on, from sessions made by hand; and the reasons to doubt it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from detector.core.session.document import SessionDocument
from detector.lab.analysis.loop.what_if import (
    Alone,
    Aside,
    Cost,
    alone_in,
    list_doubts,
    stage_costs,
)
from tests.session.documents import DOCUMENT, document

FRAMES = 100


def session(
    sync: bool = False, libraries: dict[str, Any] | None = None, **stages: tuple[float, float]
) -> SessionDocument:
    """``stages``: busy and CPU milliseconds a call, on a thread each. ``libraries``: milliseconds a
    call of a stage's threads as (threads, cpu, busiest, ready).
    """
    rows = {
        name: {
            "thread": name,
            "calls": FRAMES,
            "busy_s": busy * FRAMES / 1e3,
            "cpu_s": cpu * FRAMES / 1e3,
        }
        for name, (busy, cpu) in stages.items()
    }
    burnt = None
    if libraries is not None:
        of = {
            name: {
                "threads": one[0],
                "calls": FRAMES,
                "cpu_s": one[1] / 10,
                "busiest_s": one[2] / 10,
                "ready_s": one[3] / 10,
            }
            for name, one in libraries.items()
        }
        burnt = {"wall_s": 1.0, "process_s": 1.8, "unknown_s": 0.0, "others_s": 0.0, "stages": of}
    times = dict.fromkeys(("busy_s", "wait_input_s", "wait_output_s", "other_s", "wall_s"), 0.0)
    return document(
        stages=rows,
        threads={
            name: {**times, "cpu_s": row["cpu_s"], "ready_s": 0} for name, row in rows.items()
        },
        cpu=DOCUMENT["cpu"]
        | {"stages_include_libraries": sync, "libraries": burnt, "library_threads_s": 0.6},
        engine_threads=2,
        frames=DOCUMENT["frames"] | {"written": FRAMES},
    )


def with_ready(run: SessionDocument, thread: str, seconds: float) -> SessionDocument:
    changed = replace(run.threads[thread], ready_s=seconds)
    return replace(run, threads=run.threads | {thread: changed})


def with_libraries(run: SessionDocument, **changes: Any) -> SessionDocument:
    assert run.cpu.libraries is not None
    return replace(run, cpu=replace(run.cpu, libraries=replace(run.cpu.libraries, **changes)))


def near(cost: Cost) -> Any:
    return pytest.approx((cost.seconds * 1e3, cost.cpu * 1e3))


# Milliseconds of a decoder with two threads that read ahead, and of an encoder whose slices the
# call waits for.
RUN = session(
    read=(2.0, 0.5),
    infer=(16.0, 9.9),
    write=(7.0, 1.0),
    libraries={"read": (3, 1.2, 0.6, 2.0), "write": (4, 4.0, 1.6, 1.0)},
)


def plain(**inside: float) -> Alone:
    """A plain loop's calls; ``inside``: CPU milliseconds of the process meanwhile."""
    cpu = {"read": 0.9, "infer": 10.5, "write": 5.0, **inside}
    seconds = {"read": 0.7, "infer": 9.3, "write": 3.6}
    return Alone({s: ms / 1e3 for s, ms in seconds.items()}, {s: ms / 1e3 for s, ms in cpu.items()})


def test_cpu_is_the_runs_own_and_seconds_are_those_of_a_plain_loop():
    found = stage_costs(RUN, plain())
    assert near(found["infer"]) == (9.9, 9.9)  # never shorter than the CPU time of its own thread
    assert near(found["write"]) == (3.6, 5.0)
    assert found["write"].aside is None


def test_a_decoder_works_beside_the_calls_where_little_of_its_cpu_is_burnt_inside_them():
    read = stage_costs(RUN, plain())["read"]  # 0.9 - 0.5 of 1.2 ms inside
    assert near(read) == (0.5, 0.5)
    assert read.aside == Aside(pytest.approx(0.6e-3), pytest.approx(1.2e-3), 2)
    assert (
        stage_costs(RUN, plain(read=1.7))["read"].aside is None
    )  # all of it inside: a decoder of slices


def test_an_encoder_works_on_after_write_where_little_of_its_cpu_is_burnt_inside():
    write = stage_costs(RUN, plain(write=1.5))["write"]
    assert near(write) == (1.0, 1.0)
    assert write.aside == Aside(
        pytest.approx(1.6e-3), pytest.approx(4.0e-3), 2
    )  # as wide as 4.0 / 1.6


def test_an_engine_never_works_beside_infer():
    """Its calls wait, by contract; where its threads work instead of the caller's, the call takes
    as long as they.
    """
    run = session(infer=(12.0, 0.1), libraries={"infer": (3, 10.0, 5.2, 0.0)})
    found = stage_costs(run, Alone({"infer": 5.0e-3}, {"infer": 0.2e-3}))["infer"]
    assert near(found) == (5.2, 10.1)
    assert found.aside is None


def test_a_call_takes_no_less_than_its_thread_and_the_busiest_of_its_library_one_after_the_other():
    assert near(stage_costs(RUN, Alone({"write": 0.1e-3}, {"write": 5e-3}))["write"]) == (2.6, 5.0)


def test_a_plain_loop_is_without_what_others_did_to_it():
    """A run that was ready and not scheduled for half of its time."""
    plain_loop = session(sync=True, infer=(20.0, 10.0))
    run = with_ready(plain_loop, "infer", 1.0)
    found = alone_in(run)
    assert found.seconds["infer"] == pytest.approx(10e-3)
    assert found.cpu["infer"] == pytest.approx(10e-3)
    assert near(stage_costs(run)["infer"]) == (10.0, 10.0)
    run = with_ready(plain_loop, "infer", 9.0)  # of several threads, added up
    assert alone_in(run).seconds["infer"] == pytest.approx(
        5e-3
    )  # not below its CPU time on both cores


def test_without_a_plain_loop_decoders_read_ahead_and_encoders_are_waited_for():
    found = stage_costs(RUN)
    assert found["read"].aside is not None
    assert found["write"].aside is None
    assert near(found["infer"]) == (16.0, 9.9)  # nothing says that it was hindered


def test_where_nobody_tells_whose_the_threads_are_the_engine_gets_what_its_threads_can_burn():
    """6 ms of library threads a frame; two threads in 4 ms of wall time leave room for 4 ms."""
    found = stage_costs(session(infer=(4.0, 4.0), write=(3.0, 1.0)))
    assert near(found["infer"]) == (4.0, 8.0)
    assert near(found["write"]) == (3.0, 3.0)


DOUBTS = [
    ("nothing", {}, 0.02, None),
    ("the replay misses", {}, -0.14, "off by -14%"),
    ("foreign CPU", {"others_s": 0.4}, 0.0, "20% of the cores"),
    ("unknown threads", {"unknown_s": 0.18}, 0.0, "10% of the CPU time was used by threads"),
    ("the system does not say", None, 0.0, "by a guess"),
    ("others unknown", {"others_s": None}, 0.0, None),
]


@pytest.mark.parametrize(
    ("change", "error", "said"), [row[1:] for row in DOUBTS], ids=[row[0] for row in DOUBTS]
)
def test_each_reason_to_doubt_is_said(change, error, said):
    run = session(infer=(4.0, 4.0), libraries={})
    if change is None:
        run = replace(run, cpu=replace(run.cpu, libraries=None))
    else:
        run = with_libraries(run, **change)
    found = list_doubts(run, error)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_ticks_of_a_short_run_accuse_nobody():
    run = with_libraries(session(infer=(4.0, 4.0), libraries={}), wall_s=0.05, others_s=0.2)
    assert list_doubts(run, 0.0) == []


def test_few_frames_are_a_reason():
    run = session(infer=(4.0, 4.0), libraries={})
    run = replace(run, frames=replace(run.frames, written=24))
    assert "24 frames are few" in list_doubts(run, 0.0)[0]
