"""Claims, aims and runs (`claims.yaml`) and what today's code finds: docs/results.md and its pages' heads."""

import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import yaml

from experiments._runner.tables import estimate, interval, markdown, seeds, verdict
from experiments.paper import closed_form, regression_report, table1_report
from experiments.reproductions import underflow
from experiments.reproductions.training_choices import CENTRE, GROUPS
from experiments.results.aims import AIMS, Found
from experiments.results.records import NOT_RUN, Record, Records, seconds_of, seeds_of, spent
from experiments.studies import recipes
from experiments.tutorial import worked_example
from experiments.tutorial.mnist_report import PRINTED_ENTROPY, TUTORIAL
from experiments.tutorial.mnist_uncertainty import NOISE

MIXTURES = {"mixture": "with Adam", "mixture_sgd": "with the paper's plain SGD"}  # rows of Table 1
ALIKE = {"gaussian": ["mixture"]}  # trained as that row is, which was not run with plain SGD
DECLARED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def mixture(record: Record) -> Found:
    """Test errors of the scale mixture, and whether they are as low as the paper's."""
    paper = table1_report.DECLARED.rows.mixture.reported.paper
    found = {
        (how, width): errors
        for name, how in MIXTURES.items()
        for width in record["widths"]
        if (errors := table1_report.errors(record, name, width))
    }
    words = "; ".join(f"{how}, 2x{width}: {estimate(errors, 2)} %" for (how, width), errors in found.items())
    several = {key: errors for key, errors in found.items() if len(errors) > 1}
    if not several:
        return words, "one seed"
    said = [verdict([paper[width] - e for e in errors]) for (_, width), errors in several.items()]
    each = [f"{v} at {said.count(v)}" if len({*said}) > 1 else v for v in dict.fromkeys(said)]
    alone = len(found) - len(several)
    return words, ", ".join(each) + f"; {alone} of {len(found)} have one seed" * bool(alone)


def ahead(worse: str, record: Record, width: int | None = None) -> Found:
    """The mixture's lead in points at each width, or at one; where optimisers differ the verdict says so."""
    words, verdicts, counts = [], dict[int, str](), list[int]()
    for each in record["widths"] if width is None else [width]:
        mixtures = ALIKE.get(worse, MIXTURES)
        found = {MIXTURES[name]: table1_report.differences(record, worse, name, each) for name in mixtures}
        if found := {how: gaps for how, gaps in found.items() if gaps}:
            leads = ", ".join(f"{how} {estimate(gaps, 2, sign=True)}" for how, gaps in found.items())
            words.append(f"2x{each}: {leads}")
            said = {how: verdict(gaps) for how, gaps in found.items()}
            apart = len({*said.values()}) > 1
            verdicts[each] = ", ".join(dict.fromkeys(v + f" {how}" * apart for how, v in said.items()))
            counts.append(max(map(len, found.values())))
    if not words:
        return "-", NOT_RUN
    at = {v: " and ".join(str(w) for w in verdicts if verdicts[w] == v) for v in verdicts.values()}
    every = [v if len(at) == 1 else f"at {widths} {v}" for v, widths in at.items()]
    same = len(set(counts)) == 1
    count = seeds(counts[0]) if same else f"{', '.join(map(str, counts))} seeds"
    return (
        f"lead in points; {'; '.join(words)}; {count}",
        f"after {record['epochs']} epochs: {'; '.join(every)}",
    )


def widths_of_weights(record: Record) -> Found:
    """Fig. 3: Bayes by Backprop the widest."""
    sd = {name: w["sd"] for name, w in record["weights"].items()}
    plain = max(value for name, value in sd.items() if name.startswith("SGD"))
    bayes = {name: value for name, value in sd.items() if name.startswith("BbB")}
    if not bayes:
        return "-", NOT_RUN
    words = "; ".join(f"{name} {value:.3f}" for name, value in sd.items())
    every = [value > plain for value in bayes.values()]
    found = (
        "holds" if all(every) else f"under {sum(every)} of {len(every)}" if any(every) else "does not hold"
    )
    return f"sd at 2x{table1_report.shown_width(record)}, {record['epochs']} epochs, one seed; {words}", found


def pruning_costs(share: float, paper: float, record: Record) -> Found:
    """What removing a share costs the mean weights, in points."""
    each = [{row["removed"]: row["snr"]["mean"] for row in one["rows"]} for one in record["each"]]
    whole, costs = fmean(errors[0.0] for errors in each), [errors[share] - errors[0.0] for errors in each]
    kind = f"{seeds(len(costs))}, {record['weights']:,} weights, {record['epochs']} epochs"
    return f"{estimate(costs, 2, sign=True)} points, from {whole:.2f} %; {kind}", verdict(
        [paper - cost for cost in costs]
    )


