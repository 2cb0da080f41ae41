"""Methods: each is one file and one value with (init, work, absorb, model).

`make` makes one from its name and a map of plain values.
"""

from aspire.methods.aspire_ease.central import central
from aspire.methods.aspire_ease.consensus import consensus
from aspire.methods.aspire_ease.direct import direct
from aspire.methods.aspire_ease.forms import aspire
from aspire.methods.baselines.afl import afl
from aspire.methods.baselines.cover import cover
from aspire.methods.baselines.drfa_prox import drfa_prox
from aspire.methods.baselines.fedavg import fedavg
from aspire.methods.baselines.fedbuff import fedbuff
from aspire.methods.baselines.gcivr import gcivr
from aspire.methods.baselines.gda import gda
from aspire.methods.baselines.gdmax import gdmax
from aspire.methods.baselines.ind import ind
from aspire.methods.baselines.q_ffl import q_ffl
from aspire.methods.by_name import METHODS, make

__all__ = [
    "METHODS",
    "afl",
    "aspire",
    "central",
    "consensus",
    "cover",
    "direct",
    "drfa_prox",
    "fedavg",
    "fedbuff",
    "gcivr",
    "gda",
    "gdmax",
    "ind",
    "make",
    "q_ffl",
]
