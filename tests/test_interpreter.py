"""Modules of ours run where the user's own of the same names cannot keep Python from starting."""

import subprocess
import sys

import pytest

from mvc.interpreter import module_command


@pytest.mark.parametrize("name", ["encodings", "types", "mvc"])
def test_a_module_of_the_users_beside_it(tmp_path, monkeypatch, name):
    (tmp_path / f"{name}.py").write_text("raise RuntimeError('not this one')")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    done = subprocess.run(
        module_command("mvc", "--version"), cwd=tmp_path, capture_output=True, check=True, text=True
    )
    assert done.stdout.startswith("mvc ")


def test_what_is_on_the_path_is_found_and_gets_its_arguments(tmp_path, monkeypatch):
    (tmp_path / "said.py").write_text(
        "import sys, encodings; print(sys.argv[1:], encodings.__name__)"
    )
    (tmp_path / "encodings.py").write_text("raise RuntimeError('not this one')")
    monkeypatch.syspath_prepend(tmp_path)
    command = module_command("said", "a b", "", "-x")
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert done.stdout == "['a b', '', '-x'] encodings\n"
