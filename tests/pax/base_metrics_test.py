# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Weighted scalars become means, maxima and losses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax import base_metrics

_BATCHES = [
  {'loss': (1.0, 3.0), 'acc': (0.5, 1.0)},
  {'loss': (5.0, 1.0), 'acc': (0.25, 0.0)},
]


def _floats(metrics):
  return {k: (float(v), float(w)) for k, (v, w) in metrics.items()}


def test_mean_weighs():
  made = base_metrics.MeanMetrics().aggregate(_BATCHES)
  assert _floats(made) == {'loss': (2.0, 4.0), 'acc': (0.5, 1.0)}


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16', 'float32', 'int32'])
def test_sums_over_many_batches_do_not_saturate(dtype):
  # 1000 batches of weight 2000: bfloat16 counts to 256, float16 to 65504 and
  # int32 to 2**31.
  batch = {'loss': (jnp.asarray(2000, dtype), jnp.asarray(2000, dtype))}
  for metrics in (base_metrics.MeanMetrics(), base_metrics.MaxMetrics()):
    for _ in range(1000):
      metrics.store(batch)
    assert _floats(metrics.finalize()) == {'loss': (2000.0, 2e6)}


def test_clu_metrics_of_many_batches_do_not_saturate():
  create = base_metrics.WeightedScalarCluMetric.create
  batch = create(jnp.bfloat16(3), jnp.bfloat16(2))
  total = batch
  for _ in range(999):
    total = total.merge(batch)
  assert float(total.compute()) == 3 and float(total.weight) == 2000


def test_mean_of_nothing_seen_is_zero():
  made = base_metrics.MeanMetrics().aggregate([{'loss': (0.0, 0.0)}])
  assert _floats(made) == {'loss': (0.0, 0.0)}


def test_metric_keys_choose():
  made = base_metrics.MeanMetrics(metric_keys=['acc']).aggregate(_BATCHES)
  assert list(made) == ['acc']


def test_max():
  made = base_metrics.MaxMetrics().aggregate(_BATCHES)
  assert _floats(made)['loss'] == (5.0, 4.0)


def test_composite_merges():
  config = base_metrics.CompositeMetrics.config(
    metrics_p=[
      base_metrics.MeanMetrics.config(metric_keys=['acc']),
      base_metrics.MaxMetrics.config(metric_keys=['loss']),
    ]
  )
  made = config.Instantiate().aggregate(_BATCHES)
  assert _floats(made) == {'acc': (0.5, 1.0), 'loss': (5.0, 4.0)}


def test_no_batches_is_an_error():
  with pytest.raises(ValueError, match='at least 1 batch'):
    base_metrics.MeanMetrics().aggregate([])


def test_loss_is_the_named_scalar():
  loss = base_metrics.LossAggregator(loss_key='loss')
  values = loss.aggregate(_BATCHES[0])
  assert [float(x) for x in values] == [1.0, 1.0, 3.0]
  assert all(x.dtype == np.float32 for x in values)


def _on_two(fn, *args):
  """Returns what `fn` makes on two replicas, each with an entry of args."""
  mesh = jax.sharding.Mesh(jax.devices()[:2], ('batch',))
  spec = jax.sharding.PartitionSpec
  return jax.jit(
    jax.shard_map(
      lambda *rows: jax.tree.map(
        lambda x: x[None], fn(*(row[0] for row in rows))
      ),
      mesh=mesh,
      in_specs=spec('batch'),
      out_specs=spec('batch'),
      check_vma=False,
    )
  )(*map(jnp.asarray, args))


def test_losses_of_replicas_add_up_to_the_mean():
  loss = base_metrics.LossAggregator(loss_key='loss')
  weighted, mean, share = _on_two(
    lambda value, weight: loss.aggregate({'loss': (value, weight)}),
    [1.0, 4.0],
    [1.0, 2.0],
  )
  np.testing.assert_allclose(share, [1 / 3, 2 / 3], rtol=1e-6)
  np.testing.assert_allclose(weighted, [1 / 3, 8 / 3], rtol=1e-6)
  np.testing.assert_allclose(mean, [3.0, 3.0], rtol=1e-6)


def test_each_of_several_losses_has_weights_of_its_own():
  loss = base_metrics.MultiLossAggregator(loss_keys=['a', 'b'])
  weighted, mean, share = _on_two(
    lambda value, weight: loss.aggregate(
      {'a': (value, weight), 'b': (10 * value, 3 - weight)}
    ),
    [1.0, 4.0],
    [1.0, 2.0],
  )
  # (1 * 1 + 4 * 2) / 3 and (10 * 2 + 40 * 1) / 3.
  np.testing.assert_allclose(mean, [23.0, 23.0], rtol=1e-6)
  np.testing.assert_allclose(weighted.sum(), 23.0, rtol=1e-6)
  assert share is None


