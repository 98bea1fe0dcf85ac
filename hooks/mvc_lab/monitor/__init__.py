"""Measures a run while it trains: an endpoint for Prometheus, lines of JSON, thresholds and alarms."""
