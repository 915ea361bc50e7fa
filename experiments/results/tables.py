"""The tables of the documents, each from one record; a missing record leaves a line that says so."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from benchmarks import generated, gpu_report
from experiments import analyse
from experiments._runner.tables import estimate, markdown
from experiments.paper import closed_form, pruning_report, table1_report
from experiments.paper.regression_report import HEAD, NAMES, prior_predictive, rows
from experiments.paper.regret import SHOWDOWN_README
from experiments.reproductions import gluon, grid_report, training_choices, underflow
from experiments.results import bench, own_tables
from experiments.results import bound as bound_found
from experiments.results.records import NONE, NOT_RUN, Record, Records, Text, made_by, of
from experiments.scoreboard import choose
from experiments.scoreboard.choose import PARTS
from experiments.studies import bound, posterior_checks, recipes
from experiments.studies import own_tables as own_tables_study
from experiments.tutorial import mnist_report, toy_regression, worked_example

LONG = (1000, 5000, 20_000)
EARLY = {"eaten in the first 50": "eaten in the first 50"}
LATE = {
    "expected in the last fifth": "in the last fifth",
    "poisonous eaten in the last fifth": "poisonous eaten in it",
    "edible left in the last fifth": "edible left in it",
}
SHOWDOWNS = ("showdown", "showdown_chosen", "showdown_tuned")
BANDITS = (
    "bandit", "bandit_mixture", "bandit_mixture_greedy", "bandit_noise", "bandit_falls", "bandit_forgets",
    "bandit_capacity",
)  # fmt: skip
BOUNDS = ("bound_paths", "bound_ranks", "bound_ranks_wide", "bound_ranks_widths")
RECIPES = ("recipes", "recipes_wide", "recipes_long", "recipes_whole")
SCOREBOARDS = (
    "eight_tables", "four_tables", "twenty_splits", "second_table", "deep_table", "concrete_table",
    "concrete_two_layers", "gap_table", "gap_splits", "concrete_normal", "noise_table", "long_detection",
    "long_conv_detection", "conv_detection",
)  # fmt: skip


def headed(words: Callable[[Record], str]) -> Callable[[Record], str]:
    """Words on a record, below the command that made it."""
    return lambda record: f"{made_by(record)}\n\n{words(record)}"


def as_markdown(words: Callable[..., str]) -> Callable[[Record], str]:
    """What a command reports of its record, with its tables in Markdown."""
    return lambda record: words(record, markdown)


def as_printed(words: Callable[[Record], str]) -> Callable[[Record], str]:
    """What a command prints, its columns kept."""
    return lambda record: f"```\n{words(record)}\n```"


def mnist(record: Record) -> str:
    """The default recipe over its seeds."""
    runs = sorted(record["runs"], key=lambda run: run["seed"])
    each = [run["metrics"] for run in runs]
    lines = [
        ("test error %, draws averaged", "1.36", "error", 2),
        ("test error %, mean weights", "-", "error_mean_weights", 2),
        ("test NLL, nats", "-", "nll", 4),
        ("expected calibration error", "-", "ece", 4),
    ]
    cells = [
        [what, paper, estimate([m["test"][key] for m in each], digits)] for what, paper, key, digits in lines
    ]
    seeds = ", ".join(str(run["seed"]) for run in runs)
    head = ["", "paper, 600 epochs", f"ours, {each[0]['epochs']} epochs, seeds {seeds}, 95 % interval"]
    return markdown(head, cells)


def printed(record: Record) -> str:
    """What a run prints at its end: of the first seed."""
    first = min(record["runs"], key=lambda run: run["seed"])
    return "\n".join(analyse.words(first["metrics"], None))


def pruned(record: Record) -> str:
    """Table 2 and what the density of the signal-to-noise ratio looks like."""
    seeds = [str(one["seed"]) for one in record["each"]]
    several = f"Mean ± standard deviation over seeds {', '.join(seeds)}"
    over = f"{several if len(seeds) > 1 else f'Seed {seeds[0]}'}, {record['draws']} draws."
    table = pruning_report.errors_table(record, markdown)
    return "\n\n".join([over, table, *map(pruning_report.shape, record["each"])])


def regression(record: Record) -> str:
    """Fig. 5 in numbers."""
    at = [f"x = {x:g}" for x in record["at"]]
    networks = {NAMES[prior]: each for prior, each in record["bayesian"].items()}
    lines = []
    for name, each in (networks | {"1-50-2": record["smaller"]}).items():
        within = (sum(one["truth within"][i] for one in each) for i in range(len(at)))
        lines.append([f"Bayes by Backprop, {name}", *(f"{count} of {len(each)}" for count in within)])
    lines.append(["NUTS, 1-50-2", *("yes" if found else "no" for found in record["nuts"]["truth within"])])
    lines.append(["R-hat of NUTS' chains", *(f"{value:.2f}" for value in record["nuts"]["R-hat"])])
    below = markdown(["the truth lies in the 95 % band", *at], lines)
    return f"{markdown(HEAD, rows(record))}\n\n{prior_predictive(record)}\n\n{below}"


def nine_numbers(record: Record) -> str:
    """The tutorial's nine numbers and ours."""
    numbers = markdown(worked_example.HEAD, worked_example.rows(record))
    return f"{numbers}\n\n{worked_example.control(record)}"


