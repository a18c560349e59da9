"""Small models, and the loop in eager mode that a step is compared with."""

import copy
from typing import Any, Callable, Iterable, Optional

import pytest
import torch

import headwater

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    headwater.reset()


class Pair:
    """A model twice: trained by a compiled step, and in eager mode."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer],
        loss_fn: Optional[Callable[..., Any]] = None,
        clip_norm: Optional[float] = None,
        accumulate: int = 1,
        **settings: Any,
    ) -> None:
        self.model, self.eager = model, copy.deepcopy(model)
        self.optimizer, self.eager_optimizer = optimizer(self.model), optimizer(self.eager)
        self.loss_fn, self.clip_norm, self.accumulate, self.micro = loss_fn, clip_norm, accumulate, 0
        self.step = headwater.compile_step(
            self.model, self.optimizer, loss_fn, clip_norm=clip_norm, accumulate=accumulate, **settings
        )

    def eager_step(self, *args: Any) -> torch.Tensor:
        if self.micro == 0:
            self.eager_optimizer.zero_grad()
        if self.loss_fn is None:
            loss = self.eager(*args)
        else:
            loss = self.loss_fn(self.eager(*args[:-1]), args[-1])
        (loss / self.accumulate).backward()
        self.micro = (self.micro + 1) % self.accumulate
        if self.micro == 0:
            if self.clip_norm is not None:
                own = [p for g in self.eager_optimizer.param_groups for p in g["params"]]
                torch.nn.utils.clip_grad_norm_(own, self.clip_norm)
            self.eager_optimizer.step()
        return loss.detach()

    def both(self, *args: Any) -> None:
        """One batch through both; the losses agree."""
        got, want = self.step(*args), self.eager_step(*args)
        torch.testing.assert_close(got, want, rtol=TOLERANCE, atol=TOLERANCE)

    def agree(self) -> None:
        """Parameters, buffers and the optimizers' states agree."""
        close(self.model.state_dict(), self.eager.state_dict())
        got, want = self.optimizer.state_dict(), self.eager_optimizer.state_dict()
        assert got["param_groups"] == want["param_groups"]
        assert got["state"].keys() == want["state"].keys()
        for index in want["state"]:
            close(got["state"][index], want["state"][index])


#: A few steps of f32 on numbers of size 1: some hundred units of rounding. A wrong formula is off by far more.
TOLERANCE = 2e-5


def close(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert list(got) == list(want)
    for name in want:
        if isinstance(want[name], torch.Tensor):
            torch.testing.assert_close(got[name], want[name], rtol=TOLERANCE, atol=TOLERANCE, msg=lambda m: f"{name}: {m}")
        else:
            assert got[name] == want[name], name


def mlp() -> torch.nn.Module:
    nn = torch.nn
    # No bias before batch norm: its gradient would be rounding alone, by which Adam moves it as far as by any other.
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3))


def batches(count: int, size: int = 5) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(count):
        yield torch.randn(size, 6), torch.randint(3, (size,))
