"""Faults planted in small fits, and how many are found: `python -m benchmarks.planted [--json FILE]`.

Half of the fits are sound. The others have one fault each: the KL counted 25 times, the softmax applied
twice, a tenth of the KL (N counted ten times), a sigma that is not trained, one mode of several, or too few
epochs.
`pyrobbb.checkup.check` says of each whether it can be trusted.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from experiments._runner.record import write_record
from pyrobbb import fit, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.checkup import Finding, check
from pyrobbb.data import from_arrays
from pyrobbb.data.dataset import Dataset
from pyrobbb.kl_weights import KLWeight, Tempered, Uniform
from pyrobbb.mean_field import MeanFieldNormal

EPOCHS, ROWS, HELD = 600, 400, 400
FIRST = 3000  # number of the first problem; the limits were set on others
SOUND = "sound"


@dataclass(frozen=True)
class Plan:
    """How a fit differs from a sound one."""

    kl: KLWeight = field(default_factory=Uniform)
    rates: dict[str, float] = field(default_factory=dict)
    epochs: int = EPOCHS
    network: Callable[[nn.Module], nn.Module] = lambda network: network
    likelihood: Callable[..., likelihoods.Likelihood] = likelihoods.Normal
    chains: int = 2
    classes: bool | None = None  # only for this kind of problem


class Magnitude(likelihoods.Normal):
    """Noise on the magnitude of the output, whose sign the data cannot tell: two modes."""

    def forward(self, output: Tensor) -> Any:
        return super().forward(output.abs())


FAULTS: dict[str, Plan] = {
    "KL counted 25 times": Plan(kl=Tempered(temperature=25.0)),
    "N counted 10 times": Plan(kl=Tempered(temperature=0.1)),
    "softmax twice": Plan(network=lambda network: nn.Sequential(network, nn.Softmax(-1)), classes=True),
    "sigma not trained": Plan(rates={"rho": 1e-6}),
    "too short": Plan(epochs=5),
    "one mode of several": Plan(likelihood=Magnitude, chains=8, classes=False),
}


def problem(number: int, classes: bool) -> Dataset:
    """Made rows, with others held out: three overlapping classes, or a curve with noise."""
    with isolated(number):
        if classes:
            centres = 2.0 * torch.randn(3, 4)
            y = torch.randint(0, 3, (ROWS + HELD,))
            x = centres[y] + torch.randn(ROWS + HELD, 4)
            kind = "classification"
        else:
            x = torch.randn(ROWS + HELD, 2)
            y = torch.sin(2 * x[:, :1]) + 0.5 * x[:, 1:] + 0.3 * torch.randn(ROWS + HELD, 1)
            kind = "regression"
        return from_arrays(x[:ROWS], y[:ROWS], task=kind, test=(x[ROWS:], y[ROWS:]))


def findings(number: int, plan: Plan) -> list[Finding]:
    """Fit a small network to problem `number` as planned, and check it."""
    classes = number % 2 == 0 if plan.classes is None else plan.classes
    data = problem(number, classes)
    if plan.likelihood is Magnitude:  # a y that magnitudes can fit
        data = from_arrays(
            data.train.x, data.train.y.abs() + 0.5, task="regression",
            test=(data.test.x, data.test.y.abs() + 0.5) if data.test else None,
        )  # fmt: skip

    def model() -> BayesianNetwork:
        inputs, outputs = (4, 3) if classes else (2, 1)
        network = nn.Sequential(nn.Linear(inputs, 10), nn.Tanh(), nn.Linear(10, outputs))
        likelihood = likelihoods.Categorical() if classes else plan.likelihood(scale=0.3, learn_scale=True)
        return BayesianNetwork(plan.network(network), priors.FanInNormal(gain=1.0), likelihood)

    posterior = fit(
        model, partial(MeanFieldNormal, init_rho=-3.0), data, chains=plan.chains, epochs=plan.epochs,
        batch_size=100, kl=plan.kl, rates=plan.rates, seed=1000 * number, fast="eager", progress=None,
        optim=partial(torch.optim.Adam, lr=0.01), record_every=plan.epochs,
        schedule=partial(CosineAnnealingLR, T_max=plan.epochs),
    )  # fmt: skip
    return check(posterior, data, seed=number)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planted", description=__doc__)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there too")
    parser.add_argument("--fits", type=int, default=200, help="how many fits, half of them sound")
    options = parser.parse_args()
    each = max(1, options.fits // 2 // len(FAULTS))
    plans = {SOUND: (Plan(), options.fits // 2)} | {name: (plan, each) for name, plan in FAULTS.items()}
    found: dict[str, Any] = {}
    for name, (plan, count) in plans.items():
        flags: dict[str, int] = {}
        values: dict[str, list[float | None]] = {}
        alarms = 0
        for number in range(FIRST, FIRST + count):
            every = findings(number, plan)
            alarms += any(finding.passed is False for finding in every)
            for finding in every:
                flags[finding.name] = flags.get(finding.name, 0) + (finding.passed is False)
                values.setdefault(finding.name, []).append(finding.value)
        found[name] = {"fits": count, "flagged": alarms, "by": flags, "values": values}
        print(f"{name:22} {alarms:3} of {count:3} flagged   {flags}", flush=True)
        if options.json:
            write_record(options.json, f"python -m benchmarks.planted --fits {options.fits}", found)


if __name__ == "__main__":
    main()
