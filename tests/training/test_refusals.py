"""One table of wrong inputs, each with the words its message must have; the process stays as it was."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import RenyiELBO, Trace_ELBO
from pyro.infer.autoguide import AutoDiscreteParallel, AutoNormal
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import seeds
from engine_fakes import classes, classifier, network, nothing_changes, values
from pyrobbb import Posterior, likelihoods, priors
from pyrobbb import initializers as initial
from pyrobbb import kl_weights as kl
from pyrobbb._support import model_inputs
from pyrobbb._support.device import best_device
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.evaluation import arviz_export as export
from pyrobbb.evaluation.kl_ledger import kl_ledger
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.training.trainer import NonFiniteLossError, Training, fit

with seeds.unshifted():  # the messages name its labels
    DATA = classes(12, validation=4)
X, Y = DATA.train.x, DATA.train.y
REAL = values(12, outputs=3)
NAN, INF = float("nan"), float("inf")


def holed(value: float) -> Tensor:
    x = X.clone()
    x[3, 1] = value
    return x


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    net[2].weight = net[0].weight
    return net


def frozen() -> nn.Module:
    return network().requires_grad_(False)


def with_weight(value: float) -> nn.Module:
    net = network()
    with torch.no_grad():
        net[0].weight[1, 2] = value
    return net


def steep() -> nn.Module:
    net = nn.Linear(3, 3)
    nn.init.constant_(net.weight, 1e4)
    return net


class Strided(MeanFieldNormal):
    """With a parameter whose columns come first."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.square = nn.Parameter(torch.arange(4.0).reshape(2, 2).T)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return {name: value + 0 * self.square.sum() for name, value in super().forward().items()}


class Recomputed(nn.Sequential):
    """Layers whose activations are computed again for the gradient, in training alone."""

    def forward(self, x: Tensor) -> Tensor:
        layers = super().forward
        return checkpoint(layers, x, use_reentrant=False) if self.training else layers(x)


def model(net: Any = None, prior: Any = None, likelihood: Any = None, N: Any = 12) -> BayesianNetwork:
    return BayesianNetwork(
        network() if net is None else net,
        prior or priors.Normal(),
        likelihood or likelihoods.Categorical(),
        N,
    )


def train(
    x: Any = X, y: Any = Y, *, validation: Any = None, net: Any = None, prior: Any = None,
    likelihood: Any = None, guide: Any = MeanFieldNormal, data: Any = None, **options: Any,
) -> None:  # fmt: skip
    data = data or replace(DATA, train=Split(x, y), validation=validation)
    net_model = model(net, prior, likelihood, len(data.train.x))
    given: dict[str, Any] = {"epochs": 1, "batch_size": 6, "device": "cpu", "fast": "off"} | options
    Training(net_model, guide(net_model), data, **given).run()


def regress(y: Any, likelihood: Any = None, **options: Any) -> None:
    train(REAL.train.x, y, likelihood=likelihood or likelihoods.Normal(0.1), **options)


def weigh(weights: Any) -> None:
    train(data=replace(DATA, train=Split(X, Y, weights)))


def predict(x: Any = X, y: Any = None, **options: Any) -> Any:
    bayesian, guide = classifier(DATA)
    guide(X, Y)
    return Posterior([(bayesian, guide)]).predict(x, y, **{"draws": 2} | options)


def posterior() -> Posterior:
    bayesian, guide = classifier(DATA)
    guide(X, Y)
    return Posterior([(bayesian, guide)])


def real_prediction() -> Any:
    bayesian = model(likelihood=likelihoods.Normal(0.1))
    guide = MeanFieldNormal(bayesian)
    guide(X, REAL.train.y)
    return Posterior([(bayesian, guide)]).predict(X, draws=2)


Case = tuple[str, Callable[[], Any], str]

