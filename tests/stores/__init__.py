"""Tests of the stores, each against its real server."""
