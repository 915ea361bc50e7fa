"""What `benchmarks/` measured and how long a fresh clone takes, as the documents have it."""

from benchmarks.planted import SOUND
from benchmarks.report import targets
from experiments._runner.tables import markdown
from experiments.results.records import NONE, Record, Records

LOCAL = ",_local"  # how the keys of a record end whose noise lies on the outputs


def steps(record: Record) -> str:
    """Milliseconds and ratios of a training step."""
    blocks = []
    for size, found in record["step"].items():
        if not size.startswith("2x"):
            continue  # the versions of other libraries
        width, plain = size.replace("2x", ""), found["ms"]["plain"]
        times = [[name, f"{ms:.2f}", f"{ms / plain:.2f}"] for name, ms in found["ms"].items()]
        ratios = []
        for key in found:
            if key.startswith("ratio") and not key.endswith("quartiles"):
                low, high = found[f"{key}_quartiles"]
                ratios.append([key.replace("_", " "), f"{found[key]:.2f}", f"{low:.2f} to {high:.2f}"])
        blocks.append(f"784-{width}-{width}-10:")
        blocks.append(markdown(["step", "ms, median", "times the plain step's median"], times))
        blocks.append(markdown(["ratio, round by round", "median", "quartiles"], ratios))
    return "\n\n".join(blocks)


def estimators(record: Record) -> str:
    """What learned priors and noise on the outputs cost in time."""
    sizes = record["estimators"]
    widths = [size for size in sizes if size.startswith("2x")]
    kinds = [key for key in sizes[widths[0]] if not key.endswith("quartiles")]
    rows = []
    for kind in kinds:
        cells = []
        for width in widths:
            found = sizes[width]
            low, high = found[f"{kind}_quartiles"]
            cells.append(f"{found[kind]:.2f} ({low:.2f} to {high:.2f})")
            own = found.get(kind.removesuffix(LOCAL)) if kind.endswith(LOCAL) else None
            cells.append(f"{found[kind] / own:.2f}" if own else "-")
        rows.append([kind.removeprefix("ratio_").replace("_", " "), *cells])
    head = ["prior; local: noise on the outputs"]
    for width in widths:
        head += [
            f"{width}: times the step under a fixed normal prior",
            "of medians: times the same prior with noise on the weights",
        ]
    return markdown(head, rows)


def gradients(record: Record) -> str:
    """Noise on the outputs beside noise on the weights: means and variances of the gradient."""
    found = record["gradients"]
    rows = [
        [name, f"{one['greatest_z']:.2f}", f"{one['ratio_of_variance']:.3f}"]
        for name, one in found.items()
        if isinstance(one, dict)
    ]
    head = ["network", "largest difference of means, standard errors", "times the variance"]
    return f"{found['draws']:,} draws of each:\n\n{markdown(head, rows)}"


def guides(record: Record) -> str:
    """Steps of richer guides beside the mean field's, of last layers beside the network's forward pass."""
    rows = [
        [
            network,
            name,
            f"{one['ms']:.1f}",
            f"{one['ratio']:.2f}",
            "{:.2f} to {:.2f}".format(*one["ratio_quartiles"]),
        ]
        for network, found in record["guides"].items()
        for name, one in found.items()
    ]
    return markdown(["network", "step of", "ms", "times the first", "quartiles"], rows)


def replayed(record: Record) -> str:
    """Milliseconds of a small network's step, in each of its ways, and how many times faster than Pyro's."""
    ways = ["Pyro's SVI", "as it is", "replayed", "compiled"]
    rows = []
    for name, found in record["replay"].items():
        guide, samples = name.rsplit(", ", 1)
        times = [
            f"{found[way]['ms']:.2f} ({1 / found[way]['ratio']:.1f})" if way in found else "-" for way in ways
        ]
        rows.append([guide, samples, *times])
    return markdown(["guide", "draws", *ways], rows)


def planted(record: Record) -> str:
    """Which planted faults the checks found, by which of them, and how often sound fits were flagged."""
    fits = {name: found for name, found in record.items() if isinstance(found, dict) and "flagged" in found}
    rows = [
        [
            name,
            f"{found['flagged']} of {found['fits']}",
            ", ".join(by for by, n in found["by"].items() if n) or "-",
        ]
        for name, found in fits.items()
    ]
    faulty = [found for name, found in fits.items() if name != SOUND]
    flagged, count = (sum(found[key] for found in faulty) for key in ("flagged", "fits"))
    false, sound = fits[SOUND]["flagged"], fits[SOUND]["fits"]
    words = (
        f"Faults found: {flagged} of {count} ({100 * flagged / count:.0f} %; aim: at least 95 %). "
        f"Sound fits flagged: {false} of {sound} ({100 * false / sound:.0f} %; at most 5 %)."
    )
    return f"{markdown(['fit', 'flagged', 'by'], rows)}\n\n{words}"


def aims(records: Records) -> str:
    """What is aimed at, what was found, and by how much it is missed."""
    found: Record = {}
    for name in ("bench_steps", "bench_gradients", "bench_guides"):
        found |= records.get(name) or {}
    rows = []
    for one in targets(found, lambda line: None):
        value, most = one["value"], one["at_most"]
        said = "holds" if one["holds"] else f"missed by {100 * (value / most - 1):.1f} %"
        rows.append([f"`{one['figure']}`", f"{most:g}", f"{value:.3g}", said])
    return markdown(["figure", "at most", "found", ""], rows) if rows else NONE


def first_run(record: Record) -> str:
    """How long the first commands of a fresh clone took, for the README."""
    (first, seconds), *others = record["seconds"].items()
    said = f"in a fresh clone `{first}` took {seconds:.0f} s, set-up included"
    said += "".join(f", then `{command}` {seconds:.0f} s" for command, seconds in others)
    return f"{said}, on {record['machine']}, {record['date']}."
