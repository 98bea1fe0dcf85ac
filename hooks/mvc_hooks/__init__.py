"""The live training run ⇄ a repository; torch lives here.

from mvc import Repo
from mvc_hooks import capture, restore

repo.commit_state(capture(model=model, optimizer=optimizer), message="epoch 1", step=1000)
restore(repo.load_state("main@1000"), model=model, optimizer=optimizer)
"""

from __future__ import annotations

from mvc_hooks.capture import capture, restore

__all__ = ["capture", "restore"]
