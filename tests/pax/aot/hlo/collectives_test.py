# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Collectives of compiled programs on 2 x 4 devices, bytes by hand."""

from __future__ import annotations

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pax.aot.hlo import collectives, hlo_parser
from tests.pax.aot.hlo import hlo_texts

ROWS, DIM = 16, 32


@functools.cache
def mesh():
  return Mesh(np.asarray(jax.devices()[:8]).reshape(2, 4), ('data', 'mdl'))


def find(fn, *arguments, dcn_shape=None):
  """Collectives of `fn` of arrays with these (shape, spec)."""
  shapes = [
    jax.ShapeDtypeStruct(s, jnp.float32, sharding=NamedSharding(mesh(), spec))
    for s, spec in arguments
  ]
  text = jax.jit(fn).lower(*shapes).compile().as_text()
  topology = collectives.MeshTopology.from_mesh(mesh(), dcn_shape, ())
  return collectives.find_collectives(hlo_parser.parse(text), topology)


def replicate(x):
  return jax.lax.with_sharding_constraint(x, NamedSharding(mesh(), P()))


def test_a_sum_over_split_rows_is_reduced_along_their_axis():
  (collective,) = find(
    lambda x: replicate(x.sum(0)), ((ROWS, DIM), P('data', None))
  )
  assert (collective.kind, collective.axes, collective.count) == (
    'all-reduce',
    ('data',),
    1,
  )
  # Two devices: each sends half of DIM floats twice.
  assert collective.ici_bytes == 2 * DIM * 4 / 2 and collective.dcn_bytes == 0


def test_a_split_array_is_gathered():
  (collective,) = find(replicate, ((ROWS, DIM), P(None, 'mdl')))
  assert (collective.kind, collective.axes) == ('all-gather', ('mdl',))
  assert collective.ici_bytes == 3 * (ROWS * DIM / 4) * 4
  assert collective.result_elements == ROWS * DIM


def test_loops_count_as_often_as_they_run():
  def body(carry, w):
    carry = jnp.tanh(carry @ w)
    return jax.lax.with_sharding_constraint(
      carry, NamedSharding(mesh(), P('data', None))
    ), None

  fn = lambda x, ws: jax.lax.scan(body, x, ws)[0]
  sent = find(
    fn, ((ROWS, DIM), P('data', None)), ((6, DIM, DIM), P(None, 'mdl', None))
  )
  count = sum(c.count for c in sent if c.axes == ('mdl',))
  total = sum(c.count * c.ici_bytes for c in sent)
  assert count == 6
  # The compiler gathers the weights or reduces the products, in each iteration.
  expected = {
    'all-gather': 3 * (DIM * DIM / 4) * 4,
    'all-reduce': 2 * (ROWS / 2 * DIM) * 4 * 3 / 4,
  }
  assert total == 6 * expected[sent[0].kind]


def test_what_crosses_slices_is_told_apart():
  # Slices are along data, the devices of a slice along mdl.
  both = ((ROWS, DIM), P(('data', 'mdl'), None))
  (collective,) = find(lambda x: replicate(x.sum(0)), both, dcn_shape=(2, 1))
  assert collective.axes == ('data', 'mdl')
  size = DIM * 4
  assert collective.ici_bytes == 2 * size * 3 / 4
  assert collective.dcn_bytes == 2 * size / 4 * 1 / 2


def test_sums_by_kind_and_axes():
  (collective,) = find(replicate, ((ROWS, DIM), P(None, 'mdl')))
  (total,) = collectives.totals([collective, collective])
  assert total == collectives.CollectiveTotal(
    kind='all-gather',
    axes=('mdl',),
    count=2,
    ici_bytes=2 * collective.ici_bytes,
    dcn_bytes=0.0,
  )


