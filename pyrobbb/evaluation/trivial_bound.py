r"""The free energy of a posterior that learns nothing: what a fit must beat before its bound says anything.

A mean-field normal q(w) that is chosen without a look at x pays, per datum and at temperature 1,

.. math::
    F = \frac1N \sum_j \mathrm{KL}[q(w_j) \,\|\, P(w_j)] - \frac1N \sum_i E_q \log p(y_i \mid f_w(x_i))

Each weight takes the normal nearest to its prior (`nearest_normal`), but for two exceptions. One tensor,
mostly the last layer's weights, is narrowed until the network hardly depends on x; how far trades its KL
against the likelihood. The biases behind it move to the best constant prediction, such as the classes' log
frequencies. Under a hierarchical prior q is one of `NonCentredNormal`: a weight in units of its scale keeps
its prior, and each log scale takes the normal nearest to its own; those of the narrowed tensor may be
lowered, those of the biases move with them. A trained posterior above this number is worse, by its own bound,
than ignoring the inputs.
"""

import math
from collections.abc import Set
from statistics import fmean
from typing import Any

import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from pyrobbb._support.chunking import Block, outputs
from pyrobbb._support.copies import own_copy
from pyrobbb._support.distribution_parts import own_tensors, univariate
from pyrobbb._support.network_state import evaluating
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork, Weights
from pyrobbb.data.dataset import Split
from pyrobbb.data.torch_data import TorchRows
from pyrobbb.evaluation.nearest_normal import NearestNormals, nearest_normals
from pyrobbb.non_centred import prior_given, units_of
from pyrobbb.svi import counted

ROWS = 100  # inputs that stand for all
MEGABYTES = 128  # of a network's activations, at most
TARGETS = 100_000  # numbers in the output for all targets, at most
FEW, MANY = 4, 32  # pairs of weight draws to choose q, at least and at most: of a small network four pairs
NUMBERS = 10**6  # may all have small outputs, and let the input in; so many weights and outputs in all pairs
ROUNDS, GAIN = 10, 1e-4  # of the search for the best constant, at most; while one lowers F by that share
MOST = 4000  # draws to evaluate it, at most, and at least two for each pair: until the relative
ERROR = 0.01  # standard error is this, for which few rows need many draws
WEIGHTS = 10**7  # drawn for that, at most, unless the least number of draws holds more
RIGHT_SCALE = {"FanInNormal": "FanInNormal", "Learned": "learned: priors.Learned"}  # as priors, and to advise
Normals = dict[str, tuple[Tensor, Tensor]]  # q: loc and scale of each site


def trivial_free_energy(model: BayesianNetwork, train: Any, *, seed: int = 0) -> float | None:
    """The least free energy found, in nats per datum, of a mean-field normal that ignores the inputs.

    What the prior has learned counts as it stands; point estimates (a likelihood's noise scale, a
    deterministic bias) are those of the best constant prediction. It is an estimate of the free energy of one
    such q, by draws of its own, mostly to 1 %. The best q can be up to a tenth lower at few rows and many,
    unequal classes, each of which would take scales of its own (7 % at 300 rows and 30 classes, one of which
    holds 90 %); it was below 1 % at equal classes, and at 3000 rows of 10 unequal ones. Under random scales q
    is cruder: the best may be lower, mostly where there are few rows.

    Args:
        model: The Pyro model, for N data.
        train: The training rows: a `Split`, or a torch `Dataset` or `DataLoader`, of which few rows are read.
        seed: Which weight draws.

    Returns:
        The free energy; None where it is not computed: an unknown N; no Bayesian weights; frozen ones beside
        them, as in a trained network; latent variables of the likelihood; those of the prior that are a
        `PyroSample`, depend on one another or are not scales of normals about 0; a prior that is not a
        product of univariate distributions on the real line, or differs from weight to weight; a network of
        which no single parameter tensor holds back the input; rows that are all alike, if the network takes
        no others; half precision, in which the search fails; or no finite value found.
    """
    if model.dtype.itemsize < 4:
        return None
    if not model.sites or model.frozen or model.prior_sites or model.likelihood_sites or model.N is None:
        return None  # behind frozen layers the question is another, and the search takes long
    if isinstance(train, TorchDataset | DataLoader):
        train = TorchRows(train)
    with isolated(seed, device=model.device), torch.no_grad():
        model = own_copy(model)
        priors = _independent(model)
        if priors is None:
            return None
        if any(isinstance(univariate(priors[name][0]), dist.TransformedDistribution) for name in model.sites):
            return None  # a weight's transformed prior may have several modes
        sites = nearest_normals(priors)
        if sites is None:
            return None
        with evaluating(model):
            found = _Search(model, sites, train).least()
    return found if math.isfinite(found) else None


