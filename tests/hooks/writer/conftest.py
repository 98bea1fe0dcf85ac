import pytest


@pytest.fixture(autouse=True)
def as_for_users(real_writers):
    """Writers here start as those of users do."""
