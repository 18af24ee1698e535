"""`python -m deploy.grafana`: write the dashboards as JSON, to be imported or provisioned."""

from __future__ import annotations

import json
from pathlib import Path

from deploy.grafana.dashboards import DASHBOARDS
from deploy.grafana.grafana_json import grafana_json

FOLDER = Path(__file__).parent


def main() -> int:
    for dashboard in DASHBOARDS:
        path = FOLDER / f"{dashboard.uid}.json"
        path.write_text(json.dumps(grafana_json(dashboard), indent=2) + "\n")
        print(path.relative_to(FOLDER.parents[1]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
