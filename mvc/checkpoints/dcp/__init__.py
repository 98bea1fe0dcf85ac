"""Folders of PyTorch's distributed checkpoints (DCP): ``.metadata`` and ``*.distcp``."""
