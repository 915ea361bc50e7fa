"""Bayesian and plain networks for R runs at once, as chains of one batched update."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from pyrobbb._support import checks
from pyrobbb._support.flat import split
from pyrobbb._support.network_checks import check_rows_stay_apart, dropping
from pyrobbb._support.random_state import isolated
from pyrobbb._support.settings import changes
from pyrobbb.accelerated.batched_update import BatchedUpdate
from pyrobbb.accelerated.prior_segments import prior_segments
from pyrobbb.accelerated.rng import KeyedNormals
from pyrobbb.bandits.learner import Learner
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import digest_of
from pyrobbb.likelihoods import Likelihood
from pyrobbb.training import compatibility


class MeanFieldLearner(Learner):
    """R mean-field posteriors over R networks of one shape.

    The noise of update t of a run is a function of the run's seed and t, regardless of the rest of the batch.

    Args:
        model: The Pyro model, whose prior, likelihood and network all runs share.
        guides: One for each run, with flat parameters `loc` and `rho` and their `shapes`, as
            `MeanFieldNormal` has them; they are read here and written by `write_back`.
        seeds: One for each run; each decides the noise of its run, and the initial values where its guide
            draws some (`init_loc=kaiming`): by default all runs start with the network's own weights.
        width: Length of one input row.
        lr: Adam's learning rate at the start.
        lr_decay: How fast the rate falls: after t updates it is lr / (1 + t lr_decay).
        compiled: Compile the update; without a C++ compiler it runs uncompiled, several times slower.

    Raises:
        ValueError: If a guide has another type or is given twice, or the model has dropout, point parameters,
            weights that are not float32 or a prior that is not element-wise.
    """

    def __init__(
        self,
        model: BayesianNetwork,
        guides: Sequence[Any],
        seeds: Sequence[int],
        *,
        width: int,
        lr: float = 1e-3,
        lr_decay: float = 0.0,
        compiled: bool = True,
    ) -> None:
        if not len(seeds) or len(guides) != len(seeds):
            raise ValueError(f"each run needs a guide and a seed, got {len(guides)} and {len(seeds)}")
        seeds = checks.seeds(seeds, len(guides))
        if len({*map(id, guides)}) < len(guides):
            raise ValueError("each run needs a guide of its own, but one is given twice: make one for each")
        if any(True for _ in model.parameters()):
            raise ValueError("the model has parameters without a prior, which are not trained here")
        if more := model.other_latents:
            raise ValueError(
                f"the model's latents {', '.join(more)} are not weights, and are not trained here"
            )
        if model.learned:
            raise ValueError("a bandit's updates keep the prior fixed: a learned one is not followed here")
        _check_network(model.network, model.initial())
        for guide, seed in zip(guides, seeds, strict=True):
            with isolated(seed), torch.no_grad():
                guide(torch.zeros(1, width))  # guides make their parameters at the first call
        with isolated(), torch.no_grad():
            output = model.apply_network(model.initial(), torch.zeros(1, width))
        _check_mean(model.likelihood, output, output.shape[:1])
        flat = all(hasattr(guide, name) for guide in guides for name in ("loc", "rho", "shapes"))
        if not flat or any(guide.rho.shape != guide.loc.shape for guide in guides):
            raise ValueError("the guides must have flat `loc` and `rho`, as MeanFieldNormal")
        self.model, self.guides, self.seeds, self.runs = model, list(guides), seeds, len(seeds)
        buffers = model.network.named_buffers()  # the weights' initial values among them
        self.fixed = {name: digest_of(value) for name, value in buffers if name not in model.places}
        with isolated():
            segments = prior_segments({name: model.prior_of(name) for name in model.sites})
        loc, rho = (torch.stack([getattr(g, name).detach() for g in guides]) for name in ("loc", "rho"))
        self.update = BatchedUpdate(
            model.log_likelihood,
            guides[0].shapes,
            loc,
            rho,
            segments,
            lr=lr,
            lr_decay=lr_decay,
            compiled=compiled,
        )
        self.noise, self.choice_noise = (
            KeyedNormals(seeds, loc.shape[1], stream=stream, compiled=compiled) for stream in (0, 1)
        )
        self.choices = 0  # draws made for predictions

    def train(self, x: Tensor, y: Tensor, share: float) -> None:
        self.update(x, y, share, self.noise.draw(self.update.steps))

    def predict(self, rows: Tensor, draws: int) -> Tensor:
        total = torch.zeros(rows.shape[:2])
        loc, rho = self.update.loc, self.update.rho
        assert rho is not None
        with torch.no_grad():
            sigma = F.softplus(rho)
            for _ in range(draws):
                w = loc + sigma * self.choice_noise.draw(self.choices)
                self.choices += 1
                output = torch.vmap(self.model.apply_network)(split(w, self.update.shapes), rows)
                total += self.model.likelihood(output).mean[..., 0]
        return total / draws

    def write_back(self) -> list[Any]:
        """The guides, with what they have learnt: for `Posterior`, ArviZ and everything else."""
        assert self.update.rho is not None
        with torch.no_grad():
            for guide, loc, rho in zip(self.guides, self.update.loc, self.update.rho, strict=True):
                guide.loc.copy_(loc)
                guide.rho.copy_(rho)
        return self.guides

    def made_with(self) -> dict[str, Any]:
        made = {"seeds of the learner": self.seeds, "fixed tensors of the network": self.fixed}
        return {**self.update.rates, **compatibility.model(self.model), **made}

    def state_dict(self) -> dict[str, Any]:
        return {"update": self.update.state_dict(), "choices": self.choices}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.update.load_state_dict(state["update"])
        self.choices = state["choices"]


class PointLearner(Learner):
    """R plain networks of one shape, trained by Adam on -log P(D_i | w): what the baselines know.

    Args:
        networks: One for each run, with its initial weights; they are copied and left as they were.
        likelihood: What a reward is, given the network's output.
        lr: Adam's learning rate at the start.
        lr_decay: How fast the rate falls: after t updates it is lr / (1 + t lr_decay).
        compiled: Compile the update; without a C++ compiler it runs uncompiled, several times slower.

    Raises:
        ValueError: If the networks differ in shape, have dropout or mix the rows of a batch, one of their
            parameters is frozen or not float32, or the likelihood has parameters of its own.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        likelihood: Likelihood,
        *,
        lr: float = 1e-3,
        lr_decay: float = 0.0,
        compiled: bool = True,
    ) -> None:
        if not networks:
            raise ValueError("networks must hold at least one network")
        if any(True for _ in likelihood.parameters()):
            raise ValueError(f"{type(likelihood).__name__} has parameters, which are not trained here")
        check_rows_stay_apart(networks[0])
        parameters = [dict(network.named_parameters()) for network in networks]
        for network, own in zip(networks, parameters, strict=True):
            _check_network(network, own)
        frozen = [name for one in parameters for name, p in one.items() if not p.requires_grad]
        if frozen:
            raise ValueError(f"parameter {frozen[0]!r} is frozen, but all are trained here")
        shapes = {k: p.shape for k, p in parameters[0].items()}
        if any({k: p.shape for k, p in other.items()} != shapes for other in parameters):
            raise ValueError("networks must all have parameters of the same names and shapes")
        first, *others = [compatibility.plain_network(network) for network in networks]
        for r, other in enumerate(others, start=1):
            if differing := changes(first, other):
                name = differing[0].key.partition(".")[0]
                raise ValueError(
                    f"networks differ in more than their weights: {name} of network {r} is another than of "
                    f"network 0, which all runs would take"
                )
        self.network, self.likelihood, self.runs = networks[0], likelihood, len(networks)
        self.made = first
        self.checked = False  # that there is one mean for each row, which the first rows tell
        w = torch.stack([torch.cat([p.detach().flatten() for p in one.values()]) for one in parameters])
        self.update = BatchedUpdate(
            self._log_likelihood, shapes, w, lr=lr, lr_decay=lr_decay, compiled=compiled
        )

    def _output(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(self.network, dict(weights), (x,))

    def _log_likelihood(self, weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return self.likelihood(self._output(weights, x)).log_prob(y)

    def train(self, x: Tensor, y: Tensor, share: float = 0.0) -> None:
        if not self.checked:
            self.predict(x[:, :1])
        self.update(x, y)

    @torch.no_grad()
    def predict(self, rows: Tensor, draws: int = 1) -> Tensor:
        output = torch.vmap(self._output)(split(self.update.loc, self.update.shapes), rows)
        if not self.checked:
            _check_mean(self.likelihood, output, rows.shape[:2])
            self.checked = True
        return self.likelihood(output).mean[..., 0]

    def made_with(self) -> dict[str, Any]:
        return {**self.update.rates, **self.made, "likelihood": compatibility.likelihood(self.likelihood)}

    def state_dict(self) -> dict[str, Any]:
        return self.update.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.update.load_state_dict(state)


def _check_mean(likelihood: Likelihood, output: Tensor, rows: torch.Size) -> None:
    """Raise ValueError unless the network's output gives one finite mean for each row."""
    mean = None
    if output.dim() == len(rows) + 1:
        with isolated():
            mean = likelihood(output).mean
    if mean is None or mean.shape != (*rows, 1):
        raise ValueError(
            f"{type(likelihood).__name__} does not give one mean for each row of a network's output of shape "
            f"{tuple(output.shape[len(rows) :])}: take a likelihood of values, with one output"
        )
    if not bool(mean.isfinite().all()):
        raise ValueError(
            f"rewards have no finite mean under {type(likelihood).__name__}: take another likelihood"
        )


def _check_network(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError for dropout, whose masks the runs would have to draw apart, or another precision."""
    for name, layer in dropping(network):
        raise ValueError(
            f"layer {name!r} ({type(layer).__name__}) has dropout, but a bandit's networks have none"
        )
    for name, weight in weights.items():
        if weight.dtype != torch.float32:
            raise ValueError(
                f"parameter {name!r} is {weight.dtype}, but a bandit's networks are float32: call .float()"
            )
