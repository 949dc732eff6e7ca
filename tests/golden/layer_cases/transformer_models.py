# SPDX-License-Identifier: Apache-2.0
"""Transformers from ids to losses."""

from __future__ import annotations

from praxis.layers import transformer_models, transformers
from praxis.nested_map import NestedMap
from tests.golden.layer_case import case, f32, i32

_MESH = {
  'replica_axis': 'replica',
  'data_axis': 'data',
  'mdl_axis': 'mdl',
  'ici_mesh_shape': [1, 2, 2],
  'mesh_axis_names': ['replica', 'data', 'mdl'],
  'training_optimized': True,
}


def _stack(**fields):
  return transformers.StackedTransformer.config(
    num_layers=1, hidden_dims=12, num_heads=2, **fields
  )


def _lm(**fields):
  lm = transformer_models.TransformerLm.config(
    model_dims=8,
    vocab_size=16,
    stacked_transformer_tpl=transformers.StackedTransformerRepeated.config(
      block=_stack(), x_times=2
    ),
    **fields,
  )
  return lm.cls.set_sharding_params_v1(lm, **_MESH)


def _encoder_decoder():
  model = transformer_models.TransformerEncoderDecoder.config(
    model_dims=8,
    encoder_stacked_transformer_tpl=_stack(),
    decoder_stacked_transformer_tpl=_stack(
      mask_self_attention=True, use_cross_attention=True
    ),
  )
  model.softmax_tpl.num_classes = 16
  return model.cls.set_sharding_params_v1(model, **_MESH)


_LABELS = NestedMap(class_ids=i32(2, 4), class_weights=f32(2, 4))

CASES = {
  'TransformerLm': case(_lm(), i32(2, 4), f32(2, 4), labels=_LABELS),
  'MultiTokenPrediction': case(
    _lm(mtp_tpl=transformer_models.MultiTokenPrediction.config()),
    *(i32(2, 4), f32(2, 4)),
    labels=_LABELS,
  ),
  'LayerInputs': case(
    transformer_models.LayerInputs.config(
      vocab_size=16, model_dims=8, num_layers=2, layer_input_dims=3
    ),
    i32(2, 4),
    f32(2, 4, 8),
  ),
  'TransformerEncoderDecoder': case(
    _encoder_decoder(), i32(2, 3), f32(2, 3), i32(2, 4), f32(2, 4), _LABELS
  ),
}
