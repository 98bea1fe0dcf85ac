"""Runs of every kind: stopped and brought back, they end on the bits of the one that went on."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from mvc_hooks.parts.restoring import capture_parts, restore_parts

pytestmark = pytest.mark.torch


def _net(width=6):
    return nn.Sequential(
        nn.Linear(width, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1)
    )


def _run(make_optimizer, net=_net, make_scheduler=None, *, shift=0.0):
    def build():
        model = net()
        optimizer = make_optimizer(model.parameters())
        parts = {"model": model, "optimizer": optimizer}
        if make_scheduler is not None:
            parts["scheduler"] = make_scheduler(optimizer)

        def closure():
            optimizer.zero_grad()
            dtype = next(model.parameters()).dtype
            loss = (model(torch.rand(5, 6, dtype=dtype) + shift) - 1).square().mean()
            loss.backward()
            return loss

        def train():
            if isinstance(optimizer, torch.optim.LBFGS):
                optimizer.step(closure)
                return
            loss = closure()
            optimizer.step()
            if make_scheduler is not None:
                if isinstance(parts["scheduler"], schedulers.ReduceLROnPlateau):
                    parts["scheduler"].step(loss.detach())
                else:
                    parts["scheduler"].step()

        return SimpleNamespace(parts=parts, train=train, model=model, optimizer=optimizer)

    return build


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, foreach=False),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "tensor-lr": lambda p: torch.optim.AdamW(p, torch.tensor(0.01), foreach=False),
    "radam": lambda p: torch.optim.RAdam(p, 0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "asgd": lambda p: torch.optim.ASGD(p, 0.01),
    "rprop": lambda p: torch.optim.Rprop(p, 0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
    "lbfgs": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3, history_size=3),
    "lbfgs-wolfe": lambda p: torch.optim.LBFGS(p, max_iter=2, line_search_fn="strong_wolfe"),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizer(lab, kind):
    lab.check_resume(_run(OPTIMIZERS[kind]), after=2)


class _Warmup:
    """A scheduling object with a state of its own."""

    def __init__(self):
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return 1 / (1 + step + 0.1 * self.calls)


SCHEDULERS = {
    "one-cycle": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=20),
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, 10),
    "restarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 2, 2),
    "plateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=0, threshold=0.5),
    "lambda": lambda o: schedulers.LambdaLR(o, _Warmup()),
    "cyclic": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, 2, cycle_momentum=False),
    "multistep": lambda o: schedulers.MultiStepLR(o, [2, 4]),
    "swa": lambda o: SWALR(o, 0.05, anneal_epochs=5),
    "sequential": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, total_iters=2), schedulers.ExponentialLR(o, 0.9)], [2]
    ),
    "chained": lambda o: schedulers.ChainedScheduler(
        [schedulers.LinearLR(o, 0.1, total_iters=3), schedulers.ExponentialLR(o, 0.9)]
    ),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_scheduler(lab, kind):
    make = lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)  # noqa: E731
    lab.check_resume(_run(make, make_scheduler=SCHEDULERS[kind]), after=3)


def test_learning_rates_that_are_tensors(lab):
    for kind in ("cosine", "one-cycle", "sequential"):
        lab.check_resume(_run(OPTIMIZERS["tensor-lr"], make_scheduler=SCHEDULERS[kind]), after=2)


def test_first_step_after_a_resume_uses_the_stored_rate_not_that_of_the_constructor(lab):
    build = _run(OPTIMIZERS["momentum"], make_scheduler=SCHEDULERS["one-cycle"])
    lab.check_resume(build, before=6, after=1)


def test_bfloat16_parameters_keep_their_32_bit_state(lab):
    class Master(torch.optim.Optimizer):
        """Momentum in 32 bits beside parameters of 16."""

        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self):
            for param in self.param_groups[0]["params"]:
                state = self.state[param]
                if not state:
                    state["master"] = param.float().clone()
                    state["moment"] = torch.zeros_like(state["master"])
                state["moment"].mul_(0.9).add_(param.grad.float())
                state["master"].sub_(state["moment"], alpha=0.1)
                param.copy_(state["master"])

    net = lambda: nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1)).bfloat16()  # noqa: E731
    found = lab.check_resume(_run(Master, net))
    state = found.first.optimizer.state_dict()["state"][0]
    assert state["master"].dtype is torch.float32


def test_one_part_may_own_several_models_and_optimizers(lab):
    def build():
        models = {"g": nn.Linear(3, 6), "d": [nn.Linear(6, 4), nn.Linear(4, 1)]}
        chain = nn.Sequential(*models["d"])
        optimizers = {
            "g": torch.optim.Adam(models["g"].parameters(), 0.01),
            "d": torch.optim.SGD(chain.parameters(), 0.1, momentum=0.9),
        }

        def train():
            fake = models["g"](torch.randn(4, 3))
            optimizers["d"].zero_grad()
            (chain(torch.randn(4, 6)) - chain(fake.detach())).mean().backward()
            optimizers["d"].step()
            optimizers["g"].zero_grad()
            chain(fake).mean().backward()
            optimizers["g"].step()

        return SimpleNamespace(parts={"model": models, "optimizer": optimizers}, train=train)

    lab.check_resume(build)


def test_gradient_scaler_that_overflows(lab):
    def build():
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        count = iter(range(100))

        def train():
            optimizer.zero_grad()
            loss = model(torch.rand(3, 4)).sum()
            scaler.scale(loss * (float("inf") if next(count) == 1 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()

        return SimpleNamespace(
            parts={"model": model, "optimizer": optimizer, "scaler": scaler}, train=train
        )

    first = lab.make(build, 0)
    for _ in range(3):
        first.train()
    assert first.parts["scaler"].get_scale() != 2.0**10
    source = lab.commit(first.live)
    second = lab.make(build, 1)
    restore_parts(source, second.live)
    assert second.parts["scaler"].state_dict() == first.parts["scaler"].state_dict()
    assert second.parts["scaler"]._scale is None  # made by the first scale(), not by a restore
    assert capture_parts(second.live)["scaler"]["_growth_tracker"] == 1


@pytest.mark.parametrize("use_buffers", [False, True])
def test_moving_average(lab, use_buffers):
    def build():
        model = _net()
        ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=use_buffers)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)

        def train():
            optimizer.zero_grad()
            model(torch.rand(5, 6)).mean().backward()
            optimizer.step()
            ema.update_parameters(model)

        parts = {"model": model, "ema": ema, "optimizer": optimizer}
        return SimpleNamespace(parts=parts, train=train)

    found = lab.check_resume(build)
    assert "n_averaged" in found.source.load({})["ema"]


def test_moving_average_by_hand(lab):
    def build():
        model = nn.Linear(6, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        shadow = copy.deepcopy(model.state_dict())
        shadow = dict(shadow)

        def train():
            optimizer.zero_grad()
            model(torch.rand(5, 6)).mean().backward()
            optimizer.step()
            for name, value in model.state_dict().items():
                shadow[name].lerp_(value, 0.1)

        parts = {"model": model, "shadow": shadow, "optimizer": optimizer}
        return SimpleNamespace(parts=parts, train=train)

    lab.check_resume(build)


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.embedding((x[:, :4] * 8).long())).mean((1, 2))


def test_tied_embedding(lab):
    found = lab.check_resume(_run(OPTIMIZERS["adamw"], _Tied))
    assert found.first.model.head.weight is found.first.model.embedding.weight


def test_sparse_gradients_and_lazily_created_state(lab):
    def build():
        model = nn.Embedding(20, 3, sparse=True)
        optimizer = torch.optim.SparseAdam(model.parameters(), 0.1)

        def train():
            optimizer.zero_grad()
            model(torch.randint(20, (4,))).sum().backward()
            optimizer.step()

        return SimpleNamespace(parts={"model": model, "optimizer": optimizer}, train=train)

    lab.check_resume(build)


def test_parameters_that_get_no_gradient_have_no_state(lab):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.paths = nn.ModuleList(nn.Linear(6, 1) for _ in range(3))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            self.calls += 1
            return self.paths[0 if self.calls < 4 else 1](x)

    found = lab.check_resume(_run(OPTIMIZERS["adamw"], Branches))
    stored = found.source.load({})["optimizer"]["state"]
    assert sorted(stored) == [0, 1]
    assert sorted(found.first.optimizer.state_dict()["state"]) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrized_modules(lab, kind):
    apply = getattr(nn.utils.parametrizations, kind)

    def net():
        return nn.Sequential(apply(nn.Linear(6, 4)), nn.Linear(4, 1))

    lab.check_resume(_run(OPTIMIZERS["adamw"], net))


def test_a_compiled_model_and_a_bare_one_have_the_same_names(lab):
    first = lab.make(lambda: SimpleNamespace(parts={"model": _net()}), 0)
    source = lab.commit(first.live)

    def compiled():
        net = _net()
        net[0] = torch.compile(net[0], backend="eager")
        return SimpleNamespace(parts={"model": torch.compile(net, backend="eager")})

    second = lab.make(compiled, 1)
    assert any("_orig_mod" in name for name in second.parts["model"]._orig_mod.state_dict())
    restore_parts(source, second.live)
    assert source.check(capture_parts(second.live)) == ()
    assert torch.equal(second.parts["model"]._orig_mod[0].weight, first.parts["model"][0].weight)
