"""Signatures of bundles, in the format of OpenSSF Model Signing: `model.sig` in the folder.

A signature has the hash of every file of a bundle and of the bundles in it. Other files in their
folders, such as packed weights or a model card, are not part of it.

Needs `ortolan[sign]`. Source: https://github.com/ossf/model-signing-spec
"""

import base64
import json
import tempfile
from pathlib import Path

from ortolan import files
from ortolan.distribution import pip_install
from ortolan.errors import OrtolanError
from ortolan.runtime import open_bundle
from ortolan.runtime.bundle.folder import SIGNATURE, files_of, open_parts
from ortolan.runtime.errors import MissingExtraError

try:
    from model_signing import hashing, signing, verifying
except ImportError as error:
    raise MissingExtraError(
        f"Signatures need the package {error.name}. Run: {pip_install('sign')}"
    ) from error

__all__ = ["SIGNATURE", "SignatureError", "check", "sign"]


class SignatureError(OrtolanError, code="signature"):
    """A bundle cannot be signed, or its signature does not fit the bundle or the key."""


def sign(path: Path, key: Path, *, password: str | None = None) -> Path:
    """Sign a bundle with the bundles in it, in place of an earlier signature.

    Args:
        path: of the bundle; all its files are hashed.
        key: a private key on an elliptic curve (P-256, P-384 or P-521), in PEM.
        password: of the key.

    Returns:
        The file with the signature.

    Raises:
        BundleError: the bundle is damaged.
        SignatureError: the key cannot be read, or is of another type; or the signature cannot be
            written, and an earlier one stays.
    """
    bundle = open_bundle(path, full_check=True)
    signature = bundle.path / SIGNATURE
    if signature.is_symlink():
        raise SignatureError(f"{signature} is a link. Remove it, and sign again.")
    bundles = [bundle, *open_parts(bundle, full_check=True).values()]
    kept = {signed.path for signed in bundles} | files_of(bundles)
    others = {signature, *(file for signed in bundles for file in signed.path.iterdir())} - kept
    hashed = hashing.Config().set_ignored_paths(paths=others, ignore_git_paths=False)
    try:
        content = files.completed(_sign, bundle.path, hashed, key, password)
        with files.replaced(signature) as file:
            file.write(content)
    except OSError as error:
        raise SignatureError(
            f"{signature} cannot be written: {error.strerror}. Check the disk and the permissions "
            "of the folder."
        ) from error
    return signature


def check(path: Path, key: Path) -> None:
    """Check the signature of a bundle, which must cover the bundles in it.

    Args:
        path: of the bundle; all its files are hashed.
        key: the signer's public key, in PEM.

    Raises:
        BundleError: the bundle is damaged.
        SignatureError: there is no signature, it is of another key, a file differs, or a file of
            the bundle is not signed.
    """
    bundle = open_bundle(path)
    signature = bundle.path / SIGNATURE
    if not signature.is_file():
        raise SignatureError(f"{path} has no {SIGNATURE}. Sign it with `ortolan sign`.")
    try:
        verifier = verifying.Config().use_elliptic_key_verifier(public_key=key)
        verifier.set_ignore_unsigned_files(True).verify(bundle.path, signature)
    except Exception as error:  # a damaged signature fails anywhere in the library
        raise SignatureError(
            f"{path}: its signature does not verify with {key}: {_line(error)}. Get both again "
            "from the signer."
        ) from error
    all_files = files_of([bundle, *open_parts(bundle).values()])
    if missing := sorted(all_files - {bundle.path / name for name in _signed(signature)}):
        name = missing[0].relative_to(bundle.path).as_posix()
        raise SignatureError(f"{path}: {name} is not signed. Get the bundle again.")


def _sign(folder: Path, hashed: hashing.Config, key: Path, password: str | None) -> bytes:
    """The signature of a folder."""
    # the library declares a text and needs bytes
    secret = None if password is None else password.encode()
    try:
        signer = signing.Config().use_elliptic_key_signer(private_key=key, password=secret)
        with tempfile.TemporaryDirectory() as aside:
            signature = Path(aside, SIGNATURE)
            signer.set_hashing_config(hashed).sign(folder, signature)
            return signature.read_bytes()
    except InterruptedError:
        raise
    except Exception as error:  # the library does not check the type of a key
        raise SignatureError(
            f"{key} cannot sign: {_line(error)}. Pass a private key of an elliptic curve in PEM."
        ) from error


def _signed(signature: Path) -> set[str]:
    """Names of the files in a verified signature."""
    envelope = json.loads(signature.read_bytes())["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    return {resource["name"] for resource in statement["predicate"]["resources"]}


def _line(error: BaseException) -> str:
    """A message of the library, short and in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:200].rstrip(". ")
