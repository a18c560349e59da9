"""`transformers.Trainer` on whole steps: `headwater.hf.prepare(trainer)` before `trainer.train()`."""

from typing import Any, Optional

import torch

from headwater.errors import Refusal, Unsupported
from headwater.precision import Amp
from headwater.step import Step

__all__ = ["prepare"]


def prepare(trainer: Any, *, amp: Amp = None, threads: Optional[int] = None, check: bool = True) -> Any:
    """Turns a `transformers.Trainer` to whole steps and returns it. Losses by `num_items_in_batch`, accumulation, clipping,
    logs, callbacks, checkpoints and `resume_from_checkpoint` are as before. Methods of this instance are replaced, and its
    optimizer's `step`; nothing else is patched.

    Gradients are clipped inside of the update, so `on_pre_optimizer_step` sees none. `amp`, `threads` and
    `check` are `compile_step`'s; the trainer's own `fp16` and `bf16` must be off. The Trainer's checkpoints
    do not hold the loss scale, which begins anew in a run that is resumed.

    Raises `Unsupported` for more than one process, other devices than the CPU, and mixed precision of the trainer's."""
    args = trainer.args
    found = []
    if args.fp16 or args.bf16:
        found.append(Refusal("fp16 or bf16 of TrainingArguments: pass amp= to prepare"))
    if args.world_size > 1 or args.device.type != "cpu":
        found.append(Refusal(f"a Trainer on {args.world_size} processes and {args.device}: it must be one, on the CPU"))
    if getattr(args, "torch_compile", False):
        found.append(Refusal("torch_compile of TrainingArguments: the step is compiled as a whole"))
    if found:
        raise Unsupported(found)
    steps = _Steps(trainer, amp, threads, check)
    trainer.training_step = steps.training_step
    trainer._clip_grad_norm = lambda model: steps.norm()
    trainer._get_grad_norm = lambda model, grad_norm=None: steps.norm()
    trainer.headwater = steps
    return trainer


class _Steps:
    """The step of a trainer, made when its optimizer exists."""

    def __init__(self, trainer: Any, amp: Amp, threads: Optional[int], check: bool) -> None:
        self._trainer, self._settings = trainer, (amp, threads, check)
        self._step: Optional[Step] = None
        self._norm = torch.zeros(())

    @property
    def step(self) -> Optional[Step]:
        """The `headwater.Step`, once there is one."""
        return self._step

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """The loss of a batch, whose gradients are added to those of the step."""
        trainer = self._trainer
        model.train()
        inputs = trainer._prepare_inputs(inputs)
        if num_items_in_batch is not None and not isinstance(num_items_in_batch, torch.Tensor):
            # A number would be a constant of the graph.
            num_items_in_batch = torch.tensor(num_items_in_batch)
        step = self._current(model)
        divisor = 1
        scaled = trainer.loss_is_scaled_for_ga if hasattr(trainer, "loss_is_scaled_for_ga") else None
        if scaled is None:
            by_items = trainer.model_accepts_loss_kwargs and num_items_in_batch is not None
            scaled = by_items or trainer.compute_loss_func is not None
        if not scaled:
            divisor = trainer.current_gradient_accumulation_steps
        return step.backward(inputs, num_items_in_batch, divisor)

    def norm(self) -> torch.Tensor:
        """The norm of the gradients, which the update to come fills in."""
        self._norm = torch.zeros(())
        return self._norm

    def _current(self, model: Any) -> Step:
        """The step of the optimizer that the trainer has now: each `train()` makes another."""
        trainer = self._trainer
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        if self._step is not None and self._step._optimizer is optimizer and self._step._model is model:
            return self._step
        if self._step is not None:
            self._step.close()
        amp, threads, check = self._settings

        def loss_of(inputs: dict[str, Any], num_items_in_batch: Any, divisor: int) -> Any:
            loss = trainer.compute_loss(model, dict(inputs), num_items_in_batch=num_items_in_batch)
            return loss / divisor if divisor != 1 else loss

        limit = trainer.args.max_grad_norm
        self._step = step = Step(
            model, optimizer, None, limit if limit and limit > 0 else None, None, 1, amp, "cpu", threads, check, loss_of
        )

        def update(*args: Any, **kwargs: Any) -> None:
            step.update()
            self._norm.fill_(step.norm)

        trainer.optimizer.step = update
        return step
