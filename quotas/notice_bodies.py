"""A message as each receiver wants it, and signed as each defines it. Pure: time and secret come in.

What a person named a job is data: it is told as plain text, so that nobody is called (@all), nothing is made bold and no link is made
by a name. Lengths stay below what each product takes.

  generic   our JSON; headers X-NebulaGrid-Timestamp and -Signature: sha256=HMAC-SHA256(secret, "<timestamp>.<body>") in hex
  feishu    "post"; with a secret: timestamp (s) and sign = base64(HMAC-SHA256(key "<timestamp>\\n<secret>", "")) in the body
  dingtalk  "text"; with a secret: &timestamp (ms) and &sign = base64(HMAC-SHA256(secret, "<timestamp>\\n<secret>")) in the address
  wecom     "text"; its address is its password
  slack     blocks of plain text; its address is its password
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

from quotas.notify import Message, fill

NAME = "NebulaGrid"
TEXT_MAX = 1500  # characters; in UTF-8 below WeCom's 2048 bytes after the cut of _bytes_cut
WECOM_BYTES = 2000
SIGNATURE, TIMESTAMP = "X-NebulaGrid-Signature", "X-NebulaGrid-Timestamp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    url: str
    body: bytes
    headers: Mapping[str, str]


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """What a receiver of the generic format compares (docs/alerts.md shows how)."""
    return "sha256=" + hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()


def outgoing(
    message: Message, *, format: str, url: str, secret: str, template: str, delivery: int, now: float, more: str = "", open_word: str
) -> Outgoing:
    """The request for one delivery. ``now``: Unix time; ``more``: a last sentence, such as that no more is sent for now; ``open_word``:
    what the link is called."""
    text = text_of(message, template=template, more=more)
    title = _one_line(message.title)[:120]
    headers = {"Content-Type": "application/json; charset=utf-8"}
    body: dict[str, Any]
    if format == "feishu":
        body = _feishu(message, title, text, open_word)
        if secret:
            stamp = str(int(now))
            sign = base64.b64encode(hmac.new(f"{stamp}\n{secret}".encode(), b"", hashlib.sha256).digest()).decode()
            body |= {"timestamp": stamp, "sign": sign}
    elif format == "dingtalk":
        body = {"msgtype": "text", "text": {"content": _plain(message, title, text)}}
        if secret:
            stamp = str(int(now * 1000))
            sign = base64.b64encode(hmac.new(secret.encode(), f"{stamp}\n{secret}".encode(), hashlib.sha256).digest()).decode()
            url += f"{'&' if '?' in url else '?'}timestamp={stamp}&sign={quote_plus(sign)}"
    elif format == "wecom":
        # "<@name>" calls somebody even in plain text.
        content = _plain(message, title, text).replace("<@", "<\u200b@")
        body = {"msgtype": "text", "text": {"content": _bytes_cut(content, WECOM_BYTES)}}
    elif format == "slack":
        body = _slack(message, title, text, open_word)
    else:
        body = {
            "id": delivery,
            "kind": message.kind,
            "event": message.event,
            "tone": message.tone,
            "title": title,
            "text": text,
            "url": message.url,
            "at": message.at.isoformat(),
            "language": message.language,
            "params": dict(message.params),
        }
    data = json.dumps(body, ensure_ascii=False, separators=(",", ":"), default=str).encode()
    if format == "generic":
        headers |= {"X-NebulaGrid-Event": message.kind, "X-NebulaGrid-Delivery": str(delivery), TIMESTAMP: str(int(now))}
        if secret:
            headers[SIGNATURE] = signature(secret, int(now), data)
    return Outgoing(url=url, body=data, headers=headers)


def text_of(message: Message, *, template: str = "", more: str = "") -> str:
    """The message's text, or a person's own with {title}, {text}, {url}, {at} and the names of its numbers."""
    text = message.text
    if template:
        values = {
            **message.params,
            "title": message.title,
            "text": message.text,
            "url": message.url,
            "at": f"{message.at:%Y-%m-%d %H:%M} UTC",
        }
        text = fill(template, {**values, "kind": message.kind, "tone": message.tone})
    text = text[:TEXT_MAX]
    return f"{text}\n{more}".strip() if more else text


def verdict(format: str, body: bytes) -> tuple[bool, bool, str]:
    """What an answer with status 200 means: (delivered, final, text). The Chinese products say in the body what went wrong; a page of
    HTML, such as a proxy's or a sign-in, is no answer of any chat service, and may be gone with the next try."""
    if format == "slack":
        is_page = body.lstrip()[:1] == b"<"
        return not is_page, not is_page, "the answer is a web page, not the chat service's" if is_page else ""
    if format not in ("feishu", "dingtalk", "wecom"):
        return True, True, ""
    try:
        found = json.loads(body)
        code = found.get("code", found.get("StatusCode")) if format == "feishu" else found.get("errcode")
        text = str(found.get("msg", found.get("StatusMessage", found.get("errmsg", ""))))
    except (ValueError, AttributeError, RecursionError):
        return False, False, "the answer is not the chat service's"
    if code == 0:
        return True, True, ""
    # Too many in a minute, or the receiver is ill: that passes.
    is_final = code not in (None, 9499, 11232, 130101, 410100, 660026, 45009, -1)
    return False, is_final, f"{code}: {text}"[:200] if code is not None else "the answer is not the chat service's"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _plain(message: Message, title: str, text: str) -> str:
    return "\n".join(line for line in (f"{NAME}: {title}", text, message.url) if line)


def _feishu(message: Message, title: str, text: str, open_word: str) -> dict[str, Any]:
    lines = [[{"tag": "text", "text": line}] for line in text.splitlines() if line]
    if message.url:
        lines.append([{"tag": "a", "text": open_word, "href": message.url}])
    language = "zh_cn" if message.language.startswith("zh") else "en_us"
    return {"msg_type": "post", "content": {"post": {language: {"title": f"{NAME}: {title}", "content": lines}}}}


def _slack(message: Message, title: str, text: str, open_word: str) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = [{"type": "header", "text": {"type": "plain_text", "text": title, "emoji": False}}]
    if text:
        blocks.append({"type": "section", "text": {"type": "plain_text", "text": text, "emoji": False}})
    if message.url:
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": f"<{message.url}|{open_word}>"}})
    # What a notification shows, where blocks can't be; here & < > are the signs that call people and make links.
    fallback = f"{title}\n{text}".replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": fallback, "blocks": blocks}


def _bytes_cut(text: str, limit: int) -> str:
    return text.encode()[:limit].decode(errors="ignore")
