"""Signatures of code that other machines run: ed25519, by the package `cryptography`. Keys are PEM files, as
`openssl genpkey -algorithm ed25519` writes them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from burnish.errors import BadKey, MissingExtra

KeyFile = str | os.PathLike[str]
SIGNATURE_BYTES = 64


class Signer:
    """Signs with a private key; `key` is its file, without a password."""

    def __init__(self, key: KeyFile) -> None:
        library = _library()
        self._key = _read(key, lambda data: library.serialization.load_pem_private_key(data, password=None))
        if not isinstance(self._key, library.ed25519.Ed25519PrivateKey):
            raise BadKey(str(key), "it is not an ed25519 private key")

    def signature_of(self, body: bytes) -> bytes:
        signature: bytes = self._key.sign(body)
        return signature

    def verifier(self) -> Verifier:
        """Of what this key has signed."""
        return Verifier(self._key.public_key())


class Verifier:
    """Checks signatures of one private key."""

    def __init__(self, public_key: Any) -> None:
        self._key = public_key
        self._invalid = _library().invalid

    @classmethod
    def of(cls, key: KeyFile) -> Verifier:
        """`key` is the file of a public key."""
        library = _library()
        found = _read(key, library.serialization.load_pem_public_key)
        if not isinstance(found, library.ed25519.Ed25519PublicKey):
            raise BadKey(str(key), "it is not an ed25519 public key")
        return cls(found)

    def accepts(self, body: bytes, signature: bytes) -> bool:
        try:
            self._key.verify(signature, body)
        except self._invalid:
            return False
        return True


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
        raise MissingExtra("signatures", "cryptography", "sign") from None
    return _Library(serialization, ed25519, InvalidSignature)


def _read(key: KeyFile, parse: Callable[[bytes], Any]) -> Any:
    try:
        return parse(Path(key).read_bytes())
    except OSError as error:
        raise BadKey(str(key), error.strerror or str(error)) from None
    except (ValueError, TypeError) as error:
        raise BadKey(str(key), f"it cannot be read ({error})") from None
