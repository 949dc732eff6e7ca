# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Sizes and data of GPT-3 and GLaM on GPUs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax.contrib.gpu.scripts_gpu import configs, tasks
from pax.inputs.seqio import seqio_input
from praxis import base_input
from praxis.contrib.gpu.scripts_gpu import models
from praxis.layers.transformer_models import stack_configs
from tests.pax.tasks.lm import tiny_training

_TINY = {
  'NUM_LAYERS': 2,
  'NUM_HEADS': 2,
  'DIMS_PER_HEAD': 8,
  'MODEL_DIMS': 16,
  'HIDDEN_DIMS': 32,
  'VOCAB_SIZE': tiny_training.VOCAB,
  'MAX_SEQ_LEN': tiny_training.LENGTH,
  'FPROP_DTYPE': jnp.float32,
  'ICI_MESH_SHAPE': [1, 2, 1],
  'DCN_MESH_SHAPE': [1, 1, 1],
}


def _made(cls, **constants):
  return type(cls.__name__, (cls,), constants)()


def test_tiny_one_learns():
  task_p = _made(configs.Pile175B, **_TINY).task()
  rows = np.ones(tiny_training.ROWS, np.float32)
  trained = tiny_training.train(task_p, num_devices=2, eval_sample_weights=rows)
  assert trained.losses[0] == pytest.approx(
    np.log(_TINY['VOCAB_SIZE']), rel=0.1
  )
  assert trained.losses[2] < trained.losses[0]


def test_gpt3_has_biases_norms_and_positions():
  model_p = configs.Synthetic5B().task().model
  lm_p = model_p.lm_tpl
  assert model_p.cls is models.CustomMetricsLM
  assert lm_p.position_emb_tpl.max_seq_length == 2048
  assert lm_p.softmax_tpl.soft_cap_logits is None
  assert not lm_p.softmax_tpl.feed_forward_tpl.has_bias
  block_p = next(
    stack_configs.stacked_transformers(lm_p.stacked_transformer_tpl)
  )
  layer_p = block_p.transformer_layer_params_tpl
  assert block_p.input_dropout_prob == 0.1
  assert layer_p.tr_atten_tpl.use_bias
  assert not layer_p.tr_atten_tpl.internal_enable_per_dim_scale
  for norm_p in (
    layer_p.ln_tpl,
    layer_p.tr_fflayer_tpl.ln_tpl,
    lm_p.final_ln_tpl,
  ):
    assert (norm_p.epsilon, norm_p.reductions_in_fp32) == (1e-5, True)


def test_glam_has_no_first_moment_where_it_is_switched_off():
  adam_p = configs.PileGLaM64B64E().task().train.learner.optimizer
  assert (adam_p.beta1, adam_p.beta2) == (0, 0.99)


def test_groups_are_the_parts_of_the_batch():
  assert configs.PileGLaM126M64E().NUM_GROUPS == 64
  # The last axis splits the model.
  assert configs.PileGLaM64B64E().NUM_GROUPS == 64
  assert (
    _made(configs.PileGLaM64B64E, ICI_MESH_SHAPE=[2, 4, 1]).NUM_GROUPS == 512
  )


def test_data_are_seqio_tasks_or_made_up(monkeypatch):
  monkeypatch.setattr(jax, 'local_device_count', lambda: 8)
  train_p, eval_p = configs.Pile5B().datasets()
  assert train_p.cls is seqio_input.SeqIOInput
  assert (train_p.mixture_name, train_p.split_name) == ('the_pile_lm', 'train')
  assert (train_p.batch_size, train_p.feature_converter.pack) == (64, True)
  assert not eval_p.feature_converter.pack and eval_p.reset_for_eval
  [lambada_p] = configs.Lambada126M().datasets()
  assert lambada_p.task_feature_lengths == {'targets': 64, 'inputs': 1984}
  assert lambada_p.feature_converter.weights_on_targets_only
  assert configs.Lambada126M().task().model.eval_task == 'lambada'
  boolq_p = configs.LLaMA7B().datasets()[1]
  assert boolq_p.task_feature_lengths == {'targets': 64, 'inputs': 4032}
  assert boolq_p.eval_loop_num_batches == -1
  made_up = _made(configs.Pile126M, SYNTHETIC_DATA=True)
  assert made_up.training_dataset().Instantiate().get_next().ids.shape[0] == 32
  assert made_up.task().model.apply_eval_sample_weights


@pytest.mark.parametrize(
  ('cls', 'indicator'), [(configs.Pile126M, False), (configs.LLaMA7B, True)]
)
def test_shapes_of_batches_are_known_without_data(cls, indicator):
  provider = cls().get_input_specs_provider_params().Instantiate()
  specs = provider.get_input_specs()
  assert specs.ids.shape[1] == cls.MAX_SEQ_LEN
  assert ('inputs_indicator' in specs) == indicator
  assert specs.eval_sample_weights.shape == specs.ids.shape[:1]
  assert isinstance(provider, base_input.BaseInputSpecsProvider)


@pytest.mark.parametrize(
  ('percore', 'devices', 'processes', 'wanted'),
  [(4, 8, 2, (32, 2)), (1.5, 8, 1, (12, 1)), (0.25, 8, 4, (2, 4))],
)
def test_rows_of_a_host(percore, devices, processes, wanted, monkeypatch):
  monkeypatch.setattr(jax, 'local_device_count', lambda: devices)
  monkeypatch.setattr(jax, 'process_count', lambda: processes)
  assert tasks.split_over_hosts(percore) == wanted


def test_says_which_rows_do_not_divide(monkeypatch):
  monkeypatch.setattr(jax, 'local_device_count', lambda: 1)
  with pytest.raises(ValueError, match='divisible by .* got 0'):
    tasks.split_over_hosts(0.5)
