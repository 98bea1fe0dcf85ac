"""The repository against a plain model of it, under random sequences of verbs. (Taken; being written.)"""