def humps(record: Record) -> Found:
    """Fig. 4: two modes, and the 75 % line in the valley, within 1 dB of its lowest point."""
    each = record["each"]
    two = [one for one in each if one["valley"] is not None]
    near = [one for one in two if abs(one["cut_75"] - one["valley"]) < 1]
    words = f"two modes in {len(two)} of {seeds(len(each))}, the line in the valley in {len(near)}"
    found = "holds" if len(near) == len(each) else "in part" if two else "does not hold"
    return f"{words}; {record['epochs']} epochs", found


def widening(record: Record) -> Found:
    """Fig. 5: the interquartile range diverges off the data: at least three times at x = -0.3 and at 1.2."""
    met = {prior: sum(map(regression_report.wide, each)) for prior, each in record["bayesian"].items()}
    count_of = len(record["seeds"])
    words = "; ".join(
        f"{regression_report.NAMES[prior]}{' (chosen)' * (prior == record['chosen'])}: {count}"
        for prior, count in met.items()
    )
    every, none = (all(count == least for count in met.values()) for least in (count_of, 0))
    return (
        f"number of seeds, of {count_of}, with at least three times the range on both sides; {words}",
        "holds" if every else "does not hold" if none else "depends on the prior",
    )


def plain_is_sure(record: Record) -> Found:
    """Fig. 5: the plain network's variance goes to zero off the data."""
    left, right = (estimate([one["ratio"][i] for one in record["plain"]], 1) for i in (0, 2))
    narrow = [max(one["ratio"][0], one["ratio"][2]) < 1 for one in record["plain"]]
    words = f"{left} times its width on the data at x = -0.3, {right} times at 1.2; "
    words += f"narrower on both sides in {sum(narrow)} of {seeds(len(narrow))}"
    return words, "holds" if all(narrow) else "in part" if any(narrow) else "does not hold"


def same_kl(record: Record) -> Found:
    """Section 3: a closed-form KL does neither better nor worse."""
    gap = closed_form.differences(record)
    words = f"{estimate(gap, 3, sign=True)} points; {seeds(len(gap))}"
    said = {"undecided": "no difference found", "holds": "does not hold"}
    return f"error at drawn weights minus that in closed form; {words}", said.get(verdict(gap), verdict(gap))


def learned_by_gradient(record: Record) -> Found:
    """Section 3.3: a prior whose parameters gradients learn does worse than the fixed one."""
    gap = recipes.differences(record["found"], "gradient_mixture")
    return f"{estimate(gap, 2, sign=True)} points of test error, {seeds(len(gap))}", verdict(gap)


def order_of_regret(record: Record) -> Found:
    """Fig. 6: Bayes by Backprop below 1 % greedy below 5 % greedy at the end, each paired by seed.

    Pure greedy, if it was played, is named beside them.
    """
    names = ("Bayes by Backprop", "1 % greedy", "5 % greedy")
    ends = {name: list(agent["expected"].values())[-1] for name, agent in record["agents"].items()}
    gaps = [
        verdict([b - a for a, b in zip(ends[less], ends[more], strict=True)])
        for less, more in pairwise(names)
    ]
    words = "; ".join(f"{name} {estimate(ends[name], 0)}" for name in (*names, "greedy") if name in ends)
    found = gaps[0] if len({*gaps}) == 1 else "in part" if "holds" in gaps else "does not hold"
    return f"{words}; {seeds(len(ends[names[0]]))}", found


def regret(record: Record) -> Found:
    """Showdown: Bayes by Backprop's regret in percent of choosing at random."""
    each = record["agents"]["Bayes by Backprop"]["percent of uniform, realised"]
    below = verdict([26.9 - value for value in each])
    said = {"holds": "lower than that run", "does not hold": "higher than that run"}
    return f"{estimate(each, 1)} %, {seeds(len(each))}", said.get(below, below)


def nine_numbers(record: Record) -> Found:
    """The tutorial's update."""
    worst = worked_example.worst(record)
    return (
        f"largest difference {worst * 1e5:.1f} · 10⁻⁵ at eps = {record['noise']}",
        "holds" if worst < 5e-5 else "does not hold",
    )


