"""The demo tells its whole story, briefly, its proof holds, and its run goes back and can be replayed."""

import pytest

from mvc import Repo
from support.commands import ROOT, run_python


@pytest.mark.nightly  # `make demo` itself is run before make test
@pytest.mark.torch
def test_demo(tmp_path):
    folder = tmp_path / "demo"
    done = run_python(ROOT / "examples/demo.py", "--folder", folder, "--steps", "12")
    digests = [
        line.split()[0]
        for line in done.stdout.splitlines()
        if line.endswith("  model.safetensors") and len(line.split()[0]) == 64
    ]
    assert len(digests) == 4
    base, tuned, back, cloned = digests
    assert back == base != tuned == cloned
    shared = [Repo.open(place) for place in (folder, folder / "copy")]
    assert len({repo.resolve("main") for repo in shared}) == 1
    assert all(repo.remotes.upstream().commit == repo.head.commit for repo in shared)
    assert f"bit-exact: {base}" in done.stdout
    assert "diverged at step 231, rolled back to step 200" in done.stdout
    assert "exact for 50 steps" in done.stdout
    repo = Repo.open(folder / "run")
    assert repo.show("main").annotations.step == 400
    assert repo.show("main@250").annotations.meta["skipped_batches"] == "201-240"
    (left,) = [one.name for one in repo.branches.list() if one.name != "main"]
    assert left == "diverged/main/231"
    assert repo.merge_base(left, "main") == repo.resolve("main@200")
    assert "spike" in repo.show(left).info.subject
