"""Open a network from the model's name and the options that a user would type."""

from pathlib import Path
from typing import Any

import pytest

from detector.core import engines, models
from detector.core.errors import ModelError
from detector.core.models.base import ModelRequest, Network
from detector.core.models.graph.build import infer_shapes


def open_network(model: str, **options: Any) -> Network:
    for name in ("weights", "names", "cfg"):
        if options.get(name) is not None:
            options[name] = Path(options[name])
    options["class_names"] = tuple(options.get("class_names", ()))
    request = ModelRequest(model, **options)
    return models.open_network(request, engines.front_ends())


def refusal(model: str, **options: Any) -> str:
    """Return the error message for a model that must be refused. It has one line."""
    with pytest.raises(ModelError) as caught:
        open_network(model, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def need_engine(name: str, *, allow_module_level: bool = False) -> None:
    if reason := engines.why_unusable()[name]:
        pytest.skip(f"machine: engine {name}: {reason}", allow_module_level=allow_module_level)


def cfg_text(*sections: str) -> str:
    """Return a darknet cfg of sections such as ``"yolo mask=0,1 classes=2"``."""
    lines = []
    for section in sections:
        name, *keys = section.split()
        lines += [f"[{name}]", *keys]
    return "\n".join([*lines, ""])


def parsed(graph: str, opset: int = 17) -> Any:
    from onnx import parser

    model = parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g {graph}')
    infer_shapes(model)
    return model
