# SPDX-License-Identifier: Apache-2.0
"""Writes tests/pax/huggingface/references.json with transformers.

python -m tests.compare.huggingface_references
"""

from __future__ import annotations

import json
import pathlib
import tempfile
from typing import Any

import torch
import transformers

from pax.huggingface import safetensors
from tests.compare import model_parts, model_settings
from tests.pax.huggingface import reference_models

NUM_NEW_TOKENS = 6
# Those of references.json, one for each family.
NAMES = (
  'llama3',
  'llama4',
  'mistral',
  'ministral3',
  'mixtral',
  'qwen2',
  'qwen3',
  'qwen3_yarn',
  'qwen3_moe',
  'qwen3_next',
  'qwen3_5',
  'qwen3_5_moe',
  'deepseek_v2',
  'deepseek_v3',
  'gemma',
  'gemma2',
  'gemma3',
  'gemma4',
  'gemma4_e2b',
  'gemma4_e4b',
  'gemma4_moe',
  'gpt_oss',
  'olmo2',
  'olmo3',
  'phi3',
  'smollm3',
  'glm4',
  'glm4_moe',
  'glm4_moe_lite',
  'granite',
  'granite_hybrid',
  'granite_hybrid_moe',
  'minimax_m2',
  'nemotron_h',
  'seed_oss',
  'exaone4',
  'gpt2',
  't5',
)


def make_model(name: str, **changes: Any) -> Any:
  """Returns a model of transformers with random weights.

  Args:
    name: A key of `model_settings.MODELS`.
    **changes: Settings of its config.
  """
  kind, settings = model_settings.MODELS[name]
  sizes = {'t5': model_parts.T5_SIZES, 'gpt2': {}}.get(kind, model_parts.SIZES)
  config = transformers.AutoConfig.for_model(
    kind, **{**sizes, **settings, **changes}
  )
  torch.manual_seed(1)
  if kind == 't5':
    model = transformers.T5ForConditionalGeneration(config)
    if not config.scale_decoder_outputs:
      # As checkpoints have it; the class ties what is initialized.
      head = torch.randn_like(model.lm_head.weight)
      model.lm_head.weight = torch.nn.Parameter(head)
      model.config.tie_word_embeddings = False
  else:
    model = transformers.AutoModelForCausalLM.from_config(config)
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.1 * torch.randn_like(parameter))
    for name, buffer in model.named_buffers():
      if name.endswith('layer_scalar'):
        buffer.fill_(0.5 + torch.rand(()).item())
  return model.eval()


def load_model(folder: pathlib.Path) -> Any:
  """Returns the model of a folder."""
  config = transformers.AutoConfig.from_pretrained(folder)
  cls = transformers.AutoModelForCausalLM
  if config.model_type == 't5':
    cls = transformers.T5ForConditionalGeneration
  return cls.from_pretrained(folder, dtype=torch.float32).eval()


def outputs(model: Any, max_new_tokens: int = NUM_NEW_TOKENS) -> dict[str, Any]:
  """Returns logits of the last position, and greedy continuations."""
  vocab_size = model.config.vocab_size
  ids = torch.tensor(reference_models.input_ids(vocab_size)).long()
  targets = torch.tensor(reference_models.decoder_ids(vocab_size)).long()
  is_t5 = model.config.model_type == 't5'
  kwargs = {'decoder_input_ids': targets} if is_t5 else {}
  # Generation must not end at a token.
  model.generation_config.eos_token_id = None
  with torch.no_grad():
    logits = model(ids, **kwargs).logits
    continued = model.generate(
      ids,
      attention_mask=torch.ones_like(ids),
      do_sample=False,
      max_new_tokens=max_new_tokens,
      pad_token_id=0,
      # The cache of transformers has as many layers as the encoder.
      use_cache=False,
    )
  if not is_t5:
    continued = continued[:, ids.shape[1] :]
  return {
    'logits': [[round(x, 6) for x in row] for row in logits[:, -1].tolist()],
    'greedy': continued.tolist(),
  }


def reference(name: str) -> dict[str, Any]:
  """Returns the entry of a model in references.json."""
  with tempfile.TemporaryDirectory() as directory:
    saved = pathlib.Path(directory, 'saved')
    make_model(name).save_pretrained(saved)
    config = json.loads((saved / 'config.json').read_text())
    config.pop('transformers_version', None)
    entries = safetensors.read_folder(saved)
    shapes = {tensor: entry.shape for tensor, entry in entries.items()}
    folder = reference_models.write(
      pathlib.Path(directory, 'folder'), config, shapes
    )
    return {
      'config': config,
      'tensors': {k: list(shapes[k]) for k in sorted(shapes)},
      **outputs(load_model(folder)),
    }


def main() -> None:
  """Writes the references."""
  references = {name: reference(name) for name in NAMES}
  lines = [
    f'{json.dumps(name)}: {json.dumps(entry, sort_keys=True)}'
    for name, entry in references.items()
  ]
  text = '{\n' + ',\n'.join(lines) + '\n}\n'
  reference_models.REFERENCES.write_text(text)


if __name__ == '__main__':
  main()
