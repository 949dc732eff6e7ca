# SPDX-License-Identifier: Apache-2.0
"""The loss of distillation in numpy, its gradients, and the teacher."""

# bazel: size=medium
from __future__ import annotations

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import models, normalizations, transformers
from praxis.nested_map import NestedMap
from tests.praxis.layers import running
from tests.testing import nightly
from tests.testing.layers import random_variables

_B, _T, _V = 2, 7, 11
_WEIGHTS = np.array([[0, 1, 1, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0, 0]], np.float32)


def _stack(**fields):
  return transformers.StackedTransformer.config(num_heads=2, **fields)


def _model(cls=models.LanguageModelDistillation, dropout_prob=0.0, **fields):
  cfg = cls.config(name='lm').set(**fields)
  cfg.lm_tpl.set(
    model_dims=8,
    vocab_size=_V,
    stacked_transformer_tpl=_stack(
      num_layers=1, hidden_dims=8, dropout_prob=dropout_prob
    ),
  )
  if cls is models.LanguageModelDistillation:
    # Another architecture.
    cfg.teacher_lm_tpl.set(
      model_dims=12,
      vocab_size=_V,
      position_emb_tpl=None,
      final_ln_tpl=normalizations.RmsNorm.config(),
      stacked_transformer_tpl=_stack(
        num_layers=1, hidden_dims=16, dropout_prob=dropout_prob
      ),
    )
  return cfg


def _ids(seed):
  return jax.random.randint(jax.random.key(seed), (_B, _T), 0, _V)


def _batch():
  return NestedMap(
    ids=_ids(0),
    labels=_ids(1),
    weights=jnp.asarray(_WEIGHTS),
    paddings=jnp.zeros((_B, _T)),
  )


def _apply(model, variables):
  with base_layer.JaxContext.new_context():
    out, _ = model.apply(variables, _batch(), mutable=True)
  return out


def _run(model, variables, **kwargs):
  return running.run(model, variables, _batch(), mutable=True, **kwargs)[0]


def _loss_fn(model):
  return lambda params: _apply(model, {'params': params})[0].total_loss[0]


def _logits(cfg, params, network):
  """Returns those of a network, applied by a plain model, in float64."""
  plain = models.LanguageModel.config(name='lm', return_predictions=True)
  plain.lm_tpl = getattr(cfg, f'{network}_tpl').clone()
  variables = {'params': {'lm': params[network]}}
  _, out = _run(plain.Instantiate(), variables, do_eval=True)
  return np.asarray(out.logits, np.float64)


def _log_probs(logits):
  return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def _mean(values):
  return np.sum(values * _WEIGHTS) / _WEIGHTS.sum()


@pytest.mark.parametrize(
  ('weight', 'temperature', 'chunk_size', 'do_eval'),
  [
    (0.3, 2.0, 3, False),
    (1.0, 1.0, 100, True),
    *nightly.cases(
      (0.3, 2.0, 100, True), (1.0, 1.0, 7, True), (0.0, 0.5, 6, False)
    ),
  ],
)
def test_the_loss_is_that_of_the_paper(
  weight, temperature, chunk_size, do_eval
):
  cfg = _model(
    distillation_weight=weight, temperature=temperature, chunk_size=chunk_size
  )
  model = cfg.Instantiate()
  variables = random_variables(model, _batch())
  metrics, _ = _run(model, variables, do_eval=do_eval)
  student, teacher = (
    _logits(cfg, variables['params'], x) for x in ('lm', 'teacher_lm')
  )
  log_q, log_p = (_log_probs(x / temperature) for x in (student, teacher))
  divergence = _mean(np.sum(np.exp(log_p) * (log_p - log_q), axis=-1))
  labels = np.asarray(_ids(1))[..., np.newaxis]
  of_labels = np.take_along_axis(_log_probs(student), labels, axis=-1)
  xent = _mean(-of_labels[..., 0])
  expected = (1 - weight) * xent + weight * temperature**2 * divergence
  np.testing.assert_allclose(metrics.total_loss[0], expected, rtol=1e-5)
  np.testing.assert_allclose(metrics.log_pplx[0], xent, rtol=1e-5)
  np.testing.assert_allclose(
    metrics.distillation_loss[0], temperature**2 * divergence, rtol=1e-5
  )
  agreement = _mean(student.argmax(-1) == teacher.argmax(-1))
  np.testing.assert_allclose(metrics.teacher_agreement[0], agreement, rtol=1e-5)
  assert {float(x[1]) for x in metrics.values()} == {1.0, _WEIGHTS.sum()}


