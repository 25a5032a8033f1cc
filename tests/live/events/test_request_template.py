"""Test webhook requests in the format of their receiver, as in the recipes of docs/live.md."""

import json
import re
from pathlib import Path

import pytest

from detector.core.errors import UsageError
from detector.core.errors.secrets import redact
from detector.live.events.webhook import Webhook, find_address
from tests.conftest import CHECKOUT
from tests.live.events.test_delivery import event, receiver
from tests.waiting import PATIENCE_S

RECIPES = re.findall(r"```yaml\n(url: .*?)```", (CHECKOUT / "docs/live.md").read_text(), re.DOTALL)
SECRETS = {"NTFY_TOKEN": "tk_Pl4nted", "TELEGRAM_TOKEN": "123456:Pl4nted-B_t"}
ODD = 'per"s\\on\n{event}\u00fc'


def send(folder: Path, text: str, **more) -> tuple[str, dict, bytes]:
    """Send an event and return the request's path, headers and body."""
    file = folder / "hook.yaml"
    with receiver() as (server, url):
        file.write_text(re.sub(r"https://[a-z.]+", url, text))
        target = Webhook(find_address(f"@{file}", SECRETS))
        target.send(event(1, "crosses", track=3, zone="b\u00fcro/1", direction="in", **more))
        request = server.posts.get(timeout=PATIENCE_S)
        target.close()
    assert target.lost() == 0
    assert "Pl4nted" not in redact(str(request))
    return request


def test_recipes_send_what_ntfy_and_telegram_accept(tmp_path):
    path, headers, body = send(tmp_path, next(recipe for recipe in RECIPES if "ntfy" in recipe))
    assert (path, headers["Authorization"]) == ("/", "Bearer tk_Pl4nted")
    # docs.ntfy.sh/publish: JSON goes to the root; only the topic is required; priority is 1 to 5.
    document, types = (
        json.loads(body),
        {"topic": str, "message": str, "title": str, "priority": int},
    )
    assert all(isinstance(document[key], kind) for key, kind in types.items())
    assert document.keys() == types.keys()
    assert document["message"].startswith("b\u00fcro/1 in 2026-11-22 ")
    path, headers, body = send(tmp_path, next(recipe for recipe in RECIPES if "telegram" in recipe))
    # core.telegram.org/bots/api: chat_id is a number, text has 1 to 4096 characters.
    assert path == f"/bot{SECRETS['TELEGRAM_TOKEN']}/sendMessage"
    assert headers["Content-Type"] == "application/json"
    document = json.loads(body)
    assert (document.keys(), type(document["chat_id"])) == ({"chat_id", "text"}, int)
    assert document["text"].startswith("door: person crosses b\u00fcro/1 in ")


def test_fields_are_escaped_for_url_header_json_and_text(tmp_path):
    text = 'url: "https://h/{zone}?c={class}"\nheaders: {title: "{class}"}\njson: '
    text += '{text: "a {class}", count: "{count}", side: "{side}", all: ["{track}{side}"]}'
    path, headers, body = send(tmp_path, text, class_name=ODD)
    assert path == "/b%C3%BCro%2F1?c=per%22s%5Con%0A%7Bevent%7D%C3%BC"
    assert headers["Title"].encode("latin-1").decode() == ODD.replace("\n", " ")
    assert json.loads(body) == {"text": f"a {ODD}", "count": 2, "side": None, "all": ["3"]}
    _, headers, body = send(tmp_path, 'url: https://h\nbody: "{class} {side}"', class_name=ODD)
    assert (headers["Content-Type"][:10], body.decode()) == ("text/plain", f"{ODD} ")
    assert json.loads(send(tmp_path, "url: https://h/x")[2])["event"] == "crosses"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('url: http://h\nbody: "{nmae}"', "unknown field {nmae}; known: event, camera, class"),
        ("url: http://h/${ABSENT}", "variable ABSENT is not set; set it"),
        ("url: http://h\njson: {text: {camera}}", "put quotes around the text with {camera}"),
        ("json: {}", "required field `url`"),
        ("url: http://h\nbdoy: x", "unknown field `bdoy`"),
        ('url: http://h\nheaders: {"a b": x}', "headers"),
        ("url: ['${NTFY_TOKEN}']", "Expected `str`"),
        ("url: ftp://h/${NTFY_TOKEN}", "only http and https"),
        ("url: 'http://{camera}/x'", "only http and https"),
        ("url: [${NTFY_TOKEN}", "not valid YAML"),
    ],
)
def test_refusal_of_an_invalid_template_shows_no_secrets(tmp_path, text, message):
    (tmp_path / "hook.yaml").write_text(text)
    with pytest.raises(UsageError) as refused:
        Webhook(find_address(f"@{tmp_path}/hook.yaml", SECRETS))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "Pl4nted" not in str(refused.value)