def showdown(record: Record) -> str:
    """Regret in percent of choosing at random."""
    theirs = ", ".join(f"{name} {value}" for name, value in SHOWDOWN_README.items())
    rows = [["Showdown's README, one run each", "-", theirs]]
    for name, found in record["agents"].items():
        each = [found[key] for key in ("percent of uniform", "percent of uniform, realised")]
        rows.append([f"ours, {name}", *(estimate(values, 1) for values in each)])
    steps = next(iter(record["agents"].values()))["steps"]
    first = f"{steps:,} contexts, seeds {record['seeds'][0]} to {record['seeds'][-1]}"
    return markdown([first, "expected regret", "realised regret"], rows)


def agents(record: Record, steps: Sequence[int] | None, more: Mapping[str, str]) -> str:
    """Expected regret of each agent after these steps and the last, None for all, and `more` of it."""
    every = record["agents"]
    one = next(iter(every.values()))
    at = [t for t in one["expected"] if steps is None or int(t) in (*steps, one["steps"])]
    rows = []
    for name, found in every.items():
        values = [*(found["expected"][t] for t in at), *(found[key] for key in more)]
        rows.append([name, *(estimate(each, 0) for each in values)])
    seeds = f"seeds {record['seeds'][0]} to {record['seeds'][-1]}"
    return markdown([seeds, *(f"after {int(t):,}" for t in at), *more.values()], rows)


def ledger(record: Record) -> str:
    """Where the KL goes, layer by layer."""
    rows = [
        [name, f"{e['weights']:,}", f"{e['nats']:,.0f} ± {e['mcse']:.2g}", f"{e['bits_per_weight']:.2f}",
         f"{100 * e['slab']:.0f} %", f"{e['informative']:,} ({100 * e['informative'] / e['weights']:.0f} %)"]
        for name, e in record["kl_ledger"].items()
    ]  # fmt: skip
    head = ["parameter", "weights", "KL, nats", "bits per weight", "slab", "in use"]
    code, trivial = record["code_length"], record["trivial_free_energy"]
    words = (
        f"Its free energy is {record['free_energy']:.2f} nats per datum, that of ignoring the inputs "
        f"{trivial:.2f}. "
        f"As a code for the labels this is {code['bits'] / 1e3:,.1f} kbit; sent plainly, the labels take "
        f"{code['plain_bits'] / 1e3:,.1f} kbit."
    )
    return f"{markdown(head, rows)}\n\n{words}"


def on_gpu(record: Record) -> str:
    """How long the cells of Table 1 took that were trained alone on a GPU, for the README."""
    said = []
    for part in record["each"]:
        if len(part["seeds"]) > 1:
            continue
        device = part["machine"].rpartition("; ")[2]
        for cell in part["cells"]:
            metrics = cell["metrics"]
            if metrics["device"].startswith("cuda"):
                said.append(
                    f"{metrics['epochs']} epochs of Table 1's `{cell['row']}` row, 2x{cell['width']}, "
                    f"took {metrics['train_seconds']:.0f} s ({device}, {part['date']})"
                )
    return "; ".join(said)


def side_by_side(record: Record) -> str:
    """Seconds of each cell of Table 1 of which several seeds were trained side by side on a GPU."""
    found = []
    for part in record["each"]:
        lines = [
            [f"`{cell['row']}`", cell["width"], cell["seed"], f"{cell['metrics']['train_seconds']:.0f}"]
            for cell in part["cells"]
            if len(part["seeds"]) > 1 and cell["metrics"]["device"].startswith("cuda")
        ]
        if lines:
            head = ["row of Table 1", "units", "seed", f"s for {part['epochs']} epochs"]
            found.append(f"{made_by(part)}\n\n{markdown(head, lines)}")
    return "\n\n".join(found)


