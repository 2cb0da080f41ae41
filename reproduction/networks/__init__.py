"""The experiment `networks`: the direct form on nine networks, untouched, beside a reference."""
