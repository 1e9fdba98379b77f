"""The picture of the autoscaling benchmark: a curve and a day of each trace as a plain SVG, no library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from benchmarks.autoscale_policies import CONTENDERS
from benchmarks.autoscale_report import BEATEN, OURS, Curves, Point
from benchmarks.autoscale_traces import HOUR_S

PANEL_W: Final = 400
DAY_W: Final = 560
PANEL_H: Final = 190
LEFT: Final = 52
TOP: Final = 44
GAP: Final = 60
MARGIN: Final = 20
COLOURS: Final = {"queue_latency": "#c2410c", "ongoing": "#5b84b1", "qps": "#1f2328", "short_cooldown": "#d9a066"}
STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#1f2328}.t{font-weight:600}.s{fill:#57606a}"
    ".v{fill:#57606a;font-size:11px}"
)
#: Shares below are drawn on the bottom line: a logarithm has no zero.
LEAST_SHARE: Final = 0.0005
SHARES: Final = (0.0005, 0.001, 0.01, 0.1, 1.0)


def _path(points: Iterable[tuple[float, float]], colour: str, width: float = 1.8) -> str:
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _share_y(share: float) -> float:
    low, high = math.log10(LEAST_SHARE), 0.0
    return PANEL_H * (high - math.log10(max(share, LEAST_SHARE))) / (high - low)


def _curve(curves: Curves) -> list[str]:
    """Time over target against GPU-hours, a line for each policy."""
    every = [p.gpu_hours for points in curves.points.values() for p in points]
    low, high = min(every), max(every)
    scale = PANEL_W / ((high - low) or 1.0)
    out = [f'<rect x="0" y="0" width="{PANEL_W}" height="{PANEL_H}" fill="none" stroke="#d0d7de"/>']
    for share in SHARES:
        y = _share_y(share)
        name = "0" if share == LEAST_SHARE else f"{share:.1%}".replace(".0%", "%")
        out.append(f'<path d="M0 {y:.1f}H{PANEL_W}" stroke="#eaeef2"/>')
        out.append(f'<text class="v" x="-6" y="{y + 4:.1f}" text-anchor="end">{name}</text>')
    for name, points in curves.points.items():
        ordered = sorted(points, key=lambda p: p.gpu_hours)
        places = [((p.gpu_hours - low) * scale, _share_y(p.over_ratio)) for p in ordered]
        out.append(_path(places, COLOURS[name]))
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[name]}"/>' for x, y in places]
    out.append(f'<text class="v" x="0" y="{PANEL_H + 15}">{low:.4g}</text>')
    out.append(f'<text class="v" x="{PANEL_W}" y="{PANEL_H + 15}" text-anchor="end">{high:.4g} GPU-hours</text>')
    return out


def _day(curves: Curves, shown: Sequence[tuple[str, Point]]) -> list[str]:
    """The work that came as an area, and the replicas that each policy wanted as steps."""
    most = max([*curves.need, *(float(target) for _, p in shown for _, target, _ in p.steps)])
    across, up = DAY_W / curves.span_s, PANEL_H / most
    step_s = curves.span_s / len(curves.need)
    area = "".join(f"L{(i + 0.5) * step_s * across:.1f} {PANEL_H - n * up:.1f}" for i, n in enumerate(curves.need))
    out = [
        f'<path d="M0 {PANEL_H}{area}L{DAY_W} {PANEL_H}Z" fill="#dbe4ee"/>',
        f'<rect x="0" y="0" width="{DAY_W}" height="{PANEL_H}" fill="none" stroke="#d0d7de"/>',
        f'<text class="v" x="-6" y="10" text-anchor="end">{most:.3g}</text>',
        f'<text class="v" x="-6" y="{PANEL_H}" text-anchor="end">0</text>',
        f'<text class="v" x="{DAY_W}" y="{PANEL_H + 15}" text-anchor="end">{curves.span_s / HOUR_S:.3g} h</text>',
    ]
    for name, point in shown:
        places, y = [], PANEL_H - point.steps[0][1] * up
        for at_s, target, _ in point.steps:
            places += [(at_s * across, y), (at_s * across, PANEL_H - target * up)]
            y = PANEL_H - target * up
        out.append(_path([*places, (DAY_W, y)], COLOURS[name], 1.4))
    return out


def shown_of(curves: Curves) -> list[tuple[str, Point]]:
    """Ours in the middle of its curve, and the other with the GPU-hours nearest to it."""
    ordered = sorted(curves.points[OURS], key=lambda p: p.gpu_hours)
    ours = ordered[len(ordered) // 2]
    theirs = min(curves.points[BEATEN], key=lambda p: abs(p.gpu_hours - ours.gpu_hours))
    return [(BEATEN, theirs), (OURS, ours)]


def _row(curves: Curves) -> list[str]:
    shown = shown_of(curves)
    said = ", ".join(f"{CONTENDERS[name].title} {point.knob:g}" for name, point in shown)
    return [
        f'<text class="t" x="0" y="14">{escape(curves.trace)}: time over target by GPU-hours</text>',
        f'<g transform="translate({LEFT} {TOP - 16})">',
        *_curve(curves),
        "</g>",
        f'<g transform="translate({LEFT + PANEL_W + GAP} 0)">',
        f'<text class="t" x="0" y="14">replicas wanted: {escape(said)}; grey: work</text>',
        f'<g transform="translate(0 {TOP - 16})">',
        *_day(curves, shown),
        "</g></g>",
    ]


def svg(found: Sequence[Curves]) -> str:
    """A row for each trace, and what the colours mean."""
    row_h = TOP + PANEL_H + 22
    width = 2 * MARGIN + LEFT + PANEL_W + GAP + DAY_W
    height = 2 * MARGIN + 24 + len(found) * row_h
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f'<style>{STYLE}</style><rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    x = MARGIN + LEFT
    for name, contender in CONTENDERS.items():
        out.append(f'<rect x="{x}" y="{MARGIN}" width="12" height="12" fill="{COLOURS[name]}"/>')
        out.append(f'<text x="{x + 18}" y="{MARGIN + 11}">{escape(contender.title)}</text>')
        x += 170
    for place, curves in enumerate(found):
        out += [f'<g transform="translate({MARGIN} {MARGIN + 24 + place * row_h})">', *_row(curves), "</g>"]
    return "\n".join([*out, "</svg>"]) + "\n"
