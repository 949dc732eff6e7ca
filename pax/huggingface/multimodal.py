# SPDX-License-Identifier: Apache-2.0
"""Language models that are parts of models of images and texts.

Their config.json is `text_config` in that of the whole, and their tensors have
a prefix. What belongs to images stays as it is in the files.
"""

from __future__ import annotations

from collections.abc import Mapping

from pax.huggingface.models.config_settings import Json

# Settings that files leave out, by the `model_type` of the whole.
_DEFAULTS: Mapping[str, Json] = {
  'gemma3': {
    'model_type': 'gemma3_text',
    'vocab_size': 262_208,
    'num_attention_heads': 8,
  },
  'gemma4': {'model_type': 'gemma4_text'},
  'gemma4_unified': {'model_type': 'gemma4_unified_text'},
  'llama4': {'model_type': 'llama4_text'},
  'mistral3': {'model_type': 'mistral'},
  'qwen3_5': {'model_type': 'qwen3_5_text'},
  'qwen3_5_moe': {'model_type': 'qwen3_5_moe_text'},
}
MODEL_TYPES = frozenset(_DEFAULTS)
# Tensors of images and sounds.
IGNORED = (
  r'(model\.)?(vision_tower|vision_model|vision_embedder|multi_modal_projector'
  r'|visual|audio_tower|embed_vision|embed_audio)\..*'
)
# Prefixes of the stack of layers in models of transformers, newer and older.
_STACK = 'model.'
_PARTS = ('model.language_model.', 'language_model.model.')
# Settings of the whole that hold for the part.
_SHARED = ('bos_token_id', 'eos_token_id', 'tie_word_embeddings')


def language_config(config: Json) -> Json:
  """Returns the config.json of a language model, which may be a part.

  Args:
    config: Contents of config.json.

  Raises:
    ValueError: The part has none.
  """
  name = config.get('model_type')
  if not isinstance(name, str) or name not in MODEL_TYPES:
    return config
  text_config = config.get('text_config')
  if not isinstance(text_config, Mapping):
    raise ValueError(
      f'text_config in config.json of a {name} must be an object, got'
      f' {text_config!r}; use the file of the model'
    )
  shared = {key: config[key] for key in _SHARED if key in config}
  return {**_DEFAULTS[name], **shared, **text_config}


def tensor_names(tensor: str) -> list[str]:
  """Returns the names that a tensor of a language model has as a part.

  Args:
    tensor: Name in a model without images.
  """
  if not tensor.startswith(_STACK):
    return [f'language_model.{tensor}']
  return [f'{part}{tensor.removeprefix(_STACK)}' for part in _PARTS]


def module_name(module: str) -> str:
  """Returns the name that a module of a language model has as a part.

  Args:
    module: Name in a model without images.
  """
  return tensor_names(module)[0]


def module_of_language_model(module: str) -> str:
  """Returns the name that a module has in a model without images.

  Args:
    module: Name in any model.
  """
  for part in _PARTS:
    if module.startswith(part):
      return f'{_STACK}{module.removeprefix(part)}'
  return module
