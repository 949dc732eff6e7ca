# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Texts of a batch stay on the host and come back beside the outputs."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from pax import xla_passthrough
from praxis.pytypes import NestedMap


def _batch():
  return NestedMap(
    x=np.ones(2, np.float32),
    text=np.array(['a', 'b']),
    inner=NestedMap(y=np.zeros(2), name=np.array([b'c', b'd'], object)),
    only=NestedMap(text=np.array(['e', 'f'])),
  )


def test_split_and_merge():
  specs = _batch().Transform(lambda x: x.size)
  found, kept, specs = xla_passthrough.split_out_xla_unsupported_batch(
    _batch(), specs
  )
  assert set(dict(found.FlattenItems())) == {'x', 'inner.y'}
  assert set(dict(specs.FlattenItems())) == {'x', 'inner.y'}
  assert set(dict(kept.FlattenItems())) == {'text', 'inner.name', 'only.text'}
  out = NestedMap(score=1, inner=NestedMap(score=2))
  xla_passthrough.merge_back_xla_unsupported_batch(out, kept)
  assert list(out.text) == ['a', 'b'] and list(out.inner.name) == [b'c', b'd']
  assert out.inner.score == 2 and list(out.only.text) == ['e', 'f']


def test_numbers_alone_are_left_as_they_are():
  batch = NestedMap(x=np.ones(2), flag=np.array([True]))
  found, kept, _ = xla_passthrough.split_out_xla_unsupported_batch(batch)
  assert found is batch and not kept


def test_several_processes(monkeypatch):
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  with pytest.raises(NotImplementedError, match='text, inner, only'):
    xla_passthrough.split_out_xla_unsupported_batch(_batch())
