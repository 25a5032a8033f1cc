"""The teacher: yolox_nano's boxes and scores for every cell. Its three grids match the student's cell by cell."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.cells import grid

PERSON, VEHICLES = 0, (2, 3, 5, 7)  # COCO: car, motorcycle, bus, truck


class Teacher:
    """``device`` "cpu": ONNX Runtime with one thread; "cuda": the same graph as a torch module."""

    def __init__(self, model: bytes, device: str = "cpu", threads: int = 1) -> None:
        self.device = device
        proto = any_size(model)
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

    def __call__(self, images: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """u8 RGB [B, H, W, 3] -> boxes xyxy [B, N, 4] in pixels, scores [B, N, 2] of person and vehicle."""
        bgr = np.ascontiguousarray(images[..., ::-1].transpose(0, 3, 1, 2), np.float32)
        if self.device == "cpu":
            rows = self._session.run(None, {"images": bgr})[0]
        else:
            rows = self._run_torch(bgr)
        return decoded(rows, *images.shape[1:3])

    def _run_torch(self, bgr: NDArray[np.float32]) -> NDArray[np.float32]:
        import torch

        with torch.no_grad(), torch.autocast(self.device, torch.float16):
            maps = self._module(focus(torch.from_numpy(bgr).to(self.device)))
        flat = [m.float().flatten(2) for m in maps]
        return torch.cat(flat, 2).transpose(1, 2).cpu().numpy()


def any_size(model: bytes):
    """The graph with free batch, height and width."""
    import onnx
    from onnx import numpy_helper

    proto = onnx.load_from_string(model)
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Reshape":
            fixed = numpy_helper.from_array(np.array([0, 85, -1], np.int64), node.input[1])
            constants[node.input[1]].CopyFrom(fixed)
    for info in (*proto.graph.input, *proto.graph.output):
        for at, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.dim_value not in (3, 85):
                dim.dim_param = f"{info.name}{at}"
    del proto.graph.value_info[:]
    return proto


def torch_module(proto):
    """The graph between the slices that YOLOX begins with and its three maps, as modules. See ``focus``."""
    import onnx

    from detector.engines.torch_graph import graph_module

    graph = proto.graph
    maps = [node.input[0] for node in graph.node if node.op_type == "Reshape"]
    reshaped = {node.output[0] for node in graph.node if node.op_type == "Reshape"}
    first = next(node for node in graph.node if node.op_type == "Concat")
    kept = [
        node
        for node in graph.node
        if node.op_type not in ("Reshape", "Transpose", "Slice") and node is not first and node.input[0] not in reshaped
    ]
    for node in kept:
        node.name = node.name.lower()
    start = first.output[0]
    del graph.node[:], graph.output[:], graph.input[:]
    graph.node.extend(kept)
    graph.input.append(onnx.helper.make_tensor_value_info(start, 1, None))
    graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in maps)
    return graph_module(proto)


def focus(x):
    """[B, 3, H, W] -> [B, 12, H/2, W/2], in the order of YOLOX."""
    import torch

    return torch.cat([x[..., dy::2, dx::2] for dx in (0, 1) for dy in (0, 1)], 1)


def decoded(rows: NDArray[np.float32], height: int, width: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """YOLOX's rows [B, N, 85] -> boxes xyxy, scores."""
    corners, strides, _ = grid(height, width)
    middle = (rows[..., :2] + corners) * strides
    half = np.exp(np.minimum(rows[..., 2:4], 8)) * strides / 2
    classes = np.stack([rows[..., 5 + PERSON], rows[..., [5 + v for v in VEHICLES]].max(-1)], axis=-1)
    return np.concatenate([middle - half, middle + half], axis=-1), classes * rows[..., 4:5]
