"""Collect a command line's output and files in JSON that is the same on every machine."""

import csv
import gzip
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from tests.golden.commands import Command
from tests.golden.masks import mask_of, masked_name, type_name
from tests.golden.running import RunResult, files_in

MASKED = "~"
"""Prefix of the placeholders for values that are not compared: ``~number``, ``~text|null``."""


def observe(ran: RunResult) -> dict[str, Any]:
    command, folder = ran.command, ran.folder
    new = sorted(files_in(folder) - ran.before)
    document: dict[str, Any] = {
        "exit": ran.exit_code,
        "stdout": _kind(ran.stdout),
        "stderr": _lines(ran.stderr),
        "files": sorted({masked_name(name) for name in new}),
    }
    if document["stdout"] == "json":
        document["document"] = flatten(_without_folder(json.loads(ran.stdout), folder), command)
    if "--help" in command.argv:
        document["options"] = sorted(set(re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", ran.stdout)))
    content = {}
    for name in new:
        if any(_fits(name, pattern) for pattern in command.read) and (
            reader := READERS.get(Path(name).suffix)
        ):
            content[masked_name(name)] = _without_folder(reader(folder / name, command), folder)
    return document | {"content": content} if content else document


def _fits(name: str, pattern: str) -> bool:
    """Match a glob like a shell, in which ``*`` does not match a slash."""
    return len(Path(name).parts) == len(Path(pattern).parts) and Path(name).match(pattern)


def _kind(text: str) -> str:
    if not text.strip():
        return "empty"
    try:
        json.loads(text)
    except ValueError:
        return "text"
    return "json"


def _lines(text: str) -> str:
    lines = len(text.splitlines())
    return ("nothing", "one line")[lines] if lines < 2 else "lines"


def _without_folder(value: Any, folder: Path) -> Any:
    """Replace the absolute paths of the run's folder and of its parent by placeholders."""
    if isinstance(value, dict):
        return {key: _without_folder(one, folder) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_folder(one, folder) for one in value]
    if isinstance(value, str):
        return value.replace(str(folder), "HERE").replace(str(folder.parent), "RUNS")
    return value


# ---- JSON documents


def flatten(value: Any, command: Command) -> dict[str, Any]:
    """Return path -> value or placeholder.

    Elements under a mask of kind ``each`` (masks.py) are merged into one.
    """
    leaves: dict[str, list[Any]] = {}
    _walk(value, "", command, False, lambda path, one: leaves.setdefault(path, []).append(one))
    return {path: _merged(values) for path, values in leaves.items()}


def _walk(
    value: Any, path: str, command: Command, alike: bool, leaf: Callable[[str, Any], None]
) -> None:
    container = isinstance(value, (dict, list))
    mask = mask_of(path, command.name, command.near, container) if path else None
    kind = mask.kind if mask else ("each" if alike and isinstance(value, list) else "")
    if kind == "keys":
        leaf(path, f"{MASKED}any")
    elif (kind == "any" and not (container and value)) or (alike and not container):
        leaf(path, f"{MASKED}any" if kind == "any" else f"{MASKED}{type_name(value)}")
    elif kind == "type":
        leaf(path, f"{MASKED}{type_name(value)}")
    elif kind == "may":
        leaf(path, f"{MASKED}{type_name(value)}" + ("|null" if value is not None else ""))
    elif not container or not value:
        leaf(path, value)
    elif kind == "each":
        for one in value.values() if isinstance(value, dict) else value:
            _walk(one, f"{path}.each", command, True, leaf)
    elif isinstance(value, dict):
        for key, one in value.items():
            name = masked_name(key)
            _walk(one, f"{path}.{name}".lstrip("."), command, alike, leaf)
    elif not any(isinstance(one, (dict, list)) for one in value):
        masks = [mask_of(f"{path}.0", command.name, command.near, False)]
        leaf(path, value if masks == [None] else f"{MASKED}list")
    else:
        for at, one in enumerate(value):
            _walk(one, f"{path}.{at}".lstrip("."), command, alike, leaf)


def _merged(values: list[Any]) -> Any:
    if len(values) == 1:
        return values[0]
    kinds = {kind for value in values for kind in str(value).removeprefix(MASKED).split("|")}
    return MASKED + "|".join(sorted(kinds, key=lambda kind: (kind == "null", kind)))


# ---- files


def _rows(path: Path, command: Command) -> Any:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _document(path: Path, command: Command) -> Any:
    if path.name.startswith("trace"):
        return _trace(path)
    value = json.loads(path.read_text(encoding="utf-8"))
    return value if path.name.endswith(".coco.json") else flatten(value, command)


def _trace(path: Path) -> Any:
    """Return the kinds of events with their keys. A file whose name ends in .gz is gzip."""
    data = path.read_bytes()
    value = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    events = value["traceEvents"] if isinstance(value, dict) else value
    return sorted({f"{event.get('ph')}: {', '.join(sorted(event))}" for event in events})


def _table(path: Path, command: Command) -> Any:
    """Return the rows of a CSV. A report's CSV contains measurements, so return its header only."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    return rows[:1] if command.name.startswith("report") else rows


def _lines_of(path: Path, command: Command) -> Any:
    return path.read_text(encoding="utf-8").splitlines()


def _arrays(path: Path, command: Command) -> Any:
    with np.load(path) as file:
        return {name: f"{file[name].dtype.kind} {file[name].ndim}d" for name in file.files}


def _picture(path: Path, command: Command) -> Any:
    """Return the size of a picture. If a command with a test network wrote it as a PNG, add the
    sha256 of its pixels, since boxes, lines and text are the same on every machine."""
    image = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    size = "x".join(map(str, image.shape))
    if path.suffix != ".png" or command.near:
        return size
    digest = hashlib.sha256(image.tobytes()).hexdigest()
    return {"shape": size, f"pixels by OpenCV {cv2.__version__}": digest}


def _video(path: Path, command: Command) -> Any:
    """Leave out the pixels, which depend on the encoder's version and its number of threads."""
    with av.open(str(path)) as container:
        [stream] = container.streams.video
        pts = [frame.pts for frame in container.decode(video=0)]
        return {
            "codec": stream.codec_context.name,
            "pixels": stream.codec_context.pix_fmt,
            "size": f"{stream.width}x{stream.height}",
            "time_base": str(stream.time_base),
            "frames": len(pts),
            "pts": pts,
        }


def _graph(path: Path, command: Command) -> Any:
    import onnx

    model = onnx.load(str(path))
    return {
        "inputs": [_shape(value) for value in model.graph.input],
        "outputs": [_shape(value) for value in model.graph.output],
        "operators": dict(sorted(Counter(node.op_type for node in model.graph.node).items())),
        "metadata": sorted(one.key for one in model.metadata_props),
        "opset": [opset.version for opset in model.opset_import],
    }


def _shape(value: Any) -> str:
    kind = value.type.tensor_type
    return f"{value.name} {kind.elem_type} {[dim.dim_value for dim in kind.shape.dim]}"


READERS: dict[str, Callable[[Path, Command], Any]] = {
    ".jsonl": _rows,
    ".json": _document,
    ".csv": _table,
    ".txt": _lines_of,
    ".npz": _arrays,
    ".png": _picture,
    ".jpg": _picture,
    ".mp4": _video,
    ".onnx": _graph,
}