DATA_CASES: list[Case] = [
    ("NaN pixel", lambda: train(holed(NAN)), "x holds nan in row 3; every input must be finite"),
    ("infinite pixel", lambda: train(holed(INF)), "x holds inf in row 3"),
    ("minus infinity", lambda: train(holed(-INF)), "x holds -inf in row 3"),
    (
        "NaN in the validation set",
        lambda: train(validation=Split(holed(NAN), Y)),
        "validation x holds nan in row 3",
    ),
    (
        "NaN target",
        lambda: regress(holed(NAN)),
        "y: 1 value is not finite, the first in row 3: drop such rows, or mask",
    ),
    ("label too large", lambda: train(y=Y + 3), "labels must lie in 0..2 for a network output of width 3"),
    ("negative label", lambda: train(y=Y - 1), "got -1..1"),
    ("validation label", lambda: train(validation=Split(X, Y + 3)), "validation y: labels must lie in 0..2"),
    (
        "labels that are not integers",
        lambda: train(y=Y.float()),
        "needs integer labels of shape (B, *grid), got torch.float32",
    ),
    (
        "labels in a column",
        lambda: train(y=Y[:, None]),
        "Categorical: the network's output fits y of shape (1,), got (1, 1)",
    ),
    ("one-hot labels", lambda: train(y=torch.eye(3).long()[Y]), "fits y of shape (1,), got (1, 3)"),
    ("flat targets", lambda: regress(X[:, 0]), "fits y of shape (1, 3), got (1,)"),
    ("too few targets", lambda: regress(X[:, :2]), "fits y of shape (1, 3), got (1, 2)"),
    (
        "targets not 0 or 1",
        lambda: regress(X, likelihoods.Bernoulli()),
        "Bernoulli needs targets that are 0 or 1",
    ),
    ("y shorter than x", lambda: train(y=Y[:5]), "x and y differ in length: 12 rows and 5"),
    ("x shorter than y", lambda: train(X[:7]), "x and y differ in length: 7 rows and 12"),
    ("validation lengths", lambda: train(validation=Split(X, Y[:5])), "validation x and y differ in length"),
    ("empty training set", lambda: train(X[:0], Y[:0]), "N must be a whole number of at least 1, got 0"),
    ("empty validation set", lambda: train(validation=Split(X[:0], Y[:0])), "validation x is empty"),
    ("too few features", lambda: train(X[:, :2]), "cannot take a row of x, torch.float32 of shape (2,)"),
    ("one flat input", lambda: train(X[:, 0]), "cannot take a row of x, torch.float32 of shape ()"),
    (
        "images for a perceptron",
        lambda: train(X.reshape(12, 3, 1)),
        "cannot take a row of x, torch.float32 of shape (3, 1)",
    ),
    (
        "double precision",
        lambda: train(X.double()),
        "got Double and Float; if the type is why, convert it to torch.float32 (from_arrays has dtype=)",
    ),
    ("half precision", lambda: train(X.half()), "cannot take a row of x, torch.float16"),
    (
        "integer inputs",
        lambda: train(X.long()),
        "got Long and Float; if the type is why, convert it to torch.float32",
    ),
    (
        "tokens as numbers",
        lambda: train(X, net=nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(9, 3))),
        "convert it to torch.int64 (from_arrays has dtype=)",
    ),
    (
        "a token that the embedding lacks",
        lambda: train(
            torch.arange(36).reshape(12, 3).roll(-4, 0) % 10,
            net=nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(9, 3)),
        ),
        "index out of range in self; its tokens are 0 to 9",
    ),
    ("complex inputs", lambda: train(X.to(torch.complex64)), "cannot take a row of x, torch.complex64"),
    ("numpy arrays", lambda: train(X.numpy(), Y.numpy()), "x must be a tensor, got array"),
    (
        "row weights in a column",
        lambda: weigh(torch.ones(12, 1)),
        "weights must have the shape (12,), got (12, 1)",
    ),
    ("more weights than rows", lambda: weigh(torch.ones(13)), "weights must have the shape (12,), got (13,)"),
    (
        "a negative weight",
        lambda: weigh(-torch.ones(12)),
        "weights holds -1 in row 0, counted from 0; none may be negative",
    ),
    ("weights of held-out rows alone", lambda: weigh(torch.zeros(12)), "weights: the weights are all 0"),
    ("a list of weights", lambda: weigh([1.0] * 12), "weights must be a Tensor, got [1.0, 1.0"),
    (
        "a pair for a data set",
        lambda: Training(*classifier(DATA), (X, Y), epochs=1),
        "data must be what from_arrays(x, y, task=...) makes, or a torch Dataset or DataLoader, got (tensor(",
    ),
    (
        "a pair for validation rows",
        lambda: Training(*classifier(DATA), DATA, validation=(X, Y), epochs=1),
        "validation must be a Split or a torch Dataset, such as TensorDataset(x, y), got (tensor(",
    ),
    (
        "inputs by name",
        lambda: predict({"a": X, "b": X}),
        "x must be one array, got a dict of 2: several inputs go side by side into one x",
    ),
    (
        "a loader of inputs alone",
        lambda: predict(DataLoader(TensorDataset(X))),
        "got list; inputs without targets are given to predict() as a tensor",
    ),
    (
        "empty test set",
        lambda: train(data=replace(DATA, test=Split(X[:0], Y[:0]))),
        "test x is empty: its shape is (0, 3)",
    ),
]

