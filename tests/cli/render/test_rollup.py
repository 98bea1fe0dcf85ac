"""Tensors that have much in common become one row."""

from mvc.cli.render.rollup import roll_up
from mvc.operations.tensor_diff import TensorDiff


def rows_of(names, rows=20, status="modified"):
    found = roll_up([TensorDiff(name, status, "F32", (2,)) for name in names], rows)
    return [(name, len(group)) for name, group in found]


def layers(numbers, *modules):
    return [f"layers.{number}.{module}" for number in numbers for module in modules]


def test_layers_become_a_range():
    names = ["embed", *layers(range(32), "mlp.up.weight", "mlp.down.weight"), "norm"]
    assert rows_of(names) == [
        ("embed", 1),
        ("layers.0-31.mlp.up.weight", 32),
        ("layers.0-31.mlp.down.weight", 32),
        ("norm", 1),
    ]
    experts = [f"layers.{layer}.experts.{expert}.w" for layer in range(9) for expert in range(160)]
    assert rows_of(experts) == [("layers.0-8.experts.0-159.w", 1440)]


def test_numbers():
    for numbers, shown in [((3,), "3"), ((3, 5, 9), "3,5,9"), ((8, 9, 10, 11), "8-11"), ((0, 1, 2, 9), "0…9"),
         (("08", "09", "10", "11"), "08-11")]:  # fmt: skip
        assert rows_of(layers(numbers, "w")) == [(f"layers.{shown}.w", len(numbers))]


def test_modules_are_rolled_up_if_layers_are_not_enough():
    modules = [f"{part}.{name}" for part in ("attn", "mlp") for name in "abcdefghij"]
    assert rows_of(layers(range(4), *modules), 8) == [
        ("layers.0-3.attn.*", 40),
        ("layers.0-3.mlp.*", 40),
    ]
    assert rows_of(layers(range(4), *modules), 1) == [("layers.0-3.*", 80)]


def test_kinds_of_change_stay_apart():
    tensors = [
        TensorDiff(f"l.{number}.w", status, "F32", (2,))
        for number in range(4)
        for status in ("added", "removed")
    ]
    assert [(name, group[0].status) for name, group in roll_up(tensors, 3)] == [
        ("l.0-3.w", "added"),
        ("l.0-3.w", "removed"),
    ]
    moved = [TensorDiff(f"b.{n}.w", "renamed", "F32", (2,), f"a.{n}.w") for n in range(4)]
    assert [name for name, _ in roll_up(moved, 2)] == ["a.0-3.w -> b.0-3.w"]


def test_hostile_names():
    names = ["." * 5000 + str(number) for number in range(50)] + ["1" * 5000, "2" * 5000, ""]
    assert sum(count for _, count in rows_of(names, 2)) == 53
