"""`make mutate` finds what can be changed, and puts it in."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

from tests.proof.mutation.__main__ import MUTATED, ROOT, _modules
from tests.proof.mutation.changes import changes
from tests.proof.mutation.known import known_survivors
from tests.proof.mutation.swap import Functions

SOURCE = '''
from threading import Lock
LIMIT = 3
guard = Lock()
def counted(numbers, least=0):
    """Count, and sum."""
    total = 0
    for number in numbers:
        if number > least and number != 7:
            total += number
    try:
        with guard:
            return len([each for each in numbers if each]), min(total, -LIMIT) if total else "nothing"
    except TypeError:
        raise ValueError(f"{total + 1}")
'''


def test_each_kind_of_change_is_found(tmp_path: Path) -> None:
    """Statements, conditions, numbers, operators, handlers and filters are changed; texts, constants and hints not."""
    path = tmp_path / "source.py"
    path.write_text(SOURCE)
    found = [(each.before, each.after) for each in changes(path, "source.py")]
    test = "if number > least and number != 7:"
    returned = "return (len([each for each in numbers if each]), min(total, -LIMIT) if total else 'nothing')"
    assert found == [
        ("total = 0", "pass"),
        ("total = 0", "total = 1"),
        (test, "if not (number > least and number != 7):"),
        (test, "if number != 7:"),
        (test, "if number > least:"),
        (test, "if number >= least and number != 7:"),
        (test, "if number > least and number == 7:"),
        (test, "if number > least and number != 8:"),
        ("total += number", "pass"),
        ("with guard:", "if True:"),
        (returned, "pass"),
        (returned, returned.replace(" if each", "")),
        (returned, returned.replace(" if total else 'nothing'", "")),
        (returned, returned.replace("min(total, -LIMIT) if total else 'nothing'", "'nothing'")),
        (returned, returned.replace("min", "max")),
        (returned, returned.replace("-LIMIT", "LIMIT")),
        ("except TypeError:", "except ():"),
        ("raise ValueError(f'{total + 1}')", "pass"),
    ]


def test_a_change_is_put_in_wherever_the_function_is_known(tmp_path: Path) -> None:
    """Whoever has imported a function gets the changed one, also if it is frozen for the garbage collector."""
    path = tmp_path / "source.py"
    path.write_text(SOURCE)
    module: dict[str, Callable[[list[int]], object]] = {}
    exec(compile(SOURCE, str(path), "exec"), module)  # noqa: S102 - our own text
    counted = module["counted"]
    assert counted([1, 7, 8]) == (3, -3)
    gc.freeze()
    functions = Functions([str(path)])
    wanted = next(each for each in changes(path, str(path)) if "max" in each.after)
    functions.apply(wanted, str(path))
    assert counted([1, 7, 8]) == (3, 9)


def test_every_listed_survivor_is_a_change_that_can_be_made() -> None:
    """The list names no line that is gone, and gives a reason for each."""
    known = {each.name for path in _modules(MUTATED) for each in changes(path, str(path.relative_to(ROOT)))}
    assert len(known) > 2000
    assert known_survivors().keys() <= known
    assert all(known_survivors().values())
