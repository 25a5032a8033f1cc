"""The verdict's arithmetic, on figures that are easy to check by hand."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from detector.core.analysis.verdict import (
    EQUAL,
    FEW,
    MAX_ERROR,
    MAX_OTHERS,
    NAMES,
    NEGLIGIBLE,
    Choices,
    _next_limit,
    estimate_without,
    frame_times,
    gain_with_smaller_input,
    gain_without,
    has_encodings,
    is_reliable,
    judge,
    limit_without,
    need_s,
)
from detector.core.commands.detect import command as detect
from detector.core.session.document import (
    CpuTime,
    LibraryStage,
    LibraryThreads,
    StageFigures,
    ThreadFigures,
    ThreadTime,
)
from tests.properties import STEADY

STAGES = ("read", "preprocess", "infer", "head", "nms", "annotate", "write")


def stages(workers=1, **ms):
    """Return the stages' figures for 100 frames, given milliseconds per frame."""
    several = ",".join(f"worker-{at}" for at in range(workers))
    threads = dict.fromkeys(("infer", "head", "nms"), several)
    return {
        name: StageFigures(
            thread=threads.get(name, "other"),
            calls=100,
            busy_s=ms.get(name, 0) / 10,
            cpu_s=ms.get(name, 0) / 10,
        )
        for name in STAGES
    }


def thread(wall_s):
    return ThreadFigures(
        busy_s=wall_s, wait_input_s=0, wait_output_s=0, other_s=0, wall_s=wall_s, cpu_s=0
    )


def cpu_time(cores=8, process_s=1.0, libraries=None):
    return CpuTime(
        cores=cores,
        process_s=process_s,
        our_threads_s=process_s,
        library_threads_s=0,
        stages_include_libraries=False,
        libraries=libraries,
    )


def load(
    period_ms,
    sync=False,
    cores=8,
    infer_s=None,
    process_cpu_s=1.0,
    loop_ms=None,
    others_s=None,
    workers=1,
    **ms,
):
    """Return the costs of a run of 100 frames. ``loop_ms``: part of ``period_ms`` in the loop."""
    infer_s = ms.get("infer", 0) / 10 if infer_s is None else infer_s
    loop_s = (period_ms if loop_ms is None else loop_ms) / 10
    threads = {"writer": thread(loop_s), "reader": thread(loop_s / 2)}
    cpu = cpu_time(
        cores,
        process_cpu_s,
        LibraryThreads(wall_s=loop_s, process_s=0, unknown_s=0, others_s=others_s, stages={}),
    )
    each = stages(workers, **ms)
    return frame_times(each, threads, cpu, infer_s, period_ms / 10, 100, sync)


TABLE = [
    # period, stages in ms, bottleneck, gain if it were free, gain if inference were free
    (10, {"read": 2, "infer": 10, "write": 4}, "infer", 1.5, 1.5),  # 10 / 4 - 1: write is next
    (10, {"read": 2, "infer": 4, "write": 10}, "write", 1.5, 0.0),  # 10 / 4 - 1: infer is next
    (10, {"read": 10, "infer": 4, "write": 5}, "read", 1.0, 0.0),
    (10, {"infer": 5, "annotate": 4, "write": 6}, "write", 1.0, 0.0),  # the writer: 4 + 6
    (10, {"infer": 5, "nms": 5, "write": 6}, "infer", 10 / 6 - 1, 10 / 6 - 1),  # a worker: 5 + 5
]


@pytest.mark.parametrize(("period", "ms", "bottleneck", "gain_itself", "gain_infer"), TABLE)
def test_slowest_thread_is_the_bottleneck(period, ms, bottleneck, gain_itself, gain_infer):
    times = load(period, **ms)
    facts = judge(times)
    assert facts.bottleneck == bottleneck
    assert facts.sentence.startswith(f"{NAMES[bottleneck]} limits this run")
    assert gain_without(times, bottleneck) == pytest.approx(gain_itself)
    assert gain_without(times, "infer") == pytest.approx(gain_infer)


SMALLER = Choices(input=(256, 416), smaller_input=(192, 320))
LEFT = 192 * 320 / (256 * 416)  # the smaller input has this share of the pixels


