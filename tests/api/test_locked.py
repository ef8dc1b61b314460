"""`caslock.locked` takes a lock around each call, whose key is made of the arguments."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import inspect
import io
import itertools
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import caslock
from caslock import AsyncHold, Hold, Lock, LockLost, NotAcquired, NotHeld, SemaphoreHold, current_hold, locked
from caslock.stores.memory import AsyncMemoryStore, MemoryStore
from tests.support.locations import observed, present
from tests.support.loops import in_a_loop

Any_ = Any  # what these tests pass wrongly


@dataclass
class Invoice:
    id: int
    name: str = "x"


def taken(store: MemoryStore, key: str) -> bool:
    return observed(store, key) is not None


def test_a_call_holds_the_key_that_its_arguments_make(memory: MemoryStore) -> None:
    """By name, attribute and item, with defaults, however they are passed; and it is free afterwards."""
    seen: list[str] = []

    @locked(memory, "invoice:{invoice.id}:{user}:{tags[0]}")
    def pay(invoice: Invoice, /, user: str = "ada", *, tags: tuple[str, ...] = ("new",)) -> str:
        """Pay it."""
        del tags
        seen.extend(entry for entry, _ in memory.list(""))
        return f"{invoice.id} by {user}"

    assert pay(Invoice(7)) == "7 by ada"
    assert pay(Invoice(7), "bob", tags=("old", "x")) == "7 by bob"
    assert pay(Invoice(8), user="a:b") == "8 by a:b"
    assert seen == ["invoice:7:ada:new", "invoice:7:bob:old", "invoice:8:a%3Ab:new"]
    assert not list(memory.list(""))
    assert (pay.__name__, pay.__doc__) == ("pay", "Pay it.")
    assert list(inspect.signature(pay).parameters) == ["invoice", "user", "tags"]


def test_the_key_is_that_of_key(memory: MemoryStore) -> None:
    """Whoever makes the key by `caslock.key` has the same lock."""

    @locked(memory, "room:{room}:{day}", timeout=0)
    def book(room: object, day: object) -> bool:
        return taken(memory, caslock.key("room", room, day))  # type: ignore[arg-type]

    for part in (1, "1", "a:b", None, "None", "", True, -3, "x/y"):
        assert book(part, "ü")
        with Lock(memory, caslock.key("room", part, 5)), pytest.raises(NotAcquired):
            book(part, 5)


def test_positional_only_and_further_arguments_are_told_apart(memory: MemoryStore) -> None:
    """A positional-only `a` is not the `a` among the further keyword arguments, which are named through theirs."""

    @locked(memory, "{a}:{more[a]}:{rest[1]}")
    def do(a: int, /, *rest: int, **more: int) -> list[str]:
        del a, rest, more
        return [key for key, _ in memory.list("")]

    assert do(1, 2, 3, a=4) == ["1:4:3"]
    with pytest.raises(KeyError):
        do(1, 2, 3)
    assert not list(memory.list(""))


def test_methods_have_keys_too(memory: MemoryStore) -> None:
    """`self` is an argument as any other; static methods and class methods have it below their own decorator."""

    class Room:
        def __init__(self, number: int) -> None:
            self.number = number

        @locked(memory, "room:{self.number}:{day}")
        def book(self, day: str) -> list[str]:
            del day
            return [key for key, _ in memory.list("")]

        @staticmethod
        @locked(memory, "static:{day}")
        def check(day: str) -> bool:
            return taken(memory, f"static:{day}")

        @classmethod
        @locked(memory, "class:{cls.__name__!s}")
        def clean(cls) -> bool:
            return taken(memory, "class:Room")

    assert Room(3).book("monday") == ["room:3:monday"]
    assert Room(3).book(day="monday") == ["room:3:monday"]
    assert Room.check("monday")
    assert Room.clean()


def test_a_call_inside_a_call_re_enters(memory: MemoryStore) -> None:
    """Recursion with the same key needs no further request, and never waits for itself; so do tasks."""

    @locked(memory, "tree:{root}", timeout=0)
    def walk(root: int, depth: int) -> int:
        return 1 + walk(root, depth - 1) if depth else 0

    @locked(AsyncMemoryStore(memory), "tree:{root}", timeout=0)
    async def walk_on(root: int, depth: int) -> int:
        return 1 + await walk_on(root, depth - 1) if depth else 0

    assert walk(1, 5) == 5
    assert asyncio.run(walk_on(1, 5)) == 5


@pytest.mark.parametrize("native", [False, True], ids=["blocking store", "asyncio store"])
def test_coroutine_functions_take_an_async_lock(memory: MemoryStore, *, native: bool) -> None:
    """Of several tasks one at a time runs for a key, on either kind of store; it stays a coroutine function."""
    inside, most = [0], [0]

    @locked(AsyncMemoryStore(memory) if native else memory, "work:{number}", timeout=30)
    async def work(number: int) -> int:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        await asyncio.sleep(0.005)
        inside[0] -= 1
        return number

    async def scene() -> None:
        assert await asyncio.gather(*(work(1) for _ in range(8))) == [1] * 8

    assert inspect.iscoroutinefunction(work)
    asyncio.run(scene())
    assert most == [1]
    asyncio.run(scene())  # in another event loop


def skipped(*args: object, **kwargs: object) -> tuple[object, ...]:
    return ("busy", args, kwargs)


async def skipped_later(*args: object, **kwargs: object) -> tuple[object, ...]:
    await asyncio.sleep(0)
    return ("busy", args, kwargs)


@pytest.mark.parametrize(
    ("busy", "answer"), [("skip", None), (skipped, ("busy", (5,), {"more": 1}))], ids=["skip", "a function"]
)
def test_a_busy_key_is_answered(memory: MemoryStore, busy: Any_, answer: object) -> None:
    """Nothing, or what a function says of the same arguments: at once, and the function is not called."""
    ran: list[int] = []

    @locked(memory, "k:{number}", busy=busy)
    def run(number: int, more: int = 0) -> str:
        ran.append(number + more)
        return "done"

    @locked(memory, "k:{number}", busy=busy)
    async def run_on(number: int, more: int = 0) -> str:
        return run(number, more)

    with Lock(memory, "k:5"):
        assert run(5, more=1) == answer
        assert asyncio.run(run_on(5, more=1)) == answer
        assert ran == []
        assert run(6) == "done"
    assert run(5, more=1) == "done"


@pytest.mark.parametrize("busy", ["raise", "skip"])
def test_a_function_finds_its_hold(memory: MemoryStore, busy: Any_) -> None:
    """The innermost one, also in a task and a thread of asyncio that it starts; elsewhere there is none."""

    @locked(memory, "k:{number}", busy=busy)
    def run(number: int) -> list[str]:
        inner = run(number - 1) if number else []
        hold = current_hold()
        assert isinstance(hold, Hold)
        assert hold.fence == present(Lock(memory, hold.key).holder()).fence
        hold.extend()
        return [*inner, hold.key]

    @locked(memory, "k:{number}", busy=busy)
    async def run_on(number: int) -> tuple[str, str, str]:
        hold = current_hold()
        assert isinstance(hold, AsyncHold)
        await hold.extend()
        task = asyncio.create_task(asyncio.to_thread(current_hold))
        return hold.key, (await task).key, run(number - 1)[0]

    assert run(2) == ["k:0", "k:1", "k:2"]
    assert asyncio.run(run_on(5)) == ("k:5", "k:5", "k:0")
    with pytest.raises(NotHeld, match=r"not called by a function that is decorated with caslock\.locked"):
        current_hold()


def test_a_function_that_goes_on_for_too_long_can_look(memory: MemoryStore) -> None:
    """Its lease was taken away: what it looks at says so, and what it raises is an error of its own."""

    @locked(memory, "k")
    def run() -> None:
        Lock(memory, "k").force_release()
        with pytest.raises(LockLost):
            current_hold().extend()
        current_hold().ensure_held()

    with pytest.raises(LockLost):
        run()


@pytest.mark.parametrize("busy", ["skp", "Raise", "", None, False, 0])
def test_what_says_nothing_of_a_busy_key_is_refused(memory: MemoryStore, busy: Any_) -> None:
    """A misspelt word is no answer."""
    with pytest.raises(ValueError, match=f'busy must be "raise", "skip" or a function .*, not {busy!r}'):
        locked(memory, "k", busy=busy)


def test_an_async_function_may_answer_for_a_coroutine_function(memory: MemoryStore) -> None:
    """It is awaited; for a plain function it is refused when decorating."""

    @locked(memory, "k", busy=skipped_later)
    async def run(number: int) -> int:
        return number

    with Lock(memory, "k"):
        assert asyncio.run(run(3)) == ("busy", (3,), {})
    with pytest.raises(TypeError, match="busy must be a plain function"):
        locked(memory, "k", busy=skipped_later)(lambda: None)


def test_busy_raises_unless_something_else_is_asked_for(memory: MemoryStore) -> None:
    """`NotAcquired` after the timeout; and the function's own NotAcquired is nobody's answer."""

    @locked(memory, "k", timeout=0.01)
    def run() -> None:
        pass

    @locked(memory, "other", busy="skip")
    def fail() -> None:
        run()

    with Lock(memory, "k"):
        with pytest.raises(NotAcquired):
            run()
        with pytest.raises(NotAcquired):
            fail()
    with pytest.raises(ValueError, match="the key is never busy"):
        locked(memory, "k", busy="skip", timeout=None)  # type: ignore[call-overload]


def test_a_lost_lease_is_told_at_the_end(memory: MemoryStore) -> None:
    """LockLost, as at the end of a `with` block, and the exception of the function is not masked by it."""

    def lose(*, fail: bool = False) -> None:
        Lock(memory, "k").force_release()
        if fail:
            raise KeyError

    async def lose_on() -> None:
        Lock(memory, "k").force_release()
        await asyncio.sleep(0)

    with pytest.raises(LockLost):
        locked(memory, "k")(lose)()
    with pytest.raises(LockLost):
        locked(memory, "k", busy="skip")(lose)()
    with pytest.raises(KeyError):
        locked(memory, "k")(lose)(fail=True)
    with pytest.raises(LockLost):
        asyncio.run(locked(memory, "k")(lose_on)())


def test_settings_are_those_of_a_lock(memory: MemoryStore) -> None:
    """They are checked when decorating, and used."""

    @locked(memory, "job", min_hold=600, ttl=500, note="nightly", busy="skip")
    def job() -> str:
        record = present(observed(memory, "job"))
        assert (record.ttl, record.note) == (500, "nightly")
        return "done"

    assert [job(), job()] == ["done", None]
    for store in (memory, lambda: memory):
        with pytest.raises(ValueError, match="ttl"):
            locked(store, "k", ttl=-1)(skipped)
        with pytest.raises(TypeError, match="tll"):
            locked(store, "k", tll=1)(skipped)  # type: ignore[call-overload]


def test_the_store_may_come_later(memory: MemoryStore) -> None:
    """A function that returns the store is called at each call, and what it returns is used, each time."""
    stores: list[MemoryStore] = []

    @locked(lambda: stores[-1], "k:{number}")
    def run(number: int) -> list[bool]:
        if number and len(stores) == 1:
            stores.append(MemoryStore())
            return run(number)
        return [taken(store, f"k:{number}") for store in stores]

    stores.append(memory)
    assert run(0) == [True]
    assert run(1) == [True, True]
    assert run(2) == [False, True]
    for wrong in (None, "redis://localhost"):
        with pytest.raises(TypeError, match="is not a store"):
            locked(lambda: wrong, "k")(skipped)()  # type: ignore[arg-type,return-value] # noqa: B023 - called here


def test_the_store_of_a_method_is_not_in_its_arguments() -> None:
    """A function that wants to be given self is refused when decorating, and the error says what to write."""
    wrong: Any_ = lambda self: self.store  # noqa: E731 - as a user writes it
    with pytest.raises(TypeError, match=r"without arguments, but .*'self'; .*with caslock.Lock\(self.store, ...\)`"):
        locked(wrong, "k")(skipped)


@pytest.mark.parametrize("store", ["redis://localhost", None, MemoryStore, AsyncMemoryStore()])
def test_what_is_no_store_is_refused_when_decorating(store: Any_) -> None:
    """A URL, nothing, a class, or a store of asyncio for a blocking function."""
    with pytest.raises(TypeError):
        locked(store, "k")(skipped)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("k:{nobody}", r"key 'k:\{nobody\}' names 'nobody', but the arguments of .*act are: room, user, more"),
        ("k:{room.id}:{usr.id}", "names 'usr.id'"),
        ("k:{}", "names ''"),
        ("k:{0}", "names '0'"),
        ("k:{extra}", "names 'extra'"),
        ("{room}{user}", r"put a sign such as ':' before \{user\}"),
        ("{room}x{user}", "put a sign"),
        ("{room}%{user}", "put a sign"),
        ("k:{room", "expected '}'"),
        ("k:}", "Single '}'"),
        ("k:{room:{user}}", "must not contain a field"),
        ("k:{room!x}", "'!x' is none of !s, !r, !a"),
        ("", "1 to 1,024"),
        ("x" * 1025, "1 to 1,024"),
    ],
)
def test_a_key_that_cannot_be_made_is_refused_when_decorating(memory: MemoryStore, key: str, told: str) -> None:
    """A name that is no argument, one that is missing, and what may make one key of different values."""

    def act(room: int, user: int = 0, **more: int) -> None:
        del room, user, more

    with pytest.raises(ValueError, match=told):
        locked(memory, key)(act)
    locked(memory, "{room}-{user}")(act)


def test_different_arguments_make_different_keys(memory: MemoryStore) -> None:
    """Whatever sign separates the arguments, it is encoded in their values; a number and its text are one argument."""
    signs = ["a", "-", ":", "a-", "-a", "a:", "%2D", "%", "'", "", "1", 1, -1, "-1", None, "None", ".", "_"]
    for separator in ("-", ":", "/", ".", "_x_", " ", "::"):

        @locked(memory, f"{{first}}{separator}{{second}}")
        def act(first: object, second: object) -> str:
            del first, second
            ((key, _),) = memory.list("")
            return key

        keys = [act(first, second) for first in signs for second in signs]
        assert len(set(keys)) == len(set(map(str, signs))) ** 2


@pytest.mark.parametrize("value", [1.5, object(), Invoice(1), b"x", [1], lambda: 1])
def test_a_value_that_may_not_be_told_from_others_is_refused(memory: MemoryStore, value: object) -> None:
    """A float, a container, or an object whose text says nothing, unless a conversion or format says what is meant."""

    @locked(memory, "k:{value}")
    def act(value: object) -> None:
        pytest.fail(str(value))

    with pytest.raises(TypeError, match=r"\{value\} of a key is a \w+"):
        act(value)
    assert not list(memory.list(""))


def test_conversions_and_formats_say_how_a_value_is_written(memory: MemoryStore) -> None:
    """As with `str.format`, and encoded; an address is refused, as it may be another object's by then."""

    @locked(memory, "k:{value!r}:{number:05.1f}")
    def act(value: object, number: float) -> str:
        del value, number
        ((key, _),) = memory.list("")
        return key

    assert act(Invoice(1, "a:b"), 2.25) == "k:Invoice%28id%3D1%2C%20name%3D%27a%3Ab%27%29:002.2"
    assert act("at 0x1", 1) == "k:%27at%200x1%27:001.0"
    for value in (object(), skipped):
        with pytest.raises(TypeError, match=r"\{value\} of a key is .* which names an address"):
            act(value, 1)


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


