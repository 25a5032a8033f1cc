"""Read a network's description into rows. The format is that of YOLOv5's and YOLOv7's YAML files:

nc: 80                       # number of classes
depth_multiple: 0.33         # factor for the repeats of each block
width_multiple: 0.50         # factor for the channels of each block
anchors: [[w,h, w,h, ...], ...]       # in pixels, one list per detection layer
backbone: [[from, repeats, block, [arguments]], ...]   # from: -1 (the previous row) or a row number
head: [...]                  # further rows; their numbers continue those of backbone
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from detector.core.errors import ModelError
from detector.core.errors.parsing import quote
from detector.core.errors.reading import read_bytes
from detector.core.errors.yaml_parsing import parse_yaml

MAX_ROWS = 1000  # yolov7-e6e, the longest published description, has 262
MAX_CLASSES = 10_000
MAX_ANCHOR = 16_384  # pixels
KEYS = ("nc", "depth_multiple", "width_multiple", "anchors", "backbone", "head")
KNOWN = {*KEYS, "ch", "activation", "yaml_file", "inplace"}
WORDS = {"None": None, "True": True, "False": False}
ACTIVATION = re.compile(r"(?:torch\.)?nn\.(\w+)\(([^()]*)\)")
KINDS = {  # class of torch.nn -> key of ACTIVATIONS in graph/operators.py
    "SiLU": "silu",
    "LeakyReLU": "leaky",
    "ReLU": "relu",
    "ReLU6": "relu6",
    "Hardswish": "hardswish",
    "Mish": "mish",
    "Sigmoid": "logistic",
    "Tanh": "tanh",
    "Identity": "linear",
}


Multiple = Annotated[float, Meta(gt=0, le=8)]
Sides = Annotated[
    list[Annotated[float, Meta(gt=0, lt=MAX_ANCHOR)]], Meta(min_length=2, max_length=40)
]
AnchorLists = Annotated[list[Sides], Meta(min_length=1, max_length=10)]
StoredRow = tuple[  # from, repeats, block, arguments
    int | list[int],
    Annotated[int, Meta(ge=1, le=100)],
    Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.]{1,60}\Z")],
    Annotated[list[Any], Meta(max_length=20)],
]


@dataclass(frozen=True, slots=True)
class Activation:
    kind: str  # a key of ACTIVATIONS in graph/operators.py
    slope: float = 0.1  # used by "leaky" only


SILU, LINEAR = Activation("silu"), Activation("linear")


@dataclass(frozen=True, slots=True)
class YamlRow:
    """One row of a description. The getters raise ModelError, which names file and row."""

    origin: str
    index: int
    sources: tuple[int, ...]  # row numbers counted from the first row; -1: the picture
    repeats: int
    block: str
    arguments: tuple[Any, ...]

    def error(self, text: str) -> ModelError:
        return ModelError(f"{self.origin}: layer {self.index} ({self.block}): {text}")

    def integer(
        self, at: int, default: int | None = None, *, low: int = 1, high: int = 65_536
    ) -> int:
        value = self._value(at)
        value = default if value is None else value
        if type(value) is not int or not low <= value <= high:
            raise self.error(
                f"argument {at + 1} must be a whole number from {low} to {high}, not {quote(value)}"
            )
        return value

    def flag(self, at: int, default: bool) -> bool:
        value = self._value(at)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.error(f"argument {at + 1} must be True or False, not {quote(value)}")
        return value

    def activation(self, at: int, default: Activation) -> Activation:
        value = self._value(at)
        if value is None or value is True:
            return default
        return LINEAR if value is False else _require_activation(value, self.error)

    def _value(self, at: int) -> Any:
        return self.arguments[at] if at < len(self.arguments) else None


@dataclass(slots=True)
class YamlNetwork:
    origin: str
    classes: int
    depth: float
    width: float
    # Each detection layer's anchors (width, height) in pixels; None if only the weights have them.
    anchors: list[tuple[tuple[float, float], ...]] | None
    activation: Activation
    rows: list[YamlRow]
    warnings: list[str] = field(default_factory=list)

    @property
    def head_path(self) -> str:
        """The module path of the detection layers, which are the last row."""
        return f"model.{len(self.rows) - 1}"

    def error(self, text: str) -> ModelError:
        return ModelError(f"{self.origin}: {text}")


def read_description(path: Path) -> tuple[YamlNetwork, bytes]:
    import hashlib

    data = read_bytes(
        path, "a description of a network", error=ModelError, cure="give the path of a description"
    )
    values = parse_yaml(data, path, ModelError)
    return parse_description(values, str(path)), hashlib.sha256(data).digest()


class _StoredNetwork(msgspec.Struct):
    nc: Annotated[int, Meta(ge=1, le=MAX_CLASSES)]
    backbone: list[StoredRow]
    head: list[StoredRow]
    depth_multiple: Multiple = 1.0
    width_multiple: Multiple = 1.0
    anchors: Any = None
    activation: Any = None
    ch: Literal[3] = 3


def parse_description(values: Any, origin: str) -> YamlNetwork:
    """Check and convert the ``values`` of a YAML file or a checkpoint. Raises ModelError."""
    if not isinstance(values, Mapping) or not {"nc", "backbone", "head"} <= values.keys():
        raise ModelError(
            f"{origin}: does not describe a network; it needs the keys {', '.join(KEYS)}; see "
            "cfg/yolo/yolov5n.yaml"
        )
    stored = _convert(values, _StoredNetwork, origin)
    rows = [*stored.backbone, *stored.head]
    if not 1 <= len(rows) <= MAX_ROWS:
        raise ModelError(f"{origin}: {len(rows)} layers; a network has 1 to {MAX_ROWS}")
    unknown = [str(key) for key in values if key not in KNOWN]
    return YamlNetwork(
        origin,
        stored.nc,
        stored.depth_multiple,
        stored.width_multiple,
        _parse_anchors(stored.anchors, origin),
        SILU
        if stored.activation is None
        else _require_activation(stored.activation, lambda text: ModelError(f"{origin}: {text}")),
        [_parse_row(row, index, origin) for index, row in enumerate(rows)],
        [f"{origin}: key {quote(key)} unknown, ignored" for key in unknown[:5]],
    )


def _convert(values: Any, kind: Any, origin: str) -> Any:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as exc:
        raise ModelError(f"{origin}: {exc}; see cfg/yolo/yolov5n.yaml") from exc


def _require_activation(value: Any, error: Callable[[str], ModelError]) -> Activation:
    if (activation := parse_activation(value)) is not None:
        return activation
    raise error(f"activation {quote(value)} is not supported; supported: nn.{', nn.'.join(KINDS)}")


def parse_activation(text: Any) -> Activation | None:
    """Parse text like ``nn.LeakyReLU(0.1)`` without evaluating it; return None if unknown."""
    match = ACTIVATION.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        return None
    settings = [
        part.strip()
        for part in match[2].split(",")
        if part.strip() and not part.strip().startswith("inplace")
    ]
    slope = settings[0].removeprefix("negative_slope=") if settings else "0.01"  # torch's default
    if not re.fullmatch(r"[0-9.]{1,12}", slope) or slope.count(".") > 1:
        return None
    return activation_of(match[1], float(slope), bool(settings))


def activation_of(name: str, slope: float = 0.01, settings: bool = False) -> Activation | None:
    """Return the activation of a torch.nn class; None if unknown or unsupported."""
    if name == "LeakyReLU" and 0 <= slope <= 1:
        return Activation("leaky", slope)
    return Activation(KINDS[name]) if name in KINDS and not settings else None


def _parse_anchors(stored: Any, origin: str) -> list[tuple[tuple[float, float], ...]] | None:
    if stored is None or isinstance(stored, int):
        return None  # a number: training chose the anchors, which are stored with the weights
    layers = _convert({"anchors": stored}, dict[str, AnchorLists], origin)["anchors"]
    if any(len(sides) % 2 for sides in layers):
        raise ModelError(f"{origin}: anchors of a detection layer must be pixels W,H, W,H, ...")
    return [tuple(zip(sides[::2], sides[1::2], strict=True)) for sides in layers]


def _parse_row(stored: StoredRow, index: int, origin: str) -> YamlRow:
    sources, repeats, block, arguments = stored
    plain = tuple(
        WORDS.get(value, value) if isinstance(value, str) else value for value in arguments
    )
    where = f"{origin}: layer {index} ({block})"
    return YamlRow(origin, index, _parse_sources(sources, index, where), repeats, block, plain)


def _parse_sources(stored: int | list[int], index: int, where: str) -> tuple[int, ...]:
    numbers = stored if isinstance(stored, list) else [stored]
    sources = tuple(number + index if number < 0 else number for number in numbers[:100])
    if not sources or not all(-1 <= source < index for source in sources):
        raise ModelError(f'{where}: "from" must name layers before it, not {quote(stored)}')
    return sources
