"""What is known about a model in one engine's own format: tensors, header, files next to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from detector.core.models.layouts.output_shapes import Dims, OutputShapes


@dataclass(frozen=True, slots=True)
class PlanTensor:
    """``shape``: -1 for a dynamic dimension. ``profiles``: an input's (smallest,
    best, largest) shapes. ``dtype``: numpy's name if there is one, else TensorRT's."""

    name: str
    is_input: bool
    dtype: str
    shape: tuple[int, ...]
    profiles: tuple[tuple[tuple[int, ...], ...], ...] = ()

    def __str__(self) -> str:
        sides = "x".join("?" if side < 0 else str(side) for side in self.shape)
        return f"{'input' if self.is_input else 'output'} {self.name} {self.dtype} {sides}"


@dataclass(frozen=True, slots=True)
class ReadyMade(OutputShapes):
    """``tensors``: the outputs. ``finished``: the header says that detections need no NMS."""

    path: Path
    tensors: Sequence[PlanTensor]
    height: int
    width: int
    batch: int
    cfg: Path | None
    names: tuple[str, ...]
    finished: bool = False
    about: str = ""

    def outputs(self) -> Mapping[str, Dims]:
        return {
            tensor.name: tuple(None if side < 0 else side for side in tensor.shape)
            for tensor in self.tensors
        }

    def fits_names(self, classes: int) -> bool:
        return True  # ``class_names_of`` checks the number of names later, with a better message

    def only(self) -> tuple[str, int, int] | None:
        """Return the only output if it has three dimensions and the last two are known, or None."""
        known = list(self.rank3_outputs())
        return known[0] if len(known) == len(self.tensors) == 1 else None

    def listed(self) -> str:
        return ", ".join(map(str, self.tensors))
