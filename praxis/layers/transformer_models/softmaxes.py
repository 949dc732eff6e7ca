# SPDX-License-Identifier: Apache-2.0
"""The softmax of a language model: its sizes, and whether it holds logits."""

from __future__ import annotations

from typing import Any

from praxis import base_layer, pax_fiddle
from praxis.layers.embedding_softmax import fused
from praxis.layers.transformer_models import stack_configs

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


def of_language_model(model: Any) -> LayerTpl:
  """Returns the softmax's Config with what a TransformerLm decides for it.

  Where the Config is silent on that, the loss goes without logits if it can.

  Raises:
    ValueError: the model asks for what its softmax is set not to give.
  """
  softmax = model.softmax_tpl.clone()
  softmax.set(input_dims=model.model_dims, num_classes=model.vocab_size)
  leaves_out_z_loss = (
    model.skip_aux_loss and stack_configs.has(softmax, 'z_loss_weight')
  ) and softmax.z_loss_weight
  _choose_xent(model, softmax, leaves_out_z_loss)
  is_fused = fused.may_be_on(softmax)
  if is_fused and leaves_out_z_loss:
    raise ValueError(
      'skip_aux_loss leaves out the z-loss, whose gradient the fused cross '
      'entropy includes; set softmax_tpl.z_loss_weight=0'
    )
  without_logits = is_fused or getattr(softmax, 'chunk_size', None)
  if model.entropy_loss_weight and without_logits:
    raise ValueError(
      'entropy_loss_weight needs the logits of all tokens, which the softmax '
      "is set not to hold; set its xent_implementation='xla', chunk_size=None"
    )
  return softmax


def _choose_xent(model: Any, softmax: LayerTpl, leaves_out_z_loss: Any) -> None:
  if not stack_configs.has(softmax, 'xent_implementation'):
    return
  needs_logits = (
    model.record_logits_in_xent_output
    or model.entropy_loss_weight
    or softmax.bi_tempered_loss_tpl is not None
    or leaves_out_z_loss
  )
  if not softmax.has('xent_implementation') and not needs_logits:
    softmax.xent_implementation = 'auto'
