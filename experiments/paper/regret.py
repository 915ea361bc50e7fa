"""The results of the bandit's games: regret by step, what was eaten, the figure and the table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from omegaconf import DictConfig
from torch import Tensor

from experiments._runner.study import Outputs
from experiments._runner.tables import mean_sd
from experiments.reproductions.controls import SwappedMushroom, clamped
from pyrobbb._support import checkpoint
from pyrobbb.bandits import Games, Mushroom
from pyrobbb.figures.style import CHAINS, GREY, caption, label, new_figure, styled

ARMS = ("thompson", "greedy")
MARKS = (100, 500, 1000, 2000, 5000, 20_000, 40_000, 49_800, 50_000)
SHOWDOWN_README = {  # % of uniform's regret, one run each
    "BBB": 26.9,
    "BootRMS": 21.5,
    "ParamNoise": 19.3,
    "Dropout": 17.8,
    "NeuralLinear": 11.1,
    "LinFullPost": 8.6,
}
SOURCES = """\
Other people's cumulative regret (realised, mean over runs) at 1000 / 5000 / 20,000 / 49,800 steps:
  paper, Fig. 6: no numbers; its axis has 1000 and 10,000, BbB ends lowest, then 1 %, then 5 %
  saxena-mayur (labels swapped: never eating costs 2.410 a step)
    lr 1e-4: BbB 1359/3042/5339/6714   greedy 2152/7831/19,510/39,687   1 % -/-/-/68,853   5 % -/-/-/53,921
    lr 1e-5: BbB 1549/5140/7836/9705   greedy 1162/2522/4288/5274   1 % 1302/3008/7588/15,585
             5 % 1466/4718/14,532/34,605
  JINKEHE (each step clamped at 0) at 20,000: BbB 6872   greedy 10,781   1 % 11,787   5 % 18,277"""


def environment(config: DictConfig) -> Mushroom:
    """What is played: the mushrooms, or the control in which edible and poisonous are swapped."""
    return SwappedMushroom() if config.swapped else Mushroom()


def fixed_rates(mushrooms: Mushroom) -> dict[str, float]:
    """Expected regret per step of three agents that learn nothing, from the table's counts."""
    edible = float(mushrooms.edible.double().mean())
    never, always = 5 * edible, 15 * (1 - edible)
    return {"never eat": never, "at random": (never + always) / 2, "always eat": always}


def agents(config: DictConfig, folder: Path) -> tuple[dict[str, Games], dict[str, float]]:
    """What has been played so far, one entry per agent; and interactions per second of each arm."""
    found, rates = {}, {}
    count = len(config.seeds)
    for arm in ARMS:  # those that were played before count too
        path = folder / f"{arm}.pt"
        newest = checkpoint.load_newest(path)
        if newest is None:
            continue
        state, _ = newest
        names = ["Bayes by Backprop"]
        if arm == "greedy":
            names = ["greedy" if e == 0 else f"{100 * e:g} % greedy" for e in config.epsilons]
        rates[arm] = state["rounds"] * state["expected"].shape[0] / state["seconds"]
        for i, name in enumerate(names):
            rows = slice(i * count, (i + 1) * count)
            expected, realised, actions = (state[key][rows] for key in ("expected", "realised", "actions"))
            found[name] = Games(expected, realised, actions, rounds=state["rounds"])
    return found, rates


def summary(found: dict[str, Games], at_random: float) -> dict[str, Any]:
    """Regret of each run: at some steps, in the last fifth, in all for a figure; and what was eaten early.

    Args:
        found: The games of each agent.
        at_random: Expected regret per step of choosing at random.
    """
    result = {}
    for name, games in found.items():
        expected, realised = games.cumulative(), games.cumulative(realised=True)
        at = [t for t in (*MARKS, games.rounds) if t <= games.rounds]
        last = games.rounds // 5
        late = games.expected[:, games.rounds - last : games.rounds]
        shown = _shown(games.rounds)
        result[name] = {
            "steps": games.rounds,
            "expected": {t: expected[:, t - 1].tolist() for t in at},
            "realised": {t: realised[:, t - 1].tolist() for t in at},
            "realised, clamped at 0": clamped(games.realised[:, : games.rounds].double()).sum(dim=1).tolist(),
            "expected in the last fifth": (expected[:, -1] - expected[:, -1 - last]).tolist(),
            "poisonous eaten in the last fifth": _costing(15, late),
            "edible left in the last fifth": _costing(5, late),
            "eaten in the first 50": games.actions[:, :50].sum(dim=1).tolist(),
            "eaten in the first 1000": games.actions[:, :1000].sum(dim=1).tolist(),
            "percent of uniform": (100 * expected[:, -1] / (at_random * games.rounds)).tolist(),
            "percent of uniform, realised": (100 * realised[:, -1] / (at_random * games.rounds)).tolist(),
            "course": {"step": shown, "expected": [[float(run[t - 1]) for t in shown] for run in expected]},
        }
    return result


