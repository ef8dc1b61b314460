"""A store that was closed answers still, and leaves no connection open; in a child it closes none of the parent."""

from __future__ import annotations

import gc
import os

import pytest

from caslock import connect
from tests.support.locations import Place, fresh


@pytest.mark.parametrize("location", ["redis", "memcached"], indirect=True)
def test_a_closed_store_answers_and_leaves_no_connection_open(location: Place) -> None:
    """As a clean-up in the background asks it.  A socket that is left open is a ResourceWarning, which is an error."""
    with connect(location.url) as store:
        store.get(fresh())
    assert store.get(fresh()) is None
    assert store.put_if_version(fresh(), b"value", 0, 10) is not None
    del store
    gc.collect()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
@pytest.mark.parametrize("location", ["redis", "memcached"], indirect=True)
def test_a_child_that_closes_the_store_closes_no_connection_of_its_parent(location: Place) -> None:
    """The connection that the parent has used just now is used again."""
    with connect(location.url) as store:
        entry = store.put_if_version(key := fresh(), b"value", 0, 60)
        child = os.fork()
        if not child:
            right = store.get(key) == entry
            store.close()
            os._exit(0 if right else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert store.get(key) == entry