MODEL_CASES: list[Case] = [
    ("no parameters", lambda: model(nn.ReLU()), "the network has no parameters: ReLU"),
    ("all frozen", lambda: model(frozen()), "every parameter of the network is frozen"),
    ("a class, no network", lambda: model(nn.Linear), "network must be a torch.nn"),
    ("a list of layers", lambda: model([nn.Linear(3, 3)]), "network must be a torch.nn"),
    (
        "batch norm in training",
        lambda: model(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))),
        "layer '1' (BatchNorm1d) mixes the rows of a batch in training mode",
    ),
    (
        "batch norm without statistics",
        lambda: model(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)).eval()),
        "(BatchNorm1d) mixes the rows of a batch",
    ),
    (
        "an embedding that changes its weights",
        lambda: model(nn.Sequential(nn.Embedding(9, 3, max_norm=1.0))),
        "layer '0' (Embedding) has max_norm=1.0, but it changes the drawn weights in place",
    ),
    (
        "an embedding of sparse gradients",
        lambda: model(nn.Sequential(nn.EmbeddingBag(9, 3, sparse=True))),
        "layer '0' (EmbeddingBag) has sparse=True, but the posterior of every row changes at each step",
    ),
    (
        "an embedding that scales its gradients",
        lambda: model(nn.Sequential(nn.Embedding(9, 3, scale_grad_by_freq=True))),
        "layer '0' (Embedding) has scale_grad_by_freq=True, but its gradients are not those of the free",
    ),
    (
        "a weight that a hook makes",
        lambda: model(nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 3)))),
        "layer '0' (Linear) has a weight that SpectralNorm makes at each call",
    ),
    (
        "a layer that torch pruned",
        lambda: model(prune.l1_unstructured(nn.Linear(3, 3), "weight", 0.5)),
        "torch.nn.utils.prune.remove(layer, name) makes it an ordinary weight",
    ),
    (
        "lazy layer",
        lambda: model(nn.LazyLinear(3)),
        "parameter 'weight' has no shape yet; call the network once",
    ),
    (
        "a running mean of a lazy layer",
        lambda: model(nn.Sequential(nn.Linear(3, 3), nn.LazyBatchNorm1d(affine=False).eval())),
        "the buffer 'running_mean' of layer '1' has no shape yet; call the network once on a batch",
    ),
    (
        "a scripted layer",
        lambda: model(nn.Sequential(torch.jit.ScriptModule())),
        "layer '0' is a scripted module, whose parameters cannot be drawn; give its original",
    ),
    (
        "a network for several devices",
        lambda: model(nn.Sequential(nn.DataParallel(nn.Linear(3, 3)))),
        "layer '0' is a DataParallel, which runs its layers on several devices; give its .module",
    ),
    (
        "the weights alone, of several lines",
        lambda: model({"weight": torch.zeros(3, 3)}),
        "got {'weight': tensor([[0., 0., 0.], [0., 0., 0.],",
    ),
    ("NaN weight", lambda: model(with_weight(NAN)), "parameter '0.weight' holds values that are not finite"),
    ("weights without values", lambda: model(nn.Linear(3, 3, device="meta")), "on the device meta"),
    (
        "output too narrow",
        lambda: train(net=nn.Linear(3, 2)),
        "labels must lie in 0..1 for a network output of width 2",
    ),
    ("one class", lambda: train(net=network(width=1)), "Categorical needs at least 2 classes"),
    ("output that overflows", lambda: train(X * 1e37, net=steep()), "is not finite for the first row of x"),
    (
        "activations computed again",
        lambda: train(net=Recomputed(nn.Linear(3, 3), nn.Tanh())),
        "nor may torch.utils.checkpoint compute it again later, when the drawn weights have left the network",
    ),
    (
        "activations computed again without a word",
        lambda: train(net=nn.Sequential(nn.Linear(3, 3), Recomputed(nn.LayerNorm(3)))),
        "the gradient of '0.weight' depends on the weights that lie in the network",
    ),
    (
        "rows lost",
        lambda: train(net=nn.Sequential(nn.Linear(3, 3), nn.Flatten(0))),
        "must map (B, *features) to (B, *grid, width)",
    ),
    (
        "a tuple for an output",
        lambda: train(net=nn.LSTM(3, 3)),
        "must map (B, *features) to (B, *grid, width), got tuple for B=1: return one tensor",
    ),
    (
        "odd output for mean and noise",
        lambda: regress(X[:, :1], likelihoods.HeteroscedasticNormal()),
        "even width",
    ),
    (
        "the second name of tied weights",
        lambda: model(
            tied(), priors.PerParameter(default=priors.Normal(), where={"2.weight": priors.Laplace()})
        ),
        "pattern '2.weight' matches 2.weight, but tied weights go by their first name: 2.weight is 0.weight",
    ),
    (
        "a pattern that misses the first name of tied weights",
        lambda: model(
            tied(), priors.PerParameter(default=priors.Deterministic(), where={"2.*": priors.Normal()})
        ),
        "pattern '2.*' matches 2.weight, but tied weights go by their first name: 2.weight is 0.weight",
    ),
    (
        "both names of tied weights",
        lambda: model(
            tied(),
            priors.PerParameter(
                default=priors.Normal(), where={"0.*": priors.Laplace(), "2.weight": priors.Normal()}
            ),
        ),
        "'2.weight' matches no parameter; the parameters are 0.weight = 2.weight, 0.bias, 2.bias",
    ),
    (
        "a frozen parameter's prior",
        lambda: model(
            nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3)),
            priors.PerParameter(default=priors.Normal(), where={"0.*": priors.Laplace()}),
        ),
        "'0.*' matches no parameter; the parameters are 1.weight, 1.bias",
    ),
    ("N as a fraction", lambda: model(N=0.5), "N must be a whole number of at least 1, got 0.5"),
    (
        "a likelihood's class",
        lambda: model(likelihood=likelihoods.Normal),
        "likelihood must be a pyrobbb.likelihoods",
    ),
    (
        "a loss for a likelihood",
        lambda: model(likelihood=nn.CrossEntropyLoss()),
        "likelihood must be a pyrobbb",
    ),
    ("noise without spread", lambda: likelihoods.Normal(scale=0), "scale must be greater than 0, got 0"),
]

