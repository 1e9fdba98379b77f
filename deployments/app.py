"""Builders that Serve's YAML names: each gives one application."""

from __future__ import annotations

from typing import Any

from ray.serve import Application

from deployments.language_detector import LanguageDetector
from deployments.router import Router
from serve_app.core.tasks import CLASSES


def build_router(args: dict[str, Any]) -> Application:
    """App ``grix``: Router (ingress), and LanguageDetector where ``args`` places it in a deployment of its own.

    The bundle is Router's user_config: what it decides from changes in place.
    """
    placement = args.get("detector")
    if set(args) != {"detector"} or placement not in ("router", "deployment"):
        raise ValueError(f"app grix takes detector: router or deployment, got: {args}")
    return Router.bind(LanguageDetector.bind() if placement == "deployment" else None)


def build_agent(args: dict[str, Any]) -> Application:
    """App ``<agent>--<digest>``: one QwenAgent. ``args`` is what is in the engine digest."""
    from deployments.qwen import QwenAgent

    allowed = {"agent", "model_path", "engine", "engine_digest"}
    if set(args) != allowed:
        raise ValueError(f"an agent app takes exactly {', '.join(sorted(allowed))}; got: {', '.join(sorted(args))}")
    return QwenAgent.bind(args)


def build_tasks(args: dict[str, Any]) -> Application:
    """App ``grix-tasks-CLASS``: the workers of one class of tasks; where the tasks are comes with their user_config."""
    from deployments.tasks.consumer import task_workers

    if set(args) != {"class"} or args["class"] not in CLASSES:
        raise ValueError(f"an app of task workers takes class: {' or '.join(CLASSES)}, got: {args}")
    return task_workers(args["class"]).bind()


def build_control(args: dict[str, Any]) -> Application:
    """App ``grix-control``: the GlobalCoordinator. All it is told is its user_config, which changes in place."""
    from deployments.coordinator import GlobalCoordinator

    _takes_nothing(args, "grix-control")
    return GlobalCoordinator.bind()


def build_region(args: dict[str, Any]) -> Application:
    """App ``grix-region``: RegionAgent (one) and RegionGateway (one a node); both decide from their user_config."""
    from deployments.region_agent import RegionAgent
    from deployments.region_gateway import RegionGateway

    _takes_nothing(args, "grix-region")
    return RegionAgent.bind(RegionGateway.bind())


def _takes_nothing(args: dict[str, Any], app: str) -> None:
    if args:
        raise ValueError(f"app {app} takes no args; got: {', '.join(sorted(args))}")
