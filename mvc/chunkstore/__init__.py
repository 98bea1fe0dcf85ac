"""Chunks in packs on a storage.

Here a FormatError means stored bytes that are damaged, a CorruptionError that no sound copy is
left, a StorageError that the machine failed, an UnsupportedError an encoding of a newer mvc.
"""
