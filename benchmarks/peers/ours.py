"""ASPIRE-EASE, the whole asynchronous algorithm with untouched defaults, on the same work.

    python ours.py FORM S     S reports make a step; FORM: direct or consensus

Batches are drawn from 2,000 samples a site; losses are reported; delays are log-normal; events are
hashed. Start-up probes and the evaluation at the end are in both runs, so they do not count.
"""

from __future__ import annotations

import sys

from work import BATCH, CLIENTS, measured, network, samples

from aspire import train


def rounds(count: int) -> int:
    form = sys.argv[1]
    quorum = int(sys.argv[2])
    train(
        network(),
        samples(),
        form=form,
        quorum=quorum,
        iterations=count * CLIENTS // quorum,
        batch_size=BATCH,
        evaluate_every=0,
        log="digest",
    )
    return count * CLIENTS


if __name__ == "__main__":
    measured(rounds, 5, 105)
