# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Names of policies and references in checkpoints."""

from __future__ import annotations

import re

import pytest

from pax.checkpoints import policy_networks


@pytest.mark.parametrize(
  ('leaf', 'sources'),
  [
    ('mdl_vars.params.lm.a.w', ['lm', 'mdl']),
    ('mdl_vars.params.ref_lm.a.w', ['lm', 'mdl']),
    ('mdl_vars.params.mdl.a.w', ['mdl', 'lm']),
    ('mdl_vars.params.ref_mdl.a.w', ['mdl', 'lm']),
    ('mdl_vars.params.teacher_lm.a.w', ['teacher_lm']),
  ],
)
def test_a_network_begins_with_a_policy(leaf, sources):
  assert policy_networks.source_leaves(leaf) == [
    f'mdl_vars.params.{name}.a.w' for name in sources
  ]
  is_frozen = '.ref_' in leaf or '.teacher_' in leaf
  assert policy_networks.is_frozen(leaf) == is_frozen
  path = leaf.replace('.', '/')
  pattern = policy_networks.FROZEN_VARIABLES
  assert bool(re.fullmatch(pattern, path)) == is_frozen


def test_an_evaluation_has_the_reference_of_the_checkpoint():
  leaves = [f'mdl_vars.params.{x}.w' for x in ('ref_mdl', 'mdl', 'lm')]
  reference, policy, network = leaves
  names = policy_networks.source_leaves(reference, is_trained=False)
  assert names == leaves
  names = policy_networks.source_leaves(policy, is_trained=False)
  assert names == [policy, network]


@pytest.mark.parametrize(
  'leaf',
  ['mdl_vars.params.model.w', 'mdl_vars.params.lmx.w', 'step', 'opt.lm.w'],
)
def test_other_leaves_have_one_name(leaf):
  assert policy_networks.source_leaves(leaf) == [leaf]
  assert not policy_networks.is_frozen(leaf)


def test_the_policy_of_a_checkpoint():
  names = ['mdl_vars.params.mdl.w', 'mdl_vars.params.ref_mdl.w']
  assert policy_networks.policy_of(names) == 'mdl'
  names = ['mdl_vars.params.lm.w', 'mdl_vars.params.teacher_lm.w']
  assert policy_networks.policy_of(names) == 'lm'
  assert policy_networks.policy_of(['mdl_vars.params.lm.w']) == 'lm'
  assert policy_networks.policy_of(['mdl_vars.params.softmax.w']) == 'lm'


def test_the_updates_of_a_reference_begin_with_those_of_a_policy():
  factor = 'mdl_vars.params.lm.a.ref_lora_a'
  policies = [f'mdl_vars.params.{x}.a.lora_a' for x in ('lm', 'mdl')]
  assert policy_networks.is_frozen(factor)
  assert policy_networks.source_leaves(factor) == policies
  names = policy_networks.source_leaves(factor, is_trained=False)
  assert names == [factor, *policies]
  of_expert = 'mdl_vars.params.mdl.a.ref_wi_0_lora_b'
  assert policy_networks.source_leaves(of_expert) == [
    f'mdl_vars.params.{x}.a.wi_0_lora_b' for x in ('mdl', 'lm')
  ]
  assert not policy_networks.is_frozen(policies[0])
