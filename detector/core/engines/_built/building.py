"""Build the files that engines need. Each is built only once, unless it is damaged. One lock guards
the folder. store.py finds the files; its docstring explains their names and manifests."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.core import __version__
from detector.core.engines._built import proof, sealing
from detector.core.engines._built.store import (
    CURE,
    Artefact,
    choose_folder,
    description_key,
    find_exported,
    is_built,
    protect,
    read_kept,
    read_manifest,
    recipe,
    stem,
    temporary_folder,
    written_at,
)
from detector.core.errors import ModelError, OutputError
from detector.core.errors.guard import keep
from detector.core.errors.parsing import parse_json
from detector.core.errors.private import FILE_MODE, has_no_home, make_private_folder
from detector.core.errors.writing import (
    PRIVATE,
    has_permission,
    put_in_place,
    short_lived_folder,
    whole_file,
    write_whole,
)
from detector.core.models.base import Network

if TYPE_CHECKING:
    import onnx

LARGEST_MESSAGE = (1 << 31) - (1 << 24)  # bytes of weights; a protobuf message holds under 2 GiB
EXTERNAL_BYTES = 1024  # smaller tensors stay in the graph
LOCK = ".lock"


def export(network: Network, folder: str | Path | None = None) -> Artefact:
    """Write the network's graph to ``folder`` if it is not there yet, and set ``network.path``."""
    place = choose_folder(None if folder is None else str(folder))
    if (known := find_exported(network, place)) is not None:
        return known
    from detector.core.models.own_files import write_description

    write_description(network)
    graph, external = network.graph, None
    if _weight_bytes(graph) > LARGEST_MESSAGE:
        with _output_errors(place):
            graph, external = _separate_weights(network, place)
    data = graph.SerializeToString(deterministic=True)
    digest = hashlib.sha256(data).hexdigest()
    target = place / f"{stem(network)}-{digest[: proof.NAME_DIGITS]}.onnx"
    manifest = _make_manifest(network, digest, len(data))
    if external is not None:
        manifest["apart"] = external
    with _output_errors(place):
        artefact = protect(_export(target, data, manifest))
    network.path = artefact.path
    return artefact


def refuse_beyond_one_message(network: Network, doing: str, cure: str) -> None:
    """Raise ModelError if the weights exceed one protobuf message. ``doing``: what needs a single
    message; ``cure``: what the user can do."""
    if (size := _weight_bytes(network.graph)) > LARGEST_MESSAGE:
        raise ModelError(
            f"{network.name}: has {size / (1 << 30):.1f} GiB of weights, but {doing}, which holds "
            f"less than 2 GiB; {cure}"
        )


def _weight_bytes(model: onnx.ModelProto) -> int:
    """Return the weights' size in bytes, or for small networks a limit: 8 bytes per value."""
    limit = sum(8 * math.prod(tensor.dims) for tensor in model.graph.initializer)
    if limit <= LARGEST_MESSAGE:
        return int(limit)
    return sum(tensor.ByteSize() for tensor in model.graph.initializer)


def _separate_weights(network: Network, place: Path) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Write large weights to a file. Return a graph without them, and the file's manifest entry."""
    from onnx import TensorProto, helper

    model, graph = network.graph, network.graph.graph
    digest, size = hashlib.sha256(), 0
    tensors: list[onnx.TensorProto] = []
    for tensor in graph.initializer:
        length = len(tensor.raw_data)
        if length < EXTERNAL_BYTES:
            tensors.append(tensor)
            continue
        digest.update(tensor.raw_data)
        entry = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        entry.data_location = TensorProto.EXTERNAL
        for key, value in (("offset", size), ("length", length)):
            entry.external_data.add(key=key, value=str(value))
        tensors.append(entry)
        size += length
    target = place / f"{stem(network)}-{digest.hexdigest()[: proof.NAME_DIGITS]}.bin"
    for entry in tensors:
        if entry.data_location == TensorProto.EXTERNAL:
            entry.external_data.add(key="location", value=target.name)
    make_private_folder(place)
    with _locked(place):
        if proof.why_not_content(target, digest.hexdigest()) is not None:
            _clear_path(target)
            with (
                whole_file(target, CURE, ours=True, private=True) as temporary,
                temporary.open("wb") as file,
            ):
                for tensor in graph.initializer:
                    if len(tensor.raw_data) >= EXTERNAL_BYTES:
                        file.write(tensor.raw_data)
    keep("a file of the engines' folder", target)
    light = helper.make_graph(
        graph.node,
        graph.name,
        graph.input,
        graph.output,
        initializer=tensors,
        value_info=graph.value_info,
    )
    external = helper.make_model(
        light,
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
    )
    external.metadata_props.extend(model.metadata_props)
    return external, {"file": target.name, "sha256": digest.hexdigest()}


