"""mvc mv."""

from __future__ import annotations

import os


def test_mv(shell):
    assert shell.ok("mv", "config.json", "settings.json").out == ""
    assert shell.ok("status", "--porcelain").lines == ["R  config.json -> settings.json"]
    answer = shell.ok("mv", "-v", "settings.json", "config.json")
    assert answer.lines == ["settings.json -> config.json"]
    assert shell.ok("status", "--porcelain").lines == []


def test_mv_many_into_a_folder(shell):
    os.mkdir(shell.folder / "all")
    fields = shell.json("mv", "config.json", "model.safetensors", "all")
    assert fields["renamed"] == [
        {"old_path": "config.json", "path": "all/config.json"},
        {"old_path": "model.safetensors", "path": "all/model.safetensors"},
    ]


def test_mv_over_a_file_needs_force(shell):
    answer = shell("mv", "config.json", "model.safetensors")
    assert answer.code == 4
    shell.ok("mv", "-f", "config.json", "model.safetensors")
    assert (shell.folder / "model.safetensors").read_text().startswith("{")
