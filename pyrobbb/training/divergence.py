"""A training that diverges: the error, with where it was, the usual causes, and what is left."""

from math import isfinite
from pathlib import Path

UNSCALED = (
    "inputs or targets that are not scaled (or a fill value such as 1e20, even in a row of weight 0: leave "
    "such rows out)"
)


class NonFiniteLossError(ArithmeticError):
    """The free energy or a parameter became infinite or NaN; the last good checkpoint is kept."""


def in_step(where: str, kl: float, nll: float, checkpoint: Path | None, first: bool) -> NonFiniteLossError:
    """Of a step whose loss is not finite; before the `first`, no learning rate has done anything."""
    if first and isfinite(kl):
        return NonFiniteLossError(
            f"the loss is not finite in {where}, before any change of the weights: KL {kl:g}, NLL "
            f"{nll:g}. Usual causes: a row for which the network's output is NaN or infinite, such as a "
            f"logarithm of 0 or less, {UNSCALED}, or an initial rho that is too large."
        )
    return NonFiniteLossError(
        f"the loss is not finite in {where}: KL {kl:g}, NLL {nll:g}. Usual causes: a learning rate "
        f"too large for the prior (plain SGD with a narrow spike sigma2, or with the KL shares 2^(M-i)), "
        f"{UNSCALED}, a row for which the network is not defined, such as a logarithm of 0 or less, or an "
        f"initial rho that is too large. Try a lower lr, Adam, kl=uniform or a wider "
        f"sigma2{_last_good(checkpoint)}."
    )


def at_end(what: str, epoch: int, checkpoint: Path | None) -> NonFiniteLossError:
    """Of a quantity that the last step left infinite or NaN."""
    return NonFiniteLossError(
        f"{what} is not finite after the last step, in epoch {epoch}; the usual cause is a learning rate "
        f"that is too large. Try a lower one{_last_good(checkpoint)}."
    )


def in_validation(epoch: int, reason: Exception, checkpoint: Path | None) -> NonFiniteLossError:
    """Of a network whose output for a validation row is not finite, for the `reason` given."""
    return NonFiniteLossError(
        f"validation after epoch {epoch}: {reason}. Usual causes: a learning rate that is too large, or a "
        f"row for which the network is not defined, such as a logarithm of 0 or less{_last_good(checkpoint)}."
    )


def _last_good(checkpoint: Path | None) -> str:
    there = checkpoint is not None and checkpoint.exists()
    return f"; the last good checkpoint is {checkpoint}" if there else ""
