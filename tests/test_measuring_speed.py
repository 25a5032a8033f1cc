"""The arithmetic of scripts/bench's comparisons: limits, ratios, exponents, tables. Runs, clips and
other programs are fakes; no test looks at a time.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner
from measuring import (
    before,
    benchmark_app,
    clips,
    cores,
    environments,
    growth,
    limit,
    peers,
    rounds,
)
from measuring.rounds import against, interleave, job, markdown, rates, ratios, run

from detector.core.stages.nms import nms
from tests.conftest import CHECKOUT
from tests.session.documents import DOCUMENT

CORES = 2


# ----------------------------------------------------------------------
# Rounds


def test_a_round_of_warm_up_is_thrown_away_and_variants_take_turns():
    order: list[str] = []

    def one(name: str) -> dict[str, float]:
        order.append(name)
        return {"fps": float(len(order))}

    rows = interleave({"a": lambda: one("a"), "b": lambda: one("b")}, 2)
    assert order == ["a", "b"] * 3
    assert rows == {"a": [{"fps": 3.0}, {"fps": 5.0}], "b": [{"fps": 4.0}, {"fps": 6.0}]}
    assert len(interleave({"a": lambda: one("a")}, 1, warm_up=0)["a"]) == 1


def test_ratios_are_of_one_round():
    ours, theirs = [{"fps": 30.0}, {"fps": 10.0}], [{"fps": 10.0}, {"fps": 20.0}]
    assert ratios(ours, theirs, "fps") == [3.0, 0.5]


@pytest.mark.parametrize(("values", "reached"), [([1.0, 2.0, 3.0], True), ([1.0, 1.9, 3.0], False)])
def test_an_aim_is_judged_by_the_median(values, reached):
    assert against(values, 2.0).startswith("reached") is reached
    assert reached or "-5%" in against(values, 2.0)


def test_a_table_is_markdown():
    assert markdown(["a", "b"], [["1", "2"]]).splitlines() == [
        "| a | b |",
        "| --- | --- |",
        "| 1 | 2 |",
    ]


def test_a_command_says_what_it_used_and_what_went_wrong(tmp_path):
    looks: list[int] = []

    def watch(process: int) -> None:
        looks.append(process)
        (tmp_path / "seen").touch()

    code = "import os, time\nwhile not os.path.exists('seen'): time.sleep(0.01)\nprint(1)"
    done = run([sys.executable, "-c", code], tmp_path, watch=watch)
    assert done.stdout == "1\n"
    assert done.cpu_s > 0
    assert done.peak_mb > 1
    assert len(set(looks)) == 1
    with pytest.raises(click.ClickException, match=r"exit code 3\n  no"):
        run([sys.executable, "-c", "import sys; sys.stderr.write('no'); sys.exit(3)"])


def test_a_job_is_the_summary_of_its_program_in_an_empty_folder():
    tells = "import json, os, sys; print(json.dumps([sys.argv[1:], os.listdir()]))"
    summary, done = job("in.mp4", "--frames", 3, program=[sys.executable, "-c", tells])
    assert summary == [["in.mp4", "--frames", "3", "--json"], []]
    assert done.wall_s > 0


# ----------------------------------------------------------------------
# The limit


def summary_of(
    fps: float, cpu_ms: float, frames: int = 10, stages: dict[str, float] | None = None
) -> dict:
    """``stages``: milliseconds a frame."""
    return {
        "fps": {"end_to_end": fps},
        "frames": {"written": frames},
        "cpu": {"process_s": cpu_ms * frames / 1e3},
        "concurrency": 2,
        "engine_threads": 2,
        "detections": {"total": 5 * frames},
        "stages": {
            name: {"busy_s": ms * frames / 1e3, "calls": frames, "cpu_s": ms * frames / 1e3}
            for name, ms in (stages or {}).items()
        },
    }


def test_requests_at_once_share_the_time_of_inference():
    found = limit.serial_ms({"infer": 8.0, "write": 3.0}, at_once=2)
    assert found == {"infer": 4.0, "write": 3.0}


@pytest.mark.parametrize(
    ("serial", "lean_ms", "fps", "by"),
    [
        ({"infer": 4.0, "write": 10.0}, 16.0, 100.0, "write"),  # 8 ms spread, the writer takes 10
        ({"infer": 4.0, "write": 5.0}, 16.0, 125.0, "all cores"),
    ],
)
def test_the_limit_is_the_longer_of_the_two(serial, lean_ms, fps, by):
    assert limit.limit_of(serial, lean_ms, CORES) == (pytest.approx(fps), by)


def test_a_round_has_the_leanest_cpu_and_its_own_plain_loop(monkeypatch):
    """The run wastes CPU (30 ms a frame); the leaner of two lean runs sets the limit."""
    turns = {name: iter((2.0, 1.0, 1.0)) for name in ("run", "plain", "lean")}

    def fake(*arguments, **_):
        if "--no-video" in arguments:
            return {}
        name = (
            "plain" if "--sync" in arguments else "lean" if "--concurrency" in arguments else "run"
        )
        slow = next(turns[name])  # the warm-up is twice as slow, and in no row
        cpu = {"run": 30.0, "plain": 20.0, "lean": 16.0}[name] * slow
        return summary_of(90 / slow, cpu, stages={"infer": 9.0 * slow, "write": 4.0 * slow})

    def alone_ms(summary):
        return {name: stage["busy_s"] * 100 for name, stage in summary["stages"].items()}

    monkeypatch.setattr(limit, "detect_video", fake)
    monkeypatch.setattr(limit, "alone_ms", alone_ms)
    monkeypatch.setattr(limit.os, "sched_getaffinity", lambda _: range(CORES))
    rows, by = limit._measured("case", ["in.mp4"], 10, rounds=2, quick=False)
    assert by == "all cores"
    assert len(rows) == 2
    for row in rows:
        assert row == pytest.approx({"fps": 90, "cpu_ms": 30, "limit": 125, "lean_cpu_ms": 16})
    cells = limit.judge(rows)
    assert cells[2].startswith("0.72 ")
    assert "missed" in cells[-1]


@pytest.mark.parametrize(
    ("others_s", "ready_s", "ms"),
    [
        (None, 1.0, 10.0),  # ready and not scheduled for half of its time; others are to blame
        (0.0, 1.0, 20.0),  # nobody else was there: the stage waited for its own libraries
        (None, 9.0, 5.0),  # of several threads, added up: not below its CPU time on both cores
    ],
)
def test_a_plain_loop_is_without_what_others_did_to_it(others_s, ready_s, ms):
    frames, times = 100, ("busy_s", "wait_input_s", "wait_output_s", "other_s", "wall_s")
    libraries = {
        "wall_s": 1.0,
        "process_s": 1.8,
        "unknown_s": 0.0,
        "others_s": others_s,
        "stages": {},
    }
    summary = DOCUMENT | {
        "stages": {
            "infer": {"thread": "main", "calls": frames, "busy_s": 2.0, "cpu_s": 1.0},
            "annotate": {"thread": "", "calls": 0, "busy_s": 0.0, "cpu_s": 0.0},
        },
        "threads": {"main": dict.fromkeys(times, 0.0) | {"cpu_s": 1.0, "ready_s": ready_s}},
        "cpu": DOCUMENT["cpu"] | {"stages_include_libraries": True, "libraries": libraries},
        "frames": DOCUMENT["frames"] | {"written": frames},
    }
    assert limit.alone_ms(summary) == pytest.approx({"infer": ms})


@pytest.mark.slow
def test_the_limit_of_the_null_engine_end_to_end():
    street = str(CHECKOUT / "videos/street.mp4")
    options = [*"--network street@608x352 --engines null --precisions fp32 --quick".split()]
    done = CliRunner().invoke(limit.limit, ["--clip", street, *options], catch_exceptions=False)
    assert done.exit_code == 0
    row = next(line for line in done.output.splitlines() if line.startswith("| street@"))
    assert len(row.split("|")) == len(limit.HEAD) + 2


# ----------------------------------------------------------------------
# Before and now


def test_cpu_of_a_stage_is_that_of_its_thread_and_of_its_library():
    summary = {
        "frames": {"written": 101},
        "stages": {"read": {"cpu_s": 0.101}, "infer": {"cpu_s": 0.0}},
        "cpu": {"process_s": 1.01, "libraries": {"stages": {"infer": {"cpu_s": 0.5}}}},
    }
    row = rounds.cpu_by_stage(summary)
    assert row == pytest.approx({"process": 10.0, "read": 1.0, "infer": 5.0})
    cells = before.stage_row([row], "video, ort fp32", 720)
    assert cells == ["720p", "video, ort fp32", "1.00", "-", "5.00", *["-"] * 4, "10.00"]


def test_a_job_is_compared_with_the_default_job_before_and_with_its_precision():
    found = {
        before.BEFORE: [{"fps": 50.0, "cpu_s": 4.0}],
        before.BEFORE_INT8: [{"fps": 60.0, "cpu_s": 3.0}],
        "overlay, ort int8": [{"fps": 150.0, "cpu_s": 2.0}],
        "video, ort fp32": [{"fps": 55.0, "cpu_s": 4.0}],
    }
    cells = before.row_of(found, "overlay, ort int8", 720)
    assert [cell.split()[0] for cell in cells[2:6]] == ["150", "3", "2.5", "0.5"]
    assert "reached" in cells[-1]
    assert "missed: 1.10 of 1.15" in before.row_of(found, "video, ort fp32", 720)[-1]
    assert before.row_of(found, "video, ort fp32", 1080)[-1] == "-"


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        ({"psnr": 43.0, "ssim": 0.98, "bytes": 130.0}, "reached"),
        ({"psnr": 42.9, "ssim": 0.98, "bytes": 90.0}, "PSNR -0.10 dB"),
        ({"psnr": 44.0, "ssim": 0.98, "bytes": 131.0}, "larger than 1.3 times"),
    ],
)
def test_pictures_may_not_get_worse_nor_files_much_larger(now, verdict):
    base = {"psnr": 43.0, "ssim": 0.98, "bytes": 100.0}
    assert before.picture_rows(720, base, now)[1][-1] == verdict


def test_jobs_that_are_asked_for_keep_what_they_are_compared_with():
    assert before._names("overlay, ort fp32") == [
        before.BEFORE,
        before.BEFORE_INT8,
        "overlay, ort fp32",
    ]
    with pytest.raises(click.BadParameter):
        before._names("everything")


# ----------------------------------------------------------------------
# Peers


def test_pairs_that_did_not_run_have_no_row():
    rows = {"ours": [{"fps": 60.0, "cpu_ms": 10.0}], "theirs": [{"fps": 20.0, "cpu_ms": 40.0}]}
    pairs = [peers.Pair("ours", "theirs", 2.5), peers.Pair("ours", "others", 1.0)]
    ((*_, times, cpu, verdict),) = peers.compare(rows, pairs, "clip")
    assert (times.split()[0], cpu.split()[0]) == ("3", "0.25")
    assert "reached" in verdict


@pytest.mark.parametrize(
    ("picture", "network"),
    [((1280, 720), (384, 640)), ((640, 360), (384, 640)), ((640, 640), (640, 640))],
)
def test_a_network_holds_the_picture_in_whole_strides(picture, network):
    assert peers.network_size(*picture) == network


FFMPEG = (
    "frame=  300 fps=250 q=-1.0 Lsize=N/A time=00:00:12.00\n"
    "bench: utime=2.000s stime=1.000s rtime=1.500s\nbench: maxrss=100kB\n"
)


def test_ffmpegs_own_account():
    assert peers.read_benchmark(FFMPEG, 300) == {"fps": 200.0, "cpu_ms": 10.0}
    with pytest.raises(click.ClickException, match="300 frames, not 299"):
        peers.read_benchmark(FFMPEG, 299)
    with pytest.raises(click.ClickException, match="no times"):
        peers.read_benchmark("frame= 300", 300)


def test_ffmpeg_gets_the_options_of_our_encoder():
    from detector.core.sinks.video.h264 import QUALITIES

    given = peers.encoded(QUALITIES["balanced"])
    for name, value in QUALITIES["balanced"].items():
        assert given[given.index(f"-{name}") + 1] == value


def test_int8_is_licensed_by_its_agreement():
    row = {"engine": "ort", "precision": "int8", "precision_text": "int8 99%", "error": None}
    rows = [
        {**row, "precision": "fp32"},
        {**row, "agreement": {"matched": 0.91}},
        {**row, "agreement": {"matched": 0.89}},
        {**row, "agreement": None, "error": "no VNNI"},
    ]
    told = [row[-1] for row in peers.licence_rows("xl", {"rows": rows})]
    assert told == ["given (>= 0.9)", "refused (< 0.9)", "no VNNI"]


def test_torch_of_the_index_is_taken_where_the_cpu_build_does_not_predict(monkeypatch):
    asked: list[list[str]] = []

    def fake(name, step, check):
        asked.append(step)
        if len(asked) == 1:
            raise environments.MissingError("no such version")
        return Path("/there/bin/python")

    monkeypatch.setattr(peers, "environment", fake)
    monkeypatch.setattr(peers, "version", lambda name: {"torch": "2.0+cpu", "openvino": "1"}[name])
    python, torches = peers.ultralytics_python()
    assert python == Path("/there/bin/python")
    assert torches.endswith("of the index")
    assert "torch==2.0+cpu" in asked[0]
    assert not any(one.startswith("torch") for one in asked[1])


# ----------------------------------------------------------------------
# benchmark_app


def test_its_throughput_is_read():
    assert benchmark_app.read_fps("[ INFO ] Throughput:   123.45 FPS\n") == 123.45
    with pytest.raises(click.ClickException):
        benchmark_app.read_fps("Throughput: none")


def test_other_stages_have_what_inference_and_its_library_did_not_use():
    """10 s of CPU, of which the engine's threads used half in the steady state, our worker 1."""
    summary = {
        "stages": {"infer": {"cpu_s": 1.0}},
        "cpu": {
            "process_s": 10.0,
            "libraries": {"process_s": 8.0, "stages": {"infer": {"cpu_s": 4.0}}},
        },
    }
    assert benchmark_app.others_share(summary) == pytest.approx(0.4)


