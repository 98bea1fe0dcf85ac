"""When a run goes wrong, and what to do then: readings, detectors, a watch, a ladder."""
