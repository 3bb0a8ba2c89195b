"""Faults, injected into real trainings: what survives, and what happens to a broken build."""
