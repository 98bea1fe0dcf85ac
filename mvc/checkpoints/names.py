"""What checkpoint files are called."""

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".npy", ".gguf")


def is_checkpoint_name(name: str) -> bool:
    """Return whether a file name ends like a checkpoint's."""
    return name.lower().endswith(SUFFIXES)
