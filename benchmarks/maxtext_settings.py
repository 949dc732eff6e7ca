# SPDX-License-Identifier: Apache-2.0
"""MaxText settings of the same model and mesh, for comparisons.

References: github.com/AI-Hypercomputer/maxtext, MaxText/configs/base.yml
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pax.tasks.lm.params import fine_tuning
from praxis.layers import activations
from praxis.layers.checkpoint_policy import AutodiffCheckpointType
from praxis.layers.moe import dropless

# Names of mesh axes: of Pax, of MaxText.
_AXES = {'replica': 'data', 'data': 'fsdp', 'mdl': 'tensor'}
_EXPERT_AXES = {
  'replica': 'data',
  'data': 'fsdp',
  'data_expert': 'expert',
  'mdl': 'tensor',
}
# MaxText's names of the published mixtures of experts, by `model_type`.
_MIXTURES = {'mixtral': 'mixtral-8x7b', 'qwen3_moe': 'qwen3-30b-a3b'}
_REMAT = {
  AutodiffCheckpointType.SAVE_NOTHING: 'full',
  AutodiffCheckpointType.SAVE_DOT_WITH_NO_BATCH_DIM: 'minimal',
}


class LanguageModelConstants(Protocol):
  """The constants of a language model over a mesh, and of its data."""

  ACTIVATION_CLS: type[activations.BaseActivation]
  CHECKPOINT_POLICY: AutodiffCheckpointType
  DCN_MESH_SHAPE: Sequence[int] | None
  DIMS_PER_HEAD: int | None
  FPROP_DTYPE: Any
  HIDDEN_DIMS: int
  ICI_MESH_SHAPE: Sequence[int] | None
  MAX_SEQ_LEN: int
  MODEL_DIMS: int
  NUM_HEADS: int | None
  NUM_LAYERS: int
  PERCORE_BATCH_SIZE: float
  SEPARATE_EMBEDDING: bool
  USE_REPEATED_LAYER: bool
  VOCAB_SIZE: int


def settings(experiment: LanguageModelConstants) -> dict[str, Any]:
  """Returns MaxText's settings for a language model over a mesh.

  MaxText's position embeddings, norms and initial values still differ.

  Raises:
    ValueError: MaxText has no equivalent of the mesh or the remat policy.
  """
  heads, head_dim = _attention_heads(experiment)
  return {
    'base_emb_dim': experiment.MODEL_DIMS,
    'base_num_decoder_layers': experiment.NUM_LAYERS,
    'base_mlp_dim': experiment.HIDDEN_DIMS,
    'base_num_query_heads': heads,
    'base_num_kv_heads': heads,
    'head_dim': head_dim,
    'mlp_activations': [experiment.ACTIVATION_CLS.__name__.lower()],
    'vocab_size': experiment.VOCAB_SIZE,
    'logits_via_embedding': not experiment.SEPARATE_EMBEDDING,
    'per_device_batch_size': experiment.PERCORE_BATCH_SIZE,
    **_step_settings(experiment, _AXES),
  }


def mixture_settings(experiment: fine_tuning.HuggingFaceLm) -> dict[str, Any]:
  """Returns MaxText's settings for a mixture of experts of Hugging Face.

  Its buffers have the size of Pax's, and drop the rows that do not fit.

  Raises:
    ValueError: MaxText has no equivalent of the model, the mesh or the remat
      policy.
  """
  config = experiment.model_config()
  if config['model_type'] not in _MIXTURES:
    raise ValueError(
      f'--exp must be a model of {sorted(_MIXTURES)}, got a'
      f' {config["model_type"]}'
    )
  axes = _EXPERT_AXES if experiment.USE_EXPERT_PARALLEL else _AXES
  step = _step_settings(experiment, axes)
  sizes = [size for name, size in step.items() if name.endswith('parallelism')]
  return {
    'model_name': _MIXTURES[config['model_type']],
    'load_balance_loss_weight': config['router_aux_loss_coef'],
    'ragged_buffer_factor': float(dropless.BUFFER_FACTOR),
    'per_device_batch_size': experiment.BATCH_SIZE / math.prod(sizes),
    **step,
  }


def _step_settings(
  experiment: LanguageModelConstants | fine_tuning.HuggingFaceLm,
  axes: Mapping[str, str],
) -> dict[str, Any]:
  """Returns those of the mesh, the sequences and rematerialization."""
  ici = experiment.ICI_MESH_SHAPE
  if ici is None or len(ici) != len(axes):
    raise ValueError(
      f'ICI_MESH_SHAPE must have the axes {list(axes)}, got {ici}; MaxText '
      'has no equivalent of other meshes'
    )
  if experiment.CHECKPOINT_POLICY not in _REMAT:
    raise ValueError(
      f'CHECKPOINT_POLICY must be one of {[x.name for x in _REMAT]}, got '
      f'{experiment.CHECKPOINT_POLICY.name}; set it'
    )
  dcn = experiment.DCN_MESH_SHAPE or [1] * len(ici)
  config = {
    'max_target_length': experiment.MAX_SEQ_LEN,
    'dtype': experiment.FPROP_DTYPE.__name__,
    'scan_layers': experiment.USE_REPEATED_LAYER,
    'remat_policy': _REMAT[experiment.CHECKPOINT_POLICY],
    'num_slices': math.prod(dcn),
  }
  for network, shape in (('ici', ici), ('dcn', dcn)):
    for axis, size in zip(axes.values(), shape, strict=True):
      config[f'{network}_{axis}_parallelism'] = size
  return config


def _attention_heads(experiment: LanguageModelConstants) -> tuple[int, int]:
  """Returns (number of heads, dimension of a head)."""
  heads, head_dim = experiment.NUM_HEADS, experiment.DIMS_PER_HEAD
  if heads:
    return heads, head_dim or experiment.MODEL_DIMS // heads
  if head_dim:
    return experiment.MODEL_DIMS // head_dim, head_dim
  raise ValueError('set NUM_HEADS or DIMS_PER_HEAD, got neither')