PRIOR_CASES: list[Case] = [
    (
        "sigma1 = sigma2",
        lambda: priors.ScaleMixture(sigma1=1, sigma2=1),
        "sigma1 must be greater than sigma2",
    ),
    (
        "sigma1 < sigma2",
        lambda: priors.ScaleMixture(sigma1=0.1, sigma2=1),
        "sigma1 must be greater than sigma2",
    ),
    ("pi above 1", lambda: priors.ScaleMixture(pi=1.1), "pi must lie in [0, 1], got 1.1"),
    ("pi below 0", lambda: priors.ScaleMixture(pi=-0.1), "pi must lie in [0, 1], got -0.1"),
    ("pi NaN", lambda: priors.ScaleMixture(pi=NAN), "pi must be a finite number, got nan"),
    ("negative sigma", lambda: priors.Normal(sigma=-1), "sigma must be greater than 0, got -1"),
    ("sigma as text", lambda: priors.Normal(sigma="1"), "sigma must be a finite number, got '1'"),
    (
        "sigma too small for float32",
        lambda: model(prior=priors.ScaleMixture(sigma2=1e-30)),
        "sigma2 must lie between 5.4e-20 and 1.8e+19 for torch.float32, got 1e-30",
    ),
    ("no degrees of freedom", lambda: priors.StudentT(df=0), "df must be greater than 0, got 0"),
    ("a misspelt option", lambda: priors.Normal(sigmma=1), "unexpected keyword argument 'sigmma'"),
    (
        "a prior by its name",
        lambda: model(prior="normal"),
        "prior must be a pyrobbb.priors.Prior, got 'normal'",
    ),
    (
        "torch's distribution",
        lambda: model(prior=torch.distributions.Normal(0, 1)),
        "prior must be a pyrobbb.priors.Prior",
    ),
    ("nothing Bayesian", lambda: train(prior=priors.Deterministic()), "so there is no guide: pass None"),
    (
        "a pattern without a match",
        lambda: model(prior=priors.PerParameter(default=priors.Normal(), where={"9.*": priors.Laplace()})),
        "pattern '9.*' matches no parameter; the parameters are 0.weight, 0.bias, 2.weight, 2.bias",
    ),
    (
        "a pattern that is none",
        lambda: priors.PerParameter(default=priors.Normal(), where={1: priors.Laplace()}),
        "where must map patterns of names to priors, got {1:",
    ),
    (
        "a pattern's prior",
        lambda: priors.PerParameter(default=priors.Normal(), where={"a": 3}),
        "'a' must be given a prior, got 3",
    ),
    (
        "a default prior by its name",
        lambda: priors.PerParameter(default="normal"),
        "'default' must be given a prior, got 'normal'",
    ),
    (
        "patterns in a list",
        lambda: priors.PerParameter(default=priors.Normal(), where=[3]),
        "where must map patterns of names to priors",
    ),
    ("temperature 0", lambda: kl.Tempered(temperature=0), "temperature must be greater than 0, got 0"),
    (
        "warm-up of half an epoch",
        lambda: kl.WarmUp(epochs=0.5),
        "epochs must be a whole number of at least 1, got 0.5",
    ),
]

