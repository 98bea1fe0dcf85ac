"""diff --stats and show --stats: sides, rows, orders, and two models that are in no history."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from support.cli import plain

RNG = np.random.default_rng(7)
NAMES = [
    f"model.layers.{layer}.{part}.weight"
    for layer in range(12)
    for part in ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj")
]


def _model(seed=0, *, moved=0.0, **others):
    """A model whose layers moved the more, the later they are; ``__`` in names stands for a dot."""
    rng, noise = np.random.default_rng(seed), np.random.default_rng(99)
    tensors = {}
    for place, name in enumerate(NAMES):
        values = rng.standard_normal((16, 16)).astype("f4")
        change = noise.standard_normal((16, 16)).astype("f4") if "q_proj" in name else 0
        tensors[name] = values + np.float32(moved * place) * change
    return {**tensors, **{name.replace("__", "."): value for name, value in others.items()}}


@pytest.fixture
def tuned(shell):
    """A commit that moved q_proj of all layers but the first, and grew the embedding."""
    embed = RNG.standard_normal((20, 8)).astype("f4")
    path = shell.folder / "model.safetensors"
    save_file(_model(embed__weight=embed[:16], gone=embed), path)
    shell.ok("commit", "-am", "base")
    save_file(_model(moved=0.001, embed__weight=embed, came=embed + 1), path)
    shell.ok("commit", "-am", "tuned")
    return shell


def _rows(answer):
    """Return the rows of a table as lists of words, without comments and the heading."""
    lines = [line for line in plain(answer.out).splitlines() if not line.startswith("#")]
    return [line.split() for line in lines[1:]]


def test_all_rows_in_a_pipe_have_the_same_columns(tuned):
    answer = tuned.ok("diff", "--stats", "HEAD~1", "HEAD")
    heading = next(line for line in answer.lines if not line.startswith("#"))
    assert heading.split() == [
        "tensor", "sigma", "rel_L2", "cosine", "changed", "max_diff", "ulp50", "ulp99", "ulp_max",
        "norm_old", "norm_new",
    ]  # fmt: skip
    rows = _rows(answer)
    assert {len(row) for row in rows if "q_proj" in row[0]} == {11}
    assert [row[0] for row in rows if "q_proj" in row[0]] == [
        f"model.layers.{layer}.self_attn.q_proj.weight" for layer in range(1, 12)
    ]
    named = {row[0]: row[1:] for row in rows}
    assert named["gone"] == ["-"] * 10 + ["removed", "F32[20,", "8]"]
    assert named["came"][10] == "added"
    assert " ".join(named["embed.weight"][10:]) == "F32[16, 8] -> F32[20, 8]"
    assert named["embed.weight"][3] == "0%"


def test_orders_and_choices(tuned):
    diff = ("diff", "--stats", "HEAD~1", "HEAD")
    for key, first in (("sigma", 11), ("l2", 11), ("cosine", 11), ("name", None)):
        rows = _rows(tuned.ok(*diff, "--sort", key))
        assert rows[0][0] == (NAMES[3 * first] if first else "came")
        if first:
            assert {row[0] for row in rows[-2:]} == {"came", "gone"}
    sigmas = [float(row[1]) for row in _rows(tuned.ok(*diff, "--above", "0.005"))]
    assert sigmas
    assert min(sigmas) > 0.005
    kinds = _rows(tuned.ok(*diff, "--by", "kind"))
    assert [row[:2] for row in kinds] == [
        ["embedding", "1/1"], ["linear", "2/2"], ["q_proj", "11/12"],
    ]  # fmt: skip
    modules = _rows(tuned.ok("diff", "HEAD~1", "HEAD", "--by", "module"))
    assert modules[0][:2] == ["model", "11/36"]
    assert modules[2][:2] == ["model.layers.1", "1/3"]
    only = _rows(tuned.ok(*diff, "--tensors", "*.3.*"))
    assert [row[0] for row in only] == [NAMES[9]]
    assert len(_rows(tuned.ok(*diff, "--all"))) == 39


def test_a_wrong_option_is_an_error(tuned):
    for words, fact in [
        (["--sort", "size"], "--sort 'size' is not sigma, l2, cosine"),
        (["--by", "layer"], "--by 'layer' is not tensor, module or kind"),
        (["--above=nan"], "--above 'nan' is not a number"),
        (["--above=-1"], "--above '-1' is not a number"),
        (["--stats", "--stat"], "--stat and --stats cannot be used together"),
    ]:
        for command in ("diff", "show"):
            answer = tuned(command, *words)
            assert answer.code == 2
            assert fact in answer.error


def test_spectra(tuned):
    fields = tuned.json("diff", "--spectral", "HEAD~1", "HEAD")
    found = {tensor["name"]: tensor["spectrum"] for tensor in fields["tensors"]}
    assert found[NAMES[33]]["rank_90"] <= found[NAMES[33]]["rank_99"] <= 16
    assert found[NAMES[1]] is None
    answer = tuned.ok("diff", "--spectral", "HEAD~1", "HEAD")
    assert "rank99" in answer.out
    assert len(_rows(answer)[-1]) == 15
    tuned.environment |= {"COLUMNS": "80", "LINES": "30"}
    narrow = plain(tuned.ok("show", "--spectral", terminal=True).out).splitlines()
    assert any("st.rank" in line for line in narrow)
    assert max(map(len, narrow)) <= 80


def test_show_compares_with_the_parent(tuned):
    assert "11/12" in tuned.ok("show", "--by", "kind").out
    fields = tuned.json("show", "--stats")
    assert fields["subject"] == "tuned"
    assert fields["comparison"]["total"]["differing"] == 14
    assert "comparison" not in tuned.json("show")


def test_one_screen_on_a_terminal(tuned, monkeypatch):
    for width, height in ((80, 24), (120, 40), (200, 12)):
        tuned.environment |= {"COLUMNS": str(width), "LINES": str(height)}
        lines = plain(tuned.ok("diff", "--stats", "HEAD~1", "HEAD", terminal=True).out).splitlines()
        assert len(lines) <= max(height - 2, 22)
        assert max(map(len, lines)) <= width
        assert any(line.startswith("model.layers.11.self_attn.q_proj") for line in lines) or any(
            "11" in line and "q_proj" in line for line in lines
        )
    wide = plain(tuned.ok("diff", "--stats", "HEAD~1", "HEAD", terminal=True).out)
    assert any(line.rstrip().endswith("█") for line in wide.splitlines() if "q_proj" in line)


def test_names_stay_whole_on_a_narrow_terminal(tuned):
    diff = ("diff", "--stats", "HEAD~1", "HEAD", "--tensors", "*q_proj*", "--sort")
    for sort, figures in (
        ("sigma", ["sigma", "rel_L2"]),
        ("max", ["sigma", "rel_L2", "max_diff"]),
        ("ulp", ["sigma", "rel_L2", "ulp50", "ulp99"]),
    ):
        tuned.environment |= {"COLUMNS": "72", "LINES": "40"}
        lines = plain(tuned.ok(*diff, sort, terminal=True).out).splitlines()
        assert max(map(len, lines)) <= 72
        heading = next(line.split() for line in lines if line.startswith("tensor "))
        assert [one for one in heading[1:] if one not in ("cosine", "changed")] == figures
        assert NAMES[-3] in {line.split()[0] for line in lines if line}


def test_two_models_in_no_history(tuned, tmp_path):
    save_file(_model(), tmp_path / "a.safetensors")
    torch.save({"w": torch.ones(3)}, tmp_path / "b.pt")
    (tmp_path / "folder").mkdir()
    names = [str(tmp_path / "b.pt"), str(tmp_path / "folder")]
    hostile = "a\x1b[31mred\nx" + "x" * 99
    save_file(
        {"w": np.ones(3, "f4") * 2, hostile: np.ones(2, "f4")}, tmp_path / "folder/x.safetensors"
    )
    found, row = _rows(tuned.ok("diff", *names))
    assert row[:2] == ["w", "0.333"]
    assert "\x1b" not in found[0]
    lines = plain(tuned.ok("diff", *names, terminal=True).out).splitlines()
    assert max(map(len, lines)) <= 80
    assert tuned("diff", *names, "--exit-code").code == 1
    place = "HEAD~1:model.safetensors"
    assert tuned.json("diff", place, "./model.safetensors")["old"]["label"] == place
    report = tuned.json("diff", "HEAD~1", str(tmp_path / "a.safetensors"))
    assert report["old"]["label"] == "HEAD~1"
    assert {one["status"] for one in report["tensors"]} == {"unchanged", "removed"}
    for options in (["--staged"], ["--stat"]):
        assert tuned("diff", *names, *options).code == 2
    assert "holds no tensor" in tuned("diff", "HEAD:config.json", "HEAD~1:config.json").error
    outside = type(tuned)(tmp_path, tuned.environment)
    assert outside.json("diff", "b.pt", "folder")["total"]["differing"] == 2
    assert "'c' does not exist" in outside("diff", "b.pt", "c").error
    assert outside("diff", "b.pt").code == 10
    assert "name two checkpoints" in outside("diff", "--stats").hint
    assert not (tmp_path / ".mvc").exists()


def test_paths_after_dashes_are_paths(tuned):
    save_file({"w": np.ones(3, "f4")}, tuned.folder / "n.safetensors")
    tuned.ok("add", ".")
    save_file({"w": np.ones(3, "f4") * 2}, tuned.folder / "n.safetensors")
    names = ("model.safetensors", "n.safetensors")
    assert [file["path"] for file in tuned.json("diff", "--", *names)["files"]] == ["n.safetensors"]
    assert tuned.json("diff", *names)["new"]["label"] == "n.safetensors"
