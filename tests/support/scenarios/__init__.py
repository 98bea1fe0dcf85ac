"""The trainings of ``support.training_runs``: one of each kind of object that people train with."""

from support.scenarios import (  # noqa: F401  each registers its scenarios
    averages,
    data,
    language_model,
    models,
    optimizers,
    schedulers,
    stepping,
)
from support.scenarios.basics import SCENARIOS

__all__ = ["SCENARIOS"]
