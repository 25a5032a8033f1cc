"""Recognise table columns by title and unit. Ambiguous columns are reported, not guessed."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import NamedTuple

TIME, RATE, BYTES, SHARE = "time", "rate", "bytes", "share"
WORK, WORK_RATE, PARAMS, BANDWIDTH = "work", "work rate", "parameters", "bandwidth"
ACCURACY, RATIO, COUNT = "accuracy", "ratio", "count"
ENERGY, POWER, CLOCK = "energy", "power", "clock"
MODEL, ENGINE, PRECISION = "model", "engine", "precision"
EXECUTED, IN_FLIGHT = "executed precision", "in flight"
BATCH, SIZE, THREADS, DEVICE = "batch", "size", "threads", "device"
DECODER, CLIP, NAME, STAGE = "decoder", "clip", "name", "stage"
BOUND, CHANGES, CONTAINS, TEXT = "bound", "changes", "contains", "text"
SETTINGS = (MODEL, ENGINE, PRECISION, BATCH, SIZE, THREADS, DEVICE, DECODER, CLIP)
LABELS = (NAME, STAGE, *SETTINGS)

# unit -> quantity, and its factor to the base unit (s, 1/s, bytes, share, operations, J, W, Hz).
UNITS: dict[str, tuple[str, float]] = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), (TIME, 1.0)),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), (TIME, 1e-3)),
    **dict.fromkeys(("us", "µs", "μs", "usec", "microseconds"), (TIME, 1e-6)),
    "ns": (TIME, 1e-9),
    **dict.fromkeys(("fps", "hz", "1/s", "qps", "ips", "img/s", "imgs/s", "images/s"), (RATE, 1.0)),
    **dict.fromkeys(
        ("im/s", "image/s", "frames/s", "frame/s", "images/sec", "img/sec"), (RATE, 1.0)
    ),
    **dict.fromkeys(("%", "percent"), (SHARE, 0.01)),
    "bytes": (BYTES, 1.0),
    **{f"{k}b": (BYTES, 10.0**e) for k, e in (("k", 3), ("m", 6), ("g", 9))},
    **{f"{k}ib": (BYTES, 2.0**e) for k, e in (("k", 10), ("m", 20), ("g", 30))},
    **{
        f"{k}{word}": (WORK, 10.0**e)
        for k, e in (("m", 6), ("g", 9), ("t", 12))
        for word in ("flop", "flops", "mac", "macs", "madds")
    },
    **{
        f"{k}{word}{per}": (WORK_RATE, 10.0**e)
        for k, e in (("m", 6), ("g", 9), ("t", 12))
        for word in ("flop", "flops")
        for per in ("/s", "/sec")
    },
    **{f"{k}b/s": (BANDWIDTH, 10.0**e) for k, e in (("m", 6), ("g", 9))},
    **dict.fromkeys(("j", "joule", "joules"), (ENERGY, 1.0)),
    **{"mj": (ENERGY, 1e-3), "uj": (ENERGY, 1e-6), "µj": (ENERGY, 1e-6), "wh": (ENERGY, 3600.0)},
    **{"w": (POWER, 1.0), "watt": (POWER, 1.0), "watts": (POWER, 1.0), "mw": (POWER, 1e-3)},
    **{"ghz": (CLOCK, 1e9), "mhz": (CLOCK, 1e6)},
    **{"x": (RATIO, 1.0), "×": (RATIO, 1.0)},
    **{"px": (SIZE, 1.0), "pixel": (SIZE, 1.0), "pixels": (SIZE, 1.0)},
}
POWERS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
SUFFIX = re.compile(r"[-+~]?[\d.,]*\d\s*([^\W\d]{1,6}|%|×)\W*")
PER_PICTURE = re.compile(r"\s*(?:/|per )\s*(?:img|image|frame|picture|inference)s?$")
SIZE_TEXT = re.compile(r"\d{2,5}\s*[x×*]\s*\d{2,5}(?:\s*[x×*]\s*\d{1,4})?")
PRECISION_TEXT = re.compile(
    r"(?<![a-z0-9])(fp32|fp16|bf16|tf32|int8|fp8|int4|float32|float16|half|w8a8)(?![0-9])", re.I
)
PRECISION_ALIASES = {"float32": "fp32", "float16": "fp16", "half": "fp16", "w8a8": "int8"}
ENGINES = frozenset(
    "pytorch torch torchscript onnx onnxruntime ort openvino tensorrt trt tensorflow tflite keras "
    "ncnn mnn tvm coreml opencv darknet paddle rknn deepsparse jax executorch null".split()
)
# word of a title -> the quantity of the column, used if the title has no unit
WORDS: dict[str, str] = {
    **dict.fromkeys(("model", "models", "network", "architecture", "variant", "detector"), MODEL),
    **dict.fromkeys(("engine", "runtime", "backend", "framework", "format", "provider"), ENGINE),
    **dict.fromkeys(("dtype", "datatype", "quantization"), PRECISION),
    **dict.fromkeys(("batch", "batchsize", "bs"), BATCH),
    **dict.fromkeys(("resolution", "input", "imgsz"), SIZE),
    **dict.fromkeys(("threads", "cores"), THREADS),
    **dict.fromkeys(("device", "hardware", "gpu", "platform", "machine", "card"), DEVICE),
    **dict.fromkeys(("decoder", "reader"), DECODER),
    **dict.fromkeys(("clip", "video", "dataset", "image", "picture"), CLIP),
    **dict.fromkeys(("layer", "name", "function", "operator", "op", "kernel", "at", "node"), NAME),
    **dict.fromkeys(("stage", "step", "component", "phase", "line"), STAGE),
    **dict.fromkeys(("type", "tag", "run"), NAME),
    **dict.fromkeys(("calls", "count", "runs", "images", "pictures", "frames", "samples"), COUNT),
    **dict.fromkeys(("n", "iterations", "iters", "repetitions", "rounds"), COUNT),
    **dict.fromkeys(("concurrency", "streams", "requests"), IN_FLIGHT),
    **dict.fromkeys(("bound", "limit"), BOUND),
    **dict.fromkeys(("changes", "optimisations", "optimizations", "optimisation"), CHANGES),
    **dict.fromkeys(("contains", "children"), CONTAINS),
    "fps": RATE,
    **dict.fromkeys(("speedup", "ratio", "acceleration"), RATIO),
    **dict.fromkeys(("params", "parameters", "#params", "param"), PARAMS),
}
ACCURACY_TEXT = re.compile(
    r"(?<![a-z])(?:map(?!p)|(?:ap|ar)(?![a-z])|ap(?:val|test)|accuracy|acc(?![a-z])|recall|f1"
    r"(?![0-9])|agreement|iou|mota|hota|top-?[15])"
)
LISTS = frozenset(word for word, quantity in WORDS.items() if quantity in (CHANGES, CONTAINS))
USUAL_UNITS = {  # suggested for titles without a unit
    **dict.fromkeys(("latency", "inference", "time", "duration"), "(ms)"),
    **dict.fromkeys(("memory", "vram"), "(MB)"),
    **dict.fromkeys(("throughput", "speed"), "(FPS)"),
    "energy": "(J)",
}


class Meaning(NamedTuple):
    """What a column contains. ``scale``: factor to the base unit. ``words``: the words of its
    title. ``why``: the reason why the column is not read, or ""."""

    quantity: str
    scale: float
    unit: str
    words: frozenset[str]
    why: str = ""

    def __str__(self) -> str:
        return f"{self.quantity}, {self.unit}" if self.unit else self.quantity


def clean(text: str) -> str:
    text = html.unescape(re.sub(r"<br\s*/?>", " ", text))
    text = re.sub(r"</?su[bp](?:\s[^<>]{0,200})?>", " ", text)
    text = re.sub(r"</?(?:b|i|em|strong|code|a|span|div|p)(?:\s[^<>]{0,200})?>", "", text)
    text = re.sub(r"!?\[([^\[\]]*)\]\([^()]*\)", r"\1", text)
    text = re.sub(r"\*\*|~~|[`$\\]", "", " ".join(text.split()))
    return re.sub(r"^([*_]+)(.+?)\1$", r"\2", text.strip())


def recognise(title: str, cells: Sequence[str]) -> Meaning:
    """Recognise a column. ``cells``: its cleaned cells that are not empty."""
    plain = clean(title).replace("_", " ")
    words = frozenset(re.findall(r"[\w#@.\-]+", plain.lower()))
    written, unit = _find_unit(plain)
    if unit is None and (suffix := _find_common_suffix(cells)) is not None:
        written, unit = suffix, UNITS.get(suffix.lower())
    is_accuracy = ACCURACY_TEXT.search(plain.lower()) is not None
    per_inference = words & {"per", "inference", "image", "picture", "forward"}
    if unit and unit[0] == WORK and "FLOPS" in title and not per_inference:
        return Meaning(
            TEXT, 1.0, written, words, "GFLOPS can be a count or a rate: write GFLOPs or GFLOP/s"
        )
    if unit is not None:
        return _classify_by_unit(written, unit, words, is_accuracy)
    if is_accuracy:
        return Meaning(ACCURACY, 1.0, "", words)
    if written and written.lower() in POWERS:
        return _classify_by_power(written, words)
    if bracketed := re.search(r"[(\[]\s*([kmgb])\s*[)\]]", plain, re.IGNORECASE):
        return _classify_by_power(bracketed[1], words)
    return _classify_by_words(plain, words, cells)


def _find_unit(plain: str) -> tuple[str, tuple[str, float] | None]:
    """Find a title's unit: in brackets, at its end, or as a word (FPS, GFLOPs)."""
    for bracketed in re.findall(r"[(\[]([^()\[\]]*)[)\]]", plain):
        for part in bracketed.split(","):
            name = PER_PICTURE.sub("", part.strip().lower())
            if (unit := UNITS.get(name)) is not None:
                return part.strip(), unit
    rest = PER_PICTURE.sub("", re.sub(r"[(\[][^()\[\]]*[)\]]", " ", plain).strip().lower())
    for word in reversed(rest.replace(",", " ").split()):
        long_enough = len(word) > 1 or word == "%" or word == rest.split()[-1]
        if long_enough and (unit := UNITS.get(word)) is not None:
            return word, unit
    if re.search(r"\bpercent|%", rest):
        return "%", UNITS["%"]
    return "", None


