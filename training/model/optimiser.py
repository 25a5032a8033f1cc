"""The optimisers, the schedule of the learning rate, and the moving average of the weights.

Muon (https://kellerjordan.github.io/posts/muon/) trains the inner convolutions; AdamW trains the
first convolution, the heads and the normalisations.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from model.network import Street

MUON = {"lr": 0.02, "momentum": 0.95, "decay": 0.3}
ADAMW = {"lr": 2e-3, "betas": (0.9, 0.99), "weight_decay": 0.03}
WARM_UP = 150  # steps
LAST = 0.02  # the final rate, as a share of the full rate
AVERAGE = 0.998  # decay of the moving average


def rate(step: int, steps: int) -> float:
    """Return the rate at a step as a share of the full rate: a warm-up, then a cosine."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    done = (step - WARM_UP) / max(1, steps - WARM_UP)
    return LAST + (1 - LAST) * (1 + math.cos(math.pi * done)) / 2


class Optimisers:
    """Muon and AdamW, used as one optimiser."""

    def __init__(self, network: Street) -> None:
        outer = {"0", *network.heads}
        inner = [block.conv.weight for i, block in network.blocks.items() if i not in outer]
        chosen = {id(weight) for weight in inner}
        rest = [weight for weight in network.parameters() if id(weight) not in chosen]
        decayed = [weight for weight in rest if weight.ndim > 1]
        free = [weight for weight in rest if weight.ndim == 1]
        groups = [{"params": decayed}, {"params": free, "weight_decay": 0.0}]
        self.parts = [Muon(inner), torch.optim.AdamW(groups, **ADAMW)]
        self._rates = [[group["lr"] for group in part.param_groups] for part in self.parts]

    def step(self, share: float) -> None:
        """Take a step with this share of the full rates; clear the gradients."""
        for part, rates in zip(self.parts, self._rates, strict=True):
            for group, full in zip(part.param_groups, rates, strict=True):
                group["lr"] = full * share
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict]:
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict]) -> None:
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates; weights of one shape are updated together."""

    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__(weights, dict(MUON))

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            shapes: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                momentum.lerp_(weight.grad, 1 - group["momentum"])
                update = weight.grad.lerp(momentum, group["momentum"]).flatten(1)
                shapes.setdefault(tuple(update.shape), []).append((weight, update))
            for (rows, columns), pairs in shapes.items():
                updates = orthogonalise(torch.stack([update for _, update in pairs]).float())
                updates *= max(1.0, rows / columns) ** 0.5
                for (weight, _), update in zip(pairs, updates, strict=True):
                    weight.mul_(1 - group["lr"] * group["decay"])
                    weight.add_(update.view_as(weight), alpha=-group["lr"])


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """For each matrix of ``g`` [K, m, n], return the nearest one with singular values of about 1.

    Newton-Schulz iterations with the coefficients of Jordan's quintic (link above).
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = g.shape[1] > g.shape[2]
    x = g.transpose(1, 2) if tall else g
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(1, 2) if tall else x


class Average:
    """The moving average of a network. This average is evaluated and shipped."""

    def __init__(self, network: Street) -> None:
        self.network = copy.deepcopy(network).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        keep = min(AVERAGE, (1 + step) / (10 + step))  # a faster decay in the first steps
        ours, theirs = self.network.state_dict().values(), network.state_dict().values()
        for mine, other in zip(ours, theirs, strict=True):
            if mine.dtype.is_floating_point:
                mine.lerp_(other, 1 - keep)
            else:
                mine.copy_(other)