def tutorial_images(record: Record) -> Found:
    """The tutorial's MNIST: accuracy of five draws, and what it printed as the entropy of noise."""
    each = record["found"].values()
    accuracy = [one["scores"]["bnn_accuracy_5"] for one in each]
    entropy = [one["uncertainty"][NOISE]["printed"] for one in each]
    words = f"{estimate(accuracy, 2)} % with five draws; {estimate(entropy, 2)} bits by its formula"
    if len(accuracy) == 1:
        return f"{words}; {seeds(1)}", seeds(1)
    reached = verdict([value - TUTORIAL["bnn_accuracy_5"] for value in accuracy]) == "holds"
    _, low, high = interval(entropy)
    same = low <= PRINTED_ENTROPY <= high
    return f"{words}; {seeds(len(accuracy))}", {2: "holds", 1: "in part", 0: "does not hold"}[reached + same]


def notebook_error(record: Record) -> Found:
    """Gluon: the error of the network as printed."""
    errors = {name: run["pruned"][0]["snr"]["mean"] for name, run in record["found"].items()}
    words = f"{errors['gluon_as_printed']:.2f} % as printed, {errors['gluon']:.2f} % corrected, one seed"
    near = abs(errors["gluon_as_printed"] - 2.25) <= 0.35
    return words, "holds (within 0.35 points)" if near else "does not hold"


def notebook_order(record: Record) -> Found:
    """Gluon: pruning by signal-to-noise is more than pruning by magnitude."""
    fit = record["found"]["gluon_as_printed"]
    low, high = fit["sigma"]
    apart = max(abs(row["snr"]["mean"] - row["magnitude"]["mean"]) for row in fit["pruned"])
    words = f"sigma of the first layer is {low:.4f} to {high:.4f}"
    one = high < 1.1 * low
    words += f": ordering by the ratio is {'' if one else 'not '}nearly ordering by magnitude; "
    words += f"the errors are at most {apart:.1f} points apart; one seed"
    return words, "does not hold" if one else "not settled"


def not_finite(record: Record) -> Found:
    """Which settings of the KL's shares and the optimiser end in a free energy that is not finite."""
    lines = {name: record["found"][name] for name in GROUPS["shares"] if name in record["found"]}
    broken = [name for name, result in lines.items() if "stopped" in result]
    return f"{len(broken)} of {len(lines)} settings: {'; '.join(broken) or 'none'}; one seed", (
        "only with both together"
        if broken and all("2^-i, SGD" in name for name in broken)
        else "does not hold"
    )


def underflows(record: Record) -> Found:
    """Whether the log of a sum of densities breaks where log-sum-exp does not; of shares the arithmetic."""
    stopped: dict[str, list[bool]] = {}
    for row in record["rows"]:
        stopped.setdefault(row["way"], []).append("stopped" in row)
    ways = "; ".join(f"{way}: {sum(each)} of {len(each)} mixtures" for way, each in stopped.items())
    shares = record["shares"][-1]
    safe, naive = (sum(stopped[way]) for way in underflow.WAYS)
    words = f"not finite; {ways}; NaN among the shares in float32: {shares['nan']} of {shares['M']}; one seed"
    return words, "reproduced by the underflow" if naive > safe else "not reproduced"


def twice(record: Record) -> Found:
    """The error with the two faults of a report's code, and without them."""
    ends = [record["found"][name]["validation_errors"] for name in ("softmax and pixels twice", CENTRE)]
    words = f"2x400, {len(ends[0])} epochs, one seed: {ends[0][-1]:.1f} % with its two faults"
    words += f", {ends[1][-1]:.1f} % without"
    return words, "explained by two faults" if ends[0][-1] > 2 * ends[1][-1] else "does not hold"


def with_its_faults(record: Record) -> Found:
    """Ghia's network as printed: the test error of one draw, beside the range of its own."""
    errors = [run["metrics"]["test"]["error"] for run in record["runs"]]
    epochs = record["runs"][0]["metrics"]["epochs"]
    words = f"{estimate(errors, 2)} % of one draw with its two faults, {epochs} epochs; {seeds(len(errors))}"
    return words, "as high as its own" if all(8.7 <= error <= 11.6 for error in errors) else "another error"


