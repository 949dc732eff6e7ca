# SPDX-License-Identifier: Apache-2.0
"""Prints "N passed, N failed", counted from a Bazel build event JSON file."""

from __future__ import annotations

import json
import sys

PASSED = ('PASSED', 'FLAKY')
_FILTERS = '--test_tag_filters='


def outcomes(lines: list[str]) -> dict[str, bool]:
  """{test target: passed}.

  A test that could not be analysed or built, or that an end before its time
  left without a result, has failed.
  """
  tests, done, finished, filters = set(), {}, False, '-nightly'
  for event in map(json.loads, lines):
    label = next(iter(event['id'].values()), {}).get('label', '')
    if 'optionsParsed' in event['id']:
      words = event.get('optionsParsed', {}).get('cmdLine', [])
      given = [word for word in words if word.startswith(_FILTERS)]
      # The last one counts.
      filters = given[-1].removeprefix(_FILTERS) if given else filters
    elif 'targetConfigured' in event['id']:
      said = event.get('configured', {})
      if said.get('targetKind', '').endswith('_test rule'):
        if '-nightly' not in filters or 'nightly' not in said.get('tag', []):
          tests.add(label)
      elif 'aborted' in event and label.endswith('_test'):
        done[label] = False
    elif 'targetCompleted' in event['id'] and label in tests:
      if not event.get('completed', {}).get('success', False):
        done.setdefault(label, False)
    elif 'testSummary' in event['id']:
      # A summary that an interrupted run owes says only that it was aborted.
      status = event.get('testSummary', {}).get('overallStatus')
      done[label] = status in PASSED
    finished = finished or 'buildFinished' in event['id']
  return done if finished else dict.fromkeys(tests, False) | done


def main() -> None:
  with open(sys.argv[1], encoding='utf-8') as f:
    # A server that was killed leaves half a line.
    lines = [line for line in f if line.endswith('\n')]
  results = list(outcomes(lines).values())
  print(f'{results.count(True)} passed, {results.count(False)} failed')


if __name__ == '__main__':
  main()