def test_smaller_input_of_the_model_is_suggested():
    times = load(10, read=2, infer=10, write=5.5)
    facts = judge(times, SMALLER)
    assert facts.smaller_input == (192, 320)
    assert gain_with_smaller_input(times, SMALLER) == pytest.approx(1 / LEFT - 1)
    assert all(f in facts.sentence for f in ("320x192", "58%"))
    assert "x the FPS" not in facts.sentence  # so large a gain is not reported


def test_gain_of_a_smaller_input_is_bounded_by_the_next_stage():
    """With the smaller input, inference takes 5.8 ms, and writing takes 8 ms."""
    times = load(10, read=2, infer=10, write=8)
    assert gain_with_smaller_input(times, SMALLER) == pytest.approx(10 / 8 - 1)
    assert "1.25x the FPS at best" in judge(times, SMALLER).sentence
    assert gain_with_smaller_input(times, SMALLER) <= gain_without(times, "infer") + 1e-9


def test_smaller_input_speeds_up_preprocess_and_inference_in_the_plain_loop():
    times = load(16, sync=True, read=2, preprocess=2, infer=8, write=4)
    assert judge(times).bottleneck == "infer"
    assert gain_without(times, "infer") == pytest.approx(16 / 8 - 1)
    assert gain_with_smaller_input(times, SMALLER) == pytest.approx(16 / (6 + 10 * LEFT) - 1)


@pytest.mark.parametrize(
    ("ms", "choices"),
    [
        ({"infer": 4, "write": 10}, SMALLER),  # writing limits the run
        ({"infer": 10, "write": 4}, Choices(input=(256, 416))),  # no smaller input exists
        ({"infer": 10, "write": 9.99}, SMALLER),  # a smaller input would gain nothing
    ],
)
def test_no_smaller_input_is_suggested(ms, choices):
    facts = judge(load(10, **ms), choices)
    assert facts.smaller_input is UNSET
    assert "--size" not in facts.sentence


@pytest.mark.parametrize(
    ("times", "gain"),
    [
        # on one core, 9 ms of CPU time remain, although no thread is busy for more than 5 ms
        (load(14, cores=1, read=4, infer=5, write=5), 14 / 9 - 1),
        # 90 of 100 ms are outside the loop: without inference, they and 7 ms of writing remain
        (load(100, loop_ms=10, read=1, infer=8, write=7), 100 / 97 - 1),
        # inference takes only 1 of 10 ms, so 9 ms remain, although writing needs only 7
        (load(10, infer=1, write=7), 10 / 9 - 1),
    ],
)
def test_gain_without_inference_is_limited_by_other_work(times, gain):
    assert gain_without(times, "infer") == pytest.approx(gain)
    assert ("opening and closing" in judge(times).sentence) == (times.period_s == 0.1)


def test_two_requests_at_once_halve_the_inference_time():
    """Each of two workers infers for 6 of 9.2 ms, and then waits for the writer. For 9 of 9.2 ms,
    at least one of them infers."""
    times = load(9.2, infer=12, infer_s=0.9, workers=2, write=9)
    assert times.stages["infer"] == pytest.approx(9e-3)  # the time that inference FPS are based on
    assert judge(times).bottleneck == "write"
    assert gain_without(times, "write") == pytest.approx(9.2 / 6 - 1)
    assert judge(load(6.2, infer=12, infer_s=0.6, workers=2, write=5)).bottleneck == "infer"


def test_null_engine_has_no_gain():
    for sync, cores in ((True, 8), (False, 8), (False, 1)):  # in the last case, the CPU is full
        times = load(12, sync=sync, loop_ms=10, cores=cores, read=3, write=7)
        assert gain_without(times, "infer") == 0


@pytest.mark.parametrize(
    ("process_cpu_s", "others_s", "cores"), [(1.6, 0, None), (1.61, 0, "1.6"), (2.2, 0.1, "2.0")]
)
def test_cores_count_as_full_if_more_than_four_fifths_are_busy(process_cpu_s, others_s, cores):
    """The run takes 1 s on two cores. In the last case, coarse clocks show 2.3 s of CPU time."""
    times = load(10, cores=2, process_cpu_s=process_cpu_s, others_s=others_s, infer=10)
    keep = re.search(r"keep ([\d.]+) of 2 cores busy", judge(times).sentence)
    assert (keep and keep[1]) == cores
    assert times.others_share == 0


