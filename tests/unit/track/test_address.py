"""Addresses: which are taken, and that no secret of them is ever shown."""

import socket
import time
from pathlib import Path

import pytest

from draftproof.errors import ConfigError, InputError, MachineError
from draftproof.track.address import parse, redact, require_answer


def test_a_sqlite_path_is_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    address = parse("sqlite:///results/mlflow.db")
    assert address.database == tmp_path / "results/mlflow.db"
    assert address.uri == f"sqlite:///{tmp_path}/results/mlflow.db"
    assert address.shown == "sqlite:///results/mlflow.db"
    assert parse(address.uri).database == address.database


def test_credentials_are_used_and_never_shown() -> None:
    address = parse("https://ann:s3cret@mlflow.example:5000/base/?token=abc")
    assert "s3cret" in address.uri
    assert address.shown == "https://mlflow.example:5000/base"


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "mlruns",
        "sqlite:///",
        "file:/x",
        "ftp://u:pw@h",
        "http://",
        "http://u:pw@h:port",
        "http://[::1",
    ],
)
def test_other_addresses_are_refused(uri: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(uri)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("GET https://ann:s3cret@host/x", "s3cret"),
        ("--api-key s3cret --port 1", "s3cret"),
        ("api_key='s3cret', port=1", "s3cret"),
        ('"HF_ACCESS_TOKEN": "s3cret"', "s3cret"),
        ('["--api-key", "s3cret"]', "s3cret"),
        ("token hf_abcdefghijklmnopqrst", "hf_abcdefghijklmnopqrst"),
    ],
)
def test_secrets_are_removed(text: str, secret: str) -> None:
    assert secret not in redact(text)


@pytest.mark.parametrize(
    "text", ["api_key=None, x=1", "max_total_tokens=16384", "https://host/a@b"]
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_a_server_that_is_away_is_noticed_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        begun = time.monotonic()
        with pytest.raises(MachineError, match="no MLflow answers"):
            require_answer(parse(f"http://u:pw@127.0.0.1:{port}"))
        taken.listen()  # accepts, never answers
        with pytest.raises(MachineError, match="no MLflow answers") as caught:
            require_answer(parse(f"http://u:pw@127.0.0.1:{port}"))
    assert time.monotonic() - begun < 45
    assert "pw" not in str(caught.value)


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "mlflow.db"
    file.write_text("my thesis, the only copy")
    with pytest.raises(InputError, match="not a sqlite database"):
        require_answer(parse(f"sqlite:///{file}"))
    assert file.read_text() == "my thesis, the only copy"