def test_the_loop_is_judged_by_the_cpu_that_is_left_for_it():
    found = {
        benchmark_app.THEIRS: [{"fps": 100.0}],
        benchmark_app.HINTED: [{"fps": 110.0}],
        benchmark_app.MEMORY: [{"fps": 94.0}],
        benchmark_app.LOOP: [{"fps": 76.0, "others": 0.2}],
    }
    cells = benchmark_app.cells(found)
    assert "missed" in cells[3]  # 0.94 of 0.95
    assert cells[-1].startswith("reached")  # 0.76 = 0.95 x (1 - 0.2)


def test_the_default_model_needs_no_calibration():
    assert benchmark_app.calibration("street-1@416x256", "int8") == ()
    assert benchmark_app.calibration("street@608x352", "int8") == ()
    assert benchmark_app.calibration("yolov5n@640", "fp32") == ()
    assert "--calibrate" in benchmark_app.calibration("yolov5n@640", "int8")


# ----------------------------------------------------------------------
# Growth


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_is_found(exponent):
    assert growth.slope({x: 3 * x**exponent for x in (10, 100, 1000)}) == pytest.approx(exponent)


def test_a_curve_stands_beside_what_is_expected():
    curve = growth.Curve("a curve", "boxes", 1.0, "each is one more")
    found = {10: [{"cpu_ms": 1.0}], 100: [{"cpu_ms": 10.0}], 1000: [{"cpu_ms": 1000.0}]}
    lines = growth.curve_table(curve, found).splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("| 1")]
    assert [(row[1], row[3], row[4]) for row in cells] == [
        ("10", "1", "-"),
        ("100", "91.8", "+1.00"),  # 1 + 999 x 90 / 990
        ("1000", "1e+03", "+2.00"),
    ]
    assert "steeper than expected" in lines[-1]
    assert growth.conclusion(curve, {1: [5.0], 10: [5.0]}).endswith("kept")
    bends = {1: [100.0], 10: [100.0], 100: [100.0], 1000: [101.0], 10_000: [20_000.0]}
    assert "steeper" in growth.conclusion(curve, bends), "the end of a curve counts alone"


