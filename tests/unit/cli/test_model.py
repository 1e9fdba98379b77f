"""``grix model``: what it prints, and its exit status."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from serve_app.cli.main import main
from tests.model_stores import content_of, make_model


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRIX_CACHE", str(tmp_path / "cache"))
    make_model(tmp_path / "model")
    return tmp_path


@pytest.fixture
def address(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> str:
    address = f"file://{folder}/store/m/v1"
    assert main(["model", "push", "model", address]) == 0
    assert capfdbinary.readouterr().out.decode() == f"{address}: 6 files, 5.5 KiB; sent 5.5 KiB\n"
    return address


def told(capfdbinary: pytest.CaptureFixture[bytes]) -> dict[str, object]:
    made: dict[str, object] = json.loads(capfdbinary.readouterr().out)
    return made


def test_push_pull_and_again(folder: Path, address: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["model", "push", "model", address, "--json"]) == 0
    pushed = told(capfdbinary)
    size = sum(map(len, content_of(folder / "model").values()))
    assert (pushed["address"], pushed["files"], pushed["bytes"], pushed["sent_bytes"]) == (address, 6, size, 0)
    assert main(["model", "pull", address, "--json"]) == 0
    pulled = told(capfdbinary)
    assert content_of(Path(str(pulled["folder"]))) == content_of(folder / "model")
    assert (pulled["read_bytes"], pulled["weights_digest"]) == (size, pushed["weights_digest"])
    assert main(["model", "pull", address]) == 0
    assert capfdbinary.readouterr().out.decode() == (
        f"{pulled['folder']}\n  6 files, 5.5 KiB; read 0 bytes from the store\n"
    )


def test_verify_is_1_when_something_is_wrong(
    folder: Path, address: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["model", "verify", address]) == 0
    assert capfdbinary.readouterr().out.decode() == (
        f"{address}\n  cache  not there\n  store  every file there, with its size\n"
    )
    main(["model", "pull", address])
    capfdbinary.readouterr()
    assert main(["model", "verify", address, "--read"]) == 0
    assert capfdbinary.readouterr().out.decode() == (
        f"{address}\n  cache  every file read and right\n  store  every file read and right\n"
    )
    (folder / "store/m/v1/config.json").unlink()
    assert main(["model", "verify", address, "--json"]) == 1
    assert told(capfdbinary) == {
        "address": address,
        "in_cache": True,
        "faults": [f"{address}/config.json: is not in the store"],
    }


def test_gc_tells_what_goes_and_what_stays(
    folder: Path, address: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["model", "gc"]) == 0
    assert capfdbinary.readouterr().out.decode() == f"{folder}/cache/models: nothing is there\n"
    for name in ("v1", "v2"):
        main(["model", "push", "model", f"file://{folder}/store/m/{name}"])
        main(["model", "pull", f"file://{folder}/store/m/{name}"])
    capfdbinary.readouterr()
    assert main(["model", "gc", "--keep", "1", "--dry-run"]) == 0
    out = capfdbinary.readouterr().out.decode()
    assert re.sub(r"-[0-9a-f]{16}\b", "", re.sub(r"\d\.\d KiB", "SIZE", out)).splitlines()[2:] == [
        "m_v1  version  SIZE  would go",
        "m_v2  version  SIZE  kept",
        "SIZE would go",
    ]
    assert main(["model", "gc", "--keep", "1", "--json"]) == 0
    made = told(capfdbinary)
    assert [(e["what"], e["removed"]) for e in made["entries"]] == [("version", True), ("version", False)]  # type: ignore[attr-defined]
    assert len(list((folder / "cache/models/versions").iterdir())) == 1


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["pull", "models/v1"], 2, "'models/v1' is no address of a version; allowed: s3://BUCKET/PREFIX or file:///FOLDER"),
        (["push", "model", "s3://models"], 2, "'s3://models' is no address of a version; allowed: s3://BUCKET/PREFIX"),
        (["push", "none", "file:///srv/none"], 1, "grix model: none: is no folder"),
        (["pull", "file:///nonexistent/v1"], 1, "grix model: file:///nonexistent/v1: holds no version: "),
    ],
)  # fmt: skip
def test_what_it_cannot_do_is_one_line(
    argv: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", *argv]) == code
    err = capsys.readouterr().err
    assert err.startswith(said) and err.count("\n") == 1


@pytest.mark.parametrize(
    "argv", [[], ["push"], ["pull"], ["gc", "--keep", "0"], ["gc", "--older", "24"], ["sell", "x"]]
)
def test_bad_usage_is_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["model", *argv])
    assert ended.value.code == 2
