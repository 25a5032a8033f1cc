"""An MP4 file that can be played up to its last fragment while it is written.

Each fragment of 0.4 s is written with one call; if the disk is full, a partial fragment is cut off.
``finish`` adds an index and merges the fragments into one body ("hybrid" MP4), in which every
player can seek.
"""

from __future__ import annotations

import io
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import av

from detector.core.errors.writing import take_lock
from detector.live.camera_folder import open_file
from detector.live.recording.names import RECORDINGS, free_name
from detector.live.recording.samples import NS, USUAL_NS, VIDEO, Sample, Tracks

FRAGMENT_US = 400_000  # a kill loses a fragment and one more picture: less than 1 s
# How long video waits for earlier sound; with FFmpeg's default, a kill would lose 10 s.
INTERLEAVE_US = 250_000
# Files that may be longer get no index: an index stays in memory to the end (18 MB per hour).
LONGEST_INDEX_S = 3600.0


class Mp4:
    """Writes ``tracks`` to ``name.partial.mp4``, which is renamed to ``name.mp4`` at the end."""

    def __init__(self, folder: Path, name: str, tracks: Tracks, *, longest_s: float) -> None:
        self._folder, self._name = folder, name
        self.path: Path | None = None  # None before the first fragment
        # The pts_ns of the first video sample, which is time 0 of the file (dts may be earlier).
        self.start_ns: int | None = None
        self.refused = 0  # samples that the muxer rejected
        self.waiting = 0  # video samples not yet in the file
        self.bytes = 0
        self._fd = -1
        kind = "hybrid_fragmented" if longest_s <= LONGEST_INDEX_S else "empty_moov"
        self._pending = _ChunkBuffer()
        self._container: Any = av.open(
            self._pending,
            "w",
            format="mp4",
            options={
                "movflags": f"{kind}+delay_moov+default_base_moof",
                "frag_duration": str(FRAGMENT_US),
                "max_interleave_delta": str(INTERLEAVE_US),
                "flush_packets": "1",
            },
        )
        try:
            self._streams = [track.add_to(self._container) for track in tracks]
            self._container.start_encoding()
        except BaseException:
            self._container.close()
            raise
        self._time_bases = [track.time_base for track in tracks]
        self._last: list[int | None] = [None for _ in tracks]

    def write(self, sample: Sample) -> int | None:
        """Add a sample; the first must be a key frame. Return its time in the file in ns, or None
        if it was rejected. Raises OSError."""
        if sample.track >= len(self._streams):
            return None
        if self.start_ns is None:
            self.start_ns = sample.pts_ns
        packet = self._packet(sample, self.start_ns)
        if packet is None:
            return None
        base = self._time_bases[sample.track]
        shown_ns: int | None = packet.pts * NS * base.numerator // base.denominator
        before = len(self._pending.chunks)
        try:
            self._container.mux_one(packet)
        except (av.FFmpegError, ValueError):  # from the muxer, which writes only to memory
            self.refused += 1
            shown_ns = None
        self.waiting += sample.track == VIDEO
        if len(self._pending.chunks) > before:
            self._write_chunks()
            self.waiting = int(sample.track == VIDEO)  # this sample starts the next fragment
        return shown_ns

    def _packet(self, sample: Sample, start_ns: int) -> Any:
        base = self._time_bases[sample.track]
        ticks = NS * base.numerator, base.denominator

        def to_ticks(ns: int) -> int:
            return (2 * ns * ticks[1] + ticks[0]) // (2 * ticks[0])  # rounded without floats

        dts, last = to_ticks(sample.dts_ns - start_ns), self._last[sample.track]
        if dts < 0 and sample.track != VIDEO:
            return None
        if last is not None and dts <= last:
            dts = last + 1
        self._last[sample.track] = dts
        packet = av.Packet(sample.data)
        packet.time_base = base
        packet.dts = dts
        packet.pts = max(dts, to_ticks(sample.pts_ns - start_ns))
        # PyAV before 18.1 writes an unknown duration as 0; the last picture would never be shown.
        packet.duration = to_ticks(sample.duration_ns or USUAL_NS)
        packet.is_keyframe = sample.key
        packet.stream = self._streams[sample.track]
        return packet

    def _write_chunks(self) -> None:
        if self._fd < 0:
            self._create()
        size = os.fstat(self._fd).st_size
        chunks, self._pending.chunks = self._pending.chunks, []
        added = bytearray()
        for at, data in chunks:
            if at >= size:
                added[at - size : at - size + len(data)] = data
        try:
            _write_at(self._fd, size, bytes(added))
            for at, data in chunks:
                if at < size:  # ``finish`` rewrites earlier bytes to merge the fragments
                    _write_at(self._fd, at, data)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._fd, size)
            raise
        self.bytes = os.fstat(self._fd).st_size

    def _create(self) -> None:
        self._name = free_name(self._folder, self._name)
        self.path = self._folder / f"{self._name}.partial.mp4"
        self._fd = open_file(self.path, os.O_RDWR | os.O_EXCL, RECORDINGS)
        take_lock(self._fd)  # ``finish_leftovers`` of other runs skips locked files

    def finish(self) -> Path | None:
        """Finish the file. Return the final path, or None if the file is empty. Raises OSError."""
        container, self._container = self._container, None
        if container is None:
            return self.path
        try:
            if self.start_ns is not None:
                try:
                    container.close()
                except (av.FFmpegError, ValueError):
                    self.refused += 1
                self._write_chunks()
            else:
                container.close()
        finally:
            self._rename_final()
        return self.path

    def give_up(self) -> Path | None:
        """Close after a disk error; keep the complete fragments. Never raises."""
        container, self._container = self._container, None
        if container is not None:
            with suppress(av.FFmpegError, ValueError, OSError):
                container.close()
        self._pending.chunks.clear()
        with suppress(OSError):
            self._rename_final()
        return self.path

    def _rename_final(self) -> None:
        if self._fd < 0 or self.path is None:
            return
        size = os.fstat(self._fd).st_size
        os.close(self._fd)
        self._fd = -1
        if not size:
            self.path.unlink()
            self.path = None
            return
        final = self._folder / f"{self._name}.mp4"
        if os.path.lexists(final):
            final = self._folder / f"{free_name(self._folder, self._name)}.mp4"
        os.rename(self.path, final)
        self.path = final


class _ChunkBuffer(io.RawIOBase):
    """Collects PyAV's writes with their positions."""

    def __init__(self) -> None:
        self.chunks: list[tuple[int, bytes]] = []
        self._position = self._end = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self.chunks.append((self._position, piece))
        self._position += len(piece)
        self._end = max(self._end, self._position)
        return len(piece)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._end}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position


def _write_at(fd: int, position: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, position)
        view, position = view[written:], position + written
