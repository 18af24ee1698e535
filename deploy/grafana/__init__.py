"""Grafana dashboards as code: `python -m deploy.grafana` writes them as JSON beside this file.

Owns: which pictures there are and what each asks Prometheus. Read next: `dashboards.py`.
"""
