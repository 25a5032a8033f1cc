"""The Python API, and its example in the documents."""

import json
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from types import SimpleNamespace

import av
import cv2
import numpy as np
import pytest

import detector as package
from detector import Detector, DetectVideoError
from detector.core import api
from detector.core.engines.null import NullEngine
from detector.core.types import Detections
from tests.cli.command import detect_video
from tests.conftest import CHECKOUT
from tests.waiting import PATIENCE_S, wait_for

CLIP = CHECKOUT / "videos/street.mp4"
QUICK = {"engine": "ort", "size": "160x96"}
PICTURE = np.zeros((48, 64, 3), np.uint8)


def test_list_of_exported_names_is_short_sorted_and_defined():
    assert package.__all__ == sorted(package.__all__, key=str)
    assert len(package.__all__) <= 10
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="Detektor"):
        _ = package.Detektor


def test_dir_of_the_package_lists_the_public_names():
    shown = [name for name in dir(package) if not name.startswith("_")]
    assert set(package.__all__) - {"__version__"} <= set(shown)
    assert not {"os", "TYPE_CHECKING"} & set(shown)


@pytest.mark.parametrize(
    ("modules", "not_needed"),
    [
        ("detector", {"torch", "cv2", "onnx", "onnxruntime", "av", "numpy"}),
        pytest.param(
            "detector.core.run.detect, detector.live.run", {"urllib3"}, marks=pytest.mark.slow
        ),
    ],
)
def test_import_loads_no_heavy_library(modules, not_needed):
    code = f"import sys, {modules}; print(sorted({not_needed} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_streamed_frames_are_not_overwritten():
    with Detector(**QUICK, frames=12, batch=2) as detector:
        kept = list(detector.stream(CLIP))
    assert [frame.index for frame, _ in kept] == list(range(12))
    assert len({frame.image.ctypes.data for frame, _ in kept}) == 12
    assert len({frame.image.tobytes() for frame, _ in kept}) > 6, "frames were overwritten"
    assert sum(len(found) for _, found in kept) > 10


@pytest.mark.slow
def test_call_returns_the_same_as_the_stream():
    with Detector(**QUICK, frames=5) as detector:
        for frame, found in detector.stream(CLIP):
            again = detector(frame.image)  # a call in the middle of a stream
            assert again.boxes.tolist() == found.boxes.tolist()
            assert again.scores.tolist() == found.scores.tolist()


@pytest.mark.parametrize("options", [{}, {"rect": False}, {"batch": 2}, {"skip_still": "1%"}])
def test_single_number_as_size_gives_an_input_of_the_videos_shape_or_a_square(options):
    with Detector(engine="null", size=160, frames=9, **options) as detector:
        frames = [frame.image for frame, _ in detector.stream(CLIP)]
        detector(frames[0])
        shapes = {one.slot.shape[1:3] for one in (detector._requests[0], detector._requests[-1])}
    assert shapes == {(160 if options else 96, 160)}


@pytest.mark.slow
def test_pictures_in_memory_are_tracked_like_their_video():
    with Detector(**QUICK, track=True, frames=9) as detector:
        pairs = list(detector.stream(CLIP))
        pictures = [frame.image for frame, _ in pairs]
        capture = cv2.VideoCapture(str(CLIP))
        for given in (pictures, iter(pictures), np.stack(pictures), capture):
            again = [found.track_ids.tolist() for _, found in detector.stream(given)]
            assert again == [found.track_ids.tolist() for _, found in pairs]
        for call in (detector, lambda picture: next(detector.stream(iter([])))):
            with pytest.raises(DetectVideoError, match="stream"):
                call(pictures[0])


def test_call_records_spans_for_each_picture(monkeypatch):
    spans = []
    track = SimpleNamespace(span=lambda *span: spans.append(span) or nullcontext())
    timeline = SimpleNamespace(track=lambda name: nullcontext(track))
    monkeypatch.setattr(Detector, "_timeline", lambda self: timeline)
    with Detector(engine="null", batch=2) as detector:
        detector([PICTURE] * 3)
    for stage, count in (("preprocess", 3), ("infer", 2), ("head", 3), ("nms", 3)):
        assert [at for name, at in spans if name == stage] == list(range(count))


