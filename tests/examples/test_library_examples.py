"""The examples of training libraries run to their end, where they prove what they say."""

import pytest

from support.commands import ROOT, run_python


def run(name, folder, *options):
    words = (ROOT / "examples" / name, "--folder", folder, *options)
    return run_python(*words, HF_HUB_OFFLINE="1").stdout


@pytest.mark.slow
@pytest.mark.torch
def test_lightning(tmp_path):
    pytest.importorskip("lightning")
    out = run("lightning_fit.py", tmp_path / "run", "--steps", "45")
    assert "bit-exact: " in out
    assert "step 25\n" in out
    assert "step 40\n" in out


@pytest.mark.slow
@pytest.mark.torch
def test_trainer(tmp_path):
    pytest.importorskip("transformers")
    out = run("hf_trainer.py", tmp_path / "run", "--steps", "36")
    assert "bit-exact: " in out
    assert "rolled back from step 21 to step 12" in out
    assert "diverged/main/21     steps [0, 6, 12, 18, 21]" in out


@pytest.mark.slow
@pytest.mark.torch
def test_models_from_revisions(tmp_path):
    pytest.importorskip("transformers")
    out = run("from_revision.py", tmp_path / "run")
    assert "both versions loaded bit-exact, beside ['.mvc']" in out
    assert "exported: config.json, model.safetensors, state.json" in out


@pytest.mark.torch
@pytest.mark.slow
def test_a_live_model_takes_what_changed(tmp_path):
    out = run("serve_live.py", tmp_path / "run")
    assert "version 1: 4 tensors added, 0 removed: loaded\n" in out
    assert "version 2: copied 1.weight\n" in out
    assert "version 5: 1 tensors added, 0 removed: loaded\n" in out
    assert "version 6: 0 tensors added, 1 removed: loaded\n" in out
    assert "bit-exact, also after going back" in out
