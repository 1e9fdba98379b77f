"""Each kind of fault, alone, with its exact text; then many at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster_configs.kind_federation import Coordinator, Region

Check = Callable[..., list[str]]

FEDERATION = """\
apiVersion: grix.io/v1
kind: Federation
metadata: {name: demo}
spec:
  regions:
    - {name: cloud-a, cloud: cloud-a, location: x, gpuHourUsd: 1, role: primary, residency: [eu]}
"""
AGENT = """\
apiVersion: grix.io/v1
kind: AgentPolicy
metadata: {name: qwen-chat}
spec:
  version: "1"
  duty: chat
  model: M
  storage: {modelPath: smollm2}
  gpu: {vramRequired: 40Gi}
"""
ALIAS = """\
apiVersion: grix.io/v1
kind: AgentPolicy
metadata: {name: qwen-doc}
spec:
  version: "1"
  duty: worker
  engineOf: qwen-chat
"""
ROUTES = """\
apiVersion: grix.io/v1
kind: RouteTable
metadata: {name: default}
spec:
  languages: {tokenRatio: {en: 1, ja: 1.6}}
  rules:
    - {name: ja, match: {lang: ja}, target: {agent: qwen-chat}}
    - {name: fallback, match: {}, target: {agent: qwen-chat, langTemplate: en}}
"""
TENANT = """\
apiVersion: grix.io/v1
kind: Tenant
metadata: {name: acme}
spec:
  keys: [{id: k1, sha256: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}]
  residency: [eu]
