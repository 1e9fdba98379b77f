"""``grix pki``: made where it was said, shown as it is, and an exit status that a cron job can trust."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cluster_configs.load import SHIPPED
from serve_app.cli.main import main


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def grix(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, Any]:
    code = main(["pki", *argv, "--json"])
    told = capsys.readouterr()
    return code, json.loads(told.out) if told.out else told.err


def states(told: Any) -> dict[str, str]:
    return {row["identity"]: row["state"] for row in told["certificates"]}


def test_init_makes_what_one_machine_needs_and_show_shows_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = grix(capsys, "init")
    assert code == 0 and set(states(told).values()) == {"made"}
    assert told["folder"] == str(home / ".grix/pki")
    assert {"grix://local/coordinator", "grix://local/region/cloud-a", "grix://local/operator/admin"} <= states(
        told
    ).keys()
    code, told = grix(capsys, "show")
    assert code == 0 and set(states(told).values()) == {"valid"}
    assert all(6 * 86400 < row["left_s"] <= 7 * 86400 for row in told["certificates"])
    code, told = grix(capsys, "init")
    assert code == 0 and set(states(told).values()) == {"kept"}


def test_renew_renews_all_for_as_long_as_was_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grix(capsys, "init", "--out", "certs")
    code, told = grix(capsys, "renew", "--out", "certs", "--days", "0.5")
    assert code == 0 and set(states(told).values()) == {"renewed"}
    assert all(43100 < row["left_s"] <= 43200 for row in told["certificates"])


def test_a_certificate_that_is_not_whole_is_told_and_is_a_failure(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grix(capsys, "init", "--out", "certs")
    grix(capsys, "init", "--out", "others")
    shutil.copy("others/coordinator/key.pem", "certs/coordinator/key.pem")
    code, told = grix(capsys, "show", "--out", "certs")
    assert code == 1 and states(told)["grix://local/coordinator"] == "refused"
    assert [r["fault"] for r in told["certificates"] if r["fault"]] == [
        "certs/coordinator: key.pem is not the key of cert.pem"
    ]
    assert main(["pki", "show", "--out", "certs"]) == 1
    said = capsys.readouterr().out
    # Made within this second they have seven days left, a moment later a little less.
    assert "grix://local/region/cloud-a" in said and ("6 d" in said or "7 d" in said) and "PRIVATE" not in said


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["show"], 1, "grix pki: no certificates in {home}/.grix/pki; see grix pki init\n"),
        (["renew"], 1, "grix pki: {home}/.grix/pki/ca/ca.pem: cannot be read: No such file or directory; certificates "
         "are made where the authority's key lies\n"),
        (["init", "--operator", "../x"], 2,
         "--operator: allowed are small letters, digits and single dashes, at most 40\n"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(
    home: Path, capsys: pytest.CaptureFixture[str], argv: list[str], code: int, said: str
) -> None:
    assert main(["pki", *argv]) == code
    assert capsys.readouterr().err == said.format(home=home)


@pytest.mark.parametrize("days", ["0", "-1", "900", "week", "nan", "inf"])
def test_days_are_a_number_that_makes_sense(capsys: pytest.CaptureFixture[str], days: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["pki", "init", "--days", days])
    assert caught.value.code == 2
    assert f"'{days}' is no number of days above 0 and at most 825" in capsys.readouterr().err


def test_the_folder_that_the_federation_names_is_where_they_go(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home / "named"
    config = home / "federation.yaml"
    text = (SHIPPED / "local.yaml").read_text("utf-8").replace("spec:\n", f"spec:\n  pki: {{folder: {folder}}}\n", 1)
    config.write_text(text, "utf-8")
    shipped = [str(SHIPPED / "routes.yaml"), str(SHIPPED / "templates")]
    code, told = grix(capsys, "init", "--config", str(config), *shipped)
    assert (code, told["folder"]) == (0, str(folder))
    assert (folder / "coordinator/key.pem").exists() and (folder / "ca/key.pem").exists()
