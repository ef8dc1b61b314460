"""What a lock says when a server that answers refuses: Redis without memory for another write."""

from __future__ import annotations

import pytest
import redis

from caslock import Lock, LockLost, StoreError, connect, observe
from caslock.errors import with_notes
from caslock.testing.store_for_tests import _end_lease
from tests.conftest import NewServer
from tests.support.locations import held, make_due, until
from tests.support.recorder import Recorder


@pytest.mark.parametrize("several", [False, True], ids=["alone", "together"])
def test_why_a_lease_was_not_renewed_is_told(
    new_redis: NewServer, caplog: pytest.LogCaptureFixture, *, several: bool
) -> None:
    """What the server has refused is in the warning, in what observers get, and in the loss."""
    server, recorder = new_redis(), Recorder()
    stop = observe(recorder)
    with redis.Redis.from_url(server.url) as admin, connect(server.url) as store:
        keys = ["k", "l"] if several else ["k"]
        holds = [held(Lock(store, key, ttl=60)) for key in keys]
        admin.config_set("maxmemory", "1")
        make_due(*(hold._attempt for hold in holds))
        assert until(lambda: recorder.names.count("renewal_failed") >= len(holds))
        for hold in holds:
            _end_lease(hold._attempt)
        stop()
        admin.config_set("maxmemory", "0")
        with pytest.raises(LockLost, match="OutOfMemory"):
            holds[0].ensure_held()
    assert all("OutOfMemory" in event.reason for name, event in recorder.events if name == "renewal_failed")
    (failed,) = [text for text in caplog.messages if "could not be renewed" in text]
    assert "OutOfMemory" in failed
    assert failed.count(server.url) == 1
    assert any("was lost" in text and "OutOfMemory" in text for text in caplog.messages)


def test_a_release_that_a_full_server_refuses_says_what_becomes_of_the_key(new_redis: NewServer) -> None:
    """One that has to write: beside another hold of the owner, within `min_hold`, and by force."""
    server = new_redis()
    with redis.Redis.from_url(server.url) as admin, connect(server.url) as store:
        owners = [held(Lock(store, "shared", ttl=300, owner="us")) for _ in range(2)]
        kept = held(Lock(store, "kept", ttl=300, min_hold=400))
        admin.config_set("maxmemory", "1")
        for hold, seconds in ((owners[0], 300), (kept, 400)):
            with pytest.raises(StoreError, match="OutOfMemory") as caught:
                hold.release()
            assert "still work" not in str(caught.value)
            assert f"expires within {seconds} s" in with_notes(caught.value)
        with pytest.raises(StoreError, match="OutOfMemory") as caught:
            Lock(store, "shared").force_release()
        assert "it is held by us" in with_notes(caught.value)
        admin.config_set("maxmemory", "0")
        for hold in (*owners, kept):
            hold.release()
        assert store.get("shared") is None
