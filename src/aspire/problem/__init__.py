"""A problem: a model as a flat vector, and sites that have losses and gradients of it."""
