# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Keys of outputs on SeqIO inputs, and small functions about them."""

from __future__ import annotations

import types

import numpy as np
import pytest

from pax.inputs.seqio import outputs as seqio_outputs
from pax.inputs.seqio import seqio_input
from praxis import base_input, py_utils
from praxis.pytypes import NestedMap


def _batch(indices, shards):
  batch = NestedMap(eval_sample_weights=np.ones(len(indices), np.float32))
  batch[py_utils.INDEX_WITHIN_SHARD_KEY] = np.array(indices)
  batch[py_utils.SHARD_INDEX_KEY] = np.array(shards)
  batch[py_utils.NUM_SHARDS_KEY] = np.array(
    [-1 if s < 0 else 2 for s in shards]
  )
  return batch


def _example_id(index, shard):
  return py_utils.get_enumeration_id(
    {
      py_utils.INDEX_WITHIN_SHARD_KEY: np.array(index),
      py_utils.SHARD_INDEX_KEY: np.array(shard),
      py_utils.NUM_SHARDS_KEY: np.array(2),
    }
  )


def test_ids_replace_keys():
  outputs = [('a', 1), ('b', 2)]
  update = seqio_outputs.maybe_update_decode_output_keys
  assert update(outputs, NestedMap(ids=np.ones((2, 3)))) is outputs
  expected = [(_example_id(0, 0), 1), (_example_id(5, 1), 2)]
  assert update(outputs, _batch([0, 5], [0, 1])) == expected
  assert update(outputs, _batch([0, 5, -1], [0, 1, -1])) == expected


def test_padding_must_be_left_out():
  with pytest.raises(
    RuntimeError, match='The length of enum keys != num kv-pairs.*1 != 2'
  ):
    seqio_outputs.maybe_update_decode_output_keys(
      [('a', 1), ('b', 2)], _batch([0, -1], [0, -1])
    )


def test_incomplete_ids():
  batch = _batch([0], [0])
  del batch[py_utils.NUM_SHARDS_KEY]
  with pytest.raises(ValueError, match='the ID of an example must have'):
    seqio_outputs.maybe_update_decode_output_keys([('a', 1)], batch)


def test_splits():
  assert seqio_outputs.select_split('task', 'train') == 'train'
  assert seqio_outputs.select_split('task', lambda t: f'{t}_x') == 'task_x'


def test_packing():
  packs = types.SimpleNamespace(pack=True)
  assert seqio_outputs.is_packing_on(packs)
  assert not seqio_outputs.is_packing_on(object())


def test_only_seqio_inputs_have_outputs_to_process():
  seqio = object.__new__(seqio_input.SeqIOInput)
  assert seqio_outputs.should_process_outputs(seqio)
  other = object.__new__(base_input.BaseInput)
  assert not seqio_outputs.should_process_outputs(other)
