"""Built files of the engines, with manifests and one lock: made once, used again, rebuilt when damaged.

engines/yolov4-tiny-416x416-b1-0123456789ab.onnx    a graph; 12 digits of its own sha256
engines/yolov4-tiny-416x416-b1-0123456789ab.json    the manifest: from what it was made
engines/yolov4-tiny-416x416-b1-trt-fp16-ab0123456789.plan   a file that an engine built; 12 digits of its key's sha256
engines/yolov4-tiny-416x416-b1-trt-fp16-ab0123456789.json   the manifest with the whole key
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from detector import __version__
from detector.errors import OutputError
from detector.errors.writing import write_whole
from detector.models.base import Network

CURE = "give --engines-dir DIR"
LOCK = ".lock"
READ_BYTES = 1 << 20


class Artefact(NamedTuple):
    path: str
    built: bool  # False: it was there already, whole
    notes: tuple[str, ...]  # lines for the user


def default_folder() -> Path:
    """``engines/`` of the checkout that the package runs from; of an installed package, the user's cache."""
    checkout = Path(__file__).parents[2]
    place = checkout / "engines"
    if (
        (checkout / "setup.py").is_file()
        and (place / "README.md").is_file()
        and os.access(place, os.W_OK)
    ):
        return place
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "detect-video" / "engines"


def export(network: Network, folder: str | Path | None = None) -> Artefact:
    """The network's graph as a file in ``folder``, where it was not yet; sets ``network.path``.

    The name holds the graph's own digest, so another model, size, batch or version of this program never gets a
    stale file. Two runs that start together build it once. Raises OutputError.
    """
    data = network.graph.SerializeToString(deterministic=True)
    digest = hashlib.sha256(data).hexdigest()
    place = Path(folder) if folder is not None else default_folder()
    target = place / f"{stem(network)}-{digest[:12]}.onnx"
    manifest = _manifest(network, digest, len(data))
    with _written(place):
        artefact = _export(target, data, manifest)
    network.path = artefact.path
    return artefact


def built(
    folder: Path,
    stem: str,
    suffix: str,
    key: Mapping[str, Any],
    build: Callable[[Path], Mapping[str, Any] | None],
) -> Artefact:
    """The file that ``build(path)`` makes, built once for a key. ``build`` returns facts for the manifest.

    ``key``: JSON values that say all that the file depends on. Where a file of this stem was built for another key,
    or is damaged, a note says what differs. Two runs that start together build once: the second waits for the first.
    Raises OutputError, and whatever ``build`` raises, with nothing left behind.
    """
    key = json.loads(json.dumps(key, sort_keys=True))
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    target = folder / f"{stem}-{digest[:12]}{suffix}"
    with _written(folder):
        if _is_built(target, key):
            return Artefact(str(target), False, ())
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            if _is_built(target, key):
                return Artefact(str(target), False, ())
            notes = _why_anew(folder, stem, target, key)
            _build(target, key, build)
    return Artefact(str(target), True, notes)


