"""One update of y = wx, the tutorial's worked example: `python -m experiments.tutorial.worked_example`.

The prose of the tutorial says (mu, rho) = (2, 3) and (x, y) = (1, 1); its code, which we follow, has
mu = 0.5, rho = 2, x = 2, y = 3. Its printed noise, 1.9070, is rounded: 1.9070344 gives what it prints.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO

from experiments._runner.build import build, key_of
from experiments._runner.command import command, refuse
from experiments._runner.compose import compose
from experiments._runner.study import NoSettings, Study
from experiments._runner.tables import table
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated.replay_noise import Injected

STUDY = Study("experiments.tutorial.worked_example", "worked_example", NoSettings)
NOISE, PRINTED_NOISE = 1.9070344, 1.9070
QUANTITIES = {  # as it printed them, and what they are
    "w": (4.5561, "mu + log(1 + e^rho) eps"),
    "log q(w)": (-3.4920, "variational posterior N(mu, sigma^2) at w"),
    "log P(w)": (-11.2981, "prior N(0, 1) at w"),
    "log P(D|w)": (-74.9450, "likelihood N(y | w x, 0.5^2)"),
    "loss": (82.7511, "log q(w) - log P(w) - log P(D|w)"),
    "d loss/d mu": (53.4541, "eq. 3"),
    "d loss/d rho": (89.3733, "eq. 4"),
    "new mu": (-0.0345, "mu - 0.01 d loss/d mu, eq. 5"),
    "new rho": (1.1063, "rho - 0.01 d loss/d rho, eq. 6"),
}
PRINTED = {name: printed for name, (printed, _) in QUANTITIES.items()}


def update(
    noise: float = NOISE, *, mu: float = 0.5, rho: float = 2.0, detach_mu: bool = False
) -> dict[str, float]:
    """One step of Bayes by Backprop in float64, of `experiment/worked_example.yaml` by Pyro's ELBO.

    Args:
        noise: The draw epsilon.
        mu: Where the mean starts.
        rho: Where rho starts.
        detach_mu: Take mu in log q(w) for a constant, as the tutorial's later code does: a named
            negative control, whose gradient of mu is less by epsilon / sigma (times the KL's weight).
    """
    run = build(
        compose("worked_example", [f"guide.init_loc.value={mu}", f"guide.init_rho={rho}"], folder="none")
    )
    data = run.data.load()
    x, y = data.train.x.double(), data.train.y.double()
    with isolated(0):
        model = run.model(data.spec, run.prior, run.likelihood).double()
        guide = run.guide(model)
        guide(x, y)
        optimizer = run.optim([{"params": list(guide.parameters())}])
        drawn_twice = torch.full((2,), noise, dtype=torch.double)  # for the traces, then for the loss
        with Injected(drawn_twice):
            guide_trace = poutine.trace(guide).get_trace(x, y)
            w = guide_trace.nodes["weight"]["value"]
            model_trace = poutine.trace(poutine.replay(model, guide_trace)).get_trace(x, y)
            guide_trace.compute_log_prob()
            model_trace.compute_log_prob()
            loss = Trace_ELBO().differentiable_loss(model, guide, x, y)
        log_q = guide_trace.nodes["weight"]["log_prob_sum"]
        log_prior, log_likelihood = (model_trace.nodes[site]["log_prob_sum"] for site in ("weight", "y"))
        if detach_mu:
            q = guide_trace.nodes["weight"]["fn"].base_dist
            loss = loss - log_q + pyro.distributions.Normal(q.loc.detach(), q.scale).log_prob(w).sum()
        loss.backward()
        gradients = guide.loc.grad, guide.rho.grad
        optimizer.step()
    assert gradients[0] is not None
    assert gradients[1] is not None
    values = (w, log_q, log_prior, log_likelihood, loss, *gradients, guide.loc, guide.rho)
    return {name: value.item() for name, value in zip(PRINTED, values, strict=True)}


HEAD = ("", "tutorial", f"ours, eps = {NOISE}", f"ours, eps = {PRINTED_NOISE:.4f}, as printed")


def rows(record: Mapping[str, Any]) -> list[list[str]]:
    """Each quantity: the tutorial's print, ours for its unrounded noise, ours for the printed noise."""
    ours, rounded = record["ours"], record["printed noise"]
    return [
        [name, f"{printed:.4f}", f"{ours[name]:.6f}", f"{rounded[name]:.8f}"]
        for name, printed in PRINTED.items()
    ]


def worst(record: Mapping[str, Any]) -> float:
    """Largest difference from the tutorial's nine numbers."""
    return max(abs(record["ours"][name] - printed) for name, printed in PRINTED.items())


def control(record: Mapping[str, Any]) -> str:
    """The negative control in words."""
    slope = record["mu detached"]["d loss/d mu"]
    return f"With mu detached in log q, as in its later code, d loss/d mu is {slope:.4f}."


def report(record: Mapping[str, Any]) -> str:
    """What the command prints."""
    explained = [[f"{name}: {QUANTITIES[name][1]}", *cells] for name, *cells in rows(record)]
    difference = (
        f"Largest difference from the tutorial's nine numbers: {worst(record):.1e}; it prints 4 decimals."
    )
    return "\n".join([table(HEAD, explained), difference, control(record)])


def main(arguments: Sequence[str]) -> None:
    """The update with both noises, and the negative control."""
    _, overrides, out = STUDY.begin(arguments)
    refuse(overrides, [key_of(word) for word in overrides], "the update is given; see --help")
    record = {
        "noise": NOISE,
        "ours": update(NOISE),
        "printed noise": update(PRINTED_NOISE),
        "mu detached": update(NOISE, detach_mu=True),
    }
    out.record(record)
    out.end(report(record))


if __name__ == "__main__":
    command(main, __doc__)
