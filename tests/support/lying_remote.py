"""Lies about a remote in a folder: drawn at random, and made to look consistent by name and hash."""

from __future__ import annotations

import json
import zlib
from hashlib import sha1

from blake3 import blake3

from mvc.history.git_pack import _encode_entry_header
from mvc.history.object_formats import KINDS
from mvc.history.pack_reader import PACK_HEADER, parse_entry_header
from mvc.ids import hash_chunk, hash_git_object

JUNK = (
    None, True, -1, 0, 2**63, 1.5, "", "../../config", "/etc/passwd", "refs/heads/..", 64 * "0",
    40 * "f", "a\x00b", "\x1b[2J", [], {}, [[]], {"": {}}, "é" * 99, ["../root"] * 3,
)  # fmt: skip


def write(path, data):
    """Write a file of a store, whatever was there."""
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def read_root(store):
    return json.loads((store / "root").read_bytes())


def write_root(store, told):
    write(store / "root", json.dumps(told).encode())


def put_list(store, packs=None, history=None):
    """Write a list; return its name."""
    told = {"mvc-list": 1, "packs": packs or {}, "history": history or {}}
    data = json.dumps(told).encode()
    name = hash_chunk(data).hex()
    write(store / "lists" / name, data)
    return name


def parse_history(data):
    """Return the (kind, content) of all objects of a pack of whole objects."""
    at, found = PACK_HEADER.size, []
    for _ in range(PACK_HEADER.unpack(data[:at])[2]):
        number, _, header_bytes, _ = parse_entry_header(data[at : at + 64])
        inflater = zlib.decompressobj()
        content = inflater.decompress(data[at + header_bytes :])
        found.append((KINDS[number], content))
        at = len(data) - len(inflater.unused_data)
    return found


def encode_history(objects):
    """Return the bytes of a Git pack of some objects."""
    entries = [_encode_entry_header(kind, len(one)) + zlib.compress(one) for kind, one in objects]
    data = PACK_HEADER.pack(b"PACK", 2, len(entries)) + b"".join(entries)
    return data + sha1(data, usedforsecurity=False).digest()


def put_history(store, data, *, alone=True):
    """Write a Git pack under its name and let the root name it; return the name."""
    name = data[-20:].hex()
    write(store / "history" / f"{name}.pack", data)
    told = read_root(store)
    told["history"] = {**({} if alone else told["history"]), name: len(data)}
    write_root(store, told)
    return name


def put_index(store, pack, data):
    """Write a pack index whose own hash is right."""
    write(store / "packs" / f"{pack}.idx", data[:-32] + blake3(data[:-32]).digest())


def put_pack(store, old, data, index):
    """Write a pack under its name in the place of another, with the index of that one."""
    pack = blake3(data).hexdigest()
    write(store / "packs" / f"{pack}.pack", data)
    size = len(data).to_bytes(8, "little")
    put_index(store, pack, index[:16] + bytes.fromhex(pack) + size + index[56:])
    told = read_root(store)
    del told["packs"][old]
    told["packs"][pack] = len(data)
    write_root(store, told)


def tag(target, kind, name="x"):
    """Return a tag object."""
    lines = (f"object {target}", f"type {kind}", f"tag {name}", "tagger E <e@e> 1700000000 +0000")
    return "tag", "\n".join([*lines, "", "evil\n"]).encode()


def commit(tree, *parents):
    """Return a commit object."""
    lines = [f"tree {tree}", *(f"parent {one}" for one in parents)]
    lines += [f"{who} E <e@e> 1700000000 +0000" for who in ("author", "committer")]
    return "commit", "\n".join([*lines, "", "evil\n"]).encode()


def tree(*entries):
    """Return a tree of (mode, name, id), in that order."""
    rows = [b"%o %s\x00" % (mode, name) + bytes.fromhex(one) for mode, name, one in entries]
    return "tree", b"".join(rows)


def name(one):
    """Return the id of an object."""
    return hash_git_object(*one)


def lie(store, draw):
    """Tell one lie, as ``random.Random`` has it; return which."""
    how = draw.choice([_bytes, _bytes, _root, _root, _root, _index, _pack, _pack, _objects])
    return f"{how.__name__}: {how(store, draw)}"


