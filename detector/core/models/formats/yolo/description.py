"""Read a network's description into rows. The format is that of YOLOv5's and YOLOv7's YAML files:

nc: 80                       # number of classes
depth_multiple: 0.33         # factor for the repeats of each block
width_multiple: 0.50         # factor for the channels of each block
anchors: [[w,h, w,h, ...], ...]       # in pixels, one list per detection layer
backbone: [[from, repeats, block, [arguments]], ...]   # from: -1 (the previous row) or a row number
head: [...]                  # further rows, numbered on from the backbone's
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detector.core.errors import ModelError
from detector.core.errors.reading import read_bytes
from detector.core.errors.yaml_parsing import parse_yaml

MAX_ROWS = 1000  # yolov7-e6e, the longest published one, has 262
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


@dataclass(frozen=True, slots=True)
class Activation:
    kind: str  # a key of ACTIVATIONS in graph/operators.py
    slope: float = 0.1  # of "leaky"


SILU, LINEAR = Activation("silu"), Activation("linear")


@dataclass(frozen=True, slots=True)
class YamlRow:
    """One row of a description. The getters raise ModelError with the file and the row."""

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
    # Width, height in pixels, by detection layer; None if only the weights hold them.
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


def parse_description(values: Any, origin: str) -> YamlNetwork:
    """Check the ``values`` of a YAML file or a checkpoint. Raises ModelError."""
    if not isinstance(values, Mapping) or not {"nc", "backbone", "head"} <= values.keys():
        raise ModelError(
            f"{origin}: does not describe a network; it needs the keys {', '.join(KEYS)}; see "
            "cfg/yolo/yolov5n.yaml"
        )
    if values.get("ch", 3) != 3:
        raise ModelError(
            f"{origin}: ch: {quote(values['ch'])}: only pictures of 3 channels (RGB) are supported"
        )
    classes = values["nc"]
    if type(classes) is not int or not 1 <= classes <= MAX_CLASSES:
        raise ModelError(
            f"{origin}: nc must be a whole number from 1 to {MAX_CLASSES}, not {quote(classes)}"
        )
    unknown = [str(key) for key in values if key not in KNOWN]
    return YamlNetwork(
        origin,
        classes,
        _read_multiple(values, "depth_multiple", origin),
        _read_multiple(values, "width_multiple", origin),
        _parse_anchors(values.get("anchors"), origin),
        SILU
        if (stated := values.get("activation")) is None
        else _require_activation(stated, lambda text: ModelError(f"{origin}: {text}")),
        _parse_rows(values, origin),
        [f"{origin}: key {quote(key)} unknown, ignored" for key in unknown[:5]],
    )


def _read_multiple(values: Mapping[str, Any], key: str, origin: str) -> float:
    value = values.get(key, 1.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 8:
        raise ModelError(f"{origin}: {key} must be a number above 0, at most 8, not {quote(value)}")
    return float(value)


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
    if not isinstance(stored, (list, tuple)) or not 1 <= len(stored) <= 10:
        raise ModelError(
            f"{origin}: anchors must be lists of W,H, W,H, ..., one for each detection layer, "
            f"not {quote(stored)}"
        )
    return [_parse_anchor_pairs(numbers, origin) for numbers in stored]


def _parse_anchor_pairs(numbers: Any, origin: str) -> tuple[tuple[float, float], ...]:
    if (
        not isinstance(numbers, (list, tuple))
        or not 2 <= len(numbers) <= 40
        or len(numbers) % 2
        or not all(type(number) in (int, float) and 0 < number < MAX_ANCHOR for number in numbers)
    ):
        raise ModelError(
            f"{origin}: anchors of a detection layer must be pixels W,H, W,H, ..., "
            f"not {quote(numbers)}"
        )
    return tuple(
        (float(width), float(height))
        for width, height in zip(numbers[::2], numbers[1::2], strict=True)
    )


def _parse_rows(values: Mapping[str, Any], origin: str) -> list[YamlRow]:
    parts = [values["backbone"], values["head"]]
    if not all(isinstance(part, (list, tuple)) for part in parts):
        raise ModelError(
            f"{origin}: backbone and head must be lists of [from, repeats, block, [arguments]]"
        )
    stored = [row for part in parts for row in part]
    if not 1 <= len(stored) <= MAX_ROWS:
        raise ModelError(f"{origin}: {len(stored)} layers; a network has 1 to {MAX_ROWS}")
    return [_parse_row(row, index, origin) for index, row in enumerate(stored)]


def _parse_row(stored: Any, index: int, origin: str) -> YamlRow:
    where = f"{origin}: layer {index}"
    if not isinstance(stored, (list, tuple)) or len(stored) != 4:
        raise ModelError(
            f"{where}: a layer is [from, repeats, block, [arguments]], not {quote(stored)}"
        )
    sources, repeats, block, arguments = stored
    if not isinstance(block, str) or not re.fullmatch(r"[\w.]{1,60}", block, re.ASCII):
        raise ModelError(f"{where}: {quote(block)} is not the name of a block")
    if type(repeats) is not int or not 1 <= repeats <= 100:
        raise ModelError(
            f"{where} ({block}): repeats must be a whole number from 1 to 100, not {quote(repeats)}"
        )
    if not isinstance(arguments, (list, tuple)) or len(arguments) > 20:
        raise ModelError(f"{where} ({block}): arguments must be a list, not {quote(arguments)}")
    plain = tuple(
        WORDS.get(value, value) if isinstance(value, str) else value for value in arguments
    )
    return YamlRow(
        origin, index, _parse_sources(sources, index, f"{where} ({block})"), repeats, block, plain
    )


def _parse_sources(stored: Any, index: int, where: str) -> tuple[int, ...]:
    numbers = list(stored) if isinstance(stored, (list, tuple)) else [stored]
    sources = []
    for number in numbers[:100]:
        if (
            type(number) is not int
            or not -1 <= (absolute := number + index if number < 0 else number) < index
        ):
            raise ModelError(f"{where}: from {quote(number)}: there is no such layer before it")
        sources.append(absolute)
    if not sources:
        raise ModelError(f"{where}: from names no layer")
    return tuple(sources)


def quote(value: Any) -> str:
    """Return a value for a message, without nested values, which may be very long."""
    if isinstance(value, (list, tuple, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    text = ascii(value) if not isinstance(value, float) or math.isfinite(value) else "no number"
    return text if len(text) <= 60 else text[:60] + "..."
