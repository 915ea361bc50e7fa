"""Ghia's NaNs: a density that underflows, and shares from powers of 2 in float32."""

import math

import torch

from experiments.reproductions import underflow
from experiments.reproductions.controls import LogOfSum, shares_of_powers

BLOBS = ["data=blobs", "data.classes=10", "data.features=784", "data.N=1280", "+data.validation=0"]


def test_the_prior_whose_density_underflows_is_the_mixture_near_0():
    near, far = torch.tensor(0.01), torch.tensor(5.0)
    mixture = LogOfSum(sigma1=math.exp(-2)).base_distribution(near)
    exact = super(type(mixture), mixture).log_prob
    assert torch.allclose(mixture.log_prob(near), exact(near))
    assert float(mixture.log_prob(far)) == -math.inf
    assert math.isfinite(float(exact(far)))
    assert mixture.expand((3,)).log_prob(far).tolist() == [-math.inf] * 3


def test_the_shares_are_nan_where_2_to_the_power_is_beyond_float32():
    shares = shares_of_powers(391)
    assert int(shares.isnan().sum()) == 391 - 128  # 2^(M-i) is infinite too: inf / inf
    assert (shares[-128:] == 0).all()
    assert torch.allclose(shares_of_powers(3), torch.tensor([4.0, 2.0, 1.0]) / 7)


def test_each_mixture_is_trained_in_each_way(tmp_path, monkeypatch):
    monkeypatch.setattr(underflow, "MIXTURES", [(-2, -8)])
    monkeypatch.setattr(underflow, "DATA", BLOBS)
    record = underflow.main(["model.hidden=[50]", f"folder={tmp_path}"])
    assert [row["way"] for row in record["rows"]] == list(underflow.WAYS)
    steps = [row.get("stopped_step", math.inf) for row in record["rows"]]
    assert steps[1] < steps[0], "the log of a sum is the first that is not finite"
    assert record["shares"][0] == {"M": 391, "nan": 263, "zero": 128}
    said = underflow.report(record)
    assert f"not finite at step {steps[1]}" in said
    assert "263 shares are NaN, 128 are 0" in said
