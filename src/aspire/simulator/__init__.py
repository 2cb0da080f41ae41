"""The simulator: real algorithm, real gradients, a virtual clock."""
