"""A region with profile ``fast`` in a network of its own: ``python -m tests.fast_drill`` tells what it saw as JSON."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks import own_network
from serve_app.cli.client import Client
from serve_app.edge.ray_cluster import only_loopback
from tests.e2e.test_security_listeners import strangers_see
from tests.stub_region import running_stub_region


def main() -> None:
    told: dict[str, Any] = {"own_network": own_network.enter(), "only_loopback": only_loopback()}
    with running_stub_region("{profile: fast}", haproxy_total_s=600.0) as region:
        cluster = region.rest.details()
        told["proxies"] = cluster["proxy_location"]
        with ThreadPoolExecutor(32) as pool:
            replies = list(pool.map(lambda _: region.ask()[1], range(64)))
        told["statuses"] = sorted({r.status for r in replies})
        told["texts"] = sorted({r.text for r in replies})
        told["unbuffered"] = {r.headers.get("x-accel-buffering") for r in replies} == {"no"}
        _, broken = region.ask([["accepted"], ["head"], ["say", "one "], ["raise"]])
        told["broken"] = [broken.status, broken.events[-1] != "[DONE]", "error" in json.loads(broken.events[-1])]
        stranger, operator = Client(region.url), Client(region.url, region.key)
        for path in ("/healthz", "/metrics", "/healthz?deep=1", "/v1/models"):
            told[path] = [stranger.ask("GET", path).status, operator.ask("GET", path).status]
        told["listeners"] = {kind: sorted(words) for kind, words in strangers_see(region.state).items()}
        sockets = list(region.temp_dir.glob("h/**/admin.sock"))
        told["admin"] = [oct(stat.S_IMODE((region.temp_dir / "h").stat().st_mode)), len(sockets)]
    print(json.dumps(told))


if __name__ == "__main__":
    main()