GUIDE_CASES: list[Case] = [
    (
        "a guide of another model",
        lambda: train(guide=lambda m: MeanFieldNormal(model(network(hidden=5)))),
        "the guide was made for another model than the one that is fitted: pass MeanFieldNormal(model)",
    ),
    (
        "an autoguide of another model",
        lambda: train(guide=lambda m: AutoNormal(model(network(hidden=5)))),
        "the guide was made for another model than the one that is fitted: pass AutoNormal(model)",
    ),
    (
        "a guide of fewer sites",
        lambda: train(guide=lambda m: AutoNormal(poutine.block(m, hide=["0.weight"]))),
        "the guide has no site '0.weight' (to hold a weight fixed",
    ),
    ("a guide without its model", lambda: train(guide=lambda m: MeanFieldNormal), "guide must be a Module"),
    ("nothing for a model", lambda: MeanFieldNormal(None), "model must be callable, got None"),
    (
        "rho as text",
        lambda: MeanFieldNormal(model(), init_rho="x"),
        "init_rho must be a finite number, got 'x'",
    ),
    (
        "loc by its name",
        lambda: MeanFieldNormal(model(), init_loc="kaiming"),
        "init_loc must be callable, got 'kaiming'",
    ),
    (
        "loc of another shape",
        lambda: train(guide=partial(MeanFieldNormal, init_loc=lambda s: torch.zeros(2))),
        "site '0.weight' has shape (4, 3), but its initial loc has shape (2,)",
    ),
    (
        "a start from far away",
        lambda: train(guide=partial(MeanFieldNormal, init_rho=1e30)),
        "an initial rho that is too large",
    ),
    ("a start without spread", lambda: initial.Normal(scale=0), "scale must be greater than 0, got 0"),
    ("a start at NaN", lambda: initial.Constant(NAN), "value must be a finite number, got nan"),
    ("low above high", lambda: initial.Uniform(1, 0), "low must not be greater than high"),
    ("Pyro's scale", lambda: train(guide=partial(AutoNormal, init_scale=-1)), "Expected init_scale > 0"),
]

