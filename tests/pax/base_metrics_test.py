# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Weighted scalars become means, maxima and losses."""

from __future__ import annotations

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
  assert [float(x) for x in values] == [1.0, 3.0, 3.0]
  assert all(x.dtype == np.float32 for x in values)


def test_unknown_loss_lists_the_scalars():
  with pytest.raises(ValueError, match='acc, loss'):
    base_metrics.LossAggregator(loss_key='los').aggregate(_BATCHES[0])


def test_several_losses_are_one_weighted_mean():
  loss = base_metrics.MultiLossAggregator(loss_keys=['loss', 'acc'])
  mean, weighted, weight = loss.aggregate(_BATCHES[0])
  assert (float(weighted), float(weight)) == (3.5, 4.0)
  np.testing.assert_allclose(mean, 3.5 / 4.0)
  with pytest.raises(ValueError, match='loss_keys'):
    base_metrics.MultiLossAggregator().aggregate(_BATCHES[0])
