"""The client of an MQTT broker that is not to be trusted further than a publisher must.

Whoever publishes and never subscribes hears three kinds of packets, of two bytes each. paho takes
all kinds, of up to 256 MB, and answers some of them: a broker could fill the memory with that, or
keep a core busy. What paho raises on its own thread would end that thread, and with it every event.
"""

from __future__ import annotations

import struct
import time

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

CONNACK, PUBLISH, PUBACK, PINGRESP = 0x20, 0x30, 0x40, 0xD0  # the first byte's upper half
QUALITY = 0x06  # of its lower half, in a PUBLISH
# Bytes after the head. Answers have two; a broker may be set up to send messages unasked.
LONGEST = 64 << 10
MOST_S = 10.0
MOST = 10_000  # packets in so many seconds: ours that were waiting, and what is sent unasked


class Client(paho.Client):
    """Ends a connection at an unexpected packet; drops messages that want no answer."""

    def __init__(self) -> None:
        super().__init__(CallbackAPIVersion.VERSION2)
        self._counted, self._since_s = 0, 0.0

    def _sock_recv(self, bufsize: int) -> bytes:
        if bufsize > LONGEST:  # the rest of a packet: its length is known before its content
            raise ConnectionAbortedError(f"a packet of {bufsize} bytes")
        return super()._sock_recv(bufsize)

    def _packet_handle(self) -> MQTTErrorCode:
        command = int(self._in_packet["command"])
        kind = command & 0xF0
        if self._is_too_much() or (kind == CONNACK and self.is_connected()):
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        if kind == PUBLISH and not command & QUALITY:
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        if kind not in (CONNACK, PUBACK, PINGRESP):
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
