"""ASPIRE-EASE in its two forms: the paper's copies of the model, and one common model."""
