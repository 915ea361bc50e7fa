"""What `make bench` prints and writes: one function per section, each giving the JSON's part of that name."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import (
    bandit,
    compiling,
    estimators,
    growth,
    guides,
    memory,
    parts,
    prediction,
    replaying,
    restarts,
    steps,
)
from benchmarks.growth import SAMPLES
from benchmarks.peers import make_peers
from benchmarks.timing import Spread, Work, figures, in_turn, ratio, spread
from pyrobbb import priors
from pyrobbb._support.random_state import isolated
from pyrobbb.figures import save
from pyrobbb.inference import NaturalGradient

Say = Callable[[str], None]
WIDTHS = (400, 1200)


def step(rounds: int, log: Say) -> dict[str, Any]:
    """Every contender at both widths, one to ten samples among them."""
    found: dict[str, Any] = {}
    for width in WIDTHS:
        with isolated(0):  # an empty parameter store for each: Pyro's own guides share names
            works: dict[str, Work] = {"plain": steps.plain(width), "ours": steps.ours(width)}
            works |= {f"ours, {s} samples": steps.ours(width, samples=s) for s in SAMPLES[1:]}
            works |= {"ours, not compiled": steps.ours(width, "eager"), "reference": steps.ours(width, "off")}
            natural = partial(steps.ours, width, inference=NaturalGradient())
            works["natural gradient"] = natural()
            works["natural gradient, normal prior"] = natural(prior=priors.Normal())
            works["pyro"] = steps.usual(width)
            works["pyro, unchecked"] = steps.usual(width, validate=False)
            peers, notes = make_peers(width)
            works |= peers
            times = in_turn(works, rounds)
        log(
            f"\n784-{width}-{width}-10: ms per step, and times the plain step; median (quartiles) of {rounds}"
        )
        for name, values in times.items():
            log(f"  {name:20} {spread(values)!s:26} {ratio(values, times['plain'])}")
        found[f"2x{width}"] = _step_figures(times, peers, log)
    for name, note in notes.items():
        log(f"{name}: {note}")
    return found | {"peers": notes}


def _step_figures(times: dict[str, list[float]], peers: dict[str, Work], log: Say) -> dict[str, Any]:
    compared = {
        "ratio_to_plain": ("ours", "plain"),
        "ratio_to_pyro": ("ours", "pyro"),
        "ratio_to_pyro_unchecked": ("ours", "pyro, unchecked"),
        "ratio_to_reference": ("ours", "reference"),
        "ratio_of_natural_gradient": ("natural gradient", "plain"),
        "ratio_of_natural_gradient_normal_prior": ("natural gradient, normal prior", "plain"),
        **{f"ratio_of_{s}_samples": (f"ours, {s} samples", "ours") for s in SAMPLES[1:]},
    }
    fastest = min(peers, key=lambda name: spread(times[name]).middle, default=None)
    if fastest is not None:
        compared["ratio_to_fastest_peer"] = ("ours", fastest)
    found: dict[str, Any] = {
        "fastest_peer": fastest,
        "ms": {k: round(spread(v).middle, 3) for k, v in times.items()},
    }
    for key, (a, b) in compared.items():
        value = ratio(times[a], times[b])
        found |= figures(key, value)
        log(f"  {key:22} {value}" + (f"  {fastest}" if key == "ratio_to_fastest_peer" else ""))
    return found


def parts_of_step(rounds: int, log: Say) -> dict[str, Any]:
    """Where the step's time goes, with one sample and with ten."""
    found: dict[str, Any] = {}
    for samples in (1, 10):
        with isolated(0):
            times = in_turn(parts.works(1200, samples), rounds)
        each = " (noise to gradients: of one draw)" if samples > 1 else ""
        log(f"\nParts of a step at 2x1200, {samples} sample{'s' if samples > 1 else ''}, ms{each}")
        for name, values in times.items():
            log(f"  {name:20} {spread(values)}")
        found[f"{samples} samples"] = {name: round(spread(v).middle, 3) for name, v in times.items()}
    one, ten = found["1 samples"], found["10 samples"]
    floor, whole = 10 * one["network"] / one["step"], ten["step"] / one["step"]
    log(
        f"  the step of ten samples takes {whole:.2f} times that of one; ten networks alone {floor:.2f} times"
    )
    return found | {"ten_networks_over_one_step": round(floor, 4)}


