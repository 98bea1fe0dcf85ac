"""A scale that collapses is found, and no healthy scaler ever alarms."""

import math

import numpy as np
import pytest
import torch

from mvc import UsageError
from mvc_hooks import Checkpointer, ScaleCollapse
from mvc_hooks.divergence.history import History, Reading
from mvc_hooks.divergence.scale import is_scaling, read_first_scale, read_scale
from mvc_hooks.divergence.watch import Watch, default_detectors
from support.bounds import bounded, rest_nightly
from support.readings import ReadingQueue

_LARGEST = 65504.0


def _scaler(gradients, *, first=2.0**16, growth=2.0, backoff=0.5, interval=2000):
    """Yield the scale after each step as a scaler has it; ``gradients`` are the largest of each step."""
    scale, calm = first, 0
    for largest in gradients:
        if not math.isfinite(largest) or largest * scale > _LARGEST:
            scale, calm = scale * backoff, 0
        else:
            calm += 1
            if calm == interval:
                scale, calm = scale * growth, 0
        yield float(np.float32(scale))


def _first_alarm(scales, first=2.0**16, detector=None):
    """Return the first verdict. The detector is asked where the scale fell below its floor."""
    detector, scales = detector or ScaleCollapse(), np.fromiter(scales, np.float64)
    fell = (np.diff(scales, prepend=first) < 0) | (scales == 0)
    columns = {
        "steps": np.arange(1, len(scales) + 1), "losses": np.zeros(len(scales)),
        "grad_norms": np.zeros(len(scales)), "lrs": np.zeros(len(scales)),
        "flags": np.zeros(len(scales), np.uint8), "scales": scales, "overflows": np.cumsum(fell),
    }  # fmt: skip
    for at in np.flatnonzero(fell & (scales < detector.floor)):
        history = History()
        history.load_state_dict({"count": int(at) + 1, **columns})
        verdict = detector(history)
        if verdict is not None:
            return verdict
    return None


def _healthy(seed, steps):
    """Return the largest gradients of a healthy run, and the options of its scaler."""
    rng = np.random.default_rng(seed)
    level = 2.0 ** rng.uniform(-12, 14)
    spread = rng.uniform(0, 1.5)
    noise = rng.standard_t(rng.choice([2.5, 4, 30]), steps) * spread
    drift = np.cumsum(rng.normal(0, rng.choice([0, 0.01, 0.03]), steps))
    decay = rng.choice([0.0, 4.0]) * np.exp(-np.arange(steps) / 200)
    sizes = level * np.exp2(np.clip(noise + drift - np.mean(drift) + decay, -40, 16))
    # Between 1 and fp16's largest number there is a scale for every gradient but a few.
    sizes = np.minimum(sizes, _LARGEST / 2)
    sizes[rng.random(steps) < rng.choice([0, 0.001])] = math.inf
    options = {
        "first": 2.0 ** rng.choice([0, 8, 16, 24, 32]),
        "interval": int(rng.choice([50, 200, 1000, 2000])),
    }
    return sizes, options


def _count_false(seeds, steps):
    found = 0
    for seed in seeds:
        sizes, options = _healthy(seed, steps)
        found += _first_alarm(_scaler(sizes, **options), options["first"]) is not None
    return found


def test_healthy_scalers_never_alarm():
    assert _count_false(range(bounded(100, 3000)), bounded(1500, 3000)) == 0


@pytest.mark.parametrize("first", [2.0**16, 2.0**32, 1.0])
def test_the_search_and_one_halving_per_interval_never_alarm(first):
    """The gradients need a scale below 1, as those of a sum over a million losses do."""
    sizes = np.full(30_000, 2.0**22)
    scales = list(_scaler(sizes, first=first, interval=200))
    assert min(scales) < 2.0**-6
    assert _first_alarm(scales, first) is None


