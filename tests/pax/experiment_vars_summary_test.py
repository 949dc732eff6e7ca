# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Constants of a class, written down and read again."""

from __future__ import annotations

import jax.numpy as jnp

from pax import experiment_vars_summary


class Base:
  LAYERS = 4
  NAME = 'a: b'
  DIGITS = '3'
  DTYPE = jnp.float32
  tuned = 0.5

  @property
  def size(self):
    return self.LAYERS

  def method(self):
    return self.tuned


class Child(Base):
  """Has one of its own, and one in place of another."""

  LAYERS = 8
  SHAPE = (1, 'x', None)


def test_each_constant_stands_under_the_class_it_comes_from():
  text = experiment_vars_summary.get_cls_vars_summary(Child)
  base, child = text.strip().split('\n\n')
  assert base.splitlines()[0] == f'{__name__}.Base:'
  assert '    tuned: 0.5' in base.splitlines()
  assert 'LAYERS' not in base and 'size' not in text and 'method' not in text
  assert child.splitlines() == [
    f'{__name__}.Child:',
    '    LAYERS: 8',
    "    SHAPE: (1, 'x', None)",
  ]


def test_parse_is_the_inverse():
  text = experiment_vars_summary.get_cls_vars_summary(Child)
  found = experiment_vars_summary.parse(text)
  assert str(found.pop('DTYPE')).endswith("float32'>")
  assert found == {
    'LAYERS': 8,
    'SHAPE': (1, 'x', None),
    'NAME': 'a: b',
    'DIGITS': '3',
    'tuned': 0.5,
  }


def test_text_of_upstream_has_bare_strings():
  text = 'paxml.X:\n    STR_VAR: B\n    INT_VAR: 0\nno colon here\n'
  found = experiment_vars_summary.parse(text)
  assert found == {'STR_VAR': 'B', 'INT_VAR': 0}
