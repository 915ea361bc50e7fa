"""What NUTS hands to Pyro's sampler, in closed form, and what it makes of the draws."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from exact_models import NOISE, SIGMA, D, N, linear
from pyrobbb import fit
from pyrobbb._support.random_state import isolated
from pyrobbb.data import from_arrays
from pyrobbb.inference import NUTS, nuts
from pyrobbb.kl_weights import Geometric, KLWeight, Tempered


class Handed(Exception):  # noqa: N818
    """Ends a training where the sampler would begin."""


def handed(monkeypatch: pytest.MonkeyPatch, rows: Any, **options: Any) -> tuple[Any, dict[str, Tensor]]:
    """The kernel and the starting weights of the linear model."""
    seen: list[Any] = []

    def sampler(kernel: Any, draws: int, warmup: int, *, initial_params: Any, disable_progbar: bool) -> None:
        seen.extend([kernel, initial_params, draws, warmup])
        raise Handed

    monkeypatch.setattr(nuts, "MCMC", sampler)
    method, (model, *_) = NUTS(warmup=7, draws=5, max_tree_depth=1, **options), linear()
    with isolated(0), pytest.raises(Handed):
        method.finish(model, method.guide(model, None), lambda: rows, print)
    assert seen[2:] == [5, 7]
    return seen[0], seen[1]


@pytest.mark.parametrize("weighted", [False, True])
def test_the_potential_is_the_energy_of_all_rows(weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    _, data, *_ = linear()
    counts = torch.arange(N) % 3 if weighted else torch.ones(N)
    rows = replace(data, weights=counts.float()) if weighted else data
    kernel, start = handed(monkeypatch, rows)
    x, y, c = data.x.double(), data.y[:, 0].double(), counts.double()
    z = start["z"].clone().requires_grad_()
    energy = kernel.potential_fn({"z": z})
    exact = 0.5 * (c * (y - x @ z) ** 2).sum() / NOISE**2 + 0.5 * z @ z / SIGMA**2
    zero = torch.zeros(D, dtype=torch.float64)
    apart = energy - kernel.potential_fn({"z": zero}) - (exact - 0.5 * (c * y**2).sum() / NOISE**2)
    assert float(apart.detach()) == pytest.approx(0, abs=1e-9 * float(exact.detach()))
    (ours,), (theirs,) = (torch.autograd.grad(3 * value, z) for value in (energy, exact))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=0)


@pytest.mark.parametrize("kl", [Geometric(), Tempered(temperature=0.5)])
def test_the_kl_has_no_other_weight(kl: KLWeight) -> None:
    """The reason for shares by minibatch was that of methods which take minibatches."""
    model, rows, *_ = linear()
    data = from_arrays(rows.x, rows.y, task="regression")
    with pytest.raises(
        ValueError, match="the posterior itself, in which the KL has no weight but 1; use kl=uniform"
    ):
        fit(model, None, data, inference=NUTS(draws=4), kl=kl, progress=None)


def test_the_start_is_as_wide_as_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    _, start = handed(monkeypatch, linear()[1], start=3.0)
    with isolated(0):
        assert torch.equal(start["z"], 3 * torch.randn(D, dtype=torch.float64))


def test_what_an_interruption_left_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nuts.MCMC, "diagnostics", lambda self: {"divergences": {"chain 0": [3]}})
    model, data, *_ = linear()
    method, guides = NUTS(warmup=3, draws=4, max_tree_depth=2), []
    for left in (0, 2):
        guide = method.guide(model, None)
        guide.diverging[:left] = True
        for _ in range(left):
            guide.keep(torch.full((D,), 9.0))
        with isolated(0):
            assert method.finish(model, guide, lambda: data, print)
        guides.append(guide)
    for one, other in zip(*(guide.buffers() for guide in guides), strict=True):
        assert torch.equal(one, other)
    assert not method.finish(model, guide, lambda: data, print)  # all are there