def _costing(regret: int, each: Tensor) -> list[int]:
    """How many of the rounds of each run, `(R, T)`, had that expected regret."""
    return (each == regret).sum(dim=1).tolist()


def _spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):,.0f} ({min(values):,.0f}-{max(values):,.0f})"


def report(results: dict[str, Any], rates: dict[str, float], config: DictConfig) -> str:
    """Ours, with the spread over runs, next to the paper's and the sources'."""
    lines = []
    for name, found in results.items():
        runs = len(found["eaten in the first 50"])
        lines.append(f"{name}: {found['steps']:,} steps, {runs} runs; mean (least-greatest) over runs")
        lines.append("    step    expected regret            realised regret")
        for t, values in found["expected"].items():
            lines.append(f"  {t:6,}    {_spread(values):26} {_spread(found['realised'][t])}")
        poisonous, edible = (
            _spread(found[f"{what} in the last fifth"]) for what in ("poisonous eaten", "edible left")
        )
        lines.append(
            f"  in the last fifth   {_spread(found['expected in the last fifth'])}: poisonous eaten "
            f"{poisonous}, edible left {edible}"
        )
        lines.append(
            f"  realised, each round clamped at 0 (a control) {_spread(found['realised, clamped at 0'])}"
        )
        lines.append(f"  eaten in the first 50 {_spread(found['eaten in the first 50'])}")
        percent, realised = (mean_sd(found[f"percent of uniform{of}"], 1) for of in ("", ", realised"))
        lines.append(f"  {percent} % of the regret of choosing at random; realised {realised} %")
    if config.setting == "showdown" and not config.swapped:
        theirs = ", ".join(f"{k} {v}" for k, v in SHOWDOWN_README.items())
        lines.append(f"Showdown's README, one run, realised, % of the regret at random: {theirs}")
    else:
        lines += [SOURCES, *(["edible and poisonous are swapped, a control"] * config.swapped)]
    fixed = fixed_rates(environment(config)).items()
    lines.append("expected regret per step: " + "; ".join(f"{name} {rate:.4f}" for name, rate in fixed))
    lines += [f"{arm}: {rate:.1f} interactions per second, all runs together" for arm, rate in rates.items()]
    return "\n".join(lines)


@styled
def cumulative_regret(record: Mapping[str, Any], setting: str = "") -> Figure:
    """Fig. 6: the median over runs as a line, each run as a thin one, a colour for each agent.

    Args:
        record: Of the bandit's games.
        setting: As the title names it, if not the paper's or Showdown's.
    """
    figure = new_figure(7.2, 4.6)
    axes = figure.subplots()
    longest = max(agent["steps"] for agent in record["agents"].values())
    for (name, agent), colour in zip(record["agents"].items(), CHAINS, strict=False):
        steps, runs = np.array(agent["course"]["step"]), np.array(agent["course"]["expected"])
        median = np.median(runs, axis=0)
        # the axis is logarithmic
        runs, median = (np.where(each > 0, each, np.nan) for each in (runs, median))
        axes.plot(steps, median, color=colour, lw=2.2, label=name)
        if len(runs) > 1:
            axes.plot(steps, runs.T, color=colour, alpha=0.4, lw=0.7)
    steps = np.array(_shown(longest))
    for name in ("never eat", "at random"):
        fixed = record["per step"][name] * steps
        axes.plot(steps, fixed, color=GREY, ls="--", lw=1.0)
        axes.annotate(name, (longest, fixed[-1]), color=GREY, fontsize=8, ha="right", va="bottom")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlim(0, longest)
    axes.set_ylim(bottom=10)
    label(axes, "step (mushrooms met)", "cumulative expected regret (units of reward)")
    axes.legend(loc="lower right")
    usual = "the paper's setting" if record["setting"] == "paper" else "the Bandits Showdown's setting"
    swapped = ", labels swapped (a control)" if record["swapped"] else ""
    shown_runs = f"{len(record['seeds'])} runs and their median"
    caption(figure, f"Mushroom bandit, {setting or usual}{swapped}: {shown_runs}")
    return figure


def _shown(steps: int) -> list[int]:
    """Which steps, from 1, to draw: close to one another early, where regret grows fastest."""
    found: list[int] = np.unique(np.geomspace(1, steps, 80).astype(int)).tolist()
    every = max(1, steps // 80)
    return sorted({*found, *range(every, steps + 1, every)})


def write(config: DictConfig, out: Outputs) -> None:
    """Figure, table, record and report of what has been played."""
    found, rates = agents(config, out.fits)
    fixed = fixed_rates(environment(config))
    results = summary(found, fixed["at random"])
    content = {
        "setting": config.setting,
        "swapped": config.swapped,
        "seeds": list(config.seeds),
        "per step": fixed,
        "agents": results,
        "interactions per second": rates,
    }
    out.record(content)
    out.figure("regret.png", cumulative_regret(content))
    out.end(report(results, rates, config))
