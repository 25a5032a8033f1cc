"""Fakes of the libcuda functions that detector/core/engines/trt/driver.py calls."""

import ctypes

from tests.fakes.device import Device

CONTEXT = 0xC0  # handle of the first GPU's primary context


class Libcuda:
    """``error``: the return code of cuInit. ``gpus``: name and compute capability of each."""

    def __init__(
        self, device: Device, gpus=(("Fake L4", (8, 9)),), error: int = 0, cuda: int = 13010
    ) -> None:
        self.device, self.gpus, self.error, self.cuda = device, list(gpus), error, cuda
        self.retained = 0

    def cuInit(self, flags: int) -> int:  # noqa: N802 (the C name)
        assert flags == 0
        return self.error

    def cuGetErrorName(self, code: int, text) -> int:  # noqa: N802
        text._obj.value = {100: b"CUDA_ERROR_NO_DEVICE", 999: b"CUDA_ERROR_UNKNOWN"}.get(
            code, b"CUDA_ERROR_OTHER"
        )
        return 0

    def cuDriverGetVersion(self, version) -> int:  # noqa: N802
        version._obj.value = self.cuda
        return 0

    def cuDeviceGetCount(self, count) -> int:  # noqa: N802
        count._obj.value = len(self.gpus)
        return 0

    def cuDeviceGet(self, device, index: int) -> int:  # noqa: N802
        if index >= len(self.gpus):
            return 101
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, text, size: int, device) -> int:  # noqa: N802
        text.value = self.gpus[device.value][0].encode()
        return 0

    def cuDeviceGetPCIBusId(self, text, size: int, device) -> int:  # noqa: N802
        text.value = f"0000:{0x3B + device.value:02X}:00.0".encode()
        return 0

    def cuDeviceGetAttribute(self, value, attribute: int, device) -> int:  # noqa: N802
        value._obj.value = self.gpus[device.value][1][{75: 0, 76: 1}[attribute]]
        return 0

    def cuDeviceTotalMem_v2(self, size, device) -> int:  # noqa: N802
        size._obj.value = self.device.total
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device) -> int:  # noqa: N802
        self.retained += 1
        context._obj.value = CONTEXT + device.value
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device) -> int:  # noqa: N802
        self.retained -= 1
        return 0

    def cuCtxPushCurrent_v2(self, context) -> int:  # noqa: N802
        assert isinstance(context, ctypes.c_void_p)
        number = context.value - CONTEXT
        assert 0 <= number < len(self.gpus)
        self.device.push(number)
        return 0

    def cuCtxPopCurrent_v2(self, context) -> int:  # noqa: N802
        self.device.pop()
        return 0

    def cuMemGetInfo_v2(self, free, total) -> int:  # noqa: N802
        self.device.require_current()
        free._obj.value, total._obj.value = self.device.total - self.device.used, self.device.total
        return 0