class Generates:
    def __call__(self) -> Generator[int]:
        yield 1


@pytest.mark.parametrize("function", [generator, async_generator, Generates(), functools.partial(generator)])
def test_a_generator_function_is_refused_when_decorating(memory: MemoryStore, function: Callable[[], object]) -> None:
    """It runs after its call, when the lock would have been released."""
    with pytest.raises(TypeError, match="is a generator function, which runs after the lock would have been released"):
        locked(memory, "k")(function)


PLAIN: list[Callable[[], object]] = [
    generator,
    async_generator,
    skipped_later,
    contextlib.contextmanager(generator),
    contextlib.asynccontextmanager(async_generator),
    lambda: map(str, [1]),
    itertools.count,
]
NATIVE: list[Callable[[], object]] = [
    lambda: map(str, [1]),
    lambda: filter(None, [1]),
    lambda: zip([1], [2], strict=True),
    lambda: enumerate([1]),
    lambda: itertools.chain([1], [2]),
    lambda: itertools.islice([1], 1),
    async_generator,
    generator,
    lambda: asyncio.get_running_loop().create_future(),
    lambda: asyncio.ensure_future(asyncio.sleep(0)),
]


@pytest.mark.parametrize(("make", "native"), [*((each, False) for each in PLAIN), *((each, True) for each in NATIVE)])
@in_a_loop
async def test_a_function_that_returns_what_runs_later_is_told(
    memory: MemoryStore, make: Callable[[], object], *, native: bool
) -> None:
    """Generators and coroutines, and of a coroutine function lazy iterators, tasks and futures: it ran unlocked."""

    @locked(memory, "k")
    def act() -> object:
        return make()

    @locked(memory, "k")
    async def act_on() -> object:
        return make()

    with pytest.raises(
        TypeError, match=r"act(_on)? returned a \w+, which runs after the lock would have been released"
    ):
        await act_on() if native else act()
    assert not list(memory.list(""))


