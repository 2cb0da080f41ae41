"""Methods: each is one file and one value with (init, work, absorb, model)."""

from aspire.methods.afl import afl
from aspire.methods.aspire_ease import aspire
from aspire.methods.central import central
from aspire.methods.cover import cover
from aspire.methods.drfa_prox import drfa_prox
from aspire.methods.fedavg import fedavg
from aspire.methods.gcivr import gcivr
from aspire.methods.gda import gda
from aspire.methods.gdmax import gdmax
from aspire.methods.ind import ind
from aspire.methods.q_ffl import q_ffl

__all__ = [
    "afl",
    "aspire",
    "central",
    "cover",
    "drfa_prox",
    "fedavg",
    "gcivr",
    "gda",
    "gdmax",
    "ind",
    "q_ffl",
]
