"""Real back ends for traces and metrics, fetched or built once into the user's cache folder: what `make test-infra` runs against.

Owns: getting Jaeger (built from its Go module) and Prometheus (from the system's packages), and running each on free loopback
ports for as long as a test needs it. Refuses: installing during a test, and needing any of it for gpugrid itself. Reading order:
`jaeger_build.py`, `prometheus_install.py`, `running.py`, `__main__.py`.
"""
