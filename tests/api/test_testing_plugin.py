"""What `caslock.testing` says to its users: by the fixtures of its plugin, and where the contract gets no store."""

# ruff: noqa: PT012 - what raises is the end of a block
from __future__ import annotations

import asyncio
import threading

import pytest

from caslock import (
    AsyncHold,
    AsyncLock,
    Hold,
    Lock,
    LockLost,
    MultiLock,
    NotAcquired,
    NotHeld,
    OutcomeUnknown,
    StoreUnavailable,
    locked,
)
from caslock.stores.memory import MemoryStore
from caslock.testing import AsyncStoreForTests, StoreForTests
from tests.support.command_line import python
from tests.support.locations import held, until
from tests.support.loops import in_a_loop

pytest_plugins = ["caslock.testing.plugin", "pytester"]


# Another owner.


def test_a_busy_key_is_held_by_another_owner(caslock_store: StoreForTests) -> None:
    """Nobody gets it in the block, under any owner of this process, and afterwards everybody may."""
    with caslock_store.make_busy("k") as other:
        assert Lock(caslock_store, "k").acquire(timeout=0) is None
        assert (record := Lock(caslock_store, "k").holder()) is not None
        assert (record.owner, record.note) == (other.owner, "another holder, as the test has planned")
        assert Lock(caslock_store, "another key").acquire(timeout=0) is not None
    with Lock(caslock_store, "k", timeout=0) as hold:
        assert hold.fence > other.fence


def test_a_held_key_is_not_made_busy(caslock_store: StoreForTests) -> None:
    """The test has to say that the holder loses it."""
    with Lock(caslock_store, "k"), pytest.raises(NotAcquired, match=r"take it away from its holder by lose\(hold\)"):
        caslock_store.make_busy("k")


# The loss of a lease.


@pytest.mark.parametrize("renewed", [True, False], ids=["renewed", "not renewed"])
def test_a_holder_that_has_lost_has_learned_of_it(
    caslock_store: StoreForTests,
    caplog: pytest.LogCaptureFixture,
    renewed: bool,  # noqa: FBT001 - of pytest
) -> None:
    """As in production: `lost`, `ensure_held`, `on_lost`, the log and the end of the block; all when `lose` returns."""
    told: list[Hold] = []
    lock = Lock(caslock_store, "k", auto_renew=renewed, on_lost=told.append)
    with pytest.raises(LockLost, match="lock 'k' was lost: its lease ended"), lock as hold:
        other = caslock_store.lose(hold)
        assert told == [hold]
        assert (hold.lost, hold.remaining()) == (True, 0.0)
        with pytest.raises(LockLost):
            hold.ensure_held()
        with pytest.raises(LockLost):
            hold.extend()
        lines = [line for line in caplog.messages if line.startswith("lock 'k' at memory://")]
        assert [" was lost: " in line for line in lines] == [False, True]  # it is released by force before
        assert (other.key, other.lost) == ("k", False)
        assert other.fence > hold.fence
    assert lock.acquire(timeout=0) is None
    other.release()
    assert lock.acquire(timeout=0) is not None


def test_a_lease_inside_a_function_is_lost(caslock_store: StoreForTests) -> None:
    """Where the test cannot get at the hold, the key says whose lease it is."""
    fences: list[int] = []

    @locked(caslock_store, "job:{number}")
    def work(number: int) -> None:
        with pytest.raises(NotHeld, match="no lock of this store holds 'job:2'"):
            caslock_store.lose("job:2")
        caslock_store.lose(f"job:{number}").release()
        fences.append(number)

    with pytest.raises(LockLost):
        work(1)
    assert fences == [1]
    with pytest.raises(NotHeld), caslock_store.make_busy("job:1"):
        caslock_store.lose("job:1")


def test_all_holds_of_a_shared_owner_are_lost(caslock_store: StoreForTests) -> None:
    """The key is taken away from its owner, however many locks have it."""
    holds = [held(Lock(caslock_store, "k", owner="orders")) for _ in range(2)]
    caslock_store.lose("k")
    assert [hold.lost for hold in holds] == [True, True]


def test_a_lease_inside_a_coroutine_is_lost(caslock_async_store: AsyncStoreForTests) -> None:
    """Named by its key, it is taken from the coroutine that is inside."""

    @locked(caslock_async_store, "job")
    async def work() -> None:
        caslock_async_store.lose("job")
        await asyncio.sleep(20)

    with pytest.raises(LockLost):
        asyncio.run(asyncio.wait_for(work(), 15))


