"""What a run is made of: plans, engine settings, processes. Nothing heavy is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gateway_peers, gateway_targets
from benchmarks.gateway import QUICK, parser, plan_of
from benchmarks.gateway_run import Size, job_for, rotated
from benchmarks.gateway_targets import (
    KEY,
    Setting,
    Target,
    config_paths,
    direct_command,
    engine_of,
    flags,
    grix_target,
    is_grix,
    setting_of,
    template_messages,
)
from benchmarks.processes import BenchmarkError, busy_ticks, cpu_of, in_session, parse_stat, read_stat, spent_s, start
from cluster_configs.load import load_paths
from cluster_configs.table import table_of
from serve_app.core.admission import Ask, Refused, slots_of
from serve_app.core.tenants import KeyIndex, identify
from serve_app.edge.agent_app import engine_resources
from serve_app.edge.limits import LocalLimits
from serve_app.edge.serve_config import router_config
from serve_app.ports import Grant


def test_direct_gets_what_grix_gives_its_engine(tmp_path: Path) -> None:
    paths = config_paths(tmp_path, Setting())
    engine = engine_of(paths, "tiny-qwen")
    spec = load_paths(paths, {}).agents["qwen-chat"].spec
    assert engine_resources(spec).items() <= engine.options.items()
    assert engine.options["max_model_len"] == spec.engine.max_model_len
    assert engine.environment["OMP_NUM_THREADS"] == str(spec.engine.cpu_threads)
    command = direct_command(engine, 4711)
    assert f"--max-num-seqs={spec.engine.max_num_seqs}" in command and "--enforce-eager" in command
    assert (Path(engine.model_path) / "config.json").is_file()


def test_no_second_engine_helps_the_one_that_is_measured(tmp_path: Path) -> None:
    spec = load_paths(config_paths(tmp_path, Setting()), {}).federation.spec
    assert [region.name for region in spec.regions] == ["cloud-a"] and spec.coordinator is None


def test_slots_change_the_engine_and_nothing_else(tmp_path: Path) -> None:
    shipped = engine_of(config_paths(tmp_path, Setting()), "tiny-qwen")
    changed = engine_of(config_paths(tmp_path, Setting(64)), "tiny-qwen")
    assert changed.options["max_num_seqs"] == 64
    assert {**changed.options, "max_num_seqs": 0} == {**shipped.options, "max_num_seqs": 0}


def test_nobody_is_told_to_come_back_later_while_it_is_measured(tmp_path: Path) -> None:
    timeouts = load_paths(config_paths(tmp_path, Setting()), {}).agents["qwen-chat"].spec.timeouts
    assert (timeouts.queue_s, timeouts.first_byte_s) == (120.0, 180.0)


def test_every_engine_gets_the_same_prompt(tmp_path: Path) -> None:
    (message,) = template_messages(config_paths(tmp_path, Setting()))
    assert message["role"] == "system" and message["content"]


async def test_every_limit_of_the_tenant_that_asks_is_counted_and_out_of_reach(tmp_path: Path) -> None:
    config = load_paths(config_paths(tmp_path, Setting()), {})
    made = table_of(router_config(config, config.federation.spec.regions[0], {"qwen-chat": "0" * 64}, False))
    caller = identify(made, KeyIndex.of(made.tenants), f"Bearer {KEY}", "2026-01-01")
    slots = slots_of(
        made.admission, caller.tenant, made.agents["qwen-chat"], intent=None, traceparent=None, session_id=None
    )
    limits = caller.tenant.limits
    ask = Ask(caller.tenant.name, 1000, limits.requests_per_minute, limits.tokens_per_minute, slots)
    assert ask.is_limited and [slot.subject for slot in slots] == ["tenant/bench"]
    grants = LocalLimits(lambda: 0.0)
    asked = [await grants.admit(ask) for _ in range(20_000)]
    assert {grant.decided_by for grant in asked if isinstance(grant, Grant)} == {"router"}
    assert not [refused for refused in asked if isinstance(refused, Refused)]


def test_a_region_of_grix_is_asked_with_the_tenants_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_targets, "region_of", lambda folder: {"url": "http://127.0.0.1:1"})
    child = start("up", [sys.executable, "-c", ""], tmp_path)
    assert grix_target("grix", child, tmp_path).headers == {"authorization": f"Bearer {KEY}"}


def test_flags_are_vllms() -> None:
    assert flags({"max_num_seqs": 4, "enforce_eager": False, "enable_prefix_caching": True}) == [
        *("--max-num-seqs=4", "--no-enforce-eager", "--enable-prefix-caching")
    ]


def test_asking_for_one_thing_leaves_the_rest_out() -> None:
    plan = plan_of(parser().parse_args(["--targets", "direct,grix", "--streams", "64", "--rounds", "2"]))
    assert plan.targets == ["direct", "grix"] and plan.streams == [64] and plan.rounds == 2
    assert plan.open_fractions == []
    whole = plan_of(parser().parse_args([]))
    assert whole.targets is None and whole.streams == [1, 16, 64] and whole.rounds == 7
    assert whole.open_fractions == [0.5, 0.8] and whole.models == ["tiny-qwen", "smollm2"]
    assert plan_of(parser().parse_args(["--quick"])).rounds < 7


@pytest.mark.parametrize(
    ("name", "profile", "detector"),
    [
        ("grix", "fast", None),
        ("grix-standard", "standard", None),
        ("grix-deployment", "fast", "deployment"),
        ("grix-router-standard", "standard", "router"),
    ],
)
def test_a_grix_has_a_setting_by_its_name(name: str, profile: str, detector: str | None, tmp_path: Path) -> None:
    setting = setting_of(name, Setting(8, "fast"))
    assert is_grix(name) and setting == Setting(8, profile, detector)
    region = load_paths(config_paths(tmp_path, setting), {}).federation.spec.regions[0]
    assert (region.http.profile, region.detector_placement) == (profile, detector or "router")


def test_a_word_that_is_no_setting_is_told() -> None:
    assert not is_grix("vllm-router") and not is_grix("grixx")
    with pytest.raises(BenchmarkError, match="grix-quick: allowed after grix- are standard, fast, router, deployment"):
        setting_of("grix-quick", Setting())


def test_requests_grow_with_streams() -> None:
    size = Size(16, {1: 40, 16: 480, 64: 960}, 6.0, 5.0, 64)
    assert [size.requests_at(n) for n in (1, 16, 32, 64, 128)] == [40, 480, 960, 960, 1920]


def test_each_round_begins_with_another_target() -> None:
    assert [rotated("abc", n)[0] for n in range(4)] == ["a", "b", "c", "a"]
    assert sorted(rotated("abc", 2)) == ["a", "b", "c"]


def test_a_job_carries_key_prompt_and_length() -> None:
    target = Target("grix", "http://127.0.0.1:1", list, lambda: None, {"authorization": "Bearer k"})
    job = job_for(target, QUICK["smollm2"], 3, kind="closed", streams=2, requests=4)
    assert job["url"].endswith("/v1/chat/completions") and job["headers"] == {"authorization": "Bearer k"}
    assert job["body"]["max_tokens"] == 24 and job["body"]["ignore_eos"] is True and job["body"]["stream"] is True
    assert (job["kind"], job["streams"], job["requests"], job["seed"]) == ("closed", 2, 4, 3)


def test_a_process_name_with_brackets_does_not_shift_fields() -> None:
    fields = ["S", "1", "10", "42", *("0" for _ in range(7)), "5", "7", *("0" for _ in range(6)), "99", "0"]
    stat = parse_stat(f"12 (a ) b) {' '.join(fields)}")
    assert (stat.session, stat.ticks, stat.started_ticks, stat.zombie) == (42, 12, 99, False)


def test_cpu_of_a_process_that_began_in_between_counts_whole() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    before = {(1, 5): 100, (2, 5): 50}
    after = {(1, 5): 100 + ticks, (1, 9): ticks}
    assert spent_s(before, after) == 2.0


def test_what_the_machine_did_leaves_idle_and_waiting_out() -> None:
    assert busy_ticks("cpu  1 2 4 1000 2000 8 16 32 0 0\ncpu0 9 9") == 63
    assert busy_ticks() > 0


def test_a_child_leads_a_session_and_is_stopped_whole(tmp_path: Path) -> None:
    family = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE).wait()"
    child = start("family", [sys.executable, "-c", family], tmp_path)
    try:
        while len(child.pids()) < 2:
            child.check()
        pids = child.pids()
        assert set(cpu_of(pids))
    finally:
        child.stop()
    assert in_session(child.process.pid) == []


def test_a_child_that_ended_tells_its_last_words(tmp_path: Path) -> None:
    child = start("short", [sys.executable, "-c", "print('no port'); raise SystemExit(3)"], tmp_path)
    child.process.wait()
    with pytest.raises(BenchmarkError, match=r"status 3[\s\S]*no port"):
        child.check()


def test_a_process_that_is_gone_has_no_stat() -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert read_stat(done.pid) is None


def test_peers_are_found_where_they_are_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_peers, "BIN", tmp_path)
    assert gateway_peers.found() == []
    (tmp_path / "smg").write_text("")
    assert gateway_peers.found() == ["smg"]
    with pytest.raises(BenchmarkError, match="make peers"):
        gateway_peers.start_peer("litellm", "http://127.0.0.1:1", tmp_path, [])
    with pytest.raises(BenchmarkError, match="allowed: direct, grix, vllm-router"):
        gateway_peers.start_peer("nginx", "http://127.0.0.1:1", tmp_path, [])


def test_envoy_and_litellm_listen_on_loopback_only(tmp_path: Path) -> None:
    assert "0.0.0.0" not in str(gateway_peers.envoy_config(1, 2))
    for command in gateway_peers.PEERS.values():
        assert "0.0.0.0" not in " ".join(command("http://127.0.0.1:1", 2, tmp_path))
