"""Pictures with more than 8 bits per sample, alpha or several pages: pixels and notes."""

import struct
from itertools import accumulate
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from detector.core import sources
from detector.core.errors import SourceError
from detector.core.sources._deep import ALL_16_BITS
from detector.core.sources._pictures import read_picture
from detector.core.sources.base import FULL, Choice, parse_grey_range
from detector.core.types import Image
from detector.live.sources.decoding import Converter
from tests.covering import covering

HEIGHT, WIDTH = 48, 64
BYTE, SHORT, LONG = 1, 3, 4  # types of values in a TIFF


def shades() -> NDArray[np.float64]:
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([x / (WIDTH - 1), y / (HEIGHT - 1), (x + y) / (HEIGHT + WIDTH - 2)], -1)


def tiff(
    *pages: NDArray, order: str = "<", tile: int = 0, planes: bool = False, **tags: int | list[int]
) -> bytes:
    """Return an uncompressed TIFF of BGR(A) or grey arrays. ``tags``: further tags, as tNUMBER."""
    data, link = bytearray(b"II*\0" if order == "<" else b"MM\0*") + bytes(4), 4
    for page in pages:
        samples = 1 if page.ndim == 2 else page.shape[2]
        stored = page if samples == 1 else page[..., [2, 1, 0, 3][:samples]]
        stored = stored.astype(page.dtype.newbyteorder(order))
        parts = [*np.moveaxis(stored, -1, 0)] if planes else [stored]
        if tile:
            rows = [row for part in parts for row in np.split(part, len(part) // tile)]
            parts = [part for row in rows for part in np.split(row, row.shape[1] // tile, 1)]
        lengths = [part.nbytes for part in parts]
        kind = {"u": 1, "i": 2, "f": 3}[page.dtype.kind]
        entries: dict[int, tuple[int, list[int]]] = {
            256: (LONG, [page.shape[1]]),
            257: (LONG, [page.shape[0]]),
            258: (SHORT, [page.dtype.itemsize * 8] * samples),
            259: (SHORT, [1]),
            262: (SHORT, [1 if samples == 1 else 2]),
            277: (SHORT, [samples]),
            278: (LONG, [page.shape[0]]),
            324 if tile else 273: (LONG, [*accumulate(lengths[:-1], initial=len(data))]),
            325 if tile else 279: (LONG, lengths),
            284: (SHORT, [1 + planes]),
            339: (SHORT, [kind] * samples),
        }
        entries |= {322: (LONG, [tile]), 323: (LONG, [tile])} if tile else {}
        for name, value in tags.items():
            entries[int(name[1:])] = (SHORT, value if isinstance(value, list) else [value])
        data += b"".join(part.tobytes() for part in parts)
        data += b"\0" * (len(data) % 2)
        struct.pack_into(f"{order}I", data, link, len(data))
        link = len(data) + 2 + 12 * len(entries)
        table, values_after = struct.pack(f"{order}H", len(entries)), b""
        for tag, (kind_of, values) in sorted(entries.items()):
            packed = struct.pack(f"{order}{len(values)}{'H' if kind_of == SHORT else 'I'}", *values)
            if len(packed) > 4:
                values_after += packed
                packed = struct.pack(f"{order}I", link + 4 + len(values_after) - len(packed))
            table += struct.pack(f"{order}HHI", tag, kind_of, len(values)) + packed.ljust(4, b"\0")
        data += table + bytes(4) + values_after
    return bytes(data)


def read(path: Path, data: bytes | NDArray) -> tuple[Image, list[str]]:
    path.write_bytes(data) if isinstance(data, bytes) else cv2.imwrite(str(path), data)
    with sources.open(str(path)) as source:
        (frame,) = source
        return frame.image, source.notes


def largest_difference(image: Image, expected: NDArray) -> int:
    expected = expected if expected.ndim == 3 else expected[..., None]
    return int(np.abs(image.astype(int) - expected).max())


@pytest.mark.parametrize(
    ("bits", "channels", "suffix"), covering([8, 10, 12, 14], ["grey", "colour"], [".png", ".tif"])
)
def test_samples_of_few_bits_are_stretched_with_a_note(
    bits: int, channels: str, suffix: str, tmp_path: Path
) -> None:
    shown = shades() if channels == "colour" else shades()[..., 2]
    stored = np.rint(shown * (2**bits - 1)).astype(np.uint16)
    image, notes = read(tmp_path / f"a{suffix}", stored if suffix == ".png" else tiff(stored))
    assert largest_difference(image, np.rint(shown * 255)) <= 1
    (note,) = notes
    assert note.startswith(f"{tmp_path}/a{suffix}: its samples use only {bits} of 16 bits")


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("most", [65535, 40000])
def test_full_range_is_not_stretched(suffix: str, most: int, tmp_path: Path) -> None:
    stored = np.rint(shades() * most).astype(np.uint16)
    data = stored if suffix == ".png" else tiff(stored)
    image, notes = read(tmp_path / f"a{suffix}", data)
    assert np.array_equal(image, cv2.imread(str(tmp_path / f"a{suffix}")))
    assert [ALL_16_BITS in note for note in notes] == [True]


@pytest.mark.parametrize("factor", [256, 257])
def test_dark_picture_widened_from_8_bits_stays_dark(factor: int, tmp_path: Path) -> None:
    stored = (np.rint(shades() * 40) * factor).astype(np.uint16)
    image, notes = read(tmp_path / "a.png", stored)
    assert largest_difference(image, np.rint(shades() * 40)) == 0
    assert [ALL_16_BITS in note for note in notes] == [True]


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize(("bits", "opaque"), [(12, 4095), (12, 65535), (16, 65535)])
def test_alpha_of_16_bits_is_dropped_and_does_not_affect_the_range(
    suffix: str, bits: int, opaque: int, tmp_path: Path
) -> None:
    colours = np.rint(shades() * (2**bits - 1)).astype(np.uint16)
    alpha = np.full((HEIGHT, WIDTH, 1), opaque, np.uint16)
    alpha[:, :20] = opaque // 4
    stored = np.concatenate([colours, alpha], -1)
    data = stored if suffix == ".png" else tiff(stored, t338=2)
    image, notes = read(tmp_path / f"a{suffix}", data)
    assert largest_difference(image, np.rint(shades() * 255)) <= 1
    assert [ALL_16_BITS in note for note in notes] == [bits == 16]


@pytest.mark.parametrize("kind", [0, 2], ids=["unspecified", "unassociated"])
def test_alpha_is_dropped_in_tiff_and_png(kind: int, tmp_path: Path) -> None:
    colours = np.rint(shades() * 255).astype(np.uint8)
    alpha = np.repeat(np.arange(WIDTH, dtype=np.uint8)[None, :, None], HEIGHT, 0)
    stored = np.concatenate([colours, alpha], -1)
    of_tiff, notes = read(tmp_path / "a.tif", tiff(stored, t338=kind))
    of_png, _ = read(tmp_path / "a.png", stored)
    assert np.array_equal(of_tiff, colours)
    assert np.array_equal(of_png, colours)
    assert notes == []


def test_premultiplied_colours_are_divided_by_alpha(tmp_path: Path) -> None:
    colours = np.rint(shades() * 255).astype(np.uint8)
    alpha = np.full((HEIGHT, WIDTH, 1), 128, np.uint8)
    stored = np.concatenate([np.rint(colours * (128 / 255)).astype(np.uint8), alpha], -1)
    image, _ = read(tmp_path / "a.tif", tiff(stored, t338=1))
    assert largest_difference(image, colours) <= 1


@pytest.mark.parametrize(
    ("dtype", "channels", "most"),
    covering([np.float16, np.float32, np.float64], ["grey", "colour"], [1, 255, 4095]),
)
def test_float_samples_are_scaled_by_their_range(
    dtype: type, channels: str, most: int, tmp_path: Path
) -> None:
    shown = shades() if channels == "colour" else shades()[..., 2]
    image, notes = read(tmp_path / "a.tif", tiff((shown * most).astype(dtype)))
    assert largest_difference(image, np.rint(shown * 255)) <= 1
    assert f"0 to {most}" in notes[0]


@pytest.mark.parametrize(
    ("name", "dtype", "low", "high"),
    [
        ("counts.png", np.uint16, 30000, 30300),
        ("14 bits.png", np.uint16, 6000, 9000),
        ("centikelvin.tif", np.uint16, 29300, 31500),
        ("counts.pgm", np.uint16, 21000, 22000),
        ("kelvin.tif", np.float32, 290, 315),
        ("kelvin.pfm", np.float32, 290, 315),
        ("degrees.tif", np.float32, 5, 45),
        ("below zero.tif", np.int16, -300, 1500),
        ("heights.tif", np.float32, -200, 800),
    ],
)
def test_grey_on_a_narrow_range_is_stretched(name, dtype, low, high, tmp_path: Path) -> None:
    """Thermal cameras write such pictures, some with dead or hot pixels."""
    shown = np.kron(shades()[..., 2], np.ones((8, 8)))
    exact = shown * (high - low) + low
    stored = (exact if dtype == np.float32 else np.rint(exact)).astype(dtype)
    image, notes = read(tmp_path / name, stored if "tif" not in name else tiff(stored))
    assert largest_difference(image, np.rint(shown * 255)) <= 1
    assert f"{low} to {high}" in notes[0]
    stored[0, 0], stored[9, 9] = 0, 32000 if dtype == np.int16 else 65535
    image, _ = read(tmp_path / name, stored if "tif" not in name else tiff(stored))
    assert np.ptp(image[16:, 16:]) > 200
    grey_range = parse_grey_range(f"{low}-{low + 2 * (high - low)}")
    with sources.open(str(tmp_path / name), choice=Choice(grey=grey_range)) as source:
        assert (
            largest_difference(source.read().image[16:, 16:], np.rint(shown * 127.5)[16:, 16:]) <= 1
        )
    with sources.open(str(tmp_path / name), choice=Choice(grey=FULL)) as source:
        assert np.ptp(source.read().image[16:, 16:]) < 60 or low < 0


def test_grey_range_of_a_video_covers_all_pictures(tmp_path: Path) -> None:
    """The first pictures show only a shutter. Equal samples have equal shades in all pictures."""
    stored = [(shades()[..., 2] * 900 + 7500).astype(np.uint16) for _ in range(20)]
    for shutter in stored[:3]:
        shutter[:] = 7500
    with av.open(str(tmp_path / "a.mkv"), "w") as file:
        stream = file.add_stream("ffv1", rate=9)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "gray16le"
        for samples in stored:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(samples, "gray16le")))
        file.mux(stream.encode(None))
    for decoder in ("auto", "av"):
        with sources.open(str(tmp_path / "a.mkv"), decoder=decoder, pixels="yuv420p") as source:
            images = [frame.image for frame in source]
        for image, samples in zip(images, stored, strict=True):
            assert largest_difference(image, np.rint((samples - 7500.0) / 900 * 255)) <= 1
        assert "7500 to 8400" in source.notes[0]
    with sources.open(str(tmp_path / "a.mkv"), choice=Choice(grey=FULL)) as source:
        assert np.ptp(list(source)[-1].image) <= 4
    with pytest.raises(SourceError, match="--decoder auto"):
        sources.open(str(tmp_path / "a.mkv"), decoder="opencv")


def test_grey_range_of_a_camera_adapts_slowly() -> None:
    converter, shown = Converter(), []
    for low in [20000] * 3 + [30000] * 200:
        picture = (shades()[..., 2] * 900 + low).astype(np.uint16)
        shown.append(converter.convert(av.VideoFrame.from_ndarray(picture, "gray16le"), None))
    assert [np.ptp(shown[at]) > 250 for at in (0, 2, 3, -1)] == [True, True, False, True]
    assert converter.grey is not None
    assert "20000 to 20900" in converter.grey.note


def test_samples_that_are_nan_or_infinite_are_black(tmp_path: Path) -> None:
    stored = shades().astype(np.float32)
    stored[10:12, 10:12], stored[20, 20] = np.nan, np.inf
    image, notes = read(tmp_path / "a.tif", tiff(stored))
    expected = np.rint(shades() * 255)
    expected[10:12, 10:12], expected[20, 20] = 0, 0
    assert largest_difference(image, expected) <= 1
    assert "; 15 samples" in notes[0]
    image, notes = read(tmp_path / "b.tif", tiff(np.full_like(stored, np.nan)))
    assert not image.any()
    assert "all NaN or infinite" in notes[0]


@pytest.mark.skipif(not hasattr(cv2, "CV_32U"), reason="OpenCV before 5 reads no such TIFF")
@pytest.mark.parametrize("bits", [12, 31])
def test_integers_of_32_bits_are_scaled(bits: int, tmp_path: Path) -> None:
    stored = np.rint(shades()[..., 2] * (2**bits - 1)).astype(np.uint32)
    image, _ = read(tmp_path / "a.tif", tiff(stored))
    assert (
        largest_difference(image, np.rint(shades()[..., 2] * (255 if bits == 12 else 127.5))) <= 1
    )


@pytest.mark.parametrize("bits", [8, 16])
def test_picture_with_white_as_zero_is_inverted(bits: int, tmp_path: Path) -> None:
    most = 255 if bits == 8 else 4095
    stored = (most - np.rint(shades()[..., 2] * most)).astype(f"u{bits // 8}")
    image, _ = read(tmp_path / "a.tif", tiff(stored, t262=0))
    assert largest_difference(image, np.rint(shades()[..., 2] * 255)) <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("most", "tile", "order"), [(255, 0, "<"), (4095, 0, ">"), (255, 32, ">"), (4095, 32, "<")]
)
def test_tiff_orientation_is_applied(
    orientation: int, most: int, tile: int, order: str, tmp_path: Path
) -> None:
    stored = np.rint(shades() * most).astype(np.uint8 if most == 255 else np.uint16)
    stored, upright = stored[:32], np.rint(shades() * 255)[:32]
    show = {
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, -1),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright),
    }.get(orientation, upright)
    image, _ = read(tmp_path / "a.tif", tiff(stored, t274=orientation, tile=tile, order=order))
    assert largest_difference(image, show) <= 1


