"""Fits in processes that have the libraries imported, and may be killed."""

import pytest


@pytest.fixture(scope="session")
def fits(quick_writers):
    from support.zygote import Zygote

    with Zygote("support.loops") as zygote:
        yield zygote
