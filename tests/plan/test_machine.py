"""What a machine offers: files, names, and the limits that a container sets."""

import os

import pytest

from elinvar.errors import InvalidInput
from elinvar.plan.machine import (
    KNOWN,
    Machine,
    read_machine,
    this_machine,
    usable_cores,
    usable_devices,
    usable_memory,
)

GIB = 2**30


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_this_machine_is_within_the_affinity_of_the_process():
    machine = this_machine()
    assert machine == read_machine("this")
    assert 1 <= machine.cores <= len(os.sched_getaffinity(0))
    assert machine.memory_bytes > 2**28


@pytest.mark.parametrize("quota", ["150000 100000", "200000 100000"])
def test_cores_follow_a_version_2_quota_rounded_up(tmp_path, monkeypatch, quota):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    root = write(tmp_path, {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": quota})
    (root / "sys/fs/cgroup/a/b").mkdir()
    write(root, {"sys/fs/cgroup/a/b/cpu.max": "max 100000"})
    assert usable_cores(root) == 2


def test_cores_without_a_quota_are_the_affinity(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5})
    assert usable_cores(tmp_path) == 3
    root = write(
        tmp_path, {"proc/self/cgroup": "2:cpu,cpuacct:/x\n", "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "-1"}
    )
    write(root, {"sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000"})
    assert usable_cores(root) == 3
    write(root, {"sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "100001"})
    assert usable_cores(root) == 2


def test_memory_is_the_smallest_limit_from_the_own_group_to_the_top(tmp_path):
    root = write(tmp_path, {"proc/meminfo": f"MemTotal:  {16 * 2**20} kB\nMemFree: 1 kB\n"})
    assert usable_memory(root) == 16 * GIB
    write(root, {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": str(3 * GIB)})
    write(root, {"sys/fs/cgroup/a/b/memory.max": "max"})
    assert usable_memory(root) == 3 * GIB
    write(root, {"proc/self/cgroup": "4:memory:/q\n0::/\n"})
    write(root, {"sys/fs/cgroup/memory/q/memory.limit_in_bytes": "9223372036854771712"})
    assert usable_memory(root) == 16 * GIB
    write(root, {"sys/fs/cgroup/memory/q/memory.limit_in_bytes": str(GIB)})
    assert usable_memory(root) == GIB


def test_memory_in_a_container_whose_group_lies_outside_of_the_mount(tmp_path):
    root = write(tmp_path, {"proc/meminfo": "MemTotal: 1000 kB\n", "proc/self/cgroup": "0::/outside/of/it\n"})
    write(root, {"sys/fs/cgroup/memory.max": "5000"})
    assert usable_memory(root) == 5000


def test_devices_need_a_driver_a_build_and_visibility(tmp_path, monkeypatch):
    import elinvar.plan.machine as module

    for address in ("0000:01:00.0", "0000:02:00.0"):
        write(tmp_path, {f"proc/driver/nvidia/gpus/{address}/information": ""})
    monkeypatch.setattr(module, "_torch_has_cuda", lambda: True)
    assert usable_devices(tmp_path, {}) == 2
    assert usable_devices(tmp_path, {"CUDA_VISIBLE_DEVICES": "1"}) == 1
    assert usable_devices(tmp_path, {"CUDA_VISIBLE_DEVICES": ""}) == 0
    assert usable_devices(tmp_path, {"CUDA_VISIBLE_DEVICES": "-1"}) == 0
    assert usable_devices(tmp_path / "proc", {}) == 0
    # In containers the driver may show its device files only.
    write(tmp_path / "box", {f"dev/{name}": "" for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")})
    assert usable_devices(tmp_path / "box", {}) == 2
    write(tmp_path / "linux-in-windows", {"dev/dxg": ""})
    assert usable_devices(tmp_path / "linux-in-windows", {}) == 1
    monkeypatch.setattr(module, "_torch_has_cuda", lambda: False)
    assert usable_devices(tmp_path, {}) == 0


def test_a_file_and_a_name(tmp_path):
    (tmp_path / "big.toml").write_text(
        'name = "big"\ncores = 64\nmemory_bytes = 1_000_000\nflops_per_s = 1e11\n'
    )
    expected = Machine(name="big", cores=64, memory_bytes=1_000_000, flops_per_s=1e11)
    assert read_machine("big.toml", tmp_path) == expected
    table = (tmp_path / "big.toml").read_text()
    (tmp_path / "run.toml").write_text("[experiment]\nseed = 1\n[machine]\n" + table)
    assert read_machine("run.toml", tmp_path) == expected
    assert read_machine("cpu-4") is KNOWN["cpu-4"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('name = "x"\ncores = 2\n', "memory_bytes"),
        ('name = "x"\ncores = 0\nmemory_bytes = 1\n', "cores"),
        ('name = "x"\ncores = 2.5\nmemory_bytes = 1\n', "cores"),
        ('name = "x"\ncores = 2\nmemory_bytes = 1\nmemroy = 3\n', "memroy"),
        ("name = ", "machine.toml"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path, text, says):
    path = tmp_path / "machine.toml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=says) as caught:
        read_machine(str(path))
    assert "machine.toml" in str(caught.value)


def test_unknown_names_and_absent_files(tmp_path):
    with pytest.raises(InvalidInput, match="cpu-8") as caught:
        read_machine("cpu-8")
    assert "a similar name exists: cpu-" in str(caught.value)
    with pytest.raises(InvalidInput, match="no such machine file"):
        read_machine("absent.toml", tmp_path)
    with pytest.raises(InvalidInput, match="cannot read"):
        (tmp_path / "folder.toml").mkdir()
        read_machine("folder.toml", tmp_path)