"""
TEMPLATE = """\
apiVersion: grix.io/v1
kind: PromptTemplate
metadata: {name: en}
spec: {version: "1", language: en, register: plain, system: Be brief.}
"""
ALL = "---\n".join([FEDERATION, AGENT, ALIAS, ROUTES, TENANT, TEMPLATE])
_DURATION = "a duration such as 250ms, 5s, 30m or 1h30m"
_REGION_KEYS = (
    "name, cloud, location, gpuHourUsd, role, residency, acceptsSpill, gateway, gatewayListen, http, routers, "
    "detectorPlacement, detectors, redis, admission, tasks"
)


@pytest.mark.parametrize("text", [FEDERATION, AGENT, ROUTES, TENANT, TEMPLATE, ALL])
def test_nothing_is_wrong(check: Check, text: str) -> None:
    assert check(text) == []


def _changed(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


HEADER = [
    ("kind: Tenant\n", "", ["1: kind: kind is missing; allowed: Federation, AgentPolicy, RouteTable, Tenant, "
                            "PromptTemplate"]),
    ("kind: Tenant", "kind: tenant", ["2: kind: 'tenant' is no kind (did you mean 'Tenant'?); allowed: Federation, "
                                      "AgentPolicy, RouteTable, Tenant, PromptTemplate"]),
    ("kind: Tenant", "kind: NodeRegistration", ["2: kind: 'NodeRegistration' is gathered by regions, not "
                                                "written; allowed: Federation, AgentPolicy, RouteTable, Tenant, "
                                                "PromptTemplate"]),
    ("grix.io/v1", "grix.io/v2", ["1: apiVersion: 'grix.io/v2' is not known (did you mean 'grix.io/v1'?); "
                                  "allowed: grix.io/v1"]),
    ("apiVersion: grix.io/v1\n", "", ["1: apiVersion: apiVersion is missing; write apiVersion: grix.io/v1"]),
    ("metadata: {name: acme}", "metadata: {name: Acme Corp}", [
        "3: metadata.name: 'Acme Corp' is not allowed here; allowed: small letters, digits and single dashes between "
        "them, at most 40 characters"]),
    ("metadata: {name: acme}", "metadata: {}", [
        "3: metadata: the block is empty, which would wipe its defaults; remove it or write its keys"]),
    ("metadata: {name: acme}", "metadata: {name: 12}", [
        "3: metadata.name: '12' is a number, text is needed; write it in quotes: \"12\""]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "faults"), HEADER)
def test_header(check: Check, old: str, new: str, faults: list[str]) -> None:
    assert check(_changed(TENANT, old, new)) == faults


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("just text", "1: (document): the document is not a block of keys; allowed: apiVersion, kind, metadata, spec"),
        ("[1]", "1: (document): the document is not a block of keys; allowed: apiVersion, kind, metadata, spec"),
    ],
)
def test_no_document(check: Check, text: str, fault: str) -> None:
    assert check(text) == [fault]


FEDERATIONS = [
    ("role: primary", "role: primry", "6: spec.regions[0].role: 'primry' is not allowed here (did you mean "
                                      "'primary'?); allowed: primary, secondary, edge"),
    ("role: primary, ", "", "6: spec.regions[0].role: role is missing; allowed: primary, secondary, edge"),
    ("residency: [eu]", "residncy: [eu]", "6: spec.regions[0].residncy: unknown key 'residncy' (did you mean "
                                          f"'residency'?); allowed: {_REGION_KEYS}"),
    ("residency: [eu]", "zzz: 1", f"6: spec.regions[0].zzz: unknown key 'zzz'; allowed: {_REGION_KEYS}"),
    ("residency: [eu]", "residency: eu", "6: spec.regions[0].residency: 'eu' is not a list; allowed: a list; "
                                         "write [eu]"),
    ("residency: [eu]", "residency: [eu, eu]", "6: spec.regions[0].residency[1]: 'eu' is written twice; it is "
                                               "residency[0] too"),
    ("residency: [eu]", "residency: [any]", "6: spec.regions[0].residency: 'any' is no zone of a region; allowed: "
                                            "the zones its hardware lies in, such as eu or sg"),
    ("residency: [eu]", "acceptsSpill: no", "6: spec.regions[0].acceptsSpill: 'no' is no switch; allowed: "
                                            "true, false"),
    ("residency: [eu]", "gateway: here", "6: spec.regions[0].gateway: 'here' is no address; allowed: \"HOST:PORT\", "
                                         "port 1 to 65535, as \"127.0.0.1:7443\""),
    ("residency: [eu]", "gateway: a:70000", "6: spec.regions[0].gateway: 'a:70000' is no address; allowed: "
                                            "\"HOST:PORT\", port 1 to 65535, as \"127.0.0.1:7443\""),
    ("residency: [eu]", "http: {port: 0}", "6: spec.regions[0].http.port: '0' is out of range; allowed: at least 1"),
    ("residency: [eu]", "http: {port: 010}", "6: spec.regions[0].http.port: '010' is not a whole number; allowed: a "
                                             "whole number in plain decimal digits, without leading zeros, '_' or ':'"),
    ("residency: [eu]", "routers: 1.5", "6: spec.regions[0].routers: '1.5' is not a whole number; allowed: a whole "
                                        "number"),
    ("gpuHourUsd: 1", "gpuHourUsd: .inf", "6: spec.regions[0].gpuHourUsd: '.inf' is not a number; allowed: a number"),
    ("gpuHourUsd: 1", "gpuHourUsd: -1", "6: spec.regions[0].gpuHourUsd: '-1' is out of range; allowed: at least 0"),
    ("gpuHourUsd: 1", "gpuHourUsd: true", "6: spec.regions[0].gpuHourUsd: 'true' is not a number; allowed: a number"),
    ("spec:", "spec:\n  health: {heartbeat: 1}", "5: spec.health.heartbeat: '1' has no unit: write 1ms, 1s or 1m, "
                                                 "whichever is meant"),
    ("spec:", "spec:\n  health: {heartbeat: 1Gi}", f"5: spec.health.heartbeat: '1Gi' is a size; allowed: {_DURATION}"),
    ("spec:", "spec:\n  health: {heartbeat: [1s]}", "5: spec.health.heartbeat: a block, list or switch cannot stand "
                                                    f"here; allowed: {_DURATION}"),
    ("spec:", "spec:\n  health: {peerBeat: 2s}", "4: spec.health.peerSilence: 1s is not longer than peerBeat 2s, so a "
                                                 "healthy peer would be suspect; allowed: more than that"),
    ("spec:", "spec:\n  health: {staleAfter: 1s}",
     "5: spec.health.staleAfter: 1s is out of range; allowed: 2s, as a replica reports each second, to 10s, when a "
     "silent one is forgotten"),
    ("spec:", "spec:\n  health: {staleAfter: 11s}", "5: spec.health.staleAfter: 11s is out of range; allowed: 2s, as a "
                                                    "replica reports each second, to 10s, when a silent one is "
                                                    "forgotten"),
    ("spec:", "spec:\n  health: {ping: 11s}", "5: spec.health.ping: 11s is out of range; allowed: at most 10s, after "
                                              "which an idle engine proves itself too"),
    ("spec:", "spec:\n  health: {ping: 2}", "5: spec.health.ping: '2' has no unit: write 2ms, 2s or 2m, whichever is "
                                            "meant"),
    ("spec:", "spec:\n  health: {}", "5: spec.health: the block is empty, which would wipe its defaults; remove it or "
                                     "write its keys"),
    ("residency: [eu]", "http: {profile: quick}", "6: spec.regions[0].http.profile: 'quick' is not allowed "
                                                 "here; allowed: standard, fast"),
    ("residency: [eu]", "http: {profile: fast, tls: {certFile: c, keyFile: k}}",
     "6: spec.regions[0].http.tls: HAProxy of profile fast speaks no TLS; allowed with profile: standard"),
    ("residency: [eu]", "http: {exposeHaproxyPorts: true}",
     "6: spec.regions[0].http.exposeHaproxyPorts: has no effect without profile: fast; allowed: leave it out"),
    ("residency: [eu]", "gatewayListen: 'h:1'", "6: spec.regions[0].gatewayListen: has no effect without gateway; "
     "allowed: leave it out, or write where peers reach the region"),
    ("spec:", "spec:\n  pki: {folder: certs}", "5: spec.pki.folder: this is no absolute path; allowed: a path from / "
     "on, as Routers have folders of their own"),
    ("spec:", "spec:\n  coordinator: {address: 'h:1', store: {url: 'http://h'}}",
     "5: spec.coordinator.store.url: this is no address of a Redis; allowed: redis://HOST:PORT, "
     "rediss://HOST:PORT/NUMBER, file:///FOLDER"),
    ("spec:", "spec:\n  coordinator: {address: 'h:1', store: {url: 'file:///facts', passwordFile: /p}}",
     "5: spec.coordinator.store.passwordFile: has no effect with a folder; allowed: leave it out, or write url: "
     "redis://HOST:PORT"),
    ("spec:", "spec:\n  health: fast", "5: spec.health: 'fast' cannot stand here; allowed: a block of keys"),
    ("spec:", "spec:\n  coordinator:", "5: spec.coordinator: the key has no value, which would wipe its default; "
                                       "remove the line or write a value"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "fault"), FEDERATIONS)
def test_federation(check: Check, old: str, new: str, fault: str) -> None:
    expected = [fault]
    if "peerBeat" in new:
        # The line of the key that is not written is the nearest that is.
        expected = [fault.replace("4: ", "5: ", 1)]
    assert check(_changed(FEDERATION, old, new)) == expected


def test_regions_are_told_apart_and_reached(check: Check) -> None:
    more = FEDERATION + (
        "    - {name: cloud-a, cloud: b, location: x, gpuHourUsd: 1, role: edge, gateway: 'h:1'}\n"
        "    - {name: c, cloud: b, location: x, gpuHourUsd: 1, role: edge, gateway: 'h:1'}\n"
        "    - {name: d, cloud: b, location: x, gpuHourUsd: 1, role: edge, acceptsSpill: false}\n"
    )
    assert check(more) == [
        '4: spec.coordinator: 4 regions need a coordinator; write coordinator: {address: "HOST:PORT"}',
        "6: spec.regions[0]: the region accepts spill but has no gateway, so no peer can reach it; "
        'write gateway: "HOST:PORT" or acceptsSpill: false',
        "7: spec.regions[1].name: 'cloud-a' is the name of regions[0] too; names are unique",
        "8: spec.regions[2].gateway: 'h:1' is the gateway of cloud-a too; each region has its own",
    ]


def test_a_gateway_is_not_where_the_coordinator_is(check: Check) -> None:
    both = _changed(FEDERATION, "residency: [eu]", "gateway: 'h:1'").replace(
        "spec:", "spec:\n  coordinator: {address: 'h:1'}"
    )
    assert check(both) == ["7: spec.regions[0].gateway: 'h:1' is the coordinator's address too; each has its own"]


@pytest.mark.parametrize(
    ("address", "written", "listens_at"),
    [
        ("10.0.0.7:7543", None, "10.0.0.7:7543"),
        ("[::1]:7543", None, "[::1]:7543"),
        ("gw.example.com:7543", None, "[::]:7543"),
        ("gw.example.com:443", "10.0.0.7:7543", "10.0.0.7:7543"),
    ],
)
def test_where_to_listen_follows_from_where_others_dial(address: str, written: str | None, listens_at: str) -> None:
    assert Coordinator(address=address, listen=written).listens_at == listens_at
    facts = {"name": "r", "cloud": "c", "location": "l", "gpuHourUsd": 1.0, "role": "edge"}
    region = Region.model_validate({**facts, "gateway": address, "gatewayListen": written})
    assert region.gateway_listens_at == listens_at
    assert Region.model_validate(facts).gateway_listens_at is None


_GPU = "  gpu: {vramRequired: 40Gi}\n"
AGENTS = [
    (_GPU, "", "4: spec.engine.kvCacheMemory: without a gpu block the engine runs on CPU, where it would claim nearly "
               "all memory of the node; write a size such as 512Mi, or gpu: {vramRequired: SIZE}"),
    (_GPU, "  engine: {kvCacheMemory: 1Gi, tensorParallelSize: 2}\n",
     "9: spec.engine.tensorParallelSize: 2 ranks need as many GPUs, but there is no gpu block; allowed: 1"),
    (_GPU, "  engine: {kvCacheMemory: 1Gi, enforceEager: false}\n",
     "9: spec.engine.enforceEager: without a gpu block the engine runs on CPU, where it would compile kernels, some "
     "only at the first request for logprobs, with a compiler the machine may not have; allowed: true, or gpu: "
     "{vramRequired: SIZE}"),
    (_GPU, "  gpu: {vramRequired: 40}\n", "9: spec.gpu.vramRequired: '40' has no unit: write 40Mi or 40Gi, whichever "
                                          "is meant"),
    (_GPU, "  gpu: {vramRequired: 40GB}\n", "9: spec.gpu.vramRequired: '40GB': units are powers of 1024: write 40Gi; "
                                            "allowed: a size such as 512Mi or 24Gi"),
    (_GPU, "  gpu: {vramRequired: 4Gi, migSlice: big}\n", "9: spec.gpu.migSlice: 'big' is no MIG profile; allowed: "
                                                          "such as 1g.10gb or 3g.40gb"),
    (_GPU, "  gpu: {vramRequired: 4Gi, migSlice: 1g.10gb}\n  engine: {tensorParallelSize: 2}\n",
     "10: spec.engine.tensorParallelSize: 2 ranks cannot talk across MIG slices; allowed: 1 with migSlice"),
    (_GPU, "  gpu: {vramRequired: 4Gi, fraction: 0.5}\n",
     "9: spec.gpu.fraction: 0.5 of a GPU leaves the rest to other engines, and a replica has its GPU alone unless the "
     "policy says share: true; allowed: 1, migSlice: PROFILE, or share: true"),
    (_GPU, "  gpu: {vramRequired: 4Gi, share: true}\n",
     "9: spec.gpu.share: the whole GPU is not shared; write fraction: SHARE, such as 0.5, or share: false"),
    (_GPU, "  gpu: {vramRequired: 4Gi, share: true, fraction: 0.5}\n",
     "4: spec.engine.gpuMemoryUtilization: 0.9 is more than fraction 0.5, so the engines that share the GPU would not "
     "all find their memory; allowed: at most fraction, or kvCacheMemory"),
    (_GPU, "  gpu: {vramRequired: 4Gi, share: true, fraction: 0.5, migSlice: 1g.10gb}\n"
           "  engine: {gpuMemoryUtilization: 0.5}\n",
     "9: spec.gpu.fraction: 0.5 of MIG slice 1g.10gb cannot be had, a slice is one replica's alone; allowed: migSlice "
     "or fraction"),
    (_GPU, "  gpu: {vramRequired: 4Gi, share: true, fraction: 0.5}\n"
           "  engine: {gpuMemoryUtilization: 0.5, tensorParallelSize: 2}\n",
     "9: spec.gpu.fraction: 0.5 of each of 2 GPUs cannot be had; allowed: a fraction with tensorParallelSize 1"),
    (_GPU, "  gpu: {vramRequired: 4Gi, fraction: 2}\n",
     "9: spec.gpu.fraction: '2' is out of range; allowed: at most 1; a share, so 90 % is 0.9"),
    (_GPU, _GPU + "  scaling: {stepUp: 1}\n", "10: spec.scaling.stepUp: '1' is out of range; allowed: more than 1"),
    (_GPU, _GPU + "  scaling: {stepDown: 1}\n",
     "10: spec.scaling.stepDown: '1' is out of range; allowed: less than 1"),
    (_GPU, _GPU + "  scaling: {headroom: -0.5}\n",
     "10: spec.scaling.headroom: '-0.5' is out of range; allowed: at least 0"),
    (_GPU, _GPU + "  scaling: {headroom: .nan}\n", "10: spec.scaling.headroom: '.nan' is not a number; "
                                                        "allowed: a number"),
    (_GPU, _GPU + "  minReplicas: -1\n", "10: spec.minReplicas: '-1' is out of range; allowed: at least 0"),
    (_GPU, _GPU + "  engine: {kvCacheMemory: 40Gi}\n",
     "10: spec.engine.kvCacheMemory: 40Gi of KV cache leaves nothing of vramRequired 40Gi for weights; allowed: less "
     "than vramRequired"),
    (_GPU, _GPU + "  engine: {gpuMemoryUtilization: 90}\n",
     "10: spec.engine.gpuMemoryUtilization: '90' is out of range; allowed: at most 1; a share, so 90 % is 0.9"),
    (_GPU, _GPU + "  engine: {dtype: bf16}\n", "10: spec.engine.dtype: 'bf16' is not allowed here (did you mean "
                                               "'bfloat16'?); allowed: auto, bfloat16, float16, float32"),
    (_GPU, _GPU + "  engine: {enforceEager: 1}\n", "10: spec.engine.enforceEager: '1' is no switch; allowed: "
                                                   "true, false"),
    (_GPU, _GPU + "  maxTokensDefault: 8192\n", "10: spec.maxTokensDefault: 8192 leaves no room for a prompt in "
                                                "maxModelLen 8192; allowed: less than maxModelLen"),
    (_GPU, _GPU + "  minReplicas: 3\n  maxReplicas: 2\n", "11: spec.maxReplicas: 2 is less than minReplicas 3; "
                                                          "allowed: minReplicas or more"),
    (_GPU, _GPU + "  maxReplicas: 0\n", "10: spec.maxReplicas: '0' is out of range; allowed: at least 1"),
    (_GPU, _GPU + "  maxQueueMs: 250ms\n", "10: spec.maxQueueMs: '250ms' is not a whole number; allowed: a whole "
                                           "number of milliseconds without a unit"),
    (_GPU, _GPU + "  maxReplicas: ${MAX}\n", "10: spec.maxReplicas: '${MAX}' is not a whole number; allowed: a whole "
                                             "number; ${NAME} stands for text only"),
    (_GPU, _GPU + "  timeouts: {queue: 0s}\n",
     f"10: spec.timeouts.queue: '0s' is not more than 0; allowed: {_DURATION}"),
    (_GPU, _GPU + "  timeouts: {queue: -5s}\n", f"10: spec.timeouts.queue: '-5s' is negative; allowed: {_DURATION}"),
    (_GPU, _GPU + "  timeouts: {queue: 1m}\n", "10: spec.timeouts.firstByte: 30s is shorter than queue 1m, which is "
                                               "part of it; allowed: queue or longer"),
    (_GPU, _GPU + "  timeouts: {total: 10s, firstByte: 10s, upstream: 300}\n",
     "10: spec.timeouts.upstream: unknown key 'upstream'; allowed: queue, firstByte, total, start"),
    (_GPU, _GPU + "  clusterSelector: {clod: [a]}\n", "10: spec.clusterSelector.clod: unknown key 'clod' (did you "
                                                      "mean 'cloud'?); allowed: cloud, region, location, role"),
    (_GPU, _GPU + "  clusterSelector: {cloud: []}\n", "10: spec.clusterSelector.cloud: 0 entries; allowed: at least 1"),
    (_GPU, _GPU + "  clusterSelector: {cloud: [a, a]}\n", "10: spec.clusterSelector.cloud[1]: 'a' is written twice; "
                                                          "it is cloud[0] too"),
    (_GPU, _GPU + "  languageAffinity: {zh_Hant: a}\n",
     "10: spec.languageAffinity.zh_Hant: 'zh_Hant' is not allowed here; allowed: a language code such as ja, zh-Hant "
     "or pt-BR"),
    (_GPU, _GPU + "  engineOf: other\n  scaleTriggers: []\n", [
        "7: spec.model: the agent uses the engine of other, so model has no effect here; remove model, or remove "
        "engineOf",
        "8: spec.storage: the agent uses the engine of other, so storage has no effect here; remove storage, or remove "
        "engineOf",
        "9: spec.gpu: the agent uses the engine of other, so gpu has no effect here; remove gpu, or remove engineOf",
        "10: spec.engineOf: there is no agent 'other'; known: qwen-chat"]),
    ("  model: M\n", "", "4: spec.model: model is missing; an agent has model and storage, or engineOf: NAME of the "
                         "agent with the engine"),
    ("smollm2", "qwen", "8: spec.storage.modelPath: 'qwen' names no model; allowed: s3://BUCKET/PATH, file:///PATH, "
                        "embedded:NAME, hf:ORG/NAME@REVISION or smollm2"),
    ("smollm2", "hf:Qwen/Qwen2.5-0.5B-Instruct",
     "8: spec.storage.modelPath: 'hf:Qwen/Qwen2.5-0.5B-Instruct' names no model; a hub model needs its revision: add "
     "@main or a commit; allowed: s3://BUCKET/PATH, file:///PATH, embedded:NAME, hf:ORG/NAME@REVISION or smollm2"),
    ("version: \"1\"", "version: 1", "5: spec.version: '1' is a number, text is needed; write it in quotes: \"1\""),
    ("version: \"1\"", "version: [1]", "5: spec.version: a list cannot stand here; allowed: text"),
    ("duty: chat", "duty: chatt", "6: spec.duty: 'chatt' is not allowed here (did you mean 'chat'?); allowed: chat, "
                                  "worker, coder, embedding, rerank, edge"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "fault"), AGENTS)
def test_agent(check: Check, old: str, new: str, fault: str | list[str]) -> None:
    assert check(_changed(AGENT, old, new), MAX="4") == ([fault] if isinstance(fault, str) else fault)


_UP = "{metric: queue_ms, above: 250, action: scale_up}"
_DOWN = "{metric: queue_ms, below: 50, action: scale_down}"
TRIGGERS = [
    ([_UP, _DOWN], []),
    ([_UP, "{metric: queue_ms, below: 50, action: scale_down, cooldown: 5s}"],
     ["13: spec.scaleTriggers[1].cooldown: 5s is shorter than the 10s over which load is averaged, so one burst would "
      "be acted on twice; allowed: 10s or longer"]),
    ([_UP, "{metric: queue_ms, below: 50, action: scale_down, cooldown: 1800}"],
     ["13: spec.scaleTriggers[1].cooldown: '1800' has no unit: write 1800ms, 1800s or 1800m, whichever is meant"]),
    (["{metric: queue_ms, above: 250, action: scale_up, cooldown: 1m}", _DOWN],
     ["12: spec.scaleTriggers[0].cooldown: scale_up acts at once; a cooldown is for scale_down only; remove it"]),
    (["{metric: queue_ms, above: 50, action: scale_up}", _DOWN],
     ["13: spec.scaleTriggers[1].below: 50 is not under the 50 of scaleTriggers[0], so the agent would go up and down "
      "at once; allowed: less than that"]),
    (["{metric: queue_ms, action: scale_up}", _DOWN],
     ["12: spec.scaleTriggers[0]: scale_up needs 'above' and not 'below'; write above: NUMBER"]),
    ([_UP, "{metric: queue_ms, above: 300, below: 50, action: scale_down}"],
     ["13: spec.scaleTriggers[1]: scale_down needs 'below' and not 'above'; write below: NUMBER"]),
    ([_UP, _DOWN, "{metric: kv_cache_used, above: 85, action: scale_up}"],
     ["14: spec.scaleTriggers[2].above: 85 is more than the whole cache; allowed: a share, so 85 % is 0.85"]),
    ([_UP, _DOWN, "{metric: gpu_memory_used, above: 0.85, action: scale_up}"],
     ["14: spec.scaleTriggers[2].metric: 'gpu_memory_used' is shown, never a trigger: vLLM reserves "
      "gpuMemoryUtilization of it at start, so a threshold at or under that always holds; allowed: queue_ms, "
      "kv_cache_used"]),
    ([_UP, _DOWN, "{metric: cpu, above: 0.85, action: scale_up}"],
     ["14: spec.scaleTriggers[2].metric: 'cpu' is not allowed here; allowed: queue_ms, kv_cache_used"]),
    ([_DOWN],
     ["11: spec.scaleTriggers: no trigger has action scale_up, so there would never be more replicas although "
      "minReplicas is 1 and maxReplicas 4; add one, or make both equal"]),
    ([_UP],
     ["11: spec.scaleTriggers: no trigger has action scale_down, so there would never be fewer replicas although "
      "minReplicas is 1 and maxReplicas 4; add one, or make both equal"]),
    (["{metric: queue_ms, above: 250ms, action: scale_up}", _DOWN],
     ["12: spec.scaleTriggers[0].above: '250ms' is not a number; allowed: a number of milliseconds without a unit"]),
]  # fmt: skip


@pytest.mark.parametrize(("triggers", "faults"), TRIGGERS)
def test_scale_triggers(check: Check, triggers: list[str], faults: list[str]) -> None:
    text = AGENT + "  maxReplicas: 4\n  scaleTriggers:\n" + "".join(f"    - {t}\n" for t in triggers)
    assert check(text) == faults


_RULE = "    - {name: ja, match: {lang: ja}, target: {agent: qwen-chat}}\n"
_LAST = "    - {name: fallback, match: {}, target: {agent: qwen-chat, langTemplate: en}}\n"
_RULES = [
    (_LAST, "", "6: spec.rules: the last rule 'ja' does not match everything, so some request would have no agent; end "
                "with a rule that has match: {}"),
    (_LAST, _LAST.replace(", langTemplate: en", ""),
     "8: spec.rules[1].target: langTemplate is missing: the last rule's template is for languages that have none of "
     "their own; write langTemplate: CODE"),
    (_RULE, _LAST.replace("fallback", "first") + _RULE, [
        "8: spec.rules[1]: the rule 'ja' can never match: 'first' comes first and matches all its requests; move it "
        "up, give it a larger priority, or remove it",
        "9: spec.rules[2]: the rule 'fallback' can never match: 'first' comes first and matches all its requests; move "
        "it up, give it a larger priority, or remove it"]),
    (_RULE, _RULE + _RULE, [
        "8: spec.rules[1].name: 'ja' is the name of rules[0] too; names are unique",
        "8: spec.rules[1]: the rule 'ja' can never match: 'ja' comes first and matches all its requests; move it up, "
        "give it a larger priority, or remove it"]),
    (_RULE, _RULE + "    - {name: b, match: {lang: [ja], intent: x}, target: {agent: qwen-chat}}\n",
     "8: spec.rules[1]: the rule 'b' can never match: 'ja' comes first and matches all its requests; move it up, give "
     "it a larger priority, or remove it"),
    (_RULE, "    - {name: l, match: {promptTokensAbove: 6k}, target: {agent: qwen-chat}}\n",
     "7: spec.rules[0].match.promptTokensAbove: '6k' is not a whole number; allowed: a whole number"),
    (_RULE, "    - {name: l, match: {lang: JA}, target: {agent: qwen-chat}}\n",
     "7: spec.rules[0].match.lang: 'JA' is not allowed here; allowed: a language code such as ja, zh-Hant or pt-BR"),
    (_RULE, "    - {name: l, match: {lang: [ko, JA]}, target: {agent: qwen-chat}}\n",
     "7: spec.rules[0].match.lang[1]: 'JA' is not allowed here; allowed: a language code such as ja, zh-Hant or pt-BR"),
    (_RULE, "    - {name: l, target: {agent: qwen-chat}}\n",
     "7: spec.rules[0].match: match is missing; write a block with lang, intent, tenant, promptTokensAbove"),
    (_RULE, "    - {name: l, match: {lang: ko}, target: {}}\n",
     "7: spec.rules[0].target: the block is empty, which would wipe its defaults; remove it or write its keys"),
    ("{en: 1, ja: 1.6}", "{en: 1.2}", "5: spec.languages.tokenRatio.en: 1.2 is not 1: ratios are against English; "
                                      "allowed: 1.0"),
    ("{en: 1, ja: 1.6}", "{en: 1, ja: 0}",
     "5: spec.languages.tokenRatio.ja: '0' is out of range; allowed: more than 0"),
    ("{en: 1, ja: 1.6}", "{}", "5: spec.languages.tokenRatio: 0 entries; allowed: at least 1"),
    ("{en: 1, ja: 1.6}", "{en: 1}, equivalent: [[id, ms], [id, en], [ja]]", [
        "5: spec.languages.equivalent[0]: none of id, ms has a tokenRatio; give one of them a ratio",
        "5: spec.languages.equivalent[1][0]: 'id' is in equivalent[0] already; a language is in one group",
        "5: spec.languages.equivalent[2]: a group of 1 says nothing; allowed: two or more codes",
        "5: spec.languages.equivalent[2]: none of ja has a tokenRatio; give one of them a ratio"]),
    ("spec:", "spec:\n  scoring: {queue: 0.5}", "5: spec.scoring: the weights sum to 1.05; allowed: a sum of 1"),
    ("spec:", "spec:\n  scoring: {headrom: 0.2}",
     "5: spec.scoring.headrom: unknown key 'headrom' (did you mean 'headroom'?); allowed: network, queue, headroom, "
     "cost"),
    ("spec:", "spec:\n  scoring: {queue: 45}", "5: spec.scoring.queue: '45' is out of range; allowed: at most 1; a "
                                               "share, so 90 % is 0.9"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "fault"), _RULES)
def test_routes(check: Check, old: str, new: str, fault: str | list[str]) -> None:
    assert sorted(check(_changed(ROUTES, old, new))) == sorted([fault] if isinstance(fault, str) else fault)


def test_priority_comes_before_order(check: Check) -> None:
    late = ROUTES + "    - {name: urgent, priority: 5, match: {lang: ja, intent: x}, target: {agent: qwen-chat}}\n"
    assert check(late) == []


_HASH = "a" * 64
TENANTS = [
    (_HASH, "${KEY}", "5: spec.keys[0].sha256: the environment variable KEY is not set; set it to what belongs here"),
    (_HASH, "sk-secret", "5: spec.keys[0].sha256: 9 characters are no SHA-256; allowed: 64 hex digits, the key's hash"),
    (_HASH, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
     "5: spec.keys[0].sha256: this is the SHA-256 of an empty key; allowed: the hash of a key that is not empty"),
    ("[{id: k1, sha256: " + _HASH + "}]", "[]", "5: spec.keys: 0 entries; allowed: at least 1"),
    ("id: k1,", "id: k1, expires: 2027-02-30,", "5: spec.keys[0].expires: '2027-02-30' is no day; allowed: YYYY-MM-DD "
                                                "such as 2027-06-30"),
    ("id: k1,", "id: k1, expires: 20270630,", "5: spec.keys[0].expires: '20270630' is no day; allowed: YYYY-MM-DD such "
                                              "as 2027-06-30"),
    ("  residency: [eu]\n", "", "4: spec.residency: residency is missing; write a list"),
    ("residency: [eu]", "residency: []", "6: spec.residency: 0 entries; allowed: at least 1"),
    ("residency: [eu]", "residency: [eu, any]", "6: spec.residency: 'any' stands beside zones, which it would make "
                                                "meaningless; allowed: [any] alone, or zones"),
    ("residency: [eu]", "residency: [eu]\n  agents: []", "7: spec.agents: 0 entries; allowed: at least 1"),
    ("residency: [eu]", "residency: [eu]\n  limits: {}", "7: spec.limits: the block is empty, which would wipe its "
                                                         "defaults; remove it or write its keys"),
    ("residency: [eu]", "residency: [eu]\n  limits: {concurrent: 0}", "7: spec.limits.concurrent: '0' is out of range; "
                                                                      "allowed: at least 1"),
    ("residency: [eu]", "residency: [eu]\n  role: admin", "7: spec.role: 'admin' is not allowed here; allowed: user, "
                                                          "operator"),
    ("]\n  res", ", {id: k1, sha256: " + _HASH + "}]\n  res", [
        "5: spec.keys[1].id: the id is the same as that of keys[0]; each key has its own",
        "5: spec.keys[1].sha256: the sha256 is the same as that of keys[0]; each key has its own"]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "fault"), TENANTS)
def test_tenant(check: Check, old: str, new: str, fault: str | list[str]) -> None:
    assert check(_changed(TENANT, old, new)) == ([fault] if isinstance(fault, str) else fault)


def test_a_secret_from_the_environment_is_never_shown(check: Check) -> None:
    faults = check(_changed(TENANT, "id: k1", 'id: "${ID}"'), ID="s3cr3t key!")
    assert faults == [
        "5: spec.keys[0].id: the value of ${ID} is not allowed here; allowed: letters, digits and . _ - between them, "
        "at most 63 characters"
    ]


TEMPLATES = [
    ("name: en", "name: no", "4: spec.language: 'en' is not the template's name 'no'; both must be the same"),
    ("Be brief.", '"<|im_end|>"', "4: spec.system: '<|' starts a special token of the tokenizer; allowed: plain text"),
    ("Be brief.", '" "', "4: spec.system: the text is blank; allowed: what the agent is told or says"),
    ("Be brief.", '""', "4: spec.system: 0 characters; allowed: at least 1"),
    ("Be brief.", "x" * 4001, "4: spec.system: 4001 characters; allowed: at most 4000"),
    ("register: plain", "register: polite", "4: spec.register: 'polite' is not allowed here; allowed: formal, plain, "
                                            "honorific"),
    ("register: plain", "register: plain, confirmations: {yes: 1}",
     "4: spec.confirmations.yes: '1' is a number, text is needed; write it in quotes: \"1\""),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "fault"), TEMPLATES)
def test_template(check: Check, old: str, new: str, fault: str) -> None:
    assert check(_changed(TEMPLATE, old, new)) == [fault]


def test_norwegian_is_a_language(check: Check) -> None:
    assert check(TEMPLATE.replace("name: en", "name: no").replace("language: en", "language: no")) == []
    assert check(_changed(ROUTES, "{en: 1, ja: 1.6}", "{en: 1, no: 1.4}")) == []


def test_faults_of_all_documents_come_at_once_by_line(check: Check) -> None:
    text = (
        ALL.replace("role: primary", "role: primry")
        .replace("vramRequired: 40Gi", "vramRequired: 40")
        .replace("duty: worker", "duty: worker\n  timeouts: {queue: 10, total: 1s}\n  maxReplicas: 3\n  minReplicas: 4")
        .replace("{lang: ja}, target: {agent: qwen-chat}", "{langs: ja}, target: {agent: qwen-chta}")
        .replace(_HASH, "${KEY}")
        .replace("residency: [eu]\n---", "residency: [eu, any]\n  budget:\n---")
    )
    assert check(text) == [
        "6: spec.regions[0].role: 'primry' is not allowed here (did you mean 'primary'?); allowed: primary, secondary, "
        "edge",
        "16: spec.gpu.vramRequired: '40' has no unit: write 40Mi or 40Gi, whichever is meant",
        "24: spec.timeouts.queue: '10' has no unit: write 10ms, 10s or 10m, whichever is meant",
        "24: spec.timeouts.total: 1s is shorter than firstByte 30s, which is part of it; allowed: firstByte or longer",
        "25: spec.maxReplicas: 3 is less than minReplicas 4; allowed: minReplicas or more",
        "35: spec.rules[0].match.langs: unknown key 'langs' (did you mean 'lang'?); allowed: lang, intent, tenant, "
        "promptTokensAbove",
        "35: spec.rules[0].target.agent: there is no agent 'qwen-chta' (did you mean 'qwen-chat'?); known: qwen-chat, "
        "qwen-doc",
        "42: spec.keys[0].sha256: the environment variable KEY is not set; set it to what belongs here",
        "43: spec.residency: 'any' stands beside zones, which it would make meaningless; allowed: [any] alone, or "
        "zones",
        "44: spec.budget: the key has no value, which would wipe its default; remove the line or write a value",
    ]


@pytest.mark.parametrize("key", ["[key]", "", " ", "a.b", "<<x", "é"])
def test_keys_of_any_form_have_a_place(check: Check, key: str) -> None:
    quoted = key if key in ("<<x", "é") else f"'{key}'"
    [top, ratio] = check(_changed(ROUTES, "{en: 1, ja: 1.6}", f'{{en: 1, "{key}": 1}}') + f'"{key}": 1\n')
    assert ratio.startswith(f"9: {quoted}: unknown key '{key}'; allowed: apiVersion, kind, metadata, spec")
    assert top == (
        f"5: spec.languages.tokenRatio.{quoted}: '{key}' is not allowed here; allowed: a language code such as ja, "
        "zh-Hant or pt-BR"
    )