class Attributes(dict[str, int]):
    """A dict whose keys are attributes, as many programs have one."""

    __getattr__ = dict.__getitem__


@pytest.mark.parametrize(
    "result",
    [[1], iter([1]), io.StringIO(), range(2), {1: 2}.items(), Attributes(a=1)],
    ids=["list", "iterator", "file", "range", "items", "attributes"],
)
def test_a_result_that_is_there_is_returned(memory: MemoryStore, result: object) -> None:
    """A list, its iterator, an open file: nothing of the function is left to run."""
    assert locked(memory, "k")(lambda: result)() is result


@pytest.mark.parametrize("wrong", [staticmethod(skipped), classmethod(skipped), Invoice, None, 5])
def test_what_is_no_function_is_refused(memory: MemoryStore, wrong: Any_) -> None:
    """A static or class method below which the decorator belongs, a class, and what can't be called."""
    with pytest.raises(TypeError, match=r"below @(static|class)method|decorates a function"):
        locked(memory, "k")(wrong)


def test_wrong_arguments_are_the_functions_own_error(memory: MemoryStore) -> None:
    """A call that the function does not take is a TypeError, and nothing is locked."""

    @locked(memory, "k:{number}")
    def act(number: int) -> int:
        return number

    with pytest.raises(TypeError, match="number"):
        act()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="other"):
        act(1, other=2)  # type: ignore[call-arg]


def test_the_kind_of_the_hold_may_be_named(memory: MemoryStore) -> None:
    """For type checkers; another kind is a TypeError that says which one it is."""

    @locked(memory, "k", permits=2)
    def run() -> int:
        with pytest.raises(TypeError, match=r"SemaphoreHold: write caslock\.current_hold\(caslock\.SemaphoreHold\)"):
            current_hold(AsyncHold)
        return current_hold(SemaphoreHold).slot

    assert run() == 0


def test_what_outlives_a_function_does_not_keep_its_hold(memory: MemoryStore) -> None:
    """A context that was copied inside refers to the hold weakly: it is garbage as soon as the function has ended."""
    contexts = []

    @locked(memory, "k")
    def act() -> None:
        contexts.append((contextvars.copy_context(), weakref.ref(caslock.current_hold())))

    act()
    gc.collect()
    ((context, hold),) = contexts
    assert hold() is None
    with pytest.raises(NotHeld):
        context.run(caslock.current_hold)