@pytest.mark.parametrize(
  ('kind', 'sent'),
  [
    ('all-gather', (4.0 * 2 * 3, 4.0 * 1)),
    ('reduce-scatter', (4.0 * 3 / 4, 1.0 / 2)),
    ('all-to-all', (4.0 * 3 / 8, 4.0 / 2)),
    ('ragged-all-to-all', (4.0 * 3 / 8, 4.0 / 2)),
    ('collective-permute', (0.0, 4.0)),
  ],
)
def test_bytes_of_two_slices_of_four(kind, sent):
  assert collectives._sent_bytes(kind, 4.0, 4, 2) == sent


def test_hosts_send_between_slices():
  program = """\
ENTRY %main (x: bf16[8,16]) -> bf16[8,16] {
  %x = bf16[8,16]{1,0} parameter(0)
  %t = token[] after-all()
  %s = (bf16[8,16]{1,0}, u32[], token[]) send(%x, %t), is_host_transfer=true, \
frontend_attributes={_xla_megascale_target="{1,2}x{0:63}",\
_xla_megascale_transfer_type="ALL_REDUCE"}
  ROOT %r = bf16[8,16]{1,0} copy(%x)
}
"""
  topology = collectives.MeshTopology(
    ('replica', 'data'), (2, 4), (2, 1), None, ()
  )
  (collective,) = collectives.find_collectives(
    hlo_parser.parse(program), topology
  )
  assert (collective.kind, collective.axes, collective.ici_bytes) == (
    'all-reduce',
    ('replica',),
    0,
  )
  # Two slices: each device's share is reduced, then its sum is gathered.
  assert collective.dcn_bytes == 2 * (8 * 16 * 2) / 2


def test_rows_of_experts_pass_other_devices():
  # 64 rows of 16 numbers of two bytes, of which balanced experts have a half.
  program = """\
ENTRY %main (x: bf16[64,16], n: s32[8]) -> bf16[32,16] {
  %x = bf16[64,16]{1,0} parameter(0)
  %n = s32[8]{0} parameter(1)
  %z = bf16[32,16]{1,0} broadcast(), dimensions={}
  ROOT %r = bf16[32,16]{1,0} ragged-all-to-all(%x, %z, %n, %n, %n, %n), \
channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, \
metadata={op_name="jit(f)/routed_rows_1_of_2/ragged_all_to_all"}
}
"""
  coords = np.array([(x, y, 0) for y in range(2) for x in range(4)])
  topology = collectives.MeshTopology(
    ('data', 'expert'), (2, 4), (1, 1), coords, (4, 2, 1)
  )
  (found,) = collectives.find_collectives(hlo_parser.parse(program), topology)
  assert (found.kind, found.axes) == ('ragged-all-to-all', ('expert',))
  # Three of four quarters leave; the three others of a ring are 1, 2, 1 links
  # away.
  assert found.ici_bytes == pytest.approx(64 * 16 * 2 / 2 * 3 / 4 * 4 / 3)
  line = collectives.MeshTopology(('a',), (8,), (1,), coords, (5, 2, 1))
  # Without a wraparound the six pairs are 1, 2, 3, 1, 2 and 1 links apart.
  assert collectives._mean_distance(np.arange(4), line) == pytest.approx(10 / 6)


def test_a_torus_closes_in_blocks_of_four():
  coords = np.array(
    [[x, y, z] for x in range(4) for y in range(2) for z in (0,)]
  )
  topology = collectives.MeshTopology(('a',), (8,), (1,), coords, (4, 2, 1))
  along_x = np.array([0, 2, 4, 6])
  assert collectives._torus_extent(along_x, topology) == (1, True)
  assert collectives._torus_extent(np.arange(8), topology) == (2, False)


