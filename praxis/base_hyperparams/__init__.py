# SPDX-License-Identifier: Apache-2.0
"""Base classes of configurable objects and of parameter classes; re-exports.

Fields are declared on the configurable class, or in a nested class:

    class Cosine(FiddleBaseParameterizable):    class Cosine(...):
      total_steps: int = 0                        class HParams(BaseHParams):
                                                    total_steps: int = 0

Both give `Cosine.HParams(total_steps=9)`, a `Config(Cosine, total_steps=9)`.
The `HParams` of the older `BaseParameterizable` are objects of their own.
"""

from praxis import lazy_loader as _lazy_loader
from praxis.alias_names import module_getattr
from praxis.base_hyperparams.hyperparams import (
  BaseHyperParams,
  FiddleHParamsClassStub,
)
from praxis.base_hyperparams.legacy_parameterizable import (
  BaseParameterizable,
  instantiate,
)
from praxis.base_hyperparams.parameterizable import (
  FiddleBaseParameterizable,
  FiddleBaseParameterizableBase,
  HParamsView,
  config_of,
  lift_hparams,
  unannotated_defaults,
)
from praxis.base_hyperparams.sub_configs import (
  OverrideSubConfigFieldProtocol,
  SubConfigFactory,
  sub_config_field,
)
from praxis.struct_text import (
  StrOverride,
  nested_struct_to_text,
  visit_nested_struct,
)

# Imported at the first use: TensorFlow takes seconds.
tf = _lazy_loader.LazyLoader('tf', globals(), 'tensorflow.compat.v2')

BaseHyperParamsSelf = BaseHyperParams
BaseParameterizableSelf = BaseParameterizable
FiddleBaseParameterizableSelf = FiddleBaseParameterizable

__all__ = [name for name in dir() if not name.startswith('_')]
__getattr__ = module_getattr(__name__)