def build_once(
    folder: Path,
    stem: str,
    suffix: str,
    key: Mapping[str, Any],
    build: Callable[[Path], Mapping[str, Any] | None],
) -> Artefact:
    """Return the file for ``key``. If the file is missing, call ``build(path)`` to make it.

    Concurrent runs wait for each other. ``build`` returns facts for the manifest, with lines for
    the user under "notes". ``key``: everything that the file depends on, as JSON values. Raises
    OutputError, and the errors of ``build``.
    """
    key = json.loads(json.dumps(key, sort_keys=True))
    target = folder / f"{stem}-{proof.key_digest(key)[: proof.NAME_DIGITS]}{suffix}"
    with _output_errors(folder):
        if is_built(target, key):
            return protect(Artefact(str(target), False, ()))
        make_private_folder(folder)
        with _locked(folder):
            if is_built(target, key):
                return protect(Artefact(str(target), False, ()))
            notes = _why_rebuilt(folder, stem, target, key)
            _build(target, key, build)
            if (unstored := _describe_unstored_key(folder)) is not None:
                notes = (*notes, unstored)
    return protect(Artefact(str(target), True, notes))


def _describe_unstored_key(folder: Path) -> str | None:
    why = sealing.why_key_not_stored()
    if why is None or (temporary_folder.cache_info().currsize and folder == temporary_folder()):
        return None
    return (
        f"{proof.key_path()}: cannot store the key that proves who built a file ({why}), so the "
        "next run builds again; set XDG_CACHE_HOME to a folder that you can write"
    )


def rewrite(folder: Path, name: str, made: Callable[[dict[str, Any] | None], bytes]) -> Path:
    """Atomically replace a JSON object that has a proof (store.py). ``made`` gets the old object
    (None if no valid file exists) and returns the new content."""
    target = folder / name
    with _output_errors(folder):
        make_private_folder(folder)
        with _locked(folder):
            _write_document(target, parse_json(made(read_kept(folder, name)), target))
    return target


def write_sealed(path: Path, content: bytes) -> None:
    _clear_path(path)
    write_whole(path, content, CURE, ours=True, private=True)
    digest = hashlib.sha256(content).hexdigest()
    _write_document(path.with_name(f"{path.name}.json"), {"file_sha256": digest})


def _build(
    target: Path, key: Mapping[str, Any], build: Callable[[Path], Mapping[str, Any] | None]
) -> None:
    with short_lived_folder(target.parent / f"{PRIVATE}{secrets.token_hex(8)}") as place:
        made, start = place / target.name, time.perf_counter()
        facts = dict(build(made) or {})
        seconds = time.perf_counter() - start
        manifest = {
            "schema": 1,
            "made_by": f"detect-video {__version__}",
            "key": key,
            "notes": facts.pop("notes", []),
            "facts": facts,
            "build_s": round(seconds, 3),
            "file_sha256": proof.file_digest(made),
            "file_bytes": made.stat().st_size,
        }
        made.chmod(FILE_MODE)
        put_in_place(made, target)
    _write_document(target.with_suffix(".json"), manifest)


