"""Placeholder."""


def connect(url: str) -> object:
    """Connect."""
    raise ValueError(url)


connect_async = connect