def test_a_cost_that_should_not_grow_is_expected_at_its_median():
    assert growth.expected(0.0, {1: 5.0, 10: 6.0, 100: 9.0}) == {1: 6.0, 10: 6.0, 100: 6.0}


def test_memory_is_flat_where_the_last_quarter_is_as_the_second():
    start, steady = [10.0, 50.0, 90.0], [100.0] * 9
    assert growth.flatness(1000, start + steady).endswith("flat")
    assert growth.flatness(1000, [*start, *[100.0] * 6, *[110.0] * 3]).endswith("it grows")
    assert "too short" in growth.flatness(1000, steady)


@pytest.mark.parametrize("apart", [False, True])
def test_candidates_are_as_many_objects_as_they_say(apart):
    found = nms(growth.candidates(300, apart), iou=0.45, max_det=1000)
    assert len(found) == (300 if apart else growth.OBJECTS)


# ----------------------------------------------------------------------
# Cores


def test_options_become_flags():
    options = {"engine": "ort", "no_video": True, "frames": 3}
    assert cores.flags(options) == ["--engine", "ort", "--no-video", "--frames", "3"]


# ----------------------------------------------------------------------
# Clips and environments


def test_what_ffmpeg_says_of_two_videos():
    told = "PSNR y:43.13 u:45 v:46 average:44\nSSIM Y:0.98 (19) U:0.99 (20) All:0.9868 (18)"
    assert clips.read_fidelity(told) == {"psnr": 43.13, "ssim": 0.9868}
    assert clips.read_fidelity(told.replace("43.13", "inf"))["psnr"] == float("inf")
    with pytest.raises(click.ClickException):
        clips.read_fidelity("")


