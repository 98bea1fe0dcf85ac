"""The command line: weights from checkpoints into what the entry builds, inputs from files."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mvc import ConflictError, FormatError, NotFoundError, Repo, UsageError, open_model
from mvc_lab import load_weights
from mvc_lab.behaviour.__main__ import main
from mvc_lab.behaviour.comparing import parse_settings
from mvc_lab.behaviour.inputs import make_batches, read_inputs
from support import behaving
from support.behaving import Classifier, perceptron

ENTRY = Path(behaving.__file__)
TOKENS = torch.randint(0, 50, (22, 7), generator=torch.Generator().manual_seed(1))


def state_of(model):
    """Return a state dict as Hugging Face saves it: of tied tensors one."""
    return {name: one.clone() for name, one in model.state_dict().items() if name != "head.weight"}


@pytest.fixture(autouse=True)
def cublas(monkeypatch):
    """Let what the command sets in its own process end with the test."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(3)
    model = Classifier()
    save_file(state_of(model), "a.safetensors")
    with torch.no_grad():
        model.mix.weight_hh_l0 += 0.3
    save_file(state_of(model), "b.safetensors")
    save_file({name: one.bfloat16() for name, one in state_of(model).items()}, "c.safetensors")
    save_file({"input_ids": TOKENS, "labels": TOKENS.clone()}, "in.safetensors")
    return tmp_path


def run(capfd, *arguments, entry="build", inputs="in.safetensors"):
    code = main([*arguments, "--entry", f"{ENTRY}:{entry}", "--inputs", inputs])
    out, err = capfd.readouterr()
    return code, json.loads(out), err


def test_two_checkpoints(folder, capfd):
    code, found, err = run(capfd, "a.safetensors", "b.safetensors")
    assert code == 1
    assert found["module"]["first"] == "mix"
    assert [one["name"] for one in found["module"]["modules"]][-1] == ""
    assert found["system"]["samples"] == 22
    assert err.count("the user's code prints") == 2  # once a side
    code, found, _ = run(capfd, "a.safetensors", "a.safetensors")
    assert (code, found["module"]["passed"], found["system"]["passed"]) == (0, True, True)
    # bf16 weights are run as they are.
    code, found, _ = run(capfd, "b.safetensors", "c.safetensors", "--layers=module")
    assert (code, found["system"]) == (0, None)
    assert 1e-4 < found["module"]["modules"][1]["relative_l2"] < 1e-2


def test_revisions_of_a_training_state(folder, capfd):
    repo = Repo.init(folder)
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = Classifier()
        state = {"model": model.state_dict(), "optimizer": {"moment": torch.ones(3)}}
        repo.commit_state(state, message=f"{seed}", step=seed)
    code, _, _ = run(capfd, "main@1", "main@2", f"--repo={folder}")
    assert code == 1
    code, found, _ = run(capfd, "main@2", "HEAD:model.safetensors", f"--repo={folder}")
    assert code == 0
    assert found["module"]["modules"][0]["relative_l2"] == 0


def test_an_entry_that_loads_the_checkpoint_itself(folder, capfd):
    repo = Repo.init(folder / "repo")
    (repo.worktree / "m").mkdir()
    for file in ("a", "b"):
        shutil.copy(f"{file}.safetensors", repo.worktree / "m" / "w.safetensors")
        (repo.worktree / "m" / "config.json").write_text(file)
        repo.commit(file, paths=".")
    shutil.copy(repo.worktree / "m" / "config.json", ".")
    option = f"--repo={repo.worktree}"
    code, found, _ = run(capfd, "HEAD~1:m", "HEAD:m/w.safetensors", option, entry="load")
    assert (code, found["module"]["first"]) == (1, "mix")
    for line in (["b.safetensors", "HEAD:m"], ["HEAD:m", "b.safetensors"]):
        code, found, _ = run(capfd, *line, option, entry="load")
        assert (code, found["module"]["modules"][1]["relative_l2"]) == (0, 0)
    code, found, _ = run(capfd, "HEAD:m", "--threads=1,2", option, entry="load")
    assert code == 0


def test_several_settings_of_one_model(folder, capfd):
    code, found, _ = run(
        capfd, "a.safetensors", "--dtypes=fp32,bf16,fp64", "--threads", "1,2", "--bound", "1e-5"
    )
    assert code == 1
    assert [(one["old"], one["new"], one["passed"]) for one in found["settings"]] == [
        ("float32", "bfloat16", False), ("float32", "float64", True), ("1", "2", True),
    ]  # fmt: skip
    code, found, _ = run(capfd, "a.safetensors", "--dtypes=fp32,bf16", "--bound", "0.1")
    assert code == 0
    code, found, _ = run(capfd, "a.safetensors", "b.safetensors", "--dtypes=fp32,bf16")
    assert (code, found["error"]["kind"]) == (2, "usage")


