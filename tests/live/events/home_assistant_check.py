"""Check payloads of devices (JSON on standard input) against Home Assistant's own schemas.

python3.13 -m venv ha && ha/bin/pip install homeassistant   # tried with 2026.2.3
DETECT_VIDEO_HOME_ASSISTANT=ha/bin/python scripts/test -k published_schema
"""

import asyncio
import importlib
import json
import sys

from homeassistant.components.mqtt import discovery
from homeassistant.core import HomeAssistant


def check(text: str) -> set[str]:
    """Return a device's platforms. An invalid text raises voluptuous.Invalid or AssertionError."""
    device = discovery._parse_device_payload(None, text, "camera", "node")
    assert device, "refused; the log above says why"
    platforms = set()
    for name, entity in device["components"].items():
        platform = entity.pop("platform")
        platforms.add(platform)
        if not entity:
            continue  # without other keys, the payload removes this entity
        config = discovery.MQTTDiscoveryPayload(entity)
        config["device"], config["origin"] = device["device"], device["origin"]
        discovery._merge_common_device_options(config, device)
        schema = importlib.import_module(f"homeassistant.components.mqtt.{platform}")
        unknown = config.keys() - schema.DISCOVERY_SCHEMA(dict(config)).keys()
        assert not unknown, f"{name}: Home Assistant drops {unknown}"
    return platforms


async def main() -> None:
    HomeAssistant(".")  # templates need an instance
    print(sorted(set().union(*map(check, json.load(sys.stdin)))))


if __name__ == "__main__":
    asyncio.run(main())