def test_a_clip_is_made_once_and_only_whole(tmp_path, monkeypatch):
    made: list[Path] = []

    def fake(command):
        target = Path(command[-1])
        target.write_bytes(b"video")
        made.append(target)
        if len(made) == 1:
            raise click.ClickException("interrupted")

    monkeypatch.setattr(clips, "CACHE", tmp_path)
    monkeypatch.setattr(clips, "run", fake)
    with pytest.raises(click.ClickException):
        clips.made(2160, 10)
    assert list(tmp_path.rglob("*.mp4")) == []
    paths = {clips.made(2160, 10) for _ in range(2)}
    assert len(made) == 2
    assert [path.read_bytes() for path in paths] == [b"video"]


def test_an_environment_is_made_once(tmp_path, monkeypatch):
    commands: list[list[str]] = []
    fails = {"check"}

    def fake(command, **_):
        commands.append(list(map(str, command)))
        bad = bool(fails & set(commands[-1]))
        return SimpleNamespace(returncode=int(bad), stderr="ERROR: it is not there" if bad else "")

    monkeypatch.setattr(environments, "CACHE", tmp_path)
    monkeypatch.setattr(environments.subprocess, "run", fake)
    (tmp_path / "a").mkdir()
    with pytest.raises(environments.MissingError, match="it is not there"):
        environments.environment("a", ["torch", "nncf"], check=["check"])
    assert not (tmp_path / "a").exists()
    with pytest.raises(environments.MissingError, match="to try again"):
        environments.environment("a", ["torch", "nncf"], check=["check"])
    assert len(commands) == 3, "what does not run is not installed again"
    (tmp_path / "a.failed").unlink()
    (tmp_path / "a").mkdir()
    fails.clear()
    python = environments.environment("a", ["torch", "nncf"], check=["check"])
    assert python == tmp_path / "a/bin/python"
    assert [command[-1] for command in commands[3:]] == [str(tmp_path / "a"), "nncf", "check"]
    environments.environment("a", ["torch", "nncf"], check=["check"])
    assert len(commands) == 6


def test_a_commit_is_unpacked_once_into_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "CACHE", tmp_path / "cache")
    root = tmp_path / "repository"
    root.mkdir()
    (root / "file").write_text("first")
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", root, *command], check=True)
    (root / "file").write_text("second")
    folder = environments.checkout(root, "HEAD")
    assert (folder / "file").read_text() == "first"
    assert environments.checkout(root, "HEAD") == folder
    with pytest.raises(environments.MissingError, match="no commit 1234567"):
        environments.checkout(root, "1234567")


def test_rates_are_of_the_frames_that_were_written():
    assert rates(summary_of(25.0, 8.0)) == pytest.approx({"fps": 25.0, "cpu_ms": 8.0})
