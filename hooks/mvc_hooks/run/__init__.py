"""The live run as one state, its log, and the signals it obeys."""
