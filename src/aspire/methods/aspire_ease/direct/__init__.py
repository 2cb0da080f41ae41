"""The direct form: the same problem and planes as ASPIRE-EASE, without copies of the model.

With w_j = z the Lagrangian is L = h + sum_l lam_l (p_l . f(z) - h). Sites report gradients at the z
that they were handed, the master weighs them by the planes and hands the sum to a torch optimiser.
Sets, planes, EASE, quorum, staleness and absences are those of the paper; no theorem covers it.

    form       the arguments, and the method as a value
    rules      the arguments, checked
    worker     a site's part
    state      what the master knows
    master     its first tasks, and what it does with each event
    presence   who takes part, and which events are refused
    step       gathered gradients, the optimiser, the average
    losses     multipliers and planes
    tasks      what sites are asked next
"""

from aspire.methods.aspire_ease.direct.form import direct
from aspire.methods.aspire_ease.direct.presence import under

__all__ = ["direct", "under"]
