"""A machine that reads pickles and can do nothing.

A pickle is a program for a stack machine. This one runs the program over inert values only
(``values``): a global is a name, calling anything makes an ``Opaque`` that remembers what
it was to be made of, and nothing is ever imported, looked up or called, with two exceptions that
the caller hands in and that are pure functions of inert values: ``reduce`` for calls of globals on
the caller's closed list, ``persistent`` for persistent ids.

Time and memory are bounded by ``MAX_OPCODES`` and the length: each opcode is O(1) apart from moving values that
earlier opcodes pushed one by one, and no value is ever copied, hashed, compared or printed here.
Values may contain themselves; code that walks them must remember where it was.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from mvc.checkpoints.torch_pickle.values import (
    LITERALS,
    MAX_KEPT_BYTES,
    Global,
    Opaque,
    Pairs,
)
from mvc.errors import FormatError

MAX_OPCODES = 8_000_000
"""Opcodes run: a tensor takes 20 to 30, so 250,000 tensors; at most about a gigabyte of values.

A pickle that is long by itself may have half as many as it has bytes: the metadata of a DCP folder takes 70
opcodes and 175 bytes for each shard.
"""
MAX_GLOBALS = 100_000
"""Different classes and functions named: a real checkpoint names some dozens."""
_PROTOCOL = b"\x80"  # begins every pickle since protocol 2
MAX_PROTOCOL = 5
_STOP = ord(".")
_unpack_word = struct.Struct("<I").unpack_from


def unpickle(
    data: bytes,
    reduce: Callable[[Global, object], object | None],
    persistent: Callable[[object], object | None],
) -> object:
    """Run a pickle, protocol 2 to 5, and return its value, which is inert.

    Bytes after STOP are ignored. ``reduce`` takes (callee, arguments) to the value of a call on the
    caller's closed list, or to None, which leaves it an ``Opaque``; ``persistent`` takes a
    persistent id to what it stands for, or to None. Both must take constant time and may raise
    FormatError.
    """
    if not data.startswith(_PROTOCOL):
        raise FormatError(
            "pickle has protocol 0 or 1, or is damaged; use torch.save with its default protocol"
        )
    machine = _Machine(data, reduce, persistent)
    try:
        return machine.run()
    except (IndexError, KeyError, ValueError, struct.error) as error:
        # The end of the data, an empty stack, an unset memo slot, a malformed number or text.
        raise FormatError(f"pickle is damaged near byte {machine.position:,}") from error


class _Machine:
    def __init__(
        self,
        data: bytes,
        reduce: Callable[[Global, object], object | None],
        persistent: Callable[[object], object | None],
    ) -> None:
        self.data = data
        self.position = 0
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}
        self.globals: dict[str, Global] = {}
        self.reduce = reduce
        self.persistent = persistent

    def run(self) -> object:
        data, stack, literals, operations = self.data, self.stack, LITERALS, _OPERATIONS
        most = max(MAX_OPCODES, len(data) // 2)
        for _ in range(most):
            opcode = data[self.position]
            literal = literals.get(opcode)
            if literal is not None:
                value, self.position = literal(data, self.position + 1)
                stack.append(value)
                continue
            self.position += 1
            if opcode == _STOP:
                return stack.pop()
            operation = operations.get(opcode)
            if operation is None:
                raise FormatError(f"pickle has the unknown opcode {opcode:#04x}")
            operation(self)
        raise FormatError(f"pickle runs longer than {most:,} opcodes")

    def take(self, size_bytes: int) -> int:
        """Return the next little-endian unsigned number."""
        start = self.position
        self.position = start + size_bytes
        return int.from_bytes(self.data[start : self.position], "little")

    def take_line(self) -> bytes:
        start, end = self.position, self.data.find(b"\n", self.position)
        if end < 0:
            raise FormatError(f"pickle ends inside the line at {start:,}")
        if end - start > MAX_KEPT_BYTES:
            raise FormatError(f"pickle has a name of {end - start:,} bytes")
        self.position = end + 1
        return self.data[start:end]

    def pop_mark(self) -> list[object]:
        """Take everything above the last mark off the stack."""
        start = self.marks.pop()
        if start > len(self.stack):
            raise FormatError("pickle takes more off its stack than there is")
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def find_global(self, module: str, name: str) -> Global:
        path = f"{module}.{name}"
        known = self.globals.get(path)
        if known is None:
            if len(self.globals) >= MAX_GLOBALS:
                raise FormatError(f"pickle names more than {MAX_GLOBALS:,} classes and functions")
            known = self.globals[path] = Global(path)
        return known

    def call(self, callee: object, args: object) -> object:
        value = self.reduce(callee, args) if isinstance(callee, Global) else None
        return Opaque(callee, args) if value is None else value


def _proto(machine: _Machine) -> None:
    if machine.take(1) > MAX_PROTOCOL:
        raise FormatError("pickle has an unknown protocol")


def _frame(machine: _Machine) -> None:
    if machine.take(8) > len(machine.data) - machine.position:
        raise FormatError("pickle has a frame that reaches past its end")


def _pop(machine: _Machine) -> None:
    # A pickle may take its own mark away with POP.
    if machine.marks and machine.marks[-1] == len(machine.stack):
        machine.marks.pop()
    else:
        machine.stack.pop()


def _get_byte(machine: _Machine) -> None:
    machine.stack.append(machine.memo[machine.data[machine.position]])
    machine.position += 1


def _get_word(machine: _Machine) -> None:
    machine.stack.append(machine.memo[_unpack_word(machine.data, machine.position)[0]])
    machine.position += 4


def _put_byte(machine: _Machine) -> None:
    machine.memo[machine.data[machine.position]] = machine.stack[-1]
    machine.position += 1


def _put_word(machine: _Machine) -> None:
    machine.memo[_unpack_word(machine.data, machine.position)[0]] = machine.stack[-1]
    machine.position += 4


def _memoize(machine: _Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _short_tuple(size: int) -> Callable[[_Machine], None]:
    def run(machine: _Machine) -> None:
        if len(machine.stack) < size:  # a slice would silently take fewer
            raise FormatError("pickle takes more off its stack than there is")
        machine.stack[-size:] = [tuple(machine.stack[-size:])]

    return run


def _extend(machine: _Machine, values: list[object]) -> None:
    target = machine.stack[-1]
    if isinstance(target, Opaque):
        target.members = target.members if target.members is not None else []
        target.members.extend(values)
    elif isinstance(target, list) and not isinstance(target, Pairs):
        target.extend(values)
    else:
        raise FormatError("pickle appends to a value that is not a list")


def _set_item(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _set_pairs(machine, [key, value])


def _set_pairs(machine: _Machine, values: list[object]) -> None:
    target = machine.stack[-1]
    if len(values) % 2:
        raise FormatError("pickle sets a key without a value")
    if isinstance(target, Opaque):
        target.pairs = target.pairs if target.pairs is not None else Pairs()
        target.pairs.extend(values)
    elif isinstance(target, Pairs):
        target.extend(values)
    else:
        raise FormatError("pickle sets a key in a value that is not a dictionary")


def _global(machine: _Machine) -> None:
    module, name = machine.take_line().decode(), machine.take_line().decode()
    machine.stack.append(machine.find_global(module, name))


def _stack_global(machine: _Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if not (isinstance(module, str) and isinstance(name, str)):
        raise FormatError("pickle names a global with something that is not text")
    machine.stack.append(machine.find_global(module, name))


def _extension(size_bytes: int) -> Callable[[_Machine], None]:
    def run(machine: _Machine) -> None:
        machine.stack.append(
            machine.find_global("copyreg.extension", str(machine.take(size_bytes)))
        )

    return run


def _reduce(machine: _Machine) -> None:
    args, callee = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(machine.call(callee, args))


def _new_object_ex(machine: _Machine) -> None:
    keywords, args, cls = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    machine.stack.append(Opaque(cls, args, [keywords]))


def _build(machine: _Machine) -> None:
    state, target = machine.stack.pop(), machine.stack[-1]
    # Attributes of anything else (a state dict's _metadata) hold no tensors that have a name.
    if isinstance(target, Opaque):
        target.states = target.states if target.states is not None else []
        target.states.append(state)


def _resolve(machine: _Machine, pid: object) -> None:
    value = machine.persistent(pid)
    machine.stack.append(Opaque(None, pid) if value is None else value)


_OPERATIONS: dict[int, Callable[[_Machine], object]] = {
    0x80: _proto,
    0x95: _frame,
    ord("("): lambda m: m.marks.append(len(m.stack)),  # MARK
    ord("0"): _pop,
    ord("1"): _Machine.pop_mark,
    ord("2"): lambda m: m.stack.append(m.stack[-1]),  # DUP
    ord("h"): _get_byte,
    ord("j"): _get_word,
    ord("q"): _put_byte,
    ord("r"): _put_word,
    0x94: _memoize,
    ord("t"): lambda m: m.stack.append(tuple(m.pop_mark())),  # TUPLE
    0x85: _short_tuple(1),
    0x86: _short_tuple(2),
    0x87: _short_tuple(3),
    ord("a"): lambda m: _extend(m, [m.stack.pop()]),  # APPEND
    ord("e"): lambda m: _extend(m, m.pop_mark()),  # APPENDS
    ord("s"): _set_item,
    ord("u"): lambda m: _set_pairs(m, m.pop_mark()),  # SETITEMS
    0x90: lambda m: _extend(m, m.pop_mark()),  # ADDITEMS: a set is a list here
    0x91: lambda m: m.stack.append(m.pop_mark()),  # FROZENSET
    ord("c"): _global,
    0x93: _stack_global,
    0x82: _extension(1),
    0x83: _extension(2),
    0x84: _extension(4),
    ord("R"): _reduce,
    0x81: _reduce,  # NEWOBJ: what a class would make of its arguments is a call as well
    0x92: _new_object_ex,
    ord("b"): _build,
    ord("Q"): lambda m: _resolve(m, m.stack.pop()),  # BINPERSID
}