def test_one_key_of_several_is_lost(caslock_store: StoreForTests) -> None:
    """A MultiHold has its holds by key, and is lost with any of them."""
    with pytest.raises(LockLost), MultiLock(caslock_store, ["a", "b"]) as holds:
        with pytest.raises(TypeError, match="not MultiHold; a MultiHold has them by key"):
            caslock_store.lose(holds)  # type: ignore[arg-type]
        assert not holds.lost
        caslock_store.lose(holds["b"])
        assert holds.lost


def test_what_is_not_held_here_is_not_lost(
    caslock_store: StoreForTests, caslock_async_store: AsyncStoreForTests
) -> None:
    """A hold that has ended, and one of another store, cannot be lost; nothing happens to them."""
    hold = held(Lock(caslock_store, "k"))
    for other in (caslock_async_store, StoreForTests()):
        with pytest.raises(ValueError, match="this hold of 'k' is of another store"):
            other.lose(hold)
    assert not hold.lost
    hold.release()
    with pytest.raises(NotHeld):
        caslock_store.lose(hold)
    lost = held(Lock(caslock_store, "k"))
    caslock_store.lose(lost)
    with pytest.raises(LockLost):
        caslock_store.lose(lost)


def test_a_callback_that_hangs_is_named(caslock_store: StoreForTests, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for `on_lost` has a bound."""
    monkeypatch.setattr("caslock.testing.store_for_tests._PATIENCE", 0.2)
    go = threading.Event()
    hold = held(Lock(caslock_store, "k", on_lost=lambda _: go.wait(200)))
    with pytest.raises(TimeoutError, match=r"on_lost callback of lock 'k' has not returned within 0\.2 s"):
        caslock_store.lose(hold)
    go.set()


@in_a_loop
async def test_a_task_that_has_lost_is_cancelled(caslock_async_store: AsyncStoreForTests) -> None:
    """In asyncio: `lost` at once, and at the next wait `on_lost`, the end of the block and `LockLost`."""
    told: list[AsyncHold] = []
    lock, reached = AsyncLock(caslock_async_store, "k", on_lost=told.append), False
    with pytest.raises(LockLost):
        async with lock as hold:
            other = caslock_async_store.lose(hold)
            assert hold.lost
            reached = True
            await asyncio.sleep(15)
            raise AssertionError
    assert reached
    assert (told, other.fence > hold.fence) == ([hold], True)
    assert await lock.acquire(timeout=0) is None
    other.release()
    async with lock:
        pass


@in_a_loop
async def test_a_task_on_a_blocking_store_is_cancelled(caslock_store: StoreForTests) -> None:
    """`AsyncLock` takes the other store as well, by worker threads; and another thread may take its lease away."""
    with pytest.raises(LockLost):
        async with AsyncLock(caslock_store, "k") as hold:
            await asyncio.to_thread(caslock_store.lose, hold)
            await asyncio.sleep(15)
            raise AssertionError


# A store that does not answer.


@pytest.mark.parametrize("sent", [True, False])
def test_an_unavailable_store_answers_nothing(caslock_store: StoreForTests, sent: bool) -> None:  # noqa: FBT001 - of pytest
    """Every request fails at once in the block, as after a lost request or a refused connection, and none after it."""
    lock = Lock(caslock_store, "k", timeout=0)
    with caslock_store.unavailable(sent=sent):
        with pytest.raises(StoreUnavailable) as caught, lock:
            raise AssertionError
        assert isinstance(caught.value, OutcomeUnknown) == sent
        with pytest.raises(StoreUnavailable):
            lock.locked()
    assert until(lambda: lock.acquire(timeout=0) is not None)  # the clean-up in the background may be first


def test_an_unavailable_block_leaves_other_plans(caslock_store: StoreForTests) -> None:
    """Blocks may be nested, and the end of one ends no other fault."""
    with caslock_store.unavailable():
        with caslock_store.unavailable(sent=False), pytest.raises(StoreUnavailable) as caught:
            caslock_store.get("k")
        assert not caught.value.sent
        with pytest.raises(StoreUnavailable) as caught:
            caslock_store.get("k")
        assert caught.value.sent
    assert caslock_store.get("k") is None


@in_a_loop
async def test_an_unavailable_store_for_asyncio(caslock_async_store: AsyncStoreForTests) -> None:
    """The same in asyncio, and only for this store: what another one asks is answered."""
    with caslock_async_store.unavailable(sent=False), pytest.raises(StoreUnavailable):
        await AsyncLock(caslock_async_store, "k").acquire(timeout=0)
    with caslock_async_store.unavailable(), caslock_async_store.make_busy("k"):
        pass
    assert await caslock_async_store.get("k") is None


# As pytest brings it.


@pytest.mark.long
def test_a_project_gets_the_fixtures_by_one_line(pytester: pytest.Pytester) -> None:
    """One line in the topmost conftest.py.  Each test begins with an empty store; what it leaves busy is released."""
    pytester.makeconftest('pytest_plugins = ["caslock.testing.plugin"]')
    pytester.makepyfile("""
        import caslock

        seen = []

        def test_one(caslock_store):
            other = caslock_store.make_busy("k")
            seen.append((caslock_store, other))

        def test_two(caslock_store, caslock_async_store):
            before, other = seen[0]
            assert before is not caslock_store
            assert before.memory.get("k") is None
            assert not caslock.Lock(caslock_store, "k").locked()
            caslock_async_store.make_busy("k")
            assert caslock.Lock(caslock_store, "k").locked()
            seen.append(caslock_store.memory)

        def test_three():
            assert seen[1].get("k") is None
    """)
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", "-W", "error")
    result.assert_outcomes(passed=3)
    listed = pytester.runpytest_subprocess("--fixtures", "-q", "-p", "no:cacheprovider")
    listed.stdout.re_match_lines([r"caslock_store -- .*plugin.py:\d+", r"    A store in memory for `caslock.Lock`"])


def test_an_interrupted_test_leaves_nothing_busy(pytester: pytest.Pytester) -> None:
    """A test that fails, and one whose other holder was itself taken away, end without a second error."""
    pytester.makepyfile("""
        import caslock

        pytest_plugins = ["caslock.testing.plugin"]

        def test_fails(caslock_store):
            caslock_store.make_busy("k")
            assert False

        def test_takes(caslock_store):
            caslock_store.make_busy("k")
            caslock.Lock(caslock_store, "k").force_release()
    """)
    pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider").assert_outcomes(passed=1, failed=1)


def test_caslock_is_not_imported_where_nobody_asks_for_it(pytester: pytest.Pytester) -> None:
    """It is no entry point, so pytest starts as fast as without it."""
    pytester.makepyfile("""
        import sys

        def test_nothing():
            assert "caslock" not in sys.modules
    """)
    pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider").assert_outcomes(passed=1)


@in_a_loop
async def test_without_a_fixture_a_block_ends_a_store() -> None:
    """What others hold is released at its end, for both APIs."""
    memory = MemoryStore()
    with StoreForTests(memory) as store:
        store.make_busy("k")
        assert Lock(memory, "k").locked()
    assert not Lock(memory, "k").locked()
    async with AsyncStoreForTests(memory) as native:
        native.make_busy("k")
        assert Lock(memory, "k").locked()
    assert not Lock(memory, "k").locked()


def test_the_stores_need_no_pytest() -> None:
    """They serve unittest, too."""
    code = "import sys, caslock.testing; caslock.testing.StoreForTests(); print('pytest' in sys.modules)"
    assert python("-c", code) == (0, "False\n", "")


# The contract.


@pytest.mark.long
@pytest.mark.parametrize("word", ["", "async "])
def test_what_is_no_store_is_said_once(word: str, pytester: pytest.Pytester) -> None:
    """A store without all that each store has fails the first test by a sentence; the others are skipped with it."""
    pytester.makepyfile(f"""
        import pytest
        from caslock.testing import StoreContract

        class Mine:
            {word}def get(self, key):
                return None

            {word}def put_if_version(self, key, value, version, ttl):
                return None

        class TestMine(StoreContract):
            @pytest.fixture
            def store(self):
                return Mine()

            @pytest.fixture
            def caslock_server(self):
                return None
    """)
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", "-rs")
    outcomes = result.parseoutcomes()
    assert (outcomes.get("errors"), outcomes.get("failed"), outcomes.get("passed")) == (1, None, None)
    result.stdout.fnmatch_lines(
        ["Mine has no invalidate and no traits, which every store has: see caslock.Store and caslock.Traits"]
    )
    assert "Traceback" not in result.stdout.str()
    assert "AttributeError" not in result.stdout.str()
    one = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", "-k", "test_one_of_fifty_creates")
    assert "errors" in one.parseoutcomes()