def test_each_number_of_threads_is_used(folder, capfd):
    save_file({"unused": torch.zeros(1)}, "one.safetensors")
    np.save("in.npy", np.ones((3, 2), np.float32))
    before = torch.get_num_threads()
    code, found, _ = run(
        capfd, "one.safetensors", "--threads=1,3,2", entry="Threads", inputs="in.npy"
    )
    assert code == 1
    assert [one["modules"][0]["largest_difference"] for one in found["settings"]] == [2, 1]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("options", "entry", "code", "said"),
    [
        ([], "build_nothing", 2, "returned int"),
        ([], "build_badly", 2, "entry failed: RuntimeError: no data"),
        ([], "build_none", 3, "no function 'build_none'"),
        ([], "build_wider", 4, "has shape [50, 16]"),
        ([], "build_meta", 2, "meta"),
        ([], "build_of_two", 2, "takes 2 arguments"),
        (["--devices=meta"], "build", 2, "cannot compute"),
        (["--devices=cuda"], "build", 2, "not available here"),
        (["--devices=abacus"], "build", 2, "not a device"),
        (["--dtypes=int8,fp32"], "build", 2, "not a floating-point dtype"),
        (["--threads=0"], "build", 2, "number of threads"),
        (["--threads=2,2"], "build", 2, "a value twice"),
        (["--layers=unit"], "build", 2, "layers"),
        (["--significance=0.000001"], "build", 2, "22 inputs are too few"),
        (["--nothing"], "build", 2, "unrecognized"),
    ],
)
def test_what_is_wrong_is_one_line(folder, capfd, options, entry, code, said):
    if torch.cuda.is_available() and options == ["--devices=cuda"]:
        pytest.skip("there is CUDA here")
    files = ["a.safetensors"] if options else ["a.safetensors", "a.safetensors"]
    found_code, found, err = run(capfd, *files, *options, entry=entry)
    assert found_code == code
    assert said in found["error"]["message"]
    assert "\n" not in found["error"]["message"]
    assert "Traceback" not in err


def test_the_traceback_is_there_for_who_asks(folder, capfd, monkeypatch):
    monkeypatch.setenv("MVC_DEBUG", "1")
    _, _, err = run(capfd, "a.safetensors", "a.safetensors", entry="build_badly")
    assert "in build_badly" in err


def test_an_entry_by_the_name_of_its_module(folder, capfd, monkeypatch):
    monkeypatch.syspath_prepend(folder)  # and put back afterwards
    (folder / "pack").mkdir()
    (folder / "pack" / "net.py").write_text(ENTRY.read_text())
    for entry, code in (("pack.net:build", 0), ("pack.none:build", 3), ("no-name:build", 3)):
        arguments = ["a.safetensors", "a.safetensors", "--inputs=in.safetensors"]
        assert main([*arguments, f"--entry={entry}"]) == code
        json.loads(capfd.readouterr().out)
    (folder / "pack" / "asks.py").write_text("import none_such")
    assert main([*arguments, "--entry=pack.asks:build"]) == 2
    assert "No module named 'none_such'" in capfd.readouterr().out


