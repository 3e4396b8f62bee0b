"""The Trainers of Hugging Face and of Lightning on models that are compiled with the backend memsched."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from memsched.torch import zoo
from memsched.torch.compiled.groups import plans

zoo.torchvision()  # which transformers imports; it may lack its own operators
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("default")


def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


def lora() -> Any:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, task_type="CAUSAL_LM")
    return peft.get_peft_model(llama(), config)


def texts(count: int) -> list[dict[str, list[int]]]:
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(count):
        ids = torch.randint(0, 64, (24,), generator=generator).tolist()
        found.append({"input_ids": ids, "attention_mask": [1] * 20 + [0] * 4, "labels": ids[:20] + [-100] * 4})
    return found


def trained(model: Any, folder: Path, *, resume: bool = False) -> list[dict[str, float]]:
    """Losses of two epochs with gradients of two batches added up, a smaller last batch, and evaluation."""
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        learning_rate=1e-3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=texts(18), eval_dataset=texts(6))
    trainer.train(resume_from_checkpoint=resume or None)
    kept = ("loss", "eval_loss", "grad_norm")
    return [{name: row[name] for name in kept if name in row} for row in trainer.state.log_history]


@pytest.mark.parametrize("build", [llama, pytest.param(lora, marks=pytest.mark.exhaustive)])
def test_losses_are_those_of_a_plain_run(build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMSCHED_CACHE", "")
    torch._dynamo.reset()
    plain = build()
    planned = copy.deepcopy(plain)
    planned.compile(backend="memsched", dynamic=False, options={"budget": "60%"})
    expected = trained(plain, tmp_path / "plain")
    assert trained(planned, tmp_path / "planned") == expected
    assert any(plan.result.recomputed for plan in plans())
    last = sorted((tmp_path / "planned").glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))[0]
    again = build()
    again.compile(backend="memsched", dynamic=False, options={"budget": "60%"})
    for other in (tmp_path / "planned").glob("checkpoint-*"):
        if other != last:
            for file in sorted(other.rglob("*"), reverse=True):
                file.unlink()
            other.rmdir()
    assert trained(again, tmp_path / "planned", resume=True) == expected


def trained_by_lightning(model: Any, folder: Path, *, resume: bool = False) -> list[float]:
    """Losses, in training and in evaluation, of two epochs as in `trained`; of the second one if it is resumed."""
    lightning = pytest.importorskip("lightning")

    class Step(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.losses = model, []

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            loss: torch.Tensor = self.net(**batch).loss
            self.log("loss", loss)
            self.losses.append(float(loss.detach()))
            return loss

        def validation_step(self, batch: dict[str, torch.Tensor], _: int) -> None:
            self.losses.append(float(self.net(**batch).loss.detach()))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 1e-3)

    def batches(count: int) -> torch.utils.data.DataLoader[Any]:
        rows: Any = [{name: torch.tensor(value) for name, value in row.items()} for row in texts(count)]
        return torch.utils.data.DataLoader(rows, batch_size=4)

    keeping = lightning.pytorch.callbacks.ModelCheckpoint(dirpath=folder, save_top_k=-1, filename="{epoch}")
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[keeping],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    step = Step()
    trainer.fit(step, batches(18), batches(6), ckpt_path=str(folder / "epoch=0.ckpt") if resume else None)
    return step.losses


@pytest.mark.parametrize(
    "build", [pytest.param(llama, marks=pytest.mark.exhaustive), pytest.param(lora, marks=pytest.mark.slow)]
)
def test_lightning_trains_alike(build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMSCHED_CACHE", "")
    torch._dynamo.reset()
    plain = build()
    planned = copy.deepcopy(plain)
    planned.compile(backend="memsched", dynamic=False, options={"budget": "60%"})
    expected = trained_by_lightning(plain, tmp_path / "plain")
    known = plans()  # of models that are not collected yet
    assert trained_by_lightning(planned, tmp_path / "planned") == expected
    assert any(plan.result.recomputed for plan in plans() if plan not in known)
    again = build()
    again.compile(backend="memsched", dynamic=False, options={"budget": "60%"})
    epoch = len(expected) - 2  # two batches of evaluation are tried before training
    resumed = trained_by_lightning(again, tmp_path / "planned", resume=True)
    assert resumed[-(epoch // 2) :] == expected[-(epoch // 2) :]
