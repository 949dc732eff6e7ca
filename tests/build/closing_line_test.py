# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Tests of the line that ends `bazelw test`."""

from __future__ import annotations

import json

import pytest

from tools.bazel import closing_line


def _configured(label: str, kind: str, *tags: str) -> str:
  event = {
    'id': {'targetConfigured': {'label': label}},
    'configured': {'targetKind': kind, 'tag': list(tags)},
  }
  return json.dumps(event)


def _completed(label: str, success: bool) -> str:
  event = {
    'id': {'targetCompleted': {'label': label}},
    'completed': {'success': success} if success else {},
  }
  return json.dumps(event)


def _summary(label: str, status: str) -> str:
  event = {
    'id': {'testSummary': {'label': label}},
    'testSummary': {'overallStatus': status},
  }
  return json.dumps(event)


def test_counts_summaries():
  lines = [
    json.dumps({'id': {'started': {}}}),
    *(_summary(f'//:{s}', s) for s in ('PASSED', 'FLAKY', 'FAILED')),
    *(_summary(f'//:{s}', s) for s in ('TIMEOUT', 'INCOMPLETE')),
  ]
  assert (
    sorted(closing_line.outcomes(lines).values()) == [False] * 3 + [True] * 2
  )


def test_a_test_that_does_not_build_has_failed():
  lines = [
    _configured('//:t', 'py_test rule'),
    _configured('//:lib', 'py_library rule'),
    _completed('//:t', False),
    _completed('//:lib', False),
  ]
  assert closing_line.outcomes(lines) == {'//:t': False}


def test_a_test_that_cannot_be_analysed_has_failed():
  aborted = {
    'id': {'targetConfigured': {'label': '//:a_test'}},
    'aborted': {'reason': 'ANALYSIS_FAILURE'},
  }
  assert closing_line.outcomes([json.dumps(aborted)]) == {'//:a_test': False}


def test_an_interrupted_run_owes_its_summaries():
  event = {
    'id': {'testSummary': {'label': '//:t'}},
    'aborted': {'reason': 'USER_INTERRUPTED'},
  }
  assert closing_line.outcomes([json.dumps(event)]) == {'//:t': False}


@pytest.mark.parametrize(
  ('words', 'counts'),
  [
    (['--test_tag_filters=-nightly'], False),
    (['--test_tag_filters=-nightly', '--test_tag_filters='], True),
  ],
)
def test_nightly_tests_count_where_they_run(words, counts):
  options = {'id': {'optionsParsed': {}}, 'optionsParsed': {'cmdLine': words}}
  lines = [
    json.dumps(options),
    _configured('//:t', 'py_test rule', 'nightly'),
    _completed('//:t', False),
  ]
  assert closing_line.outcomes(lines) == ({'//:t': False} if counts else {})


@pytest.mark.parametrize('finished', [False, True])
def test_what_did_not_run_before_a_sudden_end_has_failed(finished):
  lines = [_configured('//:t', 'py_test rule'), _summary('//:u', 'PASSED')]
  lines += [json.dumps({'id': {'buildFinished': {}}})] * finished
  expected = {'//:u': True} if finished else {'//:t': False, '//:u': True}
  assert closing_line.outcomes(lines) == expected


def test_the_summary_has_the_last_word():
  lines = [
    _configured('//:t', 'py_test rule'),
    _completed('//:t', True),
    _summary('//:t', 'PASSED'),
  ]
  assert closing_line.outcomes(lines) == {'//:t': True}