TRAINING_CASES: list[Case] = [
    (
        "batch larger than N",
        lambda: train(batch_size=13),
        "batch_size 13 is larger than the training set, N=12",
    ),
    (
        "batch of text",
        lambda: train(batch_size="6"),
        "batch_size must be a whole number of at least 1, got '6'",
    ),
    ("half an epoch", lambda: train(epochs=0.5), "epochs must be a whole number of at least 1, got 0.5"),
    ("epochs true", lambda: train(epochs=True), "epochs must be a whole number of at least 1, got True"),
    (
        "fewer draws than none",
        lambda: train(validation_draws=-1),
        "validation_draws must be a whole number of at least 0, got -1",
    ),
    ("no samples", lambda: train(samples=0), "samples must be a whole number of at least 1, got 0"),
    (
        "negative rate",
        lambda: train(optim=partial(torch.optim.Adam, lr=-1)),
        "optim: Invalid learning rate: -1",
    ),
    (
        "optimiser by its name",
        lambda: train(optim="adam"),
        "optim must be a function that makes the torch Optimizer, got 'adam'",
    ),
    (
        "a rate that is the optimiser's",
        lambda: train(lr=0.1),
        "there is no option 'lr'; a learning rate is the optimiser's, optim=partial(torch.optim.Adam",
    ),
    (
        "a misspelt rate",
        lambda: train(optim=partial(torch.optim.Adam, rl=1)),
        "optim: Adam.__init__() got an unexpected keyword argument 'rl'",
    ),
    (
        "an optimiser that is none",
        lambda: train(optim=lambda groups: 3),
        "optim must make a Optimizer, it made 3",
    ),
    (
        "schedule by its name",
        lambda: train(schedule="cosine"),
        "schedule must be a function that makes the torch LRScheduler",
    ),
    (
        "an optimiser of Pyro's",
        lambda: train(optim=pyro.optim.Adam({"lr": 0.01})),
        "optim must make an optimiser of torch's, such as partial(torch.optim.Adam, lr=0.01)",
    ),
    (
        "how Pyro makes optimisers",
        lambda: train(optim=pyro.optim.Adam),
        "optim must make an optimiser of torch's, such as partial(torch.optim.Adam, lr=0.01)",
    ),
    (
        "a schedule that waits for a measured value",
        lambda: train(schedule=torch.optim.lr_scheduler.ReduceLROnPlateau),
        "schedule ReduceLROnPlateau follows a measured value",
    ),
    (
        "a schedule of no epochs",
        lambda: train(schedule=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=0)),
        "schedule CosineAnnealingLR fails after epoch 1: ",
    ),
    (
        "a schedule that turns the rate around",
        lambda: train(epochs=2, schedule=partial(torch.optim.lr_scheduler.ExponentialLR, gamma=-1)),
        "schedule ExponentialLR makes the learning rate -0.001 after epoch 1; it must be finite and not",
    ),
    (
        "factors on rates that a schedule sets",
        lambda: train(schedule=partial(OneCycleLR, max_lr=0.01, total_steps=4), rates={"rho": 10.0}),
        "schedule OneCycleLR gives all parameters one learning rate, and factors in rates",
    ),
    (
        "as many draws as two options say",
        lambda: train(elbo=partial(Trace_ELBO, num_particles=4), samples=2),
        "samples=2, but elbo has num_particles=4; set only one of the two",
    ),
    (
        "a parameter that Pyro would copy",
        lambda: train(guide=Strided),
        "Pyro would train a copy of the guide's parameter 'square', which is not contiguous",
    ),
    (
        "a model that asks for its data",
        lambda: fit(lambda x=None: x[:, 0], MeanFieldNormal, DATA),
        "or make one when called without arguments; <lambda> raised TypeError",
    ),
    (
        "a guide for discrete sites",
        lambda: train(guide=AutoDiscreteParallel),
        "guide AutoDiscreteParallel does not fit this model: Expected sample site",
    ),
    (
        "milestones that are not epochs",
        lambda: train(schedule=partial(torch.optim.lr_scheduler.MultiStepLR, milestones=["a"])),
        "schedule MultiStepLR: milestones must be whole numbers of epochs, got ['a']",
    ),
    (
        "an optimiser that wants the loss",
        lambda: train(optim=torch.optim.LBFGS),
        "optim LBFGS evaluates the loss itself",
    ),
    (
        "sparse x",
        lambda: train(x=X.to_sparse()),
        "x is sparse (torch.sparse_coo); it must be an ordinary tensor",
    ),
    ("x without values", lambda: train(x=X.to("meta")), "x has no values (device meta)"),
    (
        "a network that modifies its input",
        lambda: train(net=nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3))),
        "the network modifies its input",
    ),
    (
        "schedule without its length",
        lambda: train(schedule=torch.optim.lr_scheduler.CosineAnnealingLR),
        "schedule: CosineAnnealingLR.__init__() missing",
    ),
    ("share by its name", lambda: train(kl="uniform"), "kl must be a KLWeight or nothing, got 'uniform'"),
    (
        "an unknown path",
        lambda: train(fast="yes"),
        "fast must be one of auto, compiled, eager, off, got 'yes'",
    ),
    ("negative seed", lambda: train(seed=-1), "seed must be a whole number of at least 0, got -1"),
    ("a seed of 70 bits", lambda: train(seed=2**70), "seed must be less than 2^63"),
    ("a negative factor", lambda: train(rates={"rho": -1}), "rates.rho must be greater than 0, got -1"),
    (
        "a factor for nothing",
        lambda: train(rates={"rhoo": 1}),
        "rates: 'rhoo' matches no parameter; the parameters are guide.loc, guide.rho",
    ),
    (
        "factors on a rate that is not said",
        lambda: train(optim=torch.optim.Adam, rates={"rho": 2}),
        "rates multiply the optimiser's lr, so optim must state one",
    ),
    ("factors in a list", lambda: train(rates=["rho"]), "rates must be a Mapping or nothing, got ['rho']"),
    ("vectorize as text", lambda: train(vectorize="no"), "vectorize must be a bool, got 'no'"),
    (
        "checkpoints in the past",
        lambda: train(checkpoint_seconds=-1),
        "checkpoint_seconds must lie in [0, inf], got -1",
    ),
    ("a folder's number", lambda: train(folder=3), "folder must be a str or a Path or nothing, got 3"),
    ("a file for a folder", lambda: train(folder=__file__), "is a file or a broken link, not a folder"),
    ("chain -1", lambda: train(chain=-1), "chain must be a whole number of at least 0, got -1"),
    (
        "data of another N",
        lambda: Training(*classifier(classes(5)), DATA, epochs=1),
        "made for N=5 data, the training set has 12",
    ),
    (
        "a plain network for a model",
        lambda: Training(network(), nn.Linear(1, 1), DATA, epochs=1),
        "model must be a BayesianNetwork",
    ),
    (
        "an unknown device",
        lambda: best_device("gpu"),
        "device must be auto, cpu, cuda or cuda:NUMBER, got 'gpu'",
    ),
    ("a device without values", lambda: best_device("meta"), "device 'meta' cannot be used"),
    (
        "CUDA requested and absent",
        lambda: best_device("cuda:99"),
        "device 'cuda:99' was requested, but torch finds",
    ),
    ("another kind of elbo", lambda: train(elbo="mean_field"), "elbo must be one of Pyro's ELBOs"),
    ("elbo and samples", lambda: train(elbo=RenyiELBO(num_particles=3), samples=2), "num_particles=3"),
    ("a negative norm", lambda: train(clip_norm=-1.0), "clip_norm must be greater than 0, got -1.0"),
    ("no epochs between rows", lambda: train(record_every=0), "record_every must be a whole number"),
    ("a function as callback", lambda: train(callbacks=[print]), "callbacks[0] must be a Callback"),
]


