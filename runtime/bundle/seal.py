"""Seals: HMACs that only this user on this machine can make.

Some files are used only where they were made. A hash in the manifest cannot show that, since an
untrusted bundle brings its own manifest. So these files carry a seal, made with a key that never
leaves this user's state folder. Whoever can read the key, this user and the administrator, can seal
anything.
"""

import hmac
import secrets
from pathlib import Path

from ortolan import files
from ortolan.cache import state_folder

_KEY_BYTES = 32
_KEY = "seal.key"


def make_seal(data: bytes) -> bytes:
    """Seal data, creating the key on first use."""
    key = _read_key()
    if key is None:
        _make_key()
        key = _read_key()
    if key is None:
        raise OSError(f"no key at {_key_path()}")
    return _seal(key, data)


def check_seal(data: bytes, seal: bytes) -> bool:
    """Return whether a seal was made here, for this data."""
    key = _read_key()
    return key is not None and hmac.compare_digest(_seal(key, data), seal)


def _seal(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256").hex().encode() + b"\n"


def _key_path() -> Path:
    return state_folder() / _KEY


def _read_key() -> bytes | None:
    """The key; `None` if there is none or it is incomplete."""
    try:
        key = _key_path().read_bytes()
    except OSError:
        return None
    return key if len(key) == _KEY_BYTES else None


def _make_key() -> None:
    path = _key_path()
    files.make_folders(path.parent, mode=0o700)
    # If two processes do this at once, the later key stays and the earlier seal is void.
    with files.replaced(path, is_private=True) as file:
        file.write(secrets.token_bytes(_KEY_BYTES))
