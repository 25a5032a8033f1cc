"""Read the stored weights of each convolution and fold them into one weight and one bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from detector.core.errors import ModelError
from detector.core.models.formats.checkpoint.contents import BUFFERS, Contents
from detector.core.models.formats.yolo.architecture import Architecture, ConvStep

EPSILON = 1e-3  # of YOLOv5's and YOLOv7's batch norms, unless a checkpoint's module states another

Floats = NDArray[np.float64]


class FoldedConv(NamedTuple):
    weight: Floats  # [out, in / groups, k, k]
    bias: Floats  # [out]


class Numbers(Protocol):
    """A network's weights, from a file or random."""

    def filter(self, step: ConvStep) -> FoldedConv: ...


@dataclass(slots=True)
class StoredNumbers:
    contents: Contents
    read: set[str] = field(default_factory=set)

    def filter(self, step: ConvStep) -> FoldedConv:
        with np.errstate(all="ignore"):  # the result is checked below
            folded = self._fold(step)
        if not (np.isfinite(folded.weight).all() and np.isfinite(folded.bias).all()):
            raise ModelError(
                f"{self.contents.origin}: the weights of {step.node} are not finite numbers: the "
                "file is damaged or the training diverged"
            )
        return folded

    def _fold(self, step: ConvStep) -> FoldedConv:
        match step.form:
            case "normed":
                self._check_settings(f"{step.path}.conv", step, step.kernel, step.padding)
                return self._fold_norm(f"{step.path}.conv", f"{step.path}.bn", step.stored_shape)
            case "rep":
                return self._fold_rep(step)
            case "implicit":
                return self._fold_implicit(step)
            case _:
                return self._read_plain(step.path, step.stored_shape)

    def _fold_norm(self, conv: str, norm: str, shape: tuple[int, ...]) -> FoldedConv:
        """Fold batch norm into a convolution. In some files, it is folded already."""
        if (
            f"{norm}.weight" not in self.contents.tensors
            and f"{conv}.bias" in self.contents.tensors
        ):
            return self._read_plain(conv, shape)
        weight = self._read_tensor(f"{conv}.weight", shape)
        factor, bias = self._read_scale_and_shift(norm, shape[0])
        if f"{conv}.bias" in self.contents.tensors:
            bias = bias + factor * self._read_tensor(f"{conv}.bias", shape[:1])
        return FoldedConv(weight * factor[:, None, None, None], bias)

    def _read_scale_and_shift(self, norm: str, channels: int) -> tuple[Floats, Floats]:
        """Return (factor, shift) of a batch norm, which computes factor * x + shift."""
        parts = ("weight", "bias", "running_mean", "running_var")
        weight, bias, mean, variance = (
            self._read_tensor(f"{norm}.{part}", (channels,)) for part in parts
        )
        factor = weight / np.sqrt(variance + self._read_epsilon(norm))
        return factor, bias - mean * factor

    def _read_epsilon(self, norm: str) -> float:
        module = self.contents.modules.get(norm)
        epsilon = module.settings.get("eps", EPSILON) if module else EPSILON
        if not isinstance(epsilon, float) or not 0 < epsilon < 1:
            raise ModelError(
                f"{self.contents.origin}: eps of {norm} is not a number between 0 and 1; the file "
                "is damaged: download it again"
            )
        return epsilon

    def _read_plain(self, path: str, shape: tuple[int, ...]) -> FoldedConv:
        return FoldedConv(
            self._read_tensor(f"{path}.weight", shape), self._read_tensor(f"{path}.bias", shape[:1])
        )

    def _fold_rep(self, step: ConvStep) -> FoldedConv:
        """Fold the 1x1 branch and the identity branch into the centre of the 3x3 kernel."""
        shape = step.stored_shape
        if f"{step.node}.weight" in self.contents.tensors:  # already folded in the file
            return self._read_plain(step.node, shape)
        dense, point = f"{step.path}.rbr_dense", f"{step.path}.rbr_1x1"
        self._check_settings(f"{dense}.0", step, 3, 1)
        self._check_settings(f"{point}.0", step, 1, 0)
        weight, bias = self._fold_norm(f"{dense}.0", f"{dense}.1", shape)
        point_weight, point_bias = self._fold_norm(f"{point}.0", f"{point}.1", (*shape[:2], 1, 1))
        weight[:, :, 1:2, 1:2] += point_weight
        bias = bias + point_bias
        if step.identity:
            factor, shift = self._read_scale_and_shift(f"{step.path}.rbr_identity", shape[0])
            outs = np.arange(shape[0])
            # Output i reads input i, which is number i % shape[1] in its group.
            weight[outs, outs % shape[1], 1, 1] += factor
            bias = bias + shift
        return FoldedConv(weight, bias)

    def _fold_implicit(self, step: ConvStep) -> FoldedConv:
        """Return V and c with V x + c = multiply * (W (x + add) + b), exact for 1x1 kernels."""
        weight, bias = self._read_plain(step.path, step.stored_shape)
        added, multiplied = step.implicit_names
        if added not in self.contents.tensors:
            return FoldedConv(weight, bias)
        outs, ins = step.stored_shape[:2]
        add = self._read_tensor(added, (1, ins, 1, 1)).reshape(ins)
        multiply = self._read_tensor(multiplied, (1, outs, 1, 1)).reshape(outs)
        bias = (bias + weight[:, :, 0, 0] @ add) * multiply
        return FoldedConv(weight * multiply[:, None, None, None], bias)

    def _read_tensor(self, name: str, shape: tuple[int, ...]) -> Floats:
        origin = self.contents.origin
        tensor = self.contents.tensors.get(name)
        if tensor is None:
            raise ModelError(
                f"{origin}: lacks the tensor {name}; are these the weights of another network?"
            )
        if tensor.shape != shape:
            raise ModelError(
                f"{origin}: tensor {name} is {_format_shape(tensor.shape)}, but the description "
                f"needs {_format_shape(shape)}; is it another network, or one with other classes?"
            )
        self.read.add(name)
        try:
            return tensor.array().astype(np.float64)
        except ValueError as exc:
            raise ModelError(
                f"{origin}: tensor {name} is damaged: {exc}; download the file again"
            ) from exc

    def _check_settings(self, path: str, step: ConvStep, kernel: int, padding: int) -> None:
        module = self.contents.modules.get(path)
        if module is None:
            return
        expected = {
            "kernel_size": (kernel, kernel),
            "stride": (step.stride, step.stride),
            "padding": (padding, padding),
            "dilation": (1, 1),
            "groups": step.groups,
        }
        for key, value in expected.items():
            if (stored := module.settings.get(key, value)) != value:
                raise ModelError(
                    f"{self.contents.origin}: {path} has {key} {ascii(stored)[:40]}, but the "
                    f"description makes it {value}: this block was changed; export the model to "
                    "ONNX instead"
                )

    def check_all_read(self, architecture: Architecture) -> None:
        """Raise ModelError for a tensor that no layer read, unless it is used only in training."""
        for_training = tuple(
            f"{step.path}." for step in architecture.convolutions if step not in architecture.needed
        )
        for name in self.contents.tensors:
            if (
                name not in self.read
                and not BUFFERS.fullmatch(name)
                and not name.startswith(for_training)
            ):
                raise ModelError(
                    f"{self.contents.origin}: tensor {ascii(name)[:80]} belongs to no layer of the "
                    "description; are these the weights of another network?"
                )


