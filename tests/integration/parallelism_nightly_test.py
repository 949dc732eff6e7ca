# SPDX-License-Identifier: Apache-2.0
"""Every way to spread a model, alone and together with others."""

# bazel: size=large
# bazel: tags=nightly
from __future__ import annotations

import pytest

from pax.tasks.lm.params import c4, nvidia
from tests.integration import parallelism

Case = parallelism.Case

_CIRCULAR = (('CIRCULAR_REPEAT', 2),)
_STREAMED = (('STREAM_IO', True),)
_BROADCAST = (('PIPELINE_BROADCAST_INPUTS', True),)
_DROPLESS = (('GATING_FUNC', 'dropless'),)
# A layer balances the tokens that it has: in a stage, those of a microbatch.
_DROPLESS_SEQUENCES = (*_DROPLESS, ('BALANCES_EACH_SEQUENCE', True))
_RING = (('CONTEXT_PARALLEL', 'ring'),)
_GATHERED = (('CONTEXT_PARALLEL', 'all_gather'),)
_COMPILER = (('CONTEXT_PARALLEL', 'compiler'),)
_VARIANTS = {
  'separate_embedding': (('SEPARATE_EMBEDDING', True),),
  'gated_separate_qkv': (
    ('USE_GATED_ACTIVATION', True),
    ('COMBINE_QKV', False),
  ),
  'rotary_trainable_positions': (
    ('USE_ROTARY_POSITION_EMB', True),
    ('TRAINABLE_POSITION_EMB', True),
    ('TRAINABLE_PE_MAX_SEQ_LEN', parallelism.LENGTH),
  ),
}
_CASES = {
  'pmap': Case(pmap=True),
  'data_fsdp': Case(replica=4, data=2),
  'data_tensor': Case(replica=2, mdl=4),
  'fsdp_tensor': Case(data=4, mdl=2),
  'slices_fsdp_tensor': Case(slices=2, data=2, mdl=2),
  'for_inference': Case(
    data=4, mdl=2, more=(('TRAINING_OPTIMIZED_SHARDING', False),)
  ),
  'expert': Case(expert=8),
  'expert_data': Case(replica=2, expert=4),
  'expert_fsdp': Case(data=4, expert=2),
  'expert_tensor': Case(expert=4, mdl=2),
  'dropless': Case(expert=8, model=_DROPLESS),
  'dropless_pipeline': Case(
    stages=2, expert=2, mdl=2, model=_DROPLESS_SEQUENCES
  ),
  'sequence': Case(seq=8, more=_COMPILER),
  'sequence_fsdp_tensor': Case(data=2, seq=2, mdl=2, more=_COMPILER),
  'ring': Case(seq=8, more=_RING),
  'ring_data': Case(replica=2, seq=4, more=_RING),
  'ring_fsdp_tensor': Case(data=2, seq=2, mdl=2, more=_RING),
  'ring_pipeline': Case(stages=2, seq=4, more=_RING),
  'ring_circular': Case(stages=2, seq=2, mdl=2, more=(*_RING, *_CIRCULAR)),
  'gathered': Case(seq=8, more=_GATHERED),
  'gathered_fsdp_tensor': Case(data=2, seq=2, mdl=2, more=_GATHERED),
  'gathered_pipeline': Case(stages=2, seq=2, mdl=2, more=_GATHERED),
  'pipeline': Case(stages=4),
  'pipeline_data': Case(stages=4, replica=2),
  'pipeline_tensor': Case(stages=2, mdl=4),
  'pipeline_data_fsdp_tensor': Case(stages=2, data=2, mdl=2),
  'pipeline_broadcast': Case(stages=2, data=2, mdl=2, more=_BROADCAST),
  'pipeline_slices': Case(stages=2, slices=2, mdl=2),
  'pipeline_expert': Case(stages=2, expert=2, mdl=2),
  'circular': Case(stages=2, more=_CIRCULAR),
  'circular_data': Case(stages=2, replica=4, more=_CIRCULAR),
  'circular_streamed': Case(
    stages=2, data=2, mdl=2, more=(*_CIRCULAR, *_STREAMED)
  ),
  'streamed': Case(stages=4, more=_STREAMED),
  'streamed_fsdp': Case(stages=4, data=2, more=_STREAMED),
}


@pytest.mark.parametrize('name', _CASES)
def test_it_learns_what_one_device_does(name):
  parallelism.check(_CASES[name])


# XLA's partitioner gets gradients wrong for some ways to split two weights on
# such a mesh (docs/known_issues.md); ours are not among them.
@pytest.mark.parametrize('name', _VARIANTS)
@pytest.mark.parametrize('optimized', [True, False])
def test_no_variant_meets_the_wrong_gradient(name, optimized):
  more = (('TRAINING_OPTIMIZED_SHARDING', optimized),)
  parallelism.check(
    Case(replica=2, data=2, mdl=2, model=_VARIANTS[name], more=more)
  )


@pytest.mark.parametrize('family', [c4.C4SpmdGpt3AdamOrgHP, nvidia.Llama2_7B])
def test_no_family_meets_the_wrong_gradient(family):
  sizes = (('NUM_KV_HEADS', 4),)
  parallelism.check(Case(replica=2, data=2, mdl=2, model=sizes, family=family))
