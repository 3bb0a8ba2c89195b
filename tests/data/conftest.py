"""Shared by the tests of the data layer."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is not a fault of the code.
settings.register_profile("any speed", deadline=None)
settings.load_profile("any speed")
