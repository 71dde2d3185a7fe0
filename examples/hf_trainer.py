"""The Hugging Face Trainer with a compiled model. Do not set torch_compile or torch_compile_backend beside it."""

from __future__ import annotations

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import burnish


def dataset(rows: int) -> list[dict[str, object]]:
    """Sentences whose label is whether their first token is even."""
    tokens = torch.randint(0, 64, (rows, 8))
    return [{"input_ids": row, "labels": int(row[0] % 2)} for row in tokens]


def main() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        problem_type="single_label_classification",  # else the first step sets it, and the second recompiles
    )
    model = burnish.compile(BertForSequenceClassification(config))  # from_pretrained(...) in your program
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=6,
            per_device_train_batch_size=8,
            dataloader_drop_last=True,  # a last batch of another size would be a recompile
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=dataset(64), eval_dataset=dataset(16))
        trained = trainer.train()
        trainer.save_model(folder)
        again = BertForSequenceClassification.from_pretrained(folder)
    assert list(again.state_dict()) == list(model.state_dict())
    stats = burnish.stats(model)
    print(f"loss {trained.training_loss:.3f} after {trained.global_step} steps")
    print(f"{dict(stats.graphs)}, {len(stats.graph_breaks)} graph breaks, {len(stats.recompiles)} recompiles")


if __name__ == "__main__":
    main()
