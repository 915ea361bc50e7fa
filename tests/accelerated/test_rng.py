"""The noise of the fast path: the published generator, standard normal, one stream per key."""

import math

import pytest
import torch

from pyrobbb.accelerated import fast_math as cheap
from pyrobbb.accelerated.compile import compile
from pyrobbb.accelerated.record import record
from pyrobbb.accelerated.rng import KeyedNormals, box_muller, draw_key, normals, threefry


def words(*values: int) -> torch.Tensor:
    return torch.tensor([v - (1 << 32) if v >= 1 << 31 else v for v in values], dtype=torch.int32)


@pytest.mark.parametrize(
    ("rounds", "counter", "key", "expected"),
    [  # known answers of the authors' Random123 library
        (13, (0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
        (20, (0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        (20, (0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_published_answers(rounds, counter, key, expected) -> None:
    given = threefry(words(*key), *words(*counter), rounds=rounds)
    assert torch.equal(torch.stack(given), words(*expected))


def test_normals_are_standard_and_independent() -> None:
    n = 200_000
    a, b = torch.empty(n), torch.empty(n)
    normals(words(7, 11), torch.tensor(0, dtype=torch.int32), a, b)
    z = torch.cat([a, b]).double()
    assert abs(z.mean()) < 5 / (2 * n) ** 0.5
    assert abs(z.var() - 1) < 5 * (2 / (2 * n)) ** 0.5
    assert abs(z.pow(4).mean() - 3) < 5 * (96 / (2 * n)) ** 0.5
    for u, v in ((a, b), (z[1:], z[:-1]), (a.square(), b.square()), (z[1:].square(), z[:-1].square())):
        assert abs(torch.corrcoef(torch.stack([u.double(), v.double()]))[0, 1]) < 5 / n**0.5
    order = z.sort().values
    distance = (torch.special.ndtr(order) - torch.arange(1, 2 * n + 1) / (2 * n)).abs().max()
    assert distance < 1.95 / (2 * n) ** 0.5  # Kolmogorov and Smirnov, one in a thousand


def spaced(count: int) -> torch.Tensor:
    """The words at both ends and around 0, and others in between."""
    ends = [-(2**31), -(2**31) + 1, -256, -129, -128, -2, -1, 0, 1, 2, 2**31 - 2, 2**31 - 1]
    between = torch.randint(-(2**31), 2**31, (count,), generator=torch.Generator().manual_seed(1))
    return torch.cat([torch.tensor(ends), between]).to(torch.int32)


def test_every_pair_of_words_gives_finite_normals_that_are_not_both_zero() -> None:
    bits0 = spaced(1000)[:, None].expand(-1, 12)
    bits1 = spaced(0)[None].expand(len(bits0), -1)
    a, b = box_muller(bits0, bits1)
    radius = torch.hypot(a, b)
    assert bool(radius.isfinite().all())
    assert float(radius.min()) > 3e-4
    assert 7.5 < float(radius.max()) < 7.6


def test_the_radius_has_the_tail_of_two_normals() -> None:
    """exp(-r^2/2) is the uniform that r was made of, at every power of two down to 2^-41."""
    words40 = [0] + [2**k for k in range(0, 40)]
    low = torch.tensor([w & 0xFF for w in words40], dtype=torch.int32)
    high = torch.tensor(
        [(w >> 8) - (1 << 32 if w >> 8 >= 1 << 31 else 0) for w in words40], dtype=torch.int32
    )
    radius = torch.hypot(*box_muller(high, low)).double()
    probability = (torch.tensor(words40, dtype=torch.float64) + 0.5) * 2.0**-40
    torch.testing.assert_close((-0.5 * radius.square()).exp(), probability, rtol=3e-5, atol=0)


def test_tails_hold_what_they_should() -> None:
    n = 5_000_000
    a, b = torch.empty(n // 2), torch.empty(n // 2)
    normals(words(3, 5), torch.tensor(0, dtype=torch.int32), a, b)
    size = torch.cat([a, b]).abs()
    for bound in (3.0, 4.0, 4.5, 5.0):
        expected = n * 2 * float(torch.special.ndtr(torch.tensor(-bound, dtype=torch.float64)))
        assert abs(int((size > bound).sum()) - expected) < 5 * expected**0.5 + 1


def test_keys_come_from_the_global_generator_and_give_different_streams() -> None:
    with torch.random.fork_rng([]):
        torch.manual_seed(4)
        keys = torch.zeros(3, 2, dtype=torch.int32)
        for key in keys[:2]:
            draw_key(key)
        torch.manual_seed(4)
        draw_key(keys[2])
    assert torch.equal(keys[0], keys[2])
    streams = torch.empty(2, 2, 1000)
    for key, stream in zip(keys[:2], streams, strict=True):
        normals(key, torch.tensor(0, dtype=torch.int32), *stream)
    assert abs(torch.corrcoef(streams.reshape(2, -1))[0, 1]) < 0.12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cheap_functions_are_the_functions(dtype: torch.dtype) -> None:
    x = torch.linspace(-80, 30, 100_001, dtype=dtype)
    exact = x.double()
    rtol = 5e-7 if dtype == torch.float32 else 1e-14
    softplus = torch.logaddexp(exact, torch.zeros_like(exact))
    torch.testing.assert_close(cheap.softplus(x).double(), softplus, rtol=rtol, atol=0)
    torch.testing.assert_close(cheap.sigmoid(x).double(), torch.sigmoid(exact), rtol=5 * rtol, atol=0)
    torch.testing.assert_close(cheap.softplus(x, beta=2.0), cheap.softplus(2 * x) / 2)
    ones = torch.ones_like(x)
    torch.testing.assert_close(cheap.softplus_backward(ones, x, 2.0, 20.0), cheap.sigmoid(2 * x))


def test_the_cheap_logarithm_is_the_logarithm_of_every_number() -> None:
    x = torch.cat([torch.logspace(-44, 38, 100_001), torch.linspace(0.5, 2, 100_001)])
    exact = x.double().log()
    unit = 2.0 ** (exact.abs().clamp_min(2.0**-30).log2().floor() - 23)  # in the last place
    assert float(((cheap.log(x).double() - exact) / unit).abs().max()) < 1.5
    other = torch.tensor([0.0, -0.0, -1.0, math.inf, -math.inf, math.nan]).repeat(cheap.MANY)
    torch.testing.assert_close(cheap.log(other), other.log(), equal_nan=True)


def test_a_compiled_program_has_the_same_functions() -> None:
    x = torch.cat([torch.logspace(-44, 38, cheap.MANY), torch.tensor([0.0, -1.0, math.inf, math.nan])])

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.log(), torch.nn.functional.softplus(-x), torch.sigmoid(x)]

    graph = record(program, [x])
    assert not {torch.ops.aten.log.default, torch.ops.aten.exp.default} & {
        n.target for n in graph.graph.nodes
    }
    for found, exact in zip(compile(graph, [x])(x), program(x), strict=True):
        torch.testing.assert_close(found, exact, rtol=5e-7, atol=1e-7, equal_nan=True)


def test_seeds_that_agree_in_their_low_bits_give_other_noise() -> None:
    seeds = [1, 1 + 2**31, 1 + 2**32, 1 + 2**60, -1, 2**31 - 1]
    drawn = KeyedNormals(seeds, 4, stream=0, compiled=False).draw(0)
    assert len({tuple(row.tolist()) for row in drawn}) == len(seeds)


def test_cosine_and_sine() -> None:
    v = torch.linspace(-0.5, 0.5, 10_001)
    angle = 2 * torch.pi * v.double()
    for given, exact in zip(cheap.cos_sin(v), (angle.cos(), angle.sin()), strict=True):
        torch.testing.assert_close(given.double(), exact, rtol=0, atol=1e-6)