@pytest.mark.parametrize(
  'metrics, want',
  [
    (base_metrics.MeanMetrics(metric_keys=['x']), (3.0, 3.0)),
    (base_metrics.MaxMetrics(), (4.0, 3.0)),
    (base_metrics.HistogramMetrics(histogram_key='x'), (5.0, 3.0)),
  ],
)
def test_replicas_are_combined(metrics, want):
  made = _on_two(
    lambda value, weight: metrics.aggregate({'x': (value, weight)}),
    [1.0, 4.0],
    [1.0, 2.0],
  )
  for got, wanted in zip(made['x'], want, strict=True):
    np.testing.assert_allclose(got, [wanted, wanted], rtol=1e-6)


def test_what_is_stored_is_finalized_once():
  metrics = base_metrics.MeanMetrics()
  for batch in _BATCHES:
    metrics.store(batch, reshard=True)
  written = {}
  made = metrics.summarize(
    7, 'Eval', lambda step, tag, value: written.update({tag: (step, value)})
  )
  assert _floats(made) == {'loss': (2.0, 4.0), 'acc': (0.5, 1.0)}
  assert written['Eval/loss'] == (7, 2.0)
  assert written['Eval/acc-weight'] == (7, 1.0)
  assert metrics.finalize() == {}


def test_histogram_by_hand():
  metrics = base_metrics.HistogramMetrics(histogram_key='codes')
  first = np.array([[2.0, 0, 1, 0], [1, 1, 1, 1]])
  second = np.array([[2.0, 0, 3, 0], [1, 1, 1, 1]])
  made = metrics.aggregate(
    [{'codes': (x, 8.0), 'loss': (1.0, 1.0)} for x in (first, second)]
  )
  assert set(made) == {'codes_pplx', 'codes_entropy', 'codes_coverage'}
  # Two groups: half and half of two classes, and all four alike.
  pplx, weight = made['codes_pplx']
  np.testing.assert_allclose(pplx, (2 + 4) / 2, rtol=1e-6)
  assert weight == 16.0
  np.testing.assert_allclose(made['codes_entropy'][0], np.log(3.0), rtol=1e-6)
  assert made['codes_coverage'][0] == 0.75


def test_histogram_of_one_group():
  metrics = base_metrics.HistogramMetrics(histogram_key='x')
  made = metrics.aggregate([{'x': (np.array([5.0, 5.0, 0.0]), 1.0)}])
  np.testing.assert_allclose(made['x_pplx'][0], 2.0, rtol=1e-6)


def test_batches_are_stored_whole_unless_they_are_aggregated():
  metrics = base_metrics.MaxMetrics(metric_keys=['acc', 'absent'])
  metrics.store(_BATCHES[0])
  assert set(metrics.finalize()) == {'loss', 'acc'}
  metrics.store(_BATCHES[0], reshard=True)
  assert set(metrics.finalize()) == {'acc'}
  assert base_metrics.HistogramMetrics().aggregate(_BATCHES[0]) == {}


def test_a_metric_in_the_making_is_a_pair():
  metric = base_metrics.WeightedScalarCluMetric
  whole = metric.empty()
  for value, weight in (([1.0, 2.0], [1.0, 3.0]), ([5.0], [1.0])):
    whole = whole.merge(metric.create(jnp.array(value), jnp.array(weight)))
  np.testing.assert_allclose(whole.compute(), (1 + 6 + 5) / 5, rtol=1e-6)
  value = whole.compute_value()
  assert type(value).__name__ == 'Scalar' and value.value == whole.compute()
  loss = base_metrics.LossAggregator(loss_key='x')
  _, mean, weight = loss.aggregate({'x': whole})
  np.testing.assert_allclose([mean, weight], [2.4, 5.0], rtol=1e-6)


def test_unknown_loss_lists_the_scalars():
  for error in (ValueError, KeyError):  # KeyError as in paxml.
    with pytest.raises(error, match="^the loss 'los' is not .* acc, loss"):
      base_metrics.LossAggregator(loss_key='los').aggregate(_BATCHES[0])


def test_a_loss_is_a_pair():
  with pytest.raises(TypeError, match=r"'loss' must be a \(value, weight\)"):
    base_metrics.LossAggregator(loss_key='loss').aggregate({'loss': 1.0})


def test_several_losses_add_up():
  loss = base_metrics.MultiLossAggregator(loss_keys=['loss', 'acc'])
  weighted, mean, weight = loss.aggregate(_BATCHES[0])
  assert (float(weighted), float(mean), weight) == (1.5, 1.5, None)
  with pytest.raises(ValueError, match='loss_keys'):
    base_metrics.MultiLossAggregator().aggregate(_BATCHES[0])


def test_composite_needs_metrics():
  with pytest.raises(ValueError, match='metrics_p is not set'):
    base_metrics.CompositeMetrics.config().Instantiate()
