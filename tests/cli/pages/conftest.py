"""A report of two models that differ in every way a page shows."""

import numpy as np
import pytest

import mvc
from mvc.cli.pages.report import write_page
from mvc.cli.render.comparison_rows import comparison_fields
from support.models import write_model


@pytest.fixture(scope="session")
def fields(tmp_path_factory):
    """The JSON of a comparison: frozen, tuned, broken, grown, added and removed tensors."""
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(1)
    old = {"layers.1.q": rng.standard_normal((32, 32)).astype(np.float32)}
    tuned = old["layers.1.q"] * np.float32(1.01)
    broken = rng.standard_normal((32, 32)).astype(np.float32)
    broken[3] = np.nan
    names = {name.replace(".", "__"): value for name, value in old.items()}
    write_model(folder / "old.safetensors", layers=12, gone=np.ones(4, np.float32), **names)
    write_model(
        folder / "new.safetensors",
        layers=12,
        layers__1__q=tuned,
        layers__10__mlp=broken,
        layers__2__v=np.zeros((32, 32), np.float32),
        embed=np.zeros((80, 32), np.float32),
        head=np.ones((4, 32), np.float16),
        norm=np.ones((2, 16), np.float32),
    )
    diff = mvc.compare(folder / "old.safetensors", folder / "new.safetensors")
    return comparison_fields(diff)


@pytest.fixture(scope="session")
def page(tmp_path_factory, fields):
    """The page of that comparison."""
    path = tmp_path_factory.mktemp("pages") / "diff.html"
    write_page("diff", "mvc diff", fields, str(path))
    return path


@pytest.fixture
def opened(browser, page):
    browser.open(page)
    yield browser
    assert browser.errors == []
    assert browser.requests == [page.as_uri()]
