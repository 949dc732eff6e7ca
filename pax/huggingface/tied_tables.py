# SPDX-License-Identifier: Apache-2.0
"""Whether embedding and softmax share a table, if config.json leaves it out.

Newer versions of transformers record it for no T5, and the default of a Mistral
3 with an encoder of images differs from that of its language model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pax.huggingface.models.config_settings import Json

_MODEL_TYPES = ('mistral3', 't5')
_TIE = 'tie_word_embeddings'
_HEAD = 'lm_head.weight'
# The leaf of a shared table in a checkpoint.
_SHARED_LEAF = '.softmax.w'


def are_undeclared(config: Json) -> bool:
  """Returns whether the weights decide.

  Args:
    config: Contents of config.json.
  """
  return config.get('model_type') in _MODEL_TYPES


def declare_by_tensors(config: Json, tensors: Iterable[str]) -> dict[str, Any]:
  """Returns the config, completed from the tensors of a folder.

  Args:
    config: Contents of config.json.
    tensors: Names of the tensors in the files.
  """
  return _declare(config, not any(x.endswith(_HEAD) for x in tensors))


def declare_by_leaves(config: Json, leaves: Iterable[str]) -> dict[str, Any]:
  """Returns the config, completed from the leaves of a checkpoint.

  Args:
    config: Contents of config.json.
    leaves: Names of the leaves of the model.
  """
  return _declare(config, any(x.endswith(_SHARED_LEAF) for x in leaves))


def _declare(config: Json, is_tied: bool) -> dict[str, Any]:
  if config.get('model_type') == 't5':
    # In older files it also decides about the scale of outputs.
    scales = config.get(_TIE, True)
    return {'scale_decoder_outputs': scales, **config, _TIE: is_tied}
  part = config.get('text_config')
  if not isinstance(part, Mapping):
    return dict(config)
  return {**config, 'text_config': {**part, _TIE: is_tied}}
