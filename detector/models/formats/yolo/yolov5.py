"""Blocks of YOLOv5: CSP bottlenecks with three convolutions (C3) and spatial pyramids (SPP, SPPF).

Written from the graphs that the releases published and from the names and shapes in their state dicts. CSP: arXiv
1911.11929; pyramid pooling: arXiv 1406.4729.
"""

from __future__ import annotations

from detector.models.formats.yolo.blocks import Entry, Planner, Wanted
from detector.models.formats.yolo.steps import Value


def residual(
    planner: Planner,
    path: str,
    x: Value,
    channels: int,
    *,
    shortcut: bool,
    groups: int = 1,
    hidden: int,
) -> Value:
    """1x1, then 3x3; the input is added where the shapes allow."""
    inner = planner.conv(f"{path}.cv1", x, hidden)
    out = planner.conv(f"{path}.cv2", inner, channels, 3, 1, None, groups)
    return planner.add(f"{path}.add", x, out) if shortcut and x.channels == channels else out


def bottleneck(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    """Arguments: channels, shortcut, groups."""
    row = wanted.row
    shortcut, groups = row.flag(1, True), row.integer(2, 1)
    return residual(
        planner,
        path,
        inputs[0],
        wanted.channels,
        shortcut=shortcut,
        groups=groups,
        hidden=wanted.channels // 2,
    )


def c3(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    """Half of the channels through the bottlenecks, half past them. Arguments: channels, shortcut, groups."""
    row, x, hidden = wanted.row, inputs[0], wanted.channels // 2
    shortcut, groups = row.flag(1, True), row.integer(2, 1)
    through = planner.conv(f"{path}.cv1", x, hidden)
    past = planner.conv(f"{path}.cv2", x, hidden)
    for at in range(wanted.repeats):
        through = residual(
            planner,
            f"{path}.m.{at}",
            through,
            hidden,
            shortcut=shortcut,
            groups=groups,
            hidden=hidden,
        )
    return planner.conv(
        f"{path}.cv3", planner.concat(f"{path}.cat", [through, past]), wanted.channels
    )


def spp(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    """Max pools of three sizes side by side. Arguments: channels, kernels."""
    row = wanted.row
    kernels = row.arguments[1] if len(row.arguments) > 1 else (5, 9, 13)
    if not isinstance(kernels, (list, tuple)) or not all(
        type(kernel) is int and kernel % 2 and 1 <= kernel <= 31 for kernel in kernels[:9]
    ):
        raise row.error("kernels must be odd whole numbers up to 31: [5, 9, 13]")
    x = planner.conv(f"{path}.cv1", inputs[0], inputs[0].channels // 2)
    pools = [planner.max_pool(f"{path}.m.{at}", x, kernel) for at, kernel in enumerate(kernels[:9])]
    return planner.conv(f"{path}.cv2", planner.concat(f"{path}.cat", [x, *pools]), wanted.channels)


def sppf(planner: Planner, path: str, inputs: list[Value], wanted: Wanted) -> Value:
    """The same by one small pool three times in a row. Arguments: channels, kernel."""
    kernel = _odd(wanted, 1, 5)
    x = planner.conv(f"{path}.cv1", inputs[0], inputs[0].channels // 2)
    parts = [x]
    for at in range(3):
        parts.append(planner.max_pool(f"{path}.m.{at}", parts[-1], kernel))
    return planner.conv(f"{path}.cv2", planner.concat(f"{path}.cat", parts), wanted.channels)


def _odd(wanted: Wanted, at: int, default: int) -> int:
    kernel = wanted.row.integer(at, default, high=31)
    if kernel % 2 == 0:
        raise wanted.row.error(f"kernel {kernel} must be odd, or the pooled map has another size")
    return kernel


BLOCKS: dict[str, Entry] = {
    "Bottleneck": Entry(bottleneck),
    "C3": Entry(c3, repeats_inside=True),
    "SPP": Entry(spp),
    "SPPF": Entry(sppf),
}
