# SPDX-License-Identifier: Apache-2.0
# bazel: data=//tests/golden:all_files
# bazel: size=large
"""What experiments on C4 and those of growing sizes resolve to.

UPDATE_GOLDEN=1 pytest tests/golden    # accepts what it resolves to now
"""

from __future__ import annotations

import pytest

from pax.tasks.lm.params import c4, c4_multislice, optimal_scaling
from tests.golden import experiment_texts
from tests.testing import nightly


def _size(layers, model, vocab=32000):
  """Returns parameters without biases, norms and positions."""
  return vocab * model + layers * 12 * model**2


_GPT3 = _size(96, 12288, 51200)

_FAMILIES = {
  c4: {
    'LmCloudSpmdAdam': _size(2, 2048),
    'LmCloudSpmdAdamLimitSteps': _size(2, 2048),
    'C4SpmdAdam': _size(24, 2048, 32128),
    'C4SpmdPipelineAdam': _size(24, 2048, 32128),
    'C4Spmd1BAdam4Replicas': _size(13, 2560),
    'C4Spmd1BAdam4ReplicasLimitSteps': _size(13, 2560),
    'C4Spmd2BAdam4Replicas': _size(18, 3072),
    'C4Spmd16BAdam32Replicas': _size(36, 6144),
    'C4Spmd32BAdam64Replicas': _size(40, 8192),
    'C4SpmdGpt3L16AdamOrgHP': _size(16, 12288, 50257),
    'C4SpmdPipelineGpt3SmallAdam8Replicas': _size(24, 3072, 51200),
    'C4SpmdPipelineGpt3SmallAdam64Replicas': _size(24, 3072, 51200),
    'C4SpmdGpt3AdamOrgHPBS1p5k1536Replicas': _GPT3,
    'C4SpmdPipelineGpt3AdamOrgHPBS1p5k768Replicas': _GPT3,
    'C4SpmdPipelineGpt3AdamMLPerfHPBS1p5k768Replicas': _GPT3,
    'C4SpmdPipelineGpt3AdamMLPerfHPBS2k512Replicas': _GPT3,
    'C4SpmdPipelineGpt3AdamMLPerfHPBS3k768Replicas': _GPT3,
    'C4SpmdPipelineGpt3AdamMLPerfHPBS4k1024Replicas': _GPT3,
    'C4SpmdPipelineGpt3AdamMLPerfHPBS8k1024Replicas': _GPT3,
  },
  c4_multislice: {
    'C4Spmd22BAdamMaxText': _size(48, 6144, 32768),
    **{
      f'C4Spmd22BAdam{slices}xv4_128{limit}': _size(48, 6144, 32768)
      for limit in ('', 'LimitSteps')
      for slices in (1, 2, 4)
    },
    'C4Spmd22BAdam1xv4_384': _size(24, 9216, 32768),
    'C4Spmd22BAdam2xv4_384': _size(24, 9216, 32768),
    **{
      f'C4Spmd22BAdam{slices}xv4_8{limit}': _size(16, 2048, 32768)
      for limit in ('', 'LimitSteps')
      for slices in (1, 2, 4)
    },
    'C4Spmd32BAdam1xv5_256': _size(40, 8192, 32768),
    'C4Spmd32BAdam2xv5_256': _size(40, 8192, 32768),
    'C4SpmdGpt3AdamDataParallel2x16x16': _size(96, 12288, 50257),
  },
  optimal_scaling: {
    f'OptimalScaling{slice_shape}': _size(layers, layers * 128)
    for slice_shape, layers in {
      '2x2x1': 28,
      '2x2x2': 32,
      '2x2x4': 36,
      '2x4x4': 40,
      '4x4x4': 45,
      '4x4x8': 50,
      '4x8x8': 56,
      '4x8x16': 64,
      '4x16x16': 64,
      '4x16x32': 64,
      '4x24x32': 64,
    }.items()
  },
}


# Their many layers are traced one by one; the last ones of their module.
_NIGHTLY = tuple(
  f'C4SpmdPipelineGpt3AdamMLPerfHPBS{batch}Replicas'
  for batch in ('2k512', '3k768', '4k1024', '8k1024')
)
_TEXTS = {
  module: experiment_texts.Family(
    module.__name__.rpartition('.')[2],
    [getattr(module, name) for name in sizes],
  )
  for module, sizes in _FAMILIES.items()
}
_of_each = pytest.mark.parametrize(
  ('module', 'name'),
  [
    case
    for module, sizes in _FAMILIES.items()
    for case in nightly.marked(
      [(module, name) for name in sizes], [(c4, name) for name in _NIGHTLY]
    )
  ],
)


@pytest.mark.parametrize('module', _FAMILIES)
def test_these_are_all(module):
  assert experiment_texts.registered(module) == set(_FAMILIES[module])


@_of_each
def test_resolves_to_the_golden_text(module, name):
  assert _TEXTS[module].made(name) == _TEXTS[module].accepted(name)


@_of_each
def test_size_is_that_of_its_numbers(module, name):
  found = experiment_texts.resolve(getattr(module, name)).num_params
  biases_norms_and_positions = 0.02
  assert 1 <= found / _FAMILIES[module][name] < 1 + biases_norms_and_positions