def test_gpus_start_and_await_collectives_across_hosts():
  program = """\
ENTRY %main (x: bf16[8,16]) -> bf16[8,16] {
  %x = bf16[8,16]{1,0} parameter(0)
  %s = ((bf16[8,16]{1,0}), bf16[1,16]{1,0}) reduce-scatter-start(%x), \
replica_groups=mesh['axis_0'=8] {'axis_0'}, dimensions={0}, \
backend_config={"collective_backend_config":{"is_sync":false}}
  %d = bf16[1,16]{1,0} reduce-scatter-done(%s)
  %a = bf16[8,16]{1,0} all-reduce-start(%x), \
replica_groups={{0,1,2,3},{4,5,6,7}}, \
backend_config={"collective_backend_config":{"is_sync":true}}
  ROOT %r = bf16[8,16]{1,0} all-reduce-done(%a)
}
"""
  hosts = np.arange(8) // 4
  topology = collectives.MeshTopology(('data',), (8,), (1,), None, (), hosts)
  split, summed = collectives.find_collectives(
    hlo_parser.parse(program), topology
  )
  size = 8 * 16 * 2
  assert (split.kind, split.is_async) == ('reduce-scatter', True)
  assert split.ici_bytes == size * 3 / 4
  assert split.dcn_bytes == size / 4 / 2
  # Nothing is scheduled between start and done of the all-reduce.
  assert (summed.kind, summed.is_async) == ('all-reduce', False)
  assert summed.ici_bytes == 2 * size * 3 / 4 and summed.dcn_bytes == 0


def test_a_collective_in_several_fusions_counts_once():
  module = hlo_parser.parse(hlo_texts.FUSED_ALL_GATHER)
  topology = collectives.MeshTopology(('data',), (4,), (1,), None, ())
  (gather,) = collectives.find_collectives(module, topology)
  assert (gather.kind, gather.count, gather.is_async) == ('all-gather', 5, True)
  assert gather.ici_bytes == 3 * (2 * 8 * 2)


def test_sparse_cores_run_collectives_beside_kernels():
  module = hlo_parser.parse(hlo_texts.OFFLOADED_REDUCE_SCATTER)
  topology = collectives.MeshTopology(('data',), (4,), (1,), None, ())
  (scatter,) = collectives.find_collectives(module, topology)
  assert (scatter.kind, scatter.count) == ('reduce-scatter', 1)
  assert scatter.is_async and scatter.ici_bytes == 3 * (2 * 8 * 2)


def test_collectives_may_share_the_channel_of_those_in_fusions():
  # Within `jax.shard_map` all have the channel 1.
  entry = '%zero = s32[] constant(0)'
  others = ''.join(
    f'  %{name} = bf16[2,8]{{1,0}} {kind}(%a), channel_id=7,'
    ' replica_groups={{0,1,2,3}}, to_apply=%check\n'
    for name, kind in (('sum', 'all-reduce'), ('sent', 'all-to-all'))
  )
  # One of the same shape as that in fusions.
  others += (
    '  %again = bf16[8,8]{1,0} all-gather(%a), channel_id=7,'
    ' replica_groups={{0,1,2,3}}, dimensions={0}\n  '
  )
  module = hlo_parser.parse(
    hlo_texts.FUSED_ALL_GATHER.replace(entry, others.lstrip() + entry)
  )
  topology = collectives.MeshTopology(('data',), (4,), (1,), None, ())
  found = collectives.find_collectives(module, topology)
  assert [(c.kind, c.count) for c in found] == [
    *(('all-reduce', 1), ('all-to-all', 1), ('all-gather', 1)),
    ('all-gather', 5),
  ]


def test_devices_of_a_flat_torus_have_a_third_coordinate():
  devices = np.array(
    [
      types.SimpleNamespace(platform='tpu', coords=(x, y, 0), process_index=0)
      for x in range(2)
      for y in range(4)
    ]
  )
  flat = types.SimpleNamespace(devices=devices, axis_names=('data',))
  topology = collectives.MeshTopology.from_mesh(flat, None, (2, 4))
  # Three devices in each direction of a line of four, one link across.
  line = np.arange(4)
  assert collectives._mean_distance(line, topology) == pytest.approx(10 / 6)
  assert collectives._mean_distance(np.array([0, 4]), topology) == 1