def which(records: Records) -> str:
    """Which method when: a line for each."""
    parts = choose.read(records.folder)
    return choose.markdown(parts) if parts else NONE


def budget(records: Records) -> str:
    """What each method of the scoreboard could spend, by part."""
    parts = choose.read(records.folder).values()
    return "\n".join(f"- {choose.spent(record)} {made_by(record)}" for record in parts) or NOT_RUN


PART = headed(as_printed(choose.report))  # of the scoreboard
TABLES: dict[str, Text] = {
    "mnist": of("mnist", headed(mnist), NONE),
    "mnist.printed": of("mnist", as_printed(printed), NONE),
    "table1": of("table1_short", headed(as_markdown(table1_report.errors_table)), NONE),
    "table1.course": of("table1_full", as_markdown(table1_report.course), NONE),
    "table1.full": of("table1_full", headed(as_markdown(table1_report.errors_table)), NONE),
    "table1.gaps": of("table1_short", as_markdown(table1_report.gaps), NONE),
    "table1.weights": of("table1_full", as_markdown(table1_report.weights), NONE),
    "pruning": of("pruning", headed(pruned), NONE),
    "pruning_full": of("pruning_full", headed(pruned), NONE),
    "pruning_best": of("pruning_best", headed(pruned), NONE),
    "pruning_learned": of("pruning_learned", headed(pruned), NONE),
    "regression": of("regression", headed(regression), NONE),
    "closed_form": of("closed_form", headed(as_markdown(closed_form.report)), NONE),
    "worked_example": of("worked_example", headed(nine_numbers), NONE),
    "toy_regression": of("toy_regression", headed(as_markdown(toy_regression.report)), NONE),
    "tutorial_mnist": of("tutorial_mnist", headed(as_printed(mnist_report.report)), NONE),
    "gluon": of("gluon", headed(as_markdown(gluon.report)), NONE),
    **{name: of(name, headed(as_markdown(recipes.report)), NONE) for name in RECIPES},
    "grid": of("grid", headed(as_markdown(grid_report.report)), NONE),
    "underflow": of("underflow", headed(as_markdown(underflow.report)), NONE),
    "training_choices": of("training_choices", headed(as_markdown(training_choices.report)), NONE),
    "posterior_checks": of("posterior_checks", headed(as_printed(posterior_checks.report)), NONE),
    **{name: of(name, headed(partial(agents, steps=LONG, more=LATE)), NONE) for name in BANDITS},
    "bandit_short": of("bandit_short", headed(partial(agents, steps=None, more=EARLY)), NONE),
    **{name: of(name, headed(showdown), NONE) for name in SHOWDOWNS},
    "ledger": of("kl_ledger", headed(ledger), NONE),
    "bound.worth": bound_found.worth,
    "bound.worth_in_short": partial(bound_found.worth, short=True),
    "bound": of("bound_mnist", headed(as_printed(bound.report)), NONE),
    **{name: of(name, headed(as_printed(bound.report)), NONE) for name in BOUNDS},
    "first_run": of("first_run", bench.first_run, "nothing."),
    "table1.gpu": of("table1_full", on_gpu, "nothing."),
    "table1.side_by_side": of("table1_full", side_by_side, NONE),
    "first_run.example": of("first_run", as_printed(lambda record: record["example"]), ""),
    "uci": own_tables.uci,
    "own_tables": of("own_tables", own_tables.scores, NONE),
    "own_tables.methods": of("own_tables", headed(as_markdown(own_tables_study.report)), NONE),
    "own_tables.uci": of("own_tables_uci", headed(as_markdown(own_tables_study.report)), NONE),
    "bench.steps": of("bench_steps", headed(bench.steps), NONE),
    "bench.estimators": of("bench_steps", bench.estimators, NONE),
    "bench.gradients": of("bench_gradients", headed(bench.gradients), NONE),
    "bench.guides": of("bench_guides", headed(bench.guides), NONE),
    "bench.aims": bench.aims,
    "bench.replay": of("bench_replay", headed(bench.replayed), NONE),
    "planted": of("planted", headed(bench.planted), NONE),
    "gpu": of("gpu", headed(gpu_report.report), NONE),
    "cuda_kernels": of("cuda_kernels", generated.table, NONE),
    "scoreboard": which,
    "scoreboard_budget": budget,
    **{f"scoreboard.{name}": of(f"scoreboard_{name}", PART, NONE) for name in PARTS},
    "gap": of("agreement_gap", PART, NONE),
    **{name: of(name, PART, NONE) for name in SCOREBOARDS},
}
