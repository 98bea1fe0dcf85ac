"""What is worth a word, and where it is heard."""

import subprocess
import sys

import pytest

from mvc import Repo
from mvc.training import Agreement, Dispute, RunStore
from mvc_hooks.log import RunLog
from mvc_hooks.reports import CommitReport

pytestmark = pytest.mark.torch


def test_waiting_is_told_when_it_is_much_and_when_it_doubles(caplog):
    log, told = RunLog(), []
    for _ in range(80):
        log.wait(0.5)
        told.append(len(caplog.records))
    assert told.index(1) == 19, "10 s"
    assert told.index(2) == 39, "20 s"
    assert told[-1] == 3
    assert "commits have waited 10 s for it, 100 % of the time" in caplog.messages[0]


_SCRIPT = """
import sys, torch
from mvc_hooks import Checkpointer
for total in sys.argv[2:]:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    parts = {"values": {"seen": 0}}
    with Checkpointer(sys.argv[1], model=model, optimizer=optimizer, parts=parts, every=1) as ckpt:
        for step in ckpt.steps(int(total)):
            optimizer.zero_grad()
            model(torch.ones(2)).sum().backward()
            optimizer.step()
            ckpt.step()
    print("end", file=sys.stderr)
"""


@pytest.mark.slow
def test_a_terminal_where_nobody_set_up_logging(tmp_path):
    """It is told what commits hold and where a run goes on, and no more, however slow the writer is."""
    holds = "commits hold model (2 tensors), optimizer (2 tensors), values, "
    lines = [
        holds,
        "end",
        "resumed at step 3 from the local store ",
        holds,
        "end",
        "resumed at step 5 ",
        "end",
    ]
    words = [sys.executable, "-c", _SCRIPT, str(tmp_path / "run"), "3", "5", "5"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stderr.splitlines()
    assert len(said) == len(lines), said
    assert all(one.startswith(start) for one, start in zip(said, lines, strict=True)), said


def test_ranks_that_differ_are_one_warning_and_one_alarm(tmp_path, caplog):
    caplog.set_level("INFO")
    repo = Repo.init(tmp_path)
    dispute = Dispute("model.safetensors", "w", 3, (0,), (1,))
    log = RunLog(RunStore(repo).open_feed("main"))
    for step, agreement in enumerate((None, Agreement(4, 9), Agreement(3, 9, 1, (dispute,)))):
        log.commit(
            CommitReport(step, "ab" * 20, "main", "x", 0.1, 0.2, 3, 4, 1, agreement=agreement)
        )
    log.close()
    warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    reason = (
        "w in model.safetensors differs in chunk 3 between rank 0 and rank 1; "
        "the commit of step 2 cannot become healthy"
    )
    assert warnings == [f"replicas: {reason}"]
    view = repo.runs.read("main")
    assert [(one.step, one.cause, one.reason) for one in view.alarms] == [(2, "replicas", reason)]
    assert [one.step for one in view.commits] == [2, 1, 0]


def test_of_two_reasons_to_stop_the_first_counts(tmp_path):
    repo = Repo.init(tmp_path)
    log = RunLog(RunStore(repo).open_feed("main"))
    log.stop(3, "SIGTERM")
    log.stop(4, "ended")
    log.close()
    assert repo.runs.read("main").stopped == "SIGTERM"