def _find_common_suffix(cells: Sequence[str]) -> str | None:
    """Return the unit at the end of all cells. If they have several units of one quantity (ms and
    us), return any of these: each number is read with its own unit later."""
    matches = [SUFFIX.fullmatch(cell) for cell in cells]
    suffixes = sorted({match[1].lower() for match in matches if match})
    quantities = {UNITS[one][0] if one in UNITS else one for one in suffixes}
    if len(quantities) != 1 or not all(matches):
        return None
    return suffixes[0] if suffixes[0] in UNITS or suffixes[0] in POWERS else None


def _classify_by_unit(
    written: str, unit: tuple[str, float], words: frozenset[str], is_accuracy: bool
) -> Meaning:
    quantity, scale = unit
    if quantity == SHARE and is_accuracy:
        quantity = ACCURACY
    if quantity == SIZE and "batch" in words:
        quantity, scale = BATCH, 1.0
    return Meaning(quantity, scale, written, words)


def _classify_by_power(power: str, words: frozenset[str]) -> Meaning:
    scale, joined = POWERS[power.lower()], " ".join(sorted(words))
    if re.search(r"\bparam|#param", joined):
        return Meaning(PARAMS, scale, power, words)
    if re.search(r"flop|\bmacs?\b|madd", joined):
        return Meaning(WORK, scale, power, words)
    return Meaning(TEXT, 1.0, power, words, f"({power}) of what? write params, FLOPs or MACs")