def restarted(rounds: int, log: Say) -> dict[str, Any]:
    """Eight restarts of small networks as one batch, beside one after the other."""
    found: dict[str, Any] = {}
    count = 8
    for hidden in (20, 100):
        times = restarts.measure(count, hidden, max(2, rounds // 4))
        steps_each = restarts.EPOCHS * restarts.N // restarts.BATCH
        log(f"\n{count} restarts of 1-{hidden}-{hidden}-1, {steps_each} steps each, s")
        for name, values in times.items():
            log(f"  {name:20} {spread(values)}")
        found[f"2x{hidden}"] = {}
        for fast in ("eager", "compiled"):
            value = ratio(times[f"together, {fast}"], times[f"apart, {fast}"])
            log(f"  together to apart, {fast:9} {value}")
            found[f"2x{hidden}"] |= figures(f"ratio_{fast}", value)
    return found


def of_estimators(rounds: int, log: Say) -> dict[str, Any]:
    """What learned priors and noise on the outputs cost in time."""
    found: dict[str, Any] = {}
    for width in WIDTHS:
        times = in_turn(estimators.works(width), max(2, rounds // 2), burst=estimators.EVERY)
        log(f"\n784-{width}-{width}-10: ms per step, and times the step under a fixed normal prior")
        found[f"2x{width}"] = {}
        for name, values in times.items():
            value = ratio(values, times["normal"])
            log(f"  {name:20} {spread(values)}  {value}")
            found[f"2x{width}"] |= figures(f"ratio_{name.replace(' ', '_')}", value)
    return found


def of_gradients(rounds: int, log: Say) -> dict[str, Any]:
    """What noise on the outputs changes in the gradient: nothing in its mean, much in its variance."""
    draws = 10_000 * rounds
    found: dict[str, Any] = {"draws": draws}
    log(
        f"\nGradient on {steps.BATCH} rows, {draws:,} draws: noise on the outputs beside noise on the weights"
    )
    for name in estimators.NETWORKS:
        z, variance = estimators.gradients(name, draws)
        log(f"  {name}: means differ by at most {z:.2f} standard errors along {estimators.DIRECTIONS} lines")
        log(f"  {name}: {variance:.3f} times the variance")
        found[name] = {"greatest_z": round(z, 2), "ratio_of_variance": round(variance, 4)}
    return found


def of_guides(rounds: int, log: Say) -> dict[str, Any]:
    """Richer guides beside the mean field; a last layer's step beside the network's forward pass."""
    found: dict[str, Any] = {}
    log("\nms per step, and times the mean field's; of a last layer times the network's forward pass")
    cases = {network: partial(guides.by_guide, network) for network in guides.WIDTHS}
    cases |= {f"last layer of {name}": partial(guides.of_last_layer, name) for name in guides.TRAINED}
    for case, make in cases.items():
        with isolated(0):
            times = in_turn(make(), 2 * rounds)
        base = next(iter(times.values()))
        found[case] = own = {}
        for name, values in times.items():
            value = ratio(values, base)
            log(f"  {case:32} {name:14} {spread(values)!s:26} {value}")
            own[name] = figures("ms", spread(values)) | figures("ratio", value)
    return found


def predict(rounds: int, log: Say) -> dict[str, Any]:
    """Prediction beside its matrix products, and what the whole of it takes."""
    draws, found = 2, {}
    log(f"\nPrediction of {prediction.IMAGES:,} images, {draws} draws a round, beside its matrix products")
    for width in WIDTHS:
        times = in_turn(prediction.works(width, draws), max(2, rounds // 2), burst=1)
        value = ratio(times["predict"], times["products"])
        rate = prediction.IMAGES * draws / spread(times["predict"]).middle
        log(f"  2x{width:<5} {value}  times the products; {rate:.1f} thousand images x draws a second")
        found[f"2x{width}"] = {"thousands_per_second": round(rate, 3)} | figures("ratio_to_products", value)
    return found


def use_of_memory(rounds: int, log: Say) -> dict[str, Any]:
    """Peak memory of training and of prediction."""
    found: dict[str, Any] = {"step": {}, "predict": {}}
    log("\nPeak memory of the process, MiB, at 2x1200")
    for name in memory.STEPS:
        given = memory.measure(name, 1200)
        if given is not None:
            found["start"], found["step"][name] = round(given["start"]), round(given["peak"])
            log(f"  {'step: ' + name:28} {given['peak']:6.0f}")
    for draws in (10, prediction.DRAWS):
        given = memory.measure("predict", 1200, draws)
        if given is not None:
            found["predict"][f"{draws} draws"] = {
                "peak": round(given["peak"]),
                "seconds": round(given["seconds"], 2),
            }
            title = f"{prediction.IMAGES:,} images x {draws} draws"
            log(f"  {title:28} {given['peak']:6.0f}   in {given['seconds']:.1f} s")
    log(f"  {'(with nothing but imports)':28} {found['start']:6.0f}")
    return found


def growing(rounds: int, log: Say, path: Path) -> dict[str, Any]:
    """How the step grows, and the plot of it."""
    rounds = max(2, rounds // 2)
    panels = [
        ("weights", "weights (two layers)", growth.by_weights(rounds)),
        ("samples", "samples (2x400)", growth.by_samples(rounds)),
        ("batch", "rows of a batch (2x400)", growth.by_batch(rounds)),
    ]
    for key, name, found in panels:
        log(f"\nms per step by {name}")
        for row in found:
            beside = f"   plain {row['plain'].middle:8.2f}   ratio {row['ratio']}" if "plain" in row else ""
            log(f"  {row[key]:>9,} {row['ours'].middle:10.2f}{beside or '   ratio ' + str(row['ratio'])}")
    path.parent.mkdir(parents=True, exist_ok=True)
    save(growth.plot(panels), path)
    log(f"plot: {path}")
    return {key: [_plain_numbers(row) for row in found] for key, _, found in panels}


def _plain_numbers(row: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in row.items():
        plain |= figures(key, value) if isinstance(value, Spread) else {key: value}
    return plain


def compilation(rounds: int, log: Say) -> dict[str, Any]:
    """Seconds of compilation, cold and cached."""
    found = {}
    log("\nSeconds that compilation takes: the first time, and in the next process")
    for program in compiling.PROGRAMS:
        found[program] = given = compiling.measure(program)
        log(f"  {program:22} {given['cold']:6.1f} {given['cached']:6.1f}")
    return found


def replay(rounds: int, log: Say) -> dict[str, Any]:
    """Steps of a small network: Pyro's own, as they are, replayed from a recording, compiled."""
    found: dict[str, Any] = {}
    log("\n4-50-1, 64 rows: ms per step, and times the step of Pyro's SVI; median (quartiles)")
    for guide in replaying.GUIDES:
        for samples in (1, 8):
            with isolated(0):
                times = in_turn(replaying.works(guide, samples), 10 * rounds)
            found[f"{guide}, {samples}"] = own = {}
            for way, values in times.items():
                part = ratio(values, times["Pyro's SVI"])
                log(f"  {guide}, samples={samples}: {way:11} {spread(values)!s:26} {part}")
                own[way] = figures("ms", spread(values)) | figures("ratio", part)
    return found


def bandits(rounds: int, log: Say) -> dict[str, Any]:
    """Interactions and updates per second; a round takes milliseconds, so there are 20 for each one asked."""
    found = {}
    log("\nMushroom bandit, Bayes by Backprop at the paper's settings, one thread")
    for runs in (1, 5):
        given = {key: spread(values) for key, values in bandit.measure(runs, 20 * rounds).items()}
        found[f"{runs} runs"] = {
            k: v for key, value in given.items() for k, v in figures(f"{key}_per_second", value).items()
        }
        log(
            f"  {runs} run{'s' if runs > 1 else ''}: {given['interactions']} interactions a second, "
            f"{given['updates']} updates a second"
        )
    return found


def targets(found: dict[str, Any], log: Say) -> list[dict[str, Any]]:
    """What was aimed at on two CPU cores, and whether this run holds it."""
    asked = [
        (("step", "2x1200", "ratio_to_plain"), 2.8),
        (("step", "2x1200", "ratio_to_fastest_peer"), 0.7),
        (("step", "2x1200", "ratio_to_pyro"), 0.3),
        (("step", "2x400", "ratio_to_plain"), 3.2),
        (("step", "2x1200", "ratio_of_10_samples"), 6.0),
        (("step", "2x1200", "ratio_of_natural_gradient"), 1.4),
        (("step", "2x1200", "ratio_of_natural_gradient_normal_prior"), 1.4),
        (("prediction", "2x1200", "ratio_to_products"), 1.5),
        (("memory", "predict", "100 draws", "peak"), 1024),
        (("estimators", "2x400", "ratio_learned"), 1.05),
        (("estimators", "2x1200", "ratio_learned"), 1.05),
        (("estimators", "2x400", "ratio_normal,_local"), 1.3),
        (("estimators", "2x1200", "ratio_normal,_local"), 1.3),
        (("gradients", "perceptron", "greatest_z"), 3),
        (("gradients", "perceptron", "ratio_of_variance"), 0.1),
        (("gradients", "conv net", "greatest_z"), 3),
        (("gradients", "conv net", "ratio_of_variance"), 0.1),
        *((("guides", network, "low rank, 10", "ratio"), 1.5) for network in guides.WIDTHS),
        *((("guides", f"last layer of {network}", "step", "ratio"), 1.1) for network in guides.TRAINED),
    ]
    results = []
    log("\nTargets on two CPU cores")
    for path, most in asked:
        value: Any = found
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            continue
        results.append({"figure": ".".join(path), "value": value, "at_most": most, "holds": value <= most})
        log(f"  {'.'.join(path):36} {value:8.3f}  at most {most:g}: {'holds' if value <= most else 'missed'}")
    return results
