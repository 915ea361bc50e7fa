"""One optimiser over all parameters, with rates of their own for some of them."""

from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, OneCycleLR

from engine_fakes import classes, classifier
from pyrobbb._support.optim import (
    JointOptimizer,
    fused,
    load_state,
    made_optimizer,
    made_schedule,
    named_parameters,
    parameter_groups,
    set_gradients,
)
from pyrobbb._support.random_state import isolated

ADAM = partial(torch.optim.Adam, lr=0.01)


def three() -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.zeros(2)) for name in ("guide.loc", "guide.rho", "model.scale")}


def test_names_say_whose_they_are_guide_first() -> None:
    model, guide = nn.Linear(3, 2), nn.Sequential(nn.Linear(2, 2))
    named = named_parameters(model, guide)
    assert list(named) == ["guide.0.weight", "guide.0.bias", "model.weight", "model.bias"]
    assert named["model.bias"] is model.bias


def test_groups_without_rates() -> None:
    named = three()
    (group,) = parameter_groups(named, ADAM, {})
    assert group["params"] == list(named.values())
    assert "lr" not in group


def test_each_rate_has_its_group_and_the_rest_another() -> None:
    named = three()
    rest, rho, scale = parameter_groups(named, ADAM, {"rho": 10, "model": 0.5})
    assert rest == {"params": [named["guide.loc"]]}
    assert rho["params"] == [named["guide.rho"]]
    assert rho["lr"] == pytest.approx(0.1)
    assert scale["params"] == [named["model.scale"]]
    assert scale["lr"] == pytest.approx(0.005)
    assert [g["lr"] for g in ADAM([rest, rho, scale]).param_groups] == pytest.approx([0.01, 0.1, 0.005])


def test_rates_for_all_leave_no_rest() -> None:
    named = three()
    groups = parameter_groups(named, ADAM, {"guide": 2.0, "model": 3.0})
    assert [len(group["params"]) for group in groups] == [2, 1]


def test_one_torch_optimiser_steps_all_parameters_once() -> None:
    data = classes()
    _, guide = classifier(data)
    with isolated(0):
        guide(data.train.x)
    before = [p.detach().clone() for p in guide.parameters()]
    for p in guide.parameters():
        p.grad = torch.ones_like(p)
    JointOptimizer(torch.optim.SGD(guide.parameters(), lr=0.5))(set(guide.parameters()))
    for p, old in zip(guide.parameters(), before, strict=True):
        torch.testing.assert_close(p, old - 0.5)
        assert p.grad is None


def test_the_one_kernel_form_is_asked_for_where_torch_has_it() -> None:
    assert fused(ADAM).keywords == {"lr": 0.01, "fused": True}  # type: ignore[attr-defined]
    for kept in (
        partial(torch.optim.Adam, lr=0.01, foreach=True),
        partial(torch.optim.Adam, lr=0.01, fused=False),
        partial(torch.optim.RMSprop, lr=0.01),  # has none
        torch.optim.Adam,
        lambda groups: torch.optim.Adam(groups, lr=0.01),
    ):
        assert fused(kept) is kept


def test_adagrad_has_its_fused_form_on_the_cpu_alone() -> None:
    adagrad = partial(torch.optim.Adagrad, lr=0.01)
    assert fused(adagrad).keywords == {"lr": 0.01, "fused": True}  # type: ignore[attr-defined]
    assert fused(adagrad, "cuda") is adagrad


@pytest.mark.parametrize("named", [{}, {"fused": True}, {"fused": True, "capturable": True}])
def test_adam_can_be_captured_on_cuda_however_it_is_asked_for(named: dict[str, Any]) -> None:
    """The YAML's names its form, which kept it out of CUDA graphs once."""
    made = fused(partial(ADAM, **named), "cuda")
    assert made.keywords == {"lr": 0.01, "fused": True, "capturable": True}  # type: ignore[attr-defined]


@pytest.mark.parametrize("of_cuda", [True, False])
def test_a_state_from_another_device_keeps_our_forms(of_cuda: bool) -> None:
    """A checkpoint made on CUDA has its rate in a tensor and is capturable; one made on the CPU is not."""
    here = {"lr": 0.01, "fused": True}
    there: dict[str, Any] = {"lr": torch.tensor(0.02), "fused": True, "capturable": True}
    if of_cuda:
        here, there = there, here
    (mine,), (theirs,) = ([nn.Parameter(torch.ones(3))] for _ in range(2))
    made, ours = torch.optim.Adam([theirs], **there), torch.optim.Adam([mine], **here)
    for optimizer, parameter in ((made, theirs), (ours, mine)):
        parameter.grad = torch.ones(3)
        optimizer.step()
    load_state(ours, made.state_dict())
    (group,) = ours.param_groups
    assert float(group["lr"]) == pytest.approx(float(there["lr"]))
    assert isinstance(group["lr"], torch.Tensor) is of_cuda
    assert group["capturable"] is of_cuda
    before = mine.detach().clone()
    ours.step()
    assert float(ours.state[mine]["step"]) == 2
    assert not torch.equal(mine, before)


