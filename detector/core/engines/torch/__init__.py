"""Declare the engine torch: PyTorch on a CPU or a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detector.core.engines.base import BF16_OPTION, Engine, EngineOptions
from detector.core.errors import EngineError

if TYPE_CHECKING:
    from detector.core.models.base import Network


class TorchEngine(Engine):
    name = "torch"
    library = "torch"
    install = "pip install 'detect-video[torch]'"
    auto = (10, "torch is installed")
    # For bf16 and fp16, we cast the modules of the fp32 graph (halves.py).
    precisions = dict.fromkeys(("fp32", "tf32", "bf16", "fp16"), "fp32")
    devices = ("cpu", "cuda")
    own_options = {
        "channels_last": "1 (default): convolution weights as NHWC; 0: everything as NCHW",
        "compile": "1: torch.compile; on a CPU it needs a C++ compiler and loads some 20 s longer",
        "graphs": "1 (default on a GPU): each request's kernels as one CUDA graph; 0: one by one",
        "benchmark": "1: cuDNN tries its algorithms on the first frames, keeps the best; GPUs only",
    } | BF16_OPTION

    @classmethod
    def refusal(cls, precision: str, device: str) -> str | None:
        from detector.core.engines.torch import abilities

        try:
            chosen, _ = abilities.device_of(device)
        except EngineError as error:
            return str(error).removeprefix("engine torch: ")
        return abilities.refusal(precision, chosen)

    @classmethod
    def runs_on_gpu(cls, precision: str) -> bool:
        from detector.core.engines.torch import abilities

        return abilities.is_built_for_cuda() and not abilities.why_no_cuda()

    @classmethod
    def best_concurrency(cls, options: EngineOptions) -> int:
        from detector.core.engines.torch import abilities

        return abilities.best_concurrency(options.device)

    @classmethod
    def start(cls, network: Network, options: EngineOptions) -> Engine:
        from detector.core.engines.torch.engine import OpenTorch

        return OpenTorch(network, options)
