# SPDX-License-Identifier: Apache-2.0
"""However a model is spread, its loss and gradients are those of one device."""

# bazel: size=large
from __future__ import annotations

import collections
import math

import jax
import pytest

from praxis import base_layer
from tests.integration import parallelism
from tests.testing import collectives, nightly

_DIMS = 32
Case = parallelism.Case

_CASES = {
  'data': Case(replica=8),
  'fsdp': Case(data=8),
  'tensor': Case(mdl=8),
  'data_fsdp_tensor': Case(replica=2, data=2, mdl=2),
  # A device has 64 rows and 64 columns, with which XLA would exchange rows.
  'few_rows': Case(replica=2, data=2, mdl=2, model=(('MODEL_DIMS', 128),)),
  'few_rows_expert': Case(
    replica=2, expert=2, mdl=2, model=(('MODEL_DIMS', 128),)
  ),
  'expert_fsdp_tensor': Case(data=2, expert=2, mdl=2),
  'dropless_fsdp_tensor': Case(
    data=2, expert=2, mdl=2, model=(('GATING_FUNC', 'dropless'),)
  ),
  'pipeline_fsdp': Case(stages=4, data=2),
  'circular_fsdp_tensor': Case(
    stages=2, data=2, mdl=2, more=(('CIRCULAR_REPEAT', 2),)
  ),
  'sequence': Case(seq=8, more=(('CONTEXT_PARALLEL', 'compiler'),)),
  'ring_fsdp_tensor': Case(
    data=2, seq=2, mdl=2, more=(('CONTEXT_PARALLEL', 'ring'),)
  ),
  'gathered_data': Case(
    replica=2, seq=4, more=(('CONTEXT_PARALLEL', 'all_gather'),)
  ),
  'ring_pipeline_tensor': Case(
    stages=2, seq=2, mdl=2, more=(('CONTEXT_PARALLEL', 'ring'),)
  ),
  # Stages of one layer, which have no loop of their own.
  'ring_stages': Case(stages=4, seq=2, more=(('CONTEXT_PARALLEL', 'ring'),)),
  'uneven': Case(
    data=2, mdl=4, model=(('VOCAB_SIZE', 97), ('HIDDEN_DIMS', 62))
  ),
  'streamed_tensor': Case(stages=4, mdl=2, more=(('STREAM_IO', True),)),
  # Modules of multi-token prediction.
  'mtp_expert_fsdp_tensor': Case(
    data=2, expert=2, mdl=2, model=(('NUM_MTP_MODULES', 2),)
  ),
  'mtp_pipeline_fsdp': Case(stages=4, data=2, model=(('NUM_MTP_MODULES', 1),)),
  'mtp_ring_fsdp_tensor': Case(
    data=2,
    seq=2,
    mdl=2,
    model=(('NUM_MTP_MODULES', 2),),
    more=(('CONTEXT_PARALLEL', 'ring'),),
  ),
}


# Each axis alone, and what differs from another case by one axis.
_NIGHTLY = (
  'data',
  'fsdp',
  'tensor',
  'few_rows',
  'few_rows_expert',
  'pipeline_fsdp',
  'ring_fsdp_tensor',
  'ring_pipeline_tensor',
  'dropless_fsdp_tensor',
  'gathered_data',
  'streamed_tensor',
  'uneven',
  'mtp_expert_fsdp_tensor',
  'mtp_pipeline_fsdp',
  'mtp_ring_fsdp_tensor',
)


@pytest.mark.parametrize('name', nightly.marked(_CASES, _NIGHTLY))
def test_it_learns_what_one_device_does(name):
  parallelism.check(_CASES[name])


def _stepped(name):
  """Returns the sizes of the model, and what a step sends."""
  stepped = parallelism.check(_CASES[name])
  weights = stepped.partitioner.var_weight_hparams[base_layer.PARAMS]
  shapes = [tuple(w.full_shape) for w in jax.tree.leaves(weights)]
  return shapes, collectives.find_collectives(stepped.text)


def test_data_parallel_only_adds_up_gradients():
  shapes, sent = _stepped('data')
  assert collectives.kinds(sent) == {'all-reduce'}
  # The table of tokens is used twice, and both gradients are added up.
  size = sum(map(math.prod, shapes))
  twice = size + parallelism.VOCAB * _DIMS
  assert size < collectives.total_elements(sent, 'all-reduce') < twice + 100


def test_fsdp_gathers_one_layer_at_a_time():
  shapes, sent = _stepped('fsdp')
  gathered = [c for c in sent if c.kind == 'all-gather']
  of_layers = {shape[1:] for shape in shapes if len(shape) > 2}
  for found in gathered:
    for shape in found.shapes:
      # Never a weight of all layers at once.
      assert shape[0] != parallelism.LAYERS
      if shape in of_layers:
        assert found.count == parallelism.LAYERS
  # Once in the forward pass and once in the backward pass.
  matrices = sum(math.prod(shape) for shape in shapes if len(shape) > 2)
  table = parallelism.VOCAB * _DIMS
  sizes = collectives.total_elements(sent, 'all-gather')
  assert 2 * matrices < sizes < 2 * matrices + 2 * table
  size = sum(map(math.prod, shapes))
  assert (
    size - table <= collectives.total_elements(sent, 'all-reduce') < size + 100
  )


def test_tensor_parallel_sends_activations_only():
  shapes, sent = _stepped('tensor')
  assert 'collective-permute' not in collectives.kinds(sent)
  activation = (parallelism.ROWS, parallelism.LENGTH, _DIMS)
  matrices = {shape for shape in shapes if len(shape) > 2}
  matrices |= {shape[1:] for shape in matrices}
  moved = collections.Counter()
  for found in sent:
    assert not matrices & set(found.shapes)
    moved[found.kind] += found.count * found.shapes.count(activation)
  # Attention and feed-forward take in whole activations, and add up what comes
  # out: in the forward pass, once more in the backward pass, and to its
  # gradient. Before and after the layers there is one of each.
  most = 6 * parallelism.LAYERS + 2
  assert 0 < moved['all-gather'] <= most
  assert 0 < moved['all-reduce'] <= most


def test_stages_pass_on_microbatches():
  shapes, sent = _stepped('pipeline_fsdp')
  assert 'collective-permute' in collectives.kinds(sent)
  weights = {shape for shape in shapes if len(shape) > 2}
  assert not any(weights & set(found.shapes) for found in sent)


def test_stages_shard_the_arguments_of_their_microbatches(capfd):
  """XLA replicates none of them to change its sharding."""
  case = Case(stages=2, data=2, mdl=2)
  made, _, _ = parallelism.prepare(case)
  made.train_step().lower().compile({'xla_backend_optimization_level': 0})
  assert 'rematerialization' not in capfd.readouterr().err
