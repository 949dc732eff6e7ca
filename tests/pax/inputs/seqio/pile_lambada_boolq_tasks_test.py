# bazel: size=small
# SPDX-License-Identifier: Apache-2.0
"""Targets of LAMBADA, and messages for missing paths."""

from __future__ import annotations

import pytest

from pax.inputs.seqio import pile_lambada_boolq_tasks


@pytest.mark.parametrize(
  ('text', 'inputs', 'targets'),
  [
    ('he looked at his watch', 'he looked at his', ' watch'),
    ('“go,” said  Anne ', '"go," said', ' Anne'),
    ('it’s Anne’s', "it's", " Anne's"),
  ],
)
def test_last_word_is_the_target(text, inputs, targets):
  found = pile_lambada_boolq_tasks.last_word(text)
  assert found == {'inputs': inputs, 'targets': targets}


def test_says_what_to_export(monkeypatch):
  monkeypatch.delenv('VOCAB_PATH', raising=False)
  with pytest.raises(ValueError, match='export VOCAB_PATH=PATH'):
    pile_lambada_boolq_tasks.from_environment('VOCAB_PATH')
  monkeypatch.setenv('VOCAB_PATH', '/there')
  assert pile_lambada_boolq_tasks.from_environment('VOCAB_PATH') == '/there'
