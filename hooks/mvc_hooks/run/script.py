"""What the training script carries from step to step in its own variables.

A loop carries a variable if it may read it, the next time round, before it writes it: a hidden state,
a replay buffer, the batch that was drawn ahead, but not the batch or the loss of one step. That is read
off the bytecode of the functions that are in a loop when they call ``step()``.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any

from mvc_hooks.installed import OWN_PACKAGES, is_library_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_MOST_FRAMES = 4
_GLOBAL = ("LOAD_NAME", "LOAD_GLOBAL", "STORE_NAME", "STORE_GLOBAL")
_ENDS = ("RETURN", "RAISE", "RERAISE", "JUMP")


def read_scope(frame: FrameType) -> dict[str, Any]:
    """Return the variables that a frame sees; it goes on holding none of them."""
    if _calls_locals(frame.f_code):  # what that returned is the dict below, and may be in use
        return dict(frame.f_globals)
    values = frame.f_locals
    scope = {**frame.f_globals, **values}
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(values, dict):
        values.clear()  # until Python 3.12 a copy, with which the frame would hold the loss's graph
    return scope


@functools.lru_cache(maxsize=64)
def _calls_locals(code: CodeType) -> bool:
    instructions = dis.get_instructions(code)
    return any(
        instruction.opname in _GLOBAL and instruction.argval == "locals"
        for instruction in instructions
    )


def read_carried(frame: FrameType | None) -> dict[str, Any]:
    """Return what the loops around a call carry, those of the callers too: name → value."""
    carried: dict[str, Any] = {}
    for _ in range(_MOST_FRAMES):
        if frame is None or is_library_file(frame.f_code.co_filename):
            break
        if str(frame.f_globals.get("__name__")).partition(".")[0] in OWN_PACKAGES:  # an adapter
            break
        if names := find_carried(frame.f_code, frame.f_lasti):
            scope = read_scope(frame)
            values = {key: scope[key] for key in names if key in scope}
            carried = {**_follow(values, _find_stored(frame.f_code, frame.f_lasti)), **carried}
        frame = frame.f_back
    return carried


def _follow(values: dict[str, Any], stored: Collection[str]) -> dict[str, Any]:
    """Return values, and what functions of the script among them use from outside.

    What the loop's own code stores is left out: it is most likely of the step that calls the function.
    """
    known, pending = dict(values), list(values.values())
    while pending:
        function = pending.pop()
        if not issubclass(type(function), FunctionType) or is_library_file(
            function.__code__.co_filename
        ):
            continue
        code, scope = function.__code__, function.__globals__
        # Names of attributes are in co_names, too.
        read = {
            instruction.argval
            for instruction in dis.get_instructions(code)
            if instruction.opname == "LOAD_GLOBAL"
        }
        used = {key: scope[key] for key in read & scope.keys() - stored}
        for key, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            # An empty one is of a variable that has no value yet.
            if key not in stored and cell != type(cell)():
                used[key] = cell.cell_contents
        new = {key: value for key, value in used.items() if key not in known}
        known |= new
        pending += new.values()
    return known


@functools.lru_cache(maxsize=64)
def find_carried(code: CodeType, at: int) -> frozenset[str]:
    """Return the names of the variables that loops around an instruction carry."""
    return frozenset().union(*map(_find_live, _find_loops(code, at)))


@functools.lru_cache(maxsize=64)
def _find_stored(code: CodeType, at: int) -> set[str]:
    """Return the names of the variables that the innermost loop around an instruction sets."""
    innermost = min(_find_loops(code, at), key=len)
    return _list_stored(innermost)


def _find_loops(code: CodeType, at: int) -> list[list[dis.Instruction]]:
    """Return the instructions of each loop around one."""
    instructions = list(dis.get_instructions(code))
    ends: dict[int, int] = {}
    for instruction in instructions:
        target = _find_target(instruction)
        if target is None or not target <= at <= instruction.offset:
            continue
        if instruction.offset in _find_reached(instructions, target):
            ends[target] = max(ends.get(target, 0), instruction.offset)
    return [
        [instruction for instruction in instructions if head <= instruction.offset <= end]
        for head, end in ends.items()
    ]


def _find_reached(code: list[dis.Instruction], start: int) -> set[int]:
    """Return the offsets that are reached from one; the handler of an exception, further down, is not."""
    following = dict(itertools.pairwise(instruction.offset for instruction in code))
    by_offset, reached, pending = (
        {instruction.offset: instruction for instruction in code},
        set[int](),
        [start],
    )
    while pending:
        at = pending.pop()
        if at in reached or at not in by_offset:
            continue
        reached.add(at)
        instruction = by_offset[at]
        after = None if _ends(instruction) else following.get(at)
        pending += [to for to in (after, _find_target(instruction)) if to is not None]
    return reached


def _find_live(loop: list[dis.Instruction]) -> set[str]:
    """Return the variables that may be read before they are written, from the first instruction on."""
    live: dict[int, set[str]] = {}
    at = {instruction.offset: index for index, instruction in enumerate(loop)}
    passed = {  # an inner loop is taken to pass at least once, and then has set what its body sets
        instruction.offset: _list_stored(loop[at[instruction.offset] : at.get(instruction.argval)])
        for instruction in loop[1:]
        if instruction.opname == "FOR_ITER"
    }
    is_done = False
    while not is_done:
        is_done = True
        for instruction, after in itertools.zip_longest(
            reversed(loop), [None, *reversed(loop[1:])]
        ):
            target = _find_target(instruction)
            now = set(live.get(target, ())) if target is not None else set()
            now -= passed.get(instruction.offset, set())
            if after is not None and not _ends(instruction):
                now |= live[after.offset]
            for name, is_read in reversed(list(_list_uses(instruction))):
                now.add(name) if is_read else now.discard(name)
            is_done = is_done and live.get(instruction.offset) == now
            live[instruction.offset] = now
    return live[loop[0].offset]


def _find_target(instruction: dis.Instruction) -> int | None:
    return (
        instruction.argval
        if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs
        else None
    )


def _ends(instruction: dis.Instruction) -> bool:
    """Return whether the next instruction is never the one below."""
    return instruction.opname.startswith(_ENDS)


def _list_stored(code: Iterable[dis.Instruction]) -> set[str]:
    return {
        name for instruction in code for name, is_read in _list_uses(instruction) if not is_read
    }


def _list_uses(instruction: dis.Instruction) -> Iterator[tuple[str, bool]]:
    """Yield name of variable, and whether it is read (otherwise written), in order."""
    is_local = instruction.opcode in dis.haslocal or instruction.opcode in dis.hasfree
    if not is_local and instruction.opname not in _GLOBAL:
        return
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    verbs = [word for word in instruction.opname.split("_") if word in ("LOAD", "STORE", "DELETE")]
    for name, verb in zip(names, verbs, strict=False):
        yield name, verb == "LOAD"
