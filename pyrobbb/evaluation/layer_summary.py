"""The variational parameters in short: their spread and KL by layer, and those of a sample of weights."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobbb.evaluation.kl_ledger import Entry, kl_ledger
from pyrobbb.moments import moments, signal_to_noise
from pyrobbb.posterior import Posterior

LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
SAMPLE = 20_000  # weights, of all layers
DRAWS = 10  # of the posterior, for a value of each: all of one draw may share a scale


def variational(
    posterior: Posterior, seed: int, ledger: Mapping[str, Entry] | None = None
) -> dict[str, np.ndarray]:
    """Location, scale and signal-to-noise |loc| / scale by layer, and of a random sample of weights.

    Of each weight of that sample also `draw`, a value that the posterior draws. They are of the posterior's
    main chain, whose number is the scalar `chain`. `ledger` is what `kl_ledger` gives for this seed, where it
    is there already.
    """
    chain = posterior.main_chain
    loc, scale = moments(posterior.chains[chain])
    tables: defaultdict[str, list[Any]] = defaultdict(list)
    for name in loc:
        mu, sigma = loc[name].flatten(), scale[name].flatten()
        tables["size"].append(mu.numel())
        for what, value in (("loc", mu), ("scale", sigma), ("snr", signal_to_noise(mu, sigma))):
            array = as_numpy(value).astype(np.float64)
            tables[f"{what}_mean"].append(array.mean())
            tables[f"{what}_sd"].append(array.std() if np.isfinite(array).all() else np.nan)
            tables[f"{what}_quantile"].append(np.quantile(array, LEVELS, method="inverted_cdf"))
    arrays = {name: np.asarray(values) for name, values in tables.items()}
    sites = {name: torch.full(v.shape, i, dtype=torch.int16) for i, (name, v) in enumerate(loc.items())}
    pick = torch.randperm(sum(tables["size"]), generator=torch.Generator().manual_seed(seed))[:SAMPLE]
    for what, parts in (("loc", loc), ("scale", scale), ("sample_site", sites)):
        flat = torch.cat([part.flatten() for part in parts.values()])
        arrays[what] = as_numpy(flat[pick.to(flat.device)])
    arrays["draw"] = np.empty_like(arrays["loc"])
    for s, drawn in enumerate(posterior.each_draw(DRAWS, chain=chain, seed=seed)):
        flat = torch.cat([drawn[name].flatten() for name in loc])
        arrays["draw"][s::DRAWS] = as_numpy(flat[pick[s::DRAWS].to(flat.device)])
    arrays["chain"] = np.asarray(chain)
    return arrays | _ledger(ledger or kl_ledger(posterior, seed=seed) or {}, list(loc))


def of_chain(metrics: Mapping[str, Any]) -> str:
    """Which of several chains the statistics of weights are of, in words; nothing of a single one."""
    several = metrics.get("chains", 1) > 1
    return f" of chain {metrics.get('main_chain', 0)}" if several else ""  # once always the first


def weight_draws(variational: Any) -> np.ndarray:
    """A draw of each weight of the sample; of a normal, in files of earlier versions without `draw`."""
    if "draw" in variational:
        return np.asarray(variational["draw"].values)
    loc, scale = variational["loc"].values, variational["scale"].values
    return np.asarray(loc + scale * np.random.default_rng(0).standard_normal(loc.shape))


def _ledger(ledger: Mapping[str, Entry], layers: Sequence[str]) -> dict[str, np.ndarray]:
    """The KL by layer and latent, where the guide's density splits; NaN for a layer without a slab."""
    if not set(layers) <= set(ledger):
        return {}
    rows = [ledger[name] for name in layers]
    arrays = {
        "kl": np.array([row.nats for row in rows]),
        "kl_mcse": np.array([row.mcse for row in rows]),
        "informative": np.array([row.informative for row in rows]),
    }
    if latents := [row for name, row in ledger.items() if name not in layers]:
        arrays["latent_size"] = np.array([row.weights for row in latents])
        arrays["latent_kl"] = np.array([row.nats for row in latents])
        arrays["latent_kl_mcse"] = np.array([row.mcse for row in latents])
    if any(row.slab is not None for row in rows):
        for name in ("slab", "slab_mcse"):
            values = [getattr(row, name) for row in rows]
            arrays[name] = np.array([np.nan if value is None else value for value in values])
    return arrays


def as_numpy(value: Tensor | None) -> np.ndarray:
    """The values of a tensor, which is there; of bfloat16, which numpy lacks, as float32."""
    assert value is not None
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