@pytest.mark.parametrize("others_s", [0.6, 25.7])  # the second is from a VM whose clock jumped
def test_no_gain_is_predicted_if_other_programs_are_busy(others_s):
    facts = judge(load(10, cores=2, process_cpu_s=1.3, others_s=others_s, infer=9, write=5))
    assert facts.bottleneck == "infer"
    assert facts.gain_if_free == {}
    assert f"{min(others_s, 0.7):.1f} of 2 cores" in facts.sentence
    assert facts.others_cores == pytest.approx(min(others_s, 0.7))
    assert "%" not in facts.sentence.split("`.", 1)[1]
    free = judge(load(9.2, cores=2, process_cpu_s=1.3, infer=9, write=7.5))
    assert set(free.gain_if_free) == {"infer"}
    assert free.others_cores is None


@pytest.mark.parametrize(
    ("ready_s", "foreign", "crowded"),
    [(1.1, None, ("writer", 1.0)), (0.2, 0.75, ("writer", 0.05)), (0.2, 1.0, None), (0, 0.0, None)],
)
def test_thread_that_waited_longest_for_our_other_threads_is_named(ready_s, foreign, crowded):
    threads = {
        "reader": replace(thread(1.0), ready_s=0.001, foreign_share=0.0),
        "writer": replace(thread(1.0), ready_s=ready_s, foreign_share=foreign),
    }
    times = frame_times(stages(infer=9), threads, cpu_time(1, 1.0), 0.9, 1.0, 100, False)
    assert times is not None
    assert times.crowded == (None if crowded is None else pytest.approx(crowded))
    assert ("`writer` spent" in judge(times).sentence) is (crowded is not None)


def test_no_gain_is_predicted_if_stages_do_not_explain_the_period():
    """The stages explain 7 of 10 ms per frame. Without a stage, the other 3 ms may also shrink."""
    facts = judge(load(10, infer=1, write=7))
    assert facts.bottleneck == "write"
    assert facts.gain_if_free == {}
    assert "profile" in facts.sentence
    assert judge(load(7.05, infer=6, write=7)).gain_if_free == {
        "write": pytest.approx(0.175, abs=1e-4),
        "infer": pytest.approx(0.0071, abs=1e-4),
    }


@pytest.mark.parametrize(("rest", "reported"), [(8.1, True), (7.9, False)])
@pytest.mark.parametrize("sync", [False, True])
def test_gain_above_a_quarter_is_not_reported(rest, reported, sync):
    """Without inference, the other stages would speed up, too, by an unknown amount."""
    infer = 10 - rest if sync else 10
    facts = judge(load(10, sync=sync, infer=infer, write=rest, process_cpu_s=0.5))
    assert ("infer" in facts.gain_if_free) is reported


@pytest.mark.parametrize(("closing", "reported"), [(0.2, True), (3, False)])
def test_slow_closing_of_files_hides_the_gain_without_inference(closing, reported):
    """The disk writes during inference, too, so closing files takes longer without inference."""
    loop = 10 - closing
    times = load(10, loop_ms=loop, sync=True, infer=1.5, write=loop - 1.5, process_cpu_s=0.5)
    assert ("infer" in judge(times).gain_if_free) is reported


def test_codec_threads_limit_the_gain_in_the_plain_loop():
    """Inference takes 4 of 10 ms per frame, so 6 ms of wall time remain. But writing and its
    codec's threads need 15 ms of CPU time, which is 7.5 ms on two cores."""
    times = load(10, sync=True, cores=2, process_cpu_s=1.7, others_s=0.0, infer=4, write=6)
    left = {"infer": 2e-3, "write": 15e-3}
    times = replace(times, stage_cpu=left, between_cpu_s=0.0, others_known=True)
    assert gain_without(times, "infer") == pytest.approx(10 / 7.5 - 1)
    assert not is_reliable(times, {"infer": 0.0})


def test_cpu_time_of_a_stage_excludes_other_threads_in_the_plain_loop():
    """During inference, the process used 0.9 s of CPU time. The stage's thread used 0.3 s of this,
    and the library's threads used 0.1 s."""
    split_up = replace(stages(infer=5)["infer"], cpu_s=0.9, split=split(3, 0, 2), library_cpu_s=0.1)
    each = {**stages(), "infer": split_up}
    for sync, ms in ((True, 4.0), (False, 10.0)):
        times = frame_times(each, {"main": thread(1.0)}, cpu_time(2, 1.0), 0.5, 1.0, 100, sync)
        assert times is not None
        assert times.stage_cpu["infer"] == pytest.approx(ms / 1e3)


