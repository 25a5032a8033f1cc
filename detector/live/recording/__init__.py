"""Recordings of cameras: files of N minutes or clips, of drawn pictures or copied packets."""

from detector.live.recording.recorder import CameraRecorder
from detector.live.recording.recording import Quality, Wishes
from detector.live.recording.retention import Retention

__all__ = ["CameraRecorder", "Quality", "Retention", "Wishes"]
