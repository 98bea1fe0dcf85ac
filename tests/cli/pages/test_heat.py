"""Where tensors are on the heat map."""

import math

import pytest

from mvc.cli.pages.heat import Spot, lay_out


def _spot(kind, layer=None, value=None, state=None):
    return Spot(kind, layer, state or ("same" if value is None else "changed"), value)


def test_cells_by_kind_and_layer():
    spots = [
        _spot("embedding", value=0.5),
        _spot("q_proj", "model.layers.0"),
        _spot("q_proj", "model.layers.1", 0.005),
        _spot("norm", "model.layers.1", 0.01),
        _spot("norm", "model.layers.1", 0.05),
    ]
    heat = lay_out(spots)
    assert heat.kinds == ["embedding", "q_proj", "norm"]
    assert heat.columns == ["", "0", "1"]
    assert heat.span == (0.005, 0.5)
    cells = {(heat.kinds[one.kind], heat.columns[one.column]): one for one in heat.cells}
    assert {place: (one.state, one.spots) for place, one in cells.items()} == {
        ("embedding", ""): ("changed", [0]),
        ("q_proj", "0"): ("same", [1]),
        ("q_proj", "1"): ("changed", [2]),
        ("norm", "1"): ("changed", [3, 4]),
    }
    shades = [cells["embedding", ""].shade, cells["norm", "1"].shade, cells["q_proj", "1"].shade]
    assert shades == pytest.approx([1, 0.5, 0])
    assert cells["q_proj", "0"].shade is None


def test_the_worst_state_of_a_cell_counts():
    states = ["same", "removed", "added", "unmeasured", "changed", "broken"]
    for most in range(1, 7):
        spots = [_spot("q", "layers.0", state=state) for state in states[:most]]
        assert [cell.state for cell in lay_out(spots).cells] == [states[most - 1]]


def test_layers_of_one_stack_are_neighbours():
    layers = ["encoder.0", "mid_block.attn_0", "encoder.1", "decoder.0"]
    heat = lay_out([_spot("q", layer) for layer in layers])
    assert heat.columns == ["", "0", "1", "0", "0"]
    assert heat.stacks == [("encoder", 2), ("mid_block.attn", 1), ("decoder", 1)]
    assert [cell.spots for cell in heat.cells] == [[0], [2], [1], [3]]


def test_many_layers_share_columns():
    layers = [f"encoder.{layer}" for layer in range(299)] + ["decoder.0", "decoder.1"]
    heat = lay_out([_spot("q", layer) for layer in layers])
    assert heat.columns[:3] == ["", "0-2", "3-5"]
    assert heat.columns[-2:] == ["297-298", "0-1"]
    assert heat.stacks == [("encoder", 100), ("decoder", 1)]
    assert [len(cell.spots) for cell in heat.cells] == [3] * 99 + [2, 2]


def test_columns_are_few_whatever_layers_are_called():
    heat = lay_out([_spot("q", f"stack{place}.{place}") for place in range(10_000)])
    assert len(heat.columns) <= 129
    assert heat.stacks == [("", len(heat.columns) - 1)]


def test_of_too_many_kinds_the_worst_are_shown():
    values = [0.001 * (place % 97 + 1) for place in range(100)]
    spots = [_spot(f"k{place}", value=value) for place, value in enumerate(values)]
    spots[50] = _spot("k50", state="broken")
    heat = lay_out(spots)
    assert heat.kinds_left_out == 36
    assert heat.kinds == sorted(heat.kinds, key=lambda kind: int(kind[1:]))
    assert "k50" in heat.kinds
    left_out = {f"k{place}" for place in range(100)} - set(heat.kinds)
    shown = [values[int(kind[1:])] for kind in heat.kinds if kind != "k50"]
    assert max(values[int(kind[1:])] for kind in left_out) <= min(shown)


def test_ends_of_the_colours():
    for values, span in [
        ([], (0.1, 1.0)),
        ([0.0], (0.1, 1.0)),
        ([0.5], (0.05, 0.5)),
        ([1e-12, 1.0], (1e-6, 1.0)),
        ([math.inf, 0.2, 0.001], (0.001, 0.2)),
    ]:
        heat = lay_out([_spot("q", f"l.{place}", value) for place, value in enumerate(values)])
        assert heat.span == pytest.approx(span)
        assert all(0 <= cell.shade <= 1 for cell in heat.cells)


def test_nothing_to_show():
    assert lay_out([]).cells == []