def test_gradients_are_those_of_the_paper_and_the_teacher_has_none():
  temperature = 2.0
  cfg = _model(distillation_weight=1.0, temperature=temperature, chunk_size=3)
  model = cfg.Instantiate()
  params = random_variables(model, _batch())['params']
  grads = running.jit(jax.grad(_loss_fn(model)))(params)
  assert not any(np.any(x) for x in jax.tree.leaves(grads['teacher_lm']))
  # Equation 2 with both softmaxes: T (q - p) is the gradient of the logits.
  q, p = (
    np.exp(_log_probs(_logits(cfg, params, x) / temperature))
    for x in ('lm', 'teacher_lm')
  )
  weights = _WEIGHTS[..., np.newaxis] / _WEIGHTS.sum()
  cotangent = jnp.asarray(temperature * (q - p) * weights, jnp.float32)
  plain = _model(models.LanguageModel, return_predictions=True).Instantiate()

  def weighted_logits(student):
    _, out = _apply(plain, {'params': {'lm': student}})
    return jnp.sum(out.logits * cotangent)

  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6),
    grads['lm'],
    running.jit(jax.grad(weighted_logits))(params['lm']),
  )


def test_logits_are_in_memory_for_a_chunk_only():
  def largest(chunk_size):
    """Returns the number of elements of the largest array with logits."""
    cfg = _model(chunk_size=chunk_size)
    cfg.lm_tpl.softmax_tpl.set(xent_implementation='xla', chunk_size=2)
    model = cfg.Instantiate()
    params = random_variables(model, _batch())['params']
    step = jax.jit(jax.grad(_loss_fn(model))).lower(params).compile()
    shapes = {
      tuple(map(int, x.split(',')))
      for x in re.findall(r'f32\[([\d,]+)\]', step.as_text())
    }
    return max(math.prod(x) for x in shapes if _V in x)

  num_logits = _B * _T * _V
  assert largest(2) < num_logits <= largest(100)


def test_a_student_that_equals_the_teacher_has_no_divergence():
  cfg = _model(distillation_weight=1.0, temperature=3.0)
  cfg.teacher_lm_tpl = cfg.lm_tpl.clone()
  model = cfg.Instantiate()
  params = random_variables(model, _batch())['params']
  equal = {**params, 'teacher_lm': params['lm']}

  def loss(params):
    metrics, _ = _apply(model, {'params': params})
    return metrics.total_loss[0], metrics

  grads, metrics = running.jit(jax.grad(loss, has_aux=True))(equal)
  assert abs(float(metrics.distillation_loss[0])) < 1e-6
  np.testing.assert_allclose(metrics.teacher_agreement[0], 1.0, rtol=1e-5)
  assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(grads)) < 1e-6


def test_the_z_loss_keeps_its_weight():
  cfg = _model(distillation_weight=0.75)
  # The kernel computes both losses in one pass.
  cfg.lm_tpl.softmax_tpl.z_loss_weight = 0.1
  params = random_variables(cfg.Instantiate(), _batch())['params']

  def gradient(weight, z_loss_weight, student):
    changed = cfg.clone().set(distillation_weight=weight)
    changed.lm_tpl.softmax_tpl.z_loss_weight = z_loss_weight
    loss = _loss_fn(changed.Instantiate())
    return jax.grad(lambda x: loss({**params, 'lm': x}))(student)

  @running.jit
  def of_z_loss(student):
    return [
      jax.tree.map(
        jnp.subtract, gradient(w, 0.1, student), gradient(w, 0.0, student)
      )
      for w in (0.0, 0.75)
    ]

  z_gradients = of_z_loss(params['lm'])
  assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(z_gradients)) > 0
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6),
    *z_gradients,
  )


def test_the_teacher_has_no_dropout():
  cfg = _model(distillation_weight=1.0, dropout_prob=0.5)
  model = cfg.Instantiate()
  variables = random_variables(model, _batch())
  run = running.compiled(model, method='compute_predictions', mutable=True)
  first, second = (
    run(variables, _batch(), rngs={'random': jax.random.key(seed)})[0]
    for seed in (0, 1)
  )
  assert np.abs(first.divergence - second.divergence).max() > 0.01
  np.testing.assert_array_equal(first.teacher_argmax, second.teacher_argmax)
  teacher = _logits(cfg, variables['params'], 'teacher_lm')
  np.testing.assert_array_equal(first.teacher_argmax, teacher.argmax(-1))


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'distillation_weight': 1.5}, 'from 0 to 1, got 1.5'),
    ({'temperature': 0.0}, 'above 0, got 0.0'),
    ({'chunk_size': 0}, 'chunk_size'),
  ],
)
def test_wrong_fields_are_refused(fields, message):
  model = _model(**fields).Instantiate()
  with pytest.raises(ValueError, match=message):
    model.init(jax.random.key(0), _batch())


def test_a_teacher_with_another_vocabulary_is_refused():
  cfg = _model()
  cfg.teacher_lm_tpl.vocab_size = _V + 1
  with pytest.raises(ValueError, match='got 11 and 12; use a teacher with'):
    cfg.Instantiate().init(jax.random.key(0), _batch())
