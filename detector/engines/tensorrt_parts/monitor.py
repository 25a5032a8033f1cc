"""TensorRT tells how far it is through an ``IProgressMonitor``; what it calls must never raise."""

from __future__ import annotations

from typing import Any

from detector.engines.base import BuildProgress


def progress_monitor(trt: Any, progress: BuildProgress) -> Any:
    """Hands every step to ``progress``. ``cancelled`` is set once that said no; ``raised`` is what it raised."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.cancelled = False
            self.raised: BaseException | None = None
            self._steps: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = num_steps
            self._tell(phase_name, 0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            self._tell(phase_name, step + 1)
            return not self.cancelled

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)

        def _tell(self, phase_name: str, done: int) -> None:
            if self.cancelled:
                return
            try:
                go_on = progress(phase_name, done, self._steps.get(phase_name, done))
            except BaseException as exc:  # Ctrl-C too: TensorRT's C++ is no place for an exception to pass through
                self.raised, go_on = exc, False
            self.cancelled = not go_on

    return Monitor()
