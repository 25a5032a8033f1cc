"""Find files that were built for the engines. building.py writes them.

Every file has a manifest next to it. The manifest has the digest of the file, and a proof that a
run of this account wrote it (``proof``). A file is used only if digest and proof are right
(``proof.why_not``), so another account that writes to the folder can at most make us build again.
Besides, we use no file or folder that another account could change.

    yolov4-tiny-416x416-b1-0123456789ab.onnx            a graph; 12 digits of its own sha256
    yolov4-tiny-416x416-b1-0123456789ab.json            its manifest, with the digest of its sources
    yolov4-tiny-416x416-b1-trt-fp16-ab0123456789.plan   an engine's own file; 12 digits of the
                                                        sha256 of all facts that it depends on
    yolov4-tiny-416x416-b1-trt-fp16-ab0123456789.json   its manifest, with these facts as its "key"
"""

from __future__ import annotations

import atexit
import glob
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from detector.core import __version__, models
from detector.core.engines._built import proof
from detector.core.errors import OutputError
from detector.core.errors.guard import keep
from detector.core.errors.private import has_no_home, read_own, user_cache, who_else_may_write
from detector.core.errors.writing import has_permission
from detector.core.models.base import Network

if TYPE_CHECKING:
    import onnx

CURE = "give --engines-dir DIR"


class Artefact(NamedTuple):
    path: str
    built: bool  # False: an intact file existed already
    notes: tuple[str, ...]  # lines for the user


def default_folder() -> Path:
    """Return ``engines/`` of our checkout if it is writable, otherwise that of the user's cache."""
    folder = Path(__file__).parents[4] / "engines"
    marks = folder.parent / "setup.py", folder / "README.md"
    is_checkout = all(mark.is_file() for mark in marks)
    return folder if is_checkout and has_permission(folder) else user_cache() / "engines"


def choose_folder(given: str | None) -> Path:
    """Return ``--engines-dir``, or the default folder if it is not given. If other accounts can
    write there, return a folder in the user's cache instead, or a temporary folder."""
    preferred = _preferred_folder(given)
    if who_else_may_write(preferred) is None:
        return preferred
    own = user_cache() / "engines"
    if not has_no_home(own) and who_else_may_write(own) is None and is_writable(own):
        return own
    return temporary_folder()


def why_elsewhere(given: str | None) -> str | None:
    """Return a line for the user if other accounts can write to the preferred folder, or None."""
    preferred = _preferred_folder(given)
    if (others := who_else_may_write(preferred)) is None:
        return None
    return (
        f"{preferred}: {others}, so built files are kept in {choose_folder(given)} instead; give "
        "--engines-dir a folder that only you can write"
    )


def _preferred_folder(given: str | None) -> Path:
    return Path(given) if given else default_folder()


def is_writable(folder: Path) -> bool:
    """Return whether a file can be created in ``folder`` or in its nearest existing parent."""
    if has_no_home(folder):
        return False
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            return True
    except OSError:
        return False


@cache
def temporary_folder() -> Path:
    """Return a folder that is removed when this process ends. Raises OutputError."""
    try:
        folder = tempfile.mkdtemp(prefix="detect-video-engines-")
    except OSError as exc:
        raise OutputError(
            f"neither {default_folder()} nor a temporary folder can be written: {exc}; {CURE}"
        ) from exc
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def read_kept(folder: Path, name: str) -> dict[str, Any] | None:
    """Return a stored JSON object whose proof is valid; None if there is none."""
    document, reason = _read_document(folder / name)
    return document if reason is None else None


def why_not_kept(folder: Path, name: str) -> str | None:
    """Return the reason if ``read_kept`` ignores an existing file, for the user; otherwise None."""
    path = folder / name
    reason = _read_document(path)[1] if os.path.lexists(path) else None
    return None if reason is None else f"{path}: not used: {reason}"


def _read_document(path: Path) -> tuple[dict[str, Any], str | None]:
    try:
        document = proof.as_object(read_own(path, proof.DOCUMENT_BYTES), path)
    except OSError as error:
        return {}, proof.describe_error(error)
    return document, proof.why_not_document(path, document)


def read_sealed(path: Path) -> bytes | None:
    manifest = read_kept(path.parent, f"{path.name}.json") or {}
    if proof.why_not_content(path, manifest.get("file_sha256")) is not None:
        return None
    return path.read_bytes()


