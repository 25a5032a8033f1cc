"""Choose ONNX Runtime's device, and refuse precisions that it does not compute there."""

from __future__ import annotations

from detector.core.engines.base import NVIDIA_DRIVER, EngineOptions, best_streams

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
WITH_CUDA = "pip uninstall onnxruntime, then pip install onnxruntime-gpu"

ON_GPU_ONLY = {
    "tf32": "it needs a GPU",
    # On a CPU, with the model ``street`` in fp16, ONNX Runtime inserted a cast on each edge, ran
    # all 47 convolutions in fp32, and was not faster. In bf16, it ran none of them.
    "fp16": "ONNX Runtime computes an fp16 graph in fp32 on a CPU, with casts",
}


def refusal(precision: str, device: str) -> str | None:
    if device.startswith("cuda") and not has_cuda():
        absent = "" if NVIDIA_DRIVER.exists() else "found no NVIDIA driver (use --device cpu); "
        return f"--device {device}: {absent}{why_no_cuda()}"
    if precision == "int8" and device.startswith("cuda"):
        return (
            "ONNX Runtime has no int8 convolutions on a GPU and would compute them in fp32; "
            "use --device cpu, or --engine trt"
        )
    if precision not in ON_GPU_ONLY or (device != "cpu" and has_cuda()):
        return None
    why = "--device is cpu" if device == "cpu" else why_no_cuda()
    return f"{ON_GPU_ONLY[precision]}; use --precision fp32 ({why})"


def best_concurrency(options: EngineOptions) -> int:
    """Return how many requests fill a CPU's cores, or 1 for a GPU (we have not measured more)."""
    return 1 if wanted_device(options) != "cpu" else best_streams(options)


def has_cuda() -> bool:
    import onnxruntime

    return CUDA in onnxruntime.get_available_providers()


def why_no_cuda() -> str:
    return f"this build of onnxruntime has no CUDA provider; to get one: {WITH_CUDA}"


def wanted_device(options: EngineOptions) -> str:
    """Return "cpu" or "cuda:N". ``auto`` is the first GPU if this build has CUDA and supports the
    precision on a GPU, otherwise the CPU."""
    if options.device == "auto":
        return "cuda:0" if options.precision != "int8" and has_cuda() else "cpu"
    return f"cuda:{index_of(options.device)}" if options.device != "cpu" else "cpu"


def index_of(device: str) -> int:
    return int(device.partition(":")[2] or 0)
