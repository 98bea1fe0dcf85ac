"""An extension of DCP that turns every byte of a stream."""

from __future__ import annotations

import io

from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension


class Turned(io.RawIOBase):
    def __init__(self, inner):
        self.inner = inner

    def writable(self):
        return True

    def write(self, data):
        return self.inner.write(bytes(255 - byte for byte in bytes(data)))

    def read(self, size=-1):
        return bytes(255 - byte for byte in self.inner.read(size))

    def close(self):
        super().close()
        self.inner.close()


class Turning(StreamTransformExtension):
    @staticmethod
    def registry_name():
        return "stream.turning"

    @staticmethod
    def from_descriptor(version):
        assert version == "1"
        return Turning()

    def get_descriptor(self):
        return "stream.turning/1"

    def transform_to(self, output):
        return Turned(output)

    def transform_from(self, stream):
        return Turned(stream)


def make_registry():
    registry = ExtensionRegistry()
    registry.register(Turning)
    return registry