def _bytes(store, draw):
    """One object has other bytes, or is gone."""
    path = draw.choice(sorted(path for path in store.rglob("*") if path.is_file()))
    data = bytearray(path.read_bytes())
    at = draw.randrange(len(data) + 1)
    what = draw.choice(["flip", "cut", "grow", "other", "gone", "empty"])
    if what == "flip" and data:
        data[min(at, len(data) - 1)] ^= 1 << draw.randrange(8)
    elif what == "cut":
        del data[at:]
    elif what == "grow":
        data += draw.randbytes(draw.randrange(1, 2000))
    elif what == "other":
        other = draw.choice(sorted(path for path in store.rglob("*") if path.is_file()))
        data = other.read_bytes()
    write(path, b"" if what == "empty" else bytes(data))
    if what == "gone":
        path.unlink()
    return f"{path.name} {what} {at}"


def _root(store, draw):
    """The root says something else somewhere."""
    told = read_root(store)
    where = told
    for _ in range(draw.randrange(3)):
        deeper = [one for one in where.values() if isinstance(one, dict) and one]
        where = draw.choice(deeper) if deeper else where
    key = draw.choice(sorted(where))
    what = draw.choice(["value", "key", "gone", "swap", "number"])
    if what == "value":
        where[key] = draw.choice(JUNK)
    elif what == "key":
        where[str(draw.choice(JUNK))] = where.pop(key)
    elif what == "gone":
        del where[key]
    elif what == "number" and isinstance(where[key], int):
        where[key] += draw.choice([-1, 1, 2**40])
    else:
        where[key] = where[draw.choice(sorted(where))]
    write_root(store, told)
    return f"{key} {what}"


def _index(store, draw):
    """The index of a pack lies, and its own hash is right."""
    path = draw.choice(sorted(store.glob("packs/*.idx")))
    data = bytearray(path.read_bytes())
    at = draw.randrange(8, len(data) - 32)
    data[at] ^= 1 << draw.randrange(8)
    put_index(store, path.stem, bytes(data))
    return f"{path.name} {at}"


def _pack(store, draw):
    """A pack has other bytes, and name, index and root know it by them."""
    path = draw.choice(sorted(store.glob("packs/*.pack")))
    data, index = bytearray(path.read_bytes()), path.with_suffix(".idx").read_bytes()
    at = draw.randrange(16, len(data))
    data[at] ^= 1 << draw.randrange(8)
    if draw.random() < 0.5:  # the header of the first record says so, too
        at = draw.randrange(16, 28)
        data = bytearray(path.read_bytes())
        data[at] ^= 1 << draw.randrange(8)
        fields = bytes(data[16:32]) + bytes(data[36:80])
        data[32:36] = zlib.crc32(fields).to_bytes(4, "little")
    put_pack(store, path.stem, bytes(data), index)
    return f"{path.name} {at}"


def _objects(store, draw):
    """The Git objects are others, in a sound pack."""
    objects = [
        one for path in sorted(store.glob("history/*.pack"))
        for one in parse_history(path.read_bytes())
    ]  # fmt: skip
    number = draw.randrange(len(objects))
    kind, data = objects[number]
    what = draw.choice(["byte", "gone", "kind", "cut", "twice", "names"])
    at = draw.randrange(len(data)) if data else 0
    if what == "gone":
        del objects[number]
    elif what == "twice":
        objects.append(objects[number])
    elif what == "kind":
        objects[number] = draw.choice(list(KINDS.values())), data
    elif what == "cut":
        objects[number] = kind, data[:at]
    else:
        changed = bytearray(data)
        changed[at : at + 1] = draw.choice([b"/", b"..", b"\x00", b"\n", b"\xff", b"{"])
        objects[number] = kind, bytes(changed)
    told = read_root(store)
    if what != "gone":
        new = name(objects[number])
        told["refs"] = {**told["refs"], "refs/heads/main": new}
        told["channels"] = {"live": {"commit": new, "number": 9}}
        write_root(store, told)
    put_history(store, encode_history(objects))
    return f"{kind} {what} {at}"
