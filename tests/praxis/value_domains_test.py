# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Domains of values: membership, the text of a message, the example."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from praxis import value_domains

interval = value_domains.interval


@pytest.mark.parametrize(
  ('domain', 'valid', 'invalid', 'text'),
  [
    (
      interval(ge=1),
      [1, 10**400, np.int64(3), 1e3],
      [0, -1, 1.5, True, '1', None, float('nan'), float('inf')],
      'an integer at least 1',
    ),
    (interval(ge=1, le=3), [1, 3], [0, 4], 'an integer from 1 to 3'),
    (
      interval(gt=0.0),
      [1, 0.5, np.float32(2)],
      [0, -1.0, float('inf'), float('nan'), 1j],
      'a finite number above 0',
    ),
    (
      interval(ge=0.0, lt=1.0),
      [0, 0.99],
      [1.0, -0.1],
      'a finite number at least 0 and below 1',
    ),
    (
      value_domains.OneOf(('a', 'b')), ['a'], ['c', None], 'one of a, b',
    ),
    (
      value_domains.Matching(r'\d+h', 'hours', '2h'),
      ['3h'],
      ['3', '3h\n', 3],
      'hours',
    ),
    (
      value_domains.OrNone(interval(ge=1)),
      [None, 1],
      [0],
      'an integer at least 1, or None',
    ),
    (
      value_domains.SequenceOf(interval(ge=1), 'sizes'),
      [[1, 2], (3,), []],
      [[0], [1.5], '11', 1],
      'sizes',
    ),
  ],
)  # fmt: skip
def test_membership_and_text(domain, valid, invalid, text):
  assert all(map(domain.contains, valid))
  assert not any(map(domain.contains, invalid))
  assert domain.text == text


def test_an_example_is_valid():
  port = interval(ge=1, le=65535)
  assert port.example(10**9) == 65535
  assert port.example(-1) == port.example('x') == 1
  assert interval(le=3).example(4) == 3
  assert value_domains.OneOf(('a',)).example('b') is None
  assert value_domains.Matching('x+', 'xs', 'x').example('y') == 'x'


def test_none_is_valid_where_the_type_or_the_default_says_so():
  @dataclasses.dataclass
  class Settings:
    first: int = value_domains.field(5, ge=1)
    second: int | None = value_domains.field(5, ge=1)
    third: float = value_domains.field(1.0, ge=0)
    fourth: int = 3

  fields = {f.name: f for f, _ in value_domains.domains_of(Settings)}
  assert list(fields) == ['first', 'second', 'third']
  assert not value_domains.is_valid(fields['first'], None)
  assert value_domains.is_valid(fields['second'], None)
  assert value_domains.is_valid(fields['third'], 0.5)
  assert not value_domains.is_valid(fields['first'], 1.5)
  assert Settings().second == 5
