# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The tasks have upstream's settings; checks of the constants."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from pax.tasks.lm import model_params
from praxis import optimizers, schedules
from praxis.layers import (
  attentions,
  context_parallel,
  embedding_softmax,
  gpu_fast_attention,
  models,
  transformers,
)
from praxis.layers.checkpoint_policy import AutodiffCheckpointType
from praxis.layers.quantization import utils
from praxis.layers.transformer_models import LanguageModelType

_PIPELINE = {
  'NUM_STAGES': 2,
  'MICROBATCH_SIZE': 2,
  'NUM_LAYERS': 4,
  'ICI_MESH_SHAPE': [2, 1, 1, 1],
}


def _task(base, **constants):
  body = {'datasets': lambda self: [], **constants}
  return type('Experiment', (base,), body)().task()


def _pmap(**constants):
  return _task(model_params.TransformerLmPmapAdam, **constants)


def _spmd(**constants):
  return _task(model_params.TransformerLmSpmdAdafactor, **constants)


def _pipeline(**constants):
  base = model_params.TransformerLmSpmdPipelineAdafactor
  return _task(base, **{**_PIPELINE, **constants})


def test_default_adam():
  task_p = _task(model_params.TransformerLmPmapAdam)
  model_params.set_default_adam(task_p, 0.5, 0.25)
  learner_p = task_p.train.learner
  optimizer_p, schedule_p = learner_p.optimizer, learner_p.optimizer.lr_schedule
  assert learner_p.loss_name == 'total_loss'
  assert optimizer_p.cls is optimizers.Adam
  assert (optimizer_p.beta1, optimizer_p.beta2) == (0.9, 0.99)
  assert (optimizer_p.epsilon, optimizer_p.clip_threshold) == (1e-6, 1.0)
  assert (optimizer_p.learning_rate, optimizer_p.weight_decay) == (0.5, 0.25)
  assert optimizer_p.clip_gradient_norm_to_value == 5.0
  assert schedule_p.cls is schedules.LinearRampupExponentialDecay
  assert (schedule_p.warmup_steps, schedule_p.decay_start) == (4000, 4001)
  assert (schedule_p.decay_end, schedule_p.min_ratio) == (300000, 0.1)
  schedule = schedule_p.Instantiate()
  assert float(schedule.value_at(2000)) == pytest.approx(0.5)
  assert float(schedule.value_at(300000)) == pytest.approx(0.1)


def test_default_adafactor():
  optimizer_p = _spmd().train.learner.optimizer
  assert optimizer_p.cls is optimizers.ShardedAdafactor
  assert optimizer_p.decay_method == 'adam'
  assert (optimizer_p.beta1, optimizer_p.decay_adam) == (0.9, 0.99)
  assert optimizer_p.lr_schedule.decay_end == 100000
  assert optimizer_p.clip_gradient_norm_to_value == 5.0


def test_pmap_language_model():
  task_p = _task(model_params.TransformerLmPmapAdam)
  lm_p = task_p.model.lm_tpl
  assert task_p.model.ici_mesh_shape is None
  assert lm_p.softmax_tpl.scale_sqrt_depth
  assert lm_p.softmax_tpl.soft_cap_logits == 0.0
  assert lm_p.softmax_tpl.params_init.scale == pytest.approx(1024**-0.5)
  atten_p = lm_p.stacked_transformer_tpl.transformer_layer_params_tpl
  atten_p = atten_p.tr_atten_tpl
  assert atten_p.cls is attentions.DotProductAttention
  assert atten_p.atten_logit_cap == 50.0
  assert not atten_p.use_bias


def test_masked_language_model_on_replicas():
  base = model_params.TransformerBertPmapAdam
  task_p = _task(base, FORCE_MASK_GENERATION=True)
  model_p, lm_p = task_p.model, task_p.model.lm_tpl
  assert model_p.cls is models.BertModel and model_p.force_mask_generation
  assert lm_p.model_type == LanguageModelType.BIDIRECTIONAL
  assert lm_p.packed_input and lm_p.softmax_tpl.scale_sqrt_depth
  assert lm_p.softmax_tpl.soft_cap_logits == 30.0
  assert lm_p.softmax_tpl.params_init.scale == pytest.approx(128**-0.5)
  assert model_p.fprop_dtype == jnp.bfloat16
  optimizer_p = task_p.train.learner.optimizer
  assert optimizer_p.cls is optimizers.Adam
  assert optimizer_p.lr_schedule.decay_end == 300000
  assert task_p.train.save_interval_steps == 5000
  assert model_p.ici_mesh_shape is None


