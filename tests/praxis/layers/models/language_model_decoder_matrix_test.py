# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
"""Decoding checks for every kind of transformer stack."""

from __future__ import annotations

import pytest

from tests.praxis.layers.models import decoding, serving


@pytest.mark.parametrize('at_once', [True, False])
@pytest.mark.parametrize(
  'kind',
  [
    'stacked',
    'stacked rotary',
    'repeated',
    'repeated scanned',
    'hybrid repeated',
    'hybrid repeated scanned',
  ],
)
def test_greedy_decoding_equals_reading_the_whole_text(kind, at_once):
  decoding.check_greedy(kind, at_once)


def test_state_spaces_equal_reading_the_whole_text():
  decoding.check_greedy('ssm', at_once=False)


@pytest.mark.parametrize(
  'kind',
  [
    'lazy',
    'lazy clusters',
    'lazy rotary dconv',
    'lazy repeated',
    'lazy repeated scanned',
    'hybrid lazy rotary',
  ],
)
def test_samples_may_share_the_cache_of_their_prompt(kind):
  decoding.check_sharing(kind)


@pytest.mark.parametrize(
  'kind', ['lazy', 'stacked', 'repeated scanned', 'hybrid lazy']
)
def test_beam_searches_agree(kind):
  decoding.check_beams(kind)


@pytest.mark.parametrize('kind', ['stacked', 'scanned', 'hybrid', 'ngrams'])
def test_requests_get_what_they_would_get_alone(kind):
  serving.check_requests(kind)
