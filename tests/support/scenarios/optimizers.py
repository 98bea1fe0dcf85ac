"""Optimizers of torch, and one of the user."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from support.scenarios.basics import WIDTH, loss_of, make_net, scenario, simple, windows
from support.scenarios.schedulers import SCHEDULERS
from support.training_runs import Run


def _with_optimizer(make):
    def build():
        model = make_net()
        return simple(model, make(model.parameters()))

    return build


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "sgd-momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, foreach=False),
    "adamw-plain": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, weight_decay=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
    "rprop": lambda p: torch.optim.Rprop(p, 0.01),
    "tensor-lr": lambda p: torch.optim.AdamW(p, torch.tensor(0.01), foreach=False),
    "radam": lambda p: torch.optim.RAdam(p, 0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "asgd": lambda p: torch.optim.ASGD(p, 0.01),
}
for _name, _make in OPTIMIZERS.items():
    scenario(_name, beside="optimizers")(_with_optimizer(_make))


@scenario("tensor-lr-scheduled", beside="optimizers")
def scheduled():
    """Schedulers change a rate that is a tensor in place."""
    model = nn.Sequential(make_net(), nn.Linear(4, WIDTH), make_net())
    optimizers = [torch.optim.AdamW(model[at].parameters(), torch.tensor(0.01)) for at in (0, 2)]
    makes = (SCHEDULERS["sequential"], SCHEDULERS["onecycle"])
    schedulers = [make(one) for make, one in zip(makes, optimizers, strict=True)]
    return simple(model, optimizers, schedulers=schedulers, scheduler=schedulers)


def _lbfgs(**options):
    model = make_net(norm=False, dropout=0.0)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, history_size=4, **options)

    def step(batch, between):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            between()
            return loss

        return optimizer.step(closure).item()

    return Run({"model": model, "optimizer": optimizer}, step, windows)


scenario("lbfgs", beside="special-optimizers")(lambda: _lbfgs(lr=0.5))
scenario("lbfgs-wolfe", beside="special-optimizers")(lambda: _lbfgs(line_search_fn="strong_wolfe"))


@scenario("muon", beside="special-optimizers", when=hasattr(torch.optim, "Muon"))
def muon():
    model = make_net()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    pair = [torch.optim.Muon(matrices, 0.02), torch.optim.AdamW(others, 0.01)]
    return simple(model, pair)


class SignDescent(torch.optim.Optimizer):
    """An optimizer of the user's: state of tensors, numbers and lists, and an attribute."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr, "beta": 0.9})
        self.steps_taken = 0

    @torch.no_grad()
    def step(self):
        self.steps_taken += 1
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                if not state:
                    state.update(
                        mean=torch.zeros_like(param, dtype=torch.float64), count=0, norms=[]
                    )
                state["mean"].lerp_(param.grad.double(), 1 - group["beta"])
                state["count"] += 1
                state["norms"] = [*state["norms"][-3:], param.grad.norm().item()]
                lr = group["lr"] / (1 + self.steps_taken / 10) * (1 + sum(state["norms"]))
                param.sub_((state["mean"].sign() * lr).to(param.dtype))

    def state_dict(self):
        return {**super().state_dict(), "steps_taken": self.steps_taken}

    def load_state_dict(self, state_dict):
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "steps_taken"})
        self.steps_taken = state_dict["steps_taken"]


@scenario("custom-optimizer", beside="special-optimizers")
def custom_optimizer():
    model = make_net()
    return simple(model, SignDescent(model.parameters(), 0.01))


@scenario("sparse-adam", beside="special-optimizers")
def sparse_adam():
    table = nn.Embedding(256, 4, sparse=True)
    head = nn.Linear(4, 4)
    model = nn.ModuleDict({"table": table, "head": head})
    pair = {
        "sparse": torch.optim.SparseAdam(table.parameters(), 0.05),
        "dense": torch.optim.Adam(head.parameters(), 0.05),
    }

    def step(batch, between):
        inputs, targets = batch
        for one in pair.values():
            one.zero_grad()
        loss = functional.cross_entropy(head(table((inputs * 128).long()).mean(1)), targets)
        loss.backward()
        pair["sparse"].step()  # killed with one of two steps taken
        between()
        pair["dense"].step()
        return loss.item()

    return Run({"model": model, "optimizers": pair}, step, windows)


class Lookahead:
    """Goes two steps with another optimizer, and then half of the way back."""

    def __init__(self, inner):
        self.inner, self.param_groups, self.slow, self.count = inner, inner.param_groups, [], 0

    def zero_grad(self):
        self.inner.zero_grad()

    @torch.no_grad()
    def step(self):
        params = [param for group in self.param_groups for param in group["params"]]
        self.slow = self.slow or [param.clone() for param in params]
        self.inner.step()
        self.count += 1
        for slow, param in zip(self.slow, params if self.count % 2 == 0 else (), strict=False):
            param.copy_(slow.lerp_(param, 0.5))

    def state_dict(self):
        return {"inner": self.inner.state_dict(), "slow": self.slow, "count": self.count}

    def load_state_dict(self, state):
        self.inner.load_state_dict(state["inner"])
        self.slow, self.count = [slow.clone() for slow in state["slow"]], state["count"]


class BareLookahead(Lookahead, torch.optim.Optimizer):
    """As many are: an optimizer that was never made one."""

    @property
    def state(self):
        return self.inner.state


def _lookahead(kind):
    def build():
        model = make_net()
        return simple(model, kind(torch.optim.Adam(model.parameters(), 0.01)))

    return build


scenario("lookahead", beside="special-optimizers")(_lookahead(Lookahead))
scenario("lookahead-bare", beside="special-optimizers")(_lookahead(BareLookahead))


class SharpnessAware(torch.optim.Optimizer):
    """Climbs, and steps back from there through another optimizer, whose state it leaves out."""

    def __init__(self, params, inner, rho=0.05):
        super().__init__(params, {"rho": rho})
        self.inner = inner(self.param_groups)
        self.param_groups = self.inner.param_groups

    @torch.no_grad()
    def climb(self):
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["before"] = param.data.clone()
                param.add_(group["rho"] * param.grad / (param.grad.norm() + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                param.data = self.state[param]["before"]
        self.inner.step()


@scenario("sharpness-aware", beside="special-optimizers")
def sharpness_aware():
    model = make_net()
    optimizer = SharpnessAware(model.parameters(), lambda groups: torch.optim.Adam(groups, 0.01))

    def step(batch, between):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.climb()
        loss = loss_of(model, batch)
        loss.backward()
        between()
        optimizer.step()
        return loss.item()

    parts = {"model": model, "optimizer": optimizer}
    return Run(parts, step, windows, also={"inner": optimizer.inner})


class Joined(torch.optim.Optimizer):
    """Steps several optimizers as one, and leaves out what they have."""

    def __init__(self, *members):
        params = [
            param for one in members for group in one.param_groups for param in group["params"]
        ]
        super().__init__(params, {"lr": 1.0})
        self.members = members

    def step(self, closure=None):
        for one in self.members:
            one.step()


@scenario("joined", beside="special-optimizers")
def joined():
    model = make_net()
    members = [
        torch.optim.SGD(model[0].parameters(), 0.1, momentum=0.9),
        torch.optim.Adam(model[4].parameters(), 0.01),
    ]
    run = simple(model, Joined(*members))
    run.also = {"members": members}
    return run
