"""Laplace beside laplace-torch (pip install "laplace-torch==0.3" backpack-for-pytorch); else skipped."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from engine_fakes import classes, network, normal
from pyrobbb import likelihoods, priors
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.data.images.torchvision_compat import import_torchvision
from pyrobbb.inference import Laplace
from pyrobbb.inference.laplace import LaplaceGuide

try:
    import_torchvision()  # before laplace-torch does
except ImportError as error:
    pytest.skip(str(error), allow_module_level=True)
theirs = pytest.importorskip("laplace")
backends = pytest.importorskip("laplace.curvature.backpack")
SIGMA, NOISE = 0.8, 0.3


def _case(task: str) -> tuple[nn.Module, Split, Any]:
    if task == "classification":
        data = classes(N=40)
        return network(), data.train, likelihoods.Categorical()
    x = normal(40, 3)
    return network(width=1), Split(x, x[:, :1].sin()), likelihoods.Normal(scale=NOISE)


def _ours(
    net: nn.Module, data: Split, likelihood: Any, **options: Any
) -> tuple[BayesianNetwork, LaplaceGuide]:
    model = BayesianNetwork(net, priors.Normal(sigma=SIGMA), likelihood, len(data))
    guide = LaplaceGuide(Laplace(**options), model)
    guide.fit(model, data)
    return model, guide


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # of theirs
@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("layers", ["all", "last"])
@pytest.mark.parametrize("structure", ["full", "diagonal", "kronecker"])
def test_it_is_laplace_torch_s(task: str, layers: str, structure: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("pyrobbb.inference.laplace.TURNS", 0)  # theirs takes any weights for a mode
    net, data, likelihood = _case(task)
    model, guide = _ours(net, data, likelihood, structure=structure, layers=layers)
    other = theirs.Laplace(
        net,
        task,
        subset_of_weights="all" if layers == "all" else "last_layer",
        hessian_structure={"full": "full", "diagonal": "diag", "kronecker": "kron"}[structure],
        prior_precision=SIGMA**-2,
        backend=backends.BackPackGGN,
        **({"sigma_noise": NOISE} if task == "regression" else {}),
    )
    other.fit(DataLoader(TensorDataset(data.x, data.y), batch_size=len(data)))
    close = {"rtol": 1e-5, "atol": 1e-5}
    variance = {
        "full": lambda: other.posterior_covariance.diagonal(),
        "diagonal": lambda: other.posterior_variance,
        "kronecker": lambda: other.posterior_precision.diag(exponent=-1),
    }[structure]()
    torch.testing.assert_close(guide.curvature.variance(), variance.detach(), **close)
    torch.testing.assert_close(
        guide.log_evidence, other.log_marginal_likelihood().detach().squeeze(), **close
    )
    few = data.x[:5]
    for found, expected in zip(
        _functions(model, guide, few), other._glm_predictive_distribution(few), strict=True
    ):
        torch.testing.assert_close(found, expected.detach(), **close)


def _functions(model: BayesianNetwork, guide: LaplaceGuide, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (N, K) and covariance (N, K, K) of the linearised network's outputs."""
    network, mode = guide.linearised(model), guide.loc.detach()

    def outputs(flat: Tensor) -> Tensor:
        return network.apply_network(guide.split(flat), x)

    J = torch.func.jacrev(outputs)(mode)[..., guide.where]
    solved = torch.stack([guide.curvature.solve(slope) for slope in J.flatten(0, 1)]).view_as(J)
    return outputs(mode), torch.einsum("nkd,nld->nkl", J, solved)
