"""Messages between a process and its workers: a JSON object, and bytes that come with it."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_LENGTHS = struct.Struct("<QQ")
_MOST = 1 << 30  # bytes of one message: more is nonsense


def send(to: socket.socket, head: dict[str, Any], body: bytes = b"") -> None:
    text = json.dumps(head).encode()
    to.sendall(_LENGTHS.pack(len(text), len(body)) + text + body)


def receive(source: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Raises EOFError when the other end is closed."""
    head, body = _LENGTHS.unpack(_exactly(source, _LENGTHS.size))
    if head + body > _MOST:
        raise EOFError("not a message")
    text = _exactly(source, head)
    return json.loads(text), _exactly(source, body)


def _exactly(source: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = source.recv(min(count, 1 << 20))
        if not part:
            raise EOFError("closed")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
