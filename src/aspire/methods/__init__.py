"""Methods: each is one file and one value with (init, work, absorb, model).

`make` makes one from its name and a map of plain values.
"""

from aspire.methods.afl import afl
from aspire.methods.aspire_ease import consensus
from aspire.methods.by_name import METHODS, make
from aspire.methods.central import central
from aspire.methods.cover import cover
from aspire.methods.direct import direct
from aspire.methods.drfa_prox import drfa_prox
from aspire.methods.fedavg import fedavg
from aspire.methods.forms import aspire
from aspire.methods.gcivr import gcivr
from aspire.methods.gda import gda
from aspire.methods.gdmax import gdmax
from aspire.methods.ind import ind
from aspire.methods.q_ffl import q_ffl

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
    "gcivr",
    "gda",
    "gdmax",
    "ind",
    "make",
    "q_ffl",
]
