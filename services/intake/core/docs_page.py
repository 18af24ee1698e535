"""The documentation page of the HTTP door: one self-contained HTML text, made from the OpenAPI document and the reasons."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from services.intake.core.openapi import EXAMPLE, document
from services.intake.core.refusals import Reason

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2rem}code,pre{font:14px ui-monospace,monospace;background:#f3f4f6}
pre{padding:.8rem;overflow:auto}table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;
border-top:1px solid #d0d4da;padding:.35rem .6rem}b.verb{display:inline-block;min-width:4.5rem}
@media(prefers-color-scheme:dark){body{color:#e6e8eb;background:#14171a}code,pre{background:#22272c}}
"""


def page() -> str:
    """The page. No script, no external asset."""
    described = document()
    example = json.dumps(EXAMPLE, indent=2)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>gpugrid intake</title>"
        "<meta name=viewport content='width=device-width'>"
        f"<style>{STYLE}</style><h1>gpugrid intake</h1>"
        "<p>Every request becomes an event on the Kafka topic <code>job-events</code>, acknowledged before the answer. "
        "What becomes of it is told on <code>job-status</code>. "
        "Machine-readable: <a href=/v1/openapi.json>/v1/openapi.json</a>.</p>"
        "<h2>Submit a job</h2><pre>curl -i http://127.0.0.1:8470/v1/jobs -H 'content-type: application/json' -d '"
        f"{escape(example, quote=False)}'</pre>"
        f"<h2>Requests</h2><table>{''.join(_rows(described['paths']))}</table>"
        "<h2>Reason codes</h2><p>In <code>reason</code> of problem documents, dead letters and refused statuses.</p>"
        f"<table>{''.join(_reason(reason) for reason in Reason)}</table></html>\n"
    )


def _rows(paths: dict[str, Any]) -> list[str]:
    return [
        f"<tr><td><b class=verb>{verb.upper()}</b><code>{escape(path)}</code><td>{escape(operation['summary'])}"
        f"<td>{', '.join(sorted(operation['responses']))}"
        for path, operations in paths.items()
        for verb, operation in operations.items()
        if verb != "parameters"
    ]


def _reason(reason: Reason) -> str:
    return f"<tr><td><code>{reason.value}</code><td>{escape(reason.sentence)}"
