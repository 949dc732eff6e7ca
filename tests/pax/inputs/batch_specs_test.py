# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Shapes and dtypes of batch specs."""

from __future__ import annotations

import numpy as np

from pax.inputs import batch_specs


def test_shapes_and_types():
  found = batch_specs.RowSpecsProvider.config(
    batch_size=3,
    seq_len=5,
    ints=('ids',),
    floats=('paddings',),
    weights=('eval_sample_weights',),
    has_example_ids=True,
  )
  found = found.Instantiate().get_input_specs()
  assert {name: (x.shape, x.dtype) for name, x in found.items()} == {
    'ids': ((3, 5), np.int32),
    'paddings': ((3, 5), np.float32),
    'eval_sample_weights': ((3,), np.float32),
    '_seqio_provenance/index_within_shard': ((3,), np.int64),
    '_seqio_provenance/num_shards': ((3,), np.int32),
    '_seqio_provenance/shard_index': ((3,), np.int32),
  }
