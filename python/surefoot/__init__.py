"""Surefoot for programs in Python: `surefoot.policy` (docs/python-policies.md). It needs the standard library alone."""
