"""The telemetry service."""
