"""The libraries under two and four processes: resumed and rolled back, to the bit."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from mvc.training import RunStore

torch = pytest.importorskip("torch")

from mvc import Repo, UnsupportedError  # noqa: E402
from support.bounds import rest_nightly  # noqa: E402
from support.programs import run_ranks  # noqa: E402

pytestmark = pytest.mark.torch

_PROGRAM = Path(__file__).with_name("library_ranks.py")
_TOTAL = 8
IMPORTS = {
    "accelerate": ["accelerate"],
    "fabric": ["lightning.fabric"],
    "lightning": ["lightning"],
    "transformers": ["transformers.trainer"],
}


def read_trace(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "library",
    [
        pytest.param("accelerate", marks=pytest.mark.nightly),
        pytest.param("accelerate_fsdp2", marks=pytest.mark.nightly),
        pytest.param("fabric", marks=pytest.mark.nightly),
        pytest.param("lightning", marks=pytest.mark.nightly),
        pytest.param("lightning_fsdp2", marks=pytest.mark.slow),
        pytest.param("transformers", marks=pytest.mark.nightly),
        pytest.param("transformers_fsdp2", marks=pytest.mark.slow),
    ],
)
def test_several_processes(tmp_path, library, size):
    pytest.importorskip(library.partition("_")[0].replace("fabric", "lightning"))
    done = run_ranks(_PROGRAM, size, library, tmp_path, imports=IMPORTS[library.partition("_")[0]])
    assert done.returncode == 0, done.stderr
    assert "may be summed in another order" not in done.stderr
    plain = Repo(tmp_path / "plain").load_state()
    for name in ("kept", "back"):
        repo = Repo(tmp_path / name)
        assert next(iter(repo.log())).annotations.step == _TOTAL
        state = repo.load_state()
        assert RunStore(repo).outline_state()["ranks"]["size"] == size
        for part in ("model", "optimizer"):
            assert_same(state[part], plain[part])
        for rank in range(size):
            wanted = read_trace(tmp_path / f"plain.{rank}")
            assert len({loss for _, loss in wanted}) == _TOTAL
            assert read_trace(tmp_path / f"{name}.{rank}")[-2:] == wanted[-2:]


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED", "MEGATRON_LM"])
def test_accelerators_that_are_refused(kind):
    from mvc_hooks.adapters.session import check_accelerator

    distributed_type = SimpleNamespace(value=kind)
    one = SimpleNamespace(distributed_type=distributed_type, num_processes=1, is_fsdp2=False)
    check_accelerator(one)
    one.num_processes = 2
    with pytest.raises(UnsupportedError, match=rf"^{kind} is not supported with several processes"):
        check_accelerator(one)


def test_a_fit_that_forks_is_refused():
    lightning = pytest.importorskip("lightning")
    from mvc_hooks.adapters.lightning import check_processes

    def make(strategy, devices=2):
        return lightning.Trainer(
            accelerator="cpu", devices=devices, strategy=strategy, logger=False
        )

    check_processes(make("ddp"))
    check_processes(make("ddp_spawn", devices=1))
    with pytest.raises(UnsupportedError, match=r"^DDPStrategy is not supported"):
        check_processes(make("ddp_spawn"))


@pytest.mark.slow
@pytest.mark.parametrize("library", rest_nightly(["lightning", "transformers"]))
def test_a_computed_order_goes_on_with_other_numbers_of_ranks(tmp_path, library):
    """From 1 rank to 3 and 2, in the middle of an epoch: each sample of the order once."""
    pytest.importorskip(library)
    folder, total, sizes = tmp_path / "run", 0, (1, 3, 2)
    for size in sizes:
        total += 3
        words = library, folder, total
        done = run_ranks(_PROGRAM, size, *words, imports=IMPORTS[library])
        assert done.returncode == 0, done.stderr
    program = runpy.run_path(str(_PROGRAM))
    loader, wanted = program["make_ordered"](), []
    while len(wanted) < total:
        wanted += [batch["index"].tolist() for batch in loader]
    for step in range(total):
        parts = sorted((tmp_path / "run.trace").glob(f"{step}.*"))
        assert len(parts) == sizes[step // 3]
        assert [int(one) for part in parts for one in part.read_text().split()] == wanted[step]
    (seen,) = Repo(folder).data.seen("main", prove=True).loaders
    assert seen.is_proven
    assert seen.total.count == total * program["BATCH"]
