"""What is kept of logins can be read with the right key, under the right name, and not otherwise."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest

from a2a_fabric.core.errors import ConfigError
from a2a_fabric.logins.cipher import KEY_VARIABLE, LoginCipher, WrongKey, load_cipher


def test_a_value_is_bound_to_its_name_and_cannot_be_changed() -> None:
    cipher = LoginCipher(b"k" * 32)
    sealed = cipher.encrypt(b"a token", "ann")
    assert b"token" not in sealed
    assert cipher.decrypt(sealed, "ann") == b"a token"
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for wrong, name in ((sealed, "ben"), (changed, "ann"), (b"", "ann"), (b"\x01short", "ann"), (b"\x02" * 64, "ann")):
        with pytest.raises(WrongKey):
            cipher.decrypt(wrong, name)
    with pytest.raises(WrongKey):
        LoginCipher(b"j" * 32).decrypt(sealed, "ann")


def test_nodes_with_the_same_variable_read_each_others_values(tmp_path: Path) -> None:
    environ = {KEY_VARIABLE: base64.b64encode(b"x" * 32).decode()}
    one, other = (load_cipher(environ, tmp_path / name, in_memory=False) for name in ("one", "other"))
    assert other.decrypt(one.encrypt(b"a token", "ann"), "ann") == b"a token"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["short", "not base64 at all!", base64.b64encode(b"x" * 31).decode()])
def test_a_weak_key_is_refused_with_what_to_do(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="openssl rand -base64 32") as refused:
        load_cipher({KEY_VARIABLE: key}, tmp_path, in_memory=False)
    assert key not in str(refused.value)


def test_a_key_file_is_made_once_and_refused_if_others_can_read_it(tmp_path: Path) -> None:
    sealed = load_cipher({}, tmp_path, in_memory=False).encrypt(b"a token", "ann")
    assert load_cipher({}, tmp_path, in_memory=False).decrypt(sealed, "ann") == b"a token"
    file = tmp_path / "login.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="other users can read"):
        load_cipher({}, tmp_path, in_memory=False)
