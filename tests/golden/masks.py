"""Masks for values in recordings that differ between runs or machines. Each has its reason.

Kinds of masks for the value at a path (``rows.0.fps.inference``; ``*`` matches any parts):

type  only its JSON type is compared
may   like ``type``, but null is accepted: the machine decides whether there is a value
keys  only the key must exist: its type and content depend on the machine
each  a list or object of similar elements, whose number varies: only their types are compared
near  a number within a tolerance
any   only the keys below the path are compared

NAMES lists parts of keys and of file names that are replaced.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Mask:
    kind: str
    patterns: str  # separated by spaces
    reason: str
    near: bool | None = None  # True: only for command lines with a real network
    within: float = 0.0
    only: str = ""  # only for these command lines, separated by spaces


SENTENCE = "a sentence: its words may change, its key may not"
TIME = "a measured time, or a figure computed from one"

MASKS = [
    Mask("keys", "environment", "the machine and its libraries"),
    Mask(
        "keys",
        "environment.libraries environment.cpu.flags cpu.features cpu.precision cpu.meaning "
        "threads.settings media.*.* gpu.gpus counters.rapl engines.*.precisions",
        "the number of entries depends on the machine",
        only="doctor",
    ),
    Mask("any", "*", "doctor reports what the machine has: record only the keys", only="doctor"),
    Mask(
        "type",
        "video.decoder",
        "cv2 decodes ahead in threads, so FFmpeg's complaint comes at a different frame each time",
        only="truncated",
    ),
    # ---- sentences
    Mask(
        "type",
        "*.sentence description *.description *.says says *.undisturbed undisturbed undisturbed.* "
        "*.interval interval",
        SENTENCE,
    ),
    Mask(
        "may",
        "*.reason reason *.error *.warning warning *_reason *.text *_text *.flag flag "
        "*.precision_effect precision_effect engine_reason",
        SENTENCE + "; null if not applicable",
    ),
    Mask(
        "keys",
        "*.notes notes *.warnings warnings not_the_same doubts *.doubts not_available.*",
        "sentences; some appear on some machines only",
    ),
    Mask("type", "tree *.tree", "pyinstrument's drawing"),
    # ---- time
    Mask(
        "may",
        "fps.* *.fps.* *.ratio.* seconds seconds.* *.seconds *_s *_ms *.avg *.std *.slowdown "
        "slowdown *.share share *.foreign_share *.others_cores *.before_cores *.after_cores "
        "cpu_share *.cpu_share low high *.low *.high *.ratio *.median overhead.* *_error off_by "
        "*.off_by",
        TIME,
    ),
    Mask(
        "keys",
        "*.ratio_interval.* *.stage_cpu_ms gain_if_free *.gain_if_free *.waits *.wait_causes "
        "*.off_ms *.on_ms off_ms on_ms *.libraries cpu.libraries *.ms_by_bound ms_by_bound",
        TIME + "; what a thread waits for varies",
    ),
    Mask(
        "keys",
        "python.folded folded python.functions functions",
        "a profile lists the functions that it saw",
    ),
    Mask("may", "*.bottleneck bottleneck *.verdict", "follows from the times"),
    Mask("type", "*.comparable comparable others.differs", "follows from the noise"),
    Mask("keys", "not_measured what_if.not_measured", "the times decide which stages are short"),
    Mask("type", "rounds what_if.rounds", "rounds are repeated while time is left", only="profile"),
    Mask("type", "what_if.rounds", "rounds are repeated while time is left"),
    Mask("keys", "fastest.*", "follows from the times"),
    Mask("each", "critical_path.stages", "the critical path lists the stages that cost time"),
    Mask("each", "stages", "the same as critical_path.stages", only="profile"),
    Mask(
        "may",
        "critical_path.frames frames",
        "the number of frames on the critical path varies",
        only="profile",
    ),
    Mask("may", "critical_path.frames", "the number of frames on the critical path varies"),
    Mask(
        "each",
        "*.samples samples changes *.changes",
        "their number depends on the time, or on the stages of the critical path",
    ),
    Mask("each", "threads", "the number of workers depends on the number of cores"),
    Mask("type", "*.thread", "worker threads are numbered; the cores decide how many there are"),
    Mask(
        "may",
        "cpu.* *.cpu.* *.memory_mb *_mb *_mb_per_1000_frames *.slope_* gpu.* *.gpu.available",
        "cores and memory of the machine",
    ),
    Mask(
        "may",
        "engine_threads *.engine_threads threads *.threads concurrency *.concurrency",
        "the engine chooses them by the number of cores",
    ),
    Mask(
        "keys",
        "*.parts_mb parts_mb peaks *.peaks ridge *.ridge *.peak_under_measured "
        "peak_under_measured gpu *.gpu",
        "the machine's peak rates and memory",
    ),
    Mask(
        "each",
        "layers.rows layers.by_type layers.by_block rows by_type by_block",
        "which layers an engine fuses depends on the CPU",
        only="profile-layers",
    ),
    Mask(
        "may",
        "*.gflops_s *.gbytes_s *.intensity *.utilisation *.bound gflops_s intensity utilisation "
        "bound bytes *.bytes",
        "rates of the machine, or computed from the layers that the engine chose",
        only="profile-layers",
    ),
    Mask("keys", "counters", "the system decides whether counters may be read", only="profile"),
    Mask(
        "keys",
        "not_available",
        "the system decides what can be measured",
        only="profile profile-layers report-json",
    ),
    Mask(
        "keys",
        "overhead",
        "contains only the passes that the system allows",
        only="profile profile-layers report-json",
    ),
    # ---- machine, versions, places
    Mask(
        "type",
        "pid clocks.* machine.* created started *.created command.* config_sha256 *.fetched",
        "date, machine, versions",
    ),
    Mask("type", "*.recipe recipe", "a digest of our own code's files and their dates"),
    Mask("may", "config.runtime.engines_dir", "where this test run keeps built files"),
    Mask("may", "spans.seen spans.kept", "waits for a queue are spans; their number varies"),
    Mask(
        "type",
        "clip_sha256.* model_sha256 *.model_sha256 sha256 *.sha256 *_sha256 graph_sha256",
        "sha256 of files that onnx or av write: their bytes change with the libraries' versions",
    ),
    Mask(
        "keys",
        "precision_executed *.precision_executed",
        "the engine chooses the layers' precisions for this CPU",
    ),
    # ---- real networks
    Mask(
        "near",
        "*.ap *.ap50 *.ap75 *.ap_small *.ap_medium *.ap_large *.recall *.recall_conf25 "
        "*.precision_conf25 *.ap50_interval.*",
        "the last digits of a network's outputs differ between CPUs",
        near=True,
        within=0.05,
    ),
    Mask(
        "keys",
        "*.ap50_interval *.curves *.confusion.counts results.0.ap50_interval",
        "the last digits of a network's outputs differ between CPUs",
        near=True,
    ),
    Mask(
        "type", "detections.total *.detections.total", "a borderline box may come or go", near=True
    ),
    Mask(
        "keys",
        "detections.by_class *.detections.by_class",
        "a borderline box may come or go",
        near=True,
    ),
]

NAMES = [
    # pattern in a path or a file name, its replacement, reason
    (r"-[0-9a-f]{12}(?=\.|$)", "-DIGEST", "a graph's digest changes with the version of onnx"),
    (r"worker-\d+", "worker-N", "the number of workers varies"),
    (r"^\.ses.*|.*/\.ses.*", ".ses", "onnxruntime 1.31 leaves such a file"),
]

# Rows of real networks.
BOX_PX, SCORE, BORDER = 0.5, 0.01, 0.02
"""How far boxes (pixels) and scores may differ between CPUs with AVX2, AVX-512 and AMX. A box whose
score is within BORDER of the threshold may be absent.
"""


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", ".*"))


def mask_of(path: str, command: str, near: bool, container: bool) -> Mask | None:
    for mask in sorted(MASKS, key=lambda one: not one.only):
        if (
            (mask.only and command not in mask.only.split())
            or (mask.near is not None and mask.near != near)
            or (container and mask.kind in ("type", "may", "near"))
            or (not container and mask.kind == "each")
        ):
            continue
        if any(_expression(pattern).fullmatch(path) for pattern in mask.patterns.split()):
            return mask
    return None


def masked_name(name: str) -> str:
    for pattern, replacement, _ in NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def type_name(value: Any) -> str:
    kinds = {
        dict: "object",
        list: "list",
        str: "text",
        bool: "truth",
        int: "number",
        float: "number",
    }
    return kinds.get(type(value), "null")