def test_a_state_keeps_the_precision_of_its_tensors() -> None:
    """NAdam's product of momenta is float32 whatever the parameter, and rounds as such."""
    one, other = (nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2))
    made, ours = torch.optim.NAdam([one]), torch.optim.NAdam([other])
    for step in range(4):
        if step == 2:
            load_state(ours, deepcopy(made.state_dict()))
            other.data.copy_(one)
        for parameter in (one, other):
            parameter.grad = torch.full_like(parameter, 0.3)
        made.step()
        if step >= 2:
            ours.step()
    assert ours.state[other]["mu_product"].dtype == made.state[one]["mu_product"].dtype == torch.float32
    assert torch.equal(other, one)


def test_a_state_of_other_groups_is_refused() -> None:
    one, two = (
        torch.optim.SGD([{"params": [p]} for p in list(three().values())[:n]], lr=0.1) for n in (1, 2)
    )
    with pytest.raises(ValueError, match="parameter groups"):
        load_state(one, two.state_dict())


def test_a_rate_below_0_after_the_last_epoch_does_not_matter() -> None:
    """A linear one-cycle schedule overshoots by a step at its end, which is not used."""
    weight = nn.Parameter(torch.zeros(1))
    one = partial(OneCycleLR, max_lr=0.1, total_steps=4, anneal_strategy="linear")
    optimizer = torch.optim.SGD([weight], lr=0.1)
    schedule = made_schedule(one, optimizer, 4)
    rates = []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert min(rates) >= 0


@pytest.mark.parametrize(("total", "said"), [(4, []), (40, ["schedule OneCycleLR lasts 40 steps"])])
def test_a_cycle_that_counts_batches_is_told_of(
    total: int, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    made_schedule(partial(OneCycleLR, max_lr=0.1, total_steps=total), optimizer, 4)
    assert [message.partition(",")[0] for message in caplog.messages] == said


@pytest.mark.parametrize("T", [2, 4])
def test_factors_hold_where_rates_meet_at_the_end_of_a_schedule(T: int) -> None:
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [{"params": [weight], "lr": lr} for weight, lr in zip(weights, (0.01, 0.1), strict=True)]
    made_schedule(partial(CosineAnnealingLR, T_max=T, eta_min=1e-4), torch.optim.SGD(groups), 4)


def test_gradients_in_one_memory_are_apart() -> None:
    """As those of a + b are, and of a + torch.cat([b, c])."""
    g = torch.full((4,), 2.0)
    a, b, c = torch.zeros(4), torch.zeros(2), torch.zeros(2)
    set_gradients([a, b, c], [g, g[:2], g[2:]])
    torch.nn.utils.clip_grad_norm_([a, b, c], 1.0)
    found = torch.cat([part.grad for part in (a, b, c)])  # type: ignore[misc]
    torch.testing.assert_close(found, torch.full((8,), 8**-0.5))


def test_a_key_whose_parameters_have_their_factor_says_so() -> None:
    with pytest.raises(ValueError, match="rates: every parameter that 'rho' matches already has a factor"):
        parameter_groups(three(), ADAM, {"guide": 2.0, "rho": 3.0})


def test_text_for_a_number_is_named() -> None:
    optim: Any = partial(torch.optim.Adam, lr="fast", fused=True)
    with pytest.raises(ValueError, match=r"^optim\.lr must be a number, got 'fast'$"):
        made_optimizer(optim, [{"params": [nn.Parameter(torch.zeros(2))]}])
    with pytest.raises(ValueError, match=r"^optim\.lr must be a number, got \[0\.1\]$"):
        made_optimizer(partial(torch.optim.Adam, lr=[0.1]), [{"params": [nn.Parameter(torch.zeros(2))]}])
    schedule: Any = partial(ExponentialLR, gamma="slow")  # which torch notices at the first epoch's end
    with pytest.raises(ValueError, match=r"^schedule\.gamma must be a number, got 'slow'$"):
        made_schedule(schedule, torch.optim.Adam([nn.Parameter(torch.zeros(2))]), 3)


def test_a_schedule_leaves_the_user_s_rate_in_a_tensor_as_it_was() -> None:
    rate = torch.tensor(0.01)
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(2))], lr=rate)
    schedule = made_schedule(partial(ExponentialLR, gamma=0.5), optimizer, 3)
    optimizer.step()
    schedule.step()
    rates = [float(rate), float(optimizer.param_groups[0]["lr"])]
    assert rates == pytest.approx([0.01, 0.005])
