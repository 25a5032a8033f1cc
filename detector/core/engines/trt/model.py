"""Front end for plans (.trt, .engine, .plan) that other programs built with TensorRT or TensorRT
for RTX. Files next to a plan may describe outputs (.cfg), classes (.names) or both (.yaml)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detector.core.engines._ready_probe import refuse_wrong_reading
from detector.core.engines.trt import driver
from detector.core.engines.trt.plan_file import (
    PlanError,
    deserialize,
    edition_of,
    make_log,
    split,
    tensors,
)
from detector.core.errors import EngineError, ModelError
from detector.core.models.base import FrontEnd, InputRules, ModelRequest, Network
from detector.core.models.layouts.plans import PlanTensor, ReadyMade
from detector.core.models.ready_made import (
    AS_ONNX,
    class_names_of,
    find_sibling,
    head_of,
    known_names,
    metadata_of,
)

if TYPE_CHECKING:
    from detector.core.models.formats.onnx.metadata import Metadata


STRIDE = 32  # default, if no header states the stride


def read(request: ModelRequest) -> Network:
    import onnx

    path, batch = request.path, request.batch
    data = _bytes(path)
    try:
        header, plan = split(data)
    except PlanError as exc:
        raise ModelError(f"{path}: {exc}") from exc
    metadata = metadata_of(path, header or {})
    cfg = request.cfg or find_sibling(path, ".cfg")
    known = known_names(path, request.names, request.class_names, metadata)
    plan_tensors = _tensors(path, plan, request.trusted, request.device)
    height, width = _input_size(path, plan_tensors, request.size, metadata)
    _check_batch(path, plan_tensors, batch)
    outputs = [tensor for tensor in plan_tensors if not tensor.is_input]
    ready_made = ReadyMade(
        path, outputs, height, width, batch, cfg, known, metadata.finished, metadata.description
    )
    match = head_of(ready_made)
    bound = match.bound
    class_names, warnings = class_names_of(path, bound, known)
    head, dense = bound.heads(len(class_names))
    shapes = {tensor.name: (batch, *tensor.shape[1:]) for tensor in outputs}
    others = [name for name in shapes if name not in bound.outputs]
    network = Network(
        name=path.stem,
        family=f"plan ({match.layout})",
        graph=onnx.ModelProto(),
        input=InputRules(height, width, match.geometry, metadata.stride or STRIDE, match.pad_value),
        batch=batch,
        output_shapes=[shapes[name] for name in bound.outputs],
        head=head,
        dense=dense,
        names=tuple(class_names),
        sha256=hashlib.sha256(data).hexdigest(),
        needs_nms=bound.needs_nms,
        watched=AS_ONNX,
        plan=str(path),
        warnings=[*warnings, *([f"unused outputs: {', '.join(others)}"] if others else [])],
        details={"plan_outputs": list(bound.outputs)},
    )
    built_by = edition_of(plan)
    assert built_by is not None
    refuse_wrong_reading(path, network, match, metadata, built_by.engine, request.device)
    return network


FRONT_END = FrontEnd(read, self_describing=False)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ModelError(f"{path}: cannot be read: {exc.strerror}") from exc


def _tensors(path: Path, plan: bytes, trusted: bool, device: str) -> list[PlanTensor]:
    """Read the tensors with the library that built the plan."""
    edition = edition_of(plan)
    assert edition is not None  # ``split`` has checked it
    about_plan = edition.describe(plan)
    if reason := driver.absent():
        raise EngineError(f"{path}: reading {about_plan} needs an NVIDIA GPU: {reason}")
    try:
        gpu = driver.gpu_of(device)
    except driver.DriverError as exc:
        raise EngineError(f"{path}: {about_plan} runs on a GPU: {exc}") from exc
    try:
        log = make_log(edition.trt)
    except ImportError as exc:
        raise EngineError(
            f"{path}: {about_plan}: only {edition.title} can read it ({exc}); {edition.install}"
        ) from exc
    try:
        with driver.current(gpu.index):
            runtime, engine = deserialize(edition, plan, log, gpu, host_code=trusted)
            plan_tensors = tensors(edition.trt, engine)
            del engine, runtime  # must happen in this order, while their GPU is current
    except driver.DriverError as exc:
        raise EngineError(f"{path}: {device}: {exc}") from exc
    except PlanError as exc:
        raise ModelError(f"{path}: {exc}; build it again on this machine") from exc
    return plan_tensors


def _input_size(
    path: Path, plan_tensors: Sequence[PlanTensor], size: tuple[int, int] | None, metadata: Metadata
) -> tuple[int, int]:
    """Return (height, width). Raises ModelError unless the input takes pictures of that size."""
    inputs = [tensor for tensor in plan_tensors if tensor.is_input]
    listed = ", ".join(map(str, plan_tensors))
    shape = inputs[0].shape if len(inputs) == 1 else ()
    if (
        len(shape) != 4
        or 3 not in (shape[1], shape[3])
        or inputs[0].dtype not in ("uint8", "float32", "float16")
    ):
        raise ModelError(
            f"{path}: expected one input of RGB pictures, [B, 3, H, W] or [B, H, W, 3]; the plan "
            f"has {listed}"
        )
    own = (shape[2], shape[3]) if shape[1] == 3 else (shape[1], shape[2])
    if -1 in own:
        raise ModelError(f"{path}: its input size is open ({inputs[0]}); build it for one size")
    if metadata.imgsz is not None and metadata.imgsz != own:
        height, width = metadata.imgsz
        raise ModelError(
            f"{path}: its header says {width}x{height}, but its input is {own[1]}x{own[0]}; the "
            "header belongs to another plan"
        )
    if size is not None and size != own:
        raise ModelError(
            f"{path}: built for {own[1]}x{own[0]}, not for --size {size[1]}x{size[0]}; omit --size"
        )
    return own


def _check_batch(path: Path, plan_tensors: Sequence[PlanTensor], batch: int) -> None:
    input_tensor = next(tensor for tensor in plan_tensors if tensor.is_input)
    fixed = input_tensor.shape[0]
    ranges = [(smallest[0], largest[0]) for smallest, _, largest in input_tensor.profiles] or [
        (fixed, fixed)
    ]
    if not any(low <= batch <= high for low, high in ranges):
        allowed = " or ".join(
            f"{low} to {high}" if low != high else str(low) for low, high in ranges
        )
        raise ModelError(
            f"{path}: built for batch {allowed}, not for {batch}: give --batch {ranges[0][1]}"
        )
