# SPDX-License-Identifier: Apache-2.0
"""Embeddings, softmaxes with their losses, and positions."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np

from praxis import py_utils
from praxis.layers import embedding_softmax
from tests.compare.upstream import cases
from tests.compare.upstream.cases import floats, integers, layer, vary

_D, _V = 8, 16
_X = floats(2, 3, _D)
_IDS = integers(2, 3, high=_V)
_LABEL_IDS = integers(2, 3, 1, high=_V, seed=1)
_WEIGHTS = np.array([[1, 1, 0], [1, 0.5, 0]], np.float32)[..., None]
_PROBS = np.asarray(jax.nn.softmax(floats(2, 3, _V, seed=3)))
_SIZES = {'input_dims': _D, 'num_classes': _V}
_SPLITS = {'wt': ['data', 'mdl']}
_APART = {
  'FullSoftmax': {
    'label_smoothing_prob': [0.1],
    'label_smoothing_apply_for_eval': [False],
    'z_loss_weight': [0.1],
    'soft_cap_logits': [2.0],
    'bi_tempered_loss_tpl': [],
    'bias_init': [0.5],
    'chunk_size': [2],
    'feed_forward_tpl.has_bias': [False],
  },
  'SharedEmbeddingSoftmax': {
    'label_smoothing_prob': [0.1],
    'z_loss_weight': [0.1],
    'soft_cap_logits': [2.0],
    'scale_sqrt_depth': [True],
    'lookup_style': ['matmul'],
    'feed_forward_tpl.has_bias': [False],
  },
  'NClassMajorSharedEmbeddingSoftmax': {
    'label_smoothing_prob': [0.1],
    'z_loss_weight': [0.1],
    'scale_sqrt_depth': [True],
    'lookup_style': ['index'],
    'soft_cap_logits': [2.0],
    'use_bias': [],
  },
  'GShardSharedEmbeddingSoftmax': {
    'label_smoothing_prob': [0.1],
    'z_loss_weight': [0.1],
    'soft_cap_logits': [2.0],
    'use_tgt_labels_size_as_loss_denominator': [False],
    'logits_abs_max': [1.0],
  },
  'SigmoidCrossEntropy': {
    'label_smoothing_prob': [],
    'soft_cap_logits': [2.0],
    'bias_init': [],
  },
}


def _softmaxes() -> Iterator[cases.Case]:
  for name, options in _APART.items():
    cls = getattr(embedding_softmax, name)
    known = {
      k: v
      for k, v in options.items()
      if k.split('.')[0] in cls.__dataclass_fields__
    }
    probabilities = {'class_probabilities': _PROBS}
    ids = {'class_ids': _LABEL_IDS}
    for label, kwargs in {'ids': ids, 'probabilities': probabilities}.items():
      yield from vary(
        f'{name}, {label}',
        cls,
        _X,
        _WEIGHTS,
        kwargs=kwargs,
        fields=_SIZES,
        weight_splits=_SPLITS,
        options=known
        if label == 'ids'
        else {k: v for k, v in known.items() if k == 'label_smoothing_prob'},
        variants=cases.ALL_VARIANTS
        if label == 'ids'
        else (cases.TRAIN, cases.EVAL, cases.BFLOAT16),
        tolerance=2e-6,
      )
    for method in ('get_logits', 'logits_to_logp'):
      if hasattr(cls, method):
        yield layer(
          f'{name}.{method}',
          cls,
          _X if method == 'get_logits' else floats(2, 3, _V),
          fields=_SIZES,
          method=method,
          init_method='get_logits',
          init_args=(_X,),
          variants=(cases.TRAIN, cases.BFLOAT16),
        )


def _lookups() -> Iterator[cases.Case]:
  yield from vary(
    'Embedding',
    embedding_softmax.Embedding,
    _IDS,
    fields=_SIZES,
    weight_splits=_SPLITS,
    options={
      'lookup_style': ['index', 'matmul'],
      'scale_sqrt_depth': [True],
      'set_nan_for_oob_id': [True],
      'array_lookup_tpl': [],
    },
  )
  out_of_range = np.array([[0, 15, 16], [-1, 2, 40]], np.int32)
  for style in ('index', 'matmul'):
    for nan in (True, False):
      yield layer(
        f'Embedding, ids out of range, {style}, nan={nan}',
        embedding_softmax.Embedding,
        out_of_range,
        fields={**_SIZES, 'lookup_style': style, 'set_nan_for_oob_id': nan},
        variants=(cases.EVAL, cases.BFLOAT16),
      )
  for name in (
    'SharedEmbeddingSoftmax',
    'NClassMajorSharedEmbeddingSoftmax',
    'GShardSharedEmbeddingSoftmax',
  ):
    cls = getattr(embedding_softmax, name)
    yield from vary(
      f'{name}.emb_lookup',
      cls,
      _IDS,
      fields=_SIZES,
      options={
        'lookup_style': ['index', 'matmul'],
        'scale_sqrt_depth': [True],
      }
      if 'scale_sqrt_depth' in cls.__dataclass_fields__
      else {},
      method='emb_lookup',
      variants=(cases.TRAIN, cases.EVAL, cases.BFLOAT16),
    )


def _positions_1() -> Iterator[cases.Case]:
  positions = np.array([[0, 1, 2], [5, 0, 1]], np.int32)
  for label, kwargs in {
    'length': {'seq_length': 4},
    'positions': {'position': positions},
  }.items():
    yield from vary(
      f'PositionalEmbedding, {label}',
      embedding_softmax.PositionalEmbedding,
      kwargs=kwargs,
      fields={'embedding_dims': 8},
      options={
        'min_timescale': [2],
        'max_timescale': [100],
        'embedding_dims': [7],
      },
      variants=(cases.EVAL, cases.BFLOAT16),
      tolerance=2e-6,
    )
  yield from vary(
    'TrainablePositionalEmbedding, length',
    embedding_softmax.TrainablePositionalEmbedding,
    kwargs={'seq_length': 3},
    fields={'embedding_dims': 8, 'max_seq_length': 5},
    weight_splits=_SPLITS,
    options={'lookup_style': ['index']},
  )
  yield from vary(
    'TrainablePositionalEmbedding, positions',
    embedding_softmax.TrainablePositionalEmbedding,
    kwargs={'position': positions % 5},
    fields={'embedding_dims': 8, 'max_seq_length': 5},
    options={'lookup_style': ['index']},
  )
  yield from vary(
    'PositionalEmbedding2D',
    embedding_softmax.PositionalEmbedding2D,
    fields={'embedding_dims': 8, 'h': 2, 'w': 3},
    options={
      'num_prepend_cls_tokens': [1],
      'num_append_cls_tokens': [2],
    },
    variants=(cases.EVAL, cases.BFLOAT16),
  )


def _positions_2() -> Iterator[cases.Case]:
  positions = np.array([[0, 1, 2], [5, 0, 1]], np.int32)
  for label, kwargs in {
    'length': {},
    'positions': {'position': positions},
  }.items():
    yield from vary(
      f'RotaryPositionalEmbedding, {label}',
      embedding_softmax.RotaryPositionalEmbedding,
      floats(2, 3, 2, 4),
      kwargs=kwargs,
      fields={'embedding_dims': 4},
      options={
        'max_timescale': [100],
        'min_timescale': [2],
        'cast_as_fprop_dtype': [False],
      },
      variants=(cases.EVAL, cases.TRAIN, cases.BFLOAT16),
      tolerance=2e-6,
    )
  yield layer(
    'RotaryPositionalEmbedding.extend_step',
    embedding_softmax.RotaryPositionalEmbedding,
    floats(2, 2, 4),
    2,
    fields={'embedding_dims': 4},
    method='extend_step',
    variants=(cases.EVAL, cases.BFLOAT16),
  )


def _counters() -> Iterator[cases.Case]:
  yield from vary(
    'TokenCounter',
    embedding_softmax.TokenCounter,
    _IDS,
    cases.paddings([3, 1], 3),
    options={},
    variants=(cases.EVAL,),
  )


def _label_smoothing() -> Iterator[cases.Case]:
  for ids in ([[[1], [2], [3]]], [[[0], [16], [-1]]]):
    for probability in (0.1, 0.0):
      for cls in ('FullSoftmax', 'SharedEmbeddingSoftmax'):
        yield layer(
          f'{cls}, smoothing {probability} of {ids}',
          getattr(embedding_softmax, cls),
          floats(1, 3, _D),
          np.ones((1, 3, 1), np.float32),
          kwargs={'class_ids': np.array(ids, np.int32)},
          fields={**_SIZES, 'label_smoothing_prob': probability},
          variants=(cases.TRAIN, cases.EVAL),
          tolerance=2e-6,
        )
  for smoothing in (0.0, 0.2):
    yield cases.FunctionCase(
      name=f'py_utils.apply_padding, {smoothing}',
      function=lambda smoothing=smoothing: py_utils.apply_padding(
        _X, np.ones((2, 3, 1)), pad_value=smoothing
      ),
    )


def family() -> Iterator[cases.Case]:
  yield from _softmaxes()
  yield from _lookups()
  yield from _positions_1()
  yield from _positions_2()
  yield from _counters()
  yield from _label_smoothing()
