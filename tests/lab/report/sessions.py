"""Sessions of short real runs, and invented results of passes for all sections of the report."""

import json
from pathlib import Path
from typing import Any

from detector.core.config.levels import resolve_config
from detector.core.run.detect import detect
from detector.core.session.codec import to_builtins
from detector.lab.analysis.layers import device_facts
from tests.conftest import CHECKOUT

CLIP = CHECKOUT / "videos/street.mp4"
FRAMES = 24


def ran(folder: Path, sources: int = 1, **flags: Any) -> Path:
    given = {"engine": "null", "frames": FRAMES, "save": "jsonl", "no_video": True, **flags}
    given |= {"run_dir": str(folder / "run"), "output": f"{folder}/"}
    result = detect(
        [str(CLIP)] * sources, resolve_config(None, given), command=["detect-video", "the clip.mp4"]
    )
    assert result.session is not None
    return Path(result.session)


def with_passes(session: Path) -> Path:
    (session / "passes").mkdir(exist_ok=True)
    for name, facts in PASSES.items():
        content = {"available": True, "reason": None, "seconds": 1.25, **facts}
        (session / f"passes/{name}.json").write_text(json.dumps(content))
    return session


def layer(number: int) -> dict[str, Any]:
    ms, macs = 0.1 + 0.037 * (number * 7 % 24), 1_000_000 * (1 + number * 5 % 24)
    size = 40_000 * (1 + number * 11 % 24)
    return {
        "name": f"/backbone/stage.{number}/Conv<{number}>",
        "type": "MaxPool" if number % 6 == 5 else "Conv",
        "ms": ms,
        "share": ms / 13,
        "macs": macs,
        "flops": 2 * macs,
        "bytes": size,
        "gflops_s": 2 * macs / ms / 1e6,
        "gbytes_s": size / ms / 1e6,
        "intensity": 2 * macs / size,
        "precision": "fp32",
        "utilisation": None if number == 3 else 0.05 * number,
        "bound": "memory" if number % 3 else "compute",
        "flag": "peak under-measured" if number > 20 else None,
    }


def operator(number: int, shapes: str) -> dict[str, Any]:
    return {
        "name": f"aten::op_{number}",
        "shapes": shapes,
        "calls": 0.2 * number,
        "self_ms": 5.0 / (number + 1),
        "total_ms": 6.0 / (number + 1),
        "device_ms": 0.5 * number,
        "share": 0.4 / (number + 1),
    }


def path_stage(name: str, self_s: float, wait_s: float, calls: int) -> dict[str, Any]:
    times = {"share": round(self_s + wait_s, 3), "self_s": self_s, "wait_s": wait_s}
    causes = {"data": wait_s} if wait_s else {}
    return {"name": name, **times, "calls": calls, "wait_causes": causes}


def change(
    name: str, fps: float, ratio: tuple[float, float], stage: str | None = None
) -> dict[str, Any]:
    """``ratio``: FPS of the slowest and fastest round, divided by the unchanged run's 40 FPS."""
    low, high = ratio
    return {
        "change": name,
        "stage": stage,
        "how": "precomputed outputs in rotation" if stage else "one plain loop",
        "fps": {"median": fps, "low": 40 * low, "high": 40 * high},
        "frame_ms": {"median": 1e3 / fps, "low": 25 / high, "high": 25 / low},
        "fps_ratio": {"median": fps / 40, "low": low, "high": high},
        "frame_ratio": {"median": 40 / fps, "low": 1 / high, "high": 1 / low},
    }


def sample(at: int) -> dict[str, Any]:
    watts = 5.0 if at < 20 else 12.0 + at % 3
    return {
        "timestamp": 1.0 + 0.1 * at,
        "tag": "idle sample" if at < 20 else "run sample",
        "duration": 0.1,
        "package": 0.1 * watts,
        "core": 0.07 * watts,
        "joules_per_frame": None if at < 20 else 0.05,
    }


