"""A process whose children run the verbs of ``support.verbs``."""

from __future__ import annotations

import pytest

from support.zygote import Zygote


@pytest.fixture(scope="session")
def zygote():
    with Zygote() as running:
        yield running
