"""The KL shares: they sum to one where they should, stay finite for any M, and reach both traces."""

import math
from itertools import pairwise

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro import poutine

from engine_fakes import law
from pyrobbb import kl_weights as kl


def shares(scheme: kl.KLWeight, N: int, B: int, epoch: int = 1) -> list[float]:
    """pi_1 .. pi_M of an epoch over N data in minibatches of B, the last of them possibly shorter."""
    sizes = [min(B, N - start) for start in range(0, N, B)]
    return [scheme.weight(i + 1, len(sizes), epoch, size / N) for i, size in enumerate(sizes)]


@law
@given(st.integers(1, 3000), st.integers(1, 500), st.integers(1, 20))
def test_shares_of_an_epoch_sum_to_one(N: int, B: int, epoch: int) -> None:
    for scheme in (kl.Uniform(), kl.Geometric()):
        assert math.fsum(shares(scheme, N, B, epoch)) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("M", [1, 2, 391, 469, 600, 10**6])
def test_geometric_shares(M: int) -> None:
    pi = [kl.Geometric().weight(i, M, 1, 1 / M) for i in range(1, M + 1)]
    assert all(math.isfinite(p) and p >= 0 for p in pi)
    assert math.fsum(pi) == pytest.approx(1.0, abs=1e-12)
    assert all(a == 2 * b for a, b in pairwise(pi[:1000]))
    assert pi[0] == pytest.approx(2 ** (M - 1) / (2**M - 1) if M < 1000 else 0.5, rel=1e-15)


@pytest.mark.parametrize("M", [391, 469])
def test_geometric_goldens(M: int) -> None:
    scheme = kl.Geometric()
    for i in (1, 2, 10):
        assert scheme.weight(i, M, 1, 1 / M) == pytest.approx(2.0**-i, abs=1e-15)
    assert kl.Geometric().weight(469, 469, 1, 1 / 469) == pytest.approx(6.6e-142, rel=0.01)
    assert torch.tensor([scheme.weight(i, M, 1, 1 / M) for i in range(1, M + 1)]).isfinite().all()


def test_uniform_is_one_over_m() -> None:
    assert shares(kl.Uniform(), 600, 6) == pytest.approx([1 / 100] * 100, abs=1e-12)


def test_a_short_last_minibatch_carries_its_share_of_the_data() -> None:
    """So that the KL's weight in Pyro's units, share * N / B, is 1 in every step."""
    assert shares(kl.Uniform(), 20, 6) == pytest.approx([0.3, 0.3, 0.3, 0.1], abs=1e-15)


def test_full_is_m_times_too_much() -> None:
    assert shares(kl.Full(), 10, 3) == [1.0] * 4


@law
@given(st.integers(1, 9), st.integers(1, 20), st.integers(1, 40), st.floats(1e-3, 10))
def test_warm_up_and_temperature_multiply(epochs: int, epoch: int, i: int, temperature: float) -> None:
    inner = kl.Geometric().weight(i, 40, epoch, 1 / 40)
    warm = kl.WarmUp(epochs=epochs, then=kl.Geometric())
    assert warm.weight(i, 40, epoch, 1 / 40) == pytest.approx(min(1, epoch / epochs) * inner)
    both = kl.Tempered(temperature=temperature, then=warm)
    assert both.weight(i, 40, epoch, 1 / 40) == pytest.approx(temperature * min(1, epoch / epochs) * inner)


def test_warm_up_and_temperature_start_from_uniform_shares() -> None:
    assert kl.WarmUp(epochs=4).weight(3, 10, 1, 0.1) == pytest.approx(0.025)
    assert kl.WarmUp(epochs=4).weight(3, 10, 4, 0.1) == kl.WarmUp(epochs=4).weight(3, 10, 9, 0.1) == 0.1
    assert kl.Tempered(temperature=0.5).weight(3, 10, 1, 0.1) == pytest.approx(0.05)


@law
@given(st.floats(0, 100))
def test_a_weight_of_the_latents_leaves_the_data_alone(scale: float) -> None:
    def program() -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 30, subsample=torch.zeros(3)):
            pyro.sample("y", dist.Normal(w, 1.0), obs=torch.zeros(3))

    with kl.Weighted(scale):
        trace = poutine.trace(program).get_trace()
    trace.compute_log_prob()
    w, y = trace.nodes["w"], trace.nodes["y"]
    assert w["scale"] == scale
    torch.testing.assert_close(w["log_prob_sum"], scale * w["unscaled_log_prob"].sum())
    assert y["scale"] == 10.0


def test_only_what_is_observed_in_the_plate_of_the_rows_is_of_the_likelihood() -> None:
    def model() -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("measured", dist.Normal(w, 1.0), obs=torch.tensor(0.5))
        with pyro.plate("data", 3):
            z = pyro.sample("z", dist.Normal(w, 1.0))  # a latent of each row
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(3))

    nodes = poutine.trace(model).get_trace().nodes
    assert [name for name, site in nodes.items() if site["type"] == "sample" and kl.of_rows(site)] == ["y"]
