# SPDX-License-Identifier: Apache-2.0
"""Summary types in keys, and summaries from outside a layer."""

from __future__ import annotations

import pytest

from praxis import base_layer
from praxis.base_layer import JaxContext, SummaryType


@pytest.mark.parametrize('summary_type', list(SummaryType))
def test_the_type_survives_in_the_key(summary_type):
  key = 'a/b' + base_layer.get_summary_type_suffix(summary_type)
  assert base_layer.get_summary_type_from_key(key) is summary_type
  assert base_layer.trim_summary_type_from_key(key) == 'a/b'


def test_a_key_without_type_is_refused():
  with pytest.raises(ValueError, match='ends in no type'):
    base_layer.get_summary_type_from_key('loss')


def test_base_types():
  base = base_layer.get_summary_base_type
  assert base(SummaryType.AGGREGATE_SCALAR) is SummaryType.SCALAR
  assert base(SummaryType.AGGREGATE_IMAGE) is SummaryType.IMAGE
  assert base(SummaryType.TEXT) is SummaryType.TEXT


def test_global_summaries_belong_to_the_context():
  hparams = JaxContext.HParams(summary_verbosity=2)
  with JaxContext.new_context(hparams=hparams):
    base_layer.add_global_summary('lr', 0.5)
    base_layer.add_global_summary('noise', lambda: 1 / 0, verbosity=3)
    assert base_layer.all_global_summaries() == {'lr_scalar': 0.5}
    with pytest.raises(ValueError, match='was added before'):
      base_layer.add_global_summary('lr', 0.1)
  assert base_layer.all_global_summaries() == {}
