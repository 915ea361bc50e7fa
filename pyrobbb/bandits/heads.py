"""One output per action, in a network whose input is still (context, action)."""

from torch import Tensor, nn

from pyrobbb._support import checks


class HeadPerAction(nn.Module):
    """Gives `body` the context alone and returns its output for the action taken, shape (B, 1).

    This is how the Bandits Showdown (Riquelme et al. 2018) models rewards: the loss touches the output
    of the action taken only.

    Args:
        body: Maps (B, features) to (B, actions).
        actions: Length of the action's one-hot code at the end of each row.
    """

    def __init__(self, body: nn.Module, actions: int) -> None:
        super().__init__()
        self.body = body
        self.actions = checks.count("actions", actions)

    def forward(self, x: Tensor) -> Tensor:
        context, taken = x[..., : -self.actions], x[..., -self.actions :]
        each = self.body(context)
        if each.shape != taken.shape:
            raise ValueError(
                f"body must map (B, {context.shape[-1]}) to (B, {self.actions}), one for each action, got "
                f"{tuple(each.shape)} for B={len(x)}"
            )
        return (each * taken).sum(-1, keepdim=True)
