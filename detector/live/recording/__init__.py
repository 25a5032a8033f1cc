"""Recordings of cameras, in files of N minutes or clips: drawn pictures, or their own packets.

names       how files are called, and what becomes of those that a killed run left
samples     a packet and its track, kept after their connection is gone
line        stamps that rise, whatever the camera says
headers     sizes and parameter sets, read from packets
sound       sound that MP4 does not hold, as AAC
connection  the packets of one connection as samples
encoder     drawn pictures as samples
mp4         one file, which plays up to its last fragment at any moment
segments    files of N minutes; a full disk
side_cars   boxes and labels beside a copy, as subtitles
clips       only what lies around detections
retention   days and GB
inbox       the bounded queue
recording   what becomes of each item, without a thread
recorder    the thread, and what others call
"""

from detector.live.recording.recorder import CameraRecorder
from detector.live.recording.recording import Quality, Wishes
from detector.live.recording.retention import Retention

__all__ = ["CameraRecorder", "Quality", "Retention", "Wishes"]
