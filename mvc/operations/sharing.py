"""doctor --shared: whether the repository's folder does for several processes and machines what mvc needs.

Whoever runs it at the same time meets in the folder, and a second process of this machine always takes
part, so locks are really contended. Nothing travels but files: if these cannot be relied upon, that shows.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mvc import fs
from mvc.errors import StorageError, UsageError
from mvc.interpreter import module_command
from mvc.operations.doctor import find_mount

if TYPE_CHECKING:
    from mvc.workspace.context import Context

_FOLDER = "meeting"
_ROUNDS = 25
_PATIENCE_S = 75.0
"""NFS may show a new name no sooner than after a minute."""
_PAUSE_S = 0.01
_OLD_S = 3600
_GONE_S = 2.0
_MAX_WAIT_S = 600
_VALUE_BYTES = 65536


@dataclass(frozen=True, slots=True)
class SharingReport:
    """What several processes saw of one folder.

    Attributes:
        filesystem: type of the file system, as this machine's kernel calls it.
        options: how it is mounted here.
        members: ``host:process`` of all who took part.
        machines: how many machines they were on.
        problems: what does not work as mvc needs it, in words; nothing if all does.
        warnings: what is known of such a file system and could not be tested from here.
        seen_s: how long it took, at most, until a new file was seen by all others.
    """

    filesystem: str
    options: str
    members: tuple[str, ...]
    machines: int
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    seen_s: float


class _Result(msgspec.Struct):
    """What one member saw."""

    won: int = 0
    seen_s: float = 0.0
    problems: list[str] = msgspec.field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Seat:
    """What a member knows of a meeting: where it is, who it is, who else is there, what it saw."""

    room: Path
    me: str
    members: list[str]
    result: _Result


def probe_sharing(context: Context, *, wait_s: float = 3.0) -> SharingReport:
    """Test whether the repository's folder does for several processes and machines what mvc needs.

    Whoever calls it within ``wait_s`` seconds, here or on other machines that see the folder, takes
    part; a second process of this machine always does.

    Raises:
        StorageError: nothing can be written there.
        UsageError: that is no time to wait, or more than ten minutes.
    """
    if not 0 <= wait_s <= _MAX_WAIT_S:
        raise UsageError(f"{wait_s} seconds to wait is not from 0 to {_MAX_WAIT_S}")
    filesystem, options = find_mount(context.git_dir)
    folder = context.git_dir / _FOLDER
    fs.make_dirs(folder)
    members, results, problems = _meet_with_child(folder, wait_s)
    machines = {member.rsplit(":", 2)[0] for member in members}
    return SharingReport(
        filesystem,
        options,
        tuple(member.rsplit(":", 1)[0] for member in members),
        len(machines),
        tuple(dict.fromkeys(problems)),
        tuple(known_traps(filesystem, options, is_tested=len(machines) > 1)),
        max((result.seen_s for result in results.values()), default=0.0),
    )


def _meet_with_child(
    folder: Path, wait_s: float
) -> tuple[list[str], dict[str, _Result], list[str]]:
    """Take part together with a second process of this machine; return also what went wrong."""
    child = subprocess.Popen(  # noqa: S603  our own command, no shell
        module_command("mvc.operations.sharing"),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    members: list[str] = []
    results: dict[str, _Result] = {}
    problems: list[str] = []
    errors = b""
    try:
        assert child.stdin is not None
        child.stdin.write(msgspec.json.encode((str(folder), wait_s)))
        child.stdin.close()
        child.stdin = None
        members, results = meet(folder, wait_s)
        _, errors = child.communicate(timeout=_PATIENCE_S)
        problems = _judge(members, results)
    except (OSError, StorageError) as error:
        problems.append(getattr(error, "message", None) or str(error))
    except subprocess.TimeoutExpired:
        problems.append("the second process of this machine does not end")
    finally:
        child.kill()
        child.wait()
    if child.returncode:
        last = (errors.decode(errors="replace").strip().splitlines() or ["no word of why"])[-1]
        problems.append(f"the second process of this machine failed: {last[:200]}")
    return members, results, problems


def meet(folder: Path, wait_s: float) -> tuple[list[str], dict[str, _Result]]:
    """Find the others, test with them; return who took part, and what each saw."""
    me = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}".replace("/", "_")
    room, members = _find_room(folder, me, wait_s)
    at = _Seat(room, me, members, _Result())
    for name, test in _TESTS.items():
        try:
            test(at)
        except (OSError, StorageError) as error:
            at.result.problems.append(f"{name}: {getattr(error, 'message', error)}")
        _gather(at, name)
    results = _tell(at)
    if me == members[0]:
        _gather(at, "end")
        shutil.rmtree(room, ignore_errors=True)
    else:
        _put(room / f"end.{me}", b"")
    return members, results


def _find_room(folder: Path, me: str, wait_s: float) -> tuple[Path, list[str]]:
    """Join a meeting that is being opened, or open one and wait for others."""
    deadline_s = time.monotonic() + 2 * _MAX_WAIT_S
    while time.monotonic() < deadline_s:
        with fs.exclusive_lock(folder / "door"):
            rooms = [
                room for room in sorted(folder.glob("room-*")) if not (room / "members").exists()
            ]
            room = rooms[0] if rooms else folder / f"room-{me}"
            if not rooms:
                _remove_old(folder)
            fs.make_dirs(room)
            if not rooms:
                _put(room / "wait", str(wait_s).encode())
            _put(room / f"hello.{me}", b"")
        if not rooms:
            time.sleep(wait_s)
            with fs.exclusive_lock(folder / "door"):
                arrived = sorted(path.name.partition(".")[2] for path in room.glob("hello.*"))
                members = [me, *(member for member in arrived if member != me)]
                _put(room / "members", "\n".join(members).encode())
            return room, members
        if _wait((room / "members").exists, _read_wait(room) + _GONE_S):
            members = (room / "members").read_text().split("\n")
            if me in members:
                return room, members
        else:
            shutil.rmtree(room, ignore_errors=True)  # whoever opened it is gone
    raise StorageError(f"no meeting came about in {folder}")


def _read_wait(room: Path) -> float:
    """Return how long who has opened a meeting waits."""
    try:
        return min(max(float((room / "wait").read_bytes()), 0.0), _MAX_WAIT_S)
    except (OSError, ValueError):
        return 0.0


def _remove_old(folder: Path) -> None:
    """Remove what meetings have left whose opener was killed."""
    now_s = fs.write_durable(folder / "clock", [b""]).mtime_ns / 1e9
    for room in folder.glob("room-*"):
        if room.stat().st_mtime < now_s - _OLD_S:
            shutil.rmtree(room, ignore_errors=True)


def _put(path: Path, data: bytes) -> None:
    fs.write_durable(path, [data])


def _wait(is_so: Callable[[], bool], limit_s: float) -> bool:
    """Wait until files say so: there is nothing else to wait for."""
    end_s = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > end_s:
            return False
        time.sleep(_PAUSE_S)
    return True


def _gather(at: _Seat, name: str) -> None:
    """Wait until all have come to the same place; StorageError names who has not."""
    _put(at.room / f"{name}.{at.me}", b"")

    def missing() -> list[str]:
        return [member for member in at.members if not (at.room / f"{name}.{member}").exists()]

    if not _wait(lambda: not missing(), _PATIENCE_S):
        raise StorageError(f"{missing()[0].rsplit(':', 1)[0]} was not heard of any more ({name})")


def _test_locks(at: _Seat) -> None:
    """Count up a number under the exclusive lock: every count that gets lost was a lock that did not hold."""
    path = at.room / "count"
    for _ in range(_ROUNDS):
        with fs.exclusive_lock(path) as descriptor:
            count = int(os.pread(descriptor, 16, 0) or b"0")
            os.pwrite(descriptor, b"%16d" % (count + 1), 0)
            fs.fsync_file(path)
    with fs.shared_lock(path):
        pass


def _test_claims(at: _Seat) -> None:
    """Create files that must not exist: each is created by one alone."""
    for number in range(_ROUNDS):
        with contextlib.suppress(FileExistsError):
            os.close(
                os.open(at.room / f"claim-{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            )
            at.result.won += 1


def _test_renames(at: _Seat) -> None:
    """Replace a file and read it, all at once: whoever reads sees one of the versions, whole."""
    for number in range(_ROUNDS):
        _put(at.room / "value", bytes([number]) * _VALUE_BYTES)
        data = (at.room / "value").read_bytes()
        if len(data) != _VALUE_BYTES or len({*data}) != 1:
            at.result.problems.append("a file that was replaced by a rename was seen half")


def _test_sight(at: _Seat) -> None:
    """Look for the files of the others, and what is in them, from the moment that each was there."""
    _put(at.room / f"note.{at.me}", at.me.encode() * 100)
    started_s = time.monotonic()
    for member in at.members:
        path = at.room / f"note.{member}"
        if not _wait(path.exists, _PATIENCE_S):
            at.result.problems.append(
                f"a file that {member.rsplit(':', 1)[0]} has written was not seen"
            )
        elif path.read_bytes() != member.encode() * 100:
            at.result.problems.append("a file was seen under its name before what is in it")
    at.result.seen_s = time.monotonic() - started_s


def _test_end_of_locks(at: _Seat) -> None:
    """Hold a lock of one's own, and find that of the next one taken."""
    mine, after = (
        at.room / f"held.{at.me}",
        at.members[(at.members.index(at.me) + 1) % len(at.members)],
    )
    with fs.exclusive_lock(mine):
        _gather(at, "holding")
        if not fs.is_locked(at.room / f"held.{after}"):
            at.result.problems.append("a lock that another process holds was given")
        _gather(at, "checked")


