"""A stand-in for mmcv.ops: NMS by torchvision, and empty classes for all other names.

No package index has mmcv.ops as a binary, and mmcv-lite omits it, but mmdet imports some of its
names. The detectors compared here call only ``batched_nms`` and ``nms``.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

import torch
import torchvision


def nms(
    boxes: torch.Tensor,
    scores: torch.Tensor,
    iou_threshold: float,
    score_threshold: float = 0.0,
    max_num: int = -1,
    **_options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    above = torch.nonzero(scores > score_threshold)[:, 0]
    keep = above[torchvision.ops.nms(boxes[above], scores[above], iou_threshold)]
    keep = keep[:max_num] if max_num > 0 else keep
    return torch.cat([boxes[keep], scores[keep, None]], 1), keep


def batched_nms(
    boxes: torch.Tensor,
    scores: torch.Tensor,
    idxs: torch.Tensor,
    nms_cfg: Any,
    class_agnostic: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    groups = torch.zeros_like(idxs) if class_agnostic else idxs
    keep = torchvision.ops.batched_nms(boxes, scores, groups, nms_cfg["iou_threshold"])
    keep = keep[: nms_cfg.get("max_num", len(keep))]
    return torch.cat([boxes[keep], scores[keep, None]], 1), keep


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (torch.nn.Module,), {})


class _Nms(_Module):
    """A callable module: ``mmcv.ops.nms`` is both a module and a function."""

    nms, batched_nms = staticmethod(nms), staticmethod(batched_nms)

    def __call__(self, *arguments: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return nms(*arguments, **options)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module ``mmcv.ops.NAME``. The modules have every attribute."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self) if name.startswith("mmcv.ops.") else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return (_Nms if spec.name == "mmcv.ops.nms" else _Module)(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    module = _Module("mmcv.ops")
    module.nms, module.batched_nms = nms, batched_nms  # type: ignore[attr-defined]
    module.__path__ = []
    sys.modules["mmcv.ops"] = module
    sys.meta_path.append(_Finder())
    from mmcv.cnn.bricks import transformer

    transformer.MultiScaleDeformableAttention = module.MultiScaleDeformableAttention
