"""The bytes that files of a format begin with, apart from the formats: most files are of none."""

GGUF = b"GGUF"
ZIP = b"PK\x03\x04"
NPY = b"\x93NUMPY"
