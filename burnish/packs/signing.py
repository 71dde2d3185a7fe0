"""Signatures of packs."""

from __future__ import annotations

from burnish.errors import PackUnsigned
from burnish.runtime.signatures import KeyFile, Signer, Verifier


def signature_of(body: bytes, key: KeyFile) -> bytes:
    """`key` is the file of a private key without a password."""
    return Signer(key).signature_of(body)


def require_signature(path: str, key: KeyFile, body: bytes, signature: bytes) -> None:
    """`key` is the file of a public key. Raises PackUnsigned if the pack was not signed with the private one."""
    verifier = Verifier.of(key)
    if not signature:
        raise PackUnsigned(path, "it has no signature")
    if not verifier.accepts(body, signature):
        raise PackUnsigned(path, "its signature is not of this key")
