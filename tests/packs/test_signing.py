"""Signed packs: a pack of another key, or of none, is not loaded where a key is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import burnish
from burnish.errors import BadKey, PackDamaged, PackUnsigned
from burnish.packs import container
from burnish.packs.signing import signature_of
from tests.packs.models import tiny

pytest.importorskip("cryptography", reason="the extra [sign] is not installed")


def keys(folder: Path, name: str) -> tuple[Path, Path]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    private = ed25519.Ed25519PrivateKey.generate()
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    secret, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    secret.write_bytes(private.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    public.write_bytes(private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return secret, public


@pytest.fixture
def ours(tmp_path: Path) -> tuple[Path, Path]:
    return keys(tmp_path, "ours")


def signed(path: Path, of: Path, key: Path) -> Path:
    body = container.read(of).body
    path.write_bytes(container.sealed(body, signature_of(body, key)))
    return path


def test_a_signed_pack_loads(of_tiny: Path, tmp_path: Path, ours: tuple[Path, Path]) -> None:
    path = signed(tmp_path / "a.burnish", of_tiny, ours[0])
    assert burnish.load(path, tiny(), missing="error", verify_key=ours[1]) is not None
    assert burnish.load(path, tiny(), missing="error") is not None  # who does not ask


def test_an_unsigned_pack_does_not(of_tiny: Path, ours: tuple[Path, Path]) -> None:
    with pytest.raises(PackUnsigned, match="it has no signature"):
        burnish.load(of_tiny, tiny(), verify_key=ours[1])


def test_nor_one_of_another_key(of_tiny: Path, tmp_path: Path, ours: tuple[Path, Path]) -> None:
    path = signed(tmp_path / "a.burnish", of_tiny, keys(tmp_path, "theirs")[0])
    with pytest.raises(PackUnsigned, match="not of this key"):
        burnish.load(path, tiny(), verify_key=ours[1])


def test_nor_one_with_another_content(of_tiny: Path, tmp_path: Path, ours: tuple[Path, Path]) -> None:
    found = container.read(of_tiny)
    signature = signature_of(found.body, ours[0])
    members = {**found.members, "libraries/0.so": b"other code"}
    path = tmp_path / "a.burnish"
    path.write_bytes(container.sealed(container.packed(found.manifest, members), signature))
    with pytest.raises(PackUnsigned, match="not of this key"):
        burnish.load(path, tiny(), verify_key=ours[1])


@pytest.mark.parametrize("use", [lambda path, key: signature_of(b"", key), None])
def test_keys_that_are_none(of_tiny: Path, tmp_path: Path, ours: tuple[Path, Path], use: Any) -> None:
    (tmp_path / "no.pem").write_text("no key")
    for key in (tmp_path / "no.pem", ours[1] if use else ours[0]):
        with pytest.raises(BadKey):
            use(of_tiny, key) if use else burnish.load(of_tiny, tiny(), verify_key=key)


@pytest.mark.parametrize("signed_by", ["nobody", "somebody else"])
def test_a_signature_is_checked_before_anything_is_parsed(
    of_tiny: Path, tmp_path: Path, ours: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, signed_by: str
) -> None:
    for name in ("_object", "_inflated"):
        monkeypatch.setattr(container, name, lambda *_: pytest.fail("parsed before its signature was checked"))
    body = of_tiny.read_bytes()[: -32 - 2]
    key = keys(tmp_path, "theirs")[0] if signed_by == "somebody else" else None
    path = tmp_path / "a.burnish"
    path.write_bytes(container.sealed(body, signature_of(body, key) if key is not None else b""))
    with pytest.raises(PackUnsigned):
        burnish.load(path, tiny(), verify_key=ours[1])


def test_what_is_signed_is_what_is_loaded(of_tiny: Path, tmp_path: Path, ours: tuple[Path, Path]) -> None:
    """A signed body inside another file: the bytes behind it are of no member."""
    body = container.read(of_tiny).body
    inner = body + (64).to_bytes(2, "little") + signature_of(body, ours[0])
    path = tmp_path / "a.burnish"
    path.write_bytes(container.sealed(inner, signature_of(inner, ours[0])))
    with pytest.raises(PackDamaged, match="bytes of no member"):
        burnish.load(path, tiny(), verify_key=ours[1])


def test_an_empty_name_of_a_key_is_no_leave(of_tiny: Path) -> None:
    """It may come from a variable of the environment that is not set."""
    with pytest.raises(BadKey):
        burnish.load(of_tiny, tiny(), verify_key="")