def change(folder: Path, name: str, made: Callable[[bytes | None], bytes]) -> Path:
    """Rewrites a small file from its content (None: it is not there), whole or not at all. Two that come together
    both count: the second sees what the first wrote. Raises OutputError."""
    target = folder / name
    with _written(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            before = target.read_bytes() if target.exists() else None
            write_whole(target, made(before), CURE)
    return target


def standing(
    folder: Path, suffix: str, fits: Callable[[Mapping[str, Any]], bool]
) -> Artefact | None:
    """A whole file that was built before for a key that ``fits``; the newest of several, None where there is none."""
    files = sorted(folder.glob(f"*{suffix}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files:
        key = manifest_of(path).get("key")
        if isinstance(key, dict) and fits(key) and _is_built(path, key):
            return Artefact(str(path), False, ())
    return None


def manifest_of(path: str | Path) -> dict[str, Any]:
    """The manifest beside a built file; empty where there is none that can be read."""
    try:
        found = json.loads(Path(path).with_suffix(".json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _build(
    target: Path, key: Mapping[str, Any], build: Callable[[Path], Mapping[str, Any] | None]
) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as place:
        made, start = Path(place) / target.name, time.perf_counter()
        facts = dict(build(made) or {})
        seconds = time.perf_counter() - start
        with made.open("rb+") as file:
            os.fsync(file.fileno())
        manifest = {
            "schema": 1,
            "made_by": f"detect-video {__version__}",
            "key": key,
            "facts": facts,
            "build_s": round(seconds, 3),
            "file_sha256": _digest(made),
            "file_bytes": made.stat().st_size,
        }
        os.replace(made, target)
    _write_manifest(target, manifest)


def _write_manifest(target: Path, manifest: Mapping[str, Any]) -> None:
    text = json.dumps(manifest, indent=2) + "\n"
    write_whole(target.with_suffix(".json"), text.encode(), CURE)


def _is_built(target: Path, key: Mapping[str, Any]) -> bool:
    manifest = manifest_of(target)
    try:
        return bool(manifest.get("key") == key) and _digest(target) == manifest.get("file_sha256")
    except OSError:
        return False


def _why_anew(folder: Path, stem: str, target: Path, key: Mapping[str, Any]) -> tuple[str, ...]:
    """What the user should know before a build that seemed to have been done: damage, or what changed since."""
    if target.exists():
        return (f"{target}: damaged or without its manifest, not used; built again",)
    known = re.compile(re.escape(stem) + "-[0-9a-f]{12}" + re.escape(target.suffix))
    others = [path for path in folder.glob(f"*{target.suffix}") if known.fullmatch(path.name)]
    if not others:
        return ()
    last = max(others, key=lambda path: path.stat().st_mtime)
    before = manifest_of(last).get("key", {})
    changed = [
        f"{name} {before.get(name)} is now {key.get(name)}"
        for name in sorted({*before, *key})
        if before.get(name) != key.get(name)
    ]
    return (f"{last.name} does not fit: {'; '.join(changed) or 'it has no manifest'}; built again",)


def _export(target: Path, data: bytes, manifest: dict[str, Any]) -> Artefact:
    if _is_whole(target, manifest):  # also where the folder can only be read
        return Artefact(str(target), False, ())
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent):
        if _is_whole(target, manifest):  # another run built it while this one waited
            return Artefact(str(target), False, ())
        notes = (
            (f"{target}: damaged or without its manifest, built again",)
            if _is_broken(target, manifest)
            else ()
        )
        write_whole(target, data, CURE)
        _write_manifest(target, manifest)
    return Artefact(str(target), True, notes)


def stem(network: Network) -> str:
    """How the files of a network's graph begin: name, size, batch and precision."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", network.name).strip("._-")[:80] or "model"
    precision = "" if network.precision == "fp32" else f"-{network.precision}"
    return f"{name}-{network.input.width}x{network.input.height}-b{network.batch}{precision}"


def _manifest(network: Network, digest: str, size: int) -> dict[str, Any]:
    graph = network.graph.graph
    return {
        "schema": 1,
        "name": network.name,
        "family": network.family,
        "made_by": f"detect-video {__version__}",
        "file_sha256": digest,
        "file_bytes": size,
        "sources_sha256": network.sha256,
        "random_seed": network.random_seed,
        "precision": network.precision,
        "batch": network.batch,
        "input_shape": list(network.input_shape),
        "output_shapes": [list(shape) for shape in network.output_shapes],
        "inputs": [info.name for info in graph.input],
        "outputs": [info.name for info in graph.output],
        "opset": max(entry.version for entry in network.graph.opset_import),
        "parameters": network.parameters,
        "macs": network.macs,
    }


def _is_whole(target: Path, manifest: dict[str, Any]) -> bool:
    """The manifest is the one that would be written, and the file is what it says."""
    try:
        found = json.loads(target.with_suffix(".json").read_bytes())
        return bool(found == manifest) and _digest(target) == manifest["file_sha256"]
    except (OSError, ValueError):
        return False


def _is_broken(target: Path, manifest: dict[str, Any]) -> bool:
    """Whether a file is there that is not what its name says. One whose manifest tells of the same graph under another
    ``--family``, or from another file of the same network, is whole."""
    try:
        known = json.loads(target.with_suffix(".json").read_bytes()).get("file_sha256")
        return bool(known != manifest["file_sha256"] or _digest(target) != known)
    except (OSError, ValueError, AttributeError):
        return target.exists()


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    with (place / LOCK).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # given back when the file closes, or the process dies
        yield


@contextmanager
def _written(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise OutputError(
            f"{place}: the graph cannot be written there: {exc.strerror or exc}; {CURE}"
        ) from exc
