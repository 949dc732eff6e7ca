# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""What the CUDA compiler is told of GPUs that are not here."""

from __future__ import annotations

import pytest

from pax.aot import gpus, memory
from pax.summaries import chips


@pytest.fixture(autouse=True)
def plugin(monkeypatch):
  """Whether the compiler is here."""
  monkeypatch.setattr(gpus, '_has_plugin', lambda: True)


def test_what_is_told_of_an_h100():
  lines = gpus.describe(chips.find('NVIDIA H100')).split('\n')
  told = dict(
    one.strip().split(': ') for one in lines if '{' not in one and ':' in one
  )
  assert told['platform_name'] == '"CUDA"'
  assert told['device_description_str'] == '"NVIDIA H100"'
  # As `nvidia-smi` and CUDA's deviceQuery list the board.
  assert told['major'] == '9' and told['core_count'] == '132'
  assert told['shared_memory_per_core'] == '233472'
  assert told['shared_memory_per_block_optin'] == '232448'
  assert told['l2_cache_size'] == '52428800'
  # As the table of chips has them.
  assert told['device_memory_size'] == '80000000000'
  assert told['memory_bandwidth'] == '3350000000000'


def test_braces_close():
  for kind in ('A100', 'H200', 'B200'):
    text = gpus.describe(chips.find(kind))
    assert text.count('{') == text.count('}') == 4


def test_code_for_one_gpu_alone_is_of_those_from_hopper_on():
  assert 'ACCELERATED' in gpus.describe(chips.find('H100'))
  assert 'ACCELERATED' not in gpus.describe(chips.find('A100'))


def test_where_the_compiler_is():
  assert gpus.missing_compiler(chips.find('H100')) is None


def test_where_the_compiler_is_not(monkeypatch):
  monkeypatch.setattr(gpus, '_has_plugin', lambda: False)
  told = gpus.missing_compiler(chips.find('H100'))
  assert '--config=cuda' in told and 'jax[cuda13]==' in told


def test_a_gpu_that_the_compiler_cannot_be_told():
  told = gpus.missing_compiler(chips.find('V100'))
  assert 'a100' in told and 'not what v100 is' in told


def test_devices_are_asked_for_by_host(monkeypatch):
  asked = {}

  class Described:
    devices = ()

  def describe(**options):
    asked.update(options)
    return Described

  monkeypatch.setattr(gpus.topologies, 'get_topology_desc', describe)
  gpus.devices(chips.find('H100'), hosts=16, per_host=8)
  assert asked['topology'] == '1x16x8' and asked['platform'] == 'cuda'


def held(total, gaps=0.0):
  return memory.Memory(
    parameters=total - 10, other_variables=0, optimizer=0, batch=0,
    temporaries=10.0, capacity=100.0, gaps=gaps,
  )  # fmt: skip


def test_gaps_count():
  found = gpus.as_allocated(held(60.0, gaps=5.0))
  assert found.temporaries == 15 and found.total == 65 and found.gaps == 0


def test_what_jax_sets_aside_is_told_where_it_is_too_little():
  (told,) = gpus.warnings(held(90.0))
  assert 'takes 90%' in told and 'MEM_FRACTION' in told
  # Enough, and what does not fit at all.
  assert not [*gpus.warnings(held(75.0)), *gpus.warnings(held(101.0))]
