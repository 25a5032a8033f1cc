"""Run detect-video on a handicapped device.

`handicap.py memory MB ...` limits torch's memory. `handicap.py assert N ...` makes the Nth
inference fail on the device. `handicap.py drawers N ...` lets N threads draw ahead of the writer.
Each run needs its own process: after a failed CUDA assertion, all CUDA calls of the process fail.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any


def lend_memory(megabytes: int) -> None:
    """Limit torch's memory. On a CPU, only float32 pictures count towards the limit."""
    import torch

    from detector.core.engines.torch import requests
    from detector.core.engines.torch.engine import OpenTorch

    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(megabytes * (1 << 20) / total)
        return
    make = OpenTorch._requests

    def fits(run: Any, network: Any, device: Any, at_once: int, batch: int) -> bool:
        numbers = batch * network.input.height * network.input.width * 3
        return numbers * 4 * at_once <= megabytes << 20

    def checked(self: Any, network: Any, options: Any, wanted: Any) -> Any:
        requests.check_memory(self.module, network, self._device, self.concurrency)
        return make(self, network, options, wanted)

    requests.fits = fits
    OpenTorch._requests = checked


def assert_at(number: int) -> None:
    """Let the ``number``-th inference read beyond the end of a tensor. On a GPU, the kernel fails
    after its launch, and every later call fails too. On a CPU, the read raises at once."""
    import torch

    from detector.core.engines.torch import requests

    count = itertools.count(1)

    def with_failure(run: Any) -> Any:
        def failing_run(inputs: Any) -> Any:
            if next(count) == number:
                torch.zeros(4, device=inputs.device)[torch.tensor([9], device=inputs.device)]
            return run(inputs)

        return failing_run

    for kind in (requests.CudaRequest, requests.TorchRequest):

        def start(self: Any, run: Any, *rest: Any, made: Any = kind.__init__, **more: Any) -> None:
            made(self, with_failure(run), *rest, **more)

        kind.__init__ = start


def draw_ahead(threads: int) -> None:
    from detector.core.run import drawing

    drawing.drawing_threads = lambda: threads


def main() -> None:
    what, value, *words = sys.argv[1:]
    {"memory": lend_memory, "assert": assert_at, "drawers": draw_ahead}[what](int(value))
    sys.argv = ["detect-video", *words]
    from detector.__main__ import main as detect_video

    detect_video()


if __name__ == "__main__":
    main()
