"""Engines for tests. A sitecustomize module makes them available to a command's processes."""

from pathlib import Path

from tests.conftest import CHECKOUT

HEAD = """
import os, signal, time
import numpy as np
from pathlib import Path
from detector.core.engines.base import ArtefactBuilder
from detector.core.engines.null import NullEngine, NullRequest
from detector.core.errors import EngineError
"""

# The process dies in the first ``infer``, as with a broken driver.
CRASHING = """
class CrashingRequest(NullRequest):
    def infer(self, n):
        print("a library's last words", file=__import__("sys").stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

class CrashingEngine(NullEngine):
    name = "crashing"
    precisions = {"fp32": "fp32"}

    def __init__(self, network, options):
        super().__init__(network, options)
        self.requests = [CrashingRequest(network) for _ in self.requests]
"""

# Builds a file, and checks it when the engine is opened. Each build adds a line to $FORGE_LOG.
FORGING = """
class Forge(ArtefactBuilder):
    suffix = ".forged"

    def key(self, network, options):
        return {
            "model": network.sha256,
            "input": list(network.input_shape),
            "own": dict(options.own),
            "library": "1.0",
        }

    def build(self, network, options, target, progress):
        with open(os.environ["FORGE_LOG"], "a") as log:
            log.write(f"{os.getpid()}\\n")
        for step in range(4):
            if not progress("hammering", step, 4):
                raise EngineError("engine forging: the build was cancelled; nothing was kept")
            time.sleep(float(os.environ.get("FORGE_STEP_S", "0.1")))
        target.write_text("forged")
        return {"steps": 4}

class ForgingEngine(NullEngine):
    name = "forging"
    precisions = {"fp32": "fp32"}
    own_options = {"min_batch": "smallest", "max_batch": "largest", "alloy": "another file"}
    artefact = Forge()

    def __init__(self, network, options):
        if Path(options.artefact).read_text() != "forged":
            raise EngineError(f"engine forging: {options.artefact} is not what was built")
        super().__init__(network, options)
"""

# Fails after a fixed number of inferences: warm-up, a check, and three times six frames.
FORGETFUL = """
class ForgetfulRequest(NullRequest):
    left = 0

    def infer(self, n):
        ForgetfulRequest.left -= 1
        if ForgetfulRequest.left < 0:
            raise EngineError("engine forgetful: lost its weights")
        return super().infer(n)

class ForgetfulEngine(NullEngine):
    name = "forgetful"
    precisions = {"fp32": "fp32"}

    def __init__(self, network, options):
        super().__init__(network, options)
        self.precision = "fp32"
        self.requests = [ForgetfulRequest(network) for _ in self.requests]
        ForgetfulRequest.left = len(self.requests) + 1 + 3 * 6
"""

# Kills its process after the same number of inferences.
MORTAL = (
    FORGETFUL.replace("Forgetful", "Mortal")
    .replace("forgetful", "mortal")
    .replace('raise EngineError("engine mortal: lost its weights")', "os.kill(os.getpid(), 11)")
)

# Computes nothing. Declares everything that an engine can declare without its library.
NEWCOMER = """
class NewcomerEngine(NullEngine):
    name = "newcomer"
    library = "an_absent_library"
    install = "pip install an-absent-library"
    precisions = {"fp32": "fp32"}
    own_options = {"speed": "how fast"}
"""

ENGINES = {
    "crashing": CRASHING,
    "forging": FORGING,
    "forgetful": FORGETFUL,
    "mortal": MORTAL,
    "newcomer": NEWCOMER,
}


def with_engines(folder: Path, *names: str) -> dict[str, str]:
    """Return the environment variables that give a command and its children these engines."""
    place = folder / "outside"
    (place / "engines").mkdir(parents=True)
    for name in names:
        (place / "engines" / f"{name}.py").write_text(HEAD + ENGINES[name])
    (place / "sitecustomize.py").write_text(
        f"import sys; sys.path.insert(1, {str(CHECKOUT)!r})\n"
        "import detector.core.engines\n"
        f"detector.core.engines.__path__.append({str(place / 'engines')!r})\n"
    )
    return {"PYTHONPATH": f"{place}:{CHECKOUT}", "FORGE_LOG": str(folder / "forge.log")}