def compared(free_energy: float, trivial: float | None, prior: object = "") -> str:
    """A fit's free energy beside that bound, in words; what to do if it is above.

    Another prior is advised only if `prior`, as it prints, does not name it already.
    """
    words = f"free energy {free_energy:.4g} nats per datum"
    if trivial is None:
        return words
    words += f" (ignoring the inputs: {trivial:.3g})"
    if free_energy <= trivial:
        return words
    others = ", or ".join(said for name, said in RIGHT_SCALE.items() if name not in f"{prior}")
    return (
        f"{words}\nby its bound this fit is worse than ignoring the inputs, so the free energy cannot rank "
        f"priors or widths: try {f'a prior of the right scale ({others}), ' if others else ''}a faster rho "
        f"(+rates.rho=10, in Python rates={{'rho': 10}}), more epochs or a smaller network"
    )


def _independent(model: BayesianNetwork) -> dict[str, tuple[Any, Tensor]] | None:
    """The prior and a value of each latent, where weights of a random scale are in units of it.

    None where they depend on one another even so: of all priors with latents, only a normal about 0 is its
    scale times a fixed distribution.
    """
    initial = model.initial()
    if not model.other_latents:
        return {name: (model.prior_of(name), value) for name, value in initial.items()}
    with poutine.block():
        one, other = (poutine.trace(model).get_trace().nodes for _ in range(2))
    scaled = units_of(model, {name: one[name]["value"] for name in model.other_latents}, model.sites)
    found = {}
    for name in model.latents:
        prior, again = (univariate(nodes[name]["fn"]) for nodes in (one, other))
        if name in scaled:
            if not isinstance(prior, dist.Normal) or prior.loc.any():
                return None
            prior = dist.Normal(prior.loc.new_zeros(()), 1.0).expand(initial[name].shape)
        elif not all(map(torch.equal, own_tensors(prior), own_tensors(again))):
            return None
        found[name] = prior, initial.get(name, one[name]["value"])
    return found


