"""A store that does not end leases by itself, over any other: `traits.expires` is False."""

from __future__ import annotations

from typing import Any

YEAR = 365 * 86_400.0


class Lasting:
    """The store below, of either API, with entries that stay until they are written over or removed."""

    def __init__(self, below: Any) -> None:  # noqa: ANN401 - of either API
        self.traits = below.traits._replace(expires=False)
        self.get, self.invalidate, self._put = below.get, below.invalidate, below.put_if_version

    def put_if_version(self, key: str, value: bytes, version: int, ttl: float) -> Any:  # noqa: ANN401 - as above
        del ttl
        return self._put(key, value, version, YEAR)