_TESTS: dict[str, Callable[[_Seat], None]] = {
    "locks": _test_locks,
    "exclusive files": _test_claims,
    "renames": _test_renames,
    "sight": _test_sight,
    "held locks": _test_end_of_locks,
}


def _tell(at: _Seat) -> dict[str, _Result]:
    """Tell the others what was seen; return what all saw, with the count that they came to."""
    if at.me == at.members[0]:
        count = int((at.room / "count").read_bytes() or b"0")
        if count != _ROUNDS * len(at.members):
            lost = _ROUNDS * len(at.members) - count
            at.result.problems.append(
                f"locks do not exclude: {lost} of {_ROUNDS * len(at.members)} got lost"
            )
    _put(at.room / f"result.{at.me}", msgspec.json.encode(at.result))
    _gather(at, "told")
    return {
        one: msgspec.json.decode((at.room / f"result.{one}").read_bytes(), type=_Result)
        for one in at.members
    }


def _judge(members: list[str], results: dict[str, _Result]) -> list[str]:
    problems = [
        f"{member.rsplit(':', 1)[0]}: {text}"
        for member in members
        for text in results[member].problems
    ]
    won = sum(result.won for result in results.values())
    if won != _ROUNDS:
        problems.append(
            f"{_ROUNDS} files were created {won} times: exclusive creation does not hold"
        )
    return problems


def known_traps(filesystem: str, options: str, *, is_tested: bool) -> list[str]:
    """Return what is known of a file system, and how it is mounted, that mvc cannot live with."""
    flags, traps = set(options.split(",")), []
    if filesystem in ("nfs", "nfs4") and {"nolock", "local_lock=all", "local_lock=flock"} & flags:
        traps.append("NFS is mounted with locks of this machine alone: mount it without nolock")
    if filesystem == "lustre" and "flock" not in flags:
        traps.append(
            "Lustre is mounted without -o flock: locks fail, or hold on this machine alone"
        )
    if filesystem.startswith(("cifs", "smb")):
        traps.append(
            "SMB may answer from a cache of this machine: mount it with cache=none, or use NFS"
        )
    if filesystem.startswith("fuse") or filesystem == "9p":
        traps.append(
            f"{filesystem}: such file systems often have no locks between machines (sshfs has none)"
        )
    if filesystem in ("overlay", "tmpfs", "ramfs"):
        traps.append(f"{filesystem} is of this machine alone: no other machine sees it")
    if not is_tested:
        traps.append(
            "only this machine took part: run the same on another one within the waiting time"
        )
    return traps


if __name__ == "__main__":
    place, seconds = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[str, float])
    meet(Path(place), seconds)
