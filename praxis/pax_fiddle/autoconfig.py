# SPDX-License-Identifier: Apache-2.0
"""Fiddle's auto_config with the Config types of Pax."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fiddle.experimental import auto_config as fiddle_auto_config

from praxis.pax_fiddle.buildables import ArgFactory, Config, Partial

is_auto_config = fiddle_auto_config.is_auto_config


def auto_config(fn: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
  """Decorates a function that builds an object, as Fiddle's `auto_config`.

  A call of the function builds; its `as_buildable()` returns the Config that
  builds an equal object. A class is treated as a function that instantiates it;
  an `auto_config` function is returned unchanged.
  """
  if fn is None:
    return functools.partial(auto_config, **kwargs)
  if is_auto_config(fn):
    return fn
  if isinstance(fn, type):
    cls = fn

    def construct():
      return cls()

    fn = construct
  is_exempt = kwargs.pop(
    'experimental_exemption_policy',
    fiddle_auto_config.auto_config_policy.latest,
  )
  options = {
    'experimental_allow_control_flow': True,
    'experimental_exemption_policy': lambda f: f is Config or is_exempt(f),
    'experimental_config_types': fiddle_auto_config.ConfigTypes(
      config_cls=Config, partial_cls=Partial, arg_factory_cls=ArgFactory
    ),
    'experimental_result_must_contain_buildable': False,
  }
  return fiddle_auto_config.auto_config(fn, **{**options, **kwargs})
