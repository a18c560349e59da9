"""`headwater.hf.prepare` beside the same `transformers.Trainer` in eager mode; `model.compile` under Accelerate."""

import copy
import pathlib
from typing import Any

import pytest
import torch

import headwater

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def _own_state() -> None:
    # Accelerate keeps the precision of the first Trainer for all of the process.
    accelerate.state.AcceleratorState._reset_state(True)


def language_model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=31,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config)


class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, ignored: bool = True) -> None:
        g = torch.Generator().manual_seed(1)
        self.ids = torch.randint(31, (32, 8), generator=g)
        # Different numbers of items in a batch.
        self.labels = self.ids.clone()
        if ignored:
            self.labels[torch.rand(32, 8, generator=g) < 0.3] = -100

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


def trainer(model: Any, folder: pathlib.Path, **settings: Any) -> Any:
    given = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "max_steps": 6,
        "logging_steps": 1,
        "save_steps": 3,
        "max_grad_norm": 0.5,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 3,
    }
    arguments = transformers.TrainingArguments(**{**given, **settings})
    return transformers.Trainer(model=model, args=arguments, train_dataset=Data())


def logged(t: Any) -> list[tuple[float, float, float]]:
    return [(e["loss"], e["grad_norm"], e["learning_rate"]) for e in t.state.log_history if "loss" in e]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_trainer_trains_as_in_eager_mode(accumulate: int, tmp_path: pathlib.Path) -> None:
    ours, theirs = language_model(), language_model()
    want = trainer(theirs, tmp_path / "a", gradient_accumulation_steps=accumulate)
    want.train()
    got = trainer(ours, tmp_path / "b", gradient_accumulation_steps=accumulate)
    assert headwater.hf.prepare(got) is got
    got.train()
    assert len(logged(got)) == 6
    for a, b in zip(logged(got), logged(want)):
        assert a == pytest.approx(b, rel=2e-4)
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters()):
        # Adam moves what rounding alone makes as far as any other: sizes of the step, 1e-2, six times.
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4, msg=lambda m: f"{name}: {m}")
    # A wrong rate would be seen.
    assert logged(want)[0] != pytest.approx(logged(want)[1], rel=2e-4)
    assert got.headwater.step.programs >= 1


def test_it_resumes_from_its_checkpoint(tmp_path: pathlib.Path) -> None:
    whole = headwater.hf.prepare(trainer(language_model(), tmp_path / "whole"))
    whole.train()
    resumed = headwater.hf.prepare(trainer(language_model(), tmp_path / "whole"))
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    for a, b in zip(logged(resumed)[3:], logged(whole)[3:]):
        assert a == pytest.approx(b, rel=1e-5)
    # And from there in eager mode.
    eager = trainer(language_model(), tmp_path / "whole")
    eager.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    for a, b in zip(logged(eager)[3:], logged(whole)[3:]):
        assert a == pytest.approx(b, rel=2e-4)


def test_what_a_trainer_must_not_have_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(headwater.Unsupported, match="pass amp="):
        headwater.hf.prepare(trainer(language_model(), tmp_path, bf16=True))


def test_a_compiled_model_under_accelerate() -> None:
    model, twin = torch.nn.Linear(4, 3), None
    twin = copy.deepcopy(model)
    accelerator = accelerate.Accelerator(cpu=True)
    names = list(model.state_dict())
    model.compile(backend="headwater")
    optimizer, other = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.optim.AdamW(twin.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    for _ in range(3):
        x, y = torch.randn(5, 4), torch.randint(3, (5,))
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        other.zero_grad()
        torch.nn.functional.cross_entropy(twin(x), y).backward()
        other.step()
    assert list(accelerator.unwrap_model(model).state_dict()) == names
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p, q)
    assert headwater.counters().plans > 0


def test_a_trainer_in_mixed_precision(tmp_path: pathlib.Path) -> None:
    want = trainer(language_model(), tmp_path / "a")
    want.train()
    got = headwater.hf.prepare(trainer(language_model(), tmp_path / "b"), amp="O2")
    got.train()
    first, exact = logged(got)[0][0], logged(want)[0][0]
    # bf16, and not f32.
    assert 2.0**-20 * exact < abs(first - exact) < 2.0**-6 * exact
    assert got.headwater.step.explain().precision == "O2 in bf16"
