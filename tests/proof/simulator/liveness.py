"""Finds the live local variables of a coroutine: a variable is part of its state only if some path may still read it.

A search that compared whole frames would keep states apart by values that nothing reads again.
"""

from __future__ import annotations

import dis
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType

_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD")
_STORES = ("STORE_FAST", "DELETE_FAST", "UNPACK_SEQUENCE")


@cache
def live(code: CodeType, offset: int) -> tuple[str, ...]:
    """Name the locals, except `self`, that may be read after the instruction at `offset`."""
    before = [(start, names) for start, names in _live(code) if start <= offset]
    return tuple(sorted(before[-1][1] - {"self"}))


@cache
def _live(code: CodeType) -> list[tuple[int, set[str]]]:
    instructions = list(dis.get_instructions(code))
    index = {instruction.offset: n for n, instruction in enumerate(instructions)}
    always = {*code.co_cellvars, *code.co_freevars, *_loop_targets(instructions)}
    follows: list[list[int]] = []
    for n, instruction in enumerate(instructions):
        after = [] if instruction.opname.startswith(_ENDS) else [n + 1]
        if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
            after.append(index[instruction.argval])
        follows.append([m for m in after if m < len(instructions)])
    for entry in dis.Bytecode(code).exception_entries:  # type: ignore[attr-defined] # typeshed does not know it
        for n, instruction in enumerate(instructions):
            if entry.start <= instruction.offset < entry.end:
                follows[n].append(index[entry.target])
    found: list[set[str]] = [set(always) for _ in instructions]
    changed = True
    while changed:
        changed = False
        for n in range(len(instructions) - 1, -1, -1):
            names = set(always).union(*(found[m] for m in follows[n]))
            names = _reads(instructions[n], names)
            if names != found[n]:
                found[n], changed = names, True
    return [(instruction.offset, names) for instruction, names in zip(instructions, found, strict=True)]


def _reads(instruction: dis.Instruction, after: set[str]) -> set[str]:
    """What is live before an instruction, given what is live after it."""
    name = instruction.opname
    if "_FAST" not in name:
        return after
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    steps = [part for part in name.replace("DELETE", "STORE").split("_") if part in {"LOAD", "STORE"}]
    for step, local in reversed(list(zip(steps, names, strict=False))):  # two in one, in newer Pythons
        after = after - {local} if step == "STORE" else after | {local}
    return after


def _loop_targets(instructions: list[dis.Instruction]) -> set[str]:
    """The variables of loops: they show how far an iterator is, whose own state can't be read."""
    found: set[str] = set()
    for n, instruction in enumerate(instructions):
        if instruction.opname == "FOR_ITER":
            for target in instructions[n + 1 :]:
                if not target.opname.startswith(_STORES):
                    break
                if "_FAST" in target.opname:
                    found.update(target.argval if isinstance(target.argval, tuple) else (target.argval,))
    return found
