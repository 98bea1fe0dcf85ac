"""Every verb that makes something reachable holds the sweep lock from its first look to its last."""

import contextlib
import threading

import numpy as np
import pytest

from mvc import Repo
from mvc.errors import ConflictError
from support.models import write_model

VERBS = {
    "add": lambda repo: repo.add("new.safetensors"),
    "commit": lambda repo: repo.commit("m"),
    "commit paths": lambda repo: repo.commit("m", paths="new.safetensors"),
    "commit everything": lambda repo: repo.commit("m", everything=True),
    "commit_state": lambda repo: repo.commit_state({"w": np.zeros(9)}, message="m"),
    "commit_state elsewhere": lambda repo: repo.commit_state(
        {"w": np.zeros(9)}, message="m", branch="other"
    ),
    "branch": lambda repo: repo.branches.create("new", "side"),
    "branch -m": lambda repo: repo.branches.rename("side", "new"),
    "tag": lambda repo: repo.tags.create("light", "side"),
    "tag -a": lambda repo: repo.tags.create("heavy", "side", message="m"),
    "mv": lambda repo: repo.move("plain", "moved"),
    "restore": lambda repo: repo.restore("plain", source="side", staged=True),
    "unstage": lambda repo: repo.reset("side", paths="plain"),
    "reset": lambda repo: repo.reset("side"),
    "reset --hard": lambda repo: repo.reset("side", mode="hard"),
    "checkout": lambda repo: repo.checkout("side~0", force=True),
    "switch": lambda repo: repo.switch("side", force=True),
    "switch -c": lambda repo: repo.switch("new", create=True),
    "undo": lambda repo: repo.undo(force=True),
    "rollback": lambda repo: repo.runs.rollback(repo.plans["main"], force=True),
    "rollback elsewhere": lambda repo: repo.runs.rollback(repo.plans["side"]),
    "mark healthy": lambda repo: repo.runs.mark_healthy("side"),
}


@pytest.fixture
def ready(repo, root):
    (root / "plain").write_text("one")
    repo.commit("one", paths=".")
    repo.commit("one again", allow_empty=True)
    repo.switch("side", create=True)
    (root / "plain").write_text("two")
    repo.commit("two", paths=".")
    repo.switch("main")
    write_model(root / "new.safetensors")
    (root / "plain").write_text("three")
    repo.add("plain")
    (root / "plain").write_text("four")
    opened = Repo.open(root, identity=repo.identity)
    opened.plans = {
        name: opened.runs.plan_rollback(f"{name}~1", branch=name) for name in ("main", "side")
    }
    return opened


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_is_looked_at_or_changed_without_it(ready, monkeypatch, verb):
    history = ready._context.history
    looked = []

    def watch(name):
        real = getattr(history, name)

        def call(*args, **kwargs):
            looked.append((name, history._sweep_lock.is_held))
            return real(*args, **kwargs)

        monkeypatch.setattr(history, name, call)

    for name in ("read_index", "head", "resolve", "write_index", "write_blob", "write_commit",
                 "update_ref", "update_head", "lock", "create_tag"):  # fmt: skip
        watch(name)
    VERBS[verb](ready)
    # Before its first look a verb may only find out where it is: nothing is built upon that.
    assert {name for name, is_held in looked if not is_held} <= {"head"}
    assert "lock" in {name for name, _ in looked} or verb.startswith("tag")
    assert not history._sweep_lock.is_held


def test_a_verb_waits_for_a_sweep_and_then_sees_what_it_left(ready):
    history, done = ready._context.history, []
    writer = threading.Thread(target=lambda: done.append(ready.commit("m", paths=".")))
    with history.sweep_alone():
        writer.start()
        head = history.head().commit
    writer.join()
    assert done[0].parents == (head,)


def test_a_failed_verb_gives_it_back(ready):
    with contextlib.suppress(ConflictError):
        ready.branches.create("side")
    with ready._context.history.sweep_alone(wait=False):
        pass