def test_first_of_several_pages_is_read_with_a_note(tmp_path: Path) -> None:
    first = np.rint(shades() * 255).astype(np.uint8)
    image, notes = read(tmp_path / "a.tif", tiff(first, 255 - first, first // 2))
    assert np.array_equal(image, first)
    (note,) = notes
    assert "a.tif: it has 3 pages" in note


@pytest.mark.parametrize("white", [8, 9], ids=["signed", "unsigned"])
def test_white_in_lab_colour_space_stays_white(white: int, tmp_path: Path) -> None:
    shown = np.repeat(np.rint(shades()[..., 2:] * 255), 3, -1)
    lab = cv2.cvtColor(shown.astype(np.uint8), cv2.COLOR_BGR2Lab)[..., ::-1]
    lab = lab ^ np.array([128, 128, 0] if white == 8 else [0, 0, 0], np.uint8)
    image, _ = read(tmp_path / "a.tif", tiff(lab, t262=white))
    assert largest_difference(image, shown) <= 2


def test_signed_samples_use_one_bit_less(tmp_path: Path) -> None:
    image, _ = read(tmp_path / "a.tif", tiff(np.rint(shades() * 32767).astype(np.int16)))
    assert largest_difference(image, np.rint(shades() * 255)) <= 1


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (tiff(shades().astype(np.uint8), t259=34712), "compression 34712"),
        (tiff(shades().astype(np.float32), planes=True), "unsupported kind"),
        (tiff(shades().astype(np.uint8), planes=True, t273=[8, 8, 60000]), "truncated"),
    ],
)
def test_tiff_that_cv2_misreads_is_refused(data: bytes, why: str, tmp_path: Path) -> None:
    """cv2 would return black, mix up the planes, or lose the last plane."""
    (tmp_path / "a.tif").write_bytes(data)
    with pytest.raises(SourceError, match=why):
        sources.open(str(tmp_path / "a.tif"))


