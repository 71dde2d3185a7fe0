"""Signatures of packs: ed25519, by the package `cryptography`. Keys are PEM files, as `openssl genpkey` writes them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from burnish.errors import BadKey, MissingExtra, PackUnsigned

KeyFile = str | os.PathLike[str]


def signature_of(body: bytes, key: KeyFile) -> bytes:
    """`key` is the file of a private key without a password."""
    library = _library()
    found = _read(key, lambda data: library.serialization.load_pem_private_key(data, password=None))
    if not isinstance(found, library.ed25519.Ed25519PrivateKey):
        raise BadKey(str(key), "it is not an ed25519 private key")
    signature: bytes = found.sign(body)
    return signature


def require_signature(path: str, key: KeyFile, body: bytes, signature: bytes) -> None:
    """`key` is the file of a public key. Raises PackUnsigned if the pack was not signed with the private one."""
    library = _library()
    found = _read(key, library.serialization.load_pem_public_key)
    if not isinstance(found, library.ed25519.Ed25519PublicKey):
        raise BadKey(str(key), "it is not an ed25519 public key")
    if not signature:
        raise PackUnsigned(path, "it has no signature")
    try:
        found.verify(signature, body)
    except library.invalid:
        raise PackUnsigned(path, "its signature is not of this key") from None


class _Library(NamedTuple):
    serialization: Any
    ed25519: Any
    invalid: type[Exception]


def _library() -> _Library:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise MissingExtra("signatures of packs", "cryptography", "sign") from None
    return _Library(serialization, ed25519, InvalidSignature)


def _read(key: KeyFile, parse: Callable[[bytes], Any]) -> Any:
    try:
        return parse(Path(key).read_bytes())
    except (ValueError, TypeError) as error:
        raise BadKey(str(key), f"it cannot be read ({error})") from None
