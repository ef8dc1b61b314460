"""Programs that are not run: mypy reads them."""
