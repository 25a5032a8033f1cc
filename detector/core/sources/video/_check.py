"""Demux a file again, and compare its packets with the frames that OpenCV decoded."""

from __future__ import annotations

from dataclasses import dataclass

import av

from detector.core.errors.text import counted
from detector.core.sources.video._container import Demuxed, VideoInfo, demux, open_container
from detector.core.sources.video._packets import PictureRule
from detector.core.sources.video._structure import find_damage


@dataclass(frozen=True, slots=True)
class Check:
    lost: int  # packets that must show a picture, minus the frames decoded
    remaining: int  # packets after the last frame
    error: str = ""  # why the demuxer stopped early
    damage: str = ""  # how the file's structure is damaged

    @property
    def reason(self) -> str:
        """Why the file should be decoded again packet by packet, or ""."""
        if self.error:
            return self.error
        if self.remaining:
            return f"{counted(self.remaining, 'packet')} left"
        return f"{counted(self.lost, 'packet')} gave no frame" if self.lost else ""


def check_packets(video: VideoInfo, frames: int, last_pts: int | None) -> Check:
    """Demux the file again and compare its packets with the number of decoded ``frames``."""
    demuxed, must_show, later, undated, error = Demuxed(), 0, 0, 0, ""
    with open_container(video.path) as container:
        stream = container.streams[video.stream]
        codec = stream.codec_context
        rule = PictureRule(video.info.codec, codec.extradata if codec else None)
        try:
            for packet in demux(container, stream):
                if not packet.size:  # the flush at the end
                    continue
                demuxed.add(packet)
                if packet.is_discard:  # hidden by an edit list
                    continue
                shows = rule.must_show(packet) or not rule.knows
                must_show += shows
                undated += packet.pts is None
                later += shows and None not in (packet.pts, last_pts) and packet.pts > last_pts
        except av.error.FFmpegError as problem:
            error = problem.strerror
        damage = find_damage(container, stream, demuxed)
    missing = max(0, must_show - frames)
    remaining = (
        missing if last_pts is None or undated else min(later, missing) if rule.knows else later
    )
    return Check(missing if rule.knows else 0, remaining, error, damage)
