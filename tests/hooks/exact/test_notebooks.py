"""Cells that run again, objects that are deleted, exceptions, and what is printed at the end of it all."""

from __future__ import annotations

import textwrap

import pytest

from mvc import Repo

pytestmark = pytest.mark.torch

_CELLS = {
    "make": """
        import gc, os, torch
        from mvc import Repo
        from mvc_hooks import Checkpointer, stop
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        """,
    "open": """
        ckpt = Checkpointer(path, model=model, optimizer=optimizer, every=10, ladder=stop(0))
        begun = ckpt.step_count
        """,
    "train": """
        def train(ckpt, count):
            for _ in range(count):
                optimizer.zero_grad()
                loss = model(torch.ones(2, 3)).square().mean()
                loss.backward()
                optimizer.step()
                ckpt.step(loss=loss)
        train(ckpt, 3)
        """,
    "fail in a step": """
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        raise ZeroDivisionError
        """,
    "fail between steps": "raise ZeroDivisionError",
    "diverge": "ckpt.step(loss=float('nan'))",
    "delete": "del ckpt; gc.collect()",
    "in a function": """
        def run():
            ckpt = Checkpointer(path, model=model, optimizer=optimizer, every=10)
            train(ckpt, 2)
        run()
        """,
    "lose the repository": "os.rename(path, path + '-elsewhere')",
    "delete the folder": "import shutil; ckpt.wait(); shutil.rmtree(path)",
    "misspell": "Checkpointer(path, model=model, optimizer=optimizer, evry=10)",
    "say": "print(begun, ckpt.is_closed)",
}


@pytest.fixture
def run(trainings, tmp_path):
    """Return a function that runs cells in a process, and returns the lines of its two outputs."""

    def run_cells(*names):
        cells = [textwrap.dedent(_CELLS[name]) for name in ("make", *names)]
        status, said, errors = trainings.run("cells", tmp_path / "run", cells=cells).result
        assert status == 0, errors
        assert "Traceback" not in errors
        assert "Exception ignored" not in errors
        usual = ("commits hold ", "resumed at step ")
        return said.splitlines(), [e for e in errors.splitlines() if not e.startswith(usual)]

    return run_cells


def _log(path):
    return [(one.info.subject, one.annotations.step) for one in Repo.open(path).log("main")]


def test_a_cell_that_runs_again_takes_over(run, tmp_path):
    said, errors = run("open", "train", "open", "say", "train", "misspell", "train")
    assert said == ["3 False", "UsageError"]
    assert errors == ["branch 'main' is taken over from the checkpointer at step 3"]
    assert _log(tmp_path / "run") == [
        ("step 9, at UsageError", 9),
        ("step 3, the last one", 3),
        ("step 0", 0),
    ]


def test_a_deleted_one_leaves_its_branch_to_the_next(run, tmp_path):
    said, errors = run(
        "open", "train", "delete", "open", "say", "delete", "in a function", "open",
        "say",
    )  # fmt: skip
    assert said == ["3 False", "5 False"]
    assert errors == []
    assert [step for _, step in _log(tmp_path / "run")] == [5, 3, 0]


def test_an_exception_in_a_cell_is_no_obstacle(run, tmp_path):
    """A state that diverged is not committed at the end, nor is one between two steps."""
    endings = ("diverge", "fail between steps", "fail in a step")
    cells = [cell for ending in endings for cell in ("train", ending, "open", "say")]
    said, errors = run("open", *cells)
    assert said == ["DivergedError", "0 False", *["ZeroDivisionError", "3 False"] * 2]
    assert sum("is taken over from the checkpointer at step" in line for line in errors) == 3
    assert len(errors) == 6, "and the alarm, its answer, and the steps that are lost"


def test_a_folder_that_was_deleted_begins_anew(run, tmp_path):
    said, errors = run("open", "train", "delete the folder", "open", "say", "train")
    assert said == ["0 False"]
    assert errors[0] == "branch 'main' is taken over from the checkpointer at step 3"
    assert [step for _, step in _log(tmp_path / "run")] == [3, 0]


def test_an_end_that_fails_is_one_line(run):
    said, errors = run("open", "train", "lose the repository")
    assert said == []
    assert len(errors) == 1
    assert errors[0].startswith("commit of step ")
    assert " failed: " in errors[0]


def test_a_deleted_branch_is_warned_of(keep, tmp_path, caplog):
    keep(every=1).steps(2).ckpt.close()
    keep(branch="other", every=1).steps(1).ckpt.close()
    caplog.clear()
    repo = Repo.open(tmp_path / "run")
    repo.checkout("other", force=True)
    repo.branches.delete("main", force=True)
    assert keep(branch="main").ckpt.step_count == 0
    (record,) = caplog.records
    assert "branch 'main' was deleted: a run has committed step 2 to it" in record.getMessage()
