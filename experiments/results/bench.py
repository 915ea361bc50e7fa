"""What `benchmarks/` measured and how long a fresh clone takes, as the documents have it."""

from benchmarks.planted import SOUND
from experiments._runner.tables import markdown
from experiments.results.records import Record


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
        blocks.append(markdown(["of each round", "median", "quartiles"], ratios))
    return "\n\n".join(blocks)


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
        f"Faults found: {flagged} of {count} ({100 * flagged / count:.0f} %; aimed at: at least 95 %). "
        f"Sound fits flagged: {false} of {sound} ({100 * false / sound:.0f} %; at most 5 %)."
    )
    return f"{markdown(['fit', 'flagged', 'by'], rows)}\n\n{words}"


def aims(record: Record) -> str:
    """What is aimed at, and what was found."""
    rows = []
    for one in record["targets"]:
        met = "holds" if one["holds"] else "missed"
        rows.append([f"`{one['figure']}`", f"{one['at_most']:g}", f"{one['value']:.2f}", met])
    return markdown(["figure", "at most", "found", ""], rows)


def first_run(record: Record) -> str:
    """How long the first commands of a fresh clone took, for the README."""
    (first, seconds), *others = record["seconds"].items()
    said = f"in a fresh clone `{first}` took {seconds:.0f} s, set-up included"
    said += "".join(f", then `{command}` {seconds:.0f} s" for command, seconds in others)
    return f"{said}, on {record['machine']}, {record['date']}."


def example(record: Record) -> str:
    """What the README's first example printed in that clone."""
    return record["example"]
