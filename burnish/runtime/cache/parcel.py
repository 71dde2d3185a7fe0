"""One entry of the cache as it travels: its key, its bytes, and a signature, in one file of a store that others may
write to.

    "burnish entry 1" and a newline | length of the description, 4 bytes | description, in JSON
    | signature, 64 bytes | the entry's bytes

The signature is of everything before it; the description has the checksum of the bytes. So a reader knows whether to
trust an entry before it looks at more than its beginning.
"""

from __future__ import annotations

from burnish.runtime.cache.entry import META_BYTES, CacheKey, Damaged, Description, checksum, described, description_of
from burnish.runtime.signatures import SIGNATURE_BYTES, Signer, Verifier

_MAGIC = b"burnish entry 1\n"
_LENGTH_BYTES = 4
HEAD_BYTES = 1 << 14  # within which most descriptions end


def parcel_of(kind: str, key: CacheKey, data: bytes, signer: Signer) -> bytes:
    description = description_of(kind, key, data)
    if len(description) > META_BYTES:
        raise ValueError(f"a key of {len(description)} bytes")
    signed = _MAGIC + len(description).to_bytes(_LENGTH_BYTES, "big") + description
    return signed + signer.signature_of(signed) + data


def description_in(raw: bytes, kind: str, digest: str) -> Description:
    """What the beginning of a parcel says of it. It may be anybody's: for people to read. Raises Damaged."""
    return described(raw[len(_MAGIC) + _LENGTH_BYTES : _end_of_description(raw)], kind, digest)


def data_in(raw: bytes, kind: str, digest: str, trusted: tuple[Verifier, ...]) -> tuple[CacheKey, bytes]:
    """The key and the bytes of an entry that one of the trusted keys has signed. Raises Damaged."""
    end = _end_of_description(raw)
    signed, signature, data = raw[:end], raw[end : end + SIGNATURE_BYTES], raw[end + SIGNATURE_BYTES :]
    if not any(each.accepts(signed, signature) for each in trusted):
        raise Damaged("no key that is trusted here has signed it")
    found = description_in(raw, kind, digest)
    if len(data) != found.size or checksum(kind, digest, data) != found.sha256:
        raise Damaged("its bytes do not match their checksum")
    return CacheKey(found.factors), data


def _end_of_description(raw: bytes) -> int:
    start = len(_MAGIC) + _LENGTH_BYTES
    if not raw.startswith(_MAGIC) or len(raw) < start:
        raise Damaged("it is no entry of a cache")
    size = int.from_bytes(raw[len(_MAGIC) : start], "big")
    if size > META_BYTES or len(raw) < start + size:
        raise Damaged("its description is not whole")
    return start + size
