# SPDX-License-Identifier: Apache-2.0
"""Models: their predictions for a batch."""

from __future__ import annotations

from typing import Any

from praxis.layers import linears, models, transformers
from praxis.layers.models import LanguageModelType
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


def _stack(**fields: Any) -> Any:
  return transformers.StackedTransformer.config(
    num_layers=1, hidden_dims=12, num_heads=2, **fields
  )


def _lm(lm: Any, **fields: Any) -> Any:
  lm.set(
    model_dims=8,
    vocab_size=16,
    stacked_transformer_tpl=_stack(),
    **fields,
  )
  return lm.cls.set_sharding_params_v1(lm, **_MESH)


def _translator(model: Any) -> Any:
  model.set(
    model_dims=8,
    encoder_stacked_transformer_tpl=_stack(),
    decoder_stacked_transformer_tpl=_stack(
      mask_self_attention=True, use_cross_attention=True
    ),
  )
  model.softmax_tpl.num_classes = 16
  return model.cls.set_sharding_params_v1(model, **_MESH)


def _predictions(cfg: Any, batch: NestedMap) -> Any:
  return case(cfg, batch, method='compute_predictions')


def _text(length: int = 4) -> NestedMap:
  shape = 2, length
  return NestedMap(
    ids=i32(*shape),
    labels=i32(*shape),
    weights=f32(*shape),
    paddings=f32(*shape),
  )


def _masked_text() -> NestedMap:
  return NestedMap(
    labels=i32(2, 4),
    paddings=f32(2, 4),
    segment_ids=i32(2, 4),
    segment_pos=i32(2, 4),
    masked_ids=i32(2, 4),
    masked_pos=f32(2, 4),
  )


def _pair(half: str) -> dict[str, Any]:
  integers = 'inputs', 'labels/ids', 'segment_ids', 'segment_pos'
  floats = 'inputs_indicator', 'labels/weights', 'paddings'
  arrays = {name: i32(2, 4) for name in integers}
  arrays |= {name: f32(2, 4) for name in floats}
  return {f'{half}/{name}': array for name, array in arrays.items()}


def _pair_of_targets(half: str) -> dict[str, Any]:
  return {
    f'targets_{half}': i32(2, 4),
    f'targets_{half}/paddings': f32(2, 4),
    f'targets_{half}/labels/ids': i32(2, 4),
    f'targets_{half}/labels/weights': f32(2, 4),
  }


def _language_model(cls: Any, **fields: Any) -> Any:
  cfg = cls.config(**fields)
  _lm(cfg.lm_tpl)
  return cfg


def _distillation() -> Any:
  cfg = models.LanguageModelDistillation.config()
  _lm(cfg.lm_tpl)
  cfg.teacher_lm_tpl = _lm(cfg.teacher_lm_tpl, final_ln_tpl=None)
  cfg.teacher_lm_tpl.model_dims = 12
  return cfg


def _bert() -> Any:
  cfg = models.BertModel.config()
  _lm(
    cfg.lm_tpl,
    packed_input=True,
    model_type=LanguageModelType.BIDIRECTIONAL,
  )
  return cfg


def _sequence_model(cls: Any) -> Any:
  cfg = cls.config()
  _translator(cfg.model_tpl)
  return cfg


def _language_model_dpo() -> Any:
  cfg = models.LanguageModelDPO.config()
  _lm(cfg.mdl)
  _lm(cfg.ref_mdl)
  return cfg


def _classifier() -> Any:
  cfg = models.ClassificationModel.config(
    network_tpl=linears.Linear.config(input_dims=6, output_dims=8)
  )
  cfg.network_tpl.weight_split_dims_mapping.wt = ['data', 'mdl']
  cfg.softmax_tpl.set(input_dims=8, num_classes=7)
  return cfg


def _mlp() -> Any:
  cfg = models.ClassificationMLPModel.config(
    mlp_tpl=linears.MLPBlock.config(num_layers=2, hidden_dims=12)
  )
  cfg.mlp_tpl.ff_tpl.set(input_dims=8, output_dims=8)
  cfg.softmax_tpl.num_classes = 16
  return cfg


CASES = {
  'LanguageModel': _predictions(
    _language_model(models.LanguageModel, count_tokens=True), _text()
  ),
  'LanguageModelContinuousBatching': _predictions(
    _language_model(models.LanguageModelContinuousBatching), _text()
  ),
  'BertModel': _predictions(_bert(), _masked_text()),
  'SequenceModel': _predictions(
    _sequence_model(models.SequenceModel),
    NestedMap(src=_text(3), tgt=_text()),
  ),
  'LanguageModelDPO': _predictions(
    _language_model_dpo(), NestedMap(**_pair('y_w'), **_pair('y_l'))
  ),
  'LanguageModelGRPO': _predictions(
    _language_model(models.LanguageModelGRPO, beta=0.1),
    NestedMap(advantages=f32(2), **_text()),
  ),
  'LanguageModelDistillation': _predictions(_distillation(), _text()),
  'SequenceModelDPO': _predictions(
    _sequence_model(models.SequenceModelDPO),
    NestedMap(
      inputs=i32(2, 3),
      input_paddings=f32(2, 3),
      **_pair_of_targets('w'),
      **_pair_of_targets('l'),
    ),
  ),
  'ClassificationModel': _predictions(
    _classifier(), NestedMap(image=f32(2, 3, 6), label_probs=f32(2, 7))
  ),
  'ClassificationMLPModel': _predictions(
    _mlp(), NestedMap(ids=i32(2), labels=i32(2), weights=f32(2))
  ),
}
