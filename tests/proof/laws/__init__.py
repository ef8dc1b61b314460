"""The laws of the lock, over stores that fail as planned, blocking and asyncio."""

import pytest

PARTS = ("holders", "owners", "scene", "several", "trials", "trouble", "waiters")
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in PARTS))
