"""What is used of Ray Serve 2.60, and that Serve takes what ``grix render`` makes."""

from __future__ import annotations

import inspect
import json
from importlib import import_module, metadata

import pytest
from ray import serve
from ray.serve._private.application_state import ApplicationState
from ray.serve._private.config import DeploymentConfig
from ray.serve._private.deployment_state import DeploymentState
from ray.serve._private.replica import Replica, UserCallableWrapper
from ray.serve._private.request_router.request_router import RequestRouter
from ray.serve._private.router import AsyncioRouter, CurrentLoopRouter, SingletonThreadRouter
from ray.serve._private.version import DeploymentVersion
from ray.serve.context import ReplicaContext
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentBroadcastResponse, DeploymentHandle, DeploymentResponseGenerator
from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema

from cluster_configs.load import load_paths, local_paths
from serve_app.edge.serve_apps import by_name, in_force, same
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


def test_serve_tells_a_rendered_config_back_as_it_was_put() -> None:
    # What it tells is what it kept of what it read; else nothing of ours would ever be confirmed.
    put = by_name(json.loads(json.dumps(config()))["applications"])
    for app in ServeDeploySchema.model_validate(config()).applications:
        kept = ServeApplicationSchema.model_validate(app.model_dump(exclude_unset=True))
        assert same(json.loads(kept.model_dump_json(exclude_unset=True)), put[app.name])


def test_what_makes_serve_try_again_is_another_version_of_the_same_replicas() -> None:
    # It counts failed starts from zero only for a config that differs; an update that failed it leaves for good unless
    # the version differs too.
    assert "self._replica_failure_count = 0" in inspect.getsource(DeploymentState.deploy)
    assert "not deployment_settings_changed" in inspect.getsource(DeploymentState.deploy)
    app = next(app for app in config()["applications"] if "--" in app["name"])
    (name,) = (d["name"] for d in app["deployments"])
    versions = []
    for tries in range(3):
        made = in_force({app["name"]: app}, {}, {app["name"]: {name: tries}})
        options = set(made[app["name"]]["deployments"][0]) & set(DeploymentConfig.model_fields) - {"num_replicas"}
        settings = {option: made[app["name"]]["deployments"][0][option] for option in options}
        settings = {k: v for k, v in settings.items() if k not in ("autoscaling_config", "request_router_config")}
        versions.append(DeploymentVersion("code", DeploymentConfig(**settings), {}))
    assert len({hash(version) for version in versions}) == 3
    assert not any(versions[0].requires_actor_restart(version) for version in versions)


def test_serve_tells_no_replicas_of_what_it_deletes_or_builds() -> None:
    assert "in self.target_deployments" in inspect.getsource(ApplicationState.list_deployment_details)
    assert "deployment_infos={}" in inspect.getsource(ApplicationState._set_target_state_deleting)
    assert "deployment_infos=None" in inspect.getsource(ApplicationState._clear_target_state_and_store_config)


def test_every_import_path_resolves() -> None:
    for app in config()["applications"]:
        module, _, name = app["import_path"].partition(":")
        assert callable(getattr(import_module(module), name))


def test_an_async_destructor_is_awaited_before_a_replica_ends() -> None:
    # RegionGateway ends the streams of its peers there.
    source = inspect.getsource(UserCallableWrapper.call_destructor)
    assert "await self._call_func_or_gen(" in source and "self._callable.__del__" in source
