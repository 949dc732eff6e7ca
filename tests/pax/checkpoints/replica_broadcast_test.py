# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Arrays of one replica reach the others bit by bit, on their shardings."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from pax.checkpoints import replica_broadcast
from tests.testing import nightly


def _mesh(*shape):
  return jax.make_mesh(shape, ('replica', 'data', 'mdl'))


def _values(dtype):
  """Returns random bits, among them negative zeros, NaNs and infinities."""
  rng = np.random.default_rng(7)
  dtype = np.dtype(dtype)
  if dtype.kind == 'b':
    return rng.integers(0, 2, (8, 4)).astype(bool)
  bits = rng.integers(0, 256, (8, 4 * dtype.itemsize), dtype=np.uint8)
  values = np.array(bits.view(dtype))
  if jnp.issubdtype(dtype, jnp.floating):
    values[0] = np.array([-0.0, np.nan, np.inf, -np.inf], dtype)
  return values


_DTYPES = (
  'float32 bfloat16 float16 uint32 int8 uint16 bool float8_e4m3fn'.split()
)


@pytest.mark.parametrize(
  ('shape', 'dtype'),
  [
    *(((2, 2, 2), dtype) for dtype in _DTYPES),
    ((4, 2, 1), _DTYPES[0]),
    *nightly.cases(*(((4, 2, 1), dtype) for dtype in _DTYPES[1:])),
  ],
)
def test_all_bits_arrive(dtype, shape):
  mesh = _mesh(*shape)
  values = _values(jnp.dtype(dtype))
  abstract = {
    name: jax.ShapeDtypeStruct(
      values.shape, values.dtype, sharding=NamedSharding(mesh, spec)
    )
    for name, spec in (('sharded', P('data', 'mdl')), ('replicated', P()))
  }
  replica = replica_broadcast.ReplicaBroadcast(mesh, ('replica',))
  first = {
    name: jax.make_array_from_callback(
      leaf.shape, leaf.sharding, lambda i: values[i], dtype=leaf.dtype
    )
    for name, leaf in replica.on_first_replica(abstract).items()
  }
  assert len(first['sharded'].sharding.device_set) == 8 // shape[0]
  result = replica.broadcast(abstract, first)
  for name, leaf in result.items():
    assert leaf.sharding == abstract[name].sharding
    for shard in leaf.addressable_shards:
      assert np.asarray(shard.data).tobytes() == values[shard.index].tobytes()


def test_groups_of_leaves(monkeypatch):
  monkeypatch.setattr(replica_broadcast, '_MAX_BYTES', 8)
  sharding = NamedSharding(_mesh(2, 2, 2), P())
  abstract = {
    str(i): jax.ShapeDtypeStruct((), jnp.int32, sharding=sharding)
    for i in range(5)
  }
  replica = replica_broadcast.ReplicaBroadcast(sharding.mesh, ('replica',))
  first = {
    name: jax.device_put(jnp.int32(int(name)), leaf.sharding)
    for name, leaf in replica.on_first_replica(abstract).items()
  }
  result = replica.broadcast(abstract, first)
  assert {name: int(x) for name, x in result.items()} == {
    str(i): i for i in range(5)
  }


def test_one_process_reads_all():
  sharding = NamedSharding(_mesh(2, 2, 2), P('data'))
  leaf = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=sharding)
  assert replica_broadcast.find({'w': leaf}) is None