@pytest.mark.slow
def test_process_writes_the_same_files_as_the_command(tmp_path):
    zones, rows_seen, crossed = {"lines": {"gate": [[480, 0], [480, 540]]}}, [], []
    (tmp_path / "zones.yaml").write_text(json.dumps(zones))
    arguments = ["--engine", "ort", "--size", "160x96", "--precision", "fp32", "--conf", "0.3"]
    arguments += [
        "--frames",
        "60",
        "--save",
        "video,csv",
        "--zones",
        "zones.yaml",
        "-o",
        "their.mp4",
    ]
    assert detect_video(CLIP, *arguments, cwd=tmp_path).returncode == 0

    def look(frame, found):
        rows_seen.extend((frame.index, one.name) for one in found)
        crossed.extend(event for event in found.events if event.event == "crosses")

    with Detector(**QUICK, conf=0.3, zones=zones) as detector:
        out, runs = tmp_path / "our.mp4", tmp_path / "runs"
        arguments = {"frames": 60, "save": ["video", "csv"], "run_dir": str(runs)}
        summary = detector.process(CLIP, out, callback=look, **arguments)
    for suffix in (".mp4", ".csv", ".events.csv", ".counts.csv"):
        ours, theirs = (tmp_path / f"{name}{suffix}" for name in ("our", "their"))
        assert ours.read_bytes() == theirs.read_bytes()
    rows = (tmp_path / "our.csv").read_text().splitlines()[1:]
    assert len(rows_seen) == len(rows) == summary.detections.total > 100
    [line] = summary.zones
    assert len(crossed) == sum(sum(one.values()) for one in line.counts.values()) > 0


def test_process_refuses_a_camera_or_custom_tracker_or_unknown_suffix(tmp_path):
    tracker = SimpleNamespace(update=lambda *_: [])
    with Detector(engine="null") as detector, Detector(engine="null", track=tracker) as followed:
        for call, message in (
            (lambda: detector.process("rtsp://10.0.0.5/x"), "a camera, but this needs a file"),
            (lambda: followed.process(CLIP), "built-in tracker"),
            (lambda: detector.process(CLIP, track=tracker), "built-in tracker"),
            (lambda: detector.process("x.mp4", track=True), "x.mp4: no such file"),
            (lambda: detector.process(CLIP, callback=lambda *_: 1, output="/dev/null"), "callback"),
            (lambda: detector.process(CLIP, tmp_path / "out.xyz"), "cannot write .xyz"),
        ):
            with pytest.raises(DetectVideoError, match=message):
                call()


@pytest.mark.slow
def test_stream_ends_its_threads_if_the_caller_leaves_it_early():
    before = threading.active_count()
    with Detector(**QUICK, frames=40) as detector:
        for _ in detector.stream(CLIP):
            break
        assert threading.active_count() <= before
        assert len(list(detector.stream(CLIP))) == 40


@pytest.mark.parametrize("close", [Detector.close, lambda one: one.__exit__(None, None, None)])
def test_close_closes_every_engine_and_refuses_further_calls(monkeypatch, close):
    closed, image = set(), np.zeros((90, 160, 3), np.uint8)
    monkeypatch.setattr(NullEngine, "close", lambda engine: closed.add(engine))
    detector = Detector(engine="null", size="160", rect=True)
    detector([image, image.transpose(1, 0, 2)])
    close(detector)
    close(detector)
    assert len(closed) == 3  # an engine for each shape, and the first engine, which is square
    for call in (lambda: detector(image), lambda: next(detector.stream("in.mp4"))):
        with pytest.raises(DetectVideoError, match="closed"):
            call()


@pytest.mark.parametrize(
    "source",
    [np.zeros((4, 4, 3), np.uint8), None, True, 2.5, 93],
    ids=lambda source: type(source).__name__,
)
def test_stream_of_an_invalid_source_is_refused(source):
    message = "/dev/video93" if type(source) is int else r"detector\(picture\)"  # a webcam
    with Detector(engine="null") as detector, pytest.raises(DetectVideoError, match=message):
        next(detector.stream(source))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"conf": 3}, "conf: "),
        ({"max_det": 0}, "max_det: "),
        ({"size": "abc"}, "size=abc: "),
        ({"size": (640, 384)}, "write it as 640x384 (width, height)"),
        ({"zones": [(0, 9), (9, 9)]}, 'write it as {"lines": '),
        ({"region": [(0, 9), (9, 9)]}, 'use zones={"lines": '),
        ({"device": "x"}, "device=x: "),
        ({"classes": ["xx"]}, "classes=xx: "),
        ({"names": "/none"}, "/none: "),
        ({"model": 3}, "a model must be "),
        ({"track": 5}, "track: give a tracker's name or an object"),
        ({"track": ["sort"]}, "track: give a tracker's name or an object"),
        # options of other libraries
        ({"imgsz": 640}, "size=640"),
        ({"half": True}, "precision='fp16'"),
        ({"conf_thres": 0.3}, "conf=0.3"),
        ({"save_txt": True}, "to_df"),
        ({"line_thickness": 2}, "plot"),
        ({"source": "x.mp4"}, "stream"),
        ({"confidence": 0.5}, " conf?"),
    ],
    ids=str,
)
def test_errors_name_options_as_keyword_arguments(options, words):
    with pytest.raises(DetectVideoError) as caught:
        Detector(**{"engine": "null", **options})
    assert words in str(caught.value)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_capture_without_a_frame_rate_has_25_frames_a_second(rate):
    pictures = iter([np.zeros((4, 4, 3), np.uint8)] * 2)
    capture = SimpleNamespace(
        isOpened=lambda: True, read=lambda: (True, next(pictures, None)), get=lambda _: rate
    )
    with Detector(engine="null") as detector:
        assert [frame.time_s for frame, _ in detector.stream(capture)] == [0.0, 0.04]


