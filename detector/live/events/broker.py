"""An MQTT client that does not trust its broker.

A client that only publishes needs three kinds of packets, of two bytes each; one that subscribes
with QoS 0 needs two more. paho accepts all kinds, of up to 256 MB, and answers some of them, so a
broker could fill the memory or keep a core busy. An exception on paho's thread would end that
thread and stop all events.
"""

from __future__ import annotations

import struct
import time

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

CONNACK, PUBLISH, PUBACK, SUBACK, PINGRESP = 0x20, 0x30, 0x40, 0x90, 0xD0  # upper half of byte 0
QUALITY = 0x06  # bits of byte 0 of a PUBLISH
# Bytes after the header. Answers have two, but some brokers send messages without a subscription.
LONGEST, LONGEST_HEARD = 64 << 10, 512 << 10
MOST_S = 10.0
MOST = 10_000  # packets in MOST_S: answers to queued messages, and unrequested ones


class Client(paho.Client):
    """Ends a connection at an unexpected packet. Ignores messages, unless it ``subscribes``."""

    def __init__(self, subscribes: bool = False) -> None:
        super().__init__(CallbackAPIVersion.VERSION2)
        self._subscribes, self._longest = subscribes, LONGEST_HEARD if subscribes else LONGEST
        self._answers = {CONNACK, PUBACK, PINGRESP, *((SUBACK,) if subscribes else ())}
        self._counted, self._since_s = 0, 0.0

    def _sock_recv(self, bufsize: int) -> bytes:
        if bufsize > self._longest:  # a packet's length is known before its content
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
        except (OSError, ValueError, IndexError, struct.error):  # OSError: paho reconnects in here
            return MQTTErrorCode.MQTT_ERR_CONN_LOST

    def _is_too_much(self) -> bool:
        now = time.monotonic()
        if now - self._since_s > MOST_S:
            self._counted, self._since_s = 0, now
        self._counted += 1
        return self._counted > MOST