def _classify_by_words(plain: str, words: frozenset[str], cells: Sequence[str]) -> Meaning:
    numeric = sum(bool(re.match(r"[-+~]?[\d.]", cell)) for cell in cells) * 2 > len(cells) > 0
    if words & {"precision"} and not numeric:
        return Meaning(EXECUTED if words & {"executed", "ran"} else PRECISION, 1.0, "", words)
    if cells and all(cell.lower() in ENGINES for cell in cells) and not words & LISTS:
        return Meaning(ENGINE, 1.0, "", words)
    if cells and all(SIZE_TEXT.fullmatch(cell) for cell in cells):
        return Meaning(SIZE, 1.0, "", words)
    ordered = re.findall(r"[\w#\-]+", plain.lower())
    if "batch" in ordered:
        return Meaning(BATCH, 1.0, "", words)
    if "size" in ordered and words & {"test", "image", "img"}:
        return Meaning(SIZE, 1.0, "", words)
    vague = [word for word in ordered if word in ("type", "name", "tag")]
    for word in (*reversed([word for word in ordered if word not in vague]), *vague):
        quantity = WORDS.get(word)
        if quantity is None or (quantity in (COUNT, BATCH, THREADS) and not numeric):
            continue
        if numeric and quantity in (ENGINE, DEVICE, STAGE, BOUND, CHANGES, CONTAINS):
            continue
        return Meaning(quantity, 1.0, "", words)
    if re.search(r"speed.?up", plain.lower()):
        return Meaning(RATIO, 1.0, "", words)
    return Meaning(TEXT, 1.0, "", words, _explain_unread(ordered) if numeric else "")


def _explain_unread(words: Sequence[str]) -> str:
    if words == ["size"]:
        return "a size in pixels or in MB? add the unit"
    for word in filter(USUAL_UNITS.get, words):
        return f'the title has no unit; write "{word} {USUAL_UNITS[word]}" if that is the unit'
    return "the title does not say what the numbers are"