def test_errors_of_calls_and_streams_contain_no_flags():
    with Detector(engine="null") as detector:
        for call in (detector, lambda image, **more: next(detector.stream("x.mp4", **more))):
            with pytest.raises(DetectVideoError) as caught:
                call(np.zeros((4, 4, 3), np.uint8), conf=3)
            assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    ("message", "python"),
    [
        ("give --names FILE", "give names=FILE"),
        (
            "use a smaller --batch, --size or --concurrency",
            "use a smaller batch, size or concurrency",
        ),
        ("--size 640x384: not a multiple", "size=640x384: not a multiple"),
        ("use --batch 8; or not", "use batch=8; or not"),
        ("give --engines-dir DIR", "give engines_dir=DIR"),
        ("x--size 3 and --output x.mp4 stay", "x--size 3 and --output x.mp4 stay"),
    ],
)
def test_translate_replaces_flags_by_keyword_arguments(message, python):
    from detector.core.api import KEYWORDS
    from detector.core.api.words import translate

    assert translate(message, KEYWORDS) == python


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"conf": "x"}, "conf=x: a confidence threshold must be a number"),
        ({"conf": float("nan")}, "conf=nan: "),
        ({"classes": 5}, "classes 5: unknown class"),
        ({"classes": "car"}, "did you mean vehicle?"),
        ({"classes": "dog"}, "detect-video models"),
    ],
    ids=str,
)
def test_invalid_arguments_of_a_call_are_refused(arguments, message):
    with (
        Detector(engine="null") as detector,
        pytest.raises(DetectVideoError, match=re.escape(message)),
    ):
        detector(np.zeros((4, 4, 3), np.uint8), **arguments)


@pytest.mark.parametrize(
    "ids", [None, [1], [[1], [2]], [float("nan"), 1], [0.5, 1], ["a", "b"]], ids=str
)
def test_ids_that_a_custom_tracker_returns_are_checked(ids):
    from detector.core.api import _TrackerStage

    found = Detections(np.zeros((2, 4), np.float32), np.ones(2, np.float32), np.zeros(2, np.int64))
    tracker = SimpleNamespace(update=lambda *_: ids)
    with pytest.raises(DetectVideoError, match="a whole number for each of 2 detections"):
        _TrackerStage(tracker)(None, found)
    tracker.update = lambda *_: [3.0, -1]
    assert _TrackerStage(tracker)(None, found).track_ids.tolist() == [3, -1]


@pytest.mark.slow
def test_threads_may_call_a_detector_while_it_streams():
    with Detector(engine="ort", frames=12) as detector:
        frames = [frame.image for frame, _ in detector.stream(CLIP)]
        alone = [detector(image) for image in frames]
        with ThreadPoolExecutor(4) as pool:
            stream = pool.submit(lambda: [found for _, found in detector.stream(CLIP)])
            together = list(pool.map(detector, frames * 2))
        assert together == alone * 2
        assert stream.result() == alone


@pytest.mark.parametrize("more", [[], [CLIP]], ids=["alone", "and a video"])
@pytest.mark.parametrize("name", ["", "*.png", "0.png"], ids=["folder", "glob", "picture"])
def test_second_of_two_concurrent_streams_is_refused(name, more, tmp_path, monkeypatch):
    """The second thread starts its stream while the first one lists its sources."""
    gather, lists, answered = api._gather, threading.Event(), threading.Event()

    def gathered(specs):
        if lists.is_set():
            answered.set()
        lists.set()
        assert answered.wait(PATIENCE_S)
        return gather(specs)

    def second():
        assert lists.wait(PATIENCE_S)
        try:
            return list(detector.stream(sources))
        finally:
            answered.set()

    monkeypatch.setattr(api, "_gather", gathered)
    for number in range(3):
        cv2.imwrite(str(tmp_path / f"{number}.png"), PICTURE)
    sources = [tmp_path / name, *more]
    with Detector(engine="null", frames=3) as detector, ThreadPoolExecutor(1) as pool:
        refused = pool.submit(second)
        assert len(list(detector.stream(sources))) == (1 if "0" in name else 3) + 3 * len(more)
        assert "already streaming" in str(refused.exception())
        assert len(list(detector.stream(CLIP))) == 3  # the refused stream does not block others


