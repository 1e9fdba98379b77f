"""What is used of Ray Serve 2.60, and that Serve takes what ``grix render`` makes."""

from __future__ import annotations

import inspect
from importlib import import_module, metadata

import pytest
from ray import serve
from ray.serve._private.config import DeploymentConfig
from ray.serve._private.replica import Replica, UserCallableWrapper
from ray.serve._private.request_router.request_router import RequestRouter
from ray.serve._private.router import AsyncioRouter, CurrentLoopRouter, SingletonThreadRouter
from ray.serve.context import ReplicaContext
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentBroadcastResponse, DeploymentHandle, DeploymentResponseGenerator
from ray.serve.schema import ServeDeploySchema

from cluster_configs.load import load_paths, local_paths
from serve_app.edge.serve_config import render


def config() -> dict:
    documents = load_paths(local_paths(), {})
    return render(documents, "cloud-a", http_host="127.0.0.1", http_port=8000)


def test_the_pinned_version() -> None:
    assert metadata.version("ray").startswith("2.60.")


def test_an_ingress_may_build_its_own_asgi_app() -> None:
    @serve.ingress()
    class Entry:
        def __serve_build_asgi_app__(self) -> None: ...

    assert issubclass(Entry, object)
    with pytest.raises(ValueError, match="__serve_build_asgi_app__"):
        serve.ingress()(type("NoBuilder", (), {}))


def test_handles_stream_cancel_and_broadcast() -> None:
    assert {"stream", "method_name"} <= set(inspect.signature(DeploymentHandle.options).parameters)
    assert callable(DeploymentResponseGenerator.cancel)
    assert callable(DeploymentHandle.broadcast)
    assert inspect.iscoroutinefunction(DeploymentBroadcastResponse.results_async)
    assert callable(serve.get_app_handle)


def test_a_handle_tells_how_many_replicas_it_knows() -> None:
    assert callable(DeploymentHandle.running_replicas_populated)
    assert isinstance(RequestRouter.curr_replicas, property)
    for router in (CurrentLoopRouter, SingletonThreadRouter):
        assert "self._asyncio_router = " in inspect.getsource(router)
    assert "self._request_router" in inspect.getsource(AsyncioRouter)
    assert "self._router = " in inspect.getsource(DeploymentHandle._init)


def test_a_replica_knows_its_settings_before_they_are_handed_over() -> None:
    assert "_deployment_config" in ReplicaContext.__dataclass_fields__
    assert "user_config" in DeploymentConfig.model_fields
    # Before the callable is made.
    source = inspect.getsource(Replica.__init__)
    assert "self._set_internal_replica_context(servable_object=None" in source


def test_refusals_are_told_apart() -> None:
    assert issubclass(BackPressureError, RayServeException)
    assert issubclass(DeploymentUnavailableError, RayServeException)


def test_serve_takes_the_rendered_config_whole() -> None:
    rendered = config()
    parsed = ServeDeploySchema.model_validate(rendered) if hasattr(ServeDeploySchema, "model_validate") else None
    assert parsed is not None
    assert [a.name for a in parsed.applications] == [a["name"] for a in rendered["applications"]]
    for app, written in zip(parsed.applications, rendered["applications"], strict=True):
        for deployment, raw in zip(app.deployments, written["deployments"], strict=True):
            # Keys that Serve does not know would be dropped without a word.
            assert set(raw) <= set(type(deployment).model_fields), set(raw) - set(type(deployment).model_fields)


def test_every_import_path_resolves() -> None:
    for app in config()["applications"]:
        module, _, name = app["import_path"].partition(":")
        assert callable(getattr(import_module(module), name))


def test_an_async_destructor_is_awaited_before_a_replica_ends() -> None:
    # RegionGateway ends the streams of its peers there.
    source = inspect.getsource(UserCallableWrapper.call_destructor)
    assert "await self._call_func_or_gen(" in source and "self._callable.__del__" in source
