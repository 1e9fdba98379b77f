"""Arguments, exit status, and one clear line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from serve_app.cli import memory
from serve_app.cli.main import main
from serve_app.cli.say import Progress


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nonsense"],
        ["validate"],
        ["render"],
        ["render", "cloud-a", "--port", "0"],
        ["render", "cloud-a", "--port", "65536"],
        ["chat", "--text", "x", "--max-tokens", "0"],
        ["up", "--wait", "soon"],
        ["up", "--region"],
        ["apply"],
        ["region", "drain"],
        ["region", "stop", "cloud-a"],
        ["coordinator"],
        ["coordinator", "backup"],
        ["coordinator", "audit", "--last", "0"],
        ["drill", "earthquake"],
        ["drill", "partition", "--runs", "0"],
        ["link", "cloud-a"],
        ["link", "cloud-a", "cloud-b", "--cut", "--stall"],
        ["link", "cloud-a", "cloud-b", "--delay", "50"],
        ["demo", "--nonsense"],
    ],
)
def test_bad_usage_is_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2


@pytest.mark.parametrize("argv", [["explain"], ["explain", "abc", "--text", "x"]])
def test_explain_wants_one_of_two(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err == "grix explain: give either REQUEST_ID or --text\n"


@pytest.mark.parametrize("argv", [["chat", "--text", "x"], ["explain", "some-id"]])
def test_without_a_region_is_1(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 1
    assert "no region is up in this folder; start one with: grix up" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["region", "drain", "cloud-a"], "grix region: no coordinator belongs to what is up in this folder"),
        (["coordinator", "audit"], "grix coordinator: no coordinator belongs to what is up in this folder"),
        (["coordinator", "backup", "x.json"], "grix coordinator: no coordinator belongs to what is up in this folder"),
        (["drill", "partition"], "grix drill: a drill needs a coordinator and at least two regions that are up"),
        (["link", "cloud-a", "cloud-b"], "grix link: no federation with lines between its parts is up in this folder"),
    ],
)
def test_what_needs_a_federation_is_1_without(
    argv: list[str], told: str, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 1
    assert capsys.readouterr().err.startswith(told)
    assert not (own_folder / ".grix").exists()


def test_what_is_no_backup_is_2(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own_folder / "b.json").write_text("{")
    assert main(["coordinator", "restore", "b.json"]) == 2
    assert main(["coordinator", "restore", "c.json"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "b.json: is no JSON; allowed: a file that grix coordinator backup has written",
        "c.json: cannot be read: No such file or directory",
    ]


def test_nothing_to_stop_or_to_show_is_0(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["down"]) == 0
    assert main(["status"]) == 0
    assert capfdbinary.readouterr().out.startswith(b"nothing is up in this folder\n")


def test_validate_tells_every_fault(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = own_folder / "bad.yaml"
    bad.write_text("apiVersion: grix.io/v1\nkind: Tenant\nmetadata: {name: a}\nspec: {keyz: [], residenzy: [eu]}\n")
    assert main(["validate", str(bad)]) == 2
    told = capsys.readouterr().err
    assert "keyz" in told and "residenzy" in told and f"{bad}:4" in told


def test_shipped_documents_are_valid() -> None:
    from cluster_configs.load import SHIPPED

    assert main(["validate", str(SHIPPED)]) == 0


def test_render_prints_a_serve_config(own_folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["render", "cloud-a", "--port", "8123"]) == 0
    config = yaml.safe_load(capfdbinary.readouterr().out)
    assert config["http_options"] == {"host": "127.0.0.1", "port": 8123}
    tenants = config["applications"][0]["deployments"][0]["user_config"]["documents"]["tenants"]
    assert [t["metadata"]["name"] for t in tenants] == ["local"]
    assert (own_folder / ".grix" / "api_key").is_file()


def test_render_of_an_unknown_region_is_2(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "nowhere"]) == 2
    assert "allowed: cloud-a" in capsys.readouterr().err
    assert not (own_folder / ".grix").exists()


def test_up_refuses_what_does_not_fit(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 30)
    assert main(["up"]) == 1
    told = capsys.readouterr().err
    assert "GiB are needed, 1.00 GiB are available" in told
    assert not (own_folder / ".grix").exists()


def test_up_of_an_unknown_region_or_model_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--region", "nowhere"]) == 2
    assert main(["up", "--model", "no such model"]) == 2
    assert "allowed: cloud-a" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["up"], ["render", "cloud-a"], ["demo"]])
def test_an_empty_model_is_2_and_leaves_nothing(
    command: list[str], own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--model", ""]) == 2
    assert capsys.readouterr().err.startswith("--model is empty; allowed: tiny-qwen")
    assert not (own_folder / ".grix").exists()


def test_a_folder_with_local_yaml_is_rendered_and_explained(
    own_folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    from cluster_configs.load import SHIPPED

    shutil.copytree(SHIPPED, own_folder / "mine", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    assert main(["render", "cloud-a", "--config", "mine"]) == 0
    told = capfdbinary.readouterr()
    apps = yaml.safe_load(told.out)["applications"]
    assert [app["args"].get("model_path") for app in apps] == [None, "embedded:tiny-qwen", None]
    assert told.err.startswith(b"local.yaml is read, and not mine/regions, mine/policies, mine/tenants.yaml; name ")
    assert main(["render", "edge-1", "--config", "mine"]) == 2
    assert b"region edge-1: is not in federation local; allowed: cloud-a, cloud-b" in capfdbinary.readouterr().err


def test_a_fleet_is_explained_where_its_store_cannot_be_asked(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    from cluster_configs.load import SHIPPED

    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setenv("GRIX_CACHE", str(own_folder / "cache"))
    fleet = [str(SHIPPED / name) for name in ("regions", "policies", "routes.yaml", "templates", "tenants.yaml")]
    assert main(["explain", "--config", *fleet, "--text", "Hello, how are you?"]) == 0
    assert b"agent      qwen-chat\n" in capfdbinary.readouterr().out
    # What an engine is asked to run is another thing than where a request would go.
    assert main(["render", "cloud-a", "--config", *fleet]) == 2
    assert b"grix-model.json: 127.0.0.1:9 does not answer (EndpointConnectionError)\n" in capfdbinary.readouterr().err


def test_a_folder_without_a_federation_is_told_what_is_missing(
    own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from cluster_configs.load import SHIPPED

    shutil.copytree(SHIPPED / "templates", own_folder / "mine")
    assert main(["up", "--config", "mine"]) == 2
    assert "mine:1: (documents): there is no Federation in what was read" in capsys.readouterr().err


def test_validate_loads_nothing_heavy() -> None:
    code = "import sys; from serve_app.cli.main import main; main(['validate', 'x']); "
    code += "sys.exit(any(m in sys.modules for m in ('ray', 'vllm', 'torch', 'aiohttp', 'psutil')))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_progress_repeats_only_after_a_while() -> None:
    now, told = [0.0], []
    progress = Progress(told.append, lambda: now[0])
    for now[0], text in [(0.0, "a"), (1.0, "a"), (2.0, "b"), (6.9, "b"), (7.0, "b")]:
        progress.tell(text)
    assert told == ["   0.0 s  a", "   2.0 s  b", "   7.0 s  b"]