@pytest.mark.parametrize(("begin", "steps"), [(0, 40), (300, 25), (5000, 25)])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_gradients_that_overflow_at_any_scale_alarm(begin, steps, value):
    sizes = np.full(begin + 200, 0.5)
    sizes[begin:] = value
    scales = list(_scaler(sizes, interval=100))
    verdict = _first_alarm(scales)
    assert verdict.cause == "scale"
    assert begin < verdict.onset_step <= begin + 20
    assert verdict.step <= begin + steps
    assert scales[verdict.step - 1] < 1
    assert "clip the gradients" in verdict.reason


def test_a_scale_that_sinks_slowly_alarms_only_below_the_floor():
    """Three of four steps overflow, for a while; it stands still at the end."""
    sizes = np.where(np.arange(3000) % 4, 1e9, 1.0)
    sizes[:1000] = 0.1
    scales = list(_scaler(sizes, interval=300))
    verdict = _first_alarm(scales)
    assert scales[verdict.step - 1] < 1 <= scales[verdict.step - 2]


def test_a_scale_of_zero_goes_on_alarming():
    watch = Watch(default_detectors(has_scaler=True))
    watch.history.begin(2.0**16)
    scales = list(_scaler(np.full(1500, math.nan)))
    found = [watch.take(Reading(n, scale=x)) for n, x in enumerate(scales, start=1)]
    assert scales[-1] == 0
    assert sum(one is not None for one in found) == 3  # the cooldown is 512 steps
    assert watch.history.overflows[-1] == 1500


def test_a_scale_that_the_script_sets_begins_a_search():
    scales = [*_scaler(np.full(500, 60000.0), interval=100)]
    scales += [2.0**40, *_scaler(np.full(300, 2.0**20), first=2.0**40, interval=100)]
    assert _first_alarm(scales) is None


def test_a_run_without_a_scaler_has_no_detector_and_no_columns():
    assert ScaleCollapse not in map(type, default_detectors())
    history = History(4)
    history.append(Reading(1, 2.0))
    assert {"scales", "overflows"}.isdisjoint(history.state_dict())
    history.begin(8.0)
    history.append(Reading(2, 2.0, scale=4.0))
    assert list(history.state_dict()["overflows"]) == [0, 0, 0, 0]  # the scale before was unknown


def test_overflows_are_counted_across_window_rollback_and_state():
    history = History(4)
    history.begin(8.0)
    scales = [8.0, 4.0, 4.0, 2.0, 1.0, 2.0, 1.0, 1.0]
    for step, scale in enumerate(scales, start=1):
        history.append(Reading(step, scale=scale))
    assert list(history.overflows) == [3, 3, 4, 4]
    again = History(4)
    again.load_state_dict(history.state_dict())
    for one in (history, again):
        one.forget_after(6)
        one.append(Reading(7, scale=1.0))
        assert list(one.overflows) == [3, 3, 4]
    history.forget_after(0)
    history.append(Reading(1, scale=2.0))
    assert history.overflows[-1] == 2  # those of steps 2 and 4, which the window no longer has
    short = History(4)
    short.begin(8.0)
    short.append(Reading(1, scale=4.0))
    short.forget_after(0)
    short.append(Reading(1, scale=4.0))
    assert short.overflows[-1] == 1


@pytest.mark.parametrize(
    "options",
    [{"halvings": 0}, {"floor": -1.0}, {"floor": math.nan}, {"window": 1}, {"cooldown": -1}],
)
def test_settings_that_make_no_sense(options):
    with pytest.raises(UsageError, match="of ScaleCollapse is"):
        ScaleCollapse(**options)


def test_scales_are_read_where_they_lie():
    scalers = [torch.amp.GradScaler("cpu", init_scale=scale) for scale in (8.0, 4.0)]
    assert read_scale([]) is None
    assert read_scale(scalers) == read_first_scale(scalers) == 4.0
    scalers[0].scale(torch.ones(()))
    assert float(read_scale(scalers)) == 4.0
    scalers[0]._scale.fill_(2.0)
    assert float(read_scale(scalers)) == 2.0
    assert not is_scaling(torch.amp.GradScaler("cpu", enabled=False))