def test_masked_language_model_over_a_mesh():
  base = model_params.TransformerBertSpmdAdafactor
  task_p = _task(
    base, MESH_SHAPE=[1, 4, 2], MASK_TOKEN_ID=3, USE_REPEATED_LAYER=True
  )
  repeated_p = task_p.model.lm_tpl.stacked_transformer_tpl
  assert (repeated_p.x_times, repeated_p.block.num_layers) == (32, 1)
  policy = AutodiffCheckpointType.SAVE_DOT_WITH_NO_BATCH_DIM
  assert repeated_p.checkpoint_policy == policy
  atten_p = repeated_p.block.transformer_layer_params_tpl.tr_atten_tpl
  assert (atten_p.atten_logit_cap, atten_p.use_bias) == (50.0, False)
  assert atten_p.combine_qkv
  assert task_p.model.mask_token_id == 3
  assert task_p.model.mesh_axis_names == ['replica', 'data', 'mdl']
  assert task_p.model.fprop_dtype is None
  optimizer_p = task_p.train.learner.optimizer
  assert optimizer_p.cls is optimizers.ShardedAdafactor
  assert optimizer_p.lr_schedule.decay_end == 100000
  train_p = task_p.train
  assert (train_p.save_interval_steps, train_p.save_max_to_keep) == (500, 10)


def test_spmd_language_model():
  task_p = _spmd(
    USE_REPEATED_LAYER=True,
    SEPARATE_EMBEDDING=True,
    TRAINABLE_POSITION_EMB=True,
    USE_ROTARY_POSITION_EMB=True,
  )
  lm_p = task_p.model.lm_tpl
  stack_p = lm_p.stacked_transformer_tpl
  assert task_p.model.fprop_dtype == jnp.bfloat16
  assert stack_p.cls is transformers.StackedTransformerRepeated
  assert (stack_p.x_times, stack_p.block.num_layers) == (10, 1)
  assert (stack_p.block.num_heads, stack_p.block.dim_per_head) == (16, 128)
  assert lm_p.softmax_tpl.cls is embedding_softmax.FullSoftmax
  assert lm_p.softmax_tpl.soft_cap_logits == 30.0
  assert lm_p.separate_embedding_tpl.scale_sqrt_depth
  assert lm_p.position_emb_tpl.max_seq_length == 16384
  atten_p = stack_p.block.transformer_layer_params_tpl.tr_atten_tpl
  assert atten_p.combine_qkv and atten_p.use_rotary_position_emb
  assert not atten_p.use_bias


def test_intervals():
  train_p = _spmd(CHECKPOINT_EVERY_N_STEPS=7, EVAL_INTERVAL_STEPS=9).train
  assert (train_p.save_interval_steps, train_p.eval_interval_steps) == (7, 9)
  assert (train_p.save_max_to_keep, train_p.summary_interval_steps) == (10, 100)


def test_sharding_v1():
  task_p = _spmd(ICI_MESH_SHAPE=[1, 4, 2])
  model_p = task_p.model
  assert model_p.mesh_axis_names == ['replica', 'data', 'mdl']
  assert model_p.mesh_shape == [1, 4, 2]
  assert task_p.train.inputs_split_mapping == {
    'map_1d': (('replica', 'data'),),
    'map_2d': (('replica', 'data'), None),
  }
  layer_p = model_p.lm_tpl.stacked_transformer_tpl.transformer_layer_params_tpl
  ffn = layer_p.tr_fflayer_tpl.weight_split_dims_mapping
  assert list(ffn.ffn0) == ['data', 'mdl']
  assert list(ffn.ffn1) == ['mdl', 'data']


def test_relative_positions_of_transformer_xl():
  task_p = _pmap(REL_POS_EMB_DIM=8)
  stack_p = task_p.model.lm_tpl.stacked_transformer_tpl
  atten_p = stack_p.transformer_layer_params_tpl.tr_atten_tpl
  assert atten_p.cls is attentions.DotProductAttentionXL
  assert (atten_p.rel_pos_emb_dim, atten_p.use_bias) == (8, False)


def test_pipeline_stages():
  task_p = _pipeline(NUM_LAYERS=8, CIRCULAR_REPEAT=2, MICROBATCH_SIZE=4)
  pipeline_p = task_p.model.lm_tpl.stacked_transformer_tpl
  assert pipeline_p.cls is transformers.PipelinedTransformer
  assert pipeline_p.pipeline_stage.num_layers == 2
  assert pipeline_p.circular_repeat == 2
  assert pipeline_p.pipeline_microbatch_size == 4
  batch = ('stage', 'replica', 'data')
  assert task_p.train.inputs_split_mapping.map_1d == (batch,)
  softmax_p = task_p.model.lm_tpl.softmax_tpl
  assert softmax_p.weight_split_dims_mapping.wt == ['data', 'mdl']
  assert pipeline_p.weight_split_dims_mapping.stages == ['stage']
  out = pipeline_p.activation_split_dims_mapping.final_out
  assert out == [batch, None, 'mdl']


