"""The teacher, YOLOX-nano, which gives a box and scores for every cell of the student's grids.

Both networks have heads at strides 8, 16 and 32, so their cells match one to one.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

STRIDES = (8, 16, 32)
ANCHORS = ((16.0, 20.0), (44.0, 52.0), (128.0, 120.0))  # pixels, as in street.cfg
PERSON, VEHICLES = 0, (2, 3, 5, 7)  # COCO's ids of person; car, motorcycle, bus, truck


@lru_cache(maxsize=16)
def cell_grid(
    height: int, width: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return all cells' upper left corners [N, 2] (unit: cells), strides [N, 1], anchors [N, 2].

    The cells are in the order of the outputs.
    """
    corners, strides, anchors = [], [], []
    for stride, anchor in zip(STRIDES, ANCHORS, strict=True):
        y, x = np.indices((height // stride, width // stride), np.float32)
        corners.append(np.stack([x, y], axis=-1).reshape(-1, 2))
        strides.append(np.full((corners[-1].shape[0], 1), stride, np.float32))
        anchors.append(np.tile(np.array(anchor, np.float32), (corners[-1].shape[0], 1)))
    return np.concatenate(corners), np.concatenate(strides), np.concatenate(anchors)


def cell_centres(height: int, width: int) -> NDArray[np.float32]:
    """Return the cells' centres [N, 2] in pixels."""
    corners, strides, _ = cell_grid(height, width)
    return (corners + 0.5) * strides


class Teacher:
    """Runs the teacher on ``device``: "cpu" by ONNX Runtime, "cuda" as a torch module."""

    def __init__(self, model: bytes, device: str = "cpu", threads: int = 1) -> None:
        self.device = device
        proto = free_size(model)
        if device == "cpu":
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            options.log_severity_level = 3
            options.add_session_config_entry("session.set_denormal_as_zero", "1")
            self._session = onnxruntime.InferenceSession(
                proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        else:
            self._module = torch_module(proto).to(device)

    def __call__(
        self, images: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Convert u8 RGB [B, H, W, 3] to boxes xyxy [B, N, 4] in pixels and scores [B, N, 2]."""
        bgr = np.ascontiguousarray(images[..., ::-1].transpose(0, 3, 1, 2), np.float32)
        if self.device == "cpu":
            rows = self._session.run(None, {"images": bgr})[0]
        else:
            rows = self._run_torch(bgr)
        return decode_yolox(rows, *images.shape[1:3])

    def _run_torch(self, bgr: NDArray[np.float32]) -> NDArray[np.float32]:
        import torch

        with torch.no_grad(), torch.autocast(self.device, torch.float16):
            maps = self._module(focus(torch.from_numpy(bgr).to(self.device)))
        flat = [m.float().flatten(2) for m in maps]
        return torch.cat(flat, 2).transpose(1, 2).cpu().numpy()


def free_size(model: bytes):
    """Load the ONNX graph, which was exported at 416x416, and allow any batch and size."""
    import onnx
    from onnx import numpy_helper

    proto = onnx.load_from_string(model)
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Reshape":
            shape = numpy_helper.from_array(np.array([0, 85, -1], np.int64), node.input[1])
            constants[node.input[1]].CopyFrom(shape)
    for info in (*proto.graph.input, *proto.graph.output):
        for at, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.dim_value not in (3, 85):
                dim.dim_param = f"{info.name}{at}"
    del proto.graph.value_info[:]
    return proto


def torch_module(proto):
    """Convert the graph to a torch module that turns the output of ``focus`` into three maps."""
    import onnx

    from detector.core.engines.torch.graph import graph_module

    graph = proto.graph
    maps = [node.input[0] for node in graph.node if node.op_type == "Reshape"]
    reshaped = {node.output[0] for node in graph.node if node.op_type == "Reshape"}
    first = next(node for node in graph.node if node.op_type == "Concat")
    remaining = [
        node
        for node in graph.node
        if node.op_type not in ("Reshape", "Transpose", "Slice")
        and node is not first
        and node.input[0] not in reshaped
    ]
    for node in remaining:
        node.name = node.name.lower()
    start = first.output[0]
    del graph.node[:], graph.output[:], graph.input[:]
    graph.node.extend(remaining)
    graph.input.append(onnx.helper.make_tensor_value_info(start, 1, None))
    graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in maps)
    return graph_module(proto)


def focus(x):
    """Rearrange [B, 3, H, W] to [B, 12, H/2, W/2]: the pixels of a 2x2 square become channels, as
    in YOLOX."""
    import torch

    return torch.cat([x[..., dy::2, dx::2] for dx in (0, 1) for dy in (0, 1)], 1)


def decode_yolox(
    rows: NDArray[np.float32], height: int, width: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Convert YOLOX's rows [B, N, 85] to boxes xyxy [B, N, 4], and scores of person and vehicle
    [B, N, 2]."""
    corners, strides, _ = cell_grid(height, width)
    middle = (rows[..., :2] + corners) * strides
    half = np.exp(np.minimum(rows[..., 2:4], 8)) * strides / 2
    vehicle = rows[..., [5 + v for v in VEHICLES]].max(-1)
    classes = np.stack([rows[..., 5 + PERSON], vehicle], axis=-1)
    return np.concatenate([middle - half, middle + half], axis=-1), classes * rows[..., 4:5]
