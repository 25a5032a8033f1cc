"""Boxes and labels, drawn into the picture itself."""

from __future__ import annotations

import cv2
import numpy as np

from detector.types import Detections, Image

FONT = cv2.FONT_HERSHEY_SIMPLEX
FONT_HEIGHT = 21.0  # pixels of a capital at scale 1.0

# Bright, well apart, and readable under black or white text (BGR). Class 0 is the orange-red of a
# warning, since the first class is nearly always the person.
_HAND_PICKED = (
    (56, 87, 255),
    (219, 152, 52),
    (113, 204, 46),
    (18, 196, 241),
    (182, 89, 155),
    (156, 188, 26),
    (34, 126, 230),
    (180, 105, 255),
    (241, 240, 60),
    (60, 220, 190),
    (230, 80, 90),
    (140, 160, 250),
)


def _palette(n: int) -> tuple[tuple[int, int, int], ...]:
    """n distinct colours, BGR: the hand-picked ones, then hues a golden angle apart at three
    lightnesses.
    """
    i = np.arange(n - len(_HAND_PICKED))
    hsv = np.stack([i * 67 % 180, 130 + i % 2 * 90, 255 - i % 3 * 45], axis=1).astype(
        np.uint8
    )  # OpenCV hue: 0..179
    bgr = cv2.cvtColor(hsv[None], cv2.COLOR_HSV2BGR)[0]
    return _HAND_PICKED + tuple((int(b), int(g), int(r)) for b, g, r in bgr)


def _ink(color: tuple[int, int, int]) -> tuple[int, int, int]:
    """White text on a dark colour, black on a light one: a contrast of 3 : 1 at least, as WCAG 2
    counts it.
    """
    blue, green, red = ((channel / 255) ** 2.2 for channel in color)
    return (255, 255, 255) if 0.0722 * blue + 0.7152 * green + 0.2126 * red < 0.29 else (0, 0, 0)


PALETTE = _palette(80)  # COCO's classes; a higher class id begins again
INKS = tuple(_ink(color) for color in PALETTE)


def annotate(image: Image, detections: Detections, remark: str = "") -> None:
    """Draws each box with its label ("person 0.91") into ``image``, u8 BGR [h, w, 3], in place.

    ``remark`` is written at the bottom left of the picture: what whoever sees it must know.

    The best score is drawn last, so that it lies on top. Line width and text grow with the picture.
    Letters beyond ASCII in a class name need OpenCV 5; OpenCV 4 has only "?" for them.
    """
    height, width = image.shape[:2]
    size = min(max((height * width) ** 0.5, 1.0), 16384.0)
    line = max(1, round(size / 400))  # pixels: 2 at 1280x720, 20 at 8192x8192
    scale = max(0.4, size / 1500)  # 0.64 at 1280x720: capitals of 9 pixels with OpenCV 5, 13 with 4
    boxes, scores = detections.boxes.tolist(), detections.scores.tolist()
    for i in reversed(range(len(detections))):
        x1, y1, x2, y2 = (round(value) for value in boxes[i])
        shade = int(detections.class_ids[i]) % len(PALETTE)
        color = PALETTE[shade]
        # A box ends at an outer corner (x2 = width is the right edge): its last pixel is the one
        # before.
        cv2.rectangle(image, (x1, y1), (max(x1, x2 - 1), max(y1, y2 - 1)), color, line)
        _label(image, f"{detections.name(i)} {scores[i]:.2f}", x1, y1, shade, scale, line)
    if remark:
        _label(image, remark, 0, height, 3, scale, line)  # yellow


def _label(image: Image, text: str, x: int, y: int, shade: int, scale: float, line: int) -> None:
    """Text on a filled background: above the box's top left corner, or inside where the picture
    ends.
    """
    height, width = image.shape[:2]
    stroke = max(1, round(scale * 1.6))
    (text_width, text_height), below = cv2.getTextSize(text, FONT, scale, stroke)
    pad = max(1, round(FONT_HEIGHT * scale / 5))
    box_width, box_height = text_width + 2 * pad, text_height + below // 2 + 2 * pad
    left = max(0, min(x - line // 2, width - box_width))
    top = y - line // 2 - box_height
    if top < 0:
        top = max(0, min(y - line // 2, height - box_height))
    cv2.rectangle(
        image, (left, top), (left + box_width - 1, top + box_height - 1), PALETTE[shade], cv2.FILLED
    )
    cv2.putText(
        image,
        text,
        (left + pad, top + pad + text_height),
        FONT,
        scale,
        INKS[shade],
        stroke,
        cv2.LINE_AA,
    )
