"""Every name that may stand in a checkpoint's pickle, exactly. None of them is ever imported: each has a stand-in here.

The lists are what YOLOv5, YOLOv7 and torch write. A name that is missing is refused, even where it would be harmless.
"""

from __future__ import annotations

INERT: dict[str, frozenset[str]] = {  # module -> classes whose instances become records of what was stored
    "models.yolo": frozenset(
        {"Model", "DetectionModel", "BaseModel", "SegmentationModel", "ClassificationModel", "Detect", "Segment"}
        | {"IDetect", "IAuxDetect", "IKeypoint", "IBin"}
    ),
    "models.common": frozenset(
        {
            "Conv",
            "DWConv",
            "DWConvTranspose2d",
            "Focus",
            "Bottleneck",
            "BottleneckCSP",
            "CrossConv",
            "C3",
            "C3x",
            "C3TR",
        }
        | {
            "C3SPP",
            "C3Ghost",
            "SPP",
            "SPPF",
            "GhostConv",
            "GhostBottleneck",
            "Contract",
            "Expand",
            "Concat",
            "AutoShape",
        }
        | {"TransformerLayer", "TransformerBlock", "Proto", "Classify", "MP", "SP", "ReOrg", "Shortcut", "Chuncat"}
        | {"Foldcut", "Stem", "DownC", "SPPCSPC", "GhostSPPCSPC", "GhostStem", "RepConv", "RepConv_OREPA", "ImplicitA"}
        | {"ImplicitM", "BottleneckCSPA", "BottleneckCSPB", "BottleneckCSPC", "RepBottleneck", "Res", "ResX", "Ghost"}
        | {"RepBottleneckCSPA", "RepBottleneckCSPB", "RepBottleneckCSPC", "ResCSPA", "ResCSPB", "ResCSPC", "ResXCSPA"}
        | {"ResXCSPB", "ResXCSPC", "GhostCSPA", "GhostCSPB", "GhostCSPC", "SwinTransformerBlock", "STCSPA", "STCSPB"}
        | {"STCSPC", "Hardswish"}
    ),
    "models.experimental": frozenset(
        {"CrossConv", "Sum", "MixConv2d", "Ensemble", "GhostConv", "GhostBottleneck", "C3"}
    ),
    "utils.activations": frozenset({"SiLU", "Hardswish", "Mish", "MemoryEfficientMish", "FReLU"}),
    "torch.nn.modules.activation": frozenset(
        {"SiLU", "LeakyReLU", "ReLU", "ReLU6", "Hardswish", "Hardsigmoid", "Mish", "Sigmoid", "Tanh", "ELU", "GELU"}
        | {"PReLU", "Softplus", "Softmax", "MultiheadAttention"}
    ),
    "torch.nn.modules.batchnorm": frozenset({"BatchNorm2d", "BatchNorm1d", "SyncBatchNorm"}),
    "torch.nn.modules.container": frozenset({"Sequential", "ModuleList", "ModuleDict"}),
    "torch.nn.modules.conv": frozenset({"Conv2d", "Conv1d", "ConvTranspose2d"}),
    "torch.nn.modules.dropout": frozenset({"Dropout", "Dropout2d"}),
    "torch.nn.modules.flatten": frozenset({"Flatten"}),
    "torch.nn.modules.linear": frozenset({"Linear", "Identity", "NonDynamicallyQuantizableLinear"}),
    "torch.nn.modules.normalization": frozenset({"LayerNorm", "GroupNorm"}),
    "torch.nn.modules.padding": frozenset({"ZeroPad2d"}),
    "torch.nn.modules.pooling": frozenset({"MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d"}),
    "torch.nn.modules.upsampling": frozenset({"Upsample", "UpsamplingNearest2d"}),
    # Around the network: the options of the training, figures of numpy, paths.
    "torch": frozenset({"Size", "device", "float16", "bfloat16", "float32", "float64", "int64", "strided"}),
    "torch.serialization": frozenset({"_get_layout"}),
    "argparse": frozenset({"Namespace"}),
    "pathlib": frozenset({"Path", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"}),
    "pathlib._local": frozenset({"Path", "PosixPath", "WindowsPath"}),
    "numpy": frozenset({"dtype", "ndarray", "float64", "float32", "int64"}),
    "numpy.core.multiarray": frozenset({"scalar", "_reconstruct"}),
    "numpy._core.multiarray": frozenset({"scalar", "_reconstruct"}),
    "_codecs": frozenset({"encode"}),
}

STORAGES: dict[str, str] = {  # torch class -> number type of tensors.py
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}

CONTAINERS: dict[tuple[str, str], type] = {  # plain Python, by both of its generations' names
    ("__builtin__", "set"): set,
    ("builtins", "set"): set,
    ("__builtin__", "frozenset"): frozenset,
    ("builtins", "frozenset"): frozenset,
}

REBUILDERS = frozenset(  # of torch._utils
    {"_rebuild_tensor_v2", "_rebuild_tensor", "_rebuild_parameter", "_rebuild_parameter_with_state"}
)


def allowed(module: str, name: str) -> bool:
    """Whether this very name has a stand-in."""
    return (
        name in INERT.get(module, ())
        or (module == "torch" and name in STORAGES)
        or (module == "torch._utils" and name in REBUILDERS)
        or (module, name) in CONTAINERS
        or (module, name) == ("collections", "OrderedDict")
    )


def of_a_newer_family(module: str) -> bool:
    """YOLOv8 and later, and YOLOv5u: their classes live in the package ``ultralytics``."""
    return module == "ultralytics" or module.startswith("ultralytics.")