class _Search:
    """Looks for q; changes the point estimates of `model`, which is a copy, on the way."""

    def __init__(self, model: BayesianNetwork, sites: dict[str, NearestNormals], train: Any) -> None:
        self.model, self.sites, self.N = model, sites, model.N
        self.points = [*model.network.parameters(), *model.likelihood.parameters()]
        self.any = self._noise(1)
        latents = {name: self.any[name][0] for name in model.other_latents}
        given = {name: prior_given(model, latents, name)[1] for name in model.sites} if latents else {}
        # of a weight the latents of its random scale
        self.scales = {name: own for name, own in given.items() if own}
        self.at_once = self._follows_draws()
        self.size = model.num_weights if self.at_once else NUMBERS // FEW  # one by one draws are slow
        order = torch.randperm(len(train))  # data may be sorted by class
        self.few = train.take(order[:ROWS]).to(model.device)
        self.probes, self.made_up = _differing(self.few.x, train)
        self.y, self.counts = self.few.y, self.few.counts
        width = self._probe("", self.few.x)[0].numel()
        if isinstance(train, Split):
            rows = order[: max(ROWS, TARGETS // width)]
            self.y, self.counts = train.y[rows].to(model.device), train.counts[rows].to(model.device)
        self.numbers = max(len(self.y), len(self.few.x)) * width  # in the output for all targets
        self.pairs = max(FEW, min(MANY, NUMBERS // max(self.size, self.numbers)))
        self.noise = self._noise(self.pairs)

    def least(self) -> float:
        """The free energy of the best q found; infinite if no tensor silences the input."""
        gate = self._gate()
        if gate is None:
            return math.inf
        found: list[tuple[float, Normals]] = []
        for which in range(max(len(site.starts) for site in self.sites.values())):
            q = {
                name: (site.loc, site.starts[min(which, len(site.starts) - 1)])
                for name, site in self.sites.items()
            }
            if gate:
                opened = q[gate]
                q[gate] = torch.zeros_like(q[gate][0]), torch.zeros_like(q[gate][0])
            biases = self._behind(q)
            q = self._moved(q, biases)
            # first a scale that more weights share: to lower it costs less
            scales = sorted(self.scales.get(gate, []), key=lambda name: self.sites[name].like.numel())
            draws = self._pairs(q, {gate, *scales, *biases} & q.keys())
            if self.scales and biases:  # one factor of a product gains nothing while others are wide
                self._narrow_together(q, draws, biases)
            for name in biases:
                self._narrow(q, draws, name, closed=True)
            if gate:
                self._redraw(draws, gate, opened)
            for name in scales:
                self._lower(q, draws, name)
            if gate:
                self._narrow(q, draws, gate, closed=False)
            found.append((self._kl(q) + self._nll(draws), q))
        return self._evaluated(min(found, key=lambda item: item[0])[1], gate)

    def _noise(self, draws: int) -> Weights:
        return {
            name: site.like.new_empty((draws, *site.like.shape)).normal_()
            for name, site in self.sites.items()
        }

    def _weights(self, q: Normals, noise: Weights) -> Weights:
        return {name: self.sites[name].at(q[name], noise[name]) for name in noise}

    def _outputs(self, draws: Weights, x: Tensor) -> Tensor:
        """The network's for each draw, `(draws, B, *grid, width)`."""
        return outputs(self.model, self._scaled(draws), x, Block(len(x), MEGABYTES))

    def _scaled(self, draws: Weights) -> Weights:
        """The weights; those of a random scale are in units of it, which stays with the draws."""
        for name, latents in self.scales.items():
            if _unit(name) not in draws:
                own = {latent: draws[latent] for latent in latents}
                draws[_unit(name)] = self._units(name, own, self.at_once)
        weights = {name: draws[name] for name in self.model.sites}
        return weights | {name: weights[name] * draws[_unit(name)] for name in self.scales}

    def _units(self, name: str, latents: Weights, at_once: bool) -> Tensor:
        """The random scale of each weight `name`: of all draws at once, or of one after another."""
        if at_once:
            return units_of(self.model, latents, [name])[name]
        each = (dict(zip(latents, values, strict=True)) for values in zip(*latents.values(), strict=True))
        return torch.stack([units_of(self.model, draw, [name])[name] for draw in each])

    def _follows_draws(self) -> bool:
        """Whether the prior gives the scales of two draws at once that it gives one after another."""
        for name, latents in self.scales.items():
            own = {latent: torch.stack([self.sites[latent].like + k for k in (0, 1)]) for latent in latents}
            each = self._units(name, own, at_once=False)
            try:
                both = self._units(name, own, at_once=True)
            except Exception:  # of any kind: a user's prior for one draw
                return False
            if both.shape != each.shape or not torch.allclose(both, each):
                return False
        return True

    def _pairs(self, q: Normals, names: Set[str]) -> Weights:
        """Draws to choose q by, and each again with the noise of some sites mirrored.

        Else functions that resemble y by chance, as some of a few do, would let the input in.
        """
        draws: Weights = {}
        self.paired: Weights = {}
        for name, one in self.noise.items():
            paired = torch.cat([one, -one if name in names else one])
            draws[name] = self.sites[name].at(q[name], paired)
            if name in names:  # of the others, which may be large, no noise is needed again
                self.paired[name] = paired
        return draws

    def _each_nll(self, outputs: Tensor, y: Tensor, counts: Tensor | None) -> Tensor:
        """NLL in nats per datum of each draw's outputs; the output of a single row serves for every row."""
        draws = len(outputs)
        rows = outputs.expand(draws, len(y), *outputs.shape[2:]).flatten(0, 1)  # none knows of the others
        distribution = self.model.observation(rows)
        encoded = self.model.encoded(distribution, torch.cat([y] * draws))
        return -counted(distribution.log_prob(encoded).reshape(draws, -1), counts).mean(1)

    def _kl(self, q: Normals) -> float:
        return sum(float(site.kl(*q[name])) for name, site in self.sites.items()) / self.N

    def _nll(self, draws: Weights, closed: bool = False) -> float:
        """Expected NLL in nats per datum, on few rows; of a closed gate on all targets."""
        if closed:
            each = self._each_nll(self._outputs(draws, self.few.x[:1]), self.y, self.counts)
        else:
            each = self._each_nll(self._outputs(draws, self.few.x), self.few.y, self.few.weights)
        return float(each.mean())

    def _probe(self, silent: str, x: Tensor | None = None) -> Tensor:
        """The network's output at weights that have nothing to do with the prior, one site being zero."""
        weights = {name: self.sites[name].like + 0.1 * self.any[name][0] for name in self.model.sites}
        weights = {name: w * (name != silent) for name, w in weights.items()}
        return self.model.apply_network(weights, self.probes if x is None else x)

    def _gate(self) -> str | None:
        """The last site without which the output does not depend on x; "" for a point estimate, now zero."""
        if bool((self.probes == self.probes[:1]).all()):
            return None
        if self.made_up:
            try:
                self._probe("")
            except (RuntimeError, IndexError, ValueError):  # inputs that stand for something, such as tokens
                return None
        for _, point in reversed(list(self.model.network.named_parameters())):
            before = point.clone()
            point.zero_()
            if _constant(self._probe("")):
                self.points = [other for other in self.points if other is not point]
                return ""
            point.copy_(before)
        return next((name for name in reversed(self.model.sites) if _constant(self._probe(name))), None)

    def _behind(self, q: Normals) -> list[str]:
        """The biases, and their latent scales, that the output depends on when the gate is closed."""
        latents = self.model.other_latents
        biases = [
            name
            for name, site in self.sites.items()
            if (site.like.dim() == 1 or name in latents) and bool(q[name][1].any())
        ]
        weights = self._weights(q, self.any)
        with torch.enable_grad():
            own = {name: weights[name].requires_grad_() for name in biases}
            output = self._outputs(weights | own, self.few.x[:1]).sum()
            slopes = torch.autograd.grad(output, list(own.values()), allow_unused=True) if own else ()
        return [name for name, slope in zip(biases, slopes, strict=True) if slope is not None and slope.any()]

    def _moved(self, q: Normals, biases: list[str]) -> Normals:
        """The biases and the point estimates at the best constant prediction, penalised by the KL."""
        like = {name: self.sites[name].like for name in biases}
        loc = {name: q[name][0].to(value).expand(value.shape).clone() for name, value in like.items()}
        free = [value.requires_grad_() for value in (*loc.values(), *self.points)]
        if not free:
            return q
        still = {name: (mean, torch.zeros_like(scale)) for name, (mean, scale) in q.items()}
        means = self._weights(still, self.any)
        best = math.inf, [value.detach().clone() for value in free]

        def cost() -> Tensor:
            nonlocal best
            optimizer.zero_grad()
            output = self._outputs(means | {name: value[None] for name, value in loc.items()}, self.few.x[:1])
            loss = self._each_nll(output, self.y, self.counts).mean()
            for name, value in loc.items():
                loss = loss + self.sites[name].kl(value.double().cpu(), q[name][1]).to(loss) / self.N
            loss.backward()
            if float(loss.detach()) < best[0]:
                best = float(loss.detach()), [value.detach().clone() for value in free]
            return loss

        for _ in range(ROUNDS):  # one may end where the noise has no scale left and F is infinite
            before = best[0]
            optimizer = torch.optim.LBFGS(free, max_iter=30, line_search_fn="strong_wolfe")
            with torch.enable_grad():
                optimizer.step(cost)
            for value, found in zip(free, best[1], strict=True):
                value.detach().copy_(found)
            if not before - best[0] > GAIN * abs(best[0]):
                break
        return q | {name: (value.detach().double().cpu(), q[name][1]) for name, value in loc.items()}

    def _lower(self, q: Normals, draws: Weights, name: str) -> None:
        """Lower one log scale if that lowers F, and then as far as F is at most ERROR above its least.

        A product of random scales has a long tail, of which few draws say little.
        """
        site, (loc, scale) = self.sites[name], q[name]
        normals = [(loc - k * math.log(2), scale) for k in range(40)]
        self._redraw(draws, name, normals[-1])
        shut, costs = self._nll(draws), list[float]()
        for normal in normals:
            kl = float(site.kl(*normal)) / self.N
            if costs and kl + shut > min(costs) + ERROR * abs(min(costs)):
                break  # this scale and all below cost more than they can gain
            self._redraw(draws, name, normal)
            costs.append(kl + self._nll(draws))
        least = min(costs)
        good = [
            normal for normal, cost in zip(normals, costs, strict=False) if cost <= least + ERROR * abs(least)
        ]
        q[name] = q[name] if least == costs[0] else good[-1]
        self._redraw(draws, name, q[name])

    def _narrow(self, q: Normals, draws: Weights, name: str, *, closed: bool) -> None:
        """Set one site's scale to a minimum of its KL times the power of 1/2 that makes F least."""
        site, (loc, _) = self.sites[name], q[name]
        best = math.inf, q[name]
        for start in site.starts:
            last = math.inf
            for k in range(40):
                normal = loc, start * 2.0**-k
                self._redraw(draws, name, normal)
                now = float(site.kl(*normal)) / self.N + self._nll(draws, closed)
                best = min(best, (now, normal), key=lambda item: item[0])
                if now > last:
                    break
                last = now
        q[name] = best[1]
        self._redraw(draws, name, q[name])

    def _narrow_together(self, q: Normals, draws: Weights, names: list[str]) -> None:
        """Draw from ever narrower scales of several sites until that raises F."""
        last = math.inf
        for k in range(40):
            now = 0.0
            for name in names:
                normal = q[name][0], q[name][1] * 2.0**-k
                self._redraw(draws, name, normal)
                now += float(self.sites[name].kl(*normal)) / self.N
            now += self._nll(draws, closed=True)
            if now > last:
                break
            last = now

    def _redraw(self, draws: Weights, name: str, normal: tuple[Tensor, Tensor]) -> None:
        draws[name] = self.sites[name].at(normal, self.paired[name])
        for scaled, latents in self.scales.items():
            if name in latents:
                draws.pop(_unit(scaled), None)

    def _evaluated(self, q: Normals, gate: str) -> float:
        """F of q by fresh draws: of the closed gate on all targets, plus what opening adds on few rows."""
        kl, few = self._kl(q), self.few
        least = 2 * self.pairs
        most = max(least, min(MOST, WEIGHTS // self.size))
        fitting = least * max(1, TARGETS // self.numbers), WEIGHTS // self.size  # outputs, and weights
        room = max(1, min(fitting))  # draws at a time
        found: list[float] = []
        while missing := _missing(found, least, most):
            draws = self._weights(q, self._noise(min(missing, room)))
            opened = self._each_nll(self._outputs(draws, few.x), few.y, few.weights)
            shut = draws | {gate: torch.zeros_like(draws[gate])} if gate else draws
            constant = self._outputs(shut, few.x[:1])
            opening = opened - self._each_nll(constant, few.y, few.weights)
            found += (kl + self._each_nll(constant, self.y, self.counts) + opening).tolist()
        return fmean(found)


def _unit(name: str) -> str:
    """Under which key the unit of a weight lies beside its value."""
    return f"unit of {name}"


def _missing(found: list[float], least: int, most: int) -> int:
    """How many more draws it takes until the relative standard error of their mean is about ERROR."""
    if len(found) < least:
        return least - len(found)
    error = float(torch.tensor(found).std()) / math.sqrt(len(found)) / (ERROR * abs(fmean(found)))
    if not error > 1:  # or NaN, if one is not finite
        return 0
    return math.ceil(min(most, len(found) * error**2)) - len(found)


def _differing(x: Tensor, train: Any) -> tuple[Tensor, bool]:
    """Inputs that show whether an output depends on them, which rows that are alike do not; are they made up?

    They are those read if these differ, else others of the training rows in memory, else around them.
    """
    if bool((x != x[:1]).any()):
        return x, False
    if isinstance(train, Split):
        other = (train.x != x[:1].to(train.x.device)).flatten(1).any(1).nonzero()[:ROWS, 0]
        if len(other):
            return torch.cat([x[:1], train.x[other].to(x.device)]), False
    if not x.is_floating_point():
        return x, False
    noise = torch.randn(ROWS, *x.shape[1:], dtype=x.dtype, device=x.device)
    return x[:1] + noise * x[:1].abs().clamp_min(1), True


def _constant(output: Tensor) -> bool:
    return torch.allclose(output, output[:1].expand_as(output), rtol=1e-4, atol=1e-6)
