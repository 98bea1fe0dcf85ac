"""Restoring is in place, exact, and loud about everything that does not fit."""

import pytest
import torch
from torch import nn

from mvc import ConflictError
from mvc_hooks import capture, restore
from mvc_hooks.parts.make import make_parts
from mvc_hooks.parts.restoring import restore_parts
from support.scenarios.basics import make_small_net

pytestmark = pytest.mark.torch


def test_everything_is_filled_where_it_lies(lab):
    model = make_small_net()
    optimizer = torch.optim.AdamW(model.parameters(), torch.tensor(0.1))
    parts = make_parts({"model": model, "optimizer": optimizer})

    def step():
        model(torch.rand(5, 4)).sum().backward()
        optimizer.step()

    step()
    source = lab.commit(parts)
    step()
    tensors = [*model.state_dict().values(), optimizer.param_groups[0]["lr"]]
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    places = [tensor.data_ptr() for tensor in tensors]
    lists = optimizer.param_groups, optimizer.param_groups[0]["params"], optimizer.state
    restore_parts(source, parts)
    assert [tensor.data_ptr() for tensor in tensors] == places
    assert lists[0] is optimizer.param_groups
    assert lists[1] is optimizer.param_groups[0]["params"]
    assert lists[2] is optimizer.state


def test_state_that_the_commit_has_not_is_taken_away(lab):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    parts = make_parts({"model": model, "optimizer": optimizer})
    source = lab.commit(parts)
    model(torch.rand(1, 2)).sum().backward()
    optimizer.step()
    assert optimizer.state
    restore_parts(source, parts)
    assert not optimizer.state


def test_many_differences_are_counted(lab):
    source = lab.store(model=nn.Sequential(*(nn.Linear(2, 2) for _ in range(9))))
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(9)))
    with pytest.raises(ConflictError, match="and 8 more"):
        restore_parts(source, make_parts({"model": model}))


def test_a_hint_never_advises_what_drops_stored_state(lab):
    source = lab.store(model=make_small_net(), count=3)
    with pytest.raises(ConflictError) as caught:
        restore_parts(source, make_parts({"model": make_small_net(5), "count": 0}))
    assert caught.value.hint == (
        "nothing was changed; make the run as it was when it was committed "
        '(allow=["model.0.weight"] would drop what is stored there)'
    )
    live = make_parts({"model": make_small_net(), "count": 1, "more": {}, "most": {}})
    with pytest.raises(ConflictError) as caught:
        restore_parts(source, live)
    assert caught.value.hint == 'nothing was changed; allow=["more", "most"] keeps what is live'
    restore_parts(source, live, allow=["more", "most"])
    assert live["count"].value == 3
    with pytest.raises(ConflictError) as caught:  # under another name
        restore_parts(source, make_parts({"model": make_small_net(), "number": 1}))
    assert 'allow=["number", "count"]' in caught.value.hint


def test_a_graph_from_before_the_restore_cannot_be_used(lab):
    model = make_small_net()
    parts = make_parts({"model": model})
    source = lab.commit(parts)
    loss = model(torch.rand(5, 4)).sum()
    restore_parts(source, parts)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_is_allowed_stays_as_it_is_and_the_rest_is_exact(lab):
    old = make_small_net()
    source = lab.store(model=old, count=3)
    model = nn.Sequential(*make_small_net()[:2], nn.Linear(3, 7), nn.Linear(7, 1))
    head = model[2].weight.clone()
    parts = make_parts({"model": model})
    restore_parts(source, parts, allow=["model.2.*", "model.3", "count"])
    assert torch.equal(model[0].weight, old[0].weight)
    assert torch.equal(model[2].weight, head)
    with pytest.raises(ConflictError, match=r"model\.3"):
        restore_parts(source, parts, allow=["model.2.*", "count"])


def test_parts_that_are_missing_or_extra_are_named(lab):
    source = lab.store(model=make_small_net(), extra=1)
    with pytest.raises(ConflictError, match="extra is only in the stored state"):
        restore_parts(source, make_parts({"model": make_small_net()}))
    with pytest.raises(ConflictError, match="other is not in the stored state"):
        restore_parts(source, make_parts({"model": make_small_net(), "extra": 1, "other": {}}))
    restore_parts(
        source, make_parts({"model": make_small_net(), "other": {}}), leave=["extra", "other"]
    )


def test_capture_and_restore_do_not_share_memory():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.rand(1, 2)).sum().backward()
    optimizer.step()
    parts = {"model": model, "optimizer": optimizer, "log": [1, 2], "count": 3}
    import copy

    state = copy.deepcopy(capture(**parts))
    optimizer.state.clear()
    assert restore(state, **{**parts, "count": None}) == {"log": [1, 2], "count": 3}
    optimizer.step()
    assert not torch.equal(
        state["optimizer"]["state"][0]["momentum_buffer"],
        optimizer.state[model.weight]["momentum_buffer"],
    )
    with pytest.raises(ConflictError, match=r"model\.weight"):
        restore(state, **{**parts, "model": nn.Linear(3, 3)})
    del state["details"]
    restore(state, **parts)


def test_the_optimizer_has_the_last_word_over_its_learning_rate(lab):
    class Eager(torch.optim.lr_scheduler.StepLR):
        """Writes a rate into the optimizer when it is loaded."""

        def load_state_dict(self, state):
            super().load_state_dict(state)
            self.optimizer.param_groups[0]["lr"] = 77.0

    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    parts = {"model": model, "optimizer": optimizer, "scheduler": Eager(optimizer, 5)}
    restore_parts(lab.store(**parts), make_parts(parts))
    assert optimizer.param_groups[0]["lr"] == 0.1
