"""Decide the canvas (the size of the network's input), and open the network at this size.

    --size 640x384   width and height as given
    --size 640       the longest side; the first picture's shape decides the other side
    --rect           like --size 640, but each picture's shape decides (``open_rect``, shapes.py)
    no --size        the model's own size. If the model declares ``canvases`` (cfg/models), its
                     input takes the shape of the source, with about the same area

``SourceReading.picture_size`` returns the size of the picture that decides the shape.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from detector.core.config.schema import Config
from detector.core.errors import ModelError, UsageError
from detector.core.types import Background

if TYPE_CHECKING:
    from detector.core.models.base import ModelRequest, Network

Size = tuple[int, int]

LARGEST_SIDE = 8192  # largest side of a network's input, pixels
STRIDE = 32  # stride of every network that declares canvases, as a test checks
WORTH_ADVISING = 0.9  # suggest a canvas only if its area is below this share of the current one


def follows_source(config: Config) -> bool:
    runtime = config.runtime
    return runtime.size is None and not runtime.rect and bool(declared_canvases(config))


def find_canvas(config: Config, picture: Size | None) -> Size | None:
    """Return the input's (height, width) for a picture (width, height); None: the model's own."""
    if picture is None or not follows_source(config):
        return None
    declared = declared_canvases(config)
    from detector.core.stages.preprocess import input_of_shape

    canvas = input_of_shape(declared[0], STRIDE, *picture)
    return None if canvas == declared[0] else canvas


def own_canvas(network: Network, config: Config) -> Size:
    """Return the (height, width) at which we time and calibrate a model."""
    declared = declared_canvases(config)
    return declared[0] if declared else (network.input.height, network.input.width)


def smaller_canvas(network: Network, config: Config) -> Size | None:
    """Return (height, width) of the next smaller input that the model was trained for, if any."""
    height, width = network.input.height, network.input.width
    below = [
        size
        for size in declared_canvases(config)
        if size[0] * size[1] < WORTH_ADVISING * height * width
    ]
    if not below:
        return None
    from detector.core.stages.preprocess import input_of_shape

    return input_of_shape(max(below, key=lambda size: size[0] * size[1]), STRIDE, width, height)


def shape_of(longest: int, network: Network, picture: Size) -> Size:
    """Return the (height, width) of --rect's input for a picture (width, height)."""
    from detector.core.stages.preprocess import smallest_input

    return smallest_input(longest, network.input.stride, *picture)


def longest_side(network: Network, config: Config) -> int:
    size = config.runtime.size
    return int(size) if size is not None else max(own_canvas(network, config))


def declared_canvases(config: Config) -> tuple[Size, ...]:
    from detector.core.models.catalogue import canvases_of

    return canvases_of(config.network.model)


def open_network(config: Config, picture: Size | None = None) -> Network:
    """Return the network before it is converted for an engine.

    Without ``--size``, ``find_canvas`` chooses the size. ``--size 640`` gives the longest side. In
    the geometry "centre" (a letterbox), the other side is the smallest that holds ``picture``
    (width, height); otherwise the input is square. Raises UsageError and ModelError.
    """
    from detector.core import engines, models

    if config.runtime.rect:
        return open_rect(config, picture)
    request, given = model_request(config), config.runtime.size
    if picture is not None and (canvas := find_canvas(config, picture)) is not None:
        network = models.open_network(replace(request, size=canvas), engines.front_ends())
        network.warnings.append(_explain_canvas(network, config, picture))
        return network
    network = models.open_network(request, engines.front_ends())
    if picture is None or given is None or not given.isdecimal():
        return network
    if network.input.geometry != "centre":
        return network
    size = shape_of(int(given), network, picture)
    if size == (network.input.height, network.input.width):
        return network
    try:
        return models.open_network(replace(request, size=size), engines.front_ends())
    except ModelError as exc:
        network.warnings.append(f"--size {given}: keeping the input at {given}x{given}: {exc}")
        return network


def open_rect(config: Config, picture: Size | None) -> Network:
    """Return the network of --rect, whose input fits ``picture`` (width, height) if given."""
    from detector.core import engines, models

    runtime = config.runtime
    if runtime.size is not None and not runtime.size.isdecimal():
        raise UsageError(f"--rect: --size {runtime.size} fixes the shape; use --size LONGEST_SIDE")
    if runtime.batch > 1:
        raise UsageError(
            "--rect: pictures of different shapes do not fit into one batch; omit --batch"
        )
    request = model_request(config)
    network = models.open_network(request, engines.front_ends())
    rules = network.input
    if network.plan is not None:
        file = Path(config.network.model).name
        raise UsageError(f"--rect: {file} was built for one shape; omit --rect")
    if rules.geometry != "centre":
        raise UsageError(
            f"--rect: {network.name} uses geometry {rules.geometry}, for which no "
            "other shape saves work; omit --rect"
        )
    own = rules.height, rules.width
    shape = own if picture is None else shape_of(longest_side(network, config), network, picture)
    # Try another shape even if this picture fits the model's own: a later picture may not fit it.
    tried = shape if shape != own else (rules.height + rules.stride, rules.width)
    try:
        other = models.open_network(replace(request, size=tried), engines.front_ends())
    except ModelError as exc:
        raise UsageError(f"--rect: the input has a fixed shape: {exc}") from exc
    return network if shape == own else other


def refuse_rect(config: Config) -> None:
    """Raise UsageError if --rect is given to a command that measures a single input shape."""
    if config.runtime.rect:
        raise UsageError("--rect: this command measures one input shape; use --size WxH instead")


def _explain_canvas(network: Network, config: Config, picture: Size) -> str:
    own_height, own_width = declared_canvases(config)[0]
    return Background(
        f"{network.name} runs at {network.input.width}x{network.input.height}, which fits pictures "
        f"of {picture[0]}x{picture[1]} and has about the area of the model's own input; "
        f"--size {own_width}x{own_height} turns this off"
    )


def model_request(config: Config) -> ModelRequest:
    from detector.core.engines._built import store
    from detector.core.models.base import ModelRequest

    network, runtime = config.network, config.runtime
    return ModelRequest(
        model=network.model,
        weights=None if network.weights is None else Path(network.weights),
        names=None if network.names is None else Path(network.names),
        random_seed=network.random_weights,
        size=_height_and_width(runtime.size),
        batch=runtime.batch,
        family=network.family,
        describe=None if network.describe is None else Path(network.describe),
        cfg=None if network.cfg is None else Path(network.cfg),
        class_names=tuple(network.class_names or ()),
        device=runtime.device,
        graphs=store.Graphs(store.choose_folder(runtime.engines_dir)),
        trusted=any(text in ("host_code", "host_code=1") for text in runtime.engine_options or ()),
    )


def _height_and_width(size: str | None) -> Size | None:
    """Parse ``416`` or ``640x384`` (width x height) to (height, width)."""
    if size is None:
        return None
    sides = size.lower().split("x")
    if len(sides) > 2 or not all(s.isdecimal() and 0 < int(s) <= LARGEST_SIDE for s in sides):
        raise UsageError(f"--size {size}: not a size; use 416 or 640x384 (width x height)")
    return int(sides[-1]), int(sides[0])