def _write_document(path: Path, document: Mapping[str, Any]) -> None:
    text = json.dumps(sealing.seal(path.name, document), indent=2) + "\n"
    _clear_path(path)
    write_whole(path, text.encode(), CURE, ours=True, private=True)


def _clear_path(path: Path) -> None:
    """Remove a link, pipe or socket: another account may have put a link to a user's file here."""
    if path.is_symlink() or path.is_fifo() or path.is_socket():
        path.unlink()


def _why_rebuilt(folder: Path, stem: str, target: Path, key: Mapping[str, Any]) -> tuple[str, ...]:
    if os.path.lexists(target):
        reason = (
            proof.why_not(target, read_manifest(target)) or "its manifest belongs to another file"
        )
        return (f"{target}: not used: {reason}; built again",)
    known = re.compile(re.escape(stem) + "-[0-9a-f]{12}" + re.escape(target.suffix))
    others = [path for path in folder.glob(f"*{target.suffix}") if known.fullmatch(path.name)]
    if not others:
        return ()
    last = max(others, key=written_at)
    before = read_manifest(last).get("key", {})
    changed = [
        f"{name} {before.get(name)} is now {key.get(name)}"
        for name in sorted({*before, *key})
        if before.get(name) != key.get(name)
    ]
    return (f"{last.name} does not fit: {'; '.join(changed) or 'it has no manifest'}; built again",)


def _export(target: Path, data: bytes, manifest: dict[str, Any]) -> Artefact:
    if _is_whole(target, manifest):  # check before locking, which fails in a read-only folder
        return Artefact(str(target), False, ())
    make_private_folder(target.parent)
    with _locked(target.parent):
        if _is_whole(target, manifest):  # another run built it while this one waited
            return Artefact(str(target), False, ())
        notes = _why_broken(target, manifest)
        _clear_path(target)
        write_whole(target, data, CURE, ours=True, private=True)
        _write_document(target.with_suffix(".json"), manifest)
    return Artefact(str(target), True, notes)


def _make_manifest(network: Network, digest: str, size: int) -> dict[str, Any]:
    from detector.core.models.graph.build import peak_bytes
    from detector.core.models.graph.halves import sensitive_nodes

    graph = network.graph.graph
    key, content = network.description or (None, None)
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
        "peak_bytes": peak_bytes(network.graph),
        "sensitive": sorted(sensitive_nodes(network.graph)) if network.precision == "fp32" else [],
        "recipe": recipe(network),
        "description_key": description_key(key),
        "description": content,
    }


def _is_whole(target: Path, manifest: dict[str, Any]) -> bool:
    stored = read_manifest(target)
    if proof.without_proof(stored) != manifest:
        return False
    if proof.why_not(target, stored) is None:
        return True
    same = proof.why_not_content(target, manifest["file_sha256"]) is None
    return same and not has_permission(target.parent)


def _why_broken(target: Path, manifest: dict[str, Any]) -> tuple[str, ...]:
    if not os.path.lexists(target):
        return ()
    stored, digest = read_manifest(target), manifest["file_sha256"]
    content = proof.why_not_content(target, digest)
    if content is None and stored.get("file_sha256") == digest:
        return ()
    reason = proof.why_not(target, stored) or content or "its manifest belongs to another file"
    return (f"{target}: not used: {reason}; built again",)


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(place / LOCK, flags, FILE_MODE)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file closes, or the process ends
        for leftover in place.glob(f"{PRIVATE}*"):  # from killed processes
            shutil.rmtree(leftover, ignore_errors=True)
            with suppress(OSError):
                leftover.unlink()
        yield
    finally:
        os.close(file)


@contextmanager
def _output_errors(place: Path) -> Iterator[None]:
    if has_no_home(place):
        raise OutputError(f"{place}: the home folder is unknown; set HOME, or {CURE}")
    try:
        yield
    except OSError as exc:
        raise OutputError(
            f"{place}: the graph cannot be written there: {exc.strerror or exc}; {CURE}"
        ) from exc
