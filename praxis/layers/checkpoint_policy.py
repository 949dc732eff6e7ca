# SPDX-License-Identifier: Apache-2.0
"""Rematerialization policies by name.

Layers name tensors with `jax.ad_checkpoint.checkpoint_name`. A policy selects
the names, or kinds of operations, whose values are saved for the backward pass;
all other values are recomputed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
from jax.extend import core as jex_core

from praxis import base_layer

Policy = Callable[..., bool]


class AutodiffCheckpointType(enum.StrEnum):
  """The named remat policies, by the tensors that they save."""

  # Only the inputs of the layer.
  SAVE_NOTHING = 'save_nothing'
  # Everything; disables rematerialization.
  SAVE_EVERYTHING = 'save_everything'
  # Outputs of all matrix products, or of those without batch dimensions, which
  # are the products with weights.
  SAVE_DOT_ONLY = 'save_dot_only'
  SAVE_DOT_WITH_NO_BATCH_DIM = 'save_dot_with_no_batch_dims'
  # Attention projections: combined or separate q, k, v, and the output.
  SAVE_QKV_OUT_PROJ = 'save_qkv_out_proj'
  SAVE_QKV_OUT_PROJ_SEPARATE = 'save_qkv_out_proj_separate'
  # The attention context (input of the output projection), and its output.
  SAVE_CONTEXT = 'save_context'
  SAVE_OUT_PROJ = 'save_out_proj'
  SAVE_CONTEXT_AND_OUT_PROJ = 'save_encoded_and_out_proj'
  # All attention products except the logits; then with the second, or with
  # both feed-forward products.
  SAVE_DOT_FOR_MLPERF_200B = 'save_dot_for_mlperf_200b'
  SAVE_DOT_EXCEPT_LOGITS_FFN1 = 'save_dot_except_logits_ffn1'
  SAVE_DOT_EXCEPT_LOGITS = 'save_dot_except_logits'
  # Quantized operands and their scales, and the attention outputs.
  SAVE_QUANTIZED = 'save_quantized'
  # The input of a pipeline iteration, or the output of a transformer layer.
  SAVE_ITERATION_INPUT = 'save_iteration_input'
  SAVE_TRANSFORMER_LAYER_OUTPUT = 'save_transformer_layer_output'
  # The last, or all convolutions of a U-Net block.
  SAVE_UNET_CONV = 'save_unet_conv'
  SAVE_UNET_ALL_CONV = 'save_unet_all_conv'
  # Save what the SAVE_ policies of these names save, in host memory.
  OFFLOAD_QKV_OUT_PROJ = 'offload_qkv_out_proj'
  OFFLOAD_CONTEXT_AND_OUT_PROJ = 'offload_encoded_and_out_proj'
  OFFLOAD_DOT_EXCEPT_LOGITS = 'offload_dot_except_logits'
  OFFLOAD_ITERATION_INPUT = 'offload_iteration_input'
  OFFLOAD_TRANSFORMER_LAYER_OUTPUT = 'offload_transformer_layer_output'


# The name of the attended values, and of the statistics of attention kernels.
_CONTEXT = 'context'
# The primitive of cuDNN attention, whose results JAX does not name.
_CUDNN_ATTENTION = 'dot_product_attention_fwd_wrapper'

_ATTENTION_DOTS = (
  'combined_qkv_proj',
  'query_proj',
  'key_proj',
  'value_proj',
  _CONTEXT,
  'out_proj',
)

_SAVED_NAMES: dict[AutodiffCheckpointType, tuple[str, ...]] = {
  AutodiffCheckpointType.SAVE_QKV_OUT_PROJ: ('combined_qkv_proj', 'out_proj'),
  AutodiffCheckpointType.SAVE_QKV_OUT_PROJ_SEPARATE: (
    'query_proj',
    'value_proj',
    'key_proj',
    'out_proj',
  ),
  AutodiffCheckpointType.SAVE_CONTEXT: (_CONTEXT,),
  AutodiffCheckpointType.SAVE_OUT_PROJ: ('out_proj',),
  AutodiffCheckpointType.SAVE_CONTEXT_AND_OUT_PROJ: (_CONTEXT, 'out_proj'),
  AutodiffCheckpointType.SAVE_DOT_FOR_MLPERF_200B: _ATTENTION_DOTS,
  AutodiffCheckpointType.SAVE_DOT_EXCEPT_LOGITS_FFN1: (
    *_ATTENTION_DOTS,
    'ffn2',
  ),
  AutodiffCheckpointType.SAVE_DOT_EXCEPT_LOGITS: (
    *_ATTENTION_DOTS,
    'ffn1',
    'ffn2',
  ),
  AutodiffCheckpointType.SAVE_QUANTIZED: (
    _CONTEXT,
    'out_proj',
    'combined_qkv_proj',
    'qlhs',
    'qrhs',
    'lhs_scale',
    'rhs_scale',
  ),
  AutodiffCheckpointType.SAVE_ITERATION_INPUT: ('iteration_input',),
  AutodiffCheckpointType.SAVE_TRANSFORMER_LAYER_OUTPUT: (
    'transformer_layer_out',
  ),
  AutodiffCheckpointType.SAVE_UNET_CONV: ('conv_out',),
  AutodiffCheckpointType.SAVE_UNET_ALL_CONV: ('conv_0', 'conv_1', 'conv_out'),
}


def custom_policy(checkpoint_policy: AutodiffCheckpointType | str) -> Policy:
  """Returns the `policy` argument of `jax.checkpoint`.

  Raises:
    ValueError: the name is not in AutodiffCheckpointType.
  """
  policy_type = _checkpoint_type(checkpoint_policy)
  policies = jax.checkpoint_policies
  by_operation = {
    AutodiffCheckpointType.SAVE_NOTHING: policies.nothing_saveable,
    AutodiffCheckpointType.SAVE_EVERYTHING: policies.everything_saveable,
    AutodiffCheckpointType.SAVE_DOT_ONLY: policies.dots_saveable,
    AutodiffCheckpointType.SAVE_DOT_WITH_NO_BATCH_DIM: (
      policies.dots_with_no_batch_dims_saveable
    ),
  }
  if policy_type in by_operation:
    return by_operation[policy_type]
  if policy_type.name.startswith('OFFLOAD_'):
    save_name = policy_type.name.replace('OFFLOAD_', 'SAVE_')
    return policies.save_and_offload_only_these_names(
      names_which_can_be_saved=[],
      names_which_can_be_offloaded=_SAVED_NAMES[
        AutodiffCheckpointType[save_name]
      ],
      offload_src='device',
      offload_dst='pinned_host',
    )
  names = _SAVED_NAMES[policy_type]
  policy = policies.save_only_these_names(*names)
  return _or_cudnn_attention(policy) if _CONTEXT in names else policy


def _or_cudnn_attention(policy: Policy) -> Policy:
  """Returns the policy that also saves the results of cuDNN attention."""

  def saves(primitive: jex_core.Primitive, *args: Any, **params: Any) -> bool:
    if primitive.name == _CUDNN_ATTENTION:
      return True
    return policy(primitive, *args, **params)

  return saves


def saves_everything(checkpoint_policy: AutodiffCheckpointType | str) -> bool:
  """Returns whether the policy disables rematerialization."""
  policy_type = _checkpoint_type(checkpoint_policy)
  return policy_type is AutodiffCheckpointType.SAVE_EVERYTHING


def remat_in_scan(
  layer: base_layer.BaseLayer,
  body: Callable[..., Any],
  policy: AutodiffCheckpointType | str,
) -> Callable[..., Any]:
  """Rematerializes the body of a lifted scan, in training only.

  Loops prevent common subexpression elimination between the forward pass and
  the recomputation, so `prevent_cse` is not needed.
  """
  if layer.do_eval or saves_everything(policy):
    return body
  return nn.remat(body, policy=custom_policy(policy), prevent_cse=False)


def _checkpoint_type(
  name: AutodiffCheckpointType | str,
) -> AutodiffCheckpointType:
  try:
    return AutodiffCheckpointType(name)
  except ValueError as error:
    known = ', '.join(item.value for item in AutodiffCheckpointType)
    raise ValueError(
      f'checkpoint_policy must be one of {known}; got {name!r}. Use a member '
      'of AutodiffCheckpointType.'
    ) from error
