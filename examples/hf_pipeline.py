"""A transformers pipeline around a compiled model: compile the model, hand it over."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, TextClassificationPipeline

import burnish

WORDS = ["[PAD]", "[UNK]", "a", "good", "bad", "film", "and", "very", "short", "one"]


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")


def main() -> None:
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    model = BertForSequenceClassification(config).eval()  # from_pretrained(...) in your program
    classify = TextClassificationPipeline(model=burnish.compile(model, dynamic=True), tokenizer=tokenizer())
    for text in ("a very good film", "a bad one", "short and good"):
        (found,) = classify([text])
        print(f"{text:20} {found['label']} {found['score']:.3f}")
    stats = burnish.stats(classify.model)
    print(f"{stats.compiles} compiled, {stats.kernels} kernels, {len(stats.graph_breaks)} graph breaks")


if __name__ == "__main__":
    main()
