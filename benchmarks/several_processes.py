"""What training on several processes costs: the step, and the communication in it, per network.

`torchrun --standalone --nproc-per-node=2 -m benchmarks.several_processes`: by turns one process alone (the
others wait) and all of them step on the same minibatches of 28 x 28 inputs; medians over the rounds.
"""

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from benchmarks.steps import CLASSES, INPUTS, N, network
from pyrobbb._support.optim import fused
from pyrobbb._support.process_group import SINGLE, ProcessGroup, joined
from pyrobbb._support.random_state import isolated
from pyrobbb.accelerated import make_step
from pyrobbb.data.dataset import Split
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.svi import Step


def step_of(width: int, batch: Split, ranks: ProcessGroup) -> tuple[Step, int]:
    """A compiled step of the 784-width-width-10 network for this process's rows, and its weights."""
    with isolated(0):
        model = network(width)
        guide = MeanFieldNormal(model)
        guide(batch.x, batch.y)
        adam = fused(torch.optim.Adam)([{"params": list(guide.parameters())}])
        return make_step(model, guide, adam, batch, fast="compiled", ranks=ranks), model.num_weights


def seconds(work: Callable[[], object], times: int) -> float:
    """Mean time of `times` calls."""
    began = perf_counter()
    for _ in range(times):
        work()
    return (perf_counter() - began) / times


def measure(width: int, B: int, ranks: ProcessGroup, rounds: int) -> str:
    """One line of the table."""
    with isolated(1):
        whole = Split(torch.rand(B, INPUTS), torch.randint(CLASSES, (B,)))
    mine = Split(ranks.shard(whole.x), ranks.shard(whole.y))
    part = len(mine) / B
    (alone, D), (shared, _), (local, _) = (
        step_of(width, rows, r) for rows, r in ((whole, SINGLE), (mine, ranks), (mine, SINGLE))
    )
    buffer = torch.zeros(2 * D + 3)
    times: dict[str, list[float]] = {"one": [], "own": [], "all": [], "sum": [], "flag": []}
    for _ in range(rounds):
        ranks.any(False)
        if ranks.is_main:
            times["one"].append(seconds(lambda: alone(whole.x, whole.y, B / N, B / N), 5))
        ranks.any(False)
        times["own"].append(seconds(lambda: local(mine.x, mine.y, B / N * part, B / N * part), 5))
        ranks.any(False)
        times["all"].append(seconds(lambda: shared(mine.x, mine.y, B / N * part, B / N * part), 5))
        times["sum"].append(seconds(lambda: ranks.sum_(buffer), 5))
        times["flag"].append(seconds(lambda: ranks.any(False), 5))
    one, own, all_, sum_, flag = (1e3 * median(times[k]) for k in times) if ranks.is_main else (0.0,) * 5
    return (
        f"| 2x{width} | {B} | {D:,} | {buffer.numel() * 4 / 1e6:.1f} | {one:.1f} | {own:.1f} | {sum_:.1f} "
        f"| {flag:.2f} | {all_:.1f} | {one / max(all_, 1e-9):.2f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[400, 1200])
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    with joined(torch.device("cpu")) as ranks:
        if ranks.is_main:
            print(f"{ranks.size} processes, {torch.get_num_threads()} thread each, torch {torch.__version__}")
            print("| network | B | weights | MB summed | one process, ms | own rows, ms | sum, ms | flag, ms "
                  "| together, ms | speed-up |\n|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
        for width in arguments.widths:
            for B in arguments.batches:
                line = measure(width, B, ranks, arguments.rounds)
                if ranks.is_main:
                    print(line, flush=True)


if __name__ == "__main__":
    main()