def split(on_ms, ready_ms, blocked_ms):
    return ThreadTime(on_cpu_s=on_ms / 10, ready_s=ready_ms / 10, blocked_s=blocked_ms / 10)


def library(cpu_ms, busiest_ms, ready_ms, calls=100):
    parts = (cpu_ms, busiest_ms, ready_ms)
    cpu_s, busiest_s, ready_s = (ms * calls / 1e3 for ms in parts)
    return LibraryStage(threads=2, calls=calls, cpu_s=cpu_s, busiest_s=busiest_s, ready_s=ready_s)


NEEDS = [
    # All in ms. 1. Times of the stage's thread: on a core, ready, blocked. 2. The library: CPU time
    # of all its threads; CPU time of the busiest thread, and its wait for a core. 3. The need.
    ((1, 3, 0), None, 1),
    ((1, 3, 2), None, 3),  # blocked by a disk, which would not be faster on idle cores
    ((1, 0, 8), (8, 8, 0), 9),  # no thread waits for a core, so all time counts
    ((1, 0, 8), (4, 2, 6), 3),  # in 8 ms of sleep, the busiest thread works for 2 and waits for 6
    ((1, 0, 8), (4, 2, 2), 7),  # the library accounts for 4 of 8 ms, a disk for 4
    ((1, 0, 8), (4, 2, 3), 1 + 8 * 2 / 5),  # the library works for 2 of its 5 ms, so for 2/5 of 8
    ((1, 3, 0), (6, 5, 20), 4),  # an encoder works in the background without delaying calls
    ((1, 9, 0), (6, 5, 20), 5),
]


@pytest.mark.parametrize(("own", "theirs", "needed"), NEEDS)
@pytest.mark.parametrize("calls", [100, 50])  # how many of the 100 calls have library times
def test_need_of_a_stage_excludes_waits_for_a_core(own, theirs, needed, calls):
    stage = replace(stages(write=sum(own))["write"], split=split(*own))
    threads = LibraryThreads(
        wall_s=1,
        process_s=1,
        unknown_s=0,
        others_s=0,
        stages={} if theirs is None else {"write": library(*theirs, calls=calls)},
    )
    assert need_s("write", stage, threads) == pytest.approx(needed / 10)
    assert need_s("write", replace(stage, split=None), threads) == stage.busy_s


def load_with_waits(others, **stretched):
    """Return the costs of a run in which the writer and its encoder use most CPU time. ``others``:
    cores used by other programs. ``stretched``: stage -> milliseconds that the stage's thread waits
    for a core; the busiest thread of the stage's library waits as long."""
    of_stages = {"read": 1, "infer": 2, "write": 2}
    theirs = {"infer": 2, "write": 5}
    stretched_stages = {}
    for name, stage in stages(**of_stages).items():
        wait_ms, own, library_ms = (
            stretched.get(name, 0),
            of_stages.get(name, 0),
            theirs.get(name, 0),
        )
        blocked = library_ms + wait_ms if name == "infer" else 0
        stretched_stages[name] = replace(
            stage,
            busy_s=(own + wait_ms + blocked) / 10,
            split=split(own, wait_ms, blocked),
            library_cpu_s=library_ms / 10,
        )
    period = max(6.6, *(stage.busy_s * 10 for stage in stretched_stages.values()))
    libraries = LibraryThreads(
        wall_s=period / 10,
        process_s=1.3,
        unknown_s=0,
        others_s=others * period / 10,
        stages={name: library(ms, ms, stretched.get(name, 0)) for name, ms in theirs.items()},
    )
    cpu = cpu_time(2, 1.3, libraries)
    threads = {"writer": thread(period / 10)}
    infer_s = stretched_stages["infer"].busy_s
    return frame_times(stretched_stages, threads, cpu, infer_s, period / 10, 100, False)


@pytest.mark.parametrize(
    ("others", "stretched"),
    [(0.0, {}), (1.0, {"infer": 9, "write": 3}), (1.7, {"infer": 50, "write": 4, "read": 9})],
)
def test_load_of_other_programs_does_not_change_the_bottleneck(others, stretched):
    """In the last two cases, inference has the longest busy time."""
    times = load_with_waits(others, **stretched)
    assert judge(times).bottleneck == "write"
    assert times.stages["infer"] == pytest.approx(4e-3)
    assert estimate_without(times, "write") == pytest.approx(
        estimate_without(load_with_waits(0), "write")
    )
    assert judge(times).gain_if_free == {}  # other programs or the run itself fill the cores


