"""The files of Lightning's own checkpoints, beside a run that may go back.

No restore brings a file back. So what Lightning removes is only removed once a healthy commit no
longer names it; until then a run that returns to an earlier commit finds the best models of that
time. What is gone all the same is forgotten, and the log says so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mvc_hooks.adapters.session import Session

log = logging.getLogger("mvc_hooks")


class CheckpointFiles:
    """What Lightning named and removed.

    Attributes:
        held: file → step at which Lightning removed it; it is still there.
    """

    def __init__(self, trainer: Any, session: Session) -> None:
        self._trainer, self._session = trainer, session
        self.held: dict[str, int] = {}
        self._named: set[str] = set()
        strategy = trainer.strategy
        self._delete = type(strategy).remove_checkpoint.__get__(strategy)

    def note_named(self) -> None:
        """Note what is named before a restore; what is not named after it stays, and the log says so."""
        self._named = self._list_named()

    def remove(self, path: Any) -> None:
        """Remove a checkpoint once the newest healthy commit does not name it."""
        self.held[str(path)] = self._trainer.global_step
        self.release()

    def release(self, *, is_over: bool = False) -> None:
        """Remove what no commit needs that the run may return to; all at the end."""
        checkpointer = self._session.checkpointer
        assert checkpointer is not None
        healthy = checkpointer.step_count - checkpointer._settings.healthy_after  # noqa: SLF001  the same package
        steps = [one.step for one in checkpointer.commits if one.commit and one.step <= healthy]
        newest = max(steps, default=-1)
        for path, step in list(self.held.items()):
            if is_over or step <= newest:
                del self.held[path]
                if path not in self._list_named():
                    self._delete(path)

    def restore(self, held: dict[str, int]) -> None:
        """Forget files that are not there, and remove those that only abandoned steps had."""
        before, self.held = self.held, dict(held)
        named = self._list_named()
        for path in before.keys() - held.keys() - named:
            self._delete(path)
        left = sorted(self._named - named)
        if left:
            log.warning("checkpoints of the abandoned steps stay: %s", ", ".join(left))
        for one in self._list_savers():
            gone = [path for path in _list_files(one) if not one.file_exists(path, self._trainer)]
            if gone:
                _forget(one, gone)
                log.warning("%s: not there any more: %s", type(one).__name__, ", ".join(gone))

    def _list_savers(self) -> list[Any]:
        return [one for one in self._trainer.callbacks if hasattr(one, "best_k_models")]

    def _list_named(self) -> set[str]:
        return {path for one in self._list_savers() for path in _list_files(one)}


def _list_files(saver: Any) -> list[str]:
    """Return the checkpoints that a ModelCheckpoint names."""
    last = {saver.best_model_path, saver.last_model_path}
    return sorted(path for path in {*saver.best_k_models, *last} if path)


def _forget(saver: Any, gone: list[str]) -> None:
    scores = saver.best_k_models
    for path in set(gone) & scores.keys():
        del scores[path]
        saver.kth_best_model_path = ""  # there is one again with the k-th of them
    if saver.last_model_path in gone:
        saver.last_model_path = ""
    best = min if saver.mode == "min" else max
    if saver.best_model_path in gone:
        saver.best_model_path = best(scores, key=scores.get) if scores else ""
        saver.best_model_score = scores.get(saver.best_model_path)
