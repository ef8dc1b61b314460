"""Torture on servers of our own, which are stopped, killed and out of memory besides: ``python -m tests.torture``."""

from tests.torture.etcd_leases import LeasesBegunAnew
from tests.torture.memcached_clock import ShortenedLeases
from tests.torture.server import TroubledServer
from tests.torture.waits import Waits

LAWS = (Waits, ShortenedLeases, LeasesBegunAnew)
"""What is judged besides the laws of `caslock.verify`, and what is excused."""

__all__ = ["LAWS", "TroubledServer"]
