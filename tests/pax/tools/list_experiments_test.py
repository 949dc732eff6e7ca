# SPDX-License-Identifier: Apache-2.0
# bazel: data=//tests/golden:all_files
# bazel: deps=//pax/contrib:experiments,//pax/tasks:experiments
"""Experiments are listed with the parameter counts of their golden files."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from pax.tools import list_experiments

_GOLDEN = pathlib.Path(__file__).parents[2] / 'golden' / 'experiments'
_TITLE = re.compile(r'^=== (\w+)(?:, which is (\w+) but for)?$')
_COUNT = re.compile(r'^(?:~ )?parameters : (\d+)$')


def golden_counts() -> dict[str, int]:
  """The parameter count of each experiment that has a golden text."""
  counts: dict[str, int] = {}
  for path in _GOLDEN.glob('*.txt'):
    name = ''
    for line in path.read_text().splitlines():
      if title := _TITLE.match(line):
        name, base = title.groups()
        if base:
          counts[name] = counts[base]
      elif count := _COUNT.match(line):
        counts[name] = int(count[1])
  return counts


# Parts of the names of experiments whose models have few layers of their own.
_QUICK = ('c4_multislice', 'lm_cloud', 'optimal_scaling', 'vision')


def test_counts_are_those_of_the_golden_files(capsys):
  _check_counts(capsys, _QUICK, 40)


@pytest.mark.nightly
def test_all_counts_are_those_of_the_golden_files(capsys):
  _check_counts(capsys, (), 90)


def _check_counts(capsys, parts, at_least):
  assert list_experiments.main(['list_experiments', *parts, '--json']) == 0
  rows = map(json.loads, capsys.readouterr().out.splitlines())
  listed = {row['name'].rpartition('.')[2]: row for row in rows}
  # Some experiments with a golden text are not registered.
  golden = {n: count for n, count in golden_counts().items() if n in listed}
  assert len(golden) > at_least
  assert {name: listed[name]['parameters'] for name in golden} == golden
  failed = [name for name, row in listed.items() if row['parameters'] is None]
  assert not failed, {name: listed[name]['note'] for name in failed}
