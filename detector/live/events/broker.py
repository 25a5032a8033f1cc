"""The client of an MQTT broker that is not to be trusted further than it must.

A client that only publishes hears three kinds of packets, of two bytes each; one that subscribes
with QoS 0 hears two more. paho takes all kinds, of up to 256 MB, and answers some of them: a broker
could fill the memory with that, or keep a core busy. What paho raises on its own thread would end
that thread, and with it every event.
"""

from __future__ import annotations

import struct
import time

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

# The first byte's upper half.
CONNACK, PUBLISH, PUBACK, SUBACK, PINGRESP = 0x20, 0x30, 0x40, 0x90, 0xD0
QUALITY = 0x06  # of its lower half, in a PUBLISH
# Bytes after the head. Answers have two; a broker may be set up to send messages unasked.
LONGEST, LONGEST_HEARD = 64 << 10, 512 << 10
MOST_S = 10.0
MOST = 10_000  # packets in so many seconds: ours that were waiting, and what is sent unasked


class Client(paho.Client):
    """Ends a connection at an unexpected packet; drops messages, unless it ``subscribes``."""

    def __init__(self, subscribes: bool = False) -> None:
        super().__init__(CallbackAPIVersion.VERSION2)
        self._subscribes, self._longest = subscribes, LONGEST_HEARD if subscribes else LONGEST
        self._answers = {CONNACK, PUBACK, PINGRESP, *((SUBACK,) if subscribes else ())}
        self._counted, self._since_s = 0, 0.0

    def _sock_recv(self, bufsize: int) -> bytes:
        if bufsize > self._longest:  # the rest of a packet: its length is known before its content
            raise ConnectionAbortedError(f"a packet of {bufsize} bytes")
        return super()._sock_recv(bufsize)

    def _packet_handle(self) -> MQTTErrorCode:
        command = int(self._in_packet["command"])
        kind = command & 0xF0
        if self._is_too_much() or (kind == CONNACK and self.is_connected()):
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        is_message = kind == PUBLISH and not command & QUALITY
        if is_message and not self._subscribes:
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        if not is_message and kind not in self._answers:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        try:
            return super()._packet_handle()
        except (OSError, ValueError, IndexError, struct.error):  # OSError: it connects anew in here
            return MQTTErrorCode.MQTT_ERR_CONN_LOST

    def _is_too_much(self) -> bool:
        now = time.monotonic()
        if now - self._since_s > MOST_S:
            self._counted, self._since_s = 0, now
        self._counted += 1
        return self._counted > MOST