def test_a_queue_reads_scales_beside_the_rest():
    queue = ReadingQueue(reads_scale=True)
    queue.put(1, 0.5, scale=torch.tensor(1024.0))
    queue.put(2, 0.5)
    assert queue.take() == [Reading(1, 0.5, scale=1024.0), Reading(2, 0.5)]


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device; this machine has none"
)
def test_a_loss_on_the_host_does_not_wait_for_a_scale_on_the_device():
    queue, scale = ReadingQueue(reads_scale=True), torch.tensor(8.0, device="cuda")
    for step in range(1, 6):
        queue.put(step, 0.5, scale=scale)
        scale /= 2
        expected = None if step < 3 else 8.0 / 2 ** (step - 3)
        assert queue.take() == [Reading(step, 0.5, scale=expected)]


def _train(folder, total, spoil=(), every=4):
    """Train with a scaler; in spoiled steps gradients overflow."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
    with Checkpointer(
        folder, model=model, optimizer=optimizer, scaler=scaler, every=every, detectors=()
    ) as ckpt:
        for step in ckpt.steps(total):
            factor = math.inf if step + 1 in spoil else 1.0
            loss = model(torch.ones(2, 4)).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            ckpt.step(loss=loss)
        run = ckpt.repo.runs.read(ckpt.branch)
        metrics = {
            entry.annotations.step: dict(entry.annotations.metrics) for entry in ckpt.repo.log()
        }
        history = ckpt._judge._watch.history
        return run, metrics, history.scales.tolist(), history.overflows.tolist()


def test_a_killed_run_goes_on_with_scale_counts_and_history(tmp_path):
    spoil = {1, 7, 9, 14}
    whole = _train(tmp_path / "whole", 16, spoil)
    _train(tmp_path / "parted", 8, spoil)
    parted = _train(tmp_path / "parted", 16, spoil)
    assert parted[2:] == whole[2:]
    assert whole[3][-1] == 4
    assert {step: one["overflows"] for step, one in whole[1].items() if step} == {
        4: 1,
        8: 2,
        12: 3,
        16: 4,
    }
    assert parted[1] == whole[1]
    assert (whole[0].scale, whole[0].overflows) == (whole[2][-1], 4)
    assert [scale for _, scale in whole[0].scales] == [512, 1024, 512, 256, 128][
        : len(whole[0].scales)
    ]


@pytest.mark.parametrize("seed", rest_nightly(range(8)))
def test_real_scalers_never_alarm(seed):
    """PyTorch's own scaler, with gradients that are fp16: searches, growth, and outliers that overflow."""
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    first, interval = 2.0 ** rng.choice([4, 16, 30]), int(rng.choice([20, 100, 500]))
    level, tail = 2.0 ** rng.uniform(-8, 12), rng.uniform(0.5, 2.5)
    param = torch.nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.SGD([param], lr=1e-6)
    scaler = torch.amp.GradScaler("cpu", init_scale=float(first), growth_interval=interval)
    scales = []
    for _ in range(1500):
        optimizer.zero_grad()
        size = level * torch.exp2(tail * torch.randn(8, generator=generator)).clamp(max=2.0**3)
        scaler.scale((param * size).sum()).backward()
        param.grad = param.grad.half().float()  # as a backward pass in fp16 leaves it
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert np.any(np.diff(scales) < 0) or first == 2.0**4
    assert _first_alarm(scales, first) is None


def test_a_real_scaler_that_collapses_alarms():
    param = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([param], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=10)
    scales = []
    for step in range(80):
        optimizer.zero_grad()
        scaler.scale(param.sum() * (math.nan if step >= 40 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    verdict = _first_alarm(scales)
    assert (verdict.onset_step, scales[verdict.step - 1]) == (42, 0.5)
