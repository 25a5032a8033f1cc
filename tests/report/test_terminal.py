"""What a person sees: the tables hold the summary's own figures, and the live line says where the run is."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from detector.analysis.summary import stage_rows, thread_rows
from detector.report.terminal.live import LiveLine, line
from detector.report.terminal.profile import what_if_table
from detector.report.terminal.run import print_run
from detector.session.codec import from_builtins
from detector.session.passes import WhatIfFacts
from detector.timeline import Timeline
from tests.report.sessions import PASSES

STAGE = {"p50_ms": 4.0, "p90_ms": None, "p99_ms": None, "max_ms": 9.0, "calls": 10}
SUMMARY = {
    "model": "m",
    "engine": "ort",
    "engine_reason": None,
    "precision": "fp32",
    "batch": 1,
    "model_input": [256, 416],
    "engine_threads": 2,
    "video": {"path": "in.mp4", "width": 640, "height": 360},
    "frames": {"read": 11, "written": 10, "dropped": 1, "bad": 2, "corrupt": 0, "skipped": 0},
    "fps": {"end_to_end": 12.5, "inference": 25.0, "device": None},
    "seconds": {"import": 0.1, "load": 0.2, "warmup": 0.3, "run": 0.8, "close": 0.0},
    "stages": {
        "read": {**STAGE, "thread": "reader", "busy_s": 0.2, "cpu_s": 0.1},
        "infer": {**STAGE, "thread": "worker-0,worker-1", "busy_s": 0.8, "cpu_s": 0.7},
        "annotate": {**STAGE, "thread": "", "busy_s": 0.0, "cpu_s": 0.0, "calls": 0},
    },
    "threads": {
        name: {
            "busy_s": busy,
            "wait_input_s": 0.3,
            "wait_output_s": 0.0,
            "other_s": 0.1,
            "wall_s": busy + 0.4,
            "waits": {"batch": 0.3},
        }
        for name, busy in (("reader", 0.4), ("worker-0", 0.4), ("worker-1", 0.4))
    },
    "cpu": {
        "cores": 2,
        "process_s": 1.0,
        "our_threads_s": 0.9,
        "library_threads_s": 0.1,
        "stages_include_libraries": False,
    },
    "verdict": {"bottleneck": "infer", "sentence": "infer-bound: and so on"},
    "detections": {"total": 3, "by_class": {"person": 2, "car": 1}, "cut_by_max_det": 4},
    "exit": {"code": 7, "reason": "finished, but 2 bad packets were skipped"},
    "notes": ["random weights (seed 0): boxes are meaningless"],
    "outputs": {"jsonl": "in-ort-detected.jsonl"},
    "partial_outputs": ["x.partial.mp4"],
    "session": "runs/in-ort",
}


def printed(width=140, **more):
    out = io.StringIO()
    print_run(Console(file=out, width=width), {**SUMMARY, **more}, verbose=True)
    return out.getvalue()


def test_every_fact_is_printed():
    text = printed()
    for fact in (
        "416x256",
        "640x360",
        "25.00",
        "12.50",
        "20.00",
        "80.00",
        "= wall",
        "library threads",
        "10.00",
        "infer-bound",
        "11 read, 10 written, 1 dropped, 2 bad",
        "2 person, 1 car",
        "4 more were cut by --max-det",
        "exit 7",
        "boxes are meaningless",
        "in-ort-detected.jsonl",
        "x.partial.mp4",
        "runs/in-ort",
        "import 0.10",
        "asked for",
    ):
        assert fact in text, fact
    assert "corrupt" not in text, "what did not happen is not mentioned"
    assert "annotate" not in text


def test_device_fps_only_where_the_device_tells():
    assert "device FPS" not in printed()
    text = printed(fps={"end_to_end": 12.5, "inference": 25.0, "device": 33.125})
    assert "device FPS" in text
    assert "33.12" in text


@pytest.mark.parametrize("width", [20, 40, 72, 80, 200])
def test_narrow_terminals_lose_nothing(width):
    text = printed(width)
    assert "12.50" in text, "no number is torn"
    assert "worker-1" in "".join(text.split())


def test_without_a_frame_there_are_no_tables():
    text = printed(
        frames={**SUMMARY["frames"], "written": 0}, fps={"end_to_end": None, "inference": None}
    )
    assert "ledger" not in text
    assert "exit 7" in text


def test_shares_are_of_the_threads_wall():
    rows = {row.stage: row for row in stage_rows(SUMMARY, 10)}
    assert rows["read"].share == pytest.approx(0.2 / 0.8)
    assert rows["infer"].share == pytest.approx(0.8 / 1.6)


def test_a_ledger_that_does_not_add_up_is_refused():
    threads = {"reader": {**SUMMARY["threads"]["reader"], "other_s": 0.5}}
    with pytest.raises(AssertionError, match="does not add up"):
        thread_rows({**SUMMARY, "threads": threads}, 10)


def test_live_line():
    timeline = Timeline(nvtx=False)
    assert line("in.mp4", 0, 100, 0.0, timeline) == "in.mp4  0/100 frames  0.0 FPS"
    with timeline.track("writer") as track, track.span("write", 0):
        pass
    assert (
        line("in.mp4", 50, 100, 2.0, timeline)
        == "in.mp4  50/100 frames  25.0 FPS  ETA 0:02  bottleneck: write"
    )
    assert line("in.mp4", 120, 100, 2.0, timeline).startswith("in.mp4  120 frames"), (
        "a declared count that lied"
    )


def test_live_line_on_a_terminal():
    class Info:
        path, frames_declared = "in.mp4", 10

    class Progress:
        written = 3

    out = io.StringIO()
    live = LiveLine(Console(file=out, force_terminal=True, width=100))
    live.start(Info, Progress, Timeline(nvtx=False), None)
    live._thread.join(0.6)
    live.stop()
    assert "3/10 frames" in out.getvalue()
    assert live._thread is None


def test_the_executed_precision_is_said_where_it_is_not_simply_fp32():
    fp32 = {"fp32": {"layers": 1.0, "macs": 1.0, "bytes": 1.0}}
    told = {
        "precision_executed": fp32,
        "precision_text": "fp32 100% of MACs",
        "precision_effect": None,
    }
    out = io.StringIO()
    print_run(Console(file=out, width=140), {**SUMMARY, **told})
    assert "of MACs" not in out.getvalue(), "what everybody expects"
    assert "precision: fp32 100% of MACs (asked for: bf16)" in printed(**told, precision="bf16")
    assert "precision: changed nothing" in printed(
        **{**told, "precision_effect": "changed nothing"}, precision="bf16"
    )


def test_what_if_shows_predicted_beside_measured_and_why_not_to_believe_it():
    out = io.StringIO()
    doubts = ["other processes took 30% of the cores"]
    facts = from_builtins(PASSES["what_if"] | {"doubts": doubts}, WhatIfFacts, "the test")
    Console(file=out, width=140).print(what_if_table(facts))
    lines = out.getvalue().splitlines()
    tested = next(line for line in lines if line.strip().startswith("infer free"))
    assert tested.split() == [
        "infer",
        "free",
        "61.50",
        "+53.8%",
        "60.25",
        "+50.0%",
        "+48%",
        "..",
        "+53%",
        "+2.5%",
    ]
    assert next(line for line in lines if "write free" in line).split()[2:] == ["44.00", "+10.0%"]
    assert "unreliable: other processes took 30% of the cores" in lines
    out = io.StringIO()
    Console(file=out, width=140).print(what_if_table(replace(facts, proofs=[], doubts=[])))
    assert "measured" not in out.getvalue().splitlines()[2]
    assert "unreliable" not in out.getvalue()
