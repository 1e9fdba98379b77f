"""What RegionAgents are fed with: agents of one engine, pushes, beats of one peer, plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from serve_app.core.region_facts import FleetFacts, RegionFacts
from serve_app.core.region_state import RegionCore
from serve_app.core.reports import FleetRegion, PeerView, Plan, RegionState, ReplicaReport, TargetReport
from serve_app.core.snapshots import Load
from tests.fakes import agent

CHAT = agent("qwen-chat", release="a" * 64)
DOC = agent("qwen-doc", engine_agent="qwen-chat", app=CHAT.app, release="b" * 64)
FACTS = FleetFacts(
    me="cloud-a",
    regions={
        "cloud-a": RegionFacts("cloud-a", "cloud-a", frozenset({"sg"}), 1.0),
        "cloud-b": RegionFacts("cloud-b", "cloud-b", frozenset({"eu"}), 1.15),
        "edge-1": RegionFacts("edge-1", "edge", frozenset(), 0.05, accepts_spill=False),
    },
    agents={"qwen-chat": CHAT, "qwen-doc": DOC},
)
THERE = TargetReport(
    "qwen-chat", "qwen-chat--99999999", "c" * 64, "d" * 64, "healthy", "", 2, 32, 4096, Load(waiting=1)
)


def core(**changes: Any) -> RegionCore:
    return RegionCore(replace(FACTS, **changes), 7)


def push(*, proven: bool = True, app: str = CHAT.app, **load: Any) -> ReplicaReport:
    return ReplicaReport(app, "r1", "e" * 64, proven, Load(**load))


def beat(silent_s: float | None = 0.1, *targets: TargetReport, **changes: Any) -> PeerView:
    state = RegionState("cloud-b", "healthy", "", targets or (THERE,))
    made = PeerView("cloud-b", silent_s, 12.0, state)
    return replace(made, **changes)


def plan(generation: int = 1, epoch: int = 5, **regions: FleetRegion) -> Plan:
    return Plan(epoch, generation, tuple(replace(r, name=n.replace("_", "-")) for n, r in regions.items()))


def ready(**changes: Any) -> FleetRegion:
    return replace(FleetRegion("", "ready", ""), **changes)


#: Two regions that spill to each other, an edge that nobody dials, and two agents of one engine in each.
FEDERATION = """\
apiVersion: grix.io/v1
kind: Federation
metadata: {name: two}
spec:
  coordinator: {address: "127.0.0.1:7443"}
  regions:
    - {name: cloud-a, cloud: cloud-a, location: x, gpuHourUsd: 1, role: primary, residency: [sg, jp],
       gateway: "127.0.0.1:7543"}
    - {name: cloud-b, cloud: cloud-b, location: y, gpuHourUsd: 1.15, role: secondary, residency: [eu],
       gateway: "127.0.0.1:7643"}
    - {name: edge-1, cloud: edge, location: z, gpuHourUsd: 0.05, role: edge, acceptsSpill: false}
---
apiVersion: grix.io/v1
kind: AgentPolicy
metadata: {name: qwen-chat}
spec:
  version: "1"
  duty: chat
  model: tiny-qwen
  storage: {modelPath: "embedded:tiny-qwen"}
  engine: {maxModelLen: 4096, maxNumSeqs: 16, kvCacheMemory: 128Mi}
  minReplicas: 1
  maxReplicas: 1
---
apiVersion: grix.io/v1
kind: AgentPolicy
metadata: {name: qwen-doc}
spec: {version: "1", duty: worker, engineOf: qwen-chat, minReplicas: 1, maxReplicas: 1}
---
apiVersion: grix.io/v1
kind: RouteTable
metadata: {name: default}
spec:
  languages: {tokenRatio: {en: 1, ja: 1.6, ko: 1.8}}
  rules:
    - {name: fallback, match: {}, target: {agent: qwen-chat, langTemplate: en}}
---
apiVersion: grix.io/v1
kind: Tenant
metadata: {name: tester}
spec:
  role: operator
  keys: [{id: k1, sha256: "0000000000000000000000000000000000000000000000000000000000000000"}]
  residency: [any]
---
apiVersion: grix.io/v1
kind: PromptTemplate
metadata: {name: en}
spec: {version: "1", language: en, register: plain, system: Be brief.}
"""