def test_pipeline_in_one_slice():
  task_p = _pipeline(DCN_MESH_SHAPE=None)
  assert task_p.model.dcn_mesh_shape == [1, 1, 1, 1]


@pytest.mark.parametrize(
  ('make', 'constants', 'message'),
  [
    (_spmd, {'NUM_HEADS': 3}, '3 x 128'),
    (_spmd, {'DIMS_PER_HEAD': None}, 'got neither'),
    (
      _spmd,
      {'RELATIVE_BIAS': True, 'USE_ROTARY_POSITION_EMB': True},
      'choose one',
    ),
    (
      _spmd,
      {'USE_CUDNN_FLASH_ATTENTION': True},
      'ATTEN_LOGIT_CAP must be 0 .* got 50.0',
    ),
    (_spmd, {'ICI_MESH_SHAPE': [1, 1, 1, 1]}, 'one entry for each'),
    (_pipeline, {'NUM_STAGES': None}, 'NUM_STAGES must be set'),
    (_pipeline, {'NUM_STAGES': 0}, 'must be at least 1, got 0 and 1'),
    (_pipeline, {'CIRCULAR_REPEAT': 0}, 'must be at least 1, got 2 and 0'),
    (_pipeline, {'NUM_LAYERS': 5}, 'multiple of'),
    (_pipeline, {'NUM_MICROBATCHES': 2}, 'one of NUM_MICROBATCHES'),
    (_pipeline, {'ICI_MESH_SHAPE': [2, 1, 1]}, '4 axes'),
    (_pipeline, {'ICI_MESH_SHAPE': [1, 2, 1, 1]}, 'got 1'),
    (_pipeline, {'ICI_MESH_SHAPE': None}, 'ICI_MESH_SHAPE must be set'),
  ],
)
def test_what_does_not_fit_is_refused(make, constants, message):
  with pytest.raises(ValueError, match=message):
    make(**constants)


@pytest.mark.parametrize('make', [_spmd, _pipeline])
def test_fp8_is_delayed_scaling(make):
  assert make().model.lm_tpl.fp8_scaling is None
  assert make(USE_FP8=True).model.lm_tpl.fp8_scaling == 'delayed'


def test_fused_attention_is_causal():
  task_p = _spmd(USE_CUDNN_FLASH_ATTENTION=True, ATTEN_LOGIT_CAP=0.0)
  layer_p = utils.find_target_tpl(task_p, transformers.Transformer)[0]
  atten_p = layer_p.tr_atten_tpl
  fused = gpu_fast_attention.GpuCudnnFusedDotProductAttention
  assert atten_p.cls is fused and atten_p.is_causal
  assert not atten_p.use_bias and atten_p.combine_qkv


@pytest.mark.parametrize('how', ['ring', 'all_gather', 'compiler'])
@pytest.mark.parametrize('make', [_spmd, _pipeline])
def test_sequences_are_split(make, how):
  front = [2] if make is _pipeline else []
  task_p = make(
    CONTEXT_PARALLEL=how,
    ICI_MESH_SHAPE=[*front, 1, 2, 2, 1],
    DCN_MESH_SHAPE=[1] * (len(front) + 4),
  )
  names = ['replica', 'data', 'seq', 'mdl']
  assert task_p.model.mesh_axis_names[-4:] == names
  assert task_p.train.inputs_split_mapping.map_2d[1] == 'seq'
  stack_p = task_p.model.lm_tpl.stacked_transformer_tpl
  if make is _pipeline:
    stack_p = stack_p.pipeline_stage
  layer_p = stack_p.transformer_layer_params_tpl
  atten_p = layer_p.tr_atten_tpl
  assert atten_p.activation_split_dims_mapping.blnh[1] == 'seq'
  assert atten_p.weight_split_dims_mapping.proj[0] == ('data', 'seq')
  if how == 'compiler':
    assert atten_p.cls is attentions.DotProductAttention
  else:
    assert atten_p.cls is context_parallel.ContextParallelAttention
    assert (atten_p.context_axis, atten_p.context_method) == ('seq', how)
    assert atten_p.is_causal and atten_p.is_balanced


def test_split_sequences_that_do_not_fit():
  with pytest.raises(ValueError, match="'ring', 'all_gather' or 'compiler'"):
    _spmd(CONTEXT_PARALLEL='rign')
  with pytest.raises(ValueError, match='USE_EXPERT_PARALLEL must be False'):
    _spmd(CONTEXT_PARALLEL='ring', USE_EXPERT_PARALLEL=True)
  with pytest.raises(ValueError, match='needs DotProductAttention'):
    _spmd(
      CONTEXT_PARALLEL='ring',
      USE_CUDNN_FLASH_ATTENTION=True,
      ATTEN_LOGIT_CAP=0.0,
    )
