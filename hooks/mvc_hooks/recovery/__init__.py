"""The answer to an alarm: another learning rate, a rollback, or the end of the run."""
