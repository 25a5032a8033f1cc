"""A complete session document for tests that change parts of it."""

from typing import Any

from detector.core.session.codec import from_builtins
from detector.core.session.document import SessionDocument

STAGE = {"p50_ms": 4.0, "p90_ms": None, "p99_ms": None, "max_ms": 9.0, "calls": 10}
DOCUMENT: dict[str, Any] = {
    "schema": 1,
    "model": "m",
    "family": "darknet",
    "engine": "ort",
    "engine_reason": None,
    "precision": "fp32",
    "batch": 1,
    "model_input": [256, 416],
    "engine_threads": 2,
    "concurrency": 2,
    "sync": False,
    "video": {
        "path": "in.mp4",
        "width": 640,
        "height": 360,
        "fps": 25.0,
        "frames_declared": 11,
        "duration_s": 0.44,
    },
    "frames": {
        "read": 11,
        "written": 10,
        "dropped": 1,
        "reused": 0,
        "coasted": 0,
        "bad": 2,
        "corrupt": 0,
        "skipped": 0,
    },
    "fps": {"end_to_end": 12.5, "inference": 25.0, "device": None},
    "seconds": {"import": 0.1, "load": 0.2, "warmup": 0.3, "run": 0.8, "close": 0.0},
    "stages": {
        "read": {**STAGE, "thread": "reader", "busy_s": 0.2, "cpu_s": 0.1},
        "infer": {**STAGE, "thread": "worker-0,worker-1", "busy_s": 0.8, "cpu_s": 0.7},
        "annotate": {**STAGE, "thread": "", "busy_s": 0.0, "cpu_s": 0.0, "calls": 0},
    },
    "threads": {
        name: {
            "busy_s": 0.4,
            "wait_input_s": 0.3,
            "wait_output_s": 0.0,
            "other_s": 0.1,
            "wall_s": 0.8,
            "cpu_s": 0.4,
            "waits": {"batch": 0.3},
        }
        for name in ("reader", "worker-0", "worker-1")
    },
    "cpu": {
        "cores": 2,
        "process_s": 1.0,
        "our_threads_s": 0.9,
        "library_threads_s": 0.1,
        "stages_include_libraries": False,
    },
    "verdict": {"bottleneck": "infer", "sentence": "Inference limits this run: and so on"},
    "detections": {"total": 3, "by_class": {"person": 2, "car": 1}, "cut_by_max_det": 4},
    "exit": {"code": 7, "reason": "finished, but 2 bad packets were skipped"},
    "notes": ["random weights (seed 0): boxes are meaningless"],
    "outputs": {"jsonl": "in-ort-detected.jsonl"},
    "partial_outputs": ["x.partial.mp4"],
    "session": "runs/in-ort",
    "pid": 7,
    "clocks": {"perf_counter_ns": 1000, "unix_ns": 5000},
    "loop": [
        {
            "batch": 1,
            "concurrency": 2,
            "requests": 5,
            "images": 6,
            "queue_batches": 2,
            "results": 4,
            "sync": False,
        }
    ],
}


def document(**changes: Any) -> SessionDocument:
    return from_builtins({**DOCUMENT, **changes}, SessionDocument, "test document")
