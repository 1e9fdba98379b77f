"""The region's engine runs what lies in a model store: a copy on its host that stays while it lives."""

from __future__ import annotations

import json

from serve_app.edge.model_files import embedded
from tests.e2e.conftest import LiveRegion


def test_an_engine_holds_the_version_it_has_loaded(region: LiveRegion) -> None:
    (path,) = region.record["models"]
    assert path == f"file://{region.folder}/store/tiny-qwen/v1"
    # The engine's start has fetched it: one more costs no byte.
    assert json.loads(region.grix("model", "pull", path, "--json").stdout)["read_bytes"] == 0
    for name in ("v2", "v3"):
        later = path.removesuffix("v1") + name
        region.grix("model", "push", str(embedded("tiny-qwen")), later)
        region.grix("model", "pull", later)
    told = json.loads(region.grix("model", "gc", "--keep", "1", "--json").stdout)
    found = {e["name"].partition("-")[2][:7]: (e["what"], e["removed"]) for e in told["entries"]}
    assert found == {
        "qwen_v1": ("version, in use", False),
        "qwen_v2": ("version", True),
        "qwen_v3": ("version", False),
    }
    assert region.chat("Hello")[0] == 200