def find_exported(network: Network, folder: Path) -> Artefact | None:
    """Return the network's graph if ``Graphs.load`` has just checked it in ``folder``."""
    known = network.path if network.peak_bytes is not None else None
    if known is None or Path(known).parent != folder:
        return None
    return protect(Artefact(known, False, ()))


def find_built(
    folder: Path, suffix: str, fits: Callable[[Mapping[str, Any]], bool]
) -> Artefact | None:
    for path in sorted(folder.glob(f"*{suffix}"), key=written_at, reverse=True):
        key = read_manifest(path).get("key")
        if isinstance(key, dict) and fits(key) and is_built(path, key):
            return protect(Artefact(str(path), False, ()))
    return None


def written_at(path: Path) -> float:
    """Return when a file was written; 0 if that is unknown, such as for a dangling link."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def protect(made: Artefact) -> Artefact:
    """Register a file that the command reads, so that no output of the command overwrites it."""
    keep("a file of the engines' folder", made.path, Path(made.path).with_suffix(".json"))
    return made


def read_manifest(path: str | Path) -> dict[str, Any]:
    """Return the manifest next to a built file, {} if unreadable. This does not check its proof."""
    manifest, _ = _read_document(Path(path).with_suffix(".json"))
    return manifest if isinstance(manifest.get("key", {}), dict) else {}


def is_built(target: Path, key: Mapping[str, Any]) -> bool:
    manifest = read_manifest(target)
    return bool(manifest.get("key") == key) and proof.why_not(target, manifest) is None


def stem(network: Network) -> str:
    """Return the start of the names of a network's files: name, size, batch and precision."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", network.name).strip("._-")[:80] or "model"
    precision = "" if network.precision == "fp32" else f"-{network.precision}"
    return f"{name}-{network.input.width}x{network.input.height}-b{network.batch}{precision}"


@dataclass(frozen=True, slots=True)
class Graphs:
    folder: Path

    def load(self, network: Network) -> bool:
        """Use the network's stored graph if it has a valid proof. Return whether it is used."""
        wanted = recipe(network)
        with suppress(OSError):
            for path in sorted(self.folder.glob(f"{glob.escape(stem(network))}-*.onnx")):
                manifest = read_manifest(path)
                if manifest.get("recipe") == wanted and _use_graph(network, path, manifest):
                    keep("a file of the engines' folder", path, path.with_suffix(".json"))
                    return True
        return False

    def find_description(self, name: str, key: Any) -> Any:
        wanted = description_key(key)
        for path in sorted(self.folder.glob(f"{glob.escape(name)}-*.onnx")):
            manifest = read_kept(self.folder, f"{path.stem}.json") or {}
            if manifest.get("description_key") == wanted:
                return manifest.get("description")
        return None


def description_key(key: Any) -> str:
    return proof.key_digest({"code": code_of(models.__path__[0]), "key": key})


def _use_graph(network: Network, path: Path, manifest: Mapping[str, Any]) -> bool:
    if proof.why_not(path, manifest) is not None:
        return False
    try:
        shapes = [tuple(map(int, shape)) for shape in manifest["output_shapes"]]
        macs, peak = int(manifest["macs"]), int(manifest["peak_bytes"])
        sensitive = set(map(str, manifest["sensitive"]))
    except (KeyError, TypeError, ValueError):
        return False
    network.graph, network.path, network.peak_bytes = partial(_load, path), str(path), peak
    network.output_shapes, network.macs = shapes, macs
    if network.precision == "fp32":  # else keep the sensitive nodes of the fp32 graph
        network.sensitive = sensitive
    return True


def _load(path: Path) -> onnx.ModelProto:
    import onnx

    return onnx.load(path, load_external_data=False)


def recipe(network: Network) -> str:
    """Return a digest of everything that a front end's graph depends on, including its code."""
    size = network.input
    parts = [
        code_of(models.__path__[0]),
        network.name,
        network.family,
        network.sha256,
        network.random_seed,
        [size.height, size.width, size.geometry, size.stride, size.pad_value],
        network.batch,
        network.precision,
        list(network.names),
        network.needs_nms,
        network.parameters,
        *filter(None, [network.made_with]),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@cache
def code_of(folder: str) -> str:
    """Return an identifier of the code in a folder. It is made from the version, file sizes and
    file times, since code in a checkout changes without a new version."""
    files = sorted(Path(folder).rglob("*.py"))
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps([__version__, facts]).encode()).hexdigest()
