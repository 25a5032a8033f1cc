"""Engines that only tests have: put on the path of a command's processes, its children's too, by sitecustomize."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import CHECKOUT

HEAD = """
import os, signal, time
import numpy as np
from pathlib import Path
from detector.engines import null
from detector.engines.base import EngineOptions
from detector.errors import EngineError

LIBRARY, INSTALL, AUTO, WHY = None, "", 0, ""
PRECISIONS, DEVICES, OPTIONS = {"fp32": "fp32"}, ("cpu",), {}
"""

# Dies where a driver would: in its first infer.
CRASHING = """
class Request(null.NullRequest):
    def infer(self, n):
        print("a library's last words", file=__import__("sys").stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

def create(network, options):
    engine = null.create(network, options)
    engine.name = "crashing"
    engine.requests = [Request(network) for _ in engine.requests]
    return engine
"""

# Runs a file that is built beforehand; every build leaves a line in $FORGE_LOG.
FORGING = """
SUFFIX = ".forged"
OPTIONS = {"min_batch": "smallest", "max_batch": "largest", "alloy": "another file"}

def build_key(network, options):
    return {"model": network.sha256, "input": list(network.input_shape), "own": dict(options.own), "library": "1.0"}

def build(network, options, target, progress):
    with open(os.environ["FORGE_LOG"], "a") as log:
        log.write(f"{os.getpid()}\\n")
    for step in range(4):
        if not progress("hammering", step, 4):
            raise EngineError("engine forging: the build was cancelled; nothing was kept")
        time.sleep(float(os.environ.get("FORGE_STEP_S", "0.1")))
    target.write_text("forged")
    return {"steps": 4}

def create(network, options):
    if Path(options.artefact).read_text() != "forged":
        raise EngineError(f"engine forging: {options.artefact} is not what was built")
    return null.create(network, options)
"""

# Runs as often as warm-up, a check and two rounds of six frames need it, and never again.
FORGETFUL = """
class Request(null.NullRequest):
    left = 0

    def infer(self, n):
        Request.left -= 1
        if Request.left < 0:
            raise EngineError("engine forgetful: lost its weights")
        return super().infer(n)

def create(network, options):
    engine = null.create(network, options)
    engine.name, engine.precision = "forgetful", "fp32"
    engine.requests = [Request(network) for _ in engine.requests]
    Request.left = len(engine.requests) + 1 + 3 * 6
    return engine
"""

ENGINES = {"crashing": CRASHING, "forging": FORGING, "forgetful": FORGETFUL}


def with_engines(folder: Path, *names: str) -> dict[str, str]:
    """What to add to a command's environment so that it, and its children, have these engines too."""
    place = folder / "outside"
    (place / "engines").mkdir(parents=True)
    for name in names:
        (place / "engines" / f"{name}.py").write_text(HEAD + ENGINES[name])
    (place / "sitecustomize.py").write_text(
        f"import sys; sys.path.insert(1, {str(CHECKOUT)!r})\n"
        "import detector.engines\n"
        f"detector.engines.__path__.append({str(place / 'engines')!r})\n"
    )
    return {"PYTHONPATH": f"{place}:{CHECKOUT}", "FORGE_LOG": str(folder / "forge.log")}
