"""A run that is committed, thrown away and brought back, and one that never stopped."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mvc import Repo
from mvc.training import compare_image, layout_state
from mvc_hooks.parts.make import make_parts
from mvc_hooks.parts.restoring import capture_parts, from_commit, restore_parts
from mvc_hooks.run.live import LiveRun
from support.training_runs import seed_all


def freeze(state):
    """Return a state as the bytes of its image, which hold everything of it."""
    layout = layout_state(state)
    data = memoryview(bytearray(layout.size_bytes))
    for part in layout.parts:
        part.copy_into(data)
    return {one.path: data[one.offset : one.offset + one.size_bytes] for one in layout.files}


def assert_same(state, frozen):
    assert compare_image(state, frozen) == ()


class Lab:
    """Commits and brings back; ``build()`` → a run: ``parts``, ``train``, maybe its parts ``live``."""

    def __init__(self, folder):
        self.repo = Repo.init(folder)

    def commit(self, parts):
        self.repo.commit_state(capture_parts(parts), message="x")
        return from_commit(self.repo, self.repo.resolve("HEAD"))

    def store(self, **objects):
        return self.commit(make_parts(objects))

    def make(self, build, seed):
        seed_all(seed)
        run = build()
        run.live = getattr(run, "live", None) or make_parts(run.parts)
        return run

    def check_resume(self, build, *, before=3, after=4, leave=(), **options):
        """Train, commit, train on; bring a fresh run and the old one back, and train those on."""
        first = self.make(build, 0)
        for _ in range(before):
            first.train()
        source = self.commit(first.live)
        for _ in range(after):
            first.train()

        def capture(run):
            return {name: one for name, one in capture_parts(run.live).items() if name not in leave}

        frozen = freeze(capture(first))
        second = self.make(build, 1)
        second.train()
        third = self.make(build, 2)
        for run in (second, third, first):
            restore_parts(source, run.live, **options)
            for _ in range(after):
                run.train()
            assert_same(capture(run), frozen)
        return SimpleNamespace(first=first, source=source)

    def check_scenario(self, build, **options):
        """Check a resume of what ``support.scenarios`` build."""

        def build_with_place():
            run, place = build(), {"index": 0}
            parts = {**run.parts, "place": place}

            def train():
                batch = run.data(place["index"])
                place["index"] += 1
                run.step(batch, lambda: None)

            return SimpleNamespace(parts=parts, train=train, live=LiveRun(parts).parts)

        # Which gradients are state is learnt in each process.
        return self.check_resume(build_with_place, leave=["gradients"], **options)


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)
