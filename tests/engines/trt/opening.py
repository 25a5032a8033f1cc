"""Open and build the engines trt and rtx, with fake libraries."""

import sys
from pathlib import Path

from detector.core import engines
from detector.core.config.levels import merge_levels
from detector.core.engines.base import EngineOptions
from tests.fakes.install import MAJORS
from tests.fakes.packages import PACKAGES
from tests.known_answers import plus_one

EVERY = [(major, memory) for major in MAJORS for memory in PACKAGES]


def engine_here() -> str:
    return "rtx" if hasattr(sys.modules.get("tensorrt_rtx"), "fake") else "trt"


def opened(network=None, **options):
    network = network or plus_one(options.get("batch", 1))
    return engines.open(engine_here(), network, EngineOptions(requests=1, **options))


def built(machine, tmp_path, network=None, progress=None, **options):
    from detector.core.run.prepare import prepare_network

    own = options.pop("own", {})
    config = merge_levels(
        (
            "test",
            {"engines_dir": str(tmp_path), "engine_options": [f"{k}={v}" for k, v in own.items()]},
        ),
        ("test", options),
    )
    network = network or plus_one(config.runtime.batch)
    progress = progress or (lambda *_: True)
    return prepare_network(network, machine.engine, config, lambda most: most, progress)


def plans(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.plan"))
