"""What TensorRT can do on this machine, and where it cannot, the reason."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from detector.core.engines.trt import driver

OLDEST = (7, 5)  # Turing: the oldest compute capability of TensorRT 10.15 to 11
AMPERE = (8, 0)  # the first with tf32 and bf16


def refusal(precision: str, device: str) -> str | None:
    """Why a precision cannot run on a device, or None."""
    if driver.absent() is not None:  # said by absent()
        return None
    try:
        gpu = driver.gpu_of(device)
    except driver.DriverError as exc:
        return str(exc)
    found = f"{gpu.name} has compute capability {gpu.capability[0]}.{gpu.capability[1]}"
    if gpu.capability < OLDEST:
        return f"{found}; TensorRT needs 7.5 (Turing) or newer"
    if precision in ("tf32", "bf16") and gpu.capability < AMPERE:
        return f"{found}; {precision} needs 8.0 (Ampere) or newer"
    return None


def driver_too_old() -> str | None:
    """Each of TensorRT's packages is made for one CUDA major; a driver serves all majors up to its
    own.
    """
    served = driver.cuda_version()
    for major in (13, 12):
        try:
            found = version(f"tensorrt-cu{major}-bindings")
        except PackageNotFoundError:
            continue
        if served[0] >= major:
            return None
        return (
            f"tensorrt {found} is made for CUDA {major}, but the driver supports only "
            f"{served[0]}.{served[1]}; update the driver, or: pip install tensorrt-cu{served[0]}"
        )
    return None