CALLS = {
    "picture": lambda detector: detector(PICTURE),
    "list": lambda detector: detector([PICTURE] * 3),
    "stream": lambda detector: list(detector.stream(CLIP)),
}


@pytest.mark.parametrize("entry", CALLS)
def test_close_waits_for_the_current_inference_and_refuses_the_next(entry):
    detector, begun, resume, closed_early = (
        Detector(engine="null"),
        threading.Event(),
        threading.Event(),
        [],
    )

    def blocking_infer(n):
        begun.set()
        assert resume.wait(PATIENCE_S)
        return []

    engine = detector._plan.loaded.engine
    engine.close = lambda: closed_early.append(not resume.is_set())
    for request in engine.requests:
        request.infer = blocking_infer
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(CALLS[entry], detector)
        assert begun.wait(PATIENCE_S)
        closing = pool.submit(detector.close)
        wait_for(detector._closed.is_set)
        resume.set()
        closing.result(PATIENCE_S)
    assert closed_early == [False]
    if entry != "picture":  # one picture causes only one inference
        assert "closed" in str(running.exception())


def test_close_returns_during_an_inference_of_the_same_thread():
    """A signal handler may call ``close`` in this way."""
    detector = Detector(engine="null")
    detector._plan.loaded.engine.requests[-1].infer = lambda n: detector.close()
    with pytest.raises(TypeError):  # infer returned no outputs
        detector(PICTURE)


HOLDING = f"""
import sys, threading
from detector import Detector
it = iter(Detector(engine=sys.argv[1], size="160x96", concurrency=2).stream({str(CLIP)!r}))
next(it)
"""
IN_A_THREAD = """
began = threading.Event()
def follow():
    for _ in it:
        began.set()
    print("the stream ended as if it were complete")
threading.Thread(target=follow, daemon=True).start()
began.wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", IN_A_THREAD], ids=["main", "thread"])
@pytest.mark.parametrize("engine", ["null", "ort", "openvino", "torch"])
def test_script_exits_cleanly_with_an_open_stream(engine, more):
    if engine not in ("null", "ort"):
        pytest.importorskip(engine)
    command = [sys.executable, "-c", HOLDING + more, engine]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.slow
def test_documented_example_file_runs(tmp_path):
    (tmp_path / "videos").symlink_to(CHECKOUT / "videos")
    done = subprocess.run(
        [sys.executable, CHECKOUT / "docs/python_example.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 4
    assert (tmp_path / "annotated.png").stat().st_size > 10_000
    assert (tmp_path / "out.mp4").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("use", "answer"),
    [
        (lambda one: one.predict(PICTURE), r"detector\.stream\(source\)"),
        (lambda one: one.export(), "detect-video build --to onnx"),
        (lambda one: one(PICTURE, imgsz=320), r"in Detector\(\.\.\.\) use size=320"),
        (lambda one: one(PICTURE, stream=True), r"detector\.stream\(source\)"),
        (lambda one: one(PICTURE).boxes.xyxy, r"found\.boxes"),
        (lambda one: one(PICTURE).confidence, r"found\.scores"),
        (lambda one: one(PICTURE).show(), r"found\.plot\(\)"),
        (lambda one: one(source=PICTURE), r"detector\(picture\)"),
        (lambda one: next(one.stream(CLIP)).boxes, "for frame, found in"),
        (lambda one: one(PICTURE).orig_img, "what you passed"),
        (lambda one: one(PICTURE).absent, "no attribute 'absent'$"),
    ],
)
def test_error_for_an_attribute_of_another_library_names_our_attribute(use, answer):
    with Detector(engine="null") as detector:
        with pytest.raises((AttributeError, DetectVideoError), match=answer):
            use(detector)
        assert not hasattr(detector(PICTURE), "xyxy")


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_example_of_each_page_runs(page, tmp_path, monkeypatch):
    text = (CHECKOUT / page).read_text()
    [example] = re.findall(r"```python\n(.*?)```", text, re.S)
    with av.open(str(CLIP)) as full, av.open(str(tmp_path / "in.mp4"), "w") as beginning:
        stream = beginning.add_stream_from_template(full.streams.video[0])
        for packet in islice(full.demux(video=0), 30):
            packet.stream = stream
            beginning.mux(packet)
    cv2.imwrite(str(tmp_path / "photo.jpg"), cv2.VideoCapture(str(CLIP)).read()[1])
    monkeypatch.chdir(tmp_path)
    printed = []
    exec(compile(example, page, "exec"), {"print": lambda *words: printed.append(words)})
    assert len(printed) > 10
