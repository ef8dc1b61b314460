"""Torture on servers of ours, which are stopped, killed and out of memory: ``python -m tests.proof.torture``."""

from tests.proof.torture.etcd_leases import LeasesBegunAnew
from tests.proof.torture.memcached_clock import ShortenedLeases
from tests.proof.torture.server import TroubledServer
from tests.proof.torture.waits import Waits

LAWS = (Waits, ShortenedLeases, LeasesBegunAnew)
"""What is judged besides the laws of `caslock.verify`, and what is excused."""

__all__ = ["LAWS", "TroubledServer"]
