# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Equality of Configs: values, defaults and what fields share."""

from __future__ import annotations

from typing import Any

import fiddle as fdl
import pytest

from praxis import base_hyperparams, nested_map, pax_fiddle

Config = pax_fiddle.Config


class Box(base_hyperparams.FiddleBaseParameterizable):
  width: int = 16
  left: Any = None
  right: Any = None


class OtherBox(Box):
  pass


def _of_two(left: Any, right: Any) -> Config[Box]:
  return Config(Box, left=left, right=right)


@pytest.mark.parametrize(
  ('x', 'y'),
  [
    (Config(Box), Config(Box, width=16)),
    (
      _of_two([1, (2, Config(Box))], None),
      _of_two([1, (2, Config(Box))], None),
    ),
    (
      Config(Box, left={'a': Config(Box), 'b': 1}),
      Config(Box, left={'b': 1, 'a': Config(Box, width=16)}),
    ),
    (
      Config(Box, left=nested_map.NestedMap(a=Config(Box))),
      Config(Box, left=nested_map.NestedMap(a=Config(Box))),
    ),
  ],
)
def test_equal_values_and_defaults_are_equal(x: Any, y: Any):
  assert x == y and y == x
  assert not x != y


@pytest.mark.parametrize(
  ('x', 'y'),
  [
    (Config(Box), Config(Box, width=17)),
    (Config(Box), Config(OtherBox)),
    (Config(Box), pax_fiddle.Partial(Box)),
    (Config(Box), fdl.Config(Box)),
    (Config(Box), None),
    (Config(Box, left=[1]), Config(Box, left=[1, 2])),
    (Config(Box, left=[1]), Config(Box, left=(1,))),
    (Config(Box, left={'a': 1}), Config(Box, left={'b': 1})),
    (
      Config(Box, left=[Config(Box, width=1)]),
      Config(Box, left=[Config(Box, width=2)]),
    ),
  ],
)
def test_other_values_are_unequal(x: Any, y: Any):
  assert x != y and y != x


@pytest.mark.parametrize('make', [lambda: Config(Box), lambda: [1, 2]])
def test_what_two_fields_share_matters(make: Any):
  shared, other = make(), make()
  assert _of_two(shared, shared) == _of_two(other, other)
  assert _of_two(shared, shared) != _of_two(make(), make())
  assert _of_two(make(), make()) != _of_two(shared, shared)
  # Both have the same object, one of them twice.
  assert _of_two(shared, shared) != _of_two(shared, other)


def test_deep_configs_are_compared_in_linear_time():
  def nested(depth: int) -> Config[Box]:
    return Config(Box, left=nested(depth - 1) if depth else None)

  # Fiddle's comparison would take 2^60 steps.
  assert nested(60) == nested(60)
  assert nested(60) != nested(59)
