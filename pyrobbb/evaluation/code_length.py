"""A posterior as a code for the training labels, after Hinton and van Camp 1993 (bits-back coding)."""

import math


def code_length(free_energy: float, N: int, classes: int, *, labels: float = 1) -> dict[str, float]:
    r"""How many bits send the labels of data whose inputs the receiver has.

    The sender draws weights from q(w) and codes them under P(w) and the labels under p(y | x, w); with the
    bits that chose the draw given back, that is N F bits, F the free energy in nats per datum over log 2.

    Args:
        free_energy: At temperature 1, in nats per datum. What a prior has learned is not paid for.
        N: Number of training data.
        classes: K, of which every label is one.
        labels: L, labels of one datum: more than 1 on a grid, or where rows count several times.

    Returns:
        `bits`; `plain_bits`, :math:`N L \log_2 K`, with L = `labels`, for labels sent one by one without a
        model; and `compression`, the second over the first: below 1 the code is longer than the labels.
    """
    bits = free_energy * N / math.log(2)
    plain = N * labels * math.log2(classes)
    return {"bits": bits, "plain_bits": plain, "compression": plain / bits}
