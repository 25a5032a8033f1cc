"""Shorten passes that repeat a measurement for a time or a number of rounds."""

from pathlib import Path

from tests.conftest import CHECKOUT

SHORT = """
import detector.lab.profile.layers as layers
import detector.lab.profile.loop as loop
import detector.lab.peaks.caches as caches
import detector.lab.peaks.kernels as kernels
import detector.lab.profile.what_if as what_if
layers.BUDGET_S, kernels.BUDGET_S, loop.ROUNDS, what_if.ROUNDS = 0.5, 0.06, 1, 1
caches.EACH_S, caches.LARGEST = 0.002, 16 << 20
"""


def with_short_budgets(folder: Path) -> dict[str, str]:
    """Return environment variables that shorten the passes, which makes their figures noisier."""
    package = folder / "short"
    package.mkdir(exist_ok=True)
    (package / "sitecustomize.py").write_text(
        f"import sys; sys.path.insert(1, {str(CHECKOUT)!r})\n{SHORT}"
    )
    return {"PYTHONPATH": f"{package}:{CHECKOUT}"}