def _format_shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "one number"


class StoredAnchors(NamedTuple):
    layers: list[tuple[tuple[float, float], ...]]  # per layer: (width, height) of each anchor
    in_cells: bool  # False: in pixels


def stored_anchors(contents: Contents, head: str) -> StoredAnchors | None:
    """Read anchor_grid [layers, 1, A, 1, 1, 2] (in pixels) or anchors [layers, A, 2] (in cells)."""
    for name, axes in (("anchor_grid", (0, 2, 5)), ("anchors", (0, 1, 2))):
        tensor = contents.tensors.get(f"{head}.{name}")
        if tensor is None or len(tensor.shape) != axes[-1] + 1 or not 2 <= tensor.size <= 400:
            continue
        layers, count, two = (tensor.shape[axis] for axis in axes)
        if two != 2 or layers * count * two != tensor.size:
            continue
        pairs = tensor.array().astype(np.float64).reshape(layers, count, 2)
        if not (np.isfinite(pairs).all() and (pairs > 0).all()):
            raise ModelError(
                f"{contents.origin}: its anchors are not all positive, finite numbers; the file "
                "is damaged: download it again"
            )
        return StoredAnchors(
            [tuple((float(w), float(h)) for w, h in layer) for layer in pairs], name == "anchors"
        )
    return None