@pytest.mark.parametrize(("between_ms", "reported"), [(1, True), (10, False)])
def test_gain_that_would_fill_the_cores_is_not_reliable(between_ms, reported):
    """Without inference, a frame would take 8.5 ms, and 6 ms + ``between_ms`` of CPU time."""
    times = load(10, cores=2, process_cpu_s=1.5, infer=10, write=8.5)
    times = replace(times, stage_cpu={"infer": 1e-3, "write": 6e-3}, between_cpu_s=between_ms / 1e3)
    assert not times.cpu_is_full
    assert is_reliable(times, {"infer": 0.0}) is reported


ADVICE = [
    # the slow stage, outputs, the encoding options given, the options that the sentence names
    ("write", ("video", "jsonl"), None, {"--quality", "--no-video"}),
    ("write", ("video", "jsonl"), ("--quality", "small"), {"--quality", "--no-video"}),
    ("write", ("video", "jsonl"), ("--preset", "fast"), {"--preset", "--no-video"}),
    ("write", ("video", "jsonl"), ("--crf", "30"), {"--preset", "--no-video"}),
    ("write", ("video", "jsonl"), ("--quality", "fast"), {"--no-video"}),  # no quality is faster
    ("write", ("video", "jsonl"), ("--preset", "ultrafast"), {"--no-video"}),
    ("write", ("pictures",), None, {"--no-video"}),
    ("write", ("jsonl",), None, set()),  # no option would save work
    ("annotate", ("video",), None, {"--no-video"}),
    ("nms", ("video",), None, {"--conf"}),
    ("read", ("video",), None, set()),
]


@pytest.mark.parametrize(("stage", "outputs", "encoding", "options"), ADVICE)
def test_sentence_suggests_existing_options_that_help(stage, outputs, encoding, options):
    choices = Choices(outputs=outputs, encoding=encoding)
    sentence = judge(load(10, **{"infer": 2, stage: 8}), choices).sentence
    named = set(re.findall(r"--[a-z-]+", sentence))
    assert named == options
    assert named <= {name for option in detect.params for name in option.opts}


@pytest.mark.parametrize("stage", ["infer", "read", "annotate"])
def test_sentence_suggests_compare_only_if_inference_is_slowest(stage):
    sentence = judge(load(10, **{"infer": 2, stage: 8}), Choices(outputs=())).sentence
    assert ("`detect-video compare`" in sentence) == (stage == "infer")


def test_no_encoding_option_is_suggested_for_a_format_with_one_encoding():
    choices = Choices(outputs=("video",), encodings=False)
    sentence = judge(load(10, infer=2, write=8), choices).sentence
    assert set(re.findall(r"--[a-z-]+", sentence)) == {"--no-video"}
    assert [has_encodings(name) for name in ("a.mp4", "a.webm", "a.AVI", "a.gif")] == [1, 1, 0, 0]


def test_run_without_figures_has_no_bottleneck():
    assert judge(frame_times(stages(), {}, cpu_time(), 0, 0, 0, False)).bottleneck is None
    assert judge(load(10)).bottleneck is None


def test_sentence_names_the_next_limit_and_bounds_the_gain():
    """Inference takes 94%, yet the gain is at most 19%, because reading is nearly as slow."""
    sentence = judge(load(10, read=8.4, infer=9.4)).sentence
    assert "94.0% of its time in `infer`" in sentence
    assert "1.19x" in sentence
    assert "Inference limits" in judge(load(10, read=10, infer=10)).sentence  # equally slow


@pytest.mark.parametrize(
    ("infer_ms", "least", "bottleneck"), [(6, EQUAL, "infer"), (5.2, 0.0, "annotate")]
)
def test_stage_with_the_largest_gain_is_the_bottleneck(infer_ms, least, bottleneck):
    """On one full core, the writer is the slowest thread; its longest stage takes 5 of 20 ms."""
    times = load(20, cores=1, process_cpu_s=2.0, infer=infer_ms, annotate=5, write=4)
    assert gain_without(times, "infer") > gain_without(times, "annotate") + least
    facts = judge(times)
    assert facts.bottleneck == bottleneck
    assert facts.sentence.startswith("Inference limits") == (bottleneck == "infer")
    assert "FPS" not in facts.sentence or bottleneck == "infer"  # no bound: the CPU is full


