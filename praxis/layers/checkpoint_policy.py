# SPDX-License-Identifier: Apache-2.0
"""What a rematerialised layer keeps from its forward pass, by name.

Layers tag the tensors that are worth keeping with
`jax.ad_checkpoint.checkpoint_name`; a policy is a choice among those tags (or
among kinds of operations) and decides what the backward pass finds in memory
and what it computes again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

Policy = Callable[..., bool]


class AutodiffCheckpointType(enum.StrEnum):
  """The named remat policies; every other tensor is recomputed."""

  # Nothing but the inputs of the layer: least memory, one forward pass more.
  SAVE_NOTHING = 'save_nothing'
  # Everything: no recomputation.
  SAVE_EVERYTHING = 'save_everything'
  # The outputs of matrix products, all of them or those without a batch
  # dimension (that is, products with weights).
  SAVE_DOT_ONLY = 'save_dot_only'
  SAVE_DOT_WITH_NO_BATCH_DIM = 'save_dot_with_no_batch_dims'
  # Projections of the attention: combined or separate q, k, v and the output.
  SAVE_QKV_OUT_PROJ = 'save_qkv_out_proj'
  SAVE_QKV_OUT_PROJ_SEPARATE = 'save_qkv_out_proj_separate'
  # The weighted values before the output projection, and the output projection.
  SAVE_CONTEXT = 'save_context'
  SAVE_OUT_PROJ = 'save_out_proj'
  SAVE_CONTEXT_AND_OUT_PROJ = 'save_encoded_and_out_proj'
  # All of the attention but its logits; then with the second, or both, of the
  # feed-forward products.
  SAVE_DOT_FOR_MLPERF_200B = 'save_dot_for_mlperf_200b'
  SAVE_DOT_EXCEPT_LOGITS_FFN1 = 'save_dot_except_logits_ffn1'
  SAVE_DOT_EXCEPT_LOGITS = 'save_dot_except_logits'
  # The quantised operands with their scales, and the attention's results.
  SAVE_QUANTIZED = 'save_quantized'
  # The input of one iteration of a pipeline, or the output of one layer.
  SAVE_ITERATION_INPUT = 'save_iteration_input'
  SAVE_TRANSFORMER_LAYER_OUTPUT = 'save_transformer_layer_output'
  # Convolutions of a U-Net block: the last, or all.
  SAVE_UNET_CONV = 'save_unet_conv'
  SAVE_UNET_ALL_CONV = 'save_unet_all_conv'
  # As the policies of those names, but what is kept waits in the memory of the
  # host for the backward pass: memory for transfers.
  OFFLOAD_QKV_OUT_PROJ = 'offload_qkv_out_proj'
  OFFLOAD_CONTEXT_AND_OUT_PROJ = 'offload_encoded_and_out_proj'
  OFFLOAD_DOT_EXCEPT_LOGITS = 'offload_dot_except_logits'
  OFFLOAD_ITERATION_INPUT = 'offload_iteration_input'
  OFFLOAD_TRANSFORMER_LAYER_OUTPUT = 'offload_transformer_layer_output'


_ATTENTION_DOTS = (
  'combined_qkv_proj',
  'query_proj',
  'key_proj',
  'value_proj',
  'context',
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
  AutodiffCheckpointType.SAVE_CONTEXT: ('context',),
  AutodiffCheckpointType.SAVE_OUT_PROJ: ('out_proj',),
  AutodiffCheckpointType.SAVE_CONTEXT_AND_OUT_PROJ: ('context', 'out_proj'),
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
    'context',
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
  """Returns the policy to give to `jax.checkpoint(..., policy=)`.

  Raises:
    ValueError: the name is not one of AutodiffCheckpointType.
  """
  kind = _checkpoint_type(checkpoint_policy)
  policies = jax.checkpoint_policies
  by_operation = {
    AutodiffCheckpointType.SAVE_NOTHING: policies.nothing_saveable,
    AutodiffCheckpointType.SAVE_EVERYTHING: policies.everything_saveable,
    AutodiffCheckpointType.SAVE_DOT_ONLY: policies.dots_saveable,
    AutodiffCheckpointType.SAVE_DOT_WITH_NO_BATCH_DIM: (
      policies.dots_with_no_batch_dims_saveable
    ),
  }
  if kind in by_operation:
    return by_operation[kind]
  if kind.name.startswith('OFFLOAD_'):
    kept = AutodiffCheckpointType[kind.name.replace('OFFLOAD_', 'SAVE_')]
    return policies.save_and_offload_only_these_names(
      names_which_can_be_saved=[],
      names_which_can_be_offloaded=_SAVED_NAMES[kept],
      offload_src='device',
      offload_dst='pinned_host',
    )
  return policies.save_only_these_names(*_SAVED_NAMES[kind])


def saves_everything(checkpoint_policy: AutodiffCheckpointType | str) -> bool:
  """Returns whether the policy makes `jax.checkpoint` pointless."""
  kind = _checkpoint_type(checkpoint_policy)
  return kind is AutodiffCheckpointType.SAVE_EVERYTHING


def in_loop(
  layer: Any, body: Callable[..., Any], policy: AutodiffCheckpointType | str
) -> Callable[..., Any]:
  """Returns the body of a loop of modules; training computes it again.

  It stays as it is in eval, and where everything is saved. The loop keeps
  the compiler from merging both computations, so nothing else has to.
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
    known = ', '.join(kind.value for kind in AutodiffCheckpointType)
    raise ValueError(
      f'checkpoint_policy must be one of {known}; got {name!r}. Use a member '
      'of AutodiffCheckpointType.'
    ) from error
