"""The mathematics of ASPIRE-EASE, one function per equation; numbers follow the paper."""
