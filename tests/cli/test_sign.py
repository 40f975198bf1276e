"""Signed bundles, with the tools of OpenSSF Model Signing."""

import errno
import json
import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from model_signing import signing, verifying
from tests.cli.conftest import error_line, run_here
from tests.runtime import tiny_decoder, tiny_encoder
from tests.runtime.damaged_bundles import edit_json, put

from ortolan import files
from ortolan.errors import OrtolanError
from ortolan.runtime import open_bundle
from ortolan.runtime.bundle.manifest import NAME
from ortolan.runtime.bundle.manifest_file import fingerprint
from ortolan.signing import SIGNATURE, SignatureError, check, sign


def write_keys(folder: Path, name: str, password: bytes | None = None) -> tuple[Path, Path]:
    """A private and a public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    secret, public = folder / f"{name}.pem", folder / f"{name}.pub"
    encryption = NoEncryption() if password is None else BestAvailableEncryption(password)
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return secret, public


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_keys(tmp_path_factory.mktemp("keys"), "key")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, keys: tuple[Path, Path]) -> Path:
    """A signed bundle."""
    path = tmp_path_factory.mktemp("signed") / "bundle"
    tiny_decoder.write_bundle(path)
    sign(path, keys[0])
    return path


@pytest.fixture
def signed(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "bundle"))


def test_a_signed_bundle_verifies_here_and_by_the_library(
    signed: Path, keys: tuple[Path, Path]
) -> None:
    check(signed, keys[1])
    verifier = verifying.Config().use_elliptic_key_verifier(public_key=keys[1])
    verifier.verify(signed, signed / SIGNATURE)


def test_every_changed_byte_of_a_file_is_found(signed: Path, keys: tuple[Path, Path]) -> None:
    for file in sorted(signed.iterdir()):
        contents = file.read_bytes()
        changed = bytearray(contents)
        changed[len(changed) // 2] ^= 1
        file.write_bytes(bytes(changed))
        with pytest.raises(OrtolanError):
            check(signed, keys[1])
        file.write_bytes(contents)
    check(signed, keys[1])


def test_other_files_in_the_folder_do_not_matter(signed: Path, keys: tuple[Path, Path]) -> None:
    (signed / "README.md").write_text("a card")
    (signed / "packed").mkdir()
    check(signed, keys[1])
    sign(signed, keys[0])
    (signed / "README.md").write_text("another card")
    check(signed, keys[1])


def test_bundles_in_a_bundle_are_signed_too(keys: tuple[Path, Path], tmp_path: Path) -> None:
    path, part = tmp_path / "bundle", tmp_path / "bundle" / "text"
    tiny_encoder.write_bundle(path, kind="embedding", image=tiny_encoder.IMAGE)
    tiny_encoder.write_bundle(part, kind="embedding")
    (part / "weights.bin").write_bytes(b"1234")  # whose hash is not compared on opening
    edit_json(part, NAME, put("weights", value=["weights.bin"]))
    encoder = fingerprint(open_bundle(part).manifest)
    texts = {"encoder": encoder, "scale": 1.0, "bias": 0.0, "scores": "softmax"}
    edit_json(path, NAME, put("texts", value=texts))
    (part / "README.md").write_text("a card")
    sign(path, keys[0])
    check(path, keys[1])
    (part / "weights.bin").write_bytes(b"1235")
    with pytest.raises(SignatureError, match=r"text/weights\.bin"):
        check(path, keys[1])


def sign_a_part(signed: Path, key: Path) -> None:
    """Put a signature of some of the files, by the same key, in place of the bundle's."""
    part = signed.parent / "part"
    part.mkdir()
    shutil.copy(signed / "decoder.onnx", part)
    signer = signing.Config().use_elliptic_key_signer(private_key=key)
    signer.sign(part, signed / SIGNATURE)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("of a part", "is not signed"),
        (None, r"has no model\.sig"),
        *((data, "does not verify") for data in (b"", b"[]", b"\xff", b'{"dsseEnvelope": {}}')),
    ],
)
def test_a_wrong_or_missing_signature_is_an_error(
    contents: str | bytes | None, message: str, signed: Path, keys: tuple[Path, Path]
) -> None:
    (signed / SIGNATURE).unlink()
    if contents == "of a part":
        sign_a_part(signed, keys[0])
    elif isinstance(contents, bytes):
        (signed / SIGNATURE).write_bytes(contents)
    with pytest.raises(SignatureError, match=message):
        check(signed, keys[1])


def test_wrong_keys_are_errors(signed: Path, tmp_path: Path) -> None:
    with pytest.raises(SignatureError, match="Key mismatch"):
        check(signed, write_keys(tmp_path, "another")[1])
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    other = tmp_path / "rsa.pem"
    other.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    for path in (other, tmp_path / "none.pem", signed / "manifest.json"):
        with pytest.raises(SignatureError, match="cannot sign"):
            sign(signed, path)


def test_what_cannot_be_written_leaves_the_old_signature(
    signed: Path, keys: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.NewFile, "write", full)
        with pytest.raises(SignatureError, match=r"cannot be written: No space left"):
            sign(signed, keys[0])
    check(signed, keys[1])
    (signed / SIGNATURE).unlink()
    (signed / SIGNATURE).symlink_to(tmp_path / "profile")
    with pytest.raises(SignatureError, match="is a link"):
        sign(signed, keys[0])
    assert not (tmp_path / "profile").exists()


def test_commands_sign_with_a_password_and_verify(bundle: Path, tmp_path: Path) -> None:
    secret, public = write_keys(tmp_path, "locked", b"word")
    copy = shutil.copytree(bundle, tmp_path / "copy")
    assert "cannot sign" in error_line("sign", copy, "--key", secret)
    done = run_here("sign", copy, "--key", secret, "--password", "word")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.decode().strip()).name == SIGNATURE
    done = run_here("verify", copy, "--key", public)
    assert done.returncode == 0, done.stderr
    assert b"signature  verified with" in done.stdout
    manifest = copy / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text())))
    assert "Hash mismatch" in error_line("verify", copy, "--key", public)
