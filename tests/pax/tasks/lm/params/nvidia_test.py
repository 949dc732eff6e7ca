# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
"""Experiments for NVIDIA GPUs: settings, checks, training of tiny models."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from pax.tasks.lm.params import nvidia
from praxis import optimizers
from praxis.layers import gpu_fast_attention, grouped_query_attention
from praxis.layers.transformer_models import stack_configs
from tests.pax.tasks.lm import tiny_training
from tests.testing import nightly

_TINY = {
  'NUM_LAYERS': 2,
  'NUM_HEADS': 2,
  'DIMS_PER_HEAD': 8,
  'MODEL_DIMS': 16,
  'HIDDEN_DIMS': 32,
  'VOCAB_SIZE': tiny_training.VOCAB,
  'MAX_SEQ_LEN': tiny_training.LENGTH,
  'TRAINABLE_PE_MAX_SEQ_LEN': tiny_training.LENGTH,
  'FPROP_DTYPE': jnp.float32,
  'DCN_MESH_SHAPE': None,
}
_MOE = {'NUM_GROUPS': 2, 'NUM_EXPERTS': 2}
# Experiment, what it is besides tiny, devices.
_TRAINED = {
  'pipeline': (
    nvidia.NVIDIA5B,
    {
      'NUM_STAGES': 2,
      'ICI_MESH_SHAPE': [2, 1, 1, 1],
      'DCN_MESH_SHAPE': [1] * 4,
    },
    2,
  ),
  'grouped heads': (
    nvidia.Llama2_70B,
    {'NUM_KV_HEADS': 1, 'ICI_MESH_SHAPE': [1, 2, 1]},
    2,
  ),
  'experts over devices': (
    nvidia.GLaM64B64EProxy_EP,
    {**_MOE, 'ICI_MESH_SHAPE': [1, 1, 2, 1]},
    2,
  ),
}


def _made(cls, **constants):
  return type(cls.__name__, (cls,), constants)()


def _layer(task_p):
  stack_p = task_p.model.lm_tpl.stacked_transformer_tpl
  return next(
    stack_configs.stacked_transformers(stack_p)
  ).transformer_layer_params_tpl


@pytest.mark.parametrize(
  'name',
  [
    *nightly.cases('pipeline', 'grouped heads'),
    'experts over devices',
  ],
)
def test_tiny_ones_learn(name):
  cls, constants, devices = _TRAINED[name]
  task_p = _made(cls, **{**_TINY, **constants}).task()
  trained = tiny_training.train(task_p, num_devices=devices)
  assert trained.losses[0] == pytest.approx(
    np.log(_TINY['VOCAB_SIZE']), rel=0.3
  )
  assert trained.losses[2] < trained.losses[0]
  changed, total = trained.num_changed()
  assert changed == total


@pytest.mark.parametrize(
  ('flag', 'instead'),
  [
    ('USE_FLASH_ATTENTION', 'USE_CUDNN_FLASH_ATTENTION'),
    ('USE_TRITON_LAYER_NORM', 'XLA'),
  ],
)
def test_flags_of_kernels_that_are_gone_say_what_to_do(flag, instead):
  with pytest.raises(ValueError, match=f'{flag} must be False.*{instead}'):
    _made(nvidia.NVIDIA1_3B, **{flag: True}).task()


def test_optimizer_and_schedule_are_those_of_the_constants():
  adam_p = nvidia.NVIDIA8_3B().task().train.learner.optimizer
  assert adam_p.cls is optimizers.Adam
  assert (adam_p.beta1, adam_p.beta2, adam_p.epsilon) == (0.9, 0.95, 1e-8)
  assert (adam_p.clip_gradient_norm_to_value, adam_p.clip_threshold) == (1, 1)
  schedule = adam_p.lr_schedule.Instantiate()
  at = [float(schedule.value_at(step)) for step in (0, 1, 250_000, 500_000)]
  # Half a cosine wave from 1 to 0.1.
  np.testing.assert_allclose(at, [1, 1, 0.55, 0.1], atol=1e-5)

  adafactor_p = nvidia.NVIDIA175B_FSDP().task().train.learner.optimizer
  assert adafactor_p.cls is optimizers.ShardedAdafactor
  assert (adafactor_p.decay_adam, adafactor_p.learning_rate) == (0.99, 6e-4)
  assert adafactor_p.lr_schedule == adam_p.lr_schedule


def test_initial_values_of_the_softmax():
  softmax_p = lambda cls: cls.task().model.lm_tpl.softmax_tpl
  assert softmax_p(nvidia.NVIDIA5B()).params_init.scale == 0.023
  by_size = _made(nvidia.NVIDIA5B, SOFTMAX_INIT_STD=0)
  assert softmax_p(by_size).params_init.scale == 4096**-0.5


def test_circular_repeat_uses_its_steps_values_and_cosine():
  task_p = nvidia.NVIDIA_CIRCULAR_REPEAT().task()
  assert task_p.train.num_train_steps == 2000
  assert task_p.model.params_init.scale == 0.01
  assert task_p.model.lm_tpl.softmax_tpl.params_init.scale == 0.01
  schedule = task_p.train.learner.optimizer.lr_schedule.Instantiate()
  assert schedule.value_at(115) == 1
  assert schedule.value_at(62500) == pytest.approx(0.1)


def test_grok_rotates_its_heads_or_has_a_bias():
  grok = {'NUM_LAYERS': 8}
  rotated = _layer(_made(nvidia.Grok, **grok).task()).tr_atten_tpl
  assert rotated.use_rotary_position_emb
  assert rotated.relative_bias_tpl is None
  biased = _layer(_made(nvidia.Grok_Proxy_PP, USE_ROPE=False).task())
  assert not biased.tr_atten_tpl.use_rotary_position_emb
  assert biased.tr_atten_tpl.relative_bias_tpl is not None


def test_experts_are_gated_as_in_their_papers():
  def experts(cls):
    task_p = cls().task()
    block_p = next(
      stack_configs.stacked_transformers(
        task_p.model.lm_tpl.stacked_transformer_tpl
      )
    )
    layer_p = block_p.transformer_layer_params_tpl
    gated = 'use_gated_activation'
    tpls = block_p.moe_layer_tpl, layer_p.tr_fflayer_tpl
    return [getattr(tpl, gated) for tpl in tpls]

  assert experts(nvidia.GLaM64B64EProxy) == [False, True]
  assert experts(nvidia.Grok_Proxy) == [True, True]
  assert experts(nvidia.MoELarge) == [False, False]


def test_a_mixture_of_experts_needs_the_number_of_heads():
  with pytest.raises(ValueError, match='NUM_HEADS must be set'):
    _made(nvidia.Grok_Proxy, NUM_HEADS=None).task()


def test_all_layers_of_a_mixture_have_experts():
  for repeats, layers in ((True, [0]), (False, [0, 1])):
    task_p = _made(
      nvidia.MoELarge, NUM_LAYERS=2, USE_REPEATED_LAYER=repeats
    ).task()
    block_p = next(
      stack_configs.stacked_transformers(
        task_p.model.lm_tpl.stacked_transformer_tpl
      )
    )
    assert block_p.moe_layers == layers


def test_llama_has_fused_attention_where_asked_for():
  plain = _layer(nvidia.Llama2_7B().task()).tr_atten_tpl
  assert plain.cls is grouped_query_attention.GroupedQueryAttention
  fused = _made(nvidia.Llama2_7B, USE_CUDNN_FLASH_ATTENTION=True)
  atten_p = _layer(fused.task()).tr_atten_tpl
  assert atten_p.cls is gpu_fast_attention.GpuCudnnFusedGroupedQueryAttention
  assert atten_p.is_causal and not atten_p.use_bias
  # The others cap their logits, which no fused kernel does.
  with pytest.raises(ValueError, match='ATTEN_LOGIT_CAP must be 0'):
    _made(nvidia.NVIDIA1_3B, USE_CUDNN_FLASH_ATTENTION=True).task()


def test_a_batch_of_grok_has_its_microbatches():
  pipeline_p = nvidia.Grok_PP().task().model.lm_tpl.stacked_transformer_tpl
  assert pipeline_p.num_pipeline_microbatches == 32
  assert pipeline_p.pipeline_microbatch_size is None