class Attention(nn.Module):
    """Whose width torch checks by an assertion."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(3, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0][:, -1]


def attend(x: Tensor) -> Any:
    model = BayesianNetwork(Attention(), likelihood=likelihoods.Normal(1.0), N=12)
    return Posterior([(model, model)]).predict(x, draws=2)


def normalise(x: Tensor) -> Any:
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).eval()
    model = BayesianNetwork(net, likelihood=likelihoods.Normal(1.0), N=12)
    return Posterior([(model, model)]).predict(x, draws=2)


PREDICTION_CASES: list[Case] = [
    ("NaN", lambda: predict(holed(NAN)), "x holds nan in row 3; every input must be finite"),
    (
        "other features",
        lambda: predict(X[:, :2]),
        "the network cannot take a row of x, torch.float32 of shape (2,)",
    ),
    ("one row without its axis", lambda: predict(X[0]), "the network cannot take a row of x"),
    (
        "other features for attention",
        lambda: attend(torch.zeros(4, 5, 2)),
        "the network cannot take a row of x, torch.float32 of shape (5, 2): was expecting embedding",
    ),
    (
        "one row without its axis for normalisation",
        lambda: normalise(X[0]),
        "the network cannot take a row of x, torch.float32 of shape (): expected 2D or 3D input",
    ),
    ("an array of words", lambda: predict(X.numpy().astype(str)), "x must hold real numbers"),
    ("sparse x", lambda: predict(X.to_sparse()), "x is sparse (torch.sparse_coo)"),
    ("a ragged list", lambda: predict([[1.0, 2, 3], [1.0]]), "x is not an array of numbers"),
    (
        "y of another length",
        lambda: predict(X, Y[:5]),
        "x and y differ in length: x has 12 rows, y has 5",
    ),
    ("a label too large", lambda: predict(X, Y + 5), "labels must lie in 0..2"),
    ("labels that are not integers", lambda: predict(X, Y.float()), "needs integer labels"),
    ("no draws", lambda: predict(draws=0), "draws must be a whole number of at least 1, got 0"),
    ("half a draw", lambda: predict(draws=0.5), "draws must be a whole number of at least 1, got 0.5"),
    (
        "a chain that is not there",
        lambda: predict(chains=[1]),
        "chain must be less than 1, the number of chains, got 1",
    ),
    ("no chain", lambda: predict(chains=[]), "chains must be a list of at least one chain's number, got []"),
    (
        "a chain without its list",
        lambda: predict(chains=0),
        "chains must be a list of at least one chain's number, got 0",
    ),
    ("no rows", lambda: predict(rows=0), "rows must be a whole number of at least 1, got 0"),
    ("no memory", lambda: predict(megabytes=0), "megabytes must be greater than 0, got 0"),
    ("a seed of text", lambda: predict(seed="a"), "seed must be a whole number of at least 0, got 'a'"),
    (
        "a quantile above 1",
        lambda: real_prediction().function_quantiles([1.5]),
        "levels must lie in [0, 1], got 1.5",
    ),
    (
        "a quantile without its list",
        lambda: real_prediction().predictive_quantiles(0.5),
        "levels must be a list, such as [0.5], got 0.5",
    ),
    (
        "no quantile",
        lambda: real_prediction().function_quantiles([]),
        "levels must name at least one quantile",
    ),
    (
        "log p(y) without y",
        lambda: predict().log_predictive,
        "the log-likelihood needs y: call predict(x, y)",
    ),
    ("no chains", lambda: Posterior([]), "a posterior needs at least one chain"),
    (
        "a model without its list",
        lambda: Posterior(classifier(DATA)),
        "each chain must be a pair (model, guide), got BayesianNetwork",
    ),
    (
        "a guide never fitted",
        lambda: Posterior([classifier(DATA)]).predict(X),
        "has no parameters of its own yet: fit it first",
    ),
    (
        "a function as guide",
        lambda: Posterior([(classifier(DATA)[0], lambda *a: None)]),  # type: ignore[list-item]
        "the guide must be a module that holds its parameters, such as a PyroModule, got",
    ),
    ("draw -1", lambda: posterior().function(-1), "draw must be a whole number of at least 0, got -1"),
    ("draws of chain 3", lambda: posterior().draw(1, chain=3), "chain must be less than 1"),
    ("the KL of chain 3", lambda: kl_ledger(posterior(), chain=3), "chain must be less than 1"),
    (
        "weights by a wrong name",
        lambda: export.to_arviz(posterior(), DATA, weights=["a.b"]),
        "'a.b' matches no weight; the parameters are 0.weight",
    ),
    (
        "a weight out of range",
        lambda: export.to_arviz(posterior(), DATA, weights=["0.weight[9,9]"]),
        "'0.weight[9,9]' is not a weight; 0.weight has shape (4, 3)",
    ),
    (
        "no observations",
        lambda: export.to_arviz(posterior(), DATA, observations=0),
        "observations must be a whole number of at least 1, got 0",
    ),
]

TABLES = {
    "data": DATA_CASES, "model": MODEL_CASES, "prior": PRIOR_CASES, "guide": GUIDE_CASES,
    "training": TRAINING_CASES, "prediction": PREDICTION_CASES,
}  # fmt: skip
CASES = [
    pytest.param(act, message, id=f"{table}: {name}")
    for table, cases in TABLES.items()
    for name, act, message in cases
]
ERRORS = (ValueError, TypeError, NonFiniteLossError, NotADirectoryError)


@pytest.mark.parametrize(("act", "message"), CASES)
def test_in_python(act: Callable[[], Any], message: str) -> None:
    with nothing_changes(), isolated(), pytest.raises(ERRORS) as caught:
        act()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_an_output_that_is_wrong_is_not_blamed_on_the_row() -> None:
    made = BayesianNetwork(nn.LSTM(3, 2), likelihood=likelihoods.Normal(1.0), N=12)
    with pytest.raises(ValueError, match=r"^the network must map \(B, \*features\)"):
        Posterior([(made, made)]).predict(X, draws=2)


def test_a_wrong_target_far_down_is_found_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_inputs, "VALUES", 4)  # at a time
    made = BayesianNetwork(nn.Linear(3, 1), likelihood=likelihoods.Poisson(), N=12)
    y = torch.ones(12, 1)
    y[9] = 1.5
    with pytest.raises(ValueError, match=r"^y, counted from row 8: 1\.5 in row 1 is outside the support"):
        model_inputs.check_targets(made, "y", torch.zeros(1, 1), y)
