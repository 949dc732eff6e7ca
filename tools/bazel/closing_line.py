# SPDX-License-Identifier: Apache-2.0
"""Prints "N passed, N failed", counted from a Bazel build event JSON file."""

from __future__ import annotations

import json
import sys

PASSED = ('PASSED', 'FLAKY')


def outcomes(lines: list[str]) -> dict[str, bool]:
  """{test target: passed}; a test that could not be built has failed."""
  tests, done = set(), {}
  for event in map(json.loads, lines):
    label = next(iter(event['id'].values()), {}).get('label', '')
    if 'targetConfigured' in event['id']:
      kind = event.get('configured', {}).get('targetKind', '')
      if kind.endswith('_test rule'):
        tests.add(label)
    elif 'targetCompleted' in event['id'] and label in tests:
      if not event.get('completed', {}).get('success', False):
        done.setdefault(label, False)
    elif 'testSummary' in event['id']:
      done[label] = event['testSummary']['overallStatus'] in PASSED
  return done


def main() -> None:
  with open(sys.argv[1], encoding='utf-8') as f:
    results = list(outcomes(f.readlines()).values())
  print(f'{results.count(True)} passed, {results.count(False)} failed')


if __name__ == '__main__':
  main()
