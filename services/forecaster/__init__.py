"""The forecaster service."""