SAMPLES = [sample(at) for at in range(60)]
TREE = "\n".join(
    f"{' ' * 3 * at}└─ {1.0 / (at + 1):.3f} function_{at}  detector/core/loop/sync.py:{at}"
    for at in range(40)
)
LAYERS = [layer(number) for number in range(24)]
PASSES: dict[str, dict[str, Any]] = {
    "critical_path": {
        "wall_s": 1.0,
        "startup_s": 0.1,
        "teardown_s": 0.05,
        "frames": 20,
        "stages": [path_stage("infer", 0.6, 0.1, 18), path_stage("write", 0.3, 0.0, 4)],
    },
    "what_if": {
        "frames": 24,
        "rounds": 3,
        "fps": {"median": 40.0, "low": 39.0, "high": 40.5},
        "frame_ms": {"median": 25.0, "low": 24.7, "high": 25.6},
        "changes": [
            change("infer free", 61.5, (1.48, 1.56), "infer"),
            change("write free", 44.0, (1.06, 1.12), "write"),
            change("no video", 43.0, (1.05, 1.1)),
            change("read free", 40.4, (0.98, 1.04), "read"),
            change("overlap off", 22.0, (0.53, 0.57)),
        ],
        "not_measured": {"head free": "it takes 0.4% of a frame's time: runs differ by more"},
        "doubts": [],
    },
    "layers": {
        "engine": "ort",
        "rows": LAYERS,
        "sum_ms": sum(row["ms"] for row in LAYERS),
        "forward_ms": 13.2,
        "slowdown": 1.125,
        "profiled_ms": 14.85,
        "outside_ms": 0.7,
        "precision": "fp32",
        "threads": 2,
        "off_by": -0.045,
        "flag": None,
        "by_type": [],
    },
    "roofline": {
        "peaks": {
            "gflops_s": {"fp32": 95.0, "bf16": 190.0},
            "bandwidth_gbytes_s": 14.2,
            "by": {"fp32": "torch", "bf16": "torch"},
        },
        "peak_under_measured": [],
        "gflops_s": 46.2,
        "macs": 305_000_000,
        "flops": 610_000_000,
        "utilisation": 0.48,
        "bound": "compute",
    },
    "memory": {
        "slowdown": 1.01,
        "start_mb": 200.0,
        "peak_mb": 261.5,
        "slope_mb_per_1000_frames": 0.9,
        "slope_reason": None,
        "parts_mb": {"model": 30.5, "drawing and encoder": 41.0, "rest": 2.5},
        "samples": [{"t_s": 0.1 * at, "rss_mb": 200.0 + min(at, 20) * 3.075} for at in range(40)],
    },
    "energy": {
        "slowdown": 1.0,
        "joules_per_frame": 0.31,
        "frames_per_joule": 3.2,
        "idle_watts": {"package": 5.0},
        "counters": ["core", "package"],
        "samples": SAMPLES,
        "rows": [
            {"timestamp": 1.0, "tag": "idle", "duration": 2.0, "package": 10.0, "core": 4.0}
            | {"joules_per_frame": None},
            {"timestamp": 3.0, "tag": "run", "duration": 4.2, "package": 31.0, "core": 25.5}
            | {"joules_per_frame": 0.31},
        ],
    },
    "torch": {
        "frames": 5,
        "device": "cpu",
        "forward_ms": 12.0,
        "profiled_ms": 15.0,
        "slowdown": 1.25,
        "self_ms": 14.0,
        "trace": "passes/torch_trace.json.gz",
        "rows": [operator(at, "") for at in range(9)],
        "by_shape": [
            operator(at, f"[[1, {at}, 256, 416], [16, 3, 3, 3], [], []]") for at in range(12)
        ],
    },
    "device": {
        **to_builtins(
            device_facts(
                [(1.0 + 3 * at, 2.5 + 3 * at) for at in range(30)],
                [(3.0 * at, 3.0 * at + 1.2) for at in range(30)],
                device="cuda:0",
                batches=10,
                slowdown=1.1,
            )
        ),
        "rows": [operator(at, "") for at in range(5)],
    },
    "loop": {
        "off_ms": [20.0],
        "on_ms": [20.1],
        "instruments": {"median": 0.005, "low": -0.01, "high": 0.02},
        "warning": None,
        "slowdown": 1.005,
    },
    "python": {
        "functions": [{"function": "a.py:1(<lambda>)", "calls": 3, "self_s": 0.2, "total_s": 0.3}],
        "folded": {"built-in: encode": 0.5, "detector.core.stages": 0.2},
        "tree": TREE,
        "slowdown": 1.4,
    },
    "moments": {
        "began_ns": 0,
        "frames": [0, 1],
        "at_ns": [10, 20],
        "threads": {"writer": {"cpu_ms": [1.0, 2.0], "ready_ms": [0.0, 0.5]}},
        "faults": [7, 0],
        "disk_faults": [1, 0],
        "mhz": [3000.0, 1500.0],
        "collections": [{"start_ns": 3, "end_ns": 5, "generation": 2}],
        "keys": [0],
        "cost_us": 90.5,
        "slowdown": 1.01,
    },
    "counters": {
        "available": False,
        "reason": "this machine hands out no cycle counter (virtual machines rarely do)",
    },
}
