"""Runs that do not fit this machine: parts measured here, put together by a simulation of events."""
