"""The picture of a gateway benchmark: bars with quartiles as a plain SVG, no library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from benchmarks.gateway_report import Report, Spread

PANEL_W: Final = 350
NAME_W: Final = 104
VALUE_W: Final = 84
BAR_H: Final = 16
ROW_H: Final = 24
TOP: Final = 46
MARGIN: Final = 20
COLOURS: Final = {"direct": "#8a8f98", "grix": "#c2410c"}
PEER_COLOUR: Final = "#5b84b1"
STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#1f2328}.t{font-weight:600}.s{fill:#57606a}"
    ".m{font-size:16px;font-weight:600}.v{fill:#57606a;font-size:11px}"
)


@dataclass(frozen=True, slots=True)
class Panel:
    """One figure at one load, for every target."""

    load: str
    figure: str
    title: str
    says: str
    digits: int


def panels_of(loads: Sequence[str]) -> list[Panel]:
    """What is worth a picture: the wait of a single stream, throughput at each number of streams, CPU at the most."""
    streams = [load for load in loads if load.isdecimal()]
    out = []
    if "1" in streams:
        out.append(Panel("1", "total_p50_ms", "1 stream: whole answer, p50", "ms, less is better", 1))
    out += [
        Panel(load, "throughput_rps", f"{load} streams: throughput", "requests/s, more is better", 1)
        for load in streams
        if load != "1"
    ]
    if streams:
        said = f"{streams[-1]} stream{'' if streams[-1] == '1' else 's'}: CPU of all servers"
        out.append(Panel(streams[-1], "cpu_ms_per_request", said, "ms/request, less is better", 2))
    return out


def _bar(name: str, found: Spread | None, largest: float, digits: int, y: int) -> list[str]:
    middle = y + BAR_H - 4
    out = [f'<text x="{NAME_W - 8}" y="{middle}" text-anchor="end">{escape(name)}</text>']
    if found is None:
        return [*out, f'<text class="v" x="{NAME_W}" y="{middle}">no answer</text>']
    scale = (PANEL_W - NAME_W - VALUE_W) / largest
    width, low, high = (round(v * scale, 1) for v in (found.median, found.q1, found.q3))
    line = y + BAR_H / 2
    return [
        *out,
        f'<rect x="{NAME_W}" y="{y}" width="{width}" height="{BAR_H}" rx="2" fill="{COLOURS.get(name, PEER_COLOUR)}"/>',
        f'<path d="M{NAME_W + low} {line}H{NAME_W + high}M{NAME_W + low} {line - 4}v8M{NAME_W + high} {line - 4}v8" '
        'stroke="#1f2328" stroke-width="1.2"/>',
        f'<text class="v" x="{NAME_W + max(width, high) + 6:.1f}" y="{middle}">{found.median:.{digits}f}</text>',
    ]


def _panel(report: Report, model: str, panel: Panel) -> list[str]:
    spreads = {t: report.figure(model, panel.load, t, panel.figure) for t in report.targets}
    largest = max((s.q3 for s in spreads.values() if s is not None), default=1.0) or 1.0
    out = [
        f'<text class="t" x="0" y="14">{escape(panel.title)}</text>',
        f'<text class="s" x="0" y="31">{escape(panel.says)}</text>',
    ]
    shown = [t for t in report.targets if report.of(model, panel.load, t)]
    for row, target in enumerate(shown):
        out += _bar(target, spreads[target], largest, panel.digits, TOP + row * ROW_H)
    return out


def svg(report: Report, caption: str) -> str:
    """All models below each other, panels side by side; whiskers are the quartiles over rounds."""
    model_h = 34 + TOP + len(report.targets) * ROW_H + 24
    columns = max((len(panels_of(report.loads(m))) for m in report.models), default=1)
    width = 2 * MARGIN + columns * PANEL_W
    height = 2 * MARGIN + len(report.models) * model_h + 10
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f'<style>{STYLE}</style><rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for place, model in enumerate(report.models):
        y = MARGIN + place * model_h
        out.append(f'<g transform="translate({MARGIN} {y})"><text class="m" x="0" y="16">{escape(model)}</text></g>')
        for column, panel in enumerate(panels_of(report.loads(model))):
            out.append(f'<g transform="translate({MARGIN + column * PANEL_W} {y + 34})">')
            out += [*_panel(report, model, panel), "</g>"]
    out += [f'<text class="s" x="{MARGIN}" y="{height - 14}">{escape(caption)}</text>', "</svg>"]
    return "\n".join(out) + "\n"
