"""The checks of a fit, on posteriors whose faults are known without training."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro.infer.autoguide import AutoDelta
from torch import Tensor, nn

from engine_fakes import normal
from experiments._runner.build import build
from experiments._runner.compose import declared
from experiments.check import checked, fitted
from experiments.run import execute
from pyrobbb import Posterior, checkup, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.checkup import Finding, certainty, check, inside, notes, recorded, verdict
from pyrobbb.checkup.held_out import calibration, effective, standard_error
from pyrobbb.checkup.optimum import Energy, _held_out, _saving, beside_trivial
from pyrobbb.data import from_arrays
from pyrobbb.data.dataset import Dataset, Split
from pyrobbb.draws import NoWeights
from pyrobbb.evaluation import arviz_io
from pyrobbb.evaluation.arviz_export import to_arviz
from pyrobbb.evaluation.diagnostics import r_hat
from pyrobbb.inference import MAP, NaturalGradient
from pyrobbb.inference.empirical import EmpiricalGuide
from pyrobbb.mean_field import MeanFieldNormal
from seeds import FIXED

N, D, NOISE = 64, 4, 0.5


def orthogonal() -> Dataset:
    """y = x w + noise with x^T x = N: the mean field is the exact posterior."""
    with isolated(0):
        x = torch.linalg.qr(torch.randn(N, D))[0] * N**0.5
        y = x @ torch.tensor([[1.0], [-0.5], [0.2], [0.0]]) + NOISE * torch.randn(N, 1)
        more = torch.randn(N, D)
        test = more @ torch.tensor([[1.0], [-0.5], [0.2], [0.0]]) + NOISE * torch.randn(N, 1)
    return from_arrays(x, y, task="regression", test=(more, test))


def exact(data: Dataset, *, wider: float = 1.0, sign: float = 1.0) -> tuple[BayesianNetwork, MeanFieldNormal]:
    """The exact posterior, or one of another width or sign."""
    model = BayesianNetwork(
        nn.Linear(D, 1, bias=False), priors.Normal(sigma=1.0), likelihoods.Normal(scale=NOISE), N
    )
    precision = N / NOISE**2 + 1
    loc = sign * (data.train.x.T @ data.train.y).T / NOISE**2 / precision
    width = torch.tensor(wider / precision**0.5)
    guide = MeanFieldNormal(model, init_loc=lambda site: loc, init_rho=float(width.expm1().log()))
    with isolated(0):
        guide()
    return model, guide


def found(posterior: Posterior, data: Dataset, **options: int) -> dict[str, Finding]:
    with isolated():
        return {finding.name: finding for finding in check(posterior, data, **{"steps": 50, **options})}


def test_an_exact_posterior_has_no_fault() -> None:
    data = orthogonal()
    findings = found(Posterior([exact(data), exact(data)]), data)
    assert [name for name, finding in findings.items() if not finding.passed] == []
    assert verdict(list(findings.values())) == "no fault found"
    assert findings["optimum"].value == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize("wider", [0.1, 10.0])
def test_a_width_that_is_wrong_is_not_at_the_minimum(wider: float) -> None:
    data = orthogonal()
    findings = found(Posterior([exact(data, wider=wider)]), data, steps=400)
    assert findings["optimum"].passed is False  # log 10 - 0.45 = 1.8 nats a weight, or 47, could be saved
    assert findings["restarts"].passed is None
    said = verdict(list(findings.values()))
    assert said.startswith("do not trust this posterior yet: optimum")
    words = findings["sigma"].words  # the last of the faults
    now, then = map(float, re.findall(r"held-out rows is (\S+) now, (\S+) then", words)[0])
    assert re.search("A lower F (may predict|predicts) worse", words)
    assert then < now or wider < 1


def test_a_sigma_that_is_wrong_is_told_from_a_mu_that_is() -> None:
    """Half as wide again, (1.5^2 - 1) / 2 - log 1.5 = 0.22 nats a weight could be saved, by sigma alone."""
    data = orthogonal()
    model, guide = exact(data, wider=1.5)
    findings = found(Posterior([(model, guide)]), data, steps=400, draws=1000)
    assert findings["sigma"].passed is False
    assert findings["sigma"].value == pytest.approx(0.2195 - 3 * 0.013, abs=5 * 0.013)  # of 1000 draws
    assert re.search(r"see that it is trained, .* or let the rate fall", findings["sigma"].words)
    assert findings["optimum"].passed is True
    model, guide = exact(data)
    guide.loc.data += 0.1
    findings = found(Posterior([(model, guide)]), data, steps=150)
    assert findings["sigma"].value == pytest.approx(0, abs=0.01)
    assert findings["optimum"].passed is False


@pytest.mark.parametrize("moved", [-8.0, 0.0, 8.0])
def test_many_rows_and_one_weight(moved: float) -> None:
    """mu that lies so many standard deviations off could save moved^2 / 2 nats, of one weight."""
    rows = 20_000
    with isolated(0):
        x = torch.randn(rows, 1)
        data = from_arrays(x, 0.5 * x + torch.randn(rows, 1), task="regression")
    model = BayesianNetwork(
        nn.Linear(1, 1, bias=False), priors.Normal(sigma=1.0), likelihoods.Normal(1.0), rows
    )
    precision = 1 + float(x.square().sum())
    loc = (data.train.x * data.train.y).sum().reshape(1, 1) / precision + moved / precision**0.5
    guide = MeanFieldNormal(
        model, init_loc=lambda site: loc, init_rho=float(np.log(np.expm1(precision**-0.5)))
    )
    guide()
    finding = found(Posterior([(model, guide)]), data, steps=200, draws=20)["optimum"]
    assert finding.passed is (moved == 0)
    assert finding.value == pytest.approx(moved**2 / 2, rel=0.75, abs=0.1)  # less three errors


def test_the_error_of_a_free_energy_is_that_of_draws_and_of_rows_that_were_not_read() -> None:
    by_row = torch.tensor([1.0, 3.0] * 50, dtype=torch.double)
    by_draw = torch.tensor([10.0, 14.0] * 200, dtype=torch.double)
    every, some = Energy(by_draw, by_row, 100), Energy(by_draw, by_row, 400)
    of_draws, of_rows = float(by_draw.std()) / 20, 400 * float(by_row.std()) * (1 / 100 - 1 / 400) ** 0.5
    assert every.error_of_rows == 0
    assert every.error == pytest.approx(of_draws)
    assert some.error_of_rows == pytest.approx(of_rows)
    assert some.error == pytest.approx((of_draws**2 + of_rows**2) ** 0.5)
    known, unknown = (_saving("optimum", energy, 100, 0.3, "", "") for energy in (every, some))
    assert known.passed is True
    assert unknown.passed is None  # 0.12 ± 0.35 nats a weight
    assert "100 rows are too few" in unknown.words


def test_a_free_energy_above_the_trivial_one_by_chance_is_no_fault() -> None:
    assert beside_trivial(1.01, 1.0).passed is False
    assert beside_trivial(1.01, 1.0, error=0.005).passed is True
    assert beside_trivial(1.01, 1.0, error=0.002).passed is False


@pytest.mark.parametrize("bad", [0, 1])
def test_of_several_chains_the_worst_counts(bad: int) -> None:
    data = orthogonal()
    chains = [exact(data), exact(data)]
    chains[bad] = exact(data, wider=10.0)
    findings = found(Posterior(chains), data)
    assert findings["optimum"].passed is False  # tens of nats a weight
    assert findings["optimum"].words.startswith(f"chain {bad}: ")


def test_a_chain_that_stacking_leaves_out_is_not_checked() -> None:
    data = orthogonal()
    chains = [exact(data, wider=10.0), exact(data), exact(data)]
    findings = found(Posterior(chains, chain_weights=(1e-9, 0.5, 0.5)), data)
    assert all(finding.passed is not False for finding in findings.values())
    assert findings["optimum"].words.startswith(("chain 1: ", "chain 2: "))
    findings = found(Posterior(chains, chain_weights=(1e-9, 1.0, 1e-9)), data)
    assert findings["optimum"].words.startswith("chain 1: ")
    assert findings["restarts"].words.startswith("stacking uses one of 3 chains")


def test_what_is_not_known_of_a_chain_is_not_hidden_by_another() -> None:
    ok, fault, unknown = (Finding("optimum", value, 0.5, "") for value in (0.0, 1.0, None))
    for findings, worst in (((ok, unknown), None), ((unknown, fault), 1.0), ((ok, ok), 0.0)):
        for order in (findings, findings[::-1]):
            [found] = checkup._worst({chain: [one] for chain, one in enumerate(order)}, several=True)
            assert found.value == worst


def test_restarts_in_different_modes_are_told() -> None:
    data = orthogonal()
    findings = found(Posterior([exact(data), exact(data, sign=-1.0)]), data, steps=1, draws=2)
    assert findings["restarts"].passed is False


def cycle(draws: int, apart: float, width: float = 1.0) -> Posterior:
    """Two chains of a sampler with the same draws, the second this far above the first."""
    levels = np.arange(draws) * 0.618 % 1  # spread evenly over every stretch of the chain
    chains = []
    for chain in range(2):
        model = BayesianNetwork(nn.Linear(D, 1, bias=False), priors.Normal(), likelihoods.Normal(NOISE), N)
        guide = EmpiricalGuide(model, draws)
        for level in levels:
            guide.keep(torch.full((D,), float(apart * chain + width * level)))
        chains.append((model, guide))
    return Posterior(chains)


@pytest.mark.parametrize(
    ("draws", "apart", "width", "passed", "words"),
    [
        (120, 0.0, 1.0, True, "nine of ten inputs"),
        (120, 0.5, 1.0, False, "they have not mixed"),  # R-hat is 1.36
        (60, 0.5, 1.0, True, "nine of ten inputs"),  # so few may be this far apart by chance
        (30, 2.0, 1.0, False, "they have not mixed"),
        (60, 1.0, 0.0, False, "they have not mixed"),  # stuck, which is not what points are
        (19, 0.0, 1.0, None, "a sampler's chain of 19 draws is too short"),
        (2, 1.0, 1.0, None, "a sampler's chain of 2 draws is too short"),
    ],
)
def test_chains_of_a_sampler_are_to_have_one_distribution(
    draws: int, apart: float, width: float, passed: bool | None, words: str
) -> None:
    restarts = found(cycle(draws, apart, width), orthogonal(), steps=1, draws=100)["restarts"]
    assert restarts.passed is passed
    assert words in restarts.words


@pytest.mark.parametrize(("shift", "passed"), [((5.0, 5.0, 5.0), True), ((5.0, 0.0, 0.0), False)])
def test_a_number_added_to_all_logits_is_no_other_mode(shift: tuple[float, ...], passed: bool) -> None:
    x, y = normal(60, 2), torch.arange(60) % 3
    data = from_arrays(x, y, task="classification")

    def restart(bias: tuple[float, ...]) -> tuple[BayesianNetwork, MeanFieldNormal]:
        model = BayesianNetwork(nn.Linear(2, 3), priors.Normal(), likelihoods.Categorical(), 60)
        locs = {"weight": torch.zeros(3, 2), "bias": torch.tensor(bias)}
        guide = MeanFieldNormal(model, init_loc=lambda site: locs[site["name"]], init_rho=-2.0)
        guide()
        return model, guide

    both = Posterior([restart((0.0, 0.0, 0.0)), restart(shift)])
    restarts = found(both, data, steps=1, draws=2)["restarts"]  # which takes 100 at least
    assert restarts.passed is passed


def test_nothing_that_is_given_changes() -> None:
    data = orthogonal()
    model, guide = exact(data, wider=10.0)
    before = {name: value.clone() for name, value in guide.state_dict().items()}
    store = {*pyro.get_param_store().keys()}
    found(Posterior([(model, guide)]), data)
    assert all(torch.equal(value, before[name]) for name, value in guide.state_dict().items())
    noisy = BayesianNetwork(nn.Linear(2, 1, bias=False), likelihood=likelihoods.Normal(), N=20)
    other = from_arrays(torch.ones(20, 2), torch.arange(20.0)[:, None], task="regression")
    check(Posterior([(noisy, MeanFieldNormal(noisy))]), other, draws=2, steps=2)
    assert {*pyro.get_param_store().keys()} == store


class Stated(nn.Module):
    """Logits that are the inputs, of which no weight is worth mentioning."""

    def __init__(self, twice: bool = False) -> None:
        super().__init__()
        self.nothing, self.twice = nn.Parameter(torch.zeros(1)), twice

    def forward(self, x: Tensor) -> Tensor:
        logits = x + 0 * self.nothing
        return logits.softmax(-1) if self.twice else logits


@pytest.mark.parametrize(
    ("factor", "twice", "words"),
    [
        (1.0, False, None),
        (3.0, False, "too sure"),
        (0.2, False, "too unsure"),
        (1.0, True, "softmax applied"),
    ],
)
def test_certainty_is_held_against_the_labels(factor: float, twice: bool, words: str | None) -> None:
    """Labels drawn from the probabilities of x; the model states those of a multiple, or softmax twice."""
    with isolated(1):
        x = 2 * torch.randn(1000, 3)
        y = torch.multinomial(x.softmax(-1), 1)[:, 0]
    data = from_arrays(factor * x, y, task="classification", test=(factor * x, y))
    model = BayesianNetwork(Stated(twice), priors.Normal(), likelihoods.Categorical(), 1000)
    guide = MeanFieldNormal(model)
    guide()
    finding = found(Posterior([(model, guide)]), data)["calibration"]
    assert finding.passed is (words is None)
    assert words is None or words in str(finding)


def test_intervals_are_held_against_the_values() -> None:
    data = orthogonal()
    wide = from_arrays(
        data.train.x, data.train.y, task="regression", test=(normal(400, D), 8 * normal(400, 1, seed=1))
    )
    finding = found(Posterior([exact(data)]), wide)["calibration"]
    assert finding.passed is False
    assert "too narrow" in finding.words


@pytest.mark.parametrize("alike", [True, False])
def test_outputs_of_a_row_that_are_alike_are_not_so_many_values(alike: bool) -> None:
    """18 of 24 rows within 50 % intervals are chance, 360 of 480 independent values are not."""
    with isolated(0):
        rows = torch.tensor([0.3] * 18 + [2.0] * 6)
        columns = [rows if alike else rows[torch.randperm(24)] for _ in range(20)]
        model = BayesianNetwork(nn.Linear(1, 20), priors.Normal(), likelihoods.Normal(1.0), 24)
        guide = MeanFieldNormal(model, init_loc=lambda site: torch.zeros(site["fn"].event_shape))
        guide()
    held = Split(torch.zeros(24, 1), torch.stack(columns, 1))
    finding = calibration(Posterior([(model, guide)]), held, 100, 0)
    assert "75 % of 480 held-out values" in finding.words
    assert finding.passed is alike


def test_held_out_rows_count_as_often_as_their_weights_say() -> None:
    """Weights of 2 and of 0 are as the rows alone that have 2."""
    with isolated(0):
        y, junk = torch.randn(100, 2), 20 * torch.randn(100, 2)
        probs = torch.rand(100, 2, 3).softmax(-1)
        labels = torch.multinomial(probs.flatten(0, 1), 1).reshape(100, 2)
        model = BayesianNetwork(nn.Linear(1, 2), priors.Normal(), likelihoods.Normal(1.0), 100)
        guide = MeanFieldNormal(model, init_loc=lambda site: torch.zeros(site["fn"].event_shape))
        guide()
    posterior, x, counts = Posterior([(model, guide)]), torch.zeros(200, 1), torch.tensor([2.0, 0.0])
    counts = counts.repeat_interleave(100)
    splits = Split(x, torch.cat([y, junk]), counts), Split(x[:100], y)
    found = [calibration(posterior, split, 100, 0) for split in splits]
    assert found[0].passed
    words = [finding.words.partition(" lie")[0] for finding in found]
    assert words[0] == words[1]
    assert "of 200 held-out values" in words[0]
    alone = certainty(probs.flatten(0, 1), labels.flatten(), torch.ones(100))
    both = certainty(probs.repeat(2, 1, 1).flatten(0, 1), torch.cat([labels, 0 * labels]).flatten(), counts)
    assert (both.words, both.value) == (alone.words, pytest.approx(alone.value))
    said = [_held_out((model, guide), (model, guide), split, 5, 0) for split in splits]
    assert said[0] == said[1]


@pytest.mark.parametrize("classes", [False, True])
def test_the_file_of_a_run_knows_how_often_test_rows_count(tmp_path: Path, classes: bool) -> None:
    """The last 100 rows do not count, and are as unlikely as can be."""
    with isolated(0):
        x = 3 * torch.randn(220, 2)
        y = torch.multinomial(x.softmax(-1), 1)[:, 0] if classes else x[:, :1] + torch.randn(220, 1)
        y[120:] = x[120:].argmin(1) if classes else 20.0
        likelihood = likelihoods.Categorical() if classes else likelihoods.Normal(1.0)
        network = nn.Linear(2, 1 + classes, bias=False)
        model = BayesianNetwork(network, priors.Normal(), likelihood, 20)
        guide = MeanFieldNormal(model, init_loc=lambda _: torch.eye(2)[: 1 + classes], init_rho=-9.0)
        guide()
    counts = torch.cat([torch.ones(120), torch.zeros(100)])
    task = "classification" if classes else "regression"
    data = from_arrays(x, y, task=task, weights=counts, test=list(range(20, 220)))
    arviz_io.save(to_arviz(Posterior([(model, guide)]), data, weights=1), tmp_path / "posterior.nc")
    (tmp_path / "metrics.json").write_text("{}")
    (finding,) = recorded(tmp_path)
    assert finding.passed
    if not classes:
        few = to_arviz(Posterior([(model, guide)]), data, weights=1, draws=5)
        arviz_io.save(few, tmp_path / "posterior.nc")
        (finding,) = recorded(tmp_path)
        assert (finding.value, finding.words) == (None, "5 draws are too few to tell")


def test_rows_whose_weights_differ_are_as_certain_as_fewer() -> None:
    """4 rows of weight 1 and 2 of weight 2: 8^2 / 12; the error of a mean of equal rows is the usual one."""
    assert effective(torch.tensor([1.0, 1, 1, 1, 2, 2])) == 5
    values = torch.tensor([0.0, 1.0, 5.0])
    assert standard_error(values, torch.full((3,), 0.1)) == pytest.approx(float(values.std()) / 3**0.5)


@FIXED  # 50 % of some draws is 51 % of others
def test_outputs_that_are_too_wide_and_too_narrow_do_not_cancel() -> None:
    """Noise of 0.05, 1 and 1, and one learned scale for all, between them."""
    with isolated(0):
        y = torch.randn(400, 3) * torch.tensor([0.05, 1.0, 1.0])
        model = BayesianNetwork(nn.Linear(1, 3), priors.Normal(), likelihoods.Normal(0.7), 400)
        guide = MeanFieldNormal(model, init_loc=lambda site: torch.zeros(site["fn"].event_shape))
        guide()
    finding = calibration(Posterior([(model, guide)]), Split(torch.zeros(400, 1), y), 100, 0)
    assert finding.passed is False
    assert (
        "100 % of 400 held-out values of output 0 lie in 50 % intervals: they are too wide" in finding.words
    )


def test_of_few_held_out_rows_nothing_is_said() -> None:
    none, half = torch.zeros(26, 1), torch.full((26, 1), 0.5)
    assert inside(none[:25], half[:25], torch.ones(25)).passed is None
    assert inside(none, half, torch.ones(26)).passed is False
    probs, y = torch.tensor([[0.999, 0.001]] * 26), torch.ones(26, dtype=torch.long)
    assert certainty(probs[:25], y[:25], torch.ones(25)).passed is None
    assert certainty(probs, y, torch.ones(26)).passed is False


def test_a_prior_whose_outputs_overflow_is_remarked() -> None:
    data = orthogonal()
    model = BayesianNetwork(nn.Linear(D, 1), priors.Normal(sigma=1e3), likelihoods.Poisson(), N)
    guide = MAP().guide(model, None)
    with isolated():
        assert notes(Posterior([(model, guide)]), data)[0].startswith("before the data, some outputs are too")


@pytest.mark.parametrize("alike", [True, False])
def test_labels_of_a_row_that_are_alike_are_not_so_many_labels(alike: bool) -> None:
    """Of 30 pictures that are said to be of class 0 with 90 %, 18 are, in all of their 50 pixels."""
    with isolated(0):
        y = torch.tensor([0] * 18 + [1] * 12).repeat_interleave(50)
        y = y if alike else y[torch.randperm(1500)]
    finding = certainty(torch.tensor([[0.9, 0.1]]).expand(1500, 2), y, torch.ones(30))
    assert "would save 0.31" in finding.words
    assert finding.passed is alike


def test_a_point_estimate_has_no_bound_to_check() -> None:
    data = orthogonal()
    model, _ = exact(data)
    guide = AutoDelta(model)
    guide()
    findings = found(Posterior([(model, guide)]), data)
    assert findings["optimum"].value is None
    assert "no free energy" in findings["trivial bound"].words
    assert findings["calibration"].passed is not None
    assert "not checked" in verdict([f for f in findings.values() if f.passed is None])


def test_a_natural_gradient_s_normal_is_trained_by_its_rho() -> None:
    data = orthogonal()
    model, guide = exact(data, wider=30.0)
    mine = NaturalGradient().guide(model, lambda model: guide)
    mine()
    with torch.no_grad():
        mine.loc.copy_(guide.loc)
        mine.scale.copy_(guide.sigma)
    torch.testing.assert_close(mine.by_rho().rho, guide.rho)
    by_scale, by_rho = (found(Posterior([(model, g)]), data)["optimum"] for g in (mine, guide))
    assert by_scale.passed is False
    assert by_scale.value == pytest.approx(by_rho.value, rel=1e-3)


def test_a_run_folder_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["data=blobs", "data.features=20", "model.hidden=[8]", "epochs=2", "chains=2"]
    words += ["figures=false", "report=false", f"folder={tmp_path}"]
    execute(declared("run", words), quiet=True)
    said = checked(tmp_path, sbc=2)
    assert "on 2 data sets drawn from the model" in said
    kept = json.loads((tmp_path / "check.json").read_text())
    assert said.splitlines()[-1] == kept["verdict"]
    assert [finding["name"] for finding in kept["findings"]] == [
        "optimum",
        "sigma",
        "trivial bound",
        "calibration",
        "restarts",
    ]
    assert kept["verdict"].startswith("do not trust this posterior yet: optimum")  # after two epochs
    assert "not finished" not in said
    (tmp_path / "metrics.json").unlink()
    for costly in ("check", "notes"):
        monkeypatch.setattr(f"experiments.check.{costly}", lambda *given, **options: [])
    with monkeypatch.context() as there:  # somebody else's folder

        def refused(path: Path, content: Any) -> None:
            raise OSError(30, f"cannot write {path}: Read-only file system")

        there.setattr("experiments.check.write_json", refused)
        words = checked(tmp_path).splitlines()
        assert words[-2] == verdict([])
        assert words[-1].endswith("check.json: Read-only file system")
    assert "the run is not finished: epoch 2 of 2" in checked(tmp_path)
    monkeypatch.setattr("experiments.check.check", pytest.fail)  # it comes later, as it takes its time
    with pytest.raises(ValueError, match="at least 2, got 1"):
        checked(tmp_path, sbc=1)


def test_a_stacked_run_is_fitted_to_simulated_data_by_one_chain() -> None:
    words = ["data=blobs", "data.features=4", "model.hidden=[3]", "epochs=1", "chains=2", "stacking=true"]
    run = build(declared("run", words))
    data = run.data.load()
    assert len(fitted(run, data, 3).chains) == 1


@pytest.mark.parametrize(("rate", "passed"), [(0.3, True), (1.0, True), (20.0, False)])
def test_intervals_of_counts_hold_more_than_their_level(rate: float, passed: bool) -> None:
    """Held-out counts of mean 0.3 or 1 under a model that says so; of 20 under one that says 4."""
    stated = min(rate, 4.0)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.ones(400, 1), torch.poisson(torch.full((400, 1), rate), generator=draw)
    data = from_arrays(x, y, task="regression", test=(x, y))
    model = BayesianNetwork(nn.Linear(1, 1, bias=False), priors.Normal(), likelihoods.Poisson(), 400)
    level = torch.full((1, 1), stated).log()
    guide = MeanFieldNormal(model, init_loc=lambda site: level, init_rho=-9.0)
    guide()
    assert found(Posterior([(model, guide)]), data)["calibration"].passed is passed


@pytest.mark.parametrize("prior", [priors.Normal(), priors.Deterministic()])
def test_restarts_that_are_points_are_not_compared(prior: priors.Prior) -> None:
    data = orthogonal()

    def restart() -> tuple[BayesianNetwork, nn.Module]:
        model = BayesianNetwork(nn.Linear(D, 1), prior, likelihoods.Normal(0.1), N)
        return model, MAP().guide(model, None) if model.sites else NoWeights()

    assert found(Posterior([restart(), restart()]), data)["restarts"].passed is None


def test_restarts_are_compared_on_a_grid() -> None:
    values = torch.randn(2, 50, 3, 4, 5, 2, generator=torch.Generator().manual_seed(0)).numpy()
    values[1, :, 1, 2, 3, 0] += 9.0
    told = r_hat(values)
    assert told.shape == (3, 4, 5, 2)
    assert np.unravel_index(told.argmax(), told.shape) == (1, 2, 3, 0)


def test_other_data_are_refused_by_their_shape() -> None:
    data = orthogonal()
    wider = from_arrays(torch.zeros(N, D + 1), data.train.y, task="regression")
    with pytest.raises(ValueError, match=rf"^the network cannot take a row of x, .* shape \({D + 1},\)"):
        found(Posterior([exact(data)]), wider)
