"""The record of what connects the ranks, read from folders that look like /sys, and from a real one."""

from pathlib import Path

import pytest

from mvc_hooks import environment
from mvc_hooks.environment import (
    compare_environments,
    list_interfaces,
    parse_links,
    read_environment,
    read_fabric,
    read_links,
)

pytestmark = pytest.mark.torch

TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPXB\t0-95\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\t0-95\t0\t\tN/A\n"
    "NIC0\tPXB\tSYS\t X \n\n"
    "Legend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def make_interface(root, name, *, speed="25000", mtu="9000", kind="1", driver="mlx5_core"):
    folder = f"class/net/{name}"
    write(root, {f"{folder}/{one}": text for one, text in
                 {"speed": speed, "mtu": mtu, "type": kind}.items()})  # fmt: skip
    if driver:
        (root / folder / "device").mkdir()
        (root / folder / "device/driver").symlink_to(f"../../drivers/{driver}")


@pytest.fixture
def sysfs(tmp_path):
    make_interface(tmp_path, "ens1")
    make_interface(tmp_path, "lo", kind="772", driver=None)
    make_interface(tmp_path, "docker0", driver=None)
    make_interface(tmp_path, "veth1a2b3c", driver=None)
    device = "class/infiniband/mlx5_0"
    write(tmp_path, {
        f"{device}/fw_ver": "28.39.1002",
        f"{device}/ports/1/link_layer": "InfiniBand",
        f"{device}/ports/1/rate": "400 Gb/sec (4X NDR)",
        f"{device}/ports/1/state": "4: ACTIVE",
        "module/nvidia_peermem/version": "550.54.15",
        "module/gdrdrv/refcnt": "1",
    })  # fmt: skip
    return tmp_path


def test_devices_are_recorded_and_what_has_a_random_name_is_not(sysfs):
    assert read_fabric(sysfs) == {
        "nics": {"ens1": {"speed_mbps": 25000, "mtu": 9000, "driver": "mlx5_core"}},
        "rdma": {"mlx5_0": {
            "firmware": "28.39.1002", "port_1": "InfiniBand, 400 Gb/sec (4X NDR), 4: ACTIVE",
        }},
        "modules": {"nvidia_peermem": "550.54.15", "gdrdrv": "loaded"},
    }  # fmt: skip
    kinds = {one.name: one.kind for one in list_interfaces(sysfs)}
    assert kinds == {
        "docker0": "bridge", "ens1": "device", "lo": "loopback", "veth1a2b3c": "virtual",
    }  # fmt: skip


@pytest.mark.parametrize("speed", ["-1", "0", "", "9" * 40, "fast"])
def test_a_speed_that_is_not_known_is_left_out(tmp_path, speed):
    make_interface(tmp_path, "eth0", speed=speed)
    assert "speed_mbps" not in read_fabric(tmp_path)["nics"]["eth0"]


def test_without_such_folders_there_is_nothing(tmp_path):
    assert read_fabric(tmp_path) == {"nics": {}, "rdma": {}, "modules": {}}


def record(sysfs):
    return {"fabric": read_fabric(sysfs), "links": {}, "versions": {"mvc": "1"}}


def test_changes_are_one_line_each(sysfs):
    old = record(sysfs)
    write(
        sysfs, {"class/net/ens1/mtu": "1500", "class/infiniband/mlx5_0/ports/1/rate": "100 Gb/sec"}
    )
    (sysfs / "module/nvidia_peermem/version").unlink()
    assert compare_environments(old, record(sysfs)) == [
        ("fabric.nics.ens1.mtu", 9000, 1500),
        ("fabric.rdma.mlx5_0.port_1", "InfiniBand, 400 Gb/sec (4X NDR), 4: ACTIVE",
         "InfiniBand, 100 Gb/sec, 4: ACTIVE"),
        ("fabric.modules.nvidia_peermem", "550.54.15", "loaded"),
    ]  # fmt: skip


def test_what_varies_by_itself_is_silent(sysfs):
    old = record(sysfs)
    make_interface(sysfs, "veth9z8y7x", driver=None)
    write(sysfs, {"class/net/ens1/speed": "-1"})
    new = record(sysfs) | {"links": {"GPU0": "GPU1 NV18"}}
    assert compare_environments(old, new) == compare_environments(new, old) == []
    del old["fabric"]  # of an older version
    assert compare_environments(old, new) == []


def test_links_of_gpus():
    assert parse_links(TOPOLOGY) == {"GPU0": "GPU1 NV18, NIC0 PXB", "GPU1": "GPU0 NV18, NIC0 SYS"}
    assert parse_links("no devices were found\n") == {}


@pytest.fixture
def smi(tmp_path, monkeypatch):
    read_links.cache_clear()
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    def install(script):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    yield install
    read_links.cache_clear()


def test_the_tool_is_asked_once(smi, tmp_path):
    (tmp_path / "matrix").write_text(TOPOLOGY)
    smi(f'test "$*" = "topo -m" && echo >>{tmp_path}/calls && cat {tmp_path}/matrix')
    assert read_links() == read_links() == parse_links(TOPOLOGY)
    assert Path(tmp_path / "calls").read_text() == "\n"


@pytest.mark.parametrize("script", ["exec sleep 60", "exit 9", "echo garbage"])
def test_a_tool_that_fails_or_hangs_is_no_trouble(smi, monkeypatch, script):
    monkeypatch.setattr(environment, "_SMI_TIMEOUT_S", 0.05 if "sleep" in script else 10.0)
    smi(script)
    assert read_links() == {}


def test_a_run_without_cuda_does_not_ask_it(smi, tmp_path):
    smi(f"touch {tmp_path}/called")
    read_environment()
    assert not (tmp_path / "called").exists()


def test_settings_in_the_files_of_nccl_count(monkeypatch, tmp_path):
    (tmp_path / "nccl.conf").write_text(
        "# ours\nNCCL_ALGO = Tree\nNCCL_DEBUG=INFO\nNCCL_SECRET_KEY=hidden\nHOME=x\nbroken\n"
    )
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "nccl.conf"))
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("NCCL_COMM_ID", "10.0.0.1:5000")
    monkeypatch.setenv("UCX_TLS", "rc")
    monkeypatch.setenv("FI_PROVIDER", "efa")
    found = read_environment()["variables"]
    assert (found["NCCL_ALGO"], found["NCCL_DEBUG"]) == ("Tree", "WARN")
    assert (found["UCX_TLS"], found["FI_PROVIDER"]) == ("rc", "efa")
    assert not {"NCCL_SECRET_KEY", "NCCL_COMM_ID", "HOME"} & set(found)
