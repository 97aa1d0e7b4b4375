from __future__ import annotations

from pathlib import Path

import pytest

from a2a_fabric.config import Config, load_config, parse_listen, resolve_env
from a2a_fabric.core.errors import ConfigError
from a2a_fabric.core.policy import is_loopback

SECRET = "s3cr3t-of-the-house"


def loaded(tmp_path: Path, text: str, **environ: str) -> Config:
    path = tmp_path / "fabric.yaml"
    path.write_text(text, "utf-8")
    return load_config(path, environ)


def complaint(tmp_path: Path, text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text, **environ)
    return caught.value.message.removeprefix(f"{tmp_path}/")


def test_an_empty_file_is_the_default_node(tmp_path: Path) -> None:
    assert loaded(tmp_path, "") == loaded(tmp_path, "# nothing\n") == Config()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listn: :1\n", "fabric.yaml:1: listn: unknown key 'listn' (nearest: listen)"),
        ("log:\n  paylods: true\n", "fabric.yaml:2: log.paylods: unknown key 'paylods' (nearest: payloads)"),
        ("auth:\n  keys:\n  - id: a\n    key: 12345678x\n    scope: []\n",
         "fabric.yaml:5: auth.keys[0].scope: unknown key 'scope' (nearest: scopes)"),
        ("limits: {concurrent_calls: 0}\n", "fabric.yaml:1: limits.concurrent_calls: Expected `int` >= 1"),
        ("log: {level: loud}\n", "fabric.yaml:1: log.level: Invalid enum value 'loud'"),
        ("breaker: {failures: many}\n", "fabric.yaml:1: breaker.failures: Expected `int`, got `str`"),
        ("just words\n", "fabric.yaml:1: Expected `object`, got `str`"),
        ("doors:\n- kind: fabric\n  eror_format: object\n",
         "fabric.yaml:3: doors[0].eror_format: unknown key 'eror_format' (nearest: error_format)"),
        ("doors:\n- kind: fabrik\n",
         "fabric.yaml:2: doors[0].kind: no door of kind 'fabrik' (nearest: fabric); known: a2a, directory, "
         "discovery, fabric, mcp, rest"),
        ("doors:\n- kind: fabric\n- {}\n", "fabric.yaml:3: doors[1]: each entry needs a `kind`"),
        ("doors:\n- kind: fabric\n  error_format: xml\n",
         "fabric.yaml:3: doors[0].error_format: Invalid enum value 'xml'"),
    ],
)  # fmt: skip
def test_a_wrong_setting_stops_the_start_and_says_where(tmp_path: Path, text: str, said: str) -> None:
    assert complaint(tmp_path, text) == said


def test_secrets_come_from_the_environment_at_any_depth(tmp_path: Path) -> None:
    text = "auth:\n  psk: env:P\n  keys:\n  - {id: a, key: env:K}\ndoors: [{kind: fabric, error_format: env:F}]\n"
    config = loaded(tmp_path, text, P="the-psk", K=SECRET, F="object")
    assert (config.auth.psk, config.auth.keys[0].key) == ("the-psk", SECRET)
    assert config.doors[0]["error_format"] == "object"


def test_a_secret_that_is_not_set_is_named(tmp_path: Path) -> None:
    said = "fabric.yaml:2: auth.psk: environment variable NOPE is not set"
    assert complaint(tmp_path, "auth:\n  psk: env:NOPE\n") == said


def test_a_key_too_short_is_refused_wherever_it_stands_and_never_shown(tmp_path: Path) -> None:
    for key in ("env:SHORT_KEY", "hunter2"):
        said = complaint(tmp_path, f"auth:\n  keys:\n  - id: a\n    key: {key}\n", SHORT_KEY="hunter2")
        assert said == "fabric.yaml:4: auth.keys[0].key: Expected `str` of length >= 8"


@pytest.mark.parametrize(
    "text",
    [
        "auth: {keys: [{id: a, key: env:S, colour: red}]}",
        "auth: {keys: [{key: env:S}]}",
        "auth: {keys: [{id: env:S, key: short}]}",
        "auth: {psk: [env:S]}",
        "limits: {body_bytes: env:S}",
        "env:S: 1",
    ],
)
def test_no_complaint_tells_a_secret(tmp_path: Path, text: str) -> None:
    assert SECRET not in complaint(tmp_path, text, S=SECRET)


def test_only_whole_values_are_references() -> None:
    assert resolve_env({"a": ["x env:P", "env:P", 1, None]}, {"P": "p"}) == {"a": ["x env:P", "p", 1, None]}


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [
        ("127.0.0.1:8000", "127.0.0.1", 8000),
        (":8000", "127.0.0.1", 8000),
        ("8000", "127.0.0.1", 8000),
        ("[::1]:0", "::1", 0),
        ("0.0.0.0:65535", "0.0.0.0", 65535),
        ("box.example:80", "box.example", 80),
    ],
)
def test_listen_is_host_and_port(listen: str, host: str, port: int) -> None:
    assert parse_listen(listen) == (host, port)


@pytest.mark.parametrize("listen", ["", "x", "x:", "x:y", "x:-1", "x:65536", "x:²", "::1", "fe80::1:80", "x:8 0"])
def test_what_is_no_host_and_port_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        parse_listen(listen)


@pytest.mark.parametrize(
    ("host", "is_it"),
    [
        ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True),
        ("0.0.0.0", False), ("127.evil.example", False), ("10.0.0.1", False), ("::", False), ("localhost.evil", False),
    ],
)  # fmt: skip
def test_loopback_is_an_address_not_a_name_that_looks_like_one(host: str, is_it: bool) -> None:
    assert is_loopback(host) is is_it