class TestWeights:
    def load(self, model, *files):
        for number, tensors in enumerate(files):
            save_file(tensors, f"{number}.safetensors")
        target = "0.safetensors" if len(files) == 1 else "."
        with open_model(target) as stored:
            load_weights(model, stored)

    @pytest.fixture(autouse=True)
    def here(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)

    def test_a_model_beside_other_things_in_a_file(self):
        values = state_of(Classifier())
        torch.save({"net": {"model": values}, "optimizer": {"mix": {"m": torch.ones(2)}}}, "all.pt")
        model = Classifier()
        with open_model("all.pt") as stored:
            load_weights(model, stored)
        assert all(model.state_dict()[name].equal(one) for name, one in values.items())
        copies = {name: one + 1 for name, one in values.items()}
        torch.save({"model": values, "average": copies}, "two.pt")
        said = r"holds several models: 'average\.', 'model\.'"
        with open_model("two.pt") as stored, pytest.raises(ConflictError, match=said):
            load_weights(model, stored)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_bits_and_ties(self, dtype):
        values = {name: one.to(dtype) for name, one in state_of(Classifier()).items()}
        values["embed.weight"].view(-1)[:3] = torch.tensor([-0.0, float("nan"), float("inf")])
        model = Classifier()
        self.load(model, values)
        for name, wanted in values.items():
            found = model.state_dict()[name]
            assert found.dtype == dtype
            assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))
        assert model.head.weight is model.embed.weight

    def test_ties_of_memory_alone(self):
        class Tied(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a = torch.nn.Parameter(torch.zeros(4))
                self.b = torch.nn.Parameter(self.a.data)

        for dtype in (torch.float32, torch.float16):
            model = Tied()
            self.load(model, {"a": torch.arange(4, dtype=dtype)})
            assert model.b.dtype == dtype
            assert model.b.tolist() == [0, 1, 2, 3]

    def test_tied_tensors_that_differ(self):
        values = state_of(Classifier())
        with pytest.raises(ConflictError, match="are one in the model"):
            self.load(Classifier(), {**values, "head.weight": values["embed.weight"] + 1})
        self.load(Classifier(), {**values, "head.weight": values["embed.weight"].clone()})

    def test_names_that_are_missing_extra_or_doubled(self):
        values = state_of(Classifier())
        with pytest.raises(NotFoundError, match="holds 'more', which the model"):
            self.load(Classifier(), {**values, "more": torch.ones(1)})
        del values["mix.bias_hh_l0"]
        with pytest.raises(NotFoundError, match=r"lacks 'mix\.bias_hh_l0'"):
            self.load(Classifier(), values)
        with pytest.raises(ConflictError, match="both hold"):
            self.load(Classifier(), values, values)

    def test_shards_and_a_file_of_something_else(self):
        values = list(state_of(Classifier()).items())
        other = {"state.0.exp_avg": torch.ones(2)}
        self.load(Classifier(), dict(values[:2]), dict(values[2:]), other)


class TestInputs:
    @pytest.fixture(autouse=True)
    def here(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)

    def batches(self, file, model=None, size=8):
        return make_batches(read_inputs(file), None, model or Classifier(), size)

    def test_each_format_gives_the_same(self):
        save_file({"input_ids": TOKENS}, "in.safetensors")
        np.savez("in.npz", input_ids=TOKENS.numpy())
        np.save("in.npy", TOKENS.numpy())
        torch.save({"input_ids": TOKENS}, "named.pt")
        torch.save(TOKENS, "in.pt")
        rows = TOKENS.tolist()
        Path("in.json").write_text(json.dumps({"input_ids": rows}))
        Path("plain.json").write_text(json.dumps(rows))
        Path("in.jsonl").write_text("\n".join(json.dumps({"input_ids": row}) for row in rows))
        Path("plain.jsonl").write_text("\n".join(map(json.dumps, rows)))
        files = sorted(Path().iterdir())
        assert len(files) == 9
        for file in files:
            batches = self.batches(str(file))
            parts = [next(iter([*one.call.kwargs.values(), *one.call.args])) for one in batches]
            assert torch.equal(torch.cat(parts), TOKENS), file
            assert [one.rows for one in batches] == [8, 8, 6]

    def test_samples_of_several_lengths(self):
        rows = [[1, 2], [3, 4], [5], [6, 7]]
        Path("in.jsonl").write_text("\n".join(json.dumps({"input_ids": row}) for row in rows))
        assert [one.rows for one in self.batches("in.jsonl")] == [2, 1, 1]

    def test_targets_go_where_they_are_taken(self):
        inputs = {"0": torch.ones(3, 6), "targets": torch.zeros(3)}
        (batch,) = make_batches(inputs, None, perceptron(), 8)
        assert (len(batch.call.args), batch.call.kwargs) == (1, {})
        assert batch.targets is inputs["targets"] or torch.equal(batch.targets, torch.zeros(3))
        (batch,) = make_batches({"input_ids": TOKENS, "labels": TOKENS}, None, Classifier(), 99)
        assert set(batch.call.kwargs) == {"input_ids", "labels"}

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ('{"input_ids": [[1, 2], [3]]}', "not an array of numbers"),
            ('{"input_ids": [[1, 2]], "labels": [[1], [2]]}', "different numbers of samples"),
            ('{"words": [[1, 2]]}', "takes no input 'words'"),
            ('{"input_ids": 3}', "no sample dimension"),
            ('{"input_ids": ["a"]}', "not an array of numbers"),
            ("[]", "no sample"),
            ("{}", "no sample"),
        ],
    )
    def test_inputs_that_do_not_fit(self, content, said):
        Path("in.json").write_text(content)
        with pytest.raises(UsageError, match=said):
            self.batches("in.json")

    @pytest.mark.parametrize(
        "name", ["in.json", "in.jsonl", "in.npz", "in.npy", "in.pt", "in.safetensors"]
    )
    def test_garbage(self, name):
        Path(name).write_bytes(b"\x80\x04garbage\n")
        with pytest.raises(FormatError, match="cannot read inputs"):
            read_inputs(name)

    def test_nothing_of_a_file_is_run(self):
        class Evil:
            def __reduce__(self):
                return (Path("harm").touch, ())

        torch.save({"x": Evil()}, "in.pt")
        np.savez("in.npz", x=np.array([Evil()], dtype=object))
        for name in ("in.pt", "in.npz"):
            with pytest.raises(FormatError):
                read_inputs(name)
        assert not Path("harm").exists()

    def test_an_archive_that_would_fill_the_memory(self):
        with zipfile.ZipFile("in.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", b"")
            archive.filelist[0].file_size = 1 << 40
        with pytest.raises(FormatError, match="longer than 4 GiB"):
            read_inputs("in.npz")

    def test_files_that_are_not_there(self):
        with pytest.raises(NotFoundError):
            read_inputs("none.json")
        Path("in.txt").touch()
        with pytest.raises(UsageError, match="an unknown format"):
            read_inputs("in.txt")


def test_settings_are_checked_before_anything_is_loaded():
    assert not parse_settings("cpu", "", "").is_comparison
    assert parse_settings("", "float32,bf16", "").dtypes == (torch.float32, torch.bfloat16)
