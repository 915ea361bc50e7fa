"""Less than the library would like: no compiler, a network that cannot be recorded."""

from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import nn

from architectures import Chain, last
from commands import command, interpreter
from engine_fakes import Listens
from pyrobbb import fit, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated.prior_segments import NotElementwiseError, prior_segments
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.arrays import from_arrays
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.svi import ReferenceStep
from step_cases import PRIORS, Case, Looking

PROGRAM = """
from functools import partial
import torch
from torch import nn
from pyro.infer.autoguide import AutoNormal
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb import BayesianNetwork, fit, likelihoods, priors
from pyrobbb.data import from_arrays
from pyrobbb.training.progress import Silent

class Heard(Silent):
    def log(self, message):
        if not message.startswith("free energy"):
            print(message)

torch.manual_seed(0)
data = from_arrays(torch.rand(40, 3), torch.rand(40, 1), task="regression")
for make in ({guides}):
    model = BayesianNetwork(nn.Linear(3, 1), priors.Normal(), likelihoods.Normal(scale=0.1), 40)
    optim = partial(torch.optim.Adam, lr=0.01)
    posterior = fit(model, make(model), data, epochs=3, batch_size=20, optim=optim, fast="compiled",
                    progress=Heard(), device="cpu")
    print("error", float((posterior.predict(data.train.x, draws=5).mean - data.train.y).abs().mean()))
"""


def program(*guides: str) -> str:
    return PROGRAM.replace("{guides}", ", ".join(guides) + ",")


def test_without_a_compiler_it_trains_and_says_in_one_line_what_was_lost(tmp_path: Path) -> None:
    """In a fresh interpreter, for inductor asks for the compiler's name when it is imported."""
    done = interpreter(
        "-c", program("MeanFieldNormal", "AutoNormal"), TORCHINDUCTOR_CACHE_DIR=str(tmp_path),
        CXX="/nonexistent/c++",
    )  # fmt: skip
    _, mean_field, first, _, auto_normal, second = done.stdout.splitlines()
    assert "training without compiled code" in mean_field
    assert "training with Pyro's own SVI" in auto_normal
    for line in (mean_field, auto_normal):
        assert "No working C++ compiler" in line
    for line in (first, second):
        assert 0 <= float(line.removeprefix("error ")) < 10


def test_a_compilation_is_shown_and_kept_for_the_next_process(tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text(program("MeanFieldNormal"))
    said, made = [], []
    for _ in range(2):
        done = command(tmp_path, "training", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.splitlines())
        made.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.so")})
    for lines in said:
        assert lines[0].startswith("compiling the training step")
    assert made[0]
    assert made[1] == made[0]
    assert said[0][1] == said[1][1]


def trained(network: nn.Module, **options: Any) -> list[str]:
    """What a short training of `network` says."""
    with isolated(0):
        data = from_arrays(torch.rand(40, 3), torch.rand(40, 1), task="regression")
        model = BayesianNetwork(network, priors.ScaleMixture(), likelihoods.Normal(scale=0.1), 40)
    heard = Listens()
    posterior = fit(
        model, MeanFieldNormal(model), data, epochs=2, batch_size=20, progress=heard, device="cpu", **options
    )
    assert torch.isfinite(posterior.draw(1)["0.weight"]).all()
    return [line for line in heard.said if not line.startswith("free energy")]


def test_a_network_that_looks_at_its_data_trains_uncompiled() -> None:
    _, line = trained(nn.Sequential(nn.Linear(3, 1), Looking()), fast="compiled")
    assert line.startswith("training without compiled code")


class Own(torch.distributions.Normal, dist.TorchDistribution):
    """A distribution of the user's own, whose constructor takes no `validate_args`."""

    def __init__(self, loc: torch.Tensor, scale: torch.Tensor) -> None:
        super().__init__(loc, scale)


class OwnPrior(priors.Prior):
    def distribution(self, name: str, parameter: torch.Tensor) -> Any:
        distribution = Own(torch.zeros_like(parameter), torch.ones_like(parameter))
        return distribution.to_event(parameter.dim())


class OneAtATime(PyroModule):
    """A guide that shapes its draw, which several draws at once do not let it."""

    def __init__(self, model: BayesianNetwork) -> None:
        super().__init__()
        self.shapes = {name: value.shape for name, value in model.initial().items()}
        self.loc = nn.Parameter(torch.zeros(sum(shape.numel() for shape in self.shapes.values())))

    def forward(self, *args: Any) -> dict[str, torch.Tensor]:
        flat = pyro.sample("flat", dist.Normal(self.loc, 0.1).to_event(1), infer={"is_auxiliary": True})
        parts = flat.split([shape.numel() for shape in self.shapes.values()])
        each = zip(self.shapes.items(), parts, strict=True)
        return {
            name: pyro.sample(name, dist.Delta(part.reshape(shape), event_dim=len(shape)))
            for (name, shape), part in each
        }


def test_a_guide_that_takes_one_draw_at_a_time_takes_the_slower_path() -> None:
    """However long the run: a recording would draw all at once."""
    case = Case(PRIORS["normal"], "normal", OneAtATime)
    step = case.step(samples=3, steps=10_000)
    assert isinstance(step, ReferenceStep)
    assert "it takes its draws one by one" in case.said[0]
    step(case.data.x, case.data.y, 0.2, 0.5)


def test_a_distribution_that_cannot_be_rebuilt_takes_the_slower_path() -> None:
    model = BayesianNetwork(nn.Linear(2, 1), OwnPrior(), likelihoods.Normal(0.1), 8)
    sites = {k: OwnPrior().distribution(k, v) for k, v in model.initial().items()}
    with pytest.raises(NotElementwiseError, match="Own, cannot be rebuilt from its parameters"):
        prior_segments(sites)
    data = from_arrays(torch.ones(8, 2), torch.ones(8, 1), task="regression")
    fit(model, MeanFieldNormal(model), data, epochs=1, batch_size=8, device="cpu")


def test_an_option_beside_the_parameters_is_not_lost() -> None:
    law = priors.IID(dist.StableWithLogProb(1.5, 0.9, 1.0, 0.0, coords="S"))
    with pytest.raises(
        NotElementwiseError, match=r"'w', StableWithLogProb, cannot be rebuilt from .* density"
    ):
        prior_segments({"w": law.distribution("w", torch.zeros(5))})


def test_an_lstm_trains_uncompiled_where_it_would_be_compiled() -> None:
    """Torch records a backward pass of it that it cannot run again."""
    rolled = Chain(nn.Unflatten(1, (1, 3)), nn.LSTM(3, 4, batch_first=True), last, nn.Linear(4, 1))
    _, line = trained(nn.Sequential(nn.Linear(3, 3), rolled), fast="compiled")
    assert line.startswith("training without compiled code")
