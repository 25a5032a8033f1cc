"""An MQTT client that does not trust its broker.

A client that only publishes must accept three types of packets, with at most two bytes after the
header. A client that subscribes with QoS 0 must accept two more types. paho accepts packets of
all types, up to 256 MB each, and answers some, so a broker could fill the memory or keep a core
busy. An exception on paho's thread would end that thread and stop all events.
"""

from __future__ import annotations

import struct
import time

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

CONNACK, PUBLISH, PUBACK, SUBACK, PINGRESP = 0x20, 0x30, 0x40, 0x90, 0xD0  # packet types
QOS = 0x06  # the bits of a PUBLISH header that hold its QoS
# Size limits in bytes. Some brokers send messages even to a client that does not subscribe.
LONGEST, LONGEST_SUBSCRIBED = 64 << 10, 512 << 10
WINDOW_S = 10.0
MOST_PACKETS = 10_000  # in WINDOW_S; even a full queue needs far fewer acknowledgements


class Client(paho.Client):
    """Closes the connection at an unexpected packet. Reads messages only if it ``subscribes``."""

    def __init__(self, subscribes: bool = False) -> None:
        super().__init__(CallbackAPIVersion.VERSION2)
        self._subscribes = subscribes
        self._longest = LONGEST_SUBSCRIBED if subscribes else LONGEST
        self._accepted = {CONNACK, PUBACK, PINGRESP, *((SUBACK,) if subscribes else ())}
        self._packets, self._window_start_s = 0, 0.0

    def _sock_recv(self, bufsize: int) -> bytes:
        if bufsize > self._longest:  # the length that a packet's header states
            raise ConnectionAbortedError(f"a packet of {bufsize} bytes")
        return super()._sock_recv(bufsize)

    def _packet_handle(self) -> MQTTErrorCode:
        command = int(self._in_packet["command"])
        kind = command & 0xF0
        if self._is_flooded() or (kind == CONNACK and self.is_connected()):
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        is_message = kind == PUBLISH and not command & QOS
        if is_message and not self._subscribes:
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        if not is_message and kind not in self._accepted:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        try:
            return super()._packet_handle()
        except (OSError, ValueError, IndexError, struct.error):  # paho may reconnect, hence OSError
            return MQTTErrorCode.MQTT_ERR_CONN_LOST

    def _is_flooded(self) -> bool:
        now = time.monotonic()
        if now - self._window_start_s > WINDOW_S:
            self._packets, self._window_start_s = 0, now
        self._packets += 1
        return self._packets > MOST_PACKETS
