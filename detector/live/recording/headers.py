"""Reads headers in packets: parameter sets of H.264 and H.265, and ADTS of AAC."""

from __future__ import annotations

from collections.abc import Iterator

import av

H264_SETS, H264_SLICES = (7, 8), (1, 5)  # types of NAL units: ITU-T H.264, table 7-1
HEVC_SETS, HEVC_SLICES = (32, 33, 34), (0, 31)  # ITU-T H.265, table 7-1
START = b"\x00\x00\x01"
# ISO 14496-3, table 1.18: sampling frequency index.
AAC_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)
AAC_LC = 2


def read_sets(codec: str, data: bytes) -> bytes | None:
    """Return the parameter sets before the first slice, in Annex B format like ``data``. Return
    None if a kind of parameter set is missing."""
    set_kinds, slices = (H264_SETS, H264_SLICES) if codec == "h264" else (HEVC_SETS, HEVC_SLICES)
    sets: dict[int, list[bytes]] = {kind: [] for kind in set_kinds}
    for unit in _nal_units(data):
        kind = unit[0] & 31 if codec == "h264" else unit[0] >> 1 & 63
        if kind in sets:
            sets[kind].append(unit)
        elif slices[0] <= kind <= slices[1]:
            break
    if not all(sets.values()):
        return None
    return b"".join(b"\x00" + START + unit for units in sets.values() for unit in units)


def _nal_units(data: bytes) -> Iterator[bytes]:
    begin = data.find(START)
    while begin >= 0:
        end = data.find(START, begin + 3)
        unit = data[begin + 3 : end if end >= 0 else len(data)].rstrip(b"\x00")
        if unit:
            yield unit
        begin = end


def decode_size(codec: str, sets: bytes, data: bytes) -> tuple[int, int] | None:
    try:
        context = av.CodecContext.create(codec, "r")
        context.extradata = sets
        for packet in (av.Packet(data), None):
            for frame in context.decode(packet):
                return int(frame.width), int(frame.height)
    except (av.FFmpegError, ValueError):
        pass
    return None


def split_adts(data: bytes) -> tuple[bytes, bytes] | None:
    """Split an ADTS packet into its AAC frame and an AudioSpecificConfig (ISO 14496-3, 1.A.2)."""
    if len(data) < 9 or data[0] != 0xFF or data[1] & 0xF6 != 0xF0:
        return None
    header_size = 7 if data[1] & 1 else 9
    kind, rate = (data[2] >> 6) + 1, data[2] >> 2 & 15
    channels = (data[2] & 1) << 2 | data[3] >> 6
    if not channels:
        return None
    return data[header_size:], bytes([kind << 3 | rate >> 1, (rate & 1) << 7 | channels << 3])


def make_aac_config(rate: int, channels: int) -> bytes | None:
    """Return an AudioSpecificConfig for AAC-LC; None if it cannot express the format."""
    if rate not in AAC_RATES or not 1 <= channels <= 6:
        return None
    index = AAC_RATES.index(rate)
    return bytes([AAC_LC << 3 | index >> 1, (index & 1) << 7 | channels << 3])
