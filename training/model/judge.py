"""The network in training, judged on the validation pictures that may be looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from model import validation
from model.network import Street, decoded


def as_model(network: Street, size: tuple[int, int], device: str) -> validation.Model:
    """The network in 32-bit floats, on a letterboxed picture."""

    @torch.no_grad()
    def model(image):
        slot, fit = validation.boxed(image, size, "centre", 128)
        x = torch.from_numpy(slot).to(device).permute(2, 0, 1)[None].float() / 255
        boxes, logits = decoded(network(x.contiguous(memory_format=torch.channels_last)), size)
        return validation.in_source(boxes[0].cpu().numpy(), fit), logits[0].sigmoid().cpu().numpy()

    return model


def judge_of(labelled: Path, size: tuple[int, int], device: str) -> Callable[[Street], dict[str, float]]:
    """A function of a network for the log. The pictures kept for the last figure are not even read."""
    asked = [picture for picture in validation.pictures(labelled) if not picture.last]

    def judge(network: Street) -> dict[str, float]:
        network.eval()
        return validation.figures(validation.run(as_model(network, size, device), asked))

    return judge
