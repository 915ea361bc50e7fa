"""The mushroom bandit: Thompson sampling against epsilon-greedy, many seeds in one batch.

`python -m experiments.paper.bandit [setting=paper|showdown] [key=value ...]` plays every arm, or resumes
from its checkpoint, and writes `record.json` and `regret.png`.
`report=true` plays nothing: it reads the checkpoints as they are and reports on the steps done so far.
The other keys, such as arms=[thompson] seeds=[1,2] steps=5000, are those of `bandit.yaml` next to this file.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from omegaconf import DictConfig
from torch import nn

from experiments._runner.build import ConfigError, component, key_of
from experiments._runner.command import command, place, some
from experiments._runner.compose import declared
from experiments._runner.folder import claim, claimed
from experiments._runner.record import command_line
from experiments._runner.study import Outputs
from experiments.paper.regret import ARMS, environment, write
from pyrobbb._support import checks
from pyrobbb._support.device import threads
from pyrobbb._support.files import locked
from pyrobbb._support.random_state import isolated
from pyrobbb.bandits import (
    Agent,
    EpsilonGreedy,
    Games,
    HeadPerAction,
    MeanFieldLearner,
    Mushroom,
    Play,
    PointLearner,
    ThompsonSampling,
)
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.models.mlp import perceptron

REPORT = ("report=true", "report=yes", "report=on")
CONFIGS = {"paper": "paper/bandit", "showdown": "paper/bandit_showdown"}


def network(config: DictConfig, mushrooms: Mushroom, width: int) -> nn.Module:
    """(context, action) to what the likelihood needs of a reward; initial weights as He et al., biases 0."""
    if config.heads:
        if width > 1:
            raise ConfigError(
                "heads: one output per action is for a likelihood that takes one, got heads=true"
            )
        net: nn.Module = HeadPerAction(perceptron(mushrooms.features, config.hidden, mushrooms.actions), 2)
    else:
        net = perceptron(mushrooms.features + mushrooms.actions, config.hidden, width)
    for parameter in net.parameters():
        nn.init.kaiming_normal_(parameter) if parameter.dim() > 1 else nn.init.zeros_(parameter)
    return net


def make_agent(arm: str, config: DictConfig, mushrooms: Mushroom) -> tuple[Agent, list[int]]:
    """The agent of an arm, and the seed of each of its runs."""
    seeds = list(config.seeds)
    options: dict[str, Any] = {
        name: config[name] for name in ("capacity", "batch_size", "updates", "every", "pulls", "kl_over")
    }
    how = {"lr_decay": config.lr_decay, "compiled": config.compiled}
    likelihood = component("likelihood", config.likelihood)
    sizes, width = (mushrooms.features, mushrooms.actions), likelihood.width(1)
    if arm == "thompson":
        with isolated(seeds[0]):
            net = network(config, mushrooms, width)
        prior, make_guide = (component(key, config[key]) for key in ("prior", "guide"))
        model = BayesianNetwork(net, prior, likelihood, config.capacity)
        guides = [make_guide(model) for _ in seeds]
        learner = MeanFieldLearner(model, guides, seeds, width=sum(sizes), lr=config.lr.thompson, **how)
        return ThompsonSampling(learner, *sizes, seeds, draws=config.draws, **options), seeds
    epsilons = [e for e in config.epsilons for _ in seeds]
    seeds = seeds * len(config.epsilons)
    nets = []
    for seed in seeds:
        with isolated(seed):
            nets.append(network(config, mushrooms, width))
    plain = PointLearner(nets, likelihood, lr=config.lr.greedy, **how)
    return EpsilonGreedy(plain, *sizes, seeds, epsilon=epsilons, **options), seeds


def play(arm: str, config: DictConfig, folder: Path) -> None:
    """Play an arm to its end, from where its checkpoint left off."""
    mushrooms = environment(config)
    agent, seeds = make_agent(arm, config, mushrooms)
    where = {"path": folder / f"{arm}.pt", "checkpoint_seconds": config.checkpoint_seconds}
    game = Play(mushrooms, agent, config.steps, seeds, **where)
    said = monotonic()

    def progress(games: Games) -> None:
        nonlocal said
        if monotonic() - said >= 30 or games.rounds == config.steps:
            said = monotonic()
            regret = games.cumulative()[:, -1]
            print(
                f"{arm}: step {games.rounds}/{config.steps}  expected regret {regret.mean():.0f}  "
                f"{games.rounds * len(seeds) / games.seconds:.1f} interactions/s",
                file=sys.stderr,
                flush=True,
            )

    game.run(progress)


def configuration(arguments: Sequence[str]) -> DictConfig:
    """The declaration of a setting, changed by `key=value`."""
    setting = ["paper", *(a.partition("=")[2] for a in arguments if key_of(a) == "setting")][-1]
    checks.one_of("setting", setting, CONFIGS)
    config = declared(CONFIGS[setting], [a for a in arguments if not a.startswith("folder=")])
    changed = [a for a in arguments if key_of(a) != "setting"]
    config.folder = str(place(changed, config.folder))
    for key in ("seeds", "arms", "epsilons"):
        some(key, config[key])
    checks.each_of("arms", config.arms, ARMS)
    checks.count("threads", config.threads)
    for epsilon in config.epsilons:
        checks.between("epsilons", epsilon, 0, 1)
    return config


def arms_in(folder: Path) -> list[str]:
    """The arms that have been played there, which are those that the record is of."""
    return [arm for arm in ARMS if (folder / f"{arm}.pt").exists()]


def main(arguments: Sequence[str]) -> None:
    """Play what has not been played, then report."""
    played = [argument for argument in arguments if argument.lower() not in REPORT]
    config = configuration(played)
    folder = Path(config.folder)
    if len(played) < len(arguments):
        if not arms_in(folder):
            raise ConfigError(f"folder: nothing has been played in {folder} yet")
        claim(config)
    else:
        with threads(config.threads), claimed(config), locked(folder):
            for arm in config.arms:
                play(arm, config, folder)
    words = [argument for argument in played if key_of(argument) != "arms"]
    if (arms := arms_in(folder)) != list(ARMS):
        words.append(f"arms=[{','.join(arms)}]")
    write(config, Outputs(folder, command=command_line("experiments.paper.bandit", words)))


if __name__ == "__main__":
    command(main, __doc__)