def test_equal_notes_on_pictures_of_a_folder_are_joined(tmp_path: Path) -> None:
    for number in range(4):
        cv2.imwrite(str(tmp_path / f"{number}.png"), np.rint(shades() * 4095).astype(np.uint16))
    cv2.imwrite(str(tmp_path / "4.png"), np.rint(shades() * 255).astype(np.uint8))
    with sources.open(str(tmp_path)) as source:
        assert len(list(source)) == 5
    (note,) = source.notes
    assert note.startswith(f"{tmp_path}/0.png (and 3 others): its samples use only 12 ")


@pytest.mark.parametrize("length", [8, 30, 60, 200])
def test_truncated_tiff_reads_as_none(length: int, tmp_path: Path) -> None:
    (tmp_path / "a.tif").write_bytes(tiff(np.rint(shades() * 4095).astype(np.uint16))[:length])
    assert read_picture(str(tmp_path / "a.tif")) is None


def test_reading_a_cyclic_list_of_pages_ends(tmp_path: Path) -> None:
    data = bytearray(tiff(np.rint(shades() * 255).astype(np.uint8)))
    (first,) = struct.unpack_from("<I", data, 4)
    count = struct.unpack_from("<H", data, first)[0]
    struct.pack_into("<I", data, first + 2 + 12 * count, first)  # the next page is this one
    assert read(tmp_path / "a.tif", bytes(data))[1] == []
