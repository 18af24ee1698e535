"""Grafana's JSON of a dashboard: places the panels, names the data source by a variable, and nothing else.

Read next: `dashboards.py`.
"""

from __future__ import annotations

from typing import Any

from deploy.grafana.dashboards import Dashboard, Panel

WIDTH, HEIGHT, COLUMNS = 8, 8, 3
SCHEMA_VERSION = 39
"""Of Grafana 10.4; newer ones read it."""
SOURCE = {"type": "prometheus", "uid": "${source}"}


def grafana_json(dashboard: Dashboard) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for heading, row in dashboard.rows:
        panels.append({"id": len(panels) + 1, "type": "row", "title": heading, "gridPos": _place(0, y, 24, 1)})
        y += 1
        for number, panel in enumerate(row):
            x, line = number % COLUMNS, number // COLUMNS
            panels.append(_panel(panel, len(panels) + 1, _place(x * WIDTH, y + line * HEIGHT, WIDTH, HEIGHT)))
        y += HEIGHT * -(-len(row) // COLUMNS)
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["gpugrid"],
        "schemaVersion": SCHEMA_VERSION,
        "refresh": "15s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}]
        },
        "panels": panels,
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "expr": expression,
                "legendFormat": legend,
                "datasource": SOURCE,
                "exemplar": True,
            }
            for place, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}
