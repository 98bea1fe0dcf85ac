"""Checkpoints of Lightning's beside a fit that resumes and goes back."""

from mvc_hooks import rollback, stop
from support.fits import QUIET, fit_lightning

pytestmark = QUIET


def _make_saver(folder, **options):
    from lightning.pytorch.callbacks import ModelCheckpoint

    return ModelCheckpoint(folder, **options)


def _fit(tmp_path, saver, **options):
    settings = {"enable_checkpointing": True}
    return fit_lightning(tmp_path / "run", callbacks=[saver], settings=settings, **options)


def test_a_best_checkpoint_that_is_gone_is_forgotten(tmp_path, caplog):
    first, second = (_make_saver(tmp_path / "best", monitor="held_out") for _ in range(2))
    _fit(tmp_path, first, until=13)
    for path in (tmp_path / "best").iterdir():
        path.unlink()
    _fit(tmp_path, second, until=20)
    assert f"not there any more: {first.best_model_path}" in caplog.text
    assert [str(path) for path in (tmp_path / "best").iterdir()] == [second.best_model_path]
    assert second.best_k_models.keys() == {second.best_model_path}


def test_a_checkpoint_that_abandoned_steps_removed_is_still_there(tmp_path, caplog):
    """Each score is better than the one before, so each checkpoint replaces the last."""
    saver = _make_saver(tmp_path / "best", monitor="step_count", mode="max")
    found = []

    def look(net):
        net.register_forward_hook(lambda *_: found.append(_list(tmp_path)))

    ladder = [rollback(to="last", min_steps_back=2, skip_batches=0), stop(after=2)]
    run = _fit(tmp_path, saver, spike=(19,), every=6, ladder=ladder, adapt=look)
    assert len(run.checkpointer.rollbacks) == 1
    assert "checkpoints of the abandoned steps stay" in caplog.text
    assert any(len(names) > 2 for names in found), "removed ones wait"
    assert "epoch=0-step=11.ckpt" not in _list(tmp_path), "until the fit is over"
    assert saver.best_model_path.endswith("step=26.ckpt")


def _list(tmp_path):
    folder = tmp_path / "best"
    return [path.name for path in folder.iterdir()] if folder.exists() else []
