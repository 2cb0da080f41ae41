"""The published methods that ASPIRE-EASE is compared with, one file each."""