@pytest.mark.parametrize(("frames", "begins"), [(1, "1 frame is"), (FEW - 1, "29 frames are")])
def test_too_few_frames_get_no_gain(frames, begins):
    facts = judge(replace(load(10, infer=9, write=5), frames=frames))
    assert facts.bottleneck is None
    assert facts.sentence.startswith(f"{begins} too few ")


@pytest.mark.parametrize(("infer", "share"), [(12, 75), (17, 100)])  # 17 is from coarse clocks
def test_share_in_the_sentence_equals_that_of_the_ledger(infer, share):
    """Two workers are each busy for 6 of the loop's 8 ms; opening and closing files take 2 more."""
    times = load(10, loop_ms=8, infer=infer, infer_s=0.8, workers=2, write=2)
    assert f"{share}.0% of their time in `infer`" in judge(times).sentence


TIMES = st.floats(0, 50, allow_nan=False)


@pytest.mark.slow
@settings(STEADY, max_examples=300)
@given(
    period=st.floats(0.1, 60),
    ms=st.fixed_dictionaries({name: TIMES for name in STAGES}),
    cores=st.integers(1, 128),
    cpu=st.floats(0, 100),
    others=st.none() | st.floats(0, 1000),
    loop_share=st.floats(0, 1),
    sync=st.booleans(),
    workers=st.integers(1, 8),
    frames=st.sampled_from([1, FEW - 1, FEW, 100]),
)
def test_sentence_is_consistent_for_any_figures(
    period, ms, cores, cpu, others, loop_share, sync, workers, frames
):
    """No share is above 100%, and no more cores are named than exist. No gain is based on few
    frames or exceeds what the stage's share allows. The named stage has the largest gain."""
    times = load(
        period,
        sync=sync,
        cores=cores,
        process_cpu_s=cpu,
        loop_ms=period * loop_share,
        others_s=others,
        workers=workers,
        **ms,
    )
    times = replace(times, frames=frames)
    facts = judge(times)
    sentence = facts.sentence
    assert "inf" not in re.sub("[Ii]nfer(ence)?", "", sentence)
    assert "nan" not in sentence
    assert "-" not in re.sub(r"`[^`]*`|Non-maximum", "", sentence)
    busy = re.search(r"keep ([\d.]+) of (\d+) cores busy", sentence)
    if busy:
        used, there = float(busy[1]), int(busy[2])
        assert used <= there + 0.06
        assert used >= (0.8 - MAX_OTHERS) * there - 0.06  # "the CPU is full" is true
    assert "at least" not in sentence
    named = re.search(r"([\d.]+)% of (?:its|their) time in `(\w+)`", sentence)
    assert bool(named) is (facts.bottleneck is not None)
    if not named:
        assert "Without" not in sentence
        return
    assert frames >= FEW
    stage, share = named[2], float(named[1])
    assert stage == facts.bottleneck
    assert sentence.startswith(NAMES[stage])
    assert f"{times.shares[stage]:.1%}" == f"{named[1]}%"
    assert share <= 100
    gain = estimate_without(times, stage)
    for other in STAGES:
        assert 1 + estimate_without(times, other) <= (1 + gain) * (1 + EQUAL) * (1 + 1e-9)
    figures = [float(one) for one in re.findall(r"([\d.]+)x the FPS", sentence)]
    gains = facts.gain_if_free
    assert not (gains and times.others_share > MAX_OTHERS)
    assert gains or not figures
    for name, bound in gains.items():
        if bound is not None and bound >= NEGLIGIBLE:
            assert abs(bound - estimate_without(times, name)) <= MAX_ERROR + 1e-4
    if figures and gains.get(stage):
        assert figures[0] == pytest.approx(1 + gains[stage], abs=0.006)
        assert 1 <= figures[-1] <= figures[0]
        bound = times.ran[stage] / times.period_s
        assert bound >= 0.99 or figures[0] <= 1 / (1 - bound) + 0.01


def test_synchronous_loop_has_no_next_limit():
    assert limit_without(load(10, sync=True, infer=6, write=4), "infer") is None


@pytest.mark.parametrize(
    ("limit", "gain", "said"),
    [("write", float("inf"), "Nothing else"), (None, 0.5, "Without it"), ("write", 0.001, "Write")],
)
def test_sentence_states_the_next_limit_for_any_gain(limit, gain, said):
    (sentence,) = _next_limit(limit, gain)
    assert sentence.startswith(said)