def as_its_text_has_it(record: Record) -> Found:
    """Rahmanto's Table 2: test errors beside its own, by the width that the number of weights tells."""
    found: dict[int, list[float]] = {}
    for run in record["runs"]:
        # 784 h + h, h h + h, 10 h + 10 parameters
        width = round(((796**2 + 4 * (run["metrics"]["parameters"] - 10)) ** 0.5 - 796) / 2)
        found.setdefault(width, []).append(run["metrics"]["test"]["error"])
    its = table1_report.DECLARED.rows.mixture.reported.Rahmanto
    words = [f"2x{width}: {estimate(errors, 2)} %" for width, errors in sorted(found.items())]
    below = [verdict([its[width] - error for error in errors]) for width, errors in found.items()]
    said = {"holds": "lower than its own", "does not hold": "higher than its own"}
    verdicts = dict.fromkeys(said.get(each, each) for each in below)
    return f"{'; '.join(words)}; {seeds(min(map(len, found.values())))}", ", ".join(verdicts)


PAGES = list(DECLARED["runs"])
FOUND: dict[str, Callable[[Record], Found]] = {
    "errors": mixture,
    "below dropout": partial(ahead, "dropout", width=1200),
    "ahead of sgd": partial(ahead, "sgd"),
    "ahead of gaussian": partial(ahead, "gaussian"),
    "ahead of dropout": partial(ahead, "dropout"),
    "widest weights": widths_of_weights,
    "cost of 95 %": partial(pruning_costs, 0.95, 0.05),
    "cost of 98 %": partial(pruning_costs, 0.98, 0.15),
    "valley": humps,
    "widening": widening,
    "narrowing": plain_is_sure,
    "same error": same_kl,
    "learned by gradient": learned_by_gradient,
    "regret": regret,
    "order of regret": order_of_regret,
    "not finite": not_finite,
    "underflows": underflows,
    "twice": twice,
    "nine numbers": nine_numbers,
    "tutorial's images": tutorial_images,
    "notebook's error": notebook_error,
    "notebook's order": notebook_order,
    "as its text has it": as_its_text_has_it,
    "with its faults": with_its_faults,
    **AIMS,
}


def claims(records: Records, page: str | None = None) -> str:
    """One row for each claim: all, each with a link to its page; or the claims and aims of one page."""
    rows = []
    every = DECLARED["claims"] if page is None else [*DECLARED["claims"], *DECLARED["aims"]]
    for claim in every:
        if page not in (None, claim["page"]):
            continue
        where = claim["where"] if page else f"[{claim['where']}](reproduction/{claim['page']}.md)"
        name, found = claim["record"], FOUND.get(claim.get("found", ""))
        record = records.get(name) if isinstance(name, str) else records.tables(name)
        ours, holds = ("-", NOT_RUN) if record is None or found is None else found(record)
        command = claim["command"]
        command = (
            f"`{command.removeprefix('experiments.')}`" if command.startswith("experiments.") else command
        )
        rows.append([where, claim["says"], _lines(ours), holds, command])
    kinds = {"it says": DECLARED["claims"], "aimed at": DECLARED["aims"]}
    said = ", or ".join(head for head, each in kinds.items() if page in {one["page"] for one in each})
    ours, after = "ours, with 95 % interval over seeds", "command, after `python -m experiments.`"
    return markdown(["where", said or "it says", ours, "verdict", after], rows)


def _lines(ours: str) -> str:
    """A line of the cell for each part, and no break within a number and its interval."""
    unbroken = re.sub(r"\S+ \([^()]* to [^()]*\)", lambda found: found[0].replace(" ", "&nbsp;"), ours)
    return unbroken.replace("; ", "<br>")


def runs(records: Records, page: str) -> str:
    """What was run for a page, its seeds and its time as the records have them, and what to keep in mind."""
    rows = []
    for run in DECLARED["runs"][page]:
        record = records.get(run["record"])
        if record is None:
            rows.append([run["run"], "-", NOT_RUN, run["mind"]])
            continue
        own = run.get("seeds") or ", ".join(map(str, seeds_of(record)))
        rows.append([run["run"], own, spent(seconds_of(record)) or "not recorded", run["mind"]])
    return markdown(["what was run", "seeds", "time", "keep in mind"], rows)


def not_run(records: Records) -> str:
    """What else has a command and no record."""
    missing = [other for other in DECLARED["others"] if records.get(other["record"]) is None]
    return "\n".join(f"- {other['what']}: `python -m {other['command']}`" for other in missing)


CLAIMS: dict[str, Callable[[Records], str]] = {
    "claims": claims,
    "not_run": not_run,
    **{f"claims.{page}": partial(claims, page=page) for page in PAGES},
    **{f"runs.{page}": partial(runs, page=page) for page in PAGES},
}
