# SPDX-License-Identifier: Apache-2.0
"""Small models that chat, as transformers saves them."""

from __future__ import annotations

import pathlib

import tokenizers
import transformers
from tokenizers import models, pre_tokenizers, processors, trainers

EXP = 'pax.tasks.lm.params.huggingface.Llama3'
WORDS = ('def', 'return', 'class', 'while', 'x', '=', 'y', '+', '1', ':')
MAX_LENGTH = 48


def write_model(folder: pathlib.Path) -> None:
  """Writes a random Llama with a tokenizer that adds bos."""
  tokenizer = tokenizers.Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = tokenizers.decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=300,
    special_tokens=['<s>', '</s>'],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator([' '.join(WORDS)], trainer)
  tokenizer.post_processor = processors.TemplateProcessing(
    single='<s> $A', special_tokens=[('<s>', 0)]
  )
  transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    bos_token='<s>',
    eos_token='</s>',
    chat_template=(
      '{{ bos_token }}{% for message in messages %}'
      '[{{ message.role }}] {{ message.content }} {% endfor %}'
      '{% if add_generation_prompt %}[assistant] {% endif %}'
    ),
  ).save_pretrained(folder)
  config = transformers.LlamaConfig(
    vocab_size=tokenizer.get_vocab_size(),
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=MAX_LENGTH,
    bos_token_id=0,
    eos_token_id=1,
    # No two ids are about as probable.
    initializer_range=0.4,
  )
  transformers.set_seed(0)
  transformers.LlamaForCausalLM(config).save_pretrained(folder)
