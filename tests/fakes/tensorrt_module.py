"""A fake module ``tensorrt`` or ``tensorrt_rtx``: the real TensorRT for RTX, except for the classes
that need a GPU."""

import importlib.machinery
from types import ModuleType

import tensorrt_rtx as rtx

from tests.fakes import tensorrt_building, tensorrt_inspecting, tensorrt_running
from tests.fakes.tensorrt_state import RTX_MAJOR, State

VERSIONS = {10: "10.16.1.11", 11: "11.4.0.106", RTX_MAJOR: rtx.__version__}
# Names of the library's classes -> the fakes that replace them.
REPLACED = {
    name: kind
    for part in (tensorrt_building, tensorrt_running, tensorrt_inspecting)
    for name, kind in vars(part).items()
    if isinstance(kind, type) and kind.__module__ == part.__name__ and hasattr(rtx, name)
}


def make_module(state: State) -> ModuleType:
    """Make the module on fake GPUs; tests inspect its attribute ``fake``. Each module has its own
    classes, so that a test may change them."""
    module = ModuleType(state.edition.module)
    module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    module.__version__ = VERSIONS[state.major]
    module.fake = state
    for name, kind in REPLACED.items():
        # The real __del__ only warns that it is deprecated.
        destructor = vars(kind).get("__del__", lambda self: None)
        space = {"_trt": module, "__slots__": (), "__del__": destructor}
        setattr(module, name, type(kind)(name, (kind,), space))
    module.__getattr__ = lambda name: getattr(rtx, name)
    return module
