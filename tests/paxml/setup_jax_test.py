# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The arguments of setup_jax become options of the runner."""

from __future__ import annotations

import jax
import pytest

from pax.runner import distributed
from paxml import setup_jax


@pytest.fixture
def options(monkeypatch):
  """What would be set up."""
  found = []
  monkeypatch.setattr(distributed, 'initialize', found.append)
  return found


def test_the_arguments_are_the_flags(options):
  setup_jax.setup_jax(True, None, None, True, 'off')
  (found,) = options
  assert found.globally_use_hardware_rng and found.jax_enable_checks
  assert found.jax_traceback_filtering_option == 'off'
  assert not found.multiprocess_gpu


def test_joins_other_processes(options, monkeypatch):
  joined = []
  monkeypatch.setattr(jax.distributed, 'initialize', lambda: joined.append(1))
  others = setup_jax.JaxDistributedOptions('host:1', 2, 1)
  setup_jax.setup_jax(
    False,
    None,
    None,
    False,
    should_initialize_jax_distributed=True,
    jax_distributed_options=others,
  )
  (found,) = options
  assert found.multiprocess_gpu and found.server_addr == 'host:1'
  assert (found.num_hosts, found.host_idx) == (2, 1)


@pytest.mark.parametrize('where', [1, 2])
def test_what_jax_has_given_up(options, where):
  arguments = [False, None, None, False]
  arguments[where] = 'x'
  with pytest.raises(ValueError, match='must be None, got .x.: JAX removed'):
    setup_jax.setup_jax(*arguments)
  assert not options
