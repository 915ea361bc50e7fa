"""CUDA's graphs, streams and generators imitated on the CPU: recorded operations, replayed in place."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyrobbb._support.optim import moments, trained


def adam(parameters: Any) -> torch.optim.Optimizer:
    """An optimiser as it is on CUDA."""
    return torch.optim.Adam(parameters, lr=torch.tensor(1e-2), fused=True, capturable=True)


class Tape(TorchDispatchMode):
    """A CUDA graph in effect: fixed operations on fixed memory, whatever Python does afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.generators: list[torch.Generator] = []

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.generators.append(generator)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a value was looked at while a graph was being captured")
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, result in self.calls:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.detach().copy_(new)


class NoSync(TorchDispatchMode):
    """CUDA's synchronisation debug mode "error" in effect; every tensor counts as one of the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from_host = func is torch.ops.aten.lift_fresh.default and args[0].numel() > 0
        looks = func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        if looks or from_host:
            raise RuntimeError("called a synchronizing CUDA operation")
        return func(*args, **(kwargs or {}))


class FakeCuda:
    """What the CUDA graph's path asks of `torch.cuda`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.captures = 0
        patch.setattr(gc, "collect", lambda: 0)  # which takes longer than these steps
        self.watch: NoSync | None = None
        patch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
        patch.setattr(torch.cuda, "set_sync_debug_mode", self.set_sync_debug_mode)
        patch.setattr(torch.cuda, "get_rng_state", torch.get_rng_state)
        patch.setattr(torch.cuda, "set_rng_state", torch.set_rng_state)
        for name in ("Stream", "current_stream", "graph_pool_handle"):
            patch.setattr(torch.cuda, name, lambda: self)
        patch.setattr(torch.cuda, "set_stream", lambda stream: self.left.append(stream))
        self.left: list[Any] = []
        patch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        patch.setattr(torch.cuda, "CUDAGraph", Tape)
        patch.setattr(torch.cuda, "graph", self.capture)
        for name in ("endAllocateToPool", "releasePool"):  # which a torch made for CUDA has
            patch.setattr(torch._C, f"_cuda_{name}", lambda device, pool: None, raising=False)
        self.state: list[Any] = []

    def set_sync_debug_mode(self, mode: int | str) -> None:
        if mode == "error":
            self.watch = NoSync()
            self.watch.__enter__()
        elif self.watch is not None:
            self.watch.__exit__(None, None, None)
            self.watch = None

    def wait_stream(self, other: object) -> None: ...

    @contextmanager
    def capture(self, tape: Tape, pool: Any = None, stream: Any = None) -> Iterator[None]:
        """Run the body to learn its operations, then put back what it changed: capturing computes nothing."""
        self.captures += 1
        kept = [(t, t.detach().clone()) for t in self.state_of()]
        random = torch.get_rng_state()
        own = [(generator, generator.get_state()) for generator in tape.generators]
        try:
            with tape:
                yield
        except RuntimeError:
            torch.rand(3)  # what CUDA leaves of the generator after a failed capture is not to be relied on
            raise
        finally:
            with torch.no_grad():
                for tensor, value in kept:
                    tensor.copy_(value)
            for generator, state in own:
                generator.set_state(state)
        torch.set_rng_state(random)

    def state_of(self) -> list[Tensor]:
        return [t for optimizer in self.state for t in (*trained(optimizer), *moments(optimizer))]
