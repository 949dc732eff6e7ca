# bazel: size=small
# SPDX-License-Identifier: Apache-2.0
"""The metrics of LAMBADA and BoolQ, by hand, and of a small model."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import pax_fiddle
from praxis.contrib.gpu.scripts_gpu import models
from praxis.layers import embedding_softmax, transformer_models, transformers
from praxis.nested_map import NestedMap
from tests.praxis.layers import running

_V = 7
_YES, _NO = 3, 5


def _batch(**more):
  return NestedMap(
    ids=jnp.asarray([[1, 2, 3], [4, 5, 6], [1, 1, 1]]),
    labels=jnp.asarray([[2, 3, _YES], [5, 6, _NO], [1, 1, _YES]]),
    weights=jnp.asarray([[0.0, 0, 1], [0, 0, 1], [0, 0, 1]]),
    paddings=jnp.zeros([3, 3]),
    eval_sample_weights=jnp.asarray([1.0, 1, 0]),
    **more,
  )


def _predictions(argmax, logits=None):
  one = jnp.float32(1)
  more = {} if logits is None else {'logits': logits}
  return NestedMap(
    per_example_argmax=jnp.asarray(argmax),
    per_sequence_xent=jnp.zeros(3),
    total_loss=one,
    avg_xent=one,
    aux_loss=one,
    total_weight=3 * one,
    **more,
  )


def _metric(name, predictions, batch=None, **kwargs):
  metrics = models.compute_eval_metrics_helper(
    NestedMap(), predictions, batch or _batch(), True, **kwargs
  )
  assert set(metrics) == {name}
  return [float(x) for x in metrics[name]]


@pytest.mark.parametrize(
  'kwargs', [{'eval_task': 'lambada'}, {'report_strict_acc': True}]
)
def test_lambada_counts_examples_without_a_wrong_token(kwargs):
  batch = _batch()
  batch.weights = jnp.asarray([[0.0, 1, 1], [0, 1, 1], [0, 1, 1]])
  # The first is right where it counts, the second is half right, the third
  # only fills the batch.
  predictions = _predictions([[0, 3, _YES], [5, 6, 0], [1, 1, _YES]])
  assert _metric('acc_strict', predictions, batch, **kwargs) == [0.5, 2.0]


def test_boolq_compares_the_answers():
  logits = np.zeros([3, 3, _V], np.float32)
  # More likely than both is no matter; the answers are compared.
  logits[:, 2, 0] = 9
  logits[0, 2, [_YES, _NO]] = 2, 1
  logits[1, 2, [_YES, _NO]] = 2, 1
  logits[2, 2, [_YES, _NO]] = 2, 1
  predictions = _predictions(np.zeros([3, 3], int), jnp.asarray(logits))
  for answers in ([_YES, _NO], jnp.asarray([_YES, _NO])):
    kwargs = {'eval_task': 'boolq', 'boolq_yn_tokens': answers}
    assert _metric('boolq_acc', predictions, **kwargs) == [0.5, 2.0]


def test_other_metrics_are_the_language_models():
  metrics, out = models.compute_xent_loss_helper(
    _predictions(_batch().labels), _batch(), False, True
  )
  assert float(metrics.fraction_of_correct_next_step_preds[0]) == pytest.approx(
    2 / 3
  )
  assert set(out) >= {'labels', 'scores'}
  same = models.compute_eval_metrics_helper(metrics, _predictions([[0]]), out)
  assert same is metrics


def _config(**kwargs):
  layer = transformers.Transformer.config(num_heads=2)
  stack = transformers.StackedTransformer.config(
    num_layers=1,
    model_dims=4,
    hidden_dims=8,
    num_heads=2,
    transformer_layer_params_tpl=layer,
  )
  lm = transformer_models.TransformerLm.config(
    model_dims=4,
    vocab_size=_V,
    stacked_transformer_tpl=stack,
    softmax_tpl=pax_fiddle.Config(embedding_softmax.SharedEmbeddingSoftmax),
  )
  return models.CustomMetricsLM.config(
    lm_tpl=lm, apply_eval_sample_weights=True, **kwargs
  )


def test_model_reports_its_task():
  config = _config(eval_task='boolq', boolq_yn_tokens=[_YES, _NO])
  layer, variables = running.build(config, _batch())

  @running.jit
  def run(params):
    def loss(params):
      apply = functools.partial(layer.apply, {'params': params}, _batch())
      predictions = apply(method='compute_predictions')
      metrics, per_example = apply()
      return metrics.total_loss[0], (metrics, per_example, predictions.logits)

    return jax.grad(loss, has_aux=True)(params)

  gradient, (metrics, per_example, logits) = run(variables['params'])
  answers = np.asarray(logits)[:2, 2][:, [_YES, _NO]]
  right = int(answers[0, 0] > answers[0, 1])
  right += int(answers[1, 1] > answers[1, 0])
  assert [float(x) for x in metrics.boolq_acc] == [right / 2, 2.0]
  assert set(per_example) >= {'labels', 'scores'}
  assert any(np.any(x != 0) for x in jax.tree.leaves(gradient))


@pytest.mark.parametrize(
  'kwargs, message',
  [
    ({'eval_task': 'squad'}, "must be one of .* got 'squad'"),
    ({'eval_task': 'boolq'}, 'needs boolq_yn_tokens'),
  ],
)
def test_bad_settings(kwargs, message):
  with pytest.raises(ValueError, match=message):
    running.build(_config(**kwargs), _batch())


def test_missing_inputs_are_named():
  answers = {'eval_task': 'boolq', 'boolq_yn_tokens': [_YES, _NO]}
  with pytest.raises(ValueError, match='predictions need logits'):
    _metric('boolq_acc', _predictions([[0]]), **answers)
  batch = _batch()
  del batch.eval_sample_weights
  with pytest.raises(ValueError, match='need eval_sample_weights'):
    _metric('acc_strict', _predictions([[0]]), batch, eval_task='lambada')
