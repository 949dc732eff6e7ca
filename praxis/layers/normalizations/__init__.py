# SPDX-License-Identifier: Apache-2.0
"""Normalization layers."""

from praxis.alias_names import module_getattr
from praxis.layers.normalizations.base import (
  BaseNormalization as BaseNormalization,
)
from praxis.layers.normalizations.base import IdentityNorm as IdentityNorm
from praxis.layers.normalizations.batch_norm import BatchNorm as BatchNorm
from praxis.layers.normalizations.group_norm import GroupNorm as GroupNorm
from praxis.layers.normalizations.layer_norm import LayerNorm as LayerNorm
from praxis.layers.normalizations.moments import (
  compute_moments as compute_moments,
)
from praxis.layers.normalizations.rms_norm import (
  GroupedRmsNorm as GroupedRmsNorm,
)
from praxis.layers.normalizations.rms_norm import RmsNorm as RmsNorm
from praxis.layers.normalizations.rms_norm import (
  RmsNormNoScale as RmsNormNoScale,
)
from praxis.layers.normalizations.weight_norms import (
  SpectralNorm as SpectralNorm,
)
from praxis.layers.normalizations.weight_norms import (
  WeightNormL2 as WeightNormL2,
)

__getattr__ = module_getattr(__name__)
