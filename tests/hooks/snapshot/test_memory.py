"""Memory without a name: refused where there is none, freed when nobody holds it."""

import gc
import os
import subprocess
import sys

import pytest
import torch

from mvc import StorageError, UsageError
from mvc_hooks.snapshot import memory
from mvc_hooks.snapshot.memory import SharedMemory
from mvc_hooks.snapshot.ring import MemoryPool
from support.committing import read_links

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("size_bytes", [2**45, 2**62, 2**80])
@pytest.mark.parametrize("in_folder", [False, True])
def test_absurd_sizes(tmp_path, size_bytes, in_folder):
    before = len(read_links(os.getpid()))
    with pytest.raises(StorageError, match="there is no room for a snapshot of") as caught:
        SharedMemory(size_bytes, str(tmp_path) if in_folder else None)
    assert "\n" not in caught.value.message
    assert len(read_links(os.getpid())) == before


def test_a_machine_that_does_not_tell_its_room(tmp_path, monkeypatch):
    """Then the kernel has to refuse."""
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    monkeypatch.setattr(memory, "_OWN_GROUP", tmp_path / "none")
    assert memory.measure_room() is None
    with pytest.raises(StorageError, match="there is no room"):
        SharedMemory(2**80)
    SharedMemory(1).close()


def test_room_of_the_machine_and_of_its_group(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable: 70 kB\nSwapFree: 30 kB\n")
    (tmp_path / "cgroup").write_text("1:name=x:/y\n0::/job/7\n")
    group = tmp_path / "job" / "7"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("40000\n")
    (group / "memory.stat").write_text("anon 30000\ninactive_file 5000\nactive_file 1000\n")
    for name, path in (("_MEMINFO", "meminfo"), ("_OWN_GROUP", "cgroup"), ("_GROUPS", "")):
        monkeypatch.setattr(memory, name, tmp_path / path)
    assert memory.measure_room() == 100 * 1024
    (group / "memory.max").write_text("50000\n")
    assert memory.measure_room() == 16_000
    (group / "memory.max").write_text("100\n")
    assert memory.measure_room() == 0
    with pytest.raises(StorageError, match="2,097,152 bytes: 0 are free"):
        SharedMemory(1)


_LIMITED = """
import resource, sys
import torch
from mvc import StorageError
from mvc_hooks.snapshot.memory import SharedMemory
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = {"RLIMIT_AS": used + 2**28, "RLIMIT_FSIZE": 2**22}[sys.argv[1]]
resource.setrlimit(getattr(resource, sys.argv[1]), (limit, limit))
try:
    SharedMemory(2**29)
except StorageError as error:
    print(error.message)
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_FSIZE"])
def test_limits_of_the_process(limit):
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, limit], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("there is no room for a snapshot of 536,870,912 bytes: ")


def test_all_of_it_is_allocated_at_once():
    memory = SharedMemory(5 * 2**20)
    assert memory.size_bytes == 6 * 2**20
    assert os.fstat(memory.descriptor).st_blocks * 512 == memory.size_bytes
    memory.close()


def test_a_folder_keeps_no_file(tmp_path):
    memory = SharedMemory(100, str(tmp_path))
    memory.view()[:3] = b"abc"
    assert os.pread(memory.descriptor, 3, 0) == b"abc"
    assert os.listdir(tmp_path) == []
    memory.close()


def test_no_such_folder(tmp_path):
    with pytest.raises(StorageError, match=r"cannot make a file in .*: No such file"):
        SharedMemory(100, str(tmp_path / "none"))


def test_it_is_freed_when_closed_and_when_forgotten():
    gc.collect()  # what other tests have left
    before = len(read_links(os.getpid()))
    memory = SharedMemory(100)
    kept = memory.view(0, 5)
    memory.view()[:5] = b"hello"
    memory.close()
    memory.close()
    assert bytes(kept) == b"hello"  # what somebody looks at is still there
    del kept, memory
    SharedMemory(100).wait_ready()  # forgotten at once
    gc.collect()
    assert len(read_links(os.getpid())) == before
    with open("/proc/self/maps") as file:
        assert "mvc-snapshot" not in file.read()


def test_closed_memory_is_not_written_to():
    memory = SharedMemory(100)
    memory.close()
    with pytest.raises(UsageError, match="is closed"):
        memory.wait_ready()


def test_a_pool_prefers_what_it_has():
    pool = MemoryPool()
    small, large = pool.take(100), pool.take(10 * 2**20)
    pool.give_back(small)
    pool.give_back(large)
    assert pool.take(9 * 2**20) is large
    assert small.descriptor == -1  # too small for this state, so too small for the next
    pool.give_back(large)
    assert pool.take(50) is large
    pool.give_back(large)
    grown = pool.take(20 * 2**20)
    assert large.descriptor == -1
    assert grown.size_bytes >= 20 * 2**20
    pool.prepare({"a": 1})
    assert pool.take(100) is not grown


def test_memory_is_not_prepared_beside_one_that_is_in_use():
    pool, state = MemoryPool(), {"a": torch.zeros(2**22)}
    of_the_start = pool.take(100)
    pool.prepare(state)
    assert (pool._preparing, pool._free) == (None, [])
    pool.give_back(of_the_start)
    assert of_the_start.descriptor == -1, "too small, and not kept until the next snapshot"
    pool._wait_prepared()
    (prepared,) = pool._free
    assert pool.take(2**24) is prepared
